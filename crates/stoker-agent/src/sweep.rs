//! What nobody wants any more: leases of pulls whose orders are gone, and files of the spool that no order needs.
//!
//! It comes after the start, and after orders were taken back and their attempts have ended; it never touches what an
//! attempt has in hand.

use std::collections::BTreeSet;

use stoker_runtime::Runtime;

use crate::pull::Tools;

/// What to keep.
pub(crate) struct Keep {
    /// The pulls that are wanted, by the keys of their orders.
    pub(crate) pulls: BTreeSet<String>,
    /// Whether some order may still need what is in the spool.
    pub(crate) spool: bool,
}

/// Whether there is something to sweep, and whether it may be done now.
#[derive(Debug, Default)]
pub(crate) struct Broom {
    due: bool,
}

impl Broom {
    /// Something may have been left behind.
    pub(crate) fn call(&mut self) {
        self.due = true;
    }

    /// Takes the call, if there is one and no stopped attempt is still ending.
    pub(crate) fn take(&mut self, quiet: bool) -> bool {
        quiet && std::mem::take(&mut self.due)
    }
}

/// Sweeps once. An error is said by whoever asked; the next call does the rest.
pub(crate) async fn sweep(tools: Tools, keep: Keep) -> Result<(), String> {
    let Tools { spool, runtime, uses, .. } = tools;
    if !keep.spool {
        let held = spool.held().await.map_err(|problem| problem.to_string())?;
        for (digest, _) in held.into_iter().filter(|(digest, _)| !uses.has(digest)) {
            spool.release(&digest).await.map_err(|problem| problem.to_string())?;
        }
    }
    match runtime {
        Runtime::Containerd(containerd, _) => {
            let wanted = |pull: &str| keep.pulls.contains(pull);
            containerd.sweep(wanted).await.map_err(|problem| problem.to_string())
        }
        Runtime::Layout(_) | Runtime::Cri(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_waits_until_it_is_quiet_and_is_answered_once() {
        let mut broom = Broom::default();
        assert!(!broom.take(true));
        broom.call();
        assert!(!broom.take(false));
        assert!(broom.take(true));
        assert!(!broom.take(true));
    }
}

//! Blobs that stay in the spool although this node needs them no longer: its runtime has unpacked and thrown them away, and other nodes
//! still read them. What lingers goes first where the disk is needed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use stoker_transfer::Digest;
use tokio::time::Instant;

/// The blobs that linger, each with when it was last read or wanted. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lingering {
    /// How long; none where nothing lingers.
    time: Option<Duration>,
    last: Arc<Mutex<HashMap<Digest, Instant>>>,
}

impl Lingering {
    /// Blobs that linger for this long.
    pub(crate) fn new(time: Duration) -> Self {
        Self { time: Some(time), last: Arc::default() }
    }

    fn last(&self) -> MutexGuard<'_, HashMap<Digest, Instant>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This node needs the blob no longer; says whether it stays for others.
    pub(crate) fn keep(&self, blob: &Digest) -> bool {
        if self.time.is_some() {
            self.last().insert(blob.clone(), Instant::now());
        }
        self.time.is_some()
    }

    /// Others may still want these.
    pub(crate) fn prolong<'a>(&self, blobs: impl Iterator<Item = &'a Digest>) {
        let mut last = self.last();
        if !last.is_empty() {
            let now = Instant::now();
            blobs.for_each(|blob| {
                if let Some(at) = last.get_mut(blob) {
                    *at = now;
                }
            });
        }
    }

    /// Whether the blob lingers.
    pub(crate) fn has(&self, blob: &Digest) -> bool {
        self.last().contains_key(blob)
    }

    /// The blob is gone, or needed again.
    pub(crate) fn forget(&self, blob: &Digest) {
        self.last().remove(blob);
    }

    /// The blobs whose time is over.
    pub(crate) fn over(&self) -> Vec<Digest> {
        let (time, now) = (self.time.unwrap_or_default(), Instant::now());
        let last = self.last();
        last.iter().filter(|(_, at)| now.duration_since(**at) >= time).map(|(blob, _)| blob.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_blob_lingers_until_nobody_wanted_it_for_a_time() {
        let blobs = ["a", "b"].map(|letter| format!("sha256:{}", letter.repeat(64)).parse::<Digest>().unwrap());
        assert!(!Lingering::default().keep(&blobs[0]), "nothing lingers where nobody reads");
        let lingering = Lingering::new(Duration::from_secs(300));
        assert!(blobs.iter().all(|blob| lingering.keep(blob)));
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert!(lingering.over().is_empty());
        lingering.prolong(blobs.iter().take(1));
        tokio::time::sleep(Duration::from_secs(200)).await;
        assert_eq!(lingering.over(), blobs[1..]);
        lingering.forget(&blobs[1]);
        lingering.prolong(blobs.iter());
        assert!(lingering.has(&blobs[0]) && !lingering.has(&blobs[1]), "what is gone does not come back");
    }
}

//! Who has which blob in hand. A blob that several attempts want is fetched once, counted once, and its spool file stays
//! until the last of them has it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use stoker_transfer::Digest;

/// The blobs that attempts have in hand, with how many do.
#[derive(Debug, Default)]
pub(crate) struct Uses(Mutex<BTreeMap<String, usize>>);

/// One attempt's hand on a blob.
pub(crate) struct Use {
    uses: Arc<Uses>,
    digest: String,
    /// Whether no other attempt counts what of it comes over the wire.
    pub(crate) counts: bool,
}

impl Uses {
    /// Takes a blob in hand.
    pub(crate) fn take(self: &Arc<Self>, digest: &Digest) -> Use {
        let digest = digest.to_string();
        let mut uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = uses.entry(digest.clone()).or_default();
        *count += 1;
        Use { uses: self.clone(), counts: *count == 1, digest }
    }

    /// Whether some attempt has it in hand.
    pub(crate) fn has(&self, digest: &Digest) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains_key(digest.as_ref())
    }
}

impl Use {
    /// Whether nobody else needs the blob.
    pub(crate) fn is_last(&self) -> bool {
        self.uses.0.lock().unwrap_or_else(PoisonError::into_inner).get(&self.digest).is_none_or(|count| *count <= 1)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut uses = self.uses.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = uses.get_mut(&self.digest) {
            *count -= 1;
            if *count == 0 {
                uses.remove(&self.digest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_counts_and_the_last_cleans_up() {
        let uses = Arc::new(Uses::default());
        let digest: Digest = format!("sha256:{}", "a".repeat(64)).parse().unwrap();
        let first = uses.take(&digest);
        let second = uses.take(&digest);
        assert!(first.counts && !second.counts);
        assert!(!first.is_last());
        drop(first);
        assert!(second.is_last() && uses.has(&digest));
        drop(second);
        assert!(!uses.has(&digest));
        assert!(uses.take(&digest).counts);
    }
}

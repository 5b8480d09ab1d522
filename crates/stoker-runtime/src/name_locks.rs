//! One lock for each name: two who work on the same thing do it one after the other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

/// The locks that somebody holds or waits for.
#[derive(Debug, Default)]
pub(crate) struct NameLocks(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl NameLocks {
    /// Waits for the lock of this name.
    pub(crate) async fn take(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            locks.entry(name.to_owned()).or_default().clone()
        };
        lock.lock_owned().await
    }
}

//! One seat for each name: two who work on the same thing do it one after the other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

/// The seats that somebody sits on or waits for.
#[derive(Debug, Default)]
pub(crate) struct Seats(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Seats {
    /// Waits for the seat of this name.
    pub(crate) async fn take(&self, name: &str) -> OwnedMutexGuard<()> {
        let seat = {
            let mut seats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            seats.retain(|_, seat| Arc::strong_count(seat) > 1);
            seats.entry(name.to_owned()).or_default().clone()
        };
        seat.lock_owned().await
    }
}

//! A blob on its way onto the disks: how much of it will still be written, for what is reserved.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use stoker_core::step::Failure;
use stoker_runtime::room::Unwritten;
use stoker_transfer::{Descriptor, Digest, Progress};

use super::PullTools;
use super::failure::transfer_failure;

/// One blob. Clones are the same.
#[derive(Clone)]
pub(super) struct Arrival {
    size: u64,
    /// What the spool had of it before.
    spooled: u64,
    /// How far its fetch is, once it has begun.
    fetch: Arc<OnceLock<Progress>>,
    /// What the runtime has of it.
    pub(super) taken: Arc<AtomicU64>,
}

impl Arrival {
    /// A blob of which the spool has so much.
    pub(super) fn new(blob: &Descriptor, spooled: Option<u64>) -> Self {
        Self { size: blob.size(), spooled: spooled.unwrap_or(0), fetch: Arc::default(), taken: Arc::default() }
    }

    /// Its fetch has begun. (One that begins anew writes over what is there.)
    pub(super) fn comes(&self, progress: Progress) {
        let _ = self.fetch.set(progress);
    }

    /// What the spool will still write of it.
    pub(super) fn unfetched(&self) -> Unwritten {
        let this = self.clone();
        Unwritten::Counted(Box::new(move || {
            let have = this.fetch.get().map_or(0, Progress::have);
            this.size.saturating_sub(have.max(this.spooled))
        }))
    }

    /// What the runtime will still write of it.
    pub(super) fn untaken(&self) -> Unwritten {
        let this = self.clone();
        Unwritten::Counted(Box::new(move || this.size.saturating_sub(this.taken.load(Ordering::Relaxed))))
    }
}

impl PullTools {
    /// What the spool has of each blob.
    pub(super) async fn spooled(&self) -> Result<HashMap<Digest, u64>, Failure> {
        let held = self.spool.held().await.map_err(transfer_failure)?;
        Ok(held.into_iter().map(|file| (file.digest, file.bytes)).collect())
    }
}

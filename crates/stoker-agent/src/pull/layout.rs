//! Into an OCI image layout: whole files move in, then the documents, then the name.

use futures::{StreamExt as _, TryStreamExt as _};
use stoker_core::Order;
use stoker_core::step::Failure;
use stoker_runtime::room::{DiskAmount, Unwritten};
use stoker_runtime::{Care, Layout, Stored};
use stoker_transfer::{Descriptor, PlatformImage};

use super::arrival::Arrival;
use super::failure::{keeps_changing, restarts, runtime_failure, transfer_failure};
use super::{ANEW, Origin, PullTools};
use crate::guard::DiskNeed;
use crate::meter::Meter;

impl PullTools {
    /// Gives a note for the report where something that was there turned out damaged.
    pub(super) async fn put_in_layout(
        &self,
        store: &Layout,
        order: &Order,
        from: &Origin,
        image: &PlatformImage,
        meter: &Meter,
    ) -> Result<Option<String>, Failure> {
        let (mut missing, mut damaged): (Vec<Descriptor>, Vec<String>) = (Vec::new(), Vec::new());
        for blob in image.blobs() {
            let stored = store.blob(blob.digest(), blob.size(), Care::Hashed).await.map_err(runtime_failure)?;
            if let Stored::Damaged(_) = &stored {
                damaged.push(blob.digest().to_string());
            }
            if stored.whole().is_none() {
                missing.push(blob.clone());
            }
        }
        let (pulls, pull) = (&self.guard.leftovers.pulls, from.reference.key().to_string());
        if !missing.is_empty() {
            pulls.begin(&pull, missing.iter().map(Descriptor::digest)).await;
        }
        let lacks = missing.iter().fold(0u64, |sum, blob| sum.saturating_add(blob.size()));
        meter.sized(image.total_size(), image.total_size().saturating_sub(lacks));
        // A file moves from the spool into the store. Where that is another disk it is copied, and takes room on both.
        let apart = self.guard.apart().await;
        // What is reserved ends with the pull; what has arrived of it counts no more.
        let (arrivals, _reserved) = loop {
            let spooled = self.spooled().await?;
            let arrivals: Vec<Arrival> =
                missing.iter().map(|blob| Arrival::new(blob, spooled.get(blob.digest()).copied())).collect();
            let needs = || {
                let copies = missing.iter().filter(|_| apart).map(|blob| DiskAmount { bytes: blob.size(), inodes: 1 });
                let copies = copies.map(|copy| DiskNeed::Images(Unwritten::Amount(copy)));
                arrivals.iter().map(|arrival| DiskNeed::Spool(arrival.unfetched())).chain(copies).collect()
            };
            if let Some(reserved) = self.guard.admit(&order.image, needs, meter).await? {
                break (arrivals, reserved);
            }
        };
        let fetches =
            missing.into_iter().zip(arrivals).map(|(blob, arrival)| self.file(store, from, blob, arrival, meter));
        futures::stream::iter(fetches).buffer_unordered(self.layers).try_collect::<()>().await?;
        for document in &image.documents {
            let put = store.put(document.descriptor.digest(), document.bytes.clone());
            put.await.map_err(runtime_failure)?;
        }
        store.record(&order.image, image.root.clone()).await.map_err(runtime_failure)?;
        pulls.done(&pull).await;
        let note = || format!("damaged on this node's disk, and fetched again: {}", damaged.join(", "));
        Ok((!damaged.is_empty()).then(note))
    }

    /// Fetches a blob and gives it to the store, which hashes what it gets. A file that changed in the spool after it was
    /// checked is fetched again.
    async fn file(
        &self,
        store: &Layout,
        from: &Origin,
        blob: Descriptor,
        arrival: Arrival,
        meter: &Meter,
    ) -> Result<(), Failure> {
        let hand = self.uses.take(blob.digest());
        let mut growing = self.spool.blob(from.source(), blob.clone());
        meter.blob(growing.progress(), hand.counts);
        arrival.comes(growing.progress());
        let mut tries = 0;
        loop {
            match growing.complete().await {
                Ok(file) => match store.adopt(blob.digest(), &file).await {
                    Ok(()) => break,
                    Err(problem) if problem.wants_another_file() && tries < ANEW => {
                        tracing::warn!("{} changed after it was checked: {problem}", file.display());
                        growing.is_damaged().await.map_err(transfer_failure)?;
                    }
                    Err(problem) if problem.wants_another_file() => {
                        return Err(keeps_changing(from.reference.name(), blob.digest(), tries + 1));
                    }
                    Err(problem) => return Err(runtime_failure(problem)),
                },
                // Another pull that wants the same blob found it out.
                Err(problem) if restarts(&problem) && tries < ANEW => {}
                Err(problem) => return Err(transfer_failure(problem)),
            }
            tries += 1;
            growing = self.begin_anew(&growing, from, &blob, hand.counts, meter);
        }
        self.spool.release(blob.digest()).await.map_err(transfer_failure)
    }
}

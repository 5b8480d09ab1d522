//! Into an OCI image layout: whole files move in, then the documents, then the name.

use futures::{StreamExt as _, TryStreamExt as _};
use stoker_core::Order;
use stoker_core::step::Failure;
use stoker_runtime::Layout;
use stoker_transfer::{Descriptor, Image};

use super::failure::{runtime_failure, transfer_failure};
use super::{Origin, Tools};
use crate::guard::Need;
use crate::meter::Meter;

impl Tools {
    pub(super) async fn put_in_layout(
        &self,
        store: &Layout,
        order: &Order,
        from: &Origin,
        image: &Image,
        meter: &Meter,
    ) -> Result<(), Failure> {
        let mut missing: Vec<Descriptor> = Vec::new();
        for blob in image.blobs() {
            if !store.has(blob.digest(), blob.size()).await {
                missing.push(blob.clone());
            }
        }
        let lacks: u64 = missing.iter().map(Descriptor::size).sum();
        meter.sized(image.total_size(), image.total_size().saturating_sub(lacks));
        // A file moves from the spool into the store; where that is another disk, each sees all of it.
        self.guard.check(&order.image, Need { spool: lacks, images: 0 }).await?;
        let fetches = missing.into_iter().map(|blob| self.file(store, from, blob, meter));
        futures::stream::iter(fetches).buffer_unordered(self.layers).try_collect::<()>().await?;
        for document in &image.documents {
            let put = store.put(document.descriptor.digest(), document.bytes.clone());
            put.await.map_err(runtime_failure)?;
        }
        store.record(&order.image, image.root.clone()).await.map_err(runtime_failure)
    }

    async fn file(&self, store: &Layout, from: &Origin, blob: Descriptor, meter: &Meter) -> Result<(), Failure> {
        let hand = self.uses.take(blob.digest());
        let growing = self.spool.blob(from.source(), blob.clone());
        meter.blob(growing.progress(), hand.counts);
        let file = growing.complete().await.map_err(transfer_failure)?;
        // Another image with the same layer may have brought it in first; that is as good.
        store.adopt(blob.digest(), &file).await.map_err(runtime_failure)?;
        self.spool.release(blob.digest()).await.map_err(transfer_failure)
    }
}

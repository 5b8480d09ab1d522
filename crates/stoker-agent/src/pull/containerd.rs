//! Into containerd: layers while they come, from the base up, then the records.

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, TryFutureExt as _, TryStreamExt as _};
use stoker_core::Reason;
use stoker_core::step::Failure;
use stoker_runtime::Containerd;
use stoker_runtime::containerd::{Blob, Layer, Session, Trouble, Wanted};
use stoker_runtime::grpc::Kind as RuntimeKind;
use stoker_transfer::{Descriptor, Image};

use super::failure::{keeps_changing, restarts, runtime_failure, transfer_failure};
use super::{ANEW, Origin, Tools, by_digest};
use crate::guard::{Need, unpacked};
use crate::meter::Meter;

/// The most that an image's configuration may have.
const MOST_CONFIG: u64 = 8 * 1024 * 1024;

impl Tools {
    pub(super) async fn put_in_containerd(
        &self,
        containerd: &Containerd,
        from: &Origin,
        image: &Image,
        meter: &Meter,
    ) -> Result<(), Failure> {
        let config = self.config(containerd, from, image, meter).await?;
        let session = containerd.begin(wanted(from, image, config), (self.clock)()).await.map_err(runtime_failure)?;
        let missing = || image.layers.iter().zip(session.layers()).filter(|(_, state)| **state == Layer::Missing);
        let mut seen = std::collections::HashSet::new();
        let lacks: u64 =
            missing().filter(|(layer, _)| seen.insert(layer.digest())).map(|(layer, _)| layer.size()).sum();
        let pulls = &self.guard.leftovers.pulls;
        let pull = from.reference.key().to_string();
        // Also where nothing is missing: the lease holds what must still be unpacked.
        pulls.begin(&pull, seen.iter().copied().chain([image.config.digest()])).await;
        // The configuration has its own counter where it had to be fetched.
        meter.sized(image.total_size(), image.total_size().saturating_sub(lacks + meter.under_way()));
        let packed = image.layers.iter().zip(session.layers()).filter(|(_, state)| **state != Layer::Unpacked);
        let unpacked = packed.map(|(layer, _)| unpacked(layer.media_type().as_ref(), layer.size())).sum::<u64>();
        let spooled = self.spool.held().await.map_err(transfer_failure)?;
        let spooled = spooled.iter().filter(|file| seen.contains(&file.digest)).map(|file| file.bytes).sum::<u64>();
        // What an earlier attempt left on the disk is not needed once more.
        let packed = lacks.saturating_sub(session.begun());
        let need = Need { spool: lacks.saturating_sub(spooled), images: packed.saturating_add(unpacked) };
        self.guard.check(from.reference.name(), need).await?;
        let layers = image.layers.clone().into_iter().enumerate();
        let layers = layers.map(|(index, layer)| self.layer(&session, index, from, layer, meter));
        futures::stream::iter(layers).buffer_unordered(self.layers).try_collect::<()>().await?;
        session.finish().await.map_err(runtime_failure)?;
        pulls.done(&pull).await;
        meter.whole(image.total_size());
        self.spool.release(image.config.digest()).await.map_err(transfer_failure)
    }

    /// The image's configuration, from containerd or from the registry.
    async fn config(
        &self,
        containerd: &Containerd,
        from: &Origin,
        image: &Image,
        meter: &Meter,
    ) -> Result<Bytes, Failure> {
        let config = &image.config;
        if let Some(bytes) = containerd.document(config.digest().as_ref()).await.map_err(runtime_failure)? {
            return Ok(bytes);
        }
        if config.size() > MOST_CONFIG {
            return Err(Failure {
                reason: Reason::TooLarge,
                message: format!("{}: its configuration has more than 8 MiB; that is no image", from.reference.name()),
                retryable: false,
                pause: None,
            });
        }
        let hand = self.uses.take(config.digest());
        let mut growing = self.spool.blob(from.source(), config.clone());
        meter.blob(growing.progress(), hand.counts);
        for _ in 0..ANEW {
            match growing.bytes().await {
                Err(problem) if restarts(&problem) => {
                    growing = self.begin_anew(&growing, from, config, hand.counts, meter);
                }
                read => return read.map_err(transfer_failure),
            }
        }
        growing.bytes().await.map_err(|problem| match restarts(&problem) {
            true => keeps_changing(from.reference.name(), config.digest(), ANEW + 1),
            false => transfer_failure(problem),
        })
    }

    async fn layer(
        &self,
        session: &Session,
        index: usize,
        from: &Origin,
        layer: Descriptor,
        meter: &Meter,
    ) -> Result<(), Failure> {
        if !session.lacks(index).await.map_err(runtime_failure)? {
            let nothing: Option<Blob<'_, stoker_transfer::Error>> = None;
            return session.layer(index, nothing).await.map_err(failure);
        }
        let hand = self.uses.take(layer.digest());
        let mut growing = self.spool.blob(from.source(), layer.clone());
        meter.blob(growing.progress(), hand.counts);
        let mut tries = 0;
        loop {
            let (open, slow) = (|from: u64| growing.follow(from), || growing.throttled());
            let complete = growing.complete().map_ok(|_| ()).boxed();
            let blob = Blob { open: &open, complete, slow: &slow };
            match session.layer(index, Some(blob)).await {
                Ok(()) => break,
                // The blob begins anew; so do we.
                Err(Trouble::Source(problem)) if restarts(&problem) && tries < ANEW => {}
                // containerd hashes what it is given. Where that is not what the spool had checked, another fetch helps.
                Err(Trouble::Runtime(problem)) if problem.kind == RuntimeKind::Corrupt => {
                    if !growing.is_damaged().await.map_err(transfer_failure)? {
                        return Err(runtime_failure(problem));
                    }
                    if tries == ANEW {
                        return Err(keeps_changing(from.reference.name(), layer.digest(), tries + 1));
                    }
                    tracing::warn!("{} changed in the spool after it was checked: {problem}", layer.digest());
                }
                Err(trouble) => return Err(failure(trouble)),
            }
            tries += 1;
            growing = self.begin_anew(&growing, from, &layer, hand.counts, meter);
        }
        drop(growing);
        if hand.is_last() {
            self.spool.release(layer.digest()).await.map_err(transfer_failure)?;
        }
        Ok(())
    }
}

fn wanted(from: &Origin, image: &Image, config: Bytes) -> Wanted {
    let reference = &from.reference;
    let mut names = vec![by_digest(reference, image.root.digest().as_ref())];
    if reference.digest().is_none() {
        names.insert(0, reference.name().to_owned());
    }
    Wanted {
        pull: reference.key().to_string(),
        names,
        source: (reference.registry().to_owned(), reference.repository().to_owned()),
        root: image.root.clone(),
        documents: image
            .documents
            .iter()
            .map(|document| (document.descriptor.clone(), document.bytes.clone()))
            .collect(),
        config: (image.config.clone(), config),
        layers: image.layers.clone(),
    }
}

fn failure(trouble: Trouble<stoker_transfer::Error>) -> Failure {
    match trouble {
        Trouble::Source(problem) => transfer_failure(problem),
        Trouble::Runtime(problem) => runtime_failure(problem),
    }
}

//! Into containerd: layers while they come, from the base up, then the records.

use std::collections::HashSet;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _, TryFutureExt as _, TryStreamExt as _};
use stoker_core::Reason;
use stoker_core::step::Failure;
use stoker_runtime::Containerd;
use stoker_runtime::containerd::{LayerSource, LayerState, LayerTrouble, Session, WantedImage};
use stoker_runtime::grpc::RuntimeErrorKind;
use stoker_runtime::room::{DiskAmount, Hold, Purse};
use stoker_transfer::{Descriptor, PlatformImage};

use super::arrival::Arrival;
use super::failure::{keeps_changing, restarts, runtime_failure, transfer_failure};
use super::{ANEW, Origin, PullTools, by_digest};
use crate::guard::{self, DiskNeed, Reserved, unpacked};
use crate::meter::Meter;

/// What one layer has reserved, until it is in its place.
struct LayerShare {
    arrival: Arrival,
    /// Whether its blob has to come.
    comes: bool,
    /// What it takes unpacked, about, if that has to be done.
    unpacked: Option<DiskAmount>,
    purse: Purse,
    /// For the blob, in the spool and in containerd.
    _holds: Vec<Hold>,
}

impl LayerShare {
    fn needs(&self) -> impl Iterator<Item = DiskNeed> {
        let blob =
            self.comes.then(|| [DiskNeed::Spool(self.arrival.unfetched()), DiskNeed::Images(self.arrival.untaken())]);
        blob.into_iter().flatten().chain(self.unpacked.map(DiskNeed::Unpacked))
    }
}

/// The most that an image's configuration may have.
const MOST_CONFIG: u64 = 8 * 1024 * 1024;

impl PullTools {
    pub(super) async fn put_in_containerd(
        &self,
        containerd: &Containerd,
        from: &Origin,
        image: &PlatformImage,
        meter: &Meter,
    ) -> Result<(), Failure> {
        let config = self.config(containerd, from, image, meter).await?;
        let (pulls, pull) = (&self.guard.leftovers.pulls, from.reference.key().to_string());
        let (session, shares) = loop {
            let wanted = wanted(from, image, config.clone());
            let session = containerd.begin(wanted, (self.clock)()).await.map_err(runtime_failure)?;
            let missing =
                || image.layers.iter().zip(session.layers()).filter(|(_, state)| **state == LayerState::Missing);
            let mut seen = HashSet::new();
            let lacks = missing().filter(|(layer, _)| seen.insert(layer.digest())).map(|(layer, _)| layer.size());
            let lacks = lacks.fold(0, u64::saturating_add);
            // Also where nothing is missing: the lease holds what must still be unpacked.
            pulls.begin(&pull, seen.iter().copied().chain([image.config.digest()])).await;
            // The configuration has its own counter where it had to be fetched.
            let under_way = lacks.saturating_add(meter.under_way());
            meter.sized(image.total_size(), image.total_size().saturating_sub(under_way));
            if let Some(shares) = self.reserve(&session, from, image, meter).await? {
                break (session, shares);
            }
        };
        let layers = image.layers.clone().into_iter().zip(shares).enumerate();
        let layers = layers.map(|(index, (layer, share))| self.layer(&session, index, from, layer, share, meter));
        futures::stream::iter(layers).buffer_unordered(self.layers).try_collect::<()>().await?;
        session.finish().await.map_err(runtime_failure)?;
        pulls.done(&pull).await;
        meter.whole(image.total_size());
        self.spool.release(image.config.digest()).await.map_err(transfer_failure)
    }

    /// Reserves what each layer will put onto the disks; `None` after it had to wait for that.
    async fn reserve(
        &self,
        session: &Session,
        from: &Origin,
        image: &PlatformImage,
        meter: &Meter,
    ) -> Result<Option<Vec<LayerShare>>, Failure> {
        let spooled = self.spooled().await?;
        let mut seen = HashSet::new();
        let mut shares: Vec<LayerShare> = Vec::new();
        for (index, (layer, state)) in image.layers.iter().zip(session.layers()).enumerate() {
            let arrival = Arrival::new(layer, spooled.get(layer.digest()).copied());
            // What an earlier attempt left on the disk is not needed once more.
            arrival.taken.store(session.begun(index), Ordering::Relaxed);
            // A layer that is there twice comes once, and is unpacked twice.
            let comes = *state == LayerState::Missing && seen.insert(layer.digest());
            let unpacks = *state != LayerState::Unpacked;
            let unpacked = unpacks.then(|| unpacked(layer.media_type().as_ref(), layer.size()));
            shares.push(LayerShare { arrival, comes, unpacked, purse: Purse::bottomless(), _holds: Vec::new() });
        }
        let needs = || shares.iter().flat_map(LayerShare::needs).collect();
        let Some(reserved) = self.guard.admit(from.reference.name(), needs, meter).await? else { return Ok(None) };
        let mut reserved = reserved.into_iter();
        for share in &mut shares {
            if share.comes {
                share._holds.extend(reserved.by_ref().take(2).filter_map(Reserved::hold));
            }
            if share.unpacked.is_some() {
                share.purse = reserved.next().and_then(Reserved::purse).unwrap_or_else(Purse::bottomless);
            }
        }
        Ok(Some(shares))
    }

    /// The image's configuration, from containerd or from the registry.
    async fn config(
        &self,
        containerd: &Containerd,
        from: &Origin,
        image: &PlatformImage,
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
        share: LayerShare,
        meter: &Meter,
    ) -> Result<(), Failure> {
        let failure = |trouble| failure(from.reference.name(), trouble);
        if !session.lacks(index).await.map_err(runtime_failure)? {
            let nothing: Option<LayerSource<'_, stoker_transfer::Error>> = None;
            return session.layer(index, nothing, &share.purse).await.map_err(failure);
        }
        let hand = self.uses.take(layer.digest());
        let mut growing = self.spool.blob(from.source(), layer.clone());
        meter.blob(growing.progress(), hand.counts);
        share.arrival.comes(growing.progress());
        let mut tries = 0;
        loop {
            let (open, slow) = (|from: u64| growing.follow(from), || growing.throttled());
            let complete = growing.complete().map_ok(|_| ()).boxed();
            let blob = LayerSource { open: &open, complete, slow: &slow, taken: &share.arrival.taken };
            match session.layer(index, Some(blob), &share.purse).await {
                Ok(()) => break,
                // The blob begins anew; so do we.
                Err(LayerTrouble::Source(problem)) if restarts(&problem) && tries < ANEW => {}
                // containerd hashes what it is given. Where that is not what the spool had checked, another fetch helps.
                Err(LayerTrouble::Runtime(problem)) if problem.kind == RuntimeErrorKind::Corrupt => {
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
            self.guard.leftovers.release(layer.digest()).await.map_err(transfer_failure)?;
        }
        Ok(())
    }
}

fn wanted(from: &Origin, image: &PlatformImage, config: Bytes) -> WantedImage {
    let reference = &from.reference;
    let mut names = vec![by_digest(reference, image.root.digest().as_ref())];
    if reference.digest().is_none() {
        names.insert(0, reference.name().to_owned());
    }
    WantedImage {
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

fn failure(image: &str, trouble: LayerTrouble<stoker_transfer::Error>) -> Failure {
    match trouble {
        LayerTrouble::Source(problem) => transfer_failure(problem),
        LayerTrouble::Runtime(problem) if problem.kind == RuntimeErrorKind::NoRoom => {
            guard::failure(format!("{image} is larger than it seemed: {problem}"))
        }
        LayerTrouble::Runtime(problem) => runtime_failure(problem),
    }
}

//! One image on its way into containerd: what of it is missing, its layers one by one, and at the end its records.
//!
//! Layers may come in any order and at the same time; they become visible from the base up. Nothing is recorded before
//! everything is there and unpacked. Dropping a session loses nothing: its lease holds what was done for the next one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use jiff::Timestamp;
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex};
use tokio::sync::{OwnedMutexGuard, watch};

use super::chain::chain_ids;
use super::decoders::ImageDecoders;
use super::ingest::{Feed, HeldBack, Open};
use super::lease::{Active, Lease, Taken};
use super::snapshot::named;
use super::stage::Staged;
use super::{Containerd, ObjectLabels, source};
use crate::grpc::{Error, RuntimeErrorKind};
use crate::room::{Purse, Short};

/// How often to look whether somebody else has brought what we are fetching.
const LOOK: Duration = Duration::from_secs(2);

/// An image to bring in.
#[derive(Debug, Clone)]
pub struct WantedImage {
    /// The name of this pull, the same after a restart.
    pub pull: String,
    /// The records to make: the tag if there is one, and `repository@digest`.
    pub names: Vec<String>,
    /// The registry and repository that it is from.
    pub source: (String, String),
    /// What the names stand for.
    pub root: Descriptor,
    /// The root and, where that is an index, the manifest of this platform.
    pub documents: Vec<(Descriptor, Bytes)>,
    /// The image's configuration.
    pub config: (Descriptor, Bytes),
    /// Its layers, the base first.
    pub layers: Vec<Descriptor>,
}

/// What is missing of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerState {
    /// Nothing: it is unpacked, with or without its blob.
    Unpacked,
    /// Its blob is there; it must be unpacked.
    Packed,
    /// Its blob.
    Missing,
}

/// A blob on its way.
pub struct LayerSource<'a, E> {
    /// Reads it from an offset on, while it comes.
    pub open: &'a Open<'a, E>,
    /// Ends when all of it is there.
    pub complete: BoxFuture<'a, Result<(), E>>,
    /// Whether somebody holds it back now: containerd gets it when it is complete then, because a slow writer would make
    /// others wait.
    pub slow: &'a HeldBack<'a>,
    /// How many of its bytes containerd has; it is kept up to date.
    pub taken: &'a AtomicU64,
}

/// Why a layer did not come in.
#[derive(Debug)]
pub enum LayerTrouble<E> {
    /// The source of its bytes failed.
    Source(E),
    /// The runtime did.
    Runtime(Error),
}

impl<E> From<Error> for LayerTrouble<E> {
    fn from(error: Error) -> Self {
        Self::Runtime(error)
    }
}

/// What became of a layer whose blob had to come.
enum BroughtLayer {
    /// Another image has brought and unpacked it.
    Unpacked,
    /// The blob is there.
    Packed,
    /// The blob is there, and this image unpacks the layer for all that share it. `None`: containerd has to unpack it.
    Staged(OwnedMutexGuard<()>, Option<Staged>),
}

/// Why a layer need not or cannot be brought to its end.
enum BringEnd<E> {
    Unpacked,
    Failed(LayerTrouble<E>),
}

impl<E> From<LayerTrouble<E>> for BringEnd<E> {
    fn from(trouble: LayerTrouble<E>) -> Self {
        Self::Failed(trouble)
    }
}

impl<E> From<Error> for BringEnd<E> {
    fn from(error: Error) -> Self {
        Self::Failed(error.into())
    }
}

/// An image on its way.
#[derive(Debug)]
pub struct Session {
    pub(super) containerd: Containerd,
    pub(super) wanted: WantedImage,
    pub(super) lease: Lease,
    _active: Active,
    pub(super) diff_ids: Vec<String>,
    pub(super) chain: Vec<String>,
    /// The name under which each layer is unpacked once for all images that share it.
    shared: Vec<String>,
    pub(super) decoders: ImageDecoders,
    layers: Vec<LayerState>,
    begun: Vec<u64>,
    /// How many layers, from the base, are unpacked.
    height: watch::Sender<usize>,
}

impl Containerd {
    /// Looks what is missing, by snapshots first, and takes hold of what is there.
    pub async fn begin(&self, wanted: WantedImage, now: Timestamp) -> Result<Session, Error> {
        let inner = &self.inner;
        let wrong =
            |why: String| inner.broken(format!("take {} in", wanted.root.digest()), why, RuntimeErrorKind::Corrupt);
        let config: ImageConfiguration = serde_json::from_slice(&wanted.config.1)
            .map_err(|error| wrong(format!("its configuration cannot be read ({error})")))?;
        let diff_ids = config.rootfs().diff_ids().clone();
        if diff_ids.len() != wanted.layers.len() {
            let (says, has) = (diff_ids.len(), wanted.layers.len());
            return Err(wrong(format!("its configuration names {says} layers and its manifest has {has}")));
        }
        let chain = chain_ids(&diff_ids);
        let Taken { lease, resumed, old, active } = inner.take_lease(&wanted.pull, now).await?;
        let mut height = chain.len();
        while height > 0 && !inner.hold_snapshot(&lease, &chain[height - 1]).await? {
            height -= 1;
        }
        let labels = labels(&wanted);
        let mut layers = vec![LayerState::Unpacked; height];
        for layer in wanted.layers.get(height..).unwrap_or_default() {
            let there = inner.keep(&lease, layer, &labels).await?;
            layers.push(if there { LayerState::Packed } else { LayerState::Missing });
        }
        for old in old {
            inner.end_lease(&old).await?;
        }
        let (height, decoders) = (watch::Sender::new(height), inner.decoders.of_image());
        let (containerd, shared, begun) = (self.clone(), shared(&wanted, &chain), Vec::new());
        let _active = active;
        let mut session =
            Session { containerd, wanted, lease, _active, diff_ids, chain, shared, decoders, layers, begun, height };
        if resumed {
            session.begun = session.look_back().await?;
        }
        Ok(session)
    }
}

impl super::ContainerdInner {
    /// Whether a chain is unpacked; held if so.
    async fn hold_snapshot(&self, lease: &Lease, chain: &str) -> Result<bool, Error> {
        if !self.committed(chain).await? {
            return Ok(false);
        }
        self.hold(lease, &format!("snapshots/{}", self.node.snapshotter), chain).await
    }
}

impl Session {
    /// What is missing of each layer, the base first.
    pub fn layers(&self) -> &[LayerState] {
        &self.layers
    }

    /// How many bytes of a layer's missing blob containerd has all the same, from an earlier session.
    pub fn begun(&self, index: usize) -> u64 {
        self.begun.get(index).copied().unwrap_or(0)
    }

    /// Counts those, and removes what that session had half unpacked: each layer is unpacked from its beginning.
    async fn look_back(&self) -> Result<Vec<u64>, Error> {
        let (inner, mut begun) = (&self.containerd.inner, vec![0; self.layers.len()]);
        for (at, (layer, bytes)) in self.wanted.layers.iter().zip(&mut begun).enumerate() {
            if self.layers[at] == LayerState::Missing {
                inner.remove(&self.key("stage", at)).await?;
                *bytes = inner.begun(layer).await?;
            }
        }
        Ok(begun)
    }

    /// Whether a layer's blob is still missing: another pull may have brought it since.
    pub async fn lacks(&self, index: usize) -> Result<bool, Error> {
        match (self.layers.get(index), self.wanted.layers.get(index)) {
            (Some(LayerState::Missing), Some(layer)) => {
                Ok(!self.containerd.inner.keep(&self.lease, layer, &labels(&self.wanted)).await?)
            }
            _ => Ok(false),
        }
    }

    /// Brings one layer in and unpacks it as soon as those below are. All of them must be called, at the same time or in
    /// their order: each waits for the one below. What it takes unpacked comes from the purse.
    pub async fn layer<E: Send>(
        &self,
        index: usize,
        blob: Option<LayerSource<'_, E>>,
        purse: &Purse,
    ) -> Result<(), LayerTrouble<E>> {
        let (Some(layer), Some(state)) = (self.wanted.layers.get(index), self.layers.get(index)) else { return Ok(()) };
        if *state == LayerState::Unpacked {
            return Ok(());
        }
        let inner = &self.containerd.inner;
        let brought = match blob {
            Some(blob) => self.bring(index, blob, purse).await?,
            None => BroughtLayer::Packed,
        };
        let ours = match brought {
            BroughtLayer::Unpacked => None,
            BroughtLayer::Staged(share, staged) => Some((share, staged)),
            BroughtLayer::Packed => self.share(index).await?.map(|share| (share, None)),
        };
        if let Some((_share, staged)) = ours {
            self.wait_for_lower(index).await;
            match staged {
                Some(staged) => self.settle(index, staged, purse).await?,
                None => {
                    purse.begin_again();
                    self.apply(index, purse).await?;
                }
            }
            inner.label_unpacked(layer.digest().as_ref(), &self.diff_ids[index]).await?;
        }
        self.height.send_replace(index + 1);
        Ok(())
    }

    /// Waits until no other image unpacks the same layer; `None` where one has done it.
    async fn share(&self, index: usize) -> Result<Option<OwnedMutexGuard<()>>, Error> {
        let inner = &self.containerd.inner;
        let share = inner.stages.take(&self.shared[index]).await;
        Ok((!inner.hold_snapshot(&self.lease, &self.chain[index]).await?).then_some(share))
    }

    /// Brings the blob of a layer in, and unpacks it meanwhile beside its place. The import waits for no other image: whoever has
    /// all bytes of a blob first ends the wait of all who want it, by [`appears`](Self::appears).
    async fn bring<E: Send>(
        &self,
        index: usize,
        blob: LayerSource<'_, E>,
        purse: &Purse,
    ) -> Result<BroughtLayer, LayerTrouble<E>> {
        let (inner, layer) = (&self.containerd.inner, &self.wanted.layers[index]);
        let LayerSource { open, complete, slow, taken } = blob;
        let labels = labels(&self.wanted);
        let imported = AtomicBool::new(false);
        let import = async {
            let mut feed = Feed { open, slow, complete: Some(complete), taken };
            inner.import(&self.lease, layer, &labels, &mut feed).await?;
            imported.store(true, Ordering::Relaxed);
            Ok(())
        };
        let unpack = async {
            match self.share(index).await? {
                Some(share) => Ok((share, self.stage(index, open, purse).await?)),
                None => Err(BringEnd::Unpacked),
            }
        };
        tokio::select! {
            brought = async { tokio::try_join!(import, unpack) } => match brought {
                Ok(((), (share, staged))) => Ok(BroughtLayer::Staged(share, staged)),
                Err(BringEnd::Unpacked) => Ok(BroughtLayer::Unpacked),
                Err(BringEnd::Failed(trouble)) => Err(trouble),
            },
            appeared = self.appears(index, &imported) => {
                appeared?;
                inner.remove(&self.key("stage", index)).await?;
                Ok(BroughtLayer::Packed)
            }
        }
    }

    /// Ends when somebody else has brought a layer's blob: the kubelet does not wait for us, so we need not go on.
    async fn appears(&self, index: usize, imported: &AtomicBool) -> Result<(), Error> {
        loop {
            tokio::time::sleep(LOOK).await;
            if imported.load(Ordering::Relaxed) {
                return std::future::pending().await;
            }
            let layer = &self.wanted.layers[index];
            let there = self.containerd.inner.info(layer.digest().as_ref()).await?.is_some();
            // Our own import may have been the one that ended meanwhile.
            if there && !imported.load(Ordering::Relaxed) && self.lacks(index).await.is_ok_and(|lacks| !lacks) {
                return Ok(());
            }
        }
    }

    /// Waits until the layer below is unpacked. (If that never happens, whoever runs the layers ends them all.)
    async fn wait_for_lower(&self, index: usize) {
        let _ = self.height.subscribe().wait_for(|height| *height >= index).await;
    }

    /// Lets containerd unpack a layer whose blob it has. It knows no limit, so the disk is watched meanwhile.
    pub(super) async fn apply(&self, index: usize, purse: &Purse) -> Result<(), Error> {
        let (inner, layer) = (&self.containerd.inner, &self.wanted.layers[index]);
        let key = self.key("extract", index);
        let mounts = inner.prepare(&self.lease, &key, self.below(index), named(&self.chain[index])).await?;
        let (applied, short) = tokio::select! {
            // A quick disk fills between two looks, so there is a last one.
            applied = inner.apply(&self.lease, layer, mounts) => (applied, purse.overflowed().await),
            short = purse.overflows() => (Ok(String::new()), Some(short)),
        };
        if let Some(short) = short {
            inner.remove(&key).await?;
            return Err(self.no_room(index, short));
        }
        self.check(index, &applied?)?;
        inner.commit(&self.lease, &key, &self.chain[index]).await
    }

    /// A layer that has no room unpacked.
    pub(super) fn no_room(&self, index: usize, short: Short) -> Error {
        let action = format!("keep layer {} unpacked", self.wanted.layers[index].digest());
        let next = "free some space, or raise the agent's --max-disk";
        self.containerd.inner.broken(action, format!("{short}; {next}"), RuntimeErrorKind::NoRoom)
    }

    /// What was unpacked must be what the configuration says.
    pub(super) fn check(&self, index: usize, unpacked: &str) -> Result<(), Error> {
        let expected = &self.diff_ids[index];
        if unpacked == expected {
            return Ok(());
        }
        let action = format!("unpack layer {}", self.wanted.layers[index].digest());
        let why = format!("it unpacks to {unpacked}, and its configuration says {expected}");
        Err(self.containerd.inner.broken(action, why, RuntimeErrorKind::Corrupt))
    }

    /// The chain below a layer; empty for the base.
    pub(super) fn below(&self, index: usize) -> &str {
        index.checked_sub(1).map_or("", |below| &self.chain[below])
    }

    pub(super) fn key(&self, what: &str, index: usize) -> String {
        // Each pull has snapshots of its own: none waits for another because of a name.
        format!("{what}-stoker {} {}", self.wanted.pull, self.chain[index])
    }

    /// Records the image under its names, and lets go of the lease. All layers must be in.
    pub async fn finish(self) -> Result<(), Error> {
        let (inner, wanted) = (&self.containerd.inner, &self.wanted);
        let source = labels(wanted);
        let mut of_config = source.clone();
        if let Some(top) = self.chain.last() {
            of_config.insert(format!("containerd.io/gc.ref.snapshot.{}", inner.node.snapshotter), top.clone());
        }
        let (config, bytes) = &wanted.config;
        inner.put(&self.lease, config, bytes, &of_config).await?;
        // From the leaves up, so that nothing ever points to what is not there.
        for (document, bytes) in wanted.documents.iter().rev() {
            let mut labels = source.clone();
            labels.extend(children(wanted, document, bytes, inner.node.discards));
            inner.put(&self.lease, document, bytes, &labels).await?;
        }
        let id = wanted.config.0.digest().to_string();
        for name in std::iter::once(&id).chain(&wanted.names) {
            inner.set_record(name, &wanted.root).await?;
        }
        inner.end_lease(&self.lease.id).await
    }
}

/// Names that two images have in common where they share a layer, all layers below it, and the fetches of all these blobs. Images that
/// share an unpacked layer alone do not wait for each other: one of them may be from a registry that hardly sends anything.
fn shared(wanted: &WantedImage, chain: &[String]) -> Vec<String> {
    let blobs: Vec<String> = wanted.layers.iter().map(|layer| format!("{} {}", layer.digest(), layer.size())).collect();
    let names = chain.iter().zip(chain_ids(&blobs));
    names.map(|(chain, blobs)| format!("{} {chain} {blobs}", wanted.source.0)).collect()
}

/// The labels of every content of an image.
fn labels(wanted: &WantedImage) -> ObjectLabels {
    source::labels(&wanted.source.0, &wanted.source.1)
}

/// The labels by which the garbage collector finds what a document names.
fn children(wanted: &WantedImage, document: &Descriptor, bytes: &Bytes, discards: bool) -> ObjectLabels {
    let reference = |name: String, digest: &Descriptor| {
        (format!("containerd.io/gc.ref.content.{name}"), digest.digest().to_string())
    };
    let manifest = wanted.documents.last().map(|(manifest, _)| manifest);
    if manifest.is_some_and(|manifest| manifest.digest() != document.digest()) {
        // Those of other platforms too, as containerd does it: whoever brings one later finds it held.
        let index = serde_json::from_slice::<ImageIndex>(bytes).ok();
        let entries = index.iter().flat_map(|index| index.manifests().iter().enumerate());
        return entries.map(|(at, entry)| reference(format!("m.{at}"), entry)).collect();
    }
    // Where containerd throws unpacked layers away, nothing may hold them.
    let layers = wanted.layers.iter().enumerate().filter(|_| !discards);
    let layers = layers.map(|(at, layer)| reference(format!("l.{at}"), layer));
    std::iter::once(reference("config".into(), &wanted.config.0)).chain(layers).collect()
}

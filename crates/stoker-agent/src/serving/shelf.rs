//! The images of this node as other nodes may read them: what a ticket is for and a blob of it come in; the blob goes out from the spool or from the image
//! store, also while it grows. Nothing is served that the documents of an ordered image do not name, and no image under a name by which this
//! node did not get it. It never fetches, and keeps no fetch alive.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use stoker_core::model::{Key, Order};
use stoker_core::step::Task;
use stoker_runtime::containerd::ContentBlob;
use stoker_runtime::{Care, Runtime};
use stoker_transfer::peer::{PeerState, ServedPart, Shelf, ticket_subject};
use stoker_transfer::{Descriptor, Digest, Platform, PlatformImage, Spool, SpooledPart};
use tokio::time::Instant;

use super::linger::Lingering;
use super::roots::{self, ServedRoot, Standing};
use crate::settings::Settings;

/// The images that this node serves. Clones are the same.
#[derive(Clone)]
pub(crate) struct ServedImages {
    shared: Arc<ServedShared>,
}

struct ServedShared {
    spool: Spool,
    runtime: Runtime,
    platform: Platform,
    lingering: Lingering,
    linger: Duration,
    roots: Mutex<HashMap<Digest, ServedRoot>>,
    /// Blobs that the image store has, for [`Shelf::state`], which is asked often. Only where the store keeps them.
    stored: Mutex<HashSet<Digest>>,
}

/// Whether blobs stay in the image store after they were unpacked.
pub(super) fn keeps(runtime: &Runtime) -> bool {
    match runtime {
        Runtime::Layout(_) => true,
        Runtime::Containerd(containerd, _) => !containerd.node().discards,
        Runtime::Cri(_) => false,
    }
}

impl ServedImages {
    pub(super) fn new(settings: &Settings, lingering: Lingering, linger: Duration) -> Self {
        let Settings { spool, runtime, platform, .. } = settings;
        Self::of(spool.clone(), runtime.clone(), platform.clone(), lingering, linger)
    }

    pub(super) fn of(
        spool: Spool,
        runtime: Runtime,
        platform: Platform,
        lingering: Lingering,
        linger: Duration,
    ) -> Self {
        let (roots, stored) = (Mutex::default(), Mutex::default());
        Self { shared: Arc::new(ServedShared { spool, runtime, platform, lingering, linger, roots, stored }) }
    }

    fn roots(&self) -> MutexGuard<'_, HashMap<Digest, ServedRoot>> {
        self.shared.roots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stored(&self) -> MutexGuard<'_, HashSet<Digest>> {
        self.shared.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These are the orders in hand, and what came of each.
    pub(crate) fn set_orders(&self, orders: &BTreeMap<Key, Order>, tasks: &BTreeMap<Key, Task>) {
        let wanted = roots::wanted(orders, tasks);
        let mut roots = self.roots();
        // Somebody may have removed an image that has to come again.
        let again = |(subject, (_, standing)): (&Digest, &(Digest, Standing))| {
            *standing == Standing::Open && roots.get(subject).is_some_and(|root| root.standing == Standing::Done)
        };
        let again = wanted.iter().any(again);
        let moving = roots::follow(&mut roots, &wanted, self.shared.linger);
        let served: usize = roots.values().filter_map(|root| root.image.as_ref()).map(|image| image.layers.len()).sum();
        drop(roots);
        let mut stored = self.stored();
        // What was served once must not be remembered for ever.
        if again || stored.len() > 2 * served + 1000 {
            stored.clear();
        }
        drop(stored);
        for image in moving {
            self.shared.lingering.prolong(image.blobs().map(Descriptor::digest));
        }
    }

    /// An attempt at the order of this name got the documents of its image. They open no other name of the same digest: another registry
    /// decides who may have the image there, and has not given it to this node.
    pub(crate) fn documents(&self, name: &str, image: &PlatformImage) {
        let digest = image.root.digest();
        // An order without a digest may have learned it a moment ago: until the loop has heard of that, it is one that is served for a while.
        let new = || ServedRoot::new(digest.clone(), Standing::Left);
        self.roots().entry(ticket_subject(name, digest)).or_insert_with(new).image = Some(Arc::new(image.clone()));
    }

    /// Where the image stands, with its documents where they are known; `None` where nothing of it is served.
    async fn image(&self, subject: &Digest) -> Option<(Standing, Option<Arc<PlatformImage>>)> {
        let ServedRoot { root, standing, image, done, .. } = self.roots().get(subject).cloned()?;
        // The store has documents by digest alone. That it has them says nothing of this name before it had the image under this name.
        if image.is_some() || !done {
            return Some((standing, image));
        }
        let read = |digest| {
            let shared = self.shared.clone();
            async move { shared.document(&digest).await }
        };
        let image = PlatformImage::assemble(&root, &self.shared.platform, read).await.map(Arc::new);
        if let (Some(image), Some(root)) = (&image, self.roots().get_mut(subject)) {
            root.image.get_or_insert_with(|| image.clone());
        }
        Some((standing, image))
    }

    async fn find_part(&self, root: &Digest, blob: &Digest) -> ServedPart {
        let Some((standing, image)) = self.image(root).await else { return ServedPart::Nothing };
        let missing = || if standing == Standing::Open { ServedPart::Expected } else { ServedPart::Nothing };
        let Some(image) = image else { return missing() };
        if let Some(document) = image.documents.iter().find(|document| document.descriptor.digest() == blob) {
            return ServedPart::Bytes(document.bytes.clone());
        }
        let Some(blob) = image.blobs().find(|part| part.digest() == blob) else { return ServedPart::Nothing };
        self.shared.lingering.prolong(image.blobs().map(Descriptor::digest));
        if let Some(root) = self.roots().get_mut(root) {
            root.last = Instant::now();
        }
        // In this order: a blob goes from the spool into the store, and never back.
        match self.shared.spool.part(blob).await {
            Some(SpooledPart::Growing(growing)) => ServedPart::Growing(growing),
            Some(SpooledPart::Whole(file)) => ServedPart::File(file, blob.size()),
            None => self.shared.stored(blob).await.unwrap_or_else(missing),
        }
    }

    async fn state_of(&self, root: &Digest) -> Option<PeerState> {
        let (_, image) = self.image(root).await?;
        let Some(image) = image else { return Some(PeerState::default()) };
        let mut state = PeerState { have: 0, whole: true, readers: 0 };
        for blob in image.blobs() {
            let (have, whole) = self.has(blob).await;
            state.have = state.have.saturating_add(have);
            state.whole &= whole;
        }
        Some(state)
    }

    /// How much of a blob is here, and whether that is all of it.
    async fn has(&self, blob: &Descriptor) -> (u64, bool) {
        if self.stored().contains(blob.digest()) {
            return (blob.size(), true);
        }
        if let Some(progress) = self.shared.spool.progress(blob)
            && progress.have() < blob.size()
        {
            return (progress.have(), false);
        }
        let spooled = matches!(self.shared.spool.part(blob).await, Some(SpooledPart::Whole(_)));
        if !spooled && self.shared.stored(blob).await.is_none() {
            // All of it has come, and is being hashed.
            let have = self.shared.spool.progress(blob).map_or(0, |progress| progress.have());
            return (have, false);
        }
        if !spooled && keeps(&self.shared.runtime) {
            self.stored().insert(blob.digest().clone());
        }
        (blob.size(), true)
    }
}

impl ServedShared {
    /// A document of the image store.
    async fn document(&self, digest: &Digest) -> Option<Bytes> {
        match &self.runtime {
            Runtime::Layout(layout) => layout.text(digest).await.ok()?.map(Bytes::from),
            Runtime::Containerd(containerd, _) => containerd.document(digest.as_ref()).await.ok()?,
            Runtime::Cri(_) => None,
        }
    }

    /// A blob of the image store.
    async fn stored(&self, blob: &Descriptor) -> Option<ServedPart> {
        let (digest, size) = (blob.digest(), blob.size());
        match &self.runtime {
            Runtime::Layout(layout) => {
                let file = layout.file(digest, size, Care::Unchanged).await.ok()??;
                Some(ServedPart::File(file, size))
            }
            Runtime::Containerd(containerd, _) => match containerd.blob(digest, size).await.ok()?? {
                ContentBlob::File(file) => Some(ServedPart::File(file, size)),
                ContentBlob::Unseen => {
                    let (containerd, digest) = (containerd.clone(), digest.clone());
                    Some(ServedPart::Stream(Box::new(move |from| containerd.read_blob(&digest, from)), size))
                }
            },
            Runtime::Cri(_) => None,
        }
    }
}

impl Shelf for ServedImages {
    fn find<'a>(&'a self, root: &'a Digest, blob: &'a Digest) -> BoxFuture<'a, ServedPart> {
        self.find_part(root, blob).boxed()
    }

    fn state<'a>(&'a self, root: &'a Digest) -> BoxFuture<'a, Option<PeerState>> {
        self.state_of(root).boxed()
    }
}

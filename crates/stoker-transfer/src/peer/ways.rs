//! From which nodes one image is read.
//!
//! A ticket and a list of nodes come in, and may change while blobs are fetched; whom to ask next, and what became of it, goes out. All
//! blobs of an image go by the same list. It never asks anybody itself, and never leaves its list.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use oci_spec::image::{Descriptor, Digest};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::key::PeerId;
use super::read::{Peer, PeerProblem, PeerReader};
use crate::hash::hex;
use crate::image::{self, Descended, Descent, Document, MOST_MANIFEST_BYTES, PlatformImage};
use crate::platform::Platform;

/// What an order says about where its image comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerList {
    /// Whether the registry is asked, and no node.
    pub upstream: bool,
    /// What this node shows to others.
    pub ticket: Arc<str>,
    /// Whom it may ask, the first one first.
    pub peers: Vec<Peer>,
}

/// The nodes that an image is read from. Clones are the same.
#[derive(Clone, Debug)]
pub struct PeerWays {
    shared: Arc<WaysShared>,
}

#[derive(Debug)]
struct WaysShared {
    reader: PeerReader,
    list: watch::Sender<PeerList>,
    tried: Mutex<Tried>,
}

/// What became of the nodes of the list.
#[derive(Debug, Default)]
struct Tried {
    /// The node that is read from.
    from: Option<PeerId>,
    /// Nodes that gave wrong bytes for right ones. They are not asked again for this image.
    liars: BTreeMap<PeerId, Arc<str>>,
    /// What the others did last, until one of them gives bytes again.
    failed: BTreeMap<PeerId, (Arc<str>, PeerProblem)>,
    /// Nobody of the list gives anything.
    exhausted: bool,
}

impl PeerWays {
    /// Reads from the nodes of this list.
    pub fn new(reader: PeerReader, list: PeerList) -> Self {
        let shared = WaysShared { reader, list: watch::Sender::new(list), tried: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// From now on these; fetches that run go on with them at their byte.
    pub fn set(&self, list: PeerList) {
        self.shared.list.send_if_modified(|now| {
            let changed = *now != list;
            if changed {
                let mut tried = self.tried();
                tried.failed.clear();
                tried.exhausted = false;
                *now = list;
            }
            changed
        });
    }

    /// The list now.
    pub fn list(&self) -> PeerList {
        self.shared.list.borrow().clone()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<PeerList> {
        self.shared.list.subscribe()
    }

    pub(crate) fn reader(&self) -> &PeerReader {
        &self.shared.reader
    }

    /// Nothing is ever half-written under this lock, so a poisoned one is as good as any.
    fn tried(&self) -> MutexGuard<'_, Tried> {
        self.shared.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The node that was read from last.
    pub fn from(&self) -> Option<Arc<str>> {
        let from = self.tried().from?;
        self.shared.list.borrow().peers.iter().find(|peer| peer.id == from).map(|peer| peer.node.clone())
    }

    /// Nodes that gave wrong bytes.
    pub fn liars(&self) -> Vec<Arc<str>> {
        self.tried().liars.values().cloned().collect()
    }

    /// Why no node of the list gives anything, where that is so: each node with what it did.
    pub fn exhausted(&self) -> Option<String> {
        let tried = self.tried();
        let told: Vec<String> = tried.failed.values().map(|(node, problem)| format!("{node} {problem}")).collect();
        tried
            .exhausted
            .then(|| if told.is_empty() { "it was told of no node to read from".into() } else { told.join("; ") })
    }

    /// Those that may be asked, in the order of the list, from the one on that the image is read from.
    pub(crate) fn in_turn(&self, list: &PeerList) -> Vec<Peer> {
        let tried = self.tried();
        let first = list.peers.iter().position(|peer| Some(peer.id) == tried.from).unwrap_or(0);
        let (later, sooner) = list.peers.split_at(first);
        let usable = sooner.iter().chain(later).filter(|peer| !tried.liars.contains_key(&peer.id));
        usable.cloned().collect()
    }

    /// This one gives bytes.
    pub(crate) fn gives(&self, peer: &Peer) {
        let mut tried = self.tried();
        tried.from = Some(peer.id);
        tried.failed.remove(&peer.id);
        tried.exhausted = false;
    }

    pub(crate) fn failed(&self, peer: &Peer, problem: PeerProblem) {
        let mut tried = self.tried();
        // All blobs of the image go on with the next one.
        if tried.from == Some(peer.id) {
            let list = self.shared.list.borrow();
            let at = list.peers.iter().position(|other| other.id == peer.id);
            tried.from = at.and_then(|at| list.peers.get(at + 1)).map(|next| next.id);
        }
        tried.failed.insert(peer.id, (peer.node.clone(), problem));
    }

    pub(crate) fn lied(&self, peer: &Peer) {
        tracing::warn!(node = %peer.node, "another node gave wrong bytes for right ones; it is not asked again for this image");
        let mut tried = self.tried();
        tried.liars.insert(peer.id, peer.node.clone());
        if tried.from == Some(peer.id) {
            tried.from = None;
        }
    }

    pub(crate) fn nobody_gives(&self) {
        self.tried().exhausted = true;
    }

    /// The documents of the image behind this digest for this platform, from whichever nodes have them, each checked against its digest.
    /// `None` where no node gives them, or where they make no image.
    pub async fn image(&self, root: &Digest, platform: &Platform) -> Option<PlatformImage> {
        let mut descent = Descent::new(platform);
        let mut digest = root.clone();
        loop {
            let bytes = self.document(&digest, MOST_MANIFEST_BYTES).await?;
            let (media_type, parsed) = image::parse(&bytes, None).ok()?;
            let descriptor = Descriptor::new(media_type, bytes.len() as u64, digest);
            match descent.take(Document { descriptor, bytes }, parsed).ok()? {
                Descended::Image(image) => return Some(*image),
                Descended::To(below) => digest = below,
            }
        }
    }

    /// A small document of the image, from whichever node has it.
    async fn document(&self, digest: &Digest, most: usize) -> Option<Bytes> {
        let list = self.list();
        for peer in self.in_turn(&list) {
            match self.shared.reader.small(&peer, &list.ticket, digest, most).await {
                Ok(bytes) if hex(Sha256::new_with_prefix(&bytes)) == digest.digest() => return Some(bytes),
                Ok(_) => self.lied(&peer),
                Err(problem) => self.failed(&peer, problem),
            }
        }
        self.nobody_gives();
        None
    }
}

//! From which nodes one image is read.
//!
//! A ticket and a list of nodes come in, and may change while blobs are fetched; whom to ask next, and what became of it, goes out. All
//! blobs of an image go by the same list. It never asks anybody itself, and never leaves its list.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use oci_spec::image::{Descriptor, Digest};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use super::key::PeerId;
use super::read::{Peer, PeerProblem, PeerReader};
use super::rules::Circumstances;
use super::rules::drought::{Drought, Flow};
use crate::Error;
use crate::fetch::{BEGINS_WITHIN, ROUND, SOON};
use crate::hash::hex;
use crate::image::{self, Descended, Descent, Document, MOST_MANIFEST_BYTES, PlatformImage};
use crate::platform::Platform;
use crate::reference::Reference;
use crate::registry::{self, Party};

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
    now: watch::Sender<WaysNow>,
    tried: Mutex<Tried>,
    /// Rung when no node gives anything, when a node lied, and when this node lags.
    news: OnceLock<Arc<Notify>>,
}

/// The list, and where in it the image is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaysNow {
    pub(crate) list: PeerList,
    /// The node to which all blobs were moved; they leave any other one.
    to: Option<PeerId>,
}

/// What became of the nodes of the list.
#[derive(Debug, Default)]
struct Tried {
    /// The node that is read from.
    from: Option<PeerId>,
    /// Nodes that gave wrong bytes for right ones. They are not asked again for this image.
    liars: BTreeMap<PeerId, Arc<str>>,
    /// How many of them nobody has counted yet.
    uncounted: u64,
    /// What the others did last, until one of them gives bytes again.
    failed: BTreeMap<PeerId, (Arc<str>, PeerProblem)>,
    /// Blobs and documents that nobody of the list gives.
    missing: BTreeSet<String>,
    /// Others read from this node, and it receives much less than its source.
    lagging: bool,
    /// Whether the list gives too little.
    drought: Drought,
}

impl PeerWays {
    /// Reads from the nodes of this list.
    pub fn new(reader: PeerReader, list: PeerList) -> Self {
        let now = watch::Sender::new(WaysNow { list, to: None });
        let shared = WaysShared { reader, now, tried: Mutex::default(), news: OnceLock::new() };
        Self { shared: Arc::new(shared) }
    }

    /// The same, and this is rung when something is to be told: no node gives anything, a node lied, or this node lags.
    pub fn telling(self, news: Arc<Notify>) -> Self {
        let _ = self.shared.news.set(news);
        self
    }

    /// Other ways of the same image, with nobody to ask yet. They know who lied. Whatever still goes by these here gets no list of those.
    pub fn renewed(&self) -> Self {
        let mut old = self.tried();
        let tried =
            Tried { liars: old.liars.clone(), uncounted: std::mem::take(&mut old.uncounted), ..Tried::default() };
        let (reader, news) = (self.shared.reader.clone(), self.shared.news.clone());
        let shared = WaysShared { reader, now: watch::Sender::new(WaysNow::default()), tried: Mutex::new(tried), news };
        Self { shared: Arc::new(shared) }
    }

    fn ring(&self) {
        if let Some(news) = self.shared.news.get() {
            news.notify_one();
        }
    }

    /// From now on these; fetches that run go on with them at their byte.
    pub fn set(&self, list: PeerList) {
        if self.shared.now.borrow().list != list {
            self.begin(list);
        }
    }

    /// From now on these, also where they are the same: what the nodes did before is forgotten, unless they lied. Of other nodes the first one is read
    /// from: whoever named them had a reason.
    pub fn begin(&self, list: PeerList) {
        fn ids(list: &PeerList) -> impl Iterator<Item = PeerId> {
            list.peers.iter().map(|peer| peer.id)
        }
        self.shared.now.send_modify(|now| {
            let mut tried = self.tried();
            let others = !ids(&list).eq(ids(&now.list));
            let to = ids(&list).find(|id| !tried.liars.contains_key(id)).filter(|_| others);
            tried.failed.clear();
            tried.missing.clear();
            tried.lagging = false;
            tried.drought.begin();
            // Blobs that come from the first one already go on.
            tried.from = tried.from.filter(|from| !others || Some(*from) == to);
            *now = WaysNow { list, to };
        });
    }

    /// Nobody is asked any more, neither nodes nor the registry, until there is a list again. A fetch that others still follow
    /// waits for that.
    pub fn close(&self) {
        self.set(PeerList::default());
    }

    /// The list now.
    pub fn list(&self) -> PeerList {
        self.shared.now.borrow().list.clone()
    }

    /// Whether the registry is asked now, and no node.
    pub fn is_upstream(&self) -> bool {
        self.shared.now.borrow().list.upstream
    }

    pub(crate) fn changes(&self) -> watch::Receiver<WaysNow> {
        self.shared.now.subscribe()
    }

    pub(crate) fn reader(&self) -> &PeerReader {
        &self.shared.reader
    }

    /// Nothing is ever half-written under this lock, so a poisoned one is as good as any. No other lock is taken under it; it is taken under that of `now`.
    fn tried(&self) -> MutexGuard<'_, Tried> {
        self.shared.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Ends when the image is no longer to be read from this node.
    pub(crate) async fn leave(&self, peer: &Peer) {
        let left = |now: &WaysNow| {
            let listed = now.list.peers.iter().any(|other| other.id == peer.id);
            now.list.upstream || !listed || now.to.is_some_and(|to| to != peer.id)
        };
        self.until(left).await;
    }

    /// Ends when the registry may no longer be asked.
    pub(crate) async fn leave_upstream(&self) {
        self.until(|now| !now.list.upstream).await;
    }

    async fn until(&self, is: impl FnMut(&WaysNow) -> bool) {
        let mut changes = self.changes();
        if changes.wait_for(is).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// The node that was read from last.
    pub fn from(&self) -> Option<Arc<str>> {
        let from = self.tried().from?;
        self.shared.now.borrow().list.peers.iter().find(|peer| peer.id == from).map(|peer| peer.node.clone())
    }

    /// Nodes that gave wrong bytes.
    pub fn liars(&self) -> Vec<Arc<str>> {
        self.tried().liars.values().cloned().collect()
    }

    /// How many nodes gave wrong bytes since this was last asked.
    pub fn count_liars(&self) -> u64 {
        std::mem::take(&mut self.tried().uncounted)
    }

    /// Why no node of the list gives anything, or next to nothing, where that is so: each node with what it did.
    pub fn exhausted(&self) -> Option<String> {
        let from = self.from();
        let tried = self.tried();
        let told = tried.failed.values().map(|(node, problem)| format!("{node} {problem}"));
        let lied = tried.liars.values().map(|node| format!("{node} gave wrong bytes"));
        let dry = from.filter(|_| tried.drought.is_dry()).map(|node| format!("{node} gives next to nothing"));
        let told: Vec<String> = told.chain(lied).chain(dry).collect();
        (!tried.missing.is_empty() || tried.drought.is_dry())
            .then(|| if told.is_empty() { "it was told of no node to read from".into() } else { told.join("; ") })
    }

    /// What has come, and what would be enough. Where the list gives too little that is told, and so is the end of that; what comes is taken meanwhile.
    pub(crate) fn flows(&self, flow: Flow, list: &Circumstances) {
        let news = self.tried().drought.add(flow, list);
        if let Some(news) = news {
            tracing::debug!(?news, "the listed nodes give next to nothing");
            self.ring();
        }
    }

    /// Whether others read from this node while it receives much less than its source.
    pub fn lags(&self) -> bool {
        self.tried().lagging
    }

    /// Those that may be asked, in the order of the list, from the one on that the image is read from. Without those that were found not to have the
    /// blob, unless all blobs were moved there since: the node said then that it has the image.
    pub(crate) fn in_turn(&self, list: &PeerList, gone: &BTreeSet<PeerId>) -> Vec<Peer> {
        let to = self.shared.now.borrow().to;
        let tried = self.tried();
        let first = list.peers.iter().position(|peer| Some(peer.id) == tried.from).unwrap_or(0);
        let (sooner, later) = list.peers.split_at(first);
        let usable =
            |peer: &&Peer| !tried.liars.contains_key(&peer.id) && (Some(peer.id) == to || !gone.contains(&peer.id));
        later.iter().chain(sooner).filter(usable).cloned().collect()
    }

    /// This one gives the bytes of a blob.
    pub(crate) fn gives(&self, peer: &Peer, blob: &Digest) {
        let now = self.shared.now.borrow();
        let mut tried = self.tried();
        // An answer may come after all blobs were moved to another node. The next blob begins there.
        if now.to.is_none_or(|to| to == peer.id) {
            tried.from = Some(peer.id);
        }
        tried.failed.remove(&peer.id);
        tried.missing.remove(blob.as_ref());
    }

    pub(crate) fn failed(&self, peer: &Peer, problem: PeerProblem) {
        let list = self.list();
        let at = list.peers.iter().position(|other| other.id == peer.id);
        let next = at.and_then(|at| list.peers.get(at + 1)).map(|next| next.id);
        {
            let mut tried = self.tried();
            // All blobs of the image go on with the next one.
            if tried.from == Some(peer.id) {
                tried.from = next;
            }
            tried.failed.insert(peer.id, (peer.node.clone(), problem));
        }
        self.stays_away(peer);
    }

    /// Blobs are not to go to this node any more. Those that another node gives stay there.
    fn stays_away(&self, peer: &Peer) {
        self.shared.now.send_if_modified(|now| {
            now.to = now.to.filter(|to| *to != peer.id);
            false
        });
    }

    pub(crate) fn lied(&self, peer: &Peer) {
        tracing::warn!(node = %peer.node, "another node gave wrong bytes for right ones; it is not asked again for this image");
        {
            let mut tried = self.tried();
            // Blobs that were read at the same time were read from the same node.
            tried.uncounted += u64::from(tried.liars.insert(peer.id, peer.node.clone()).is_none());
            if tried.from == Some(peer.id) {
                tried.from = None;
            }
        }
        self.stays_away(peer);
        self.ring();
    }

    pub(crate) fn has_lied(&self, peer: &Peer) -> bool {
        self.tried().liars.contains_key(&peer.id)
    }

    /// The node that the image is read from, as its place in the list.
    pub(crate) fn place(&self, list: &PeerList) -> Option<usize> {
        let from = self.tried().from?;
        list.peers.iter().position(|peer| peer.id == from)
    }

    /// All blobs go on from this node, if the list is still this one and the node did not lie.
    pub(crate) fn move_to(&self, list: &PeerList, peer: &Peer) {
        self.shared.now.send_if_modified(|now| {
            let mut tried = self.tried();
            let goes = now.list == *list && !tried.liars.contains_key(&peer.id);
            if goes {
                (now.to, tried.from) = (Some(peer.id), Some(peer.id));
            }
            goes
        });
    }

    /// This node is too slow for those that read from it. That is told at once, and holds until there is another list.
    pub(crate) fn lag(&self) {
        self.tried().lagging = true;
        self.ring();
    }

    pub(crate) fn nobody_gives(&self, what: &Digest) {
        if self.tried().missing.insert(what.to_string()) {
            self.ring();
        }
    }

    /// The documents of the image behind this digest for this platform, from whichever nodes have them, each checked against its digest.
    /// Where no node gives them they are asked again, and so are those of each new list. `None` where the registry is to be asked; an error
    /// where the documents make no image.
    pub async fn image(
        &self,
        image: &Reference,
        root: &Digest,
        platform: &Platform,
    ) -> Result<Option<PlatformImage>, Error> {
        let mut descent = Descent::new(platform);
        let mut digest = root.clone();
        loop {
            let Some((bytes, peer)) = self.document(&digest, MOST_MANIFEST_BYTES).await else { return Ok(None) };
            let read = image::parse(&bytes, None).and_then(|(media_type, parsed)| {
                let descriptor = Descriptor::new(media_type, bytes.len() as u64, digest.clone());
                descent.take(Document { descriptor, bytes: bytes.clone() }, parsed)
            });
            match read {
                Ok(Descended::Image(image)) => return Ok(Some(*image)),
                Ok(Descended::To(below)) => digest = below,
                Err(bad) => {
                    let who = Party::new(&peer.node, &peer.addr.to_string());
                    let what = format!("image {image}");
                    return Err(registry::Error::Failed { who, what, problem: bad.into() }.into());
                }
            }
        }
    }

    /// A small document of the image, from whichever node has it. `None` where the registry is to be asked.
    async fn document(&self, digest: &Digest, most: usize) -> Option<(Bytes, Peer)> {
        let mut changes = self.changes();
        let (mut list, mut told) = (PeerList::default(), Instant::now());
        loop {
            let now = changes.borrow_and_update().list.clone();
            if std::mem::replace(&mut list, now) != list {
                told = Instant::now();
            }
            if list.upstream {
                return None;
            }
            let mut soon = false;
            for peer in self.in_turn(&list, &BTreeSet::new()) {
                match self.shared.reader.small(&peer, &list.ticket, digest, most).await {
                    Ok(bytes) if hex(Sha256::new_with_prefix(&bytes)) == digest.digest() => {
                        self.tried().missing.remove(digest.as_ref());
                        return Some((bytes, peer));
                    }
                    Ok(_) => self.lied(&peer),
                    Err(problem) => {
                        let begins = problem.may_be_early() && told.elapsed() < BEGINS_WITHIN;
                        soon |= begins || problem.is_passing(told.elapsed());
                        if !begins {
                            self.failed(&peer, problem);
                        }
                    }
                }
            }
            if !soon {
                self.nobody_gives(digest);
            }
            tokio::select! {
                Ok(()) = changes.changed() => {}
                () = sleep(if soon { SOON } else { ROUND }) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;

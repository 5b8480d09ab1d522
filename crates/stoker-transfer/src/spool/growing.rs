//! A handle to a blob that is on its way.
//!
//! What the fetch publishes comes in; waiting, counting and following go out. It never writes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::stream::BoxStream;
use oci_spec::image::Descriptor;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::part::SpoolTally;
use super::sources::{BlobSources, CurrentSource, SourceHold};
use super::{BlobSource, SpoolInner, check, follow};
use crate::Error;
use crate::limit::Pace;
use crate::pulse::{Pulse, TransferTrouble};
use crate::reference::Reference;

/// What everyone who waits for a blob may know of it.
#[derive(Debug, Clone, Default)]
pub(crate) struct BlobState {
    /// Bytes in the file.
    pub(crate) have: u64,
    /// Whether all of it is in the file and its sha256 is right. It may still be lost with the power.
    pub(crate) checked: bool,
    /// How often it was thrown away and begun again.
    pub(crate) restarts: u32,
    /// How it ended, once it has.
    pub(crate) outcome: Option<Result<(), Error>>,
}

/// The shared part of one fetch: the task writes it, the handles read it.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) path: PathBuf,
    pub(crate) descriptor: Descriptor,
    pub(crate) state: watch::Sender<BlobState>,
    /// Cancelled when the state has an outcome: who waits for the end alone is not woken by each piece.
    pub(crate) ended: CancellationToken,
    pub(crate) upstream: AtomicU64,
    pub(crate) mirrored: AtomicU64,
    pub(crate) peers: AtomicU64,
    pub(crate) pulse: Pulse,
    /// Of the spool as a whole.
    pace: Arc<Pace>,
    pub(crate) tally: Arc<SpoolTally>,
    /// The image that it was first wanted for.
    first: Reference,
    sources: Mutex<BlobSources>,
    /// Changes with each source that joins.
    pub(crate) joined: watch::Sender<()>,
}

impl Core {
    pub(crate) fn new(path: PathBuf, descriptor: Descriptor, image: Reference, spool: &SpoolInner) -> Self {
        Self {
            path,
            descriptor,
            state: watch::Sender::new(BlobState::default()),
            ended: CancellationToken::new(),
            upstream: AtomicU64::new(0),
            mirrored: AtomicU64::new(0),
            peers: AtomicU64::new(0),
            pulse: Pulse::default(),
            pace: spool.pace.clone(),
            tally: spool.tally.clone(),
            first: image,
            sources: Mutex::default(),
            joined: watch::Sender::new(()),
        }
    }

    /// The registry that is asked.
    pub(crate) fn registry(&self) -> &str {
        self.first.registry()
    }

    /// The images that want the blob.
    pub(crate) fn images(&self) -> Vec<Reference> {
        self.sources().iter().map(|source| source.image.clone()).collect()
    }

    /// Nothing is ever half-written under this lock, so a poisoned one is as good as any.
    fn sources(&self) -> MutexGuard<'_, BlobSources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one more who wants the blob, for as long as what it gets is held; `None` where this fetch is no longer good for that.
    pub(crate) fn join(&self, source: &BlobSource) -> Option<SourceHold> {
        let good = match &self.state.borrow().outcome {
            // The runtime may have taken the file away meanwhile.
            Some(Ok(())) => self.path.exists(),
            Some(Err(_)) => false,
            None => true,
        };
        let (hold, new) = good.then(|| self.sources().join(source))?;
        if new {
            self.joined.send_replace(());
        }
        Some(hold)
    }

    /// The source to try now; none where all have failed.
    pub(crate) fn source(&self) -> Option<CurrentSource> {
        self.sources().current()
    }

    /// Gives up the source that was tried.
    pub(crate) fn source_failed(&self, id: u64) {
        self.sources().fails(id);
    }

    /// Tries the other sources first, and this one again after them.
    pub(crate) fn next_source(&self, id: u64) {
        self.sources().passes(id);
    }

    /// Whether there is another source to try than this one.
    pub(crate) fn has_other_source(&self, id: u64) -> bool {
        self.sources().has_other(id)
    }

    /// What holds the bytes back: the pace of all, and the most generous of those who want the blob. Who shares a fetch with others
    /// is not slowed by their limits.
    pub(crate) fn paces(&self) -> impl Iterator<Item = Arc<Pace>> {
        let sources = self.sources();
        let limits: Option<Vec<(u64, Arc<Pace>)>> = sources
            .iter()
            .map(|source| source.pace.as_ref().and_then(|pace| Some((pace.limit()?, pace.clone()))))
            .collect();
        let own = limits.and_then(|limits| limits.into_iter().max_by_key(|(limit, _)| *limit)).map(|(_, pace)| pace);
        std::iter::once(self.pace.clone()).filter(|pace| pace.limit().is_some()).chain(own)
    }

    /// The blob of this image, for error messages.
    pub(crate) fn what(&self, image: &Reference) -> String {
        format!("blob {} of {image}", self.descriptor.digest())
    }

    /// An error of the disk, with what it is about.
    pub(crate) fn disk_failed(&self, problem: super::Error) -> Error {
        super::Error::Fetch { what: self.named(), problem: Box::new(problem) }.into()
    }

    /// The blob, with the image that it was first wanted for.
    pub(crate) fn named(&self) -> String {
        self.what(&self.first)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state.borrow().outcome.is_none()
    }

    /// Takes back that the blob is there: all who hold this fetch are told to begin again, nobody joins it any more, and
    /// the next fetch hashes the file before it uses it.
    fn doubt(&self) {
        self.tally.doubt(&self.path);
        self.state.send_if_modified(|state| {
            let believed = matches!(state.outcome, Some(Ok(())));
            if believed {
                let blob = self.descriptor.digest().to_string();
                (state.have, state.checked) = (0, false);
                state.restarts += 1;
                state.outcome = Some(Err(super::Error::Restarted { blob }.into()));
            }
            believed
        });
    }
}

/// A running fetch: it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) core: Arc<Core>,
    pub(crate) _task: AbortOnDropHandle<()>,
}

/// A blob that is on its way into the spool. The fetch goes on while any clone of this is held, and asks where this one lets it.
#[derive(Debug, Clone)]
pub struct Growing {
    handle: Arc<Handle>,
    /// None of whoever only looks.
    _source: Option<SourceHold>,
}

impl Growing {
    pub(crate) fn new(handle: Arc<Handle>, source: Option<SourceHold>) -> Self {
        Self { handle, _source: source }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.handle.core
    }

    /// Waits until the whole blob is there and its length and sha256 were checked; then gives its file. Files change after
    /// a check, too: whoever hands this one on hashes what it hands on.
    pub async fn complete(&self) -> Result<PathBuf, Error> {
        self.core().ended.cancelled().await;
        match &self.core().state.borrow().outcome {
            Some(Ok(())) => Ok(self.core().path.clone()),
            Some(Err(error)) => Err(error.clone()),
            None => Err(super::Error::Stopped.into()),
        }
    }

    /// All of a small blob, hashed as it is handed over.
    ///
    /// [`Restarted`](super::Error::Restarted) where the file changed after it was checked: a new call of
    /// [`Spool::blob`](super::Spool::blob) fetches it again.
    pub async fn bytes(&self) -> Result<Bytes, Error> {
        let path = self.complete().await?;
        match check::read(&path, &self.core().descriptor).await? {
            Some(bytes) => Ok(bytes),
            None => {
                self.core().doubt();
                Err(super::Error::Restarted { blob: self.core().descriptor.digest().to_string() }.into())
            }
        }
    }

    /// Hashes the finished file again, because whoever took it over found other bytes in it; says whether the file is
    /// damaged. If so, all who hold this fetch are told to begin again, and a new call of
    /// [`Spool::blob`](super::Spool::blob) fetches the blob again.
    pub async fn is_damaged(&self) -> Result<bool, Error> {
        let path = match self.complete().await {
            // Somebody else found it out.
            Err(Error::Spool(super::Error::Restarted { .. })) => return Ok(true),
            complete => complete?,
        };
        let damaged = !check::is_whole(&path, &self.core().descriptor).await?;
        if damaged {
            self.core().doubt();
        }
        Ok(damaged)
    }

    /// Bytes of the whole blob.
    pub fn size(&self) -> u64 {
        self.core().descriptor.size()
    }

    /// Whether both are handles of the same fetch.
    pub fn is_same_fetch(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle)
    }

    /// Counters that go on counting, also after this handle is gone.
    pub fn progress(&self) -> Progress {
        Progress { core: self.handle.core.clone() }
    }

    /// Whether a limit holds this fetch back now: then it may take long, and whoever follows it waits with it.
    pub fn throttled(&self) -> bool {
        self.core().is_running() && self.core().paces().next().is_some()
    }

    /// Reads the blob from this offset on while it grows, chunk by chunk.
    ///
    /// The last byte comes only after the sha256 was checked, so that who has all of it has the right one. If it turns
    /// out corrupt after something was read, the stream ends with an error.
    pub fn follow(&self, from: u64) -> BoxStream<'static, Result<Bytes, Error>> {
        follow::stream(self.handle.core.clone(), from, Some(self.clone()))
    }

    /// The same for somebody who has no say in whether the blob is fetched: when all handles are gone before the blob is whole, the
    /// stream ends with an error.
    pub(crate) fn watch(self, from: u64) -> BoxStream<'static, Result<Bytes, Error>> {
        follow::stream(self.handle.core.clone(), from, None)
    }
}

/// How far a blob is.
#[derive(Debug, Clone)]
pub struct Progress {
    core: Arc<Core>,
}

impl Progress {
    /// Bytes of the blob that are in the spool now.
    pub fn have(&self) -> u64 {
        self.core.state.borrow().have
    }

    /// Bytes that came over the wire for it in this fetch, also those that were thrown away.
    pub fn upstream(&self) -> u64 {
        self.core.upstream.load(Ordering::Acquire)
    }

    /// How much of [`upstream`](Self::upstream) came from other hosts than the registry itself.
    pub fn mirrored(&self) -> u64 {
        self.core.mirrored.load(Ordering::Relaxed)
    }

    /// Bytes that came from other nodes in this fetch, also those that were thrown away.
    pub fn peers(&self) -> u64 {
        self.core.peers.load(Ordering::Acquire)
    }

    /// Why the fetch makes no progress at the moment: a silent host, or an error after which it is retried. `None` while
    /// bytes flow, while a bandwidth limit holds the fetch back, and after its end.
    pub fn trouble(&self) -> Option<TransferTrouble> {
        self.core.pulse.trouble()
    }

    /// Whether the fetch waits for a host, and for no limit, disk or turn of this node.
    pub fn waits(&self) -> bool {
        self.core.pulse.waits()
    }

    /// Bytes of the whole blob.
    pub fn size(&self) -> u64 {
        self.core.descriptor.size()
    }

    /// Waits until [`have`](Self::have) is no longer `seen`, or the fetch has ended.
    pub async fn changed(&self, seen: u64) {
        let mut state = self.core.state.subscribe();
        // An error would mean that there is nobody left to change it.
        let _ = state.wait_for(|state| state.have != seen || state.outcome.is_some()).await;
    }
}

//! A directory of growing blobs.
//!
//! Descriptors and where to get them come in; files whose length and sha256 were checked go out. One digest has one
//! writer, whoever asked first, and any number of waiters and followers. A file that is not whole stays for the next
//! time, be it in this process or in one after it. It never decides what to fetch.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use bytes::Bytes;
use oci_spec::image::{Descriptor, Digest};
use rustix::io::{ReadWriteFlags, preadv2};
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex as WriterLock;
use tokio_util::task::AbortOnDropHandle;

use crate::fetch;
use crate::hash::hex;
use crate::limit::Pace;
use crate::login::Login;
use crate::peer::ways::PeerWays;
use crate::reference::Reference;
use crate::registry::Registry;

mod check;
mod error;
mod follow;
mod growing;
mod part;
mod private;
mod sources;
mod turns;
mod writer;

pub use self::error::Error;
pub(crate) use self::growing::{Core, Handle};
pub use self::growing::{Growing, Progress};
use self::part::SpoolTally;
pub use self::part::SpooledPart;
pub(crate) use self::sources::CurrentSource;
use self::turns::SpoolTurns;
pub(crate) use self::writer::SpoolWriter;

/// How much a spool does at once.
#[derive(Debug, Clone)]
pub struct SpoolSettings {
    /// Blobs that are fetched at the same time; the others wait in the order they came. Beyond it every image has one: those
    /// of an image that never comes do not keep others waiting.
    pub concurrency: usize,
    /// Bytes after which what was written is made to last: at most this much is lost with the power.
    pub checkpoint: u64,
}

impl Default for SpoolSettings {
    fn default() -> Self {
        Self { concurrency: 4, checkpoint: 16 * 1024 * 1024 }
    }
}

/// Where a blob can be had: the image that names it, and who we are to its registry.
#[derive(Debug, Clone)]
pub struct BlobSource {
    /// The image; its registry and repository are asked.
    pub image: Reference,
    /// The login for it; `None` is anonymous.
    pub login: Option<Login>,
    /// How fast it may come, beneath the pace of the spool as a whole.
    pub pace: Option<Arc<Pace>>,
    /// The nodes that it is read from, where it does not come from the registry.
    pub ways: Option<PeerWays>,
    /// Whether mirrors alone are asked, and not the registry itself.
    pub mirrors_only: bool,
}

impl BlobSource {
    /// A source from its two parts, as fast as the spool may.
    pub fn new(image: Reference, login: Option<Login>) -> Self {
        Self { image, login, pace: None, ways: None, mirrors_only: false }
    }

    /// The same, not faster than this. All sources that share a pace share its rate.
    pub fn paced(self, pace: Arc<Pace>) -> Self {
        Self { pace: Some(pace), ..self }
    }

    /// The same, from these nodes.
    pub fn by(self, ways: PeerWays) -> Self {
        Self { ways: Some(ways), ..self }
    }

    /// The same. If so, from mirrors of the registry alone.
    pub fn from_mirrors(self, only: bool) -> Self {
        Self { mirrors_only: only, ..self }
    }

    /// Ends when the registry may not be asked any more; never, where it always may.
    pub(crate) async fn leaves_upstream(&self) {
        match &self.ways {
            Some(ways) => ways.leave_upstream().await,
            None => std::future::pending().await,
        }
    }

    /// Whether the same place is asked as the same account; how fast makes no other way of it.
    pub(crate) fn is_same_way(&self, other: &Self) -> bool {
        let same_nodes = match (&self.ways, &other.ways) {
            (Some(own), Some(other)) => own.is_same(other),
            (own, other) => own.is_none() && other.is_none(),
        };
        let same_hosts = self.mirrors_only == other.mirrors_only;
        self.image == other.image && self.login == other.login && same_nodes && same_hosts
    }
}

/// A directory of growing blobs, and the registry client that fills it. Clones are the same spool.
#[derive(Debug, Clone)]
pub struct Spool {
    inner: Arc<SpoolInner>,
}

#[derive(Debug)]
pub(crate) struct SpoolInner {
    dir: PathBuf,
    pub(crate) registry: Registry,
    pub(crate) settings: SpoolSettings,
    pub(crate) turns: Arc<SpoolTurns>,
    /// Of everything that comes into the spool.
    pub(crate) pace: Arc<Pace>,
    pub(crate) tally: Arc<SpoolTally>,
    blobs: Mutex<HashMap<BlobKey, SpoolEntry>>,
}

/// A blob that is fetched. The length is part of its name here: a manifest that lies about it must not touch the file of one that
/// does not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct BlobKey {
    digest: Digest,
    size: u64,
    /// A mark of the registry, where another one is being asked for the same blob: a registry slows nobody's images but its own.
    beside: Option<String>,
}

impl BlobKey {
    fn file(&self) -> String {
        let (digest, size) = (self.digest.digest(), self.size);
        match &self.beside {
            None => format!("{digest}.{size}"),
            Some(mark) => format!("{digest}.{size}.{mark}"),
        }
    }

    /// From the name of a file of the spool.
    fn of_file(name: &str) -> Option<Self> {
        let mut parts = name.splitn(3, '.');
        let digest = Digest::try_from(format!("sha256:{}", parts.next()?)).ok()?;
        Some(Self { digest, size: parts.next()?.parse().ok()?, beside: parts.next().map(str::to_owned) })
    }
}

/// What we know of a blob: its fetch, if anyone still holds it, and the lock of its one writer.
#[derive(Debug, Default)]
struct SpoolEntry {
    handle: Weak<Handle>,
    lock: Arc<WriterLock<()>>,
}

impl Spool {
    /// Opens the directory, and makes it where it is not there. What an earlier process left in it is used. Nobody but the
    /// user of this process can read in it afterwards: images of other people's registries are in it.
    pub fn open(dir: PathBuf, registry: Registry, settings: SpoolSettings) -> Result<Self, crate::Error> {
        private::directory(&dir)?;
        let turns = SpoolTurns::new(settings.concurrency);
        let pace = Arc::new(Pace::unlimited());
        let (tally, blobs) = Default::default();
        let inner = SpoolInner { dir, registry, settings, turns, pace, tally, blobs };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The pace of all fetches of this spool together; without a limit until it is set. It may be set while they run.
    pub fn pace(&self) -> &Arc<Pace> {
        &self.inner.pace
    }

    /// Changes how many blobs are fetched at the same time. Those that run go on; at least one always may.
    pub fn set_concurrency(&self, concurrency: usize) {
        self.inner.turns.set(concurrency);
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Joins the fetch of this blob, or starts it. Must be called inside a tokio runtime.
    ///
    /// All handles of one digest from one registry share one fetch. It goes on while there is a handle (or a follower) and stops with the
    /// last one; the part that is there stays. Where the first caller's source fails, or its handles are gone, those of later callers are tried.
    pub fn blob(&self, source: BlobSource, descriptor: Descriptor) -> Growing {
        let mut blobs = self.inner.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        // Locks that nobody holds and nobody waits for would pile up otherwise.
        blobs.retain(|_, entry| entry.handle.strong_count() > 0 || Arc::strong_count(&entry.lock) > 1);
        let mut key = BlobKey { digest: descriptor.digest().clone(), size: descriptor.size(), beside: None };
        let running =
            blobs.get(&key).and_then(|entry| entry.handle.upgrade()).filter(|handle| handle.core.is_running());
        if running.is_some_and(|handle| handle.core.registry() != source.image.registry()) {
            let mark = hex(Sha256::new_with_prefix(source.image.registry()));
            key.beside = Some(mark.chars().take(16).collect());
        }
        let path = self.inner.dir.join(key.file());
        let entry = blobs.entry(key).or_default();
        if let Some(handle) = entry.handle.upgrade()
            && let Some(hold) = handle.core.join(&source)
        {
            return Growing::new(handle, Some(hold));
        }
        let core = Arc::new(Core::new(path, descriptor, source.image.clone(), &self.inner));
        let hold = core.join(&source);
        let lock = entry.lock.clone();
        let task = tokio::spawn(fetch::drive(core.clone(), self.inner.clone(), lock));
        let handle = Arc::new(Handle { core, _task: AbortOnDropHandle::new(task) });
        entry.handle = Arc::downgrade(&handle);
        Growing::new(handle, hold)
    }

    /// Removes a blob's file, whole or not, because nobody needs it here any more. One that is being fetched stays.
    pub async fn release(&self, digest: &Digest) -> Result<(), crate::Error> {
        for file in self.files().await?.into_iter().filter(|file| file.digest == *digest) {
            let Some(lock) = self.inner.free_lock(file.key) else { continue };
            // A writer that was told to stop may still have a write in hand.
            let _guard = lock.lock().await;
            let path = file.path;
            self.inner.tally.doubt(&path);
            on_disk(move || match std::fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::disk(&path, "remove", &e)),
                _ => Ok(()),
            })
            .await??;
        }
        Ok(())
    }

    /// The blobs that have a file here, whole or not: what counts for the disk, and may be released.
    pub async fn held(&self) -> Result<Vec<SpooledBlob>, crate::Error> {
        Ok(self.files().await?)
    }

    async fn files(&self) -> Result<Vec<SpooledBlob>, Error> {
        let dir = self.inner.dir.clone();
        on_disk(move || list(&dir)).await?
    }
}

impl SpoolInner {
    /// The lock of a blob that nobody fetches, and whose finished fetch, if any, is forgotten with this.
    fn free_lock(&self, key: BlobKey) -> Option<Arc<WriterLock<()>>> {
        let mut blobs = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = blobs.entry(key).or_default();
        if entry.handle.upgrade().is_some_and(|handle| handle.core.is_running()) {
            return None;
        }
        entry.handle = Weak::new();
        Some(entry.lock.clone())
    }
}

/// A file of the spool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpooledBlob {
    /// The blob.
    pub digest: Digest,
    /// What the file has.
    pub bytes: u64,
    /// When it was last written to.
    pub modified: SystemTime,
    key: BlobKey,
    path: PathBuf,
}

fn list(dir: &Path) -> Result<Vec<SpooledBlob>, Error> {
    let failed = |e: std::io::Error| Error::disk(dir, "list", &e);
    let mut held = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        // A file may go while we look: it counts no more.
        if let (Some(key), Ok(meta)) = (name.to_str().and_then(BlobKey::of_file), entry.metadata()) {
            let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            held.push(SpooledBlob { digest: key.digest.clone(), bytes: meta.len(), modified, key, path: entry.path() });
        }
    }
    Ok(held)
}

/// A piece of a file: at most this much from this offset on, and nothing at its end. What the kernel has in memory is copied at
/// once, which takes less time than to wake another thread. Only where the disk must be waited for does that happen beside the
/// executor.
pub(crate) async fn read_piece(file: Arc<File>, at: u64, most: usize) -> io::Result<Bytes> {
    let mut piece = vec![0; most];
    if let Some(read) = read_cached(&file, &mut piece, at) {
        piece.truncate(read);
        return Ok(Bytes::from(piece));
    }
    let read = on_disk(move || {
        let read = file.read_at(&mut piece, at)?;
        piece.truncate(read);
        Ok::<_, io::Error>(Bytes::from(piece))
    });
    read.await.map_err(io::Error::other)?
}

/// What of a file can be read without waiting for the disk; `None` where that is nothing, or where the filesystem cannot tell.
fn read_cached(file: &File, piece: &mut [u8], at: u64) -> Option<usize> {
    preadv2(file, &mut [IoSliceMut::new(piece)], at, ReadWriteFlags::NOWAIT).ok()
}

/// Does a short piece of work with a disk beside the executor.
pub(crate) async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|_| Error::Stopped)
}

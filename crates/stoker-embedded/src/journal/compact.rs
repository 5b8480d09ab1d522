//! Writing the journal anew without what nobody needs any more. In: the index as it was at one moment, and the file. Out: a
//! second file with a snapshot of that moment, durable and locked, that has not got the journal's name yet. It runs on a thread
//! of its own, so that writers go on meanwhile; whoever takes the file over adds what they wrote.

use super::disk::Disk;
use super::frame::{self, HEADER, Record};
use super::index::Index;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// A record of a snapshot is about this long: none of it is in memory as a whole.
const PIECE: usize = 1 << 20;

/// What is to be written anew.
pub(super) struct Source {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) file: Arc<File>,
    pub(super) index: Index,
    pub(super) revision: u64,
    /// Where the file ended at that moment: what comes after is not in the snapshot.
    pub(super) end: u64,
    /// The file to write.
    pub(super) target: PathBuf,
}

/// The second file, when it is durable.
pub(super) struct CompactedFile {
    pub(super) file: File,
    pub(super) index: Index,
    pub(super) end: u64,
    /// Where the first file ended when the snapshot was taken.
    pub(super) from: u64,
}

/// A snapshot in the making.
pub(super) struct Running {
    thread: JoinHandle<io::Result<CompactedFile>>,
    stop: Arc<AtomicBool>,
}

impl Running {
    pub(super) fn start(source: Source) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = Builder::new().name("journal-compact".to_owned()).spawn(move || write(&source, &told))?;
        Ok(Self { thread, stop })
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for its end.
    pub(super) fn join(self) -> io::Result<CompactedFile> {
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that wrote it is gone")))
    }

    /// Ends it early.
    pub(super) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.join());
    }
}

/// The file beside the journal that becomes the journal. One that is found at start is of a compaction that was killed.
pub(super) fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".new");
    name.into()
}

fn write(source: &Source, stop: &AtomicBool) -> io::Result<CompactedFile> {
    discard(&source.target)?;
    // For its owner only: it holds every Secret. Locked before it has the journal's name, so that nobody gets between.
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&source.target)?;
    file.try_lock()?;
    let mut snapshot = CompactedFile { file, index: Index::default(), end: HEADER as u64, from: source.end };
    let mut record = Record::new(source.revision);
    for (place, span) in source.index.in_file_order() {
        if stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let mut json = vec![0; usize::try_from(span.end - span.start).map_err(io::Error::other)?];
        source.file.read_exact_at(&mut json, span.start)?;
        record.put(&place, &json);
        if record.len() >= PIECE {
            append(source, &mut snapshot, std::mem::replace(&mut record, Record::new(source.revision)))?;
        }
    }
    // The last one may be empty: it still says the revision.
    append(source, &mut snapshot, record)?;
    source.disk.write(&snapshot.file, 0, &frame::header(snapshot.end))?;
    source.disk.sync(&snapshot.file)?;
    Ok(snapshot)
}

fn append(source: &Source, snapshot: &mut CompactedFile, record: Record) -> io::Result<()> {
    let (bytes, changes) = record.finish().ok_or(io::ErrorKind::FileTooLarge)?;
    source.disk.write(&snapshot.file, snapshot.end, &bytes)?;
    snapshot.index.apply(snapshot.end, changes);
    snapshot.end += bytes.len() as u64;
    Ok(())
}

/// Copies what was written since the snapshot was taken behind it. Out: the new end.
pub(super) fn copy_rest(disk: &dyn Disk, from: &File, end: u64, snapshot: &CompactedFile) -> io::Result<u64> {
    let (mut read, mut written) = (snapshot.from, snapshot.end);
    let mut piece = vec![0; PIECE];
    while read < end {
        let some = usize::try_from(end - read).unwrap_or(PIECE).min(PIECE);
        from.read_exact_at(&mut piece[..some], read)?;
        disk.write(&snapshot.file, written, &piece[..some])?;
        read += some as u64;
        written += some as u64;
    }
    Ok(written)
}

/// Removes the file beside the journal, if there is one.
pub(super) fn discard(target: &Path) -> io::Result<()> {
    match std::fs::remove_file(target) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

//! The journal: every object on disk, in one file that only grows. In: batches of changes, in order. Out: that a batch is durable
//! as a whole, or why it is not; at start everything that was. It knows nothing of kinds.
//!
//! A batch is one record, with a digest. What a crash leaves of the last one is cut away at the next start; a damaged record
//! with whole ones behind it is refused, because those were acknowledged. When most of the file is of no use any more, a
//! snapshot takes its place.

mod compact;
mod disk;
mod failure;
#[cfg(test)]
mod faulty;
mod file;
mod frame;
pub(crate) mod fuzzing;
mod index;
mod replay;
#[cfg(test)]
mod tests;

use crate::object::Object;
use crate::store::Place;
use compact::{CompactedFile, Running, Source};
use disk::{Disk, System};
pub use failure::JournalError;
pub(crate) use failure::JournalFailure;
use frame::{HEADER, Record};
use index::Index;
pub(crate) use replay::Contents;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file smaller than this is never written anew: reading it at start takes no time worth saving.
const FLOOR: u64 = 16 << 20;

/// One change of an object.
#[derive(Debug, Clone)]
pub(crate) struct JournalRow {
    pub(crate) place: Place,
    /// `None` where it goes.
    pub(crate) after: Option<Arc<Object>>,
}

/// The open file.
pub(crate) struct Journal {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    file: Arc<File>,
    /// Where the last acknowledged record ends.
    end: u64,
    revision: u64,
    index: Index,
    /// Behind `end` may be what is left of a refused record; nothing is written before that is cut away.
    torn: bool,
    /// The file got its name by a rename that may not be durable; nothing is acknowledged before it is.
    unnamed: bool,
    compaction: Option<Running>,
    floor: u64,
    /// The file is not written anew before it is that long.
    patience: u64,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens or makes the file and reads all of it.
    pub(crate) fn open(path: &Path) -> Result<(Self, Contents), JournalError> {
        Self::open_with(path, Arc::new(System), FLOOR)
    }

    pub(crate) fn open_with(path: &Path, disk: Arc<dyn Disk>, floor: u64) -> Result<(Self, Contents), JournalError> {
        let failed = |source| JournalError::Io { path: path.to_owned(), source };
        let (file, made) = file::open(path)?;
        let replayed = replay::read(path, &file)?;
        let objects = replay::objects(path, &file, &replayed)?;
        let contents = Contents { revision: replayed.revision, objects, dropped: replayed.len - replayed.end };
        // Only now that everything was understood is anything changed.
        compact::discard(&compact::beside(path)).map_err(failed)?;
        let mut end = replayed.end;
        if contents.dropped > 0 {
            disk.cut(&file, end).map_err(failed)?;
        }
        if end == 0 {
            disk.write(&file, 0, &frame::header(HEADER as u64)).map_err(failed)?;
            end = HEADER as u64;
        }
        disk.sync(&file).map_err(failed)?;
        disk.sync_names(file::directory(path)).map_err(failed)?;
        match contents.dropped > 0 || (replayed.len == 0 && !made) {
            true => tracing::warn!(
                journal = %path.display(), dropped_bytes = contents.dropped, revision = contents.revision,
                "the journal was cut off: its last bytes were no whole write and were dropped; \
                 it goes on from its last whole write"
            ),
            false => tracing::debug!(journal = %path.display(), revision = contents.revision, "the journal is open"),
        }
        let journal = Self {
            path: path.to_owned(),
            disk,
            file: Arc::new(file),
            end,
            revision: contents.revision,
            index: replayed.index,
            torn: false,
            unnamed: false,
            compaction: None,
            floor,
            patience: floor,
        };
        Ok((journal, contents))
    }

    /// Writes a batch, all of it or nothing, and returns when it is on disk.
    pub(crate) fn commit(&mut self, rows: &[JournalRow], revision: u64) -> Result<(), JournalFailure> {
        self.append(rows, revision).map_err(|error| {
            let failure = JournalFailure::of(&self.path, &error);
            tracing::error!(journal = %self.path.display(), %failure, "a write could not be made durable and was refused");
            // Where this fails too, the next write tries again before it writes.
            let _ = self.mend();
            failure
        })
    }

    fn append(&mut self, rows: &[JournalRow], revision: u64) -> io::Result<()> {
        self.mend()?;
        // The record counts as a whole, so of each object only the last state.
        let newest: BTreeMap<&Place, &JournalRow> = rows.iter().map(|row| (&row.place, row)).collect();
        let mut record = Record::new(revision);
        for (place, row) in newest {
            match &row.after {
                Some(object) => record.put(place, &object.json()),
                None => record.remove(place),
            }
        }
        let (bytes, changes) = record.finish().ok_or(io::ErrorKind::FileTooLarge)?;
        self.torn = true;
        self.disk.write(&self.file, self.end, &bytes)?;
        self.disk.sync(&self.file)?;
        self.torn = false;
        self.index.apply(self.end, changes);
        self.end += bytes.len() as u64;
        self.revision = revision;
        Ok(())
    }

    /// Takes back what a refused batch may have left: else it would reappear at the next start, or be followed by others.
    fn mend(&mut self) -> io::Result<()> {
        if self.torn {
            self.disk.cut(&self.file, self.end)?;
            self.disk.sync(&self.file)?;
            self.torn = false;
        }
        if self.unnamed {
            self.disk.sync_names(file::directory(&self.path))?;
            self.unnamed = false;
        }
        Ok(())
    }

    /// Keeps the file from growing without end. To be called now and then when nobody waits for an answer; it is short.
    pub(crate) fn tidy(&mut self) {
        if let Some(running) = self.compaction.take_if(|running| running.is_finished()) {
            self.settle(running);
        }
        let mostly_garbage = self.index.live() < self.end / 2;
        if self.compaction.is_none() && self.end >= self.patience && mostly_garbage {
            let source = Source {
                disk: self.disk.clone(),
                file: self.file.clone(),
                index: self.index.clone(),
                revision: self.revision,
                end: self.end,
                target: compact::beside(&self.path),
            };
            match Running::start(source) {
                Ok(running) => self.compaction = Some(running),
                Err(error) => self.give_up(&error),
            }
        }
    }

    fn settle(&mut self, running: Running) {
        let before = self.end;
        match running.join().and_then(|snapshot| self.take_over(snapshot)) {
            Ok(()) => {
                self.patience = self.floor;
                tracing::debug!(journal = %self.path.display(), before, after = self.end, "the journal was written anew");
            }
            Err(error) => self.give_up(&error),
        }
    }

    /// Makes the snapshot the journal. Up to the rename the old file is as good as ever.
    fn take_over(&mut self, snapshot: CompactedFile) -> io::Result<()> {
        let index = self.index.moved(&snapshot.index, snapshot.from, snapshot.end);
        let index = index.ok_or_else(|| io::Error::other("the snapshot lacks an object"))?;
        let end = compact::copy_rest(&*self.disk, &self.file, self.end, &snapshot)?;
        self.disk.sync(&snapshot.file)?;
        self.disk.rename(&compact::beside(&self.path), &self.path)?;
        self.file = Arc::new(snapshot.file);
        (self.index, self.end) = (index, end);
        // What was torn stayed behind in the old file.
        (self.torn, self.unnamed) = (false, true);
        let _ = self.mend();
        Ok(())
    }

    /// The old file goes on; another try when it has grown by as much again.
    fn give_up(&mut self, error: &io::Error) {
        self.patience = self.end + self.floor;
        tracing::warn!(
            journal = %self.path.display(), %error,
            "the journal could not be written anew and goes on growing; look at the room on that disk"
        );
        let _ = compact::discard(&compact::beside(&self.path));
    }

    /// The last chance to take back what was refused. Nothing else needs it: what was acknowledged is on disk.
    pub(crate) fn close(mut self) {
        let _ = self.mend();
        if let Some(running) = self.compaction.take() {
            running.stop();
            let _ = compact::discard(&compact::beside(&self.path));
        }
    }
}

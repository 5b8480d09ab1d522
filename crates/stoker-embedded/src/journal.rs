//! The journal: every object on disk, in one redb file. In: batches of changes, in order. Out: that a batch is durable as a
//! whole, or why it is not; at start everything that was. It knows nothing of kinds, and it is the only file that knows redb.

#[cfg(test)]
mod disk;
mod failure;
mod load;
#[cfg(test)]
mod tests;

use crate::object::Object;
use crate::store::Place;
pub(crate) use failure::Failure;
pub use failure::JournalError;
pub(crate) use load::Contents;
use redb::{Builder, Database, TableDefinition};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// `(table, namespace, name)` to the stored JSON.
const OBJECTS: TableDefinition<'_, (&str, &str, &str), &[u8]> = TableDefinition::new("objects");
/// Numbers about the journal itself: [`FORMAT`] and [`REVISION`].
const FACTS: TableDefinition<'_, &str, u64> = TableDefinition::new("facts");
const FORMAT: &str = "format";
const REVISION: &str = "revision";
/// The format this server writes; it refuses to read a later one.
const KNOWN_FORMAT: u64 = 1;
/// All objects are in memory anyway: the cache only serves the pages of a commit.
const CACHE: usize = 4 << 20;

/// Opens the file. Another way to open it is what a test replaces, to count and to fail.
pub(crate) type Opener = Box<dyn Fn(&Builder) -> Result<Database, redb::DatabaseError> + Send + Sync>;

/// One change of an object. `before` is what stood there before this change.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) place: Place,
    pub(crate) before: Option<Arc<Object>>,
    pub(crate) after: Option<Arc<Object>>,
}

/// The open file.
pub(crate) struct Journal {
    path: PathBuf,
    opener: Opener,
    /// `None` after a failed write: redb wants the file opened anew before it goes on.
    database: Option<Database>,
    /// The last revision that is surely in the file.
    revision: u64,
    /// What a failed batch may have left in the file although it was refused: written back with the next one.
    undo: BTreeMap<Place, Option<Arc<Object>>>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Journal {
    /// Opens or makes the file and reads all of it.
    pub(crate) fn open(path: &Path) -> Result<(Self, Contents), JournalError> {
        let file = path.to_owned();
        Self::open_with(path, Box::new(move |builder| builder.create_file(private(&file)?)))
    }

    pub(crate) fn open_with(path: &Path, opener: Opener) -> Result<(Self, Contents), JournalError> {
        let (database, recovered) = open(path, &opener)?;
        let contents = load::read(path, &database)?;
        match recovered {
            true => tracing::warn!(
                journal = %path.display(), revision = contents.revision, objects = contents.objects.len(),
                "the journal was not closed cleanly; it goes on from its last whole write"
            ),
            false => tracing::debug!(journal = %path.display(), revision = contents.revision, "the journal is open"),
        }
        let revision = contents.revision;
        let journal = Self { path: path.to_owned(), opener, database: Some(database), revision, undo: BTreeMap::new() };
        Ok((journal, contents))
    }

    /// Writes a batch, all of it or nothing, and returns when it is on disk.
    pub(crate) fn commit(&mut self, rows: &[Row], revision: u64) -> Result<(), Failure> {
        let written = self.write(rows, revision);
        match &written {
            Ok(()) => {
                self.undo.clear();
                self.revision = revision;
            }
            Err(failure) => {
                tracing::error!(journal = %self.path.display(), %failure, "a write could not be made durable and was refused");
                for row in rows {
                    // The first change of an object stands on what was acknowledged; later ones of the batch on that change.
                    self.undo.entry(row.place.clone()).or_insert_with(|| row.before.clone());
                }
                self.take_back();
            }
        }
        written
    }

    fn write(&mut self, rows: &[Row], revision: u64) -> Result<(), Failure> {
        let failed = |error: redb::Error| Failure::of(&self.path, &error);
        let database = match self.database.take() {
            Some(database) => database,
            None => open(&self.path, &self.opener).map_err(|error| Failure::reopening(&self.path, &error))?.0,
        };
        let database = self.database.insert(database);
        let undo = self.undo.iter().map(|(place, object)| (place, object.as_ref()));
        let changes = undo.chain(rows.iter().map(|row| (&row.place, row.after.as_ref())));
        let stored = store(database, changes, revision).map_err(failed);
        if stored.is_err() {
            self.database = None;
        }
        stored
    }

    /// Takes back what a refused batch may have left: else it would reappear at the next start. Also holds the file's lock again.
    fn take_back(&mut self) {
        if !self.undo.is_empty() && self.write(&[], self.revision).is_ok() {
            self.undo.clear();
        }
    }

    /// The last chance to take back; the file is closed cleanly.
    pub(crate) fn close(mut self) {
        self.take_back();
    }
}

fn store<'a>(
    database: &Database,
    changes: impl Iterator<Item = (&'a Place, Option<&'a Arc<Object>>)>,
    revision: u64,
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut objects = transaction.open_table(OBJECTS)?;
        for (place, object) in changes {
            let key = (place.table.as_str(), place.key.namespace.as_str(), place.key.name.as_str());
            match object {
                Some(object) => drop(objects.insert(key, object.json().as_ref())?),
                None => drop(objects.remove(key)?),
            }
        }
        let mut facts = transaction.open_table(FACTS)?;
        facts.insert(FORMAT, KNOWN_FORMAT)?;
        facts.insert(REVISION, revision)?;
    }
    transaction.commit()?;
    Ok(())
}

/// The database, and whether it had to be recovered.
fn open(path: &Path, opener: &Opener) -> Result<(Database, bool), JournalError> {
    let recovered = Arc::new(AtomicBool::new(false));
    let flag = recovered.clone();
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE).set_repair_callback(move |_| flag.store(true, Ordering::Relaxed));
    let named = |error: redb::DatabaseError| JournalError::opening(path, error);
    let mut database = load::guarded(path, || opener(&builder).map_err(named))?;
    let mut recovered = recovered.load(Ordering::Relaxed);
    if !recovered {
        // A file that was closed cleanly is taken as it is by redb; only this finds what was damaged since.
        recovered = !load::guarded(path, || database.check_integrity().map_err(named))?;
    }
    Ok((database, recovered))
}

/// The file for its owner only: it holds every Secret. A new one is on disk together with its name.
fn private(path: &Path) -> std::io::Result<File> {
    let fresh = !path.exists();
    let file = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if fresh && let Some(parent) = path.parent() {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        File::open(parent)?.sync_all()?;
    }
    Ok(file)
}

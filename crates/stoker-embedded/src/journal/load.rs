//! Reading a journal at start. In: an open file, which may have been damaged by anything. Out: all objects and the revision, or
//! an error that names the file. No content makes it panic.

use super::{FACTS, FORMAT, JournalError, KNOWN_FORMAT, OBJECTS, REVISION};
use crate::object::{Key, Object, text};
use crate::store::Place;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, ReadableTableMetadata as _, TableError};
use serde_json::Value;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Everything that a journal holds.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) revision: u64,
    pub(crate) objects: Vec<(Place, Object)>,
}

/// Reads everything; a journal that was never written is empty.
pub(super) fn read(path: &Path, database: &Database) -> Result<Contents, JournalError> {
    guarded(path, || {
        let damaged = |why: String| JournalError::Damaged { path: path.to_owned(), why };
        let Some(format) = format(database).map_err(|error| damaged(error.to_string()))? else {
            return match foreign(database).map_err(|error| damaged(error.to_string()))? {
                true => Err(damaged("it is a database of something else".to_owned())),
                false => Ok(Contents::default()),
            };
        };
        if format > KNOWN_FORMAT {
            return Err(JournalError::Newer { path: path.to_owned(), found: format, known: KNOWN_FORMAT });
        }
        contents(database).map_err(|error| damaged(error.to_string()))
    })
}

/// redb checks much of what it reads, but not everything: a damaged page can still trip an assertion inside it.
pub(super) fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T, JournalError>) -> Result<T, JournalError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(JournalError::Damaged { path: path.to_owned(), why: "its pages contradict each other".to_owned() })
    })
}

fn format(database: &Database) -> Result<Option<u64>, redb::Error> {
    match database.begin_read()?.open_table(FACTS) {
        Ok(facts) => Ok(facts.get(FORMAT)?.map(|found| found.value())),
        Err(TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn foreign(database: &Database) -> Result<bool, redb::Error> {
    Ok(database.begin_read()?.list_tables()?.next().is_some())
}

fn contents(database: &Database) -> Result<Contents, Box<dyn std::error::Error>> {
    let transaction = database.begin_read()?;
    let revision = transaction.open_table(FACTS)?.get(REVISION)?.ok_or("it has no revision")?.value();
    let table = transaction.open_table(OBJECTS)?;
    // A length that a damaged file claims is no reason to reserve that much.
    let mut objects = Vec::with_capacity(usize::try_from(table.len()?).unwrap_or(0).min(1 << 16));
    for entry in table.iter()? {
        let (key, json) = entry?;
        let (table, namespace, name) = key.value();
        let place = Place { table: table.to_owned(), key: Key::new(namespace, name) };
        let object =
            object(&place, json.value(), revision).map_err(|why| format!("{table} {namespace}/{name}: {why}"))?;
        objects.push((place, object));
    }
    Ok(Contents { revision, objects })
}

fn object(place: &Place, json: &[u8], newest: u64) -> Result<Object, String> {
    let value: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let revision: u64 = text(&value, "resourceVersion").parse().map_err(|_| "it has no resourceVersion".to_owned())?;
    if revision > newest {
        return Err(format!("its resourceVersion {revision} is later than the journal's {newest}"));
    }
    let object = Object::seal(value, revision);
    if object.key() != place.key {
        return Err("it is stored under another name".to_owned());
    }
    Ok(object)
}

//! `index.json`: which names a store knows.
//!
//! Descriptors come in and go out; what else is in the file stays as it is. A change is a read, an edit and an atomic
//! write, under a lock file that other processes respect too. All of it blocks, shortly.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::Path;

use oci_spec::image::{Descriptor, ImageIndex, ImageIndexBuilder, MediaType};

use super::{CONTAINERD_NAME, Error, REF_NAME, disk};

const FILE: &str = "index.json";
const MOST_BYTES: u64 = 64 * 1024 * 1024;

/// Makes an empty index where there is none, and checks one that is there.
pub(super) fn open(dir: &Path) -> Result<(), Error> {
    let _lock = lock(dir)?;
    if dir.join(FILE).exists() {
        return load(dir).map(|_| ());
    }
    let empty = ImageIndexBuilder::default()
        .schema_version(2u32)
        .media_type(MediaType::ImageIndex)
        .manifests(Vec::new())
        .build()
        .map_err(|e| bad(dir, e.to_string()))?;
    store(dir, &empty)
}

/// All entries.
pub(super) fn read(dir: &Path) -> Result<Vec<Descriptor>, Error> {
    Ok(load(dir)?.manifests().clone())
}

/// Edits the entries.
pub(super) fn change(dir: &Path, edit: impl FnOnce(&mut Vec<Descriptor>)) -> Result<(), Error> {
    let _lock = lock(dir)?;
    let mut index = load(dir)?;
    let before = index.manifests().clone();
    let mut entries = before.clone();
    edit(&mut entries);
    if entries == before {
        return Ok(());
    }
    index.set_manifests(entries);
    store(dir, &index)
}

/// The name of an entry.
pub(super) fn name(entry: &Descriptor) -> Option<&String> {
    entry.annotations().as_ref()?.get(REF_NAME)
}

/// An entry with its name.
pub(super) fn named(mut root: Descriptor, name: &str) -> Descriptor {
    let mut annotations: HashMap<String, String> = root.annotations().clone().unwrap_or_default();
    for key in [REF_NAME, CONTAINERD_NAME] {
        annotations.insert(key.to_owned(), name.to_owned());
    }
    root.set_annotations(Some(annotations));
    root
}

/// Held until dropped; waits for others, who hold it for one change only.
fn lock(dir: &Path) -> Result<File, Error> {
    let path = dir.join(".index.lock");
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    open.and_then(|file| file.lock().map(|()| file)).map_err(|e| Error::disk("lock", &path, &e))
}

fn load(dir: &Path) -> Result<ImageIndex, Error> {
    let path = dir.join(FILE);
    let mut bytes = Vec::new();
    File::open(&path)
        .and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes))
        .map_err(|e| Error::disk("read", &path, &e))?;
    serde_json::from_slice(&bytes).map_err(|e| bad(dir, e.to_string()))
}

fn store(dir: &Path, index: &ImageIndex) -> Result<(), Error> {
    let bytes = serde_json::to_vec(index).map_err(|e| bad(dir, e.to_string()))?;
    disk::replace(&dir.join(FILE), &bytes)
}

fn bad(dir: &Path, cause: String) -> Error {
    Error::BadIndex { path: dir.join(FILE), cause }
}

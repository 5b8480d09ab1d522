//! containerd's settings file with all that it imports. In: the file's path. Out: one table, and whether it is all that
//! containerd itself reads. It never fails: what cannot be read is left out.

use std::collections::VecDeque;
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::super::sight::VisibleFiles;

/// More than this of a file is not read, and no more files than this.
const MOST_BYTES: usize = 1 << 20;
const MOST_FILES: usize = 64;

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    /// All files; what comes later counts.
    pub(super) table: Table,
    /// Each directory of image verifiers that a file names.
    pub(super) verifiers: Vec<PathBuf>,
    /// Whether every file was read that containerd reads.
    pub(super) complete: bool,
}

/// A file with all that it imports, and with the drop-ins that containerd imports without being told.
pub(super) fn load(file: &Path, drop_ins: Option<&str>, sight: &VisibleFiles) -> Loaded {
    let mut all = Loaded { complete: true, ..Loaded::default() };
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut files = VecDeque::from([file.to_owned()]);
    if let Some(import) = drop_ins {
        all.import(file, import, &mut files, sight);
    }
    while let Some(file) = files.pop_front() {
        if seen.contains(&file) {
            continue;
        }
        all.complete &= seen.len() < MOST_FILES && sight.covers(&file);
        if seen.len() >= MOST_FILES {
            break;
        }
        match read(&file) {
            Ok(table) => {
                let imports = table.get("imports").and_then(Value::as_array).cloned().unwrap_or_default();
                for import in imports.iter().filter_map(Value::as_str) {
                    all.import(&file, import, &mut files, sight);
                }
                all.verifiers.extend(bin_dir(&table));
                merge(&mut all.table, table);
            }
            // The caller knows whether the first file may be missing.
            Err(Unread::Missing) if seen.is_empty() => {}
            Err(problem) => {
                all.complete = false;
                let (file, problem) = (file.display(), problem.words());
                tracing::warn!(
                    "cannot read containerd's settings in {file}: {problem}; taking the usual ones; --registry-hosts \
                     names the directory of hosts.toml files, where it is another"
                );
            }
        }
        seen.push(file);
    }
    all
}

impl Loaded {
    /// Takes up the files of an import: one, or those of a directory that match.
    fn import(&mut self, from: &Path, import: &str, files: &mut VecDeque<PathBuf>, sight: &VisibleFiles) {
        let path = from.parent().unwrap_or(Path::new("/")).join(import);
        if !import.contains('*') {
            files.push_back(path);
            return;
        }
        self.complete &= path.parent().is_some_and(|dir| sight.covers(dir));
        match matching(&path) {
            Some(found) => files.extend(found),
            None => self.complete = false,
        }
    }
}

enum Unread {
    Missing,
    Failed(String),
}

impl Unread {
    fn words(&self) -> &str {
        match self {
            Self::Missing => "there is no such file",
            Self::Failed(words) => words,
        }
    }
}

fn read(file: &Path) -> Result<Table, Unread> {
    let failed = |problem: std::io::Error| match problem.kind() {
        ErrorKind::NotFound => Unread::Missing,
        _ => Unread::Failed(problem.to_string()),
    };
    let mut text = String::new();
    let open = fs::File::open(file).map_err(failed)?;
    open.take(MOST_BYTES as u64 + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() > MOST_BYTES {
        return Err(Unread::Failed(format!("it is larger than {MOST_BYTES} bytes")));
    }
    text.parse::<Table>().map_err(|problem| Unread::Failed(problem.to_string()))
}

/// Where this file says that image verifiers are.
fn bin_dir(table: &Table) -> Option<PathBuf> {
    let plugin = table.get("plugins")?.get("io.containerd.image-verifier.v1.bindir")?;
    plugin.get("bin_dir")?.as_str().map(PathBuf::from)
}

fn merge(all: &mut Table, more: Table) {
    for (key, value) in more {
        match (all.get_mut(&key), value) {
            (Some(Value::Table(all)), Value::Table(more)) => merge(all, more),
            (_, value) => {
                all.insert(key, value);
            }
        }
    }
}

/// The files of a directory that match a pattern with one `*` in its last part. `None` where there may be others: a pattern of
/// another form, or a directory that cannot be read.
fn matching(pattern: &Path) -> Option<Vec<PathBuf>> {
    let (name, dir) = (pattern.file_name()?.to_str()?, pattern.parent()?);
    let (head, tail) = name.split_once('*')?;
    if [head, tail, dir.to_str()?].iter().any(|part| part.contains(['*', '?', '[', '\\'])) {
        return None;
    }
    let matches = |name: &str| name.len() >= head.len() + tail.len() && name.starts_with(head) && name.ends_with(tail);
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(problem) => return (problem.kind() == ErrorKind::NotFound).then(Vec::new),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.ok()?;
        if entry.file_name().to_str().is_some_and(matches) {
            files.push(entry.path());
        }
    }
    files.sort();
    Some(files)
}

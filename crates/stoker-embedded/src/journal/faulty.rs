//! A disk for tests: the real one, with a count of its syncs, a gate before them, room for so many changes only, and a memory of
//! what a power cut would leave.

use super::disk::{Disk, System};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// What a test sees of the disk and does to it.
#[derive(Debug, Default)]
pub(crate) struct Faulty {
    pub(crate) syncs: AtomicUsize,
    /// Changes and syncs until the disk is full; negative is never.
    pub(crate) room: AtomicI64,
    pub(crate) renames: AtomicUsize,
    closed: Mutex<bool>,
    opened: Condvar,
    durable: Mutex<Durable>,
}

/// What is on the platters.
#[derive(Debug, Default)]
struct Durable {
    /// By inode, what was synced.
    files: BTreeMap<u64, Vec<u8>>,
    /// What the journal's name stands for, and the inode while that is still the same file.
    named: Option<Vec<u8>>,
    inode: Option<u64>,
}

impl Faulty {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { room: AtomicI64::new(-1), ..Self::default() })
    }

    /// Holds every sync back until what is returned is dropped.
    pub(crate) fn hold(self: &Arc<Self>) -> HeldDisk {
        *self.closed.lock().unwrap() = true;
        HeldDisk(self.clone())
    }

    /// The journal as a power cut would leave it; `None` where there is none.
    pub(crate) fn after_power_cut(&self) -> Option<Vec<u8>> {
        self.durable.lock().unwrap().named.clone()
    }

    fn take(&self) -> io::Result<()> {
        let left = |room: i64| if room > 0 { Some(room - 1) } else { None };
        match self.room.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left) {
            Err(0) => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }
}

/// A test that fails while it holds the disk must not wait for it forever.
pub(crate) struct HeldDisk(Arc<Faulty>);

impl Drop for HeldDisk {
    fn drop(&mut self) {
        *self.0.closed.lock().unwrap() = false;
        self.0.opened.notify_all();
    }
}

impl Disk for Faulty {
    fn write(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        if let Err(full) = self.take() {
            System.write(file, at, &bytes[..bytes.len() / 2])?;
            return Err(full);
        }
        System.write(file, at, bytes)
    }

    fn cut(&self, file: &File, len: u64) -> io::Result<()> {
        self.take()?;
        System.cut(file, len)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        let closed = self.closed.lock().unwrap();
        drop(self.opened.wait_while(closed, |closed| *closed).unwrap());
        self.take()?;
        self.syncs.fetch_add(1, Ordering::SeqCst);
        let meta = file.metadata()?;
        let mut bytes = vec![0; meta.len() as usize];
        file.read_exact_at(&mut bytes, 0)?;
        let mut durable = self.durable.lock().unwrap();
        if durable.inode == Some(meta.ino()) {
            durable.named = Some(bytes.clone());
        }
        durable.files.insert(meta.ino(), bytes);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.take()?;
        self.renames.fetch_add(1, Ordering::SeqCst);
        // Until names are synced the old file has the name; nobody writes to it, and its inode may be used again.
        self.durable.lock().unwrap().inode = None;
        System.rename(from, to)
    }

    fn sync_names(&self, directory: &Path) -> io::Result<()> {
        self.take()?;
        let journal = std::fs::read_dir(directory)?.filter_map(Result::ok).find(|entry| entry.file_name() == "journal");
        let mut durable = self.durable.lock().unwrap();
        durable.inode = journal.map(|entry| std::fs::metadata(entry.path()).unwrap().ino());
        durable.named = durable.inode.map(|inode| durable.files.get(&inode).cloned().unwrap_or_default());
        Ok(())
    }
}

/// The real disk without its syncs, for tests that open thousands of files.
pub(crate) struct Hasty;

impl Disk for Hasty {
    fn write(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        System.write(file, at, bytes)
    }

    fn cut(&self, file: &File, len: u64) -> io::Result<()> {
        System.cut(file, len)
    }

    fn sync(&self, _: &File) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        System.rename(from, to)
    }

    fn sync_names(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

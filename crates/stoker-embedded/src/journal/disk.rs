//! A disk for tests: the real file, with a count of its syncs, a gate before them, and room for so many bytes only.

use redb::backends::FileBackend;
use redb::{BackendError, Builder, Database, DatabaseError, StorageBackend};
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// What a test sees of the disk and does to it.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    pub(crate) syncs: AtomicUsize,
    /// Writes and syncs until the disk is full; negative is never.
    pub(crate) room: AtomicI64,
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Disk {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { room: AtomicI64::new(-1), ..Self::default() })
    }

    /// Holds every sync back until what is returned is dropped.
    pub(crate) fn hold(self: &Arc<Self>) -> Held {
        *self.closed.lock().unwrap() = true;
        Held(self.clone())
    }

    pub(crate) fn opener(self: &Arc<Self>, path: &Path) -> super::Opener {
        let (disk, path) = (self.clone(), path.to_owned());
        Box::new(move |builder: &Builder| -> Result<Database, DatabaseError> {
            let file = FileBackend::new(super::private(&path)?)?;
            builder.create_with_backend(Backend { file, disk: disk.clone() })
        })
    }

    fn take(&self) -> io::Result<()> {
        match self.room.load(Ordering::SeqCst) {
            0 => Err(io::ErrorKind::StorageFull.into()),
            left if left > 0 => {
                self.room.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// A test that fails while it holds the disk must not wait for it forever.
pub(crate) struct Held(Arc<Disk>);

impl Drop for Held {
    fn drop(&mut self) {
        *self.0.closed.lock().unwrap() = false;
        self.0.opened.notify_all();
    }
}

#[derive(Debug)]
struct Backend {
    file: FileBackend,
    disk: Arc<Disk>,
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.take()?;
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let closed = self.disk.closed.lock().unwrap();
        drop(self.disk.opened.wait_while(closed, |closed| *closed).unwrap());
        self.disk.take()?;
        self.disk.syncs.fetch_add(1, Ordering::SeqCst);
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk.take()?;
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}

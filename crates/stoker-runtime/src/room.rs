//! What all pulls of a node together may still put onto its disks.
//!
//! A pull reserves what it will write before it begins, and a reservation shrinks as its bytes arrive on the disk: what is
//! used plus what is reserved never passes the limit. What a layer takes unpacked is an estimate; whoever unpacks it takes
//! it in steps, and each step past the estimate has to fit like a new reservation.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::space::{self, Space};

mod fit;

pub use self::fit::{DiskAmount, Short, Unit};
use self::fit::{fit, left};

/// What is taken at one time while a layer is unpacked.
const STEP: DiskAmount = DiskAmount { bytes: 16 << 20, inodes: 4096 };

/// How often a disk is looked at while a runtime fills it by itself: as long as there is much room, and shortly before there is none.
const LOOK: Duration = Duration::from_millis(100);
const LOOK_CLOSELY: Duration = Duration::from_millis(5);

/// Bytes a second that a runtime may write; few disks are quicker.
const QUICK: u64 = 2 << 30;

/// Looks at the disk of a path.
type LookAtDisk = dyn Fn(&Path) -> Option<Space> + Send + Sync;

/// The reservations of a node. Clones are the same.
#[derive(Clone)]
pub struct Room(Arc<RoomShared>);

struct RoomShared {
    /// How full a disk may become, in percent.
    percent: u8,
    look: Box<LookAtDisk>,
    claims: Mutex<Claims>,
    /// Changes when a reservation ends.
    ends: watch::Sender<()>,
}

#[derive(Default)]
struct Claims {
    next: u64,
    all: BTreeMap<u64, (Option<u64>, Unwritten)>,
}

/// What will still be written for a reservation.
pub enum Unwritten {
    /// This much, until it is said otherwise.
    Amount(DiskAmount),
    /// So many bytes as this says, whenever it is asked.
    Counted(Box<dyn Fn() -> u64 + Send + Sync>),
}

impl Unwritten {
    fn now(&self) -> DiskAmount {
        match self {
            Self::Amount(amount) => *amount,
            Self::Counted(count) => DiskAmount { bytes: count(), inodes: 0 },
        }
    }
}

impl Claims {
    /// What is reserved on a disk, but for one reservation.
    fn reserved(&self, device: u64, except: Option<u64>) -> DiskAmount {
        let others = self.all.iter().filter(|(id, (on, _))| *on == Some(device) && Some(**id) != except);
        others.fold(DiskAmount::default(), |sum, (_, (_, left))| sum.plus(left.now()))
    }
}

impl Room {
    /// Disks may become this full, in percent. 100 allows everything.
    pub fn new(percent: u8) -> Self {
        Self::looking(percent, space::look)
    }

    fn looking(percent: u8, look: impl Fn(&Path) -> Option<Space> + Send + Sync + 'static) -> Self {
        let (look, claims, ends) = (Box::new(look), Mutex::default(), watch::Sender::new(()));
        Self(Arc::new(RoomShared { percent, look, claims, ends }))
    }

    /// How full a disk may become, in percent.
    pub fn percent(&self) -> u8 {
        self.0.percent
    }

    /// Nothing is ever half-written under this lock, so a poisoned one is as good as any.
    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.0.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves all of it or nothing; each item is on the disk of its path. A disk that cannot be seen from here is not
    /// judged. It blocks, shortly.
    pub fn reserve(&self, items: Vec<(Option<PathBuf>, Unwritten)>) -> Result<Vec<Hold>, Short> {
        let mut claims = self.claims();
        // The disks are looked at last: what arrives meanwhile counts twice, and not never.
        let needs: Vec<DiskAmount> = items.iter().map(|(_, left)| left.now()).collect();
        let reserved: Vec<u64> = claims.all.values().filter_map(|(device, _)| *device).collect();
        let before: BTreeMap<u64, DiskAmount> =
            reserved.into_iter().map(|device| (device, claims.reserved(device, None))).collect();
        let spaces: Vec<Option<Space>> =
            items.iter().map(|(path, _)| path.as_deref().and_then(|path| (self.0.look)(path))).collect();
        let mut disks: BTreeMap<u64, (Space, DiskAmount)> = BTreeMap::new();
        for (space, need) in spaces.iter().zip(&needs) {
            if let Some(space) = space {
                let disk = disks.entry(space.device).or_insert((*space, DiskAmount::default()));
                disk.1 = disk.1.plus(*need);
            }
        }
        for (device, (space, need)) in disks {
            let others = before.get(&device).copied().unwrap_or_default();
            fit(space, self.0.percent, others, need)?;
        }
        let claim = |((_, left), space): ((_, Unwritten), Option<Space>)| {
            let id = claims.next;
            claims.next += 1;
            claims.all.insert(id, (space.map(|space| space.device), left));
            Hold { room: self.clone(), id }
        };
        Ok(items.into_iter().zip(spaces).map(claim).collect())
    }

    /// Changes whenever a reservation ends from now on.
    pub fn ends(&self) -> watch::Receiver<()> {
        self.0.ends.subscribe()
    }

    /// Ends when the disk of this path is fuller than it may be: for runtimes that unpack by themselves.
    pub async fn overflows(&self, path: Option<&Path>) -> Short {
        let mut pause = LOOK_CLOSELY;
        loop {
            tokio::time::sleep(pause).await;
            pause = match self.room_left(path).await {
                Some(Err(short)) => return short,
                Some(Ok(left)) => pause_before(left),
                None => LOOK,
            };
        }
    }

    /// Whether the disk of this path is fuller than it may be now: a quick disk fills between two looks of [`overflows`](Self::overflows).
    pub async fn overflowed(&self, path: Option<&Path>) -> Option<Short> {
        self.room_left(path).await?.err()
    }

    /// How many bytes the disk of this path still has room for; `None`: it has no limit, or cannot be seen.
    async fn room_left(&self, path: Option<&Path>) -> Option<Result<u64, Short>> {
        let (room, path) = (self.clone(), path.filter(|_| self.0.percent < 100)?.to_owned());
        let look = move || {
            let space = (room.0.look)(&path)?;
            let more = DiskAmount { bytes: 1, inodes: 1 };
            let fits = fit(space, room.0.percent, DiskAmount::default(), more);
            Some(fits.map(|()| left(&space, room.0.percent)))
        };
        tokio::task::spawn_blocking(look).await.ok().flatten()
    }
}

/// When to look again at a disk with this much room: in time for the quickest writer.
fn pause_before(left: u64) -> Duration {
    let millis = left.saturating_mul(1000) / QUICK / 2;
    Duration::from_millis(millis).clamp(LOOK_CLOSELY, LOOK)
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("percent", &self.0.percent).finish_non_exhaustive()
    }
}

/// A reservation; it ends when this is dropped.
#[derive(Debug)]
pub struct Hold {
    room: Room,
    id: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.room.claims().all.remove(&self.id);
        self.room.0.ends.send_replace(());
    }
}

/// What one layer may take unpacked: an estimate that is reserved, and what it takes beyond that. Clones are the same; the
/// reservation ends with the last of them.
#[derive(Debug, Clone)]
pub struct Purse {
    hold: Arc<Hold>,
    /// On which disk.
    path: Option<PathBuf>,
    estimate: DiskAmount,
    state: Arc<Mutex<PurseState>>,
}

#[derive(Debug)]
struct PurseState {
    /// What of the estimate was not taken yet.
    left: DiskAmount,
    /// What was taken last, of which nobody knows whether it is on the disk yet.
    step: DiskAmount,
}

impl Purse {
    /// Takes from this reservation of the estimate, which is on the disk of this path.
    pub fn new(hold: Hold, path: Option<PathBuf>, estimate: DiskAmount) -> Self {
        let state = PurseState { left: estimate, step: DiskAmount::default() };
        Self { hold: Arc::new(hold), path, estimate, state: Arc::new(Mutex::new(state)) }
    }

    /// One that pays for everything.
    pub fn bottomless() -> Self {
        Self::new(Hold { room: Room::new(100), id: 0 }, None, DiskAmount::default())
    }

    /// What was taken before is gone from the disk: all of it once more.
    pub fn begin_again(&self) {
        *self.state() = PurseState { left: self.estimate, step: DiskAmount::default() };
        self.reserve(self.estimate);
    }

    fn state(&self) -> MutexGuard<'_, PurseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserve(&self, amount: DiskAmount) {
        if let Some((_, left)) = self.hold.room.claims().all.get_mut(&self.hold.id) {
            *left = Unwritten::Amount(amount);
        }
    }

    /// Takes at least this much, and says how much. What was taken before of the same is on the disk by now. It blocks,
    /// shortly.
    pub fn take(&self, need: DiskAmount) -> Result<DiskAmount, Short> {
        let mut state = self.state();
        let whole = need.rounded_up(STEP);
        let step = if need.within(state.left) {
            let step = whole.min(state.left);
            self.fits(step, false).map(|()| step)
        } else {
            // Past the estimate: a whole step if it fits, else what is needed now.
            self.fits(whole, true).map(|()| whole).or_else(|_| self.fits(need, true).map(|()| need))
        }?;
        state.left = state.left.minus(step);
        state.step = step.or(state.step);
        self.reserve(state.left.plus(state.step));
        Ok(step)
    }

    /// Whether this much more may be written. What is reserved for it competes only with what is really on the disk.
    fn fits(&self, step: DiskAmount, beside_others: bool) -> Result<(), Short> {
        let room = &self.hold.room;
        let claims = room.claims();
        let Some(device) = claims.all.get(&self.hold.id).and_then(|(device, _)| *device) else { return Ok(()) };
        let others = if beside_others { claims.reserved(device, Some(self.hold.id)) } else { DiskAmount::default() };
        match self.path.as_deref().and_then(|path| (room.0.look)(path)) {
            Some(space) => fit(space, room.0.percent, others, step),
            None => Ok(()),
        }
    }

    /// Ends when the disk is fuller than it may be.
    pub async fn overflows(&self) -> Short {
        self.hold.room.overflows(self.path.as_deref()).await
    }

    /// Whether the disk is fuller than it may be now.
    pub async fn overflowed(&self) -> Option<Short> {
        self.hold.room.overflowed(self.path.as_deref()).await
    }
}

#[cfg(test)]
mod tests;

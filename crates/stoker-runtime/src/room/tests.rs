//! Several pulls on disks that only these tests have.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const MIB: u64 = 1 << 20;

/// Disks of 1000 MiB and 100,000 inodes of which 80 % may be used. The first part of a path is the disk.
#[derive(Clone, Default)]
struct Disks {
    used: Arc<AtomicU64>,
}

impl Disks {
    fn room(&self) -> Room {
        let used = self.used.clone();
        Room::looking(80, move |path| {
            let device = path.as_os_str().len() as u64;
            let used = used.load(Ordering::Relaxed);
            Some(Space { total: 1000 * MIB, free: 1000 * MIB - used, inodes: 100_000, free_inodes: 100_000, device })
        })
    }

    fn write(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn item(path: &str, mib: u64) -> (Option<PathBuf>, Unwritten) {
    (Some(path.into()), Unwritten::Amount(bytes(mib * MIB)))
}

fn bytes(bytes: u64) -> DiskAmount {
    DiskAmount { bytes, inodes: 0 }
}

#[test]
fn pulls_share_what_is_free() {
    let room = Disks::default().room();
    let first = room.reserve(vec![item("a", 300), item("a", 200)]).unwrap();
    let short = room.reserve(vec![item("a", 301)]).unwrap_err();
    assert!(short.later && short.reserved == 500 * MIB, "{short:?}");
    assert!(room.reserve(vec![item("bb", 700)]).is_ok(), "another disk");
    assert!(!room.reserve(vec![item("a", 801)]).unwrap_err().later, "it fits on no empty disk either");
    assert!(room.reserve(vec![item("a", 100), item("bb", 801)]).is_err());
    let second = room.reserve(vec![item("a", 300)]).unwrap();
    assert!(room.reserve(vec![item("a", 1)]).is_err(), "nothing of what was refused is reserved");
    drop(first);
    let third = room.reserve(vec![item("a", 500)]).unwrap();
    drop((second, third));
    assert!(room.reserve(vec![item("a", 800)]).is_ok(), "all of it is free again");
    assert!(room.reserve(vec![(None, Unwritten::Amount(bytes(u64::MAX)))]).is_ok(), "nobody sees that disk");
}

/// What has arrived on the disk is not counted once more as reserved.
#[test]
fn a_reservation_shrinks_as_its_bytes_arrive() {
    let disks = Disks::default();
    let room = disks.room();
    let arrived = Arc::new(AtomicU64::new(0));
    let counter = arrived.clone();
    let left = Unwritten::Counted(Box::new(move || 400 * MIB - counter.load(Ordering::Relaxed)));
    let _first = room.reserve(vec![(Some("a".into()), left)]).unwrap();
    for _ in 0..4 {
        assert!(room.reserve(vec![item("a", 400)]).is_ok());
        assert!(room.reserve(vec![item("a", 401)]).is_err());
        disks.write(100 * MIB);
        arrived.fetch_add(100 * MIB, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn who_waits_hears_of_an_end() {
    let room = Disks::default().room();
    let held = room.reserve(vec![item("a", 700)]).unwrap();
    let mut ends = room.ends();
    assert!(room.reserve(vec![item("a", 700)]).unwrap_err().later);
    drop(held);
    ends.changed().await.unwrap();
    assert!(room.reserve(vec![item("a", 700)]).is_ok());
}

fn purse(room: &Room, mib: u64) -> Purse {
    let estimate = DiskAmount { bytes: mib * MIB, inodes: 0 };
    let hold = room.reserve(vec![(Some("a".into()), Unwritten::Amount(estimate))]).unwrap().remove(0);
    Purse::new(hold, Some("a".into()), estimate)
}

/// Writes what it is given until there is no more, in pieces of this size; says how much.
fn bomb(disks: &Disks, purse: &Purse, piece: u64) -> (u64, Short) {
    let (mut written, mut granted) = (0, 0);
    loop {
        if granted < piece {
            match purse.take(bytes(piece - granted)) {
                Ok(more) => granted += more.bytes,
                Err(short) => return (written, short),
            }
        }
        granted -= piece;
        written += piece;
        disks.write(piece);
    }
}

#[test]
fn a_layer_that_never_ends_stops_at_the_limit() {
    for piece in [4096, MIB, 100 * MIB] {
        let disks = Disks::default();
        let room = disks.room();
        let (written, short) = bomb(&disks, &purse(&room, 50), piece);
        assert!(written <= 800 * MIB && written + piece > 783 * MIB, "{written} in pieces of {piece}");
        assert!(!short.later && short.free >= 200 * MIB, "{short:?}");
    }
}

#[test]
fn a_layer_takes_nothing_that_others_have_reserved() {
    let disks = Disks::default();
    let room = disks.room();
    let first = purse(&room, 50);
    let other = purse(&room, 600);
    let (written, short) = bomb(&disks, &first, MIB);
    assert!(written <= 200 * MIB && short.later, "{written}: {short:?}");
    // Its files are removed, and its estimate is reserved as before.
    disks.used.store(0, Ordering::Relaxed);
    first.begin_again();
    assert!(room.reserve(vec![item("a", 150)]).is_ok() && room.reserve(vec![item("a", 151)]).is_err());
    for _ in 0..600 / 16 {
        let taken = other.take(bytes(1)).unwrap();
        disks.write(taken.bytes);
    }
}

/// Somebody else fills the disk: what was reserved is not there any more.
#[test]
fn what_is_reserved_is_not_taken_where_the_disk_is_full() {
    let disks = Disks::default();
    let room = disks.room();
    let first = purse(&room, 100);
    first.take(bytes(1)).unwrap();
    disks.write(800 * MIB);
    assert!(!first.take(bytes(1)).unwrap_err().later);
}

#[test]
fn inodes_are_taken_like_bytes() {
    let room = Disks::default().room();
    let purse = purse(&room, 50);
    assert_eq!(purse.take(DiskAmount { bytes: 0, inodes: 1 }).unwrap(), DiskAmount { bytes: 0, inodes: 4096 });
    assert_eq!(purse.take(bytes(1)).unwrap(), bytes(16 * MIB), "inodes are not taken along");
    // Estimate and inodes are reserved all the same.
    assert!(room.reserve(vec![item("a", 750)]).is_ok() && room.reserve(vec![item("a", 751)]).is_err());
    let inodes = |inodes| vec![(Some("a".into()), Unwritten::Amount(DiskAmount { bytes: 0, inodes }))];
    assert!(room.reserve(inodes(75_904)).is_ok() && room.reserve(inodes(75_905)).is_err());
    assert!(purse.take(DiskAmount { bytes: 0, inodes: 80_001 }).is_err());
    assert!(Purse::bottomless().take(DiskAmount { bytes: u64::MAX, inodes: u64::MAX }).is_ok());
}

#[tokio::test]
async fn a_disk_that_somebody_else_fills_is_seen() {
    let disks = Disks::default();
    let room = disks.room();
    disks.write(800 * MIB);
    let short = room.overflows(Some(Path::new("a"))).await;
    assert_eq!((short.limit, short.later), (80, false));
}

#[tokio::test]
async fn a_disk_that_filled_between_two_looks_is_seen_at_the_end() {
    let disks = Disks::default();
    let room = disks.room();
    let hold = room.reserve(vec![item("a", 1)]).unwrap().remove(0);
    let purse = Purse::new(hold, Some("a".into()), bytes(MIB));
    assert!(purse.overflowed().await.is_none());
    disks.write(800 * MIB);
    assert_eq!(purse.overflowed().await.map(|short| short.limit), Some(80));
    assert!(Purse::bottomless().overflowed().await.is_none());
}

#[test]
fn a_disk_is_looked_at_more_often_when_it_is_nearly_full() {
    for (left, millis) in [(u64::MAX, 100), (1 << 30, 100), (200 * MIB, 48), (40 * MIB, 9), (MIB, 5), (0, 5)] {
        assert_eq!(pause_before(left), Duration::from_millis(millis), "{left}");
    }
}

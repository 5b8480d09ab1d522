//! Writing the journal anew: nothing is lost by it, at whatever step the process, the disk or the power goes.

use super::super::compact::beside;
use super::super::faulty::Faulty;
use super::{Journal, JournalError, KeptObjects, Rows, commit, open_hasty, state};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// So small that some commits make it worth writing anew.
const FLOOR: u64 = 1500;
const COMMITS: u64 = 40;

fn rows(number: u64) -> Rows {
    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let name = |step: u64| NAMES[((number * 7 + step) % 5) as usize];
    Rows::from([(name(0), Some(format!("{number}").repeat(20))), (name(2), None)])
}

/// Commits until one fails. Out: what was acknowledged, and that with the one that failed.
fn run(path: &Path, disk: &Arc<Faulty>) -> (KeptObjects, KeptObjects, Option<Journal>) {
    let (mut acknowledged, mut doubtful) = (KeptObjects::new(), KeptObjects::new());
    let Ok((mut journal, _)) = Journal::open_with(path, disk.clone(), FLOOR) else {
        return (acknowledged, doubtful, None);
    };
    for number in 1..=COMMITS {
        if commit(&mut journal, &rows(number), number, &mut doubtful).is_err() {
            break;
        }
        acknowledged = doubtful.clone();
        journal.tidy();
        // Sometimes at once, sometimes with writes between, as a slow disk would.
        if number % 3 == 0
            && let Some(running) = journal.compaction.take()
        {
            journal.settle(running);
        }
    }
    (acknowledged, doubtful, Some(journal))
}

/// Opens a copy of what is left and compares.
fn survives(name: &Path, left: Option<Vec<u8>>, beside_it: bool, states: &[&KeptObjects], what: &str) {
    match left {
        Some(bytes) => std::fs::write(name, bytes).unwrap(),
        None => assert!(states[0].is_empty(), "{what}: no journal, and something was acknowledged"),
    }
    if beside_it {
        std::fs::write(beside(name), "half of a snapshot").unwrap();
    }
    let (journal, contents) = open_hasty(name).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(states.contains(&&state(&contents)), "{what}: {:?} is none of {states:?}", state(&contents));
    assert!(!beside(name).exists(), "{what}: the half of a snapshot stays");
    journal.close();
    std::fs::remove_file(name).unwrap();
}

#[test]
fn no_step_loses_what_was_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    for room in 0.. {
        let home = dir.path().join(room.to_string());
        std::fs::create_dir(&home).unwrap();
        let path = home.join("journal");
        let disk = Faulty::new();
        disk.room.store(room, Ordering::SeqCst);
        let (acknowledged, doubtful, journal) = run(&path, &disk);
        // The files as they are at this moment, before anything is closed.
        let killed = std::fs::read(&path).ok();
        let states = [&acknowledged, &doubtful];
        let copy = home.join("copy");
        survives(&copy, killed, beside(&path).exists(), &states, &format!("killed at step {room}"));
        survives(&copy, disk.after_power_cut(), true, &states, &format!("no power at step {room}"));
        // With room again and closed as it should be, nothing doubtful is left.
        let whole = disk.room.swap(-1, Ordering::SeqCst) > 0;
        if let Some(journal) = journal {
            journal.close();
            assert!(!beside(&path).exists(), "step {room}");
            survives(&copy, std::fs::read(&path).ok(), false, &[&acknowledged], &format!("closed at step {room}"));
        }
        if whole {
            assert!(disk.renames.load(Ordering::SeqCst) > 3, "it was written anew more than once");
            return;
        }
    }
}

#[test]
fn it_shrinks_and_a_cut_in_what_came_after_still_opens() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let disk = Faulty::new();
    let (mut journal, _) = Journal::open_with(&path, disk.clone(), FLOOR).unwrap();
    let (mut now, mut number, mut largest) = (KeptObjects::new(), 0, 0);
    while disk.renames.load(Ordering::SeqCst) == 0 {
        number += 1;
        commit(&mut journal, &rows(number), number, &mut now).unwrap();
        largest = journal.end;
        journal.tidy();
    }
    assert!(journal.end < largest, "{} bytes, and {largest} before", journal.end);
    let second = Journal::open(&path).map(drop).unwrap_err();
    assert!(matches!(second, JournalError::InUse { .. }), "the new file is held as the old one was: {second}");

    let (settled, snapshot) = (now.clone(), journal.end);
    commit(&mut journal, &rows(1000), 1000, &mut now).unwrap();
    journal.close();
    let bytes = std::fs::read(&path).unwrap();
    let snapshot = snapshot as usize;
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let (_, contents) = open_hasty(&path).unwrap();
    assert_eq!((state(&contents), contents.dropped), (settled, (bytes.len() - 1 - snapshot) as u64));

    // A cut or a wrong byte in the snapshot itself: half of it was never a state.
    let header = super::super::frame::HEADER;
    let end = u64::from_le_bytes(bytes[12..20].try_into().unwrap()) as usize;
    for at in [header, header + 30, (header + end) / 2, end - 1] {
        let mut wrong = bytes.clone();
        wrong[at] ^= 1;
        for damaged in [&bytes[..at], &wrong] {
            std::fs::write(&path, damaged).unwrap();
            let error = open_hasty(&path).map(drop).unwrap_err();
            assert!(matches!(error, JournalError::Damaged { .. }), "{at}: {error}");
            assert!(error.to_string().contains("its snapshot"), "{error}");
        }
    }
}

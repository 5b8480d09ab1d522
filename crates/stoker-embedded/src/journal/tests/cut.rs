//! Files to which something happened: cut at every byte, one byte wrong anywhere. Whole writes before a cut are always there.

use super::{JournalError, KeptObjects, Rows, commit, open_hasty, state};
use proptest::prelude::*;
use std::io::Write as _;
use std::path::Path;

/// Names and values of one commit; no value removes.
fn commits() -> impl Strategy<Value = Vec<Rows>> {
    let name = prop::sample::select(vec!["a", "b", "c", "d"]);
    let rows = prop::collection::btree_map(name, prop::option::of("\\PC{0,20}"), 1..4);
    prop::collection::vec(rows, 1..6)
}

/// A file with these commits, and the state and the length after each, beginning with none.
fn written(path: &Path, commits: &[Rows]) -> (Vec<u8>, Vec<(KeptObjects, usize)>) {
    let (mut journal, _) = open_hasty(path).unwrap();
    let mut seen = vec![(KeptObjects::new(), journal.end as usize)];
    for (number, rows) in commits.iter().enumerate() {
        let mut now = seen[number].0.clone();
        commit(&mut journal, rows, number as u64 + 1, &mut now).unwrap();
        seen.push((now, journal.end as usize));
    }
    (std::fs::read(path).unwrap(), seen)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_cut_anywhere_opens_at_the_last_whole_write(commits in commits()) {
        let dir = tempfile::tempdir().unwrap();
        let (bytes, seen) = written(&dir.path().join("whole"), &commits);
        let cut = dir.path().join("cut");
        for offset in 0..=bytes.len() {
            std::fs::write(&cut, &bytes[..offset]).unwrap();
            let (mut journal, contents) = open_hasty(&cut).unwrap();
            let whole = seen.iter().rposition(|(_, end)| *end <= offset);
            let (wanted, end) = whole.map(|number| seen[number].clone()).unwrap_or_default();
            prop_assert_eq!(state(&contents), wanted.clone(), "cut at {}", offset);
            prop_assert_eq!(contents.revision, whole.unwrap_or(0) as u64);
            prop_assert_eq!(contents.dropped, (offset - end) as u64);
            // It goes on from there.
            let (mut next, rows) = (wanted, Rows::from([("z", Some("after".to_owned()))]));
            commit(&mut journal, &rows, 99, &mut next).unwrap();
            journal.close();
            let (_, again) = open_hasty(&cut).unwrap();
            prop_assert_eq!((state(&again), again.revision, again.dropped), (next, 99, 0));
        }
    }

    #[test]
    fn a_wrong_byte_in_the_last_write_drops_it_and_one_before_is_refused(commits in commits()) {
        let dir = tempfile::tempdir().unwrap();
        let (bytes, seen) = written(&dir.path().join("whole"), &commits);
        let bad = dir.path().join("bad");
        for at in seen[0].1..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x5a;
            std::fs::write(&bad, &wrong).unwrap();
            // The commit that this byte is of; `seen` has one more at its beginning.
            let number = seen.iter().position(|(_, end)| *end > at).unwrap();
            let (before, begin) = &seen[number - 1];
            if number == commits.len() {
                let (_, contents) = open_hasty(&bad).unwrap();
                prop_assert_eq!(&state(&contents), before, "wrong at {}", at);
                prop_assert_eq!(contents.dropped, (bytes.len() - begin) as u64);
                continue;
            }
            let error = open_hasty(&bad).map(drop).unwrap_err();
            let told = match &error {
                JournalError::Hole { at, next, revision, newest, .. } => (*at, *next, *revision, *newest),
                other => panic!("wrong at {at}: {other}"),
            };
            let last = commits.len() as u64;
            prop_assert_eq!(told, (*begin as u64, seen[number].1 as u64, number as u64 - 1, last));
            prop_assert_eq!(std::fs::read(&bad).unwrap(), wrong, "a file that is refused stays as it is");
            let text = error.to_string();
            let advice = format!("truncate -s {begin} '{}'", bad.display());
            prop_assert!(text.contains(&advice), "{}", text);
            // What the message says helps.
            std::fs::File::options().write(true).open(&bad).unwrap().set_len(*begin as u64).unwrap();
            prop_assert_eq!(&state(&open_hasty(&bad).unwrap().1), before);
        }
        for at in 0..seen[0].1 {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x5a;
            std::fs::write(&bad, &wrong).unwrap();
            prop_assert!(open_hasty(&bad).is_err(), "wrong at {}", at);
            prop_assert_eq!(std::fs::read(&bad).unwrap(), wrong);
        }
    }

    #[test]
    fn nothing_behind_the_header_makes_it_panic(tail in prop::collection::vec(any::<u8>(), 0..200), marked in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        open_hasty(&path).unwrap().0.close();
        let mut file = std::fs::File::options().append(true).open(&path).unwrap();
        if marked {
            file.write_all(&super::super::frame::MARKER).unwrap();
        }
        file.write_all(&tail).unwrap();
        let (_, contents) = open_hasty(&path).unwrap();
        prop_assert_eq!(contents.dropped as usize, tail.len() + if marked { 4 } else { 0 });
    }
}

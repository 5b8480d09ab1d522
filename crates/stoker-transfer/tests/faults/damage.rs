//! Files of the spool that change after they were checked: by a failing disk, by failing memory, by somebody's hand.

use std::os::unix::fs::FileExt as _;

use futures::StreamExt as _;
use stoker_testbed::registry::{Fault, On};
use stoker_transfer::TransferErrorKind;

use super::*;

/// Turns one bit of a file over.
fn flip(file: &Path, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[tokio::test]
async fn a_file_that_changed_after_its_check_is_fetched_again() {
    let bench = Bench::new().await;
    let first = bench.spool.blob(bench.source(), bench.descriptor());
    let file = first.complete().await.unwrap();
    assert!(!first.is_damaged().await.unwrap());
    flip(&file, 1_234_567);
    let other = bench.spool.blob(bench.source(), bench.descriptor());
    assert!(other.is_same_fetch(&first));
    assert!(first.is_damaged().await.unwrap());
    // Everyone who holds it is told, and none of them gets the file.
    assert_eq!(other.complete().await.unwrap_err().kind(), TransferErrorKind::DigestMismatch);
    assert_eq!(other.follow(0).next().await.unwrap().unwrap_err().kind(), TransferErrorKind::DigestMismatch);
    let next = bench.spool.blob(bench.source(), bench.descriptor());
    assert!(!next.is_same_fetch(&first));
    assert_eq!(std::fs::read(next.complete().await.unwrap()).unwrap(), bench.layer);
    assert_eq!((bench.sent(), first.progress().have()), (2 * SIZE as u64, 0));
}

#[tokio::test]
async fn a_doubt_that_was_wrong_costs_no_request() {
    let bench = Bench::new().await;
    let growing = bench.spool.blob(bench.source(), bench.descriptor());
    growing.complete().await.unwrap();
    assert!(!growing.is_damaged().await.unwrap());
    assert_eq!(growing.complete().await.map(|file| std::fs::read(file).unwrap()).unwrap(), bench.layer);
    assert_eq!(bench.registry.requests("/blobs/").len(), 1);
}

#[tokio::test]
async fn small_blobs_are_hashed_when_they_are_read() {
    let bench = Bench::new().await;
    let growing = bench.spool.blob(bench.source(), bench.descriptor());
    assert_eq!(growing.bytes().await.unwrap(), bench.layer);
    flip(&growing.complete().await.unwrap(), 0);
    assert_eq!(growing.bytes().await.unwrap_err().kind(), TransferErrorKind::DigestMismatch);
    assert_eq!(bench.spool.blob(bench.source(), bench.descriptor()).bytes().await.unwrap(), bench.layer);
    assert_eq!(bench.sent(), 2 * SIZE as u64);
}

#[tokio::test]
async fn a_file_that_was_removed_is_fetched_again() {
    let bench = Bench::new().await;
    let growing = bench.spool.blob(bench.source(), bench.descriptor());
    std::fs::remove_file(growing.complete().await.unwrap()).unwrap();
    assert!(growing.is_damaged().await.unwrap());
    assert_eq!(bench.fetch().await.unwrap(), bench.layer);
}

/// The part that an earlier fetch left is hashed before it is used; when it turns out wrong, the registry keeps its second
/// chance.
#[tokio::test]
async fn a_damaged_part_counts_against_nobody() {
    let bench = Bench::new().await;
    let name = bench.pushed.layers[0].trim_start_matches("sha256:");
    let part = bench.dir.path().join(format!("{name}.{SIZE}"));
    std::fs::write(&part, &bench.layer[..1_000_000]).unwrap();
    flip(&part, 10);
    // The rest, then all of it with a wrong byte, then all of it.
    bench.registry.fault(On::Blobs, 2, Fault::CorruptAt(5));
    assert_eq!(bench.fetch().await.unwrap(), bench.layer);
    assert_eq!(bench.ranges(), [Some("bytes=1000000-".to_owned()), None, None]);
}

//! One writer, many who wait; parts that outlive their fetch.

use futures::StreamExt;
use stoker_testbed::registry::{Fault, On};
use stoker_transfer::TransferErrorKind;

use super::*;

const HALF: u64 = 1_500_000;

/// Starts the fetch and waits until it is held in the middle.
async fn half(bench: &Bench) -> Growing {
    half_from(bench, bench.source()).await
}

async fn half_from(bench: &Bench, source: BlobSource) -> Growing {
    bench.registry.fault(On::Blobs, 1, Fault::StallAfter(HALF));
    let growing = bench.spool.blob(source, bench.descriptor());
    let progress = growing.progress();
    while progress.have() < HALF {
        progress.changed(progress.have()).await;
    }
    growing
}

#[tokio::test]
async fn a_restart_goes_on_where_the_last_process_stopped() {
    let mut bench = Bench::new().await;
    drop(half(&bench).await);
    bench.spool = open(bench.dir.path(), &bench.client);
    assert_eq!(bench.fetch().await.unwrap(), bench.layer);
    assert_eq!(bench.ranges(), vec![None, Some(format!("bytes={HALF}-"))]);
    assert_eq!(bench.sent(), SIZE as u64, "nothing came twice");
}

#[tokio::test]
async fn a_corrupt_part_of_an_earlier_process_is_found_out() {
    let bench = Bench::new().await;
    let name = bench.pushed.layers[0].trim_start_matches("sha256:");
    std::fs::write(bench.dir.path().join(format!("{name}.{SIZE}")), vec![0; 1_000_000]).unwrap();
    assert_eq!(bench.fetch().await.unwrap(), bench.layer);
    assert_eq!(bench.ranges(), vec![Some("bytes=1000000-".to_owned()), None]);
}

#[tokio::test]
async fn a_whole_file_of_an_earlier_process_needs_no_request() {
    let mut bench = Bench::new().await;
    bench.fetch().await.unwrap();
    bench.spool = open(bench.dir.path(), &bench.client);
    assert_eq!(bench.fetch().await.unwrap(), bench.layer);
    assert_eq!(bench.registry.requests("/blobs/").len(), 1);
}

#[tokio::test]
async fn two_handles_share_one_fetch_and_one_may_go() {
    let bench = Bench::new().await;
    let first = half(&bench).await;
    let second = bench.spool.blob(bench.source(), bench.descriptor());
    assert_eq!(second.progress().have(), first.progress().have());
    drop(first);
    bench.registry.let_go();
    let file = second.complete().await.unwrap();
    assert_eq!(std::fs::read(file).unwrap(), bench.layer);
    assert_eq!((bench.registry.requests("/blobs/").len(), bench.sent()), (1, SIZE as u64));
}

#[tokio::test]
async fn the_last_handle_that_goes_stops_the_fetch_and_the_part_stays() {
    let bench = Bench::new().await;
    drop(half(&bench).await);
    // The next one continues it, in the same spool, though the first may still have a write in hand.
    assert_eq!(bench.fetch().await.unwrap(), bench.layer);
    assert_eq!(bench.ranges(), vec![None, Some(format!("bytes={HALF}-"))]);
    assert_eq!(bench.sent(), SIZE as u64);
}

#[tokio::test]
async fn a_follower_reads_while_it_grows() {
    let bench = Bench::new().await;
    let growing = half(&bench).await;
    let mut follower = growing.follow(100);
    let mut read = Vec::new();
    while read.len() < HALF as usize - 100 {
        read.extend_from_slice(&follower.next().await.unwrap().unwrap());
    }
    assert_eq!(read, bench.layer[100..HALF as usize], "all that is there is read, before the rest came");
    drop(growing);
    bench.registry.let_go();
    while let Some(bytes) = follower.next().await {
        read.extend_from_slice(&bytes.unwrap());
    }
    assert_eq!(read, bench.layer[100..]);
    assert_eq!(bench.sent(), SIZE as u64);
}

#[tokio::test]
async fn a_follower_never_gets_the_end_of_a_corrupt_blob() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, usize::MAX, Fault::CorruptAt(SIZE as u64 - 1));
    let growing = half(&bench).await;
    let mut follower = growing.follow(0);
    let first = follower.next().await.unwrap().unwrap();
    bench.registry.let_go();
    let mut read = first.len();
    let error = loop {
        match follower.next().await.unwrap() {
            Ok(bytes) => read += bytes.len(),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), TransferErrorKind::DigestMismatch, "{error}");
    assert!(read < SIZE, "{read}");
    assert!(follower.next().await.is_none());
    assert_eq!(growing.complete().await.unwrap_err().kind(), TransferErrorKind::DigestMismatch);
}

#[tokio::test]
async fn a_second_caller_brings_a_second_way() {
    let bench = Bench::new().await;
    bench.registry.push("mirror/app", "v1", std::slice::from_ref(&bench.layer));
    let source = |name: &str| BlobSource::new(format!("{}/{name}:v1", bench.registry.host()).parse().unwrap(), None);
    let first = half_from(&bench, source("team/app")).await;
    let second = bench.spool.blob(source("mirror/app"), bench.descriptor());
    assert!(second.is_same_fetch(&first));
    // The first repository has it no more when the connection ends in the middle.
    bench.registry.fault(On::Path("/team/app/blobs/".into()), usize::MAX, Fault::Status(404, None));
    pass(2 * STALL).await;
    let file = second.complete().await.unwrap();
    assert_eq!(std::fs::read(file).unwrap(), bench.layer);
    assert_eq!(bench.registry.body_bytes("/mirror/app/blobs/"), SIZE as u64 - HALF);
    drop(first);
}

/// Whoever may ask mirrors alone is told nothing of who else wanted the blob.
#[tokio::test]
async fn a_fetch_leaves_a_registry_that_nobody_lets_it_ask_any_more() {
    let bench = Bench::new().await;
    let first = half(&bench).await;
    let mirrors = bench.spool.blob(bench.source().from_mirrors(true), bench.descriptor());
    assert!(mirrors.is_same_fetch(&first));
    // The same way as the first one: its end is not the end of this way.
    let same = bench.spool.blob(bench.source(), bench.descriptor());
    drop(first);
    assert!(tokio::time::timeout(Duration::from_millis(100), mirrors.complete()).await.is_err());
    drop(same);
    let error = mirrors.complete().await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::NotFound, "{error}");
    assert_eq!((bench.registry.requests("/blobs/").len(), bench.sent()), (1, HALF));
}

#[tokio::test]
async fn a_fetch_goes_on_from_the_next_source_when_the_first_one_is_gone() {
    let bench = Bench::new().await;
    bench.registry.push("mirror/app", "v1", std::slice::from_ref(&bench.layer));
    let other = BlobSource::new(format!("{}/mirror/app:v1", bench.registry.host()).parse().unwrap(), None);
    let first = half(&bench).await;
    let second = bench.spool.blob(other, bench.descriptor());
    drop(first);
    let file = second.complete().await.unwrap();
    assert_eq!(std::fs::read(file).unwrap(), bench.layer);
    assert_eq!(bench.registry.body_bytes("/mirror/app/blobs/"), SIZE as u64 - HALF, "at its byte");
}

#[tokio::test]
async fn a_registry_that_sends_nothing_does_not_hold_up_the_same_blob_of_another() {
    let bench = Bench::new().await;
    let other = testbed::Registry::start().await.unwrap();
    other.push("shop/app", "v1", std::slice::from_ref(&bench.layer));
    let stuck = half(&bench).await;
    let source = BlobSource::new(format!("{}/shop/app:v1", other.host()).parse().unwrap(), None);
    let file = bench.spool.blob(source, bench.descriptor()).complete().await.unwrap();
    assert_eq!(std::fs::read(file).unwrap(), bench.layer);
    assert_eq!(other.body_bytes("/blobs/"), SIZE as u64);
    bench.registry.let_go();
    stuck.complete().await.unwrap();
    bench.spool.release(&digest_of(&bench.pushed.layers[0])).await.unwrap();
    assert!(bench.spool.held().await.unwrap().is_empty(), "both files are found and go");
}

#[tokio::test]
async fn blobs_of_an_image_that_never_comes_leave_a_turn_to_others() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Path("/team/app/blobs/".into()), usize::MAX, Fault::StallAfter(10));
    let stuck: Vec<Growing> = (0..8)
        .map(|seed| {
            let digest = bench.registry.put_blob(testbed::noise(1_000, 100 + seed));
            bench.spool.blob(bench.source(), descriptor(&digest, 1_000))
        })
        .collect();
    bench.registry.wait_for(|seen| seen.iter().filter(|seen| seen.body_bytes == 10).count() == 4).await;
    let digest = bench.registry.put_blob(testbed::noise(1_000, 9));
    let source = BlobSource::new(format!("{}/shop/app:v1", bench.registry.host()).parse().unwrap(), None);
    bench.spool.blob(source, descriptor(&digest, 1_000)).complete().await.unwrap();
    drop(stuck);
}

/// The first image that wants a blob has no turn left for it, because its other blobs never come. The second one has.
#[tokio::test]
async fn a_blob_that_waits_for_a_turn_has_that_of_every_image_that_wants_it() {
    let bench = Bench::new().await;
    let stuck: Vec<Growing> = (0..4)
        .map(|seed| {
            let digest = bench.registry.put_blob(testbed::noise(1_000, 100 + seed));
            bench.registry.fault(On::Path(digest.clone()), usize::MAX, Fault::StallAfter(10));
            bench.spool.blob(bench.source(), descriptor(&digest, 1_000))
        })
        .collect();
    bench.registry.wait_for(|seen| seen.iter().filter(|seen| seen.body_bytes == 10).count() == 4).await;
    let digest = bench.registry.put_blob(testbed::noise(1_000, 9));
    let first = bench.spool.blob(bench.source(), descriptor(&digest, 1_000));
    // It waits by now: the fetch of another image has ended since.
    let shop = |name: &str| BlobSource::new(format!("{}/shop/{name}:v1", bench.registry.host()).parse().unwrap(), None);
    let other = bench.registry.put_blob(testbed::noise(1_000, 10));
    bench.spool.blob(shop("other"), descriptor(&other, 1_000)).complete().await.unwrap();
    assert_eq!(bench.registry.requests(&digest).len(), 0);
    let second = bench.spool.blob(shop("app"), descriptor(&digest, 1_000));
    assert!(second.is_same_fetch(&first));
    // Before the others are asked again, which would give their turns away.
    tokio::time::timeout(STALL / 2, second.complete()).await.unwrap().unwrap();
    drop(stuck);
}

#[tokio::test]
async fn a_failed_fetch_can_be_started_again() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, 1, Fault::Status(404, None));
    let failed = bench.spool.blob(bench.source(), bench.descriptor());
    failed.complete().await.unwrap_err();
    assert_eq!(bench.fetch().await.unwrap(), bench.layer);
}

#[tokio::test]
async fn a_released_blob_is_gone_and_a_running_one_is_not() {
    let bench = Bench::new().await;
    let digest = digest_of(&bench.pushed.layers[0]);
    let growing = half(&bench).await;
    bench.spool.release(&digest).await.unwrap();
    bench.registry.let_go();
    let file = growing.complete().await.unwrap();
    bench.spool.release(&digest).await.unwrap();
    assert!(!file.exists());
    assert!(bench.spool.held().await.unwrap().is_empty());
    assert_eq!(bench.fetch().await.unwrap(), bench.layer, "and can be fetched again");
}

#[tokio::test]
async fn blobs_wait_for_their_turn() {
    let bench = Bench::new().await;
    let settings = SpoolSettings { concurrency: 1, ..SpoolSettings::default() };
    let spool = Spool::open(bench.dir.path().join("one"), bench.client.clone(), settings).unwrap();
    bench.registry.fault(On::Blobs, 1, Fault::StallAfter(10));
    let first = spool.blob(bench.source(), bench.descriptor());
    bench.registry.wait_for(|seen| seen.iter().any(|seen| seen.body_bytes == 10)).await;
    let config = descriptor(&bench.pushed.config, 77);
    let second = spool.blob(bench.source(), config);
    tokio::task::yield_now().await;
    assert_eq!(bench.registry.requests("/blobs/").len(), 1);
    drop(first);
    let _ = second.complete().await;
    assert!(bench.registry.requests(&bench.pushed.config).len() == 1);
}

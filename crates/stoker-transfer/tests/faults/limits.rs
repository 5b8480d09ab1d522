//! Limits of bytes, while they run. Times are only ever "not sooner than": a busy machine makes none of these fail.

use std::sync::Arc;
use std::time::Instant;

use stoker_testbed::registry::{Fault, On};
use stoker_transfer::Pace;

use super::*;

/// Four blobs of a quarter of a MiB, each with a handle.
fn four(bench: &Bench, source: &BlobSource) -> Vec<Growing> {
    let blob = |seed| {
        let bytes = testbed::noise(256 * 1024, seed);
        let digest = bench.registry.put_blob(bytes);
        bench.spool.blob(source.clone(), descriptor(&digest, 256 * 1024))
    };
    (100..104).map(blob).collect()
}

async fn all(blobs: Vec<Growing>) {
    for blob in blobs {
        blob.complete().await.unwrap();
    }
}

#[tokio::test]
async fn blobs_together_are_not_faster_than_the_spool_may_be() {
    let bench = Bench::new().await;
    bench.spool.pace().set(Some(1024 * 1024));
    let start = Instant::now();
    all(four(&bench, &bench.source())).await;
    assert!(start.elapsed() >= Duration::from_millis(900), "1 MiB at 1 MiB a second: {:?}", start.elapsed());
    assert_eq!((bench.sent(), bench.registry.requests("/blobs/").len()), (1024 * 1024, 4));
}

#[tokio::test]
async fn the_stricter_of_spool_and_job_counts_and_other_jobs_do_not_wait() {
    let bench = Bench::new().await;
    bench.spool.pace().set(Some(1 << 40));
    let job = Arc::new(Pace::new(1));
    let slow = four(&bench, &bench.source().paced(job.clone()));
    bench.registry.wait_for(|seen| seen.len() == 4).await;
    bench.spool.set_concurrency(5);
    assert_eq!(bench.fetch().await.unwrap(), bench.layer, "the job next to it is as fast as it can");
    assert!(slow.iter().all(|blob| blob.throttled() && blob.progress().have() < 256 * 1024));
    // Would take days, if those who wait did not notice.
    job.set(None);
    all(slow).await;
    assert_eq!(bench.sent(), SIZE as u64 + 1024 * 1024, "nothing came twice");
}

#[tokio::test]
async fn a_limit_that_comes_later_holds_and_one_that_goes_lets_go() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, 1, Fault::StallAfter(500_000));
    let growing = bench.spool.blob(bench.source(), bench.descriptor());
    assert!(!growing.throttled());
    bench.registry.wait_for_bytes("/blobs/", 500_000).await;
    bench.spool.pace().set(Some(1));
    bench.registry.let_go();
    assert!(growing.throttled());
    bench.spool.pace().set(None);
    growing.complete().await.unwrap();
    assert!(!growing.throttled(), "nothing holds back what is there");
    assert_eq!(bench.sent(), SIZE as u64);
}

#[tokio::test]
async fn our_own_waiting_is_no_stall_of_the_registry() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, 1, Fault::StallAfter(10_000));
    bench.spool.pace().set(Some(1));
    let growing = bench.spool.blob(bench.source(), bench.descriptor());
    growing.progress().changed(0).await;
    // Of the hours that its bytes cost, more than the silence that we take for a stall; then a silence that is the
    // registry's, and short.
    pass(2 * STALL).await;
    bench.spool.pace().set(None);
    pass(STALL / 2).await;
    bench.registry.let_go();
    growing.complete().await.unwrap();
    assert_eq!((bench.ranges(), bench.sent()), (vec![None], SIZE as u64), "nothing was asked for again");
}

#[tokio::test]
async fn who_shares_a_blob_with_others_is_not_held_back_by_their_limit() {
    let bench = Bench::new().await;
    let slow = bench.spool.blob(bench.source().paced(Arc::new(Pace::new(1))), bench.descriptor());
    came(&slow, 1).await;
    let name = format!("{}/shop/app:v1", bench.registry.host());
    let fast = bench.spool.blob(BlobSource::new(name.parse().unwrap(), None), bench.descriptor());
    assert!(fast.is_same_fetch(&slow) && !slow.throttled());
    fast.complete().await.unwrap();
    assert_eq!(bench.sent(), SIZE as u64, "nothing came twice");
}

//! What can happen to the bytes of a blob.

use stoker_testbed::registry::{Fault, On};
use stoker_transfer::TransferErrorKind;

use super::*;

#[tokio::test]
async fn a_blob_is_fetched_once_and_checked() {
    let bench = Bench::new().await;
    assert_eq!(bench.fetch().await.unwrap(), bench.layer);
    assert_eq!((bench.sent(), bench.ranges()), (SIZE as u64, vec![None]));
}

#[tokio::test]
async fn cut_connections_are_resumed_and_nothing_comes_twice() {
    let bench = Bench::new().await;
    // More cuts than tries in a row: each brought something new, so patience starts over.
    bench.registry.fault(On::Blobs, 5, Fault::CutAfter(500_000));
    let growing = bench.spool.blob(bench.source(), bench.descriptor());
    let file = growing.complete().await.unwrap();
    assert_eq!(std::fs::read(file).unwrap(), bench.layer);
    assert_eq!(bench.sent(), SIZE as u64, "no byte left the registry twice");
    let from = |n: u64| (n > 0).then(|| format!("bytes={}-", n * 500_000));
    assert_eq!(bench.ranges(), (0..6).map(from).collect::<Vec<_>>());
    assert_eq!((growing.progress().have(), growing.progress().upstream()), (SIZE as u64, SIZE as u64));
}

#[tokio::test]
async fn cuts_without_a_new_byte_end_it() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, usize::MAX, Fault::CutAfter(0));
    let error = bench.fetch().await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::Unreachable, "{error}");
    assert!(error.is_retryable());
    assert_eq!((bench.registry.requests("/blobs/").len(), bench.sent()), (3, 0));
}

#[tokio::test]
async fn a_server_without_ranges_sends_again_but_nothing_is_written_twice() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, usize::MAX, Fault::IgnoreRange);
    bench.registry.fault(On::Blobs, 1, Fault::CutAfter(1_000_000));
    let growing = bench.spool.blob(bench.source(), bench.descriptor());
    let file = growing.complete().await.unwrap();
    assert_eq!(std::fs::read(file).unwrap(), bench.layer);
    assert_eq!(bench.sent(), 1_000_000 + SIZE as u64);
    assert_eq!(growing.progress().upstream(), 1_000_000 + SIZE as u64);
    assert_eq!(growing.progress().have(), SIZE as u64);
}

#[tokio::test]
async fn a_server_without_ranges_that_always_cuts_is_given_up() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, usize::MAX, Fault::IgnoreRange);
    bench.registry.fault(On::Blobs, usize::MAX, Fault::CutAfter(100_000));
    let error = bench.fetch().await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::Unreachable, "{error}");
    // The first try brought something, so patience began there: it, and two more that brought nothing new.
    assert_eq!(bench.sent(), 3 * 100_000);
}

#[tokio::test]
async fn a_corrupt_byte_is_fetched_again_once() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, 1, Fault::CorruptAt(1_234_567));
    assert_eq!(bench.fetch().await.unwrap(), bench.layer);
    assert_eq!((bench.sent(), bench.ranges()), (2 * SIZE as u64, vec![None, None]));
}

#[tokio::test]
async fn a_blob_that_stays_corrupt_is_a_clear_failure() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, usize::MAX, Fault::CorruptAt(0));
    let error = bench.fetch().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (TransferErrorKind::DigestMismatch, false));
    assert!(error.to_string().contains(&bench.pushed.layers[0]), "{error}");
    assert_eq!(bench.sent(), 2 * SIZE as u64);
}

#[tokio::test]
async fn a_stall_is_noticed_and_resumed() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, 1, Fault::StallAfter(700_000));
    let growing = bench.spool.blob(bench.source(), bench.descriptor());
    came(&growing, 700_000).await;
    pass(STALL).await;
    let file = growing.complete().await.unwrap();
    assert_eq!(std::fs::read(file).unwrap(), bench.layer);
    assert_eq!(bench.sent(), SIZE as u64);
    assert_eq!(bench.ranges(), vec![None, Some("bytes=700000-".to_owned())]);
}

#[tokio::test]
async fn a_stall_that_lasts_is_a_failure() {
    let bench = Bench::new().await;
    // The same first byte each time: it shows that the answer has begun, and brings nothing new.
    bench.registry.fault(On::Blobs, usize::MAX, Fault::IgnoreRange);
    bench.registry.fault(On::Blobs, usize::MAX, Fault::StallAfter(1));
    let growing = bench.spool.blob(bench.source(), bench.descriptor());
    for tries in 1..=3 {
        came(&growing, tries).await;
        pass(STALL).await;
    }
    let error = growing.complete().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (TransferErrorKind::Stalled, true));
    assert_eq!((bench.registry.requests("/blobs/").len(), bench.sent()), (3, 3));
}

#[tokio::test]
async fn a_missing_blob_is_not_asked_for_again() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, usize::MAX, Fault::Status(404, None));
    let error = bench.fetch().await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (TransferErrorKind::NotFound, false));
    assert_eq!(bench.registry.requests("/blobs/").len(), 1);
}

#[tokio::test]
async fn a_failing_server_is_tried_again() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, 2, Fault::Status(502, None));
    assert_eq!(bench.fetch().await.unwrap(), bench.layer);
    assert_eq!(bench.registry.requests("/blobs/").len(), 3);
}

#[tokio::test]
async fn retry_after_is_honoured() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, 1, Fault::Status(429, Some("1".into())));
    let start = std::time::Instant::now();
    assert_eq!(bench.fetch().await.unwrap(), bench.layer);
    assert!(start.elapsed() >= Duration::from_secs(1), "it came back before it was asked to");
    assert_eq!((bench.registry.requests("/blobs/").len(), bench.sent() > SIZE as u64), (2, true));
}

#[tokio::test]
async fn a_retry_after_that_is_too_long_is_told() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, usize::MAX, Fault::Status(429, Some("3600".into())));
    let error = bench.fetch().await.unwrap_err();
    assert_eq!((error.kind(), error.retry_after()), (TransferErrorKind::RateLimited, Some(Duration::from_secs(3600))));
    assert!(error.is_retryable());
    assert_eq!(bench.registry.requests("/blobs/").len(), 1);
}

#[tokio::test]
async fn a_wrong_content_range_is_refused() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, usize::MAX, Fault::WrongContentRange);
    let error = bench.fetch().await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::InvalidContent, "{error}");
    assert_eq!(bench.registry.requests("/blobs/").len(), 1);
    assert_eq!(bench.held().await, vec![(digest_of(&bench.pushed.layers[0]), 0)]);
}

#[tokio::test]
async fn a_declared_length_that_is_too_long_is_refused_at_once() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, usize::MAX, Fault::Longer { by: 1, declared: true });
    let error = bench.fetch().await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::InvalidContent, "{error}");
    assert_eq!(bench.registry.requests("/blobs/").len(), 1);
    assert_eq!(bench.held().await, vec![(digest_of(&bench.pushed.layers[0]), 0)]);
}

#[tokio::test]
async fn a_body_that_does_not_end_is_refused() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, usize::MAX, Fault::Longer { by: 10_000_000, declared: false });
    let error = bench.fetch().await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::InvalidContent, "{error}");
    assert_eq!(bench.registry.requests("/blobs/").len(), 1);
    let held = bench.held().await;
    assert!(held[0].1 <= SIZE as u64, "{held:?}");
}

#[tokio::test]
async fn a_length_that_is_too_short_is_a_cut() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, 1, Fault::ShorterBy(1000));
    assert_eq!(bench.fetch().await.unwrap(), bench.layer);
    assert_eq!(bench.sent(), SIZE as u64);
    assert_eq!(bench.ranges(), vec![None, Some(format!("bytes={}-", SIZE - 1000))]);
}

#[tokio::test]
async fn a_manifest_that_lies_about_a_size_does_not_get_the_blob() {
    let bench = Bench::new().await;
    // Too long a size: the server has no more bytes to give.
    let long = descriptor(&bench.pushed.layers[0], SIZE as u64 + 1);
    let error = bench.spool.blob(bench.source(), long).complete().await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::Server, "{error}");
    // Too short a size: the server would send more.
    let short = descriptor(&bench.pushed.layers[0], SIZE as u64 - 1);
    let error = bench.spool.blob(bench.source(), short).complete().await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::InvalidContent, "{error}");
    assert_eq!(bench.fetch().await.unwrap(), bench.layer);
}

//! The trouble of a running transfer, as its reader sees it.

use stoker_testbed::registry::{Fault, On};
use stoker_transfer::{Progress, Pulse, TransferErrorKind, TransferTrouble};

use super::*;

/// Waits until the client has seen the trouble that the registry made.
async fn trouble(mut read: impl FnMut() -> Option<TransferTrouble>) -> TransferTrouble {
    loop {
        if let Some(trouble) = read() {
            return trouble;
        }
        tokio::task::yield_now().await;
    }
}

async fn have(progress: &Progress, bytes: u64) {
    while progress.have() < bytes {
        progress.changed(progress.have()).await;
    }
}

#[tokio::test]
async fn a_stall_is_reported_while_it_lasts() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, 1, Fault::StallAfter(700_000));
    let growing = bench.spool.blob(bench.source(), bench.descriptor());
    have(&growing.progress(), 700_000).await;
    pass(STALL / 2).await;
    let stalled = growing.progress().trouble().unwrap();
    assert_eq!(
        (stalled.kind, &stalled.text),
        (TransferErrorKind::Stalled, &format!("{} sends nothing", bench.registry.host()))
    );
    assert!(stalled.lasts >= STALL / 2 && stalled.lasts < STALL, "{stalled:?}");
    pass(STALL).await;
    growing.complete().await.unwrap();
    assert_eq!(growing.progress().trouble(), None);
}

#[tokio::test]
async fn an_error_is_reported_until_bytes_arrive() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, 1, Fault::Status(503, Some("50".into())));
    bench.registry.fault(On::Blobs, 2, Fault::StallAfter(1_000_000));
    let growing = bench.spool.blob(bench.source(), bench.descriptor());
    let progress = growing.progress();
    let failed = trouble(|| progress.trouble()).await;
    assert_eq!(
        (failed.kind, failed.text),
        (TransferErrorKind::Server, format!("{} answered 503", bench.registry.host()))
    );
    pass(Duration::from_secs(50)).await;
    have(&progress, 1_000_000).await;
    // On a very slow machine the host may have been silent for long enough again.
    assert!(
        progress.trouble().is_none_or(|trouble| trouble.kind == TransferErrorKind::Stalled),
        "{:?}",
        progress.trouble()
    );
    bench.registry.let_go();
    growing.complete().await.unwrap();
    assert_eq!(progress.trouble(), None);
}

#[tokio::test]
async fn a_bandwidth_limit_is_no_trouble() {
    let bench = Bench::new().await;
    bench.spool.pace().set(Some(1));
    let growing = bench.spool.blob(bench.source(), bench.descriptor());
    have(&growing.progress(), 1).await;
    pass(2 * STALL).await;
    assert_eq!(growing.progress().trouble(), None);
    bench.spool.pace().set(None);
    growing.complete().await.unwrap();
}

#[tokio::test]
async fn the_retry_of_a_tag_is_reported_too() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Heads, 1, Fault::Status(503, Some("50".into())));
    let (pulse, image) = (Pulse::default(), bench.image());
    let client = bench.client.watched(&pulse);
    let asking = tokio::spawn(async move { client.resolve(&image, None).await });
    let failed = trouble(|| pulse.trouble()).await;
    assert_eq!(failed.text, format!("{} answered 503", bench.registry.host()));
    pass(Duration::from_secs(50)).await;
    asking.await.unwrap().unwrap();
    assert_eq!(pulse.trouble(), None);
}

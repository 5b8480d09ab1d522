//! Blobs that stay in the spool for others, with a real spool.

use std::sync::Arc;
use std::time::Duration;

use stoker_runtime::{Layout, Runtime};
use stoker_testbed::registry as testbed;
use stoker_transfer::{BlobSource, Descriptor, MediaType, Registry, Spool, SpoolSettings};

use super::Lingering;
use crate::leftovers::Leftovers;
use crate::pull::Uses;
use crate::pulls::PullNotes;
use crate::testing::at;

/// What is left in a spool with one blob, which nothing here needs and others may want for this long.
async fn spooled(linger: Duration) -> (Leftovers, Descriptor, tempfile::TempDir) {
    let (dir, server) = (tempfile::tempdir().unwrap(), testbed::Registry::start().await.unwrap());
    let layer = testbed::noise(1000, 1);
    let pushed = server.push("team/app", "v1", std::slice::from_ref(&layer));
    let registry = Registry::new(stoker_transfer::Settings::default()).unwrap();
    let spool = Spool::open(dir.path().join("spool"), registry, SpoolSettings::default()).unwrap();
    let blob =
        Descriptor::new(MediaType::ImageLayer, 1000u64, pushed.layers[0].parse::<stoker_transfer::Digest>().unwrap());
    let source = BlobSource::new(format!("{}/team/app:v1", server.host()).parse().unwrap(), None);
    spool.blob(source, blob.clone()).complete().await.unwrap();
    let leftovers = Leftovers {
        clock: Arc::new(|| at(i64::from(u32::MAX))),
        spool,
        runtime: Runtime::Layout(Layout::open(dir.path().join("images")).unwrap()),
        uses: Arc::new(Uses::default()),
        pulls: Arc::new(PullNotes::open(dir.path().join("pulls"))),
        // Without the linger it would be too old.
        age: Duration::ZERO,
        lingering: Lingering::new(linger),
        turn: Arc::default(),
    };
    leftovers.release(blob.digest()).await.unwrap();
    (leftovers, blob, dir)
}

#[tokio::test]
async fn what_lingers_stays_until_the_disk_is_needed() {
    let (leftovers, blob, _dir) = spooled(Duration::from_secs(300)).await;
    leftovers.sweep().await.unwrap();
    leftovers.let_go().await;
    assert!(leftovers.spool.whole(&blob).await.is_some());
    assert!(leftovers.clear().await, "there was something to remove");
    assert!(leftovers.spool.whole(&blob).await.is_none() && leftovers.spool.held().await.unwrap().is_empty());
    assert!(!leftovers.lingering.has(blob.digest()));
}

#[tokio::test]
async fn what_lingered_long_enough_goes_unless_it_is_needed_again() {
    let (leftovers, blob, _dir) = spooled(Duration::ZERO).await;
    let hand = leftovers.uses.take(blob.digest());
    leftovers.let_go().await;
    assert!(leftovers.spool.whole(&blob).await.is_some(), "an attempt has it in hand");
    drop(hand);
    leftovers.release(blob.digest()).await.unwrap();
    leftovers.let_go().await;
    assert!(leftovers.spool.whole(&blob).await.is_none());
}

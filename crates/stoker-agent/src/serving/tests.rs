//! Blobs that stay in the spool for others, and names by which images are served, with a real spool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stoker_core::model::{Ask, Key, Order, Pin};
use stoker_core::step::begin;
use stoker_runtime::{Layout, Runtime};
use stoker_testbed::registry as testbed;
use stoker_transfer::peer::{ServedPart, Shelf as _, ticket_subject};
use stoker_transfer::{BlobSource, Descriptor, MediaType, Platform, Registry, Spool, SpoolSettings};

use super::{Lingering, ServedImages};
use crate::leftovers::Leftovers;
use crate::pull::Uses;
use crate::pulls::PullNotes;
use crate::testing::{at, order};

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

#[tokio::test]
async fn documents_open_the_name_of_their_order_and_no_other_name_of_the_same_digest() {
    let (dir, server) = (tempfile::tempdir().unwrap(), testbed::Registry::start().await.unwrap());
    let pushed = server.push("team/app", "v1", &[testbed::noise(1000, 1)]);
    let registry = Registry::new(stoker_transfer::Settings::default()).unwrap();
    let (name, root) = (format!("{}/team/app:v1", server.host()), pushed.manifest.parse().unwrap());
    let image = registry.image(&name.parse().unwrap(), &root, &Platform::host(), None).await.unwrap();
    let spool = Spool::open(dir.path().join("spool"), registry, SpoolSettings::default()).unwrap();
    let runtime = Runtime::Layout(Layout::open(dir.path().join("images")).unwrap());
    let served = ServedImages::of(spool, runtime, Platform::host(), Lingering::default(), Duration::from_secs(300));
    let document = async |name: &str| served.find(&ticket_subject(name, &root), &root).await;

    // The attempt has asked which digest the tag means, and the loop does not know that yet.
    served.documents(&name, &image);
    assert!(matches!(document(&name).await, ServedPart::Bytes(_)));
    let open = |image: &str| {
        let ask = Ask::Fetch(Some(Pin::new(at(0), pushed.manifest.clone())));
        let order = Order { image: image.into(), ask, ..order() };
        (Key::of(image), (begin(&order, 1, None, at(0)), order))
    };
    let (tasks, orders): (BTreeMap<_, _>, BTreeMap<_, _>) = [name.as_str(), "registry.evil/x:v1"]
        .map(open)
        .into_iter()
        .map(|(key, (task, order))| ((key, task), (key, order)))
        .unzip();
    served.set_orders(&orders, &tasks);
    served.documents(&name, &image);
    assert!(matches!(document(&name).await, ServedPart::Bytes(_)));
    assert!(
        matches!(document("registry.evil/x:v1").await, ServedPart::Expected),
        "it has not given this node anything"
    );
    assert!(matches!(document("registry.evil/y:v1").await, ServedPart::Nothing), "nobody ordered that");
}

//! Answers that a proxy compressed on the way, and connections that a wrong length spoiled.

use stoker_testbed::registry::{Fault, On};
use stoker_transfer::{Platform, PlatformImage, TransferErrorKind};

use super::auth::bearer;
use super::*;

async fn image(bench: &Bench) -> Result<PlatformImage, Error> {
    let platform: Platform = "linux/amd64".parse().unwrap();
    bench.client.image(&bench.image(), &digest_of(&bench.pushed.manifest), &platform, None).await
}

/// A bench with a layer that is smaller when it is packed.
async fn empty() -> Bench {
    let mut bench = Bench::new().await;
    bench.layer = [vec![0; SIZE], b"end".to_vec()].concat().into();
    bench.pushed = bench.registry.push("team/app", "v1", std::slice::from_ref(&bench.layer));
    bench
}

#[tokio::test]
async fn tags_manifests_and_tokens_are_unpacked() {
    let bench = Bench::new().await;
    bench.registry.protect(bearer(None, 1000));
    bench.registry.fault(On::Path("/".into()), usize::MAX, Fault::Gzip);
    let root = bench.client.resolve(&bench.image(), None).await.unwrap();
    assert_eq!(
        (root.digest().to_string(), root.size()),
        (bench.pushed.manifest.clone(), bench.pushed.bytes.len() as u64)
    );
    assert_eq!(image(&bench).await.unwrap().documents[0].bytes, bench.pushed.bytes);
}

#[tokio::test]
async fn an_explanation_is_unpacked() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Manifests, 1, Fault::Explain(403, r#"{"errors":[{"message":"over quota"}]}"#.into()));
    bench.registry.fault(On::Manifests, 1, Fault::Gzip);
    let error = image(&bench).await.unwrap_err();
    assert!(error.to_string().contains("over quota"), "{error}");
}

#[tokio::test]
async fn a_blob_is_unpacked_whether_that_makes_it_longer_or_shorter() {
    for bench in [Bench::new().await, empty().await] {
        bench.registry.fault(On::Blobs, usize::MAX, Fault::Gzip);
        let growing = bench.spool.blob(bench.source(), bench.descriptor());
        let file = growing.complete().await.unwrap();
        assert!(std::fs::read(file).unwrap() == bench.layer);
        assert_eq!(growing.progress().have(), bench.layer.len() as u64);
        assert_eq!(growing.progress().upstream(), bench.sent(), "what came over the wire is counted");
    }
}

#[tokio::test]
async fn a_packed_blob_that_is_cut_goes_on_without_a_range() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, usize::MAX, Fault::Gzip);
    bench.registry.fault(On::Blobs, 2, Fault::CutAfter(1_000_000));
    assert!(bench.fetch().await.unwrap() == bench.layer);
    assert_eq!(bench.ranges(), [None, None, None], "a range of the packed bytes would be of no use");
}

#[tokio::test]
async fn a_part_of_an_earlier_process_is_kept_when_somebody_compresses_the_rest() {
    let mut bench = Bench::new().await;
    bench.registry.fault(On::Blobs, 1, Fault::StallAfter(1_000_000));
    let growing = bench.spool.blob(bench.source(), bench.descriptor());
    while growing.progress().have() < 1_000_000 {
        growing.progress().changed(growing.progress().have()).await;
    }
    drop(growing);
    bench.spool = open(bench.dir.path(), &bench.client);
    bench.registry.fault(On::Blobs, usize::MAX, Fault::Gzip);
    assert!(bench.fetch().await.unwrap() == bench.layer);
    assert_eq!(bench.ranges(), [None, Some("bytes=1000000-".to_owned()), None]);
}

#[tokio::test]
async fn what_is_too_large_when_unpacked_is_refused() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Manifests, 1, Fault::Serve(vec![b' '; 64 << 20].into()));
    bench.registry.fault(On::Manifests, 1, Fault::Gzip);
    assert_eq!(image(&bench).await.unwrap_err().kind(), TransferErrorKind::TooLarge);

    let bomb = Bytes::from(vec![0; 64 << 20]);
    let digest = bench.registry.put_blob(bomb);
    bench.registry.fault(On::Blobs, usize::MAX, Fault::Gzip);
    let error = bench.spool.blob(bench.source(), descriptor(&digest, 1 << 20)).complete().await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::InvalidContent, "{error}");
    let held = bench.held().await;
    assert!(held.iter().all(|(_, bytes)| *bytes <= 1 << 20), "{held:?}");
}

#[tokio::test]
async fn a_label_that_is_wrong_does_no_harm() {
    for label in ["gzip", "br"] {
        let bench = Bench::new().await;
        bench.registry.fault(On::Blobs, usize::MAX, Fault::Header("Content-Encoding", label.into()));
        bench.registry.fault(On::Blobs, 1, Fault::CutAfter(1_000_000));
        assert!(bench.fetch().await.unwrap() == bench.layer);
        assert_eq!(bench.ranges(), [None, Some("bytes=1000000-".to_owned())], "the bytes are those of the blob");
    }
    let bench = Bench::new().await;
    bench.registry.fault(On::Manifests, 1, Fault::Header("Content-Encoding", "gzip".into()));
    assert_eq!(image(&bench).await.unwrap().documents[0].bytes, bench.pushed.bytes);
    bench.registry.fault(On::Manifests, 1, Fault::Header("Content-Encoding", "br".into()));
    let error = image(&bench).await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::InvalidContent);
    assert!(error.to_string().contains("compressed as br"), "{error}");
}

#[tokio::test]
async fn a_connection_whose_answer_was_too_short_is_not_used_again() {
    let bench = Bench::new().await;
    // The rest of the first body would be taken for the head of the second answer.
    bench.registry.fault(On::Blobs, 1, Fault::LateTail(1000));
    assert!(bench.fetch().await.unwrap() == bench.layer);
    let connections: Vec<_> = bench.registry.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 1]);

    let bench = Bench::new().await;
    bench.registry.fault(On::Manifests, 1, Fault::LateTail(10));
    image(&bench).await.unwrap();
    let connections: Vec<_> = bench.registry.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 1]);
}

#[tokio::test]
async fn a_connection_whose_answer_was_right_is_used_again() {
    let bench = Bench::new().await;
    bench.client.resolve(&bench.image(), None).await.unwrap();
    image(&bench).await.unwrap();
    image(&bench).await.unwrap();
    assert!(bench.registry.seen().iter().all(|seen| seen.connection == 0), "{:?}", bench.registry.seen());
}

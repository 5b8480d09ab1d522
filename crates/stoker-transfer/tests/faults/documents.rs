//! What can happen to tags, manifests and indexes.

use stoker_testbed::registry::{Fault, INDEX, MANIFEST, On, digest};
use stoker_transfer::{Platform, PlatformImage, TransferErrorKind};

use super::*;

async fn image(bench: &Bench, digest: &str) -> Result<PlatformImage, Error> {
    let platform: Platform = "linux/amd64".parse().unwrap();
    bench.client.image(&bench.image(), &digest_of(digest), &platform, None).await
}

#[tokio::test]
async fn a_tag_becomes_a_digest_by_a_head_alone() {
    let bench = Bench::new().await;
    let root = bench.client.resolve(&bench.image(), None).await.unwrap();
    assert_eq!(root.digest().to_string(), bench.pushed.manifest);
    assert_eq!((root.media_type().as_ref(), root.size()), (MANIFEST, bench.pushed.bytes.len() as u64));
    let seen = bench.registry.seen();
    assert_eq!(seen.iter().map(|seen| seen.method.as_str()).collect::<Vec<_>>(), ["HEAD"]);
    assert_eq!(bench.registry.body_bytes(""), 0);
}

#[tokio::test]
async fn a_head_that_tells_nothing_is_followed_by_a_get() {
    for fault in [Fault::SayNothing, Fault::SayDigest(String::new()), Fault::Status(405, None)] {
        let bench = Bench::new().await;
        bench.registry.fault(On::Heads, usize::MAX, fault);
        let root = bench.client.resolve(&bench.image(), None).await.unwrap();
        assert_eq!(root.digest().to_string(), bench.pushed.manifest);
        assert_eq!(bench.registry.body_bytes("/manifests/"), bench.pushed.bytes.len() as u64);
    }
}

#[tokio::test]
async fn an_image_is_its_documents_and_blobs() {
    let bench = Bench::new().await;
    let image = image(&bench, &bench.pushed.manifest).await.unwrap();
    assert_eq!(image.root.digest().to_string(), bench.pushed.manifest);
    assert_eq!(image.documents.len(), 1);
    assert_eq!(image.documents[0].bytes, bench.pushed.bytes);
    let blobs: Vec<_> = image.blobs().map(|blob| blob.digest().to_string()).collect();
    assert_eq!(blobs, [bench.pushed.config.clone(), bench.pushed.layers[0].clone()]);
    assert_eq!(image.total_size(), SIZE as u64 + image.config.size());
}

#[tokio::test]
async fn an_index_leads_to_this_platform() {
    let bench = Bench::new().await;
    let arm = bench.registry.push("team/app", "arm", &[Bytes::from_static(b"arm")]);
    let entries = [
        (arm.manifest.as_str(), arm.bytes.len(), MANIFEST, "linux/arm64"),
        (bench.pushed.manifest.as_str(), bench.pushed.bytes.len(), MANIFEST, "linux/amd64"),
    ];
    let index = bench.registry.put_index("team/app", "multi", &entries);
    let found = image(&bench, &index).await.unwrap();
    assert_eq!(found.root.digest().to_string(), index);
    assert_eq!(found.documents.len(), 2);
    assert_eq!(found.documents[1].descriptor.digest().to_string(), bench.pushed.manifest);
    assert_eq!(bench.registry.requests(&arm.manifest).len(), 0, "the other platform is not asked for");

    let platform: Platform = "linux/s390x".parse().unwrap();
    let error = bench.client.image(&bench.image(), &digest_of(&index), &platform, None).await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::PlatformMissing);
    assert!(error.to_string().contains("linux/amd64, linux/arm64"), "{error}");
}

#[tokio::test]
async fn an_index_may_hold_an_index_but_no_deeper() {
    let bench = Bench::new().await;
    let size = |index: &str| bench.registry.requests(index).len();
    let wrap = |tag: &str, inner: &str, length: usize, media_type: &str| {
        let index = bench.registry.put_index("team/app", tag, &[(inner, length, media_type, "linux/amd64")]);
        let json = serde_json::json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [{
            "mediaType": media_type, "digest": inner, "size": length,
            "platform": {"os": "linux", "architecture": "amd64"}}]});
        (index, json.to_string().len())
    };
    let (one, length) = wrap("one", &bench.pushed.manifest, bench.pushed.bytes.len(), MANIFEST);
    let (two, length) = wrap("two", &one, length, INDEX);
    let (three, _) = wrap("three", &two, length, INDEX);
    assert_eq!(image(&bench, &two).await.unwrap().documents.len(), 3);
    let error = image(&bench, &three).await.unwrap_err();
    assert_eq!(error.kind(), TransferErrorKind::TooLarge);
    assert!(error.to_string().contains("more than 2 indexes inside one another"), "{error}");
    assert_eq!(size(&bench.pushed.manifest), 1, "the third level was never opened");
}

#[tokio::test]
async fn a_missing_tag_is_not_found() {
    let bench = Bench::new().await;
    let image: Reference = format!("{}/team/app:nope", bench.registry.host()).parse().unwrap();
    let error = bench.client.resolve(&image, None).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (TransferErrorKind::NotFound, false));
    assert!(error.to_string().contains("team/app:nope"), "{error}");
    assert_eq!(bench.registry.seen().len(), 2, "the HEAD, and a GET that may say why");
}

#[tokio::test]
async fn a_wrong_digest_is_found_out() {
    let bench = Bench::new().await;
    // A tag whose digest is of nothing that the registry has.
    bench.registry.fault(On::Heads, usize::MAX, Fault::SayDigest(digest(b"else")));
    let root = bench.client.resolve(&bench.image(), None).await.unwrap();
    assert_eq!(image(&bench, root.digest().as_ref()).await.unwrap_err().kind(), TransferErrorKind::NotFound);

    // Other bytes under the right digest.
    bench.registry.fault(On::Manifests, 2, Fault::Serve(Bytes::from_static(b"{\"schemaVersion\":2,\"layers\":[]}")));
    let error = image(&bench, &bench.pushed.manifest).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (TransferErrorKind::DigestMismatch, false));

    // A pinned reference, and a registry that answers with another digest.
    let pinned: Reference = format!("{}/team/app@{}", bench.registry.host(), bench.pushed.manifest).parse().unwrap();
    assert_eq!(bench.client.resolve(&pinned, None).await.unwrap_err().kind(), TransferErrorKind::DigestMismatch);

    // A tag whose bytes do not match the server's own header.
    bench.registry.fault(On::Heads, usize::MAX, Fault::Status(405, None));
    bench.registry.fault(On::Manifests, 2, Fault::SayDigest(digest(b"else")));
    assert_eq!(bench.client.resolve(&bench.image(), None).await.unwrap_err().kind(), TransferErrorKind::DigestMismatch);
}

#[tokio::test]
async fn a_manifest_that_is_corrupt_once_is_fetched_again() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Manifests, 1, Fault::Serve(Bytes::from_static(b"{}")));
    assert_eq!(image(&bench, &bench.pushed.manifest).await.unwrap().documents[0].bytes, bench.pushed.bytes);
    assert_eq!(bench.registry.seen().len(), 2);

    bench.registry.fault(On::Manifests, usize::MAX, Fault::Serve(Bytes::from_static(b"{}")));
    let error = image(&bench, &bench.pushed.manifest).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (TransferErrorKind::DigestMismatch, false));
    assert!(error.to_string().contains("twice in a row"), "{error}");
    assert_eq!(bench.registry.seen().len(), 4);
}

#[tokio::test]
async fn an_oversized_manifest_is_refused_declared_or_not() {
    // Several times what the kernel's buffers take, which is beyond our reach.
    let huge = Bytes::from(vec![0; 128 << 20]);
    for declared in [true, false] {
        let bench = Bench::new().await;
        bench.registry.fault(On::Manifests, usize::MAX, Fault::Serve(huge.clone()));
        bench.registry.fault(On::Manifests, usize::MAX, Fault::Longer { by: 0, declared });
        let error = image(&bench, &bench.pushed.manifest).await.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (TransferErrorKind::TooLarge, false));
        let has = if declared { "134217728 bytes, and the limit" } else { "more than 4 MiB, which is the limit" };
        assert!(error.to_string().contains(has), "{error}");
        assert_eq!(bench.registry.seen().len(), 1);
        let sent = bench.registry.body_bytes("/manifests/");
        assert!(sent < 96 << 20, "{sent}");
    }
    let bench = Bench::new().await;
    bench.registry.fault(On::Heads, usize::MAX, Fault::Longer { by: 5 << 20, declared: true });
    assert_eq!(bench.client.resolve(&bench.image(), None).await.unwrap_err().kind(), TransferErrorKind::TooLarge);
}

#[tokio::test]
async fn a_manifest_of_schema_1_gets_its_own_advice() {
    let bench = Bench::new().await;
    let old = "application/vnd.docker.distribution.manifest.v1+prettyjws";
    let text = r#"{"schemaVersion":1,"name":"team/old","tag":"v1","fsLayers":[],"history":[],"signatures":[]}"#;
    let digest = bench.registry.put_manifest("team/app", Some("old"), old, text);
    let tag: Reference = format!("{}/team/app:old", bench.registry.host()).parse().unwrap();
    for error in [bench.client.resolve(&tag, None).await.unwrap_err(), image(&bench, &digest).await.unwrap_err()] {
        assert_eq!((error.kind(), error.is_retryable()), (TransferErrorKind::InvalidContent, false));
        assert!(
            error.to_string().contains("schema 1") && error.to_string().contains("push the image again"),
            "{error}"
        );
        assert!(!error.to_string().contains("proxy"), "nobody in between did it: {error}");
    }
}

#[tokio::test]
async fn digests_other_than_sha256_get_their_own_advice() {
    let bench = Bench::new().await;
    let long = format!("sha512:{}", "ab".repeat(64));
    let layers = format!(
        r#"{{"schemaVersion":2,"config":{{"mediaType":"x","digest":"{}","size":1}},"layers":[{{"mediaType":"x","digest":"{long}","size":1}}]}}"#,
        bench.pushed.config
    );
    let layers = bench.registry.put_manifest("team/app", None, MANIFEST, layers);
    let index = bench.registry.put_index("team/app", "long", &[(&long, 7, MANIFEST, "linux/amd64")]);
    for digest in [layers, index] {
        let error = image(&bench, &digest).await.unwrap_err();
        assert_eq!((error.kind(), error.is_retryable()), (TransferErrorKind::InvalidContent, false));
        assert!(error.to_string().contains("sha256 digests only"), "{error}");
        assert!(!error.to_string().contains("proxy"), "nobody in between did it: {error}");
    }
}

#[tokio::test]
async fn cut_and_failing_manifests_are_tried_again() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Manifests, 1, Fault::CutAfter(10));
    assert!(image(&bench, &bench.pushed.manifest).await.is_ok());
    bench.registry.fault(On::Manifests, 2, Fault::Status(503, Some("0".into())));
    assert!(image(&bench, &bench.pushed.manifest).await.is_ok());
    bench.registry.fault(On::Heads, 1, Fault::Status(429, Some("0".into())));
    assert!(bench.client.resolve(&bench.image(), None).await.is_ok());

    bench.registry.fault(On::Manifests, usize::MAX, Fault::Status(500, None));
    let before = bench.registry.seen().len();
    assert_eq!(image(&bench, &bench.pushed.manifest).await.unwrap_err().kind(), TransferErrorKind::Server);
    assert_eq!(bench.registry.seen().len() - before, 3);
}

#[tokio::test]
async fn a_registry_that_is_not_there_is_unreachable() {
    let (_nobody, host) = nobody();
    let image: Reference = format!("{host}/team/app:v1").parse().unwrap();
    let error = Registry::new(settings()).unwrap().resolve(&image, None).await.unwrap_err();
    assert_eq!((error.kind(), error.is_retryable()), (TransferErrorKind::Unreachable, true));
}

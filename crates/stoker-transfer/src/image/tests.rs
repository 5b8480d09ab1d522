//! Documents as registries serve them, and as nobody should.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn digest(n: usize) -> String {
    format!("sha256:{n:064x}")
}

fn manifest(layers: usize) -> Value {
    let layer = |n| json!({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest(n), "size": 7});
    json!({
        "schemaVersion": 2,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(0), "size": 7},
        "layers": (1..=layers).map(layer).collect::<Vec<_>>(),
    })
}

fn index(platforms: &[Option<&str>]) -> Value {
    let entry = |(n, platform): (usize, &Option<&str>)| {
        let mut entry =
            json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest(n), "size": 7});
        if let Some(platform) = platform {
            let parts: Vec<&str> = platform.split('/').collect();
            entry["platform"] = json!({"os": parts[0], "architecture": parts[1], "variant": parts.get(2)});
        }
        entry
    };
    json!({"schemaVersion": 2, "manifests": platforms.iter().enumerate().map(entry).collect::<Vec<_>>()})
}

fn read(value: &Value) -> Result<(MediaType, ParsedDocument), Bad> {
    parse(&serde_json::to_vec(value).unwrap(), None)
}

fn image(value: &Value) -> Result<PlatformImage, Bad> {
    let ParsedDocument::Manifest(manifest) = read(value)?.1 else { panic!("an index") };
    let descriptor = manifest.config().clone();
    PlatformImage::new(vec![Document { descriptor, bytes: Bytes::new() }], *manifest)
}

fn chosen(platforms: &[Option<&str>], platform: &str) -> Result<String, Bad> {
    let ParsedDocument::Index(index) = read(&index(platforms))?.1 else { panic!("a manifest") };
    choose(&index, &platform.parse().unwrap()).map(|entry| entry.digest().to_string())
}

#[test]
fn blobs_come_once_and_in_order() {
    let mut value = manifest(3);
    value["layers"][2]["digest"] = json!(digest(1));
    let image = image(&value).unwrap();
    let blobs: Vec<_> = image.blobs().map(|blob| blob.digest().to_string()).collect();
    assert_eq!(blobs, [digest(0), digest(1), digest(2)]);
    assert_eq!((image.layers.len(), image.total_size()), (3, 21));
}

#[test]
fn bounds_are_named() {
    assert!(image(&manifest(500)).is_ok());
    assert!(matches!(image(&manifest(501)), Err(Bad::Bound(Bound::Layers(501)))));
    assert!(read(&index(&vec![None; 1000])).is_ok());
    assert!(matches!(read(&index(&vec![None; 1001])), Err(Bad::Bound(Bound::Entries(1001)))));
}

#[test]
fn sizes_that_no_image_has_are_refused_by_name() {
    const TIB: u64 = 1 << 40;
    let sized = |sizes: &[u64]| {
        let mut value = manifest(sizes.len());
        for (at, size) in sizes.iter().enumerate() {
            value["layers"][at]["size"] = json!(size);
        }
        image(&value)
    };
    assert_eq!(sized(&[TIB, TIB, TIB, TIB - 7]).unwrap().total_size(), 4 * TIB);
    for (sizes, says) in [
        // Sums of these wrap around to small numbers.
        (vec![u64::MAX, 2], "has 18446744073709551615 bytes, and the limit for a layer is 1 TiB"),
        (vec![7, TIB + 1], "0002 has 1099511627777 bytes, and the limit for a layer is 1 TiB"),
        // More than an integer of the API server holds.
        (vec![1 << 63, 1], "has 9223372036854775808 bytes, and the limit for a layer is 1 TiB"),
        (vec![TIB; 5], "have 5497558138887 bytes together, and the limit is 4 TiB"),
    ] {
        let Err(Bad::Bound(bound)) = sized(&sizes) else { panic!("{sizes:?} is taken") };
        assert!(bound.to_string().contains(says) && bound.to_string().contains("; push the image"), "{bound}");
    }
    // One layer again and again is fetched once, and unpacked each time.
    let mut value = manifest(500);
    for at in 0..500 {
        (value["layers"][at]["digest"], value["layers"][at]["size"]) = (json!(digest(1)), json!(TIB));
    }
    assert!(matches!(image(&value), Err(Bad::Bound(Bound::Image(_)))));
}

#[test]
fn documents_of_two_minds_are_refused() {
    let mut both = manifest(1);
    both["manifests"] = json!([]);
    assert!(matches!(read(&both), Err(Bad::Content(_))));

    let mut lying = manifest(1);
    lying["mediaType"] = json!("application/vnd.oci.image.index.v1+json");
    assert!(matches!(read(&lying), Err(Bad::Content(_))));

    let mut old = manifest(1);
    old["schemaVersion"] = json!(1);
    assert!(matches!(read(&old), Err(Bad::Schema1)));

    let mut two_sizes = manifest(2);
    two_sizes["layers"][1] = two_sizes["layers"][0].clone();
    two_sizes["layers"][1]["size"] = json!(8);
    assert!(matches!(image(&two_sizes), Err(Bad::Content(_))));

    let mut sha512 = manifest(1);
    sha512["layers"][0]["digest"] = json!(format!("sha512:{}", "0".repeat(128)));
    assert!(matches!(image(&sha512), Err(Bad::Algorithm(_))));
}

#[test]
fn the_type_is_taken_from_the_document_first() {
    let docker = MediaType::from(DOCKER_MANIFEST);
    let bytes = serde_json::to_vec(&manifest(1)).unwrap();
    assert_eq!(parse(&bytes, Some(&docker)).unwrap().0, docker);
    assert_eq!(parse(&bytes, Some(&MediaType::ImageIndex)).unwrap().0, MediaType::ImageManifest);
    let mut own = manifest(1);
    own["mediaType"] = json!(DOCKER_MANIFEST);
    assert_eq!(parse(&serde_json::to_vec(&own).unwrap(), Some(&MediaType::ImageManifest)).unwrap().0, docker);
}

#[test]
fn the_best_platform_wins() {
    let many = [Some("linux/arm/v6"), Some("linux/arm/v7"), Some("linux/amd64"), Some("unknown/unknown")];
    assert_eq!(chosen(&many, "linux/arm/v7").unwrap(), digest(1));
    assert_eq!(chosen(&many, "linux/arm64").unwrap(), digest(1));
    assert_eq!(chosen(&many, "linux/amd64").unwrap(), digest(2));
    assert_eq!(chosen(&[None], "linux/amd64").unwrap(), digest(0));
    let Err(Bad::Platform { offered, .. }) = chosen(&many, "linux/s390x") else { panic!("chosen") };
    assert_eq!(offered, "linux/amd64, linux/arm/v6, linux/arm/v7, unknown/unknown");
    assert!(chosen(&[None, None], "linux/amd64").is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(&bytes, None);
    }

    #[test]
    fn a_damaged_manifest_is_read_without_panic(at in 0usize..400, with in any::<u8>(), cut in 0usize..400) {
        let mut bytes = serde_json::to_vec(&manifest(2)).unwrap();
        let length = bytes.len();
        bytes[at % length] = with;
        bytes.truncate(length - cut % length);
        if let Ok((_, ParsedDocument::Manifest(manifest))) = parse(&bytes, None) {
            let descriptor = manifest.config().clone();
            let _ = PlatformImage::new(vec![Document { descriptor, bytes: Bytes::new() }], *manifest);
        }
    }

    #[test]
    fn depth_is_bounded(depth in 0usize..2000) {
        let text = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        prop_assert!(parse(text.as_bytes(), None).is_err());
    }
}

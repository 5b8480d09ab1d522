use std::io::Read as _;

use super::*;

fn unpack(layer: &Layer) -> Vec<u8> {
    let mut tar = Vec::new();
    match layer.compression {
        Compression::None => tar.extend_from_slice(&layer.bytes),
        Compression::Gzip => {
            flate2::read::GzDecoder::new(&layer.bytes[..]).read_to_end(&mut tar).unwrap();
        }
        Compression::Zstd | Compression::ZstdWide => tar = zstd::decode_all(&layer.bytes[..]).unwrap(),
    }
    tar
}

#[test]
fn every_compression_has_the_same_diff_and_its_own_digest() {
    let builder = LayerBuilder::new().text("a", 100_000, 1).noise("b", 1000, 1);
    let layers = [Compression::None, Compression::Gzip, Compression::Zstd].map(|kind| builder.build(kind).unwrap());
    for layer in &layers {
        assert_eq!(digest(&unpack(layer)), layer.diff_id);
        assert_eq!(digest(&layer.bytes), layer.digest);
        assert_eq!(layer.diff_id, layers[0].diff_id);
    }
    assert_eq!(layers[0].diff_id, layers[0].digest);
    assert!(layers[1].digest != layers[2].digest);
}

#[test]
fn noise_stays_as_large_as_it_is_and_text_does_not() {
    let size = |builder: LayerBuilder| builder.build(Compression::Gzip).unwrap().bytes.len();
    assert!(size(LayerBuilder::new().noise("a", 1 << 20, 7)) > 1 << 20);
    let text = size(LayerBuilder::new().text("a", 1 << 20, 7));
    assert!((1 << 17..1 << 19).contains(&text), "{text}");
}

#[test]
fn entries_are_as_they_were_told() {
    let layer = LayerBuilder::new()
        .file("/etc/app", "x")
        .mode(0o4750)
        .owner(10, 20)
        .mtime(99)
        .xattr("user.note", b"hi")
        .whiteout("etc/old")
        .opaque("var")
        .symlink("link", "etc/app")
        .hard_link("hard", "/etc/app");
    let tar = unpack(&layer.build(Compression::Gzip).unwrap());
    let mut archive = tar::Archive::new(&tar[..]);
    let mut seen = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let xattrs: Vec<_> = entry.pax_extensions().unwrap().into_iter().flatten().flatten().collect();
        let xattrs: Vec<_> =
            xattrs.iter().map(|pair| (pair.key().unwrap().to_owned(), pair.value().unwrap().to_owned())).collect();
        let header = entry.header().clone();
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        seen.push(format!(
            "{path} {:o} {}:{} {} {:?} {xattrs:?}",
            header.mode().unwrap(),
            header.uid().unwrap(),
            header.gid().unwrap(),
            header.mtime().unwrap(),
            header.link_name().unwrap().unwrap_or_default()
        ));
    }
    let expected = [
        r#"etc/app 4750 10:20 99 "" [("SCHILY.xattr.user.note", "hi")]"#,
        r#"etc/.wh.old 644 0:0 1767225600 "" []"#,
        r#"var/.wh..wh..opq 644 0:0 1767225600 "" []"#,
        r#"link 777 0:0 1767225600 "etc/app" []"#,
        r#"hard 644 0:0 1767225600 "etc/app" []"#,
    ];
    assert_eq!(seen, expected);
}

#[test]
fn documents_name_what_is_there() {
    let layer = LayerBuilder::new().file("a", "a").build(Compression::Zstd).unwrap();
    let amd = ImageBuilder::new().flavor(Flavor::Docker).layer(&layer).architecture("amd64").build();
    let arm = ImageBuilder::new().layer(&layer).architecture("arm64").build();
    let manifest: Value = serde_json::from_slice(&amd.root.bytes).unwrap();
    assert_eq!(manifest["layers"][0]["mediaType"], "application/vnd.docker.image.rootfs.diff.tar.zstd");
    assert_eq!(manifest["layers"][0]["digest"], layer.digest.as_str());
    assert_eq!(manifest["config"]["digest"], amd.configs[0].digest.as_str());
    let config: Value = serde_json::from_slice(&amd.configs[0].bytes).unwrap();
    assert_eq!(config["rootfs"]["diff_ids"], json!([layer.diff_id]));
    let both = Image::index(Flavor::Oci, &[amd.clone(), arm.clone()]);
    let index: Value = serde_json::from_slice(&both.root.bytes).unwrap();
    assert_eq!(index["manifests"][1]["platform"], json!({"os": "linux", "architecture": "arm64"}));
    assert_eq!(index["manifests"][0]["digest"], amd.digest());
    assert_eq!((both.manifests.len(), both.configs.len()), (2, 2));
}

//! A store on a real disk, read by ourselves and by skopeo.

// Helpers of tests may unwrap as the tests themselves do; clippy's exception sees only the latter.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use oci_spec::image::{Descriptor, Digest, MediaType};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use stoker_runtime::layout::{Error, StoredImage};
use stoker_runtime::{Care, Layout, Stored};
use tempfile::TempDir;

mod damage;

const NAME: &str = "registry.example.com/team/app:v1";

fn digest(bytes: &[u8]) -> Digest {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}").parse().unwrap()
}

/// Puts bytes into the store and gives the JSON descriptor.
async fn put(layout: &Layout, media_type: &str, bytes: &[u8]) -> Value {
    layout.put(&digest(bytes), bytes.to_vec()).await.unwrap();
    json!({"mediaType": media_type, "digest": digest(bytes).to_string(), "size": bytes.len()})
}

fn descriptor(value: &Value) -> Descriptor {
    serde_json::from_value(value.clone()).unwrap()
}

/// An image of one layer; gives the manifest's descriptor and the layer's digest.
async fn image(layout: &Layout, architecture: &str) -> (Value, Digest) {
    let config = json!({"architecture": architecture, "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [digest(b"layer").to_string()]}});
    let config = put(layout, MediaType::ImageConfig.as_ref(), config.to_string().as_bytes()).await;
    let layer = put(layout, MediaType::ImageLayer.as_ref(), b"layer").await;
    let manifest = json!({"schemaVersion": 2, "mediaType": MediaType::ImageManifest.as_ref(),
        "config": config, "layers": [layer]});
    (put(layout, MediaType::ImageManifest.as_ref(), manifest.to_string().as_bytes()).await, digest(b"layer"))
}

/// An index of this machine's platform and one whose blobs are not there.
async fn multi(layout: &Layout) -> Value {
    let here = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let (mut entry, _) = image(layout, here).await;
    entry["platform"] = json!({"os": "linux", "architecture": here});
    let missing = json!({"mediaType": MediaType::ImageManifest.as_ref(), "digest": digest(b"missing").to_string(),
        "size": 7, "platform": {"os": "linux", "architecture": "s390x"}});
    let index = json!({"schemaVersion": 2, "mediaType": MediaType::ImageIndex.as_ref(), "manifests": [missing, entry]});
    put(layout, MediaType::ImageIndex.as_ref(), index.to_string().as_bytes()).await
}

/// What the store says of the image, having hashed it.
async fn find(layout: &Layout, name: &str) -> Stored<StoredImage> {
    layout.find(name, Care::Hashed).await.unwrap()
}

async fn has(layout: &Layout, digest: &Digest, size: u64) -> bool {
    layout.blob(digest, size, Care::Hashed).await.unwrap() == Stored::Whole(())
}

fn blob(layout: &Layout, digest: &Digest) -> std::path::PathBuf {
    layout.dir().join("blobs/sha256").join(digest.digest())
}

#[tokio::test]
async fn an_image_is_there_while_all_its_blobs_are() {
    let dir = TempDir::new().unwrap();
    let layout = Layout::open(dir.path()).unwrap();
    assert_eq!(find(&layout, NAME).await, Stored::Missing);
    let (manifest, layer) = image(&layout, "amd64").await;
    layout.record(NAME, descriptor(&manifest)).await.unwrap();

    let again = Layout::open(dir.path()).unwrap();
    let found = find(&again, NAME).await.whole().unwrap();
    assert_eq!(found.root.digest(), descriptor(&manifest).digest());
    assert_eq!(again.names().await.unwrap(), [NAME]);
    assert_eq!(find(&again, "registry.example.com/team/app:v2").await, Stored::Missing);

    assert!(has(&again, &layer, 5).await && !has(&again, &layer, 6).await);
    fs::write(blob(&again, &layer), "laye").unwrap();
    assert_eq!(find(&again, NAME).await, Stored::Missing, "a short blob is not the blob");
    fs::remove_file(blob(&again, &layer)).unwrap();
    assert_eq!(find(&again, NAME).await, Stored::Missing);
    again.put(&layer, b"layer".to_vec()).await.unwrap();
    assert!(find(&again, NAME).await.whole().is_some());
    again.remove(NAME).await.unwrap();
    assert_eq!(find(&again, NAME).await, Stored::Missing);
}

#[tokio::test]
async fn an_index_is_there_with_one_of_its_platforms() {
    let dir = TempDir::new().unwrap();
    let layout = Layout::open(dir.path()).unwrap();
    let index = multi(&layout).await;
    layout.record(NAME, descriptor(&index)).await.unwrap();
    assert_eq!(find(&layout, NAME).await.whole().unwrap().root.digest(), descriptor(&index).digest());
    fs::remove_file(blob(&layout, &digest(b"layer"))).unwrap();
    assert_eq!(find(&layout, NAME).await, Stored::Missing);
}

#[tokio::test]
async fn a_name_moves_and_others_stay() {
    let dir = TempDir::new().unwrap();
    let layout = Layout::open(dir.path()).unwrap();
    let (first, _) = image(&layout, "amd64").await;
    let (second, _) = image(&layout, "arm64").await;
    layout.record(NAME, descriptor(&first)).await.unwrap();
    layout.record("other:v1", descriptor(&first)).await.unwrap();
    layout.record(NAME, descriptor(&second)).await.unwrap();
    assert_eq!(layout.names().await.unwrap(), ["other:v1", NAME]);
    assert_eq!(find(&layout, NAME).await.whole().unwrap().root.digest(), descriptor(&second).digest());
}

#[tokio::test]
async fn many_records_at_once_lose_nothing() {
    let dir = TempDir::new().unwrap();
    let layout = Layout::open(dir.path()).unwrap();
    let (manifest, _) = image(&layout, "amd64").await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..20 {
        // Each with a handle of its own: only the lock on disk is shared, as between processes.
        let (layout, root) = (Layout::open(dir.path()).unwrap(), descriptor(&manifest));
        tasks.spawn(async move { layout.record(&format!("app:{n}"), root).await });
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap().unwrap();
    }
    assert_eq!(layout.names().await.unwrap().len(), 20);
    let left = fs::read_dir(dir.path())
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".tmp-"));
    assert_eq!(left.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_images_with_one_layer_may_bring_it_in_at_once() {
    let (dir, spool) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let layout = Layout::open(dir.path()).unwrap();
    for round in 0..200 {
        let bytes = format!("layer {round}").into_bytes();
        let file = spool.path().join("spooled");
        fs::write(&file, &bytes).unwrap();
        let digest = digest(&bytes);
        let all = (0..4).map(|_| {
            let (layout, digest, file) = (layout.clone(), digest.clone(), file.clone());
            tokio::spawn(async move { layout.adopt(&digest, &file).await })
        });
        for adopted in futures::future::join_all(all).await {
            adopted.unwrap().unwrap();
        }
        assert!(has(&layout, &digest, bytes.len() as u64).await && !file.exists());
    }
}

#[tokio::test]
async fn a_right_file_is_moved_in() {
    let (dir, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let layout = Layout::open(dir.path().join("store")).unwrap();
    let adopt = async |from: &Path| {
        let file = from.join("spooled");
        fs::write(&file, "bytes").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        layout.adopt(&digest(b"bytes"), &file).await.unwrap();
        assert!(!file.exists());
        assert_eq!(fs::read(blob(&layout, &digest(b"bytes"))).unwrap(), b"bytes");
    };
    adopt(other.path()).await;
    // The spool is for nobody else; the store is for whoever may read its directory.
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    let stored = blob(&layout, &digest(b"bytes"));
    assert_eq!(mode(&stored) & 0o777, mode(stored.parent().unwrap()) & 0o444 | 0o600);
    adopt(other.path()).await;
    // The second of two pulls that shared the file finds it moved already.
    layout.adopt(&digest(b"bytes"), &other.path().join("spooled")).await.unwrap();
    let error = layout.adopt(&digest(b"none"), &other.path().join("none")).await.unwrap_err();
    assert!(matches!(error, Error::Gone { .. }), "{error}");
}

#[tokio::test]
async fn a_file_of_another_filesystem_is_copied_in() {
    let shm = Path::new("/dev/shm");
    let dir = TempDir::new().unwrap();
    let device = |path: &Path| fs::metadata(path).map(|meta| std::os::unix::fs::MetadataExt::dev(&meta));
    if device(shm).ok().is_none_or(|there| there == device(dir.path()).unwrap()) {
        println!("SKIPPED: no second filesystem to copy from");
        return;
    }
    let Ok(other) = TempDir::new_in(shm) else {
        println!("SKIPPED: the second filesystem is not writable");
        return;
    };
    let layout = Layout::open(dir.path()).unwrap();
    let bytes = vec![7; 9 * 1024 * 1024 + 3];
    let file = other.path().join("spooled");
    fs::write(&file, &bytes).unwrap();
    layout.adopt(&digest(&bytes), &file).await.unwrap();
    assert!(!file.exists() && fs::read(blob(&layout, &digest(&bytes))).unwrap() == bytes);
    assert_eq!(layout.verify(|_, _| {}).await.unwrap().damaged, []);
}

#[tokio::test]
async fn wrong_bytes_are_refused_and_found() {
    let dir = TempDir::new().unwrap();
    let layout = Layout::open(dir.path()).unwrap();
    assert!(matches!(layout.put(&digest(b"a"), b"b".to_vec()).await, Err(Error::Corrupt { .. })));
    let sha512: Digest = format!("sha512:{}", "0".repeat(128)).parse().unwrap();
    assert!(matches!(layout.put(&sha512, b"b".to_vec()).await, Err(Error::NotSha256 { .. })));
    layout.put(&digest(b"good"), b"good".to_vec()).await.unwrap();
    layout.put(&digest(b"bad"), b"bad".to_vec()).await.unwrap();
    fs::write(blob(&layout, &digest(b"bad")), "bat").unwrap();
    let verified = layout.verify(|_, _| {}).await.unwrap();
    let bad: Vec<Digest> = verified.damaged.into_iter().map(|blob| blob.digest).collect();
    assert_eq!((verified.blobs, verified.bytes, bad), (2, 7, vec![digest(b"bad")]));
    let space = stoker_runtime::space::of(layout.dir().to_owned()).await.unwrap();
    let (total, free) = (space.total, space.free);
    assert!(free <= total && total > 0);
}

#[tokio::test]
async fn a_broken_index_is_an_error_and_stays() {
    let dir = TempDir::new().unwrap();
    Layout::open(dir.path()).unwrap();
    fs::write(dir.path().join("index.json"), "{").unwrap();
    assert!(matches!(Layout::open(dir.path()), Err(Error::BadIndex { .. })));
    assert_eq!(fs::read(dir.path().join("index.json")).unwrap(), b"{");
}

#[tokio::test]
async fn skopeo_reads_what_we_write() {
    if Command::new("skopeo").arg("--version").output().is_err() {
        println!("SKIPPED: skopeo is not installed");
        return;
    }
    let dir = TempDir::new().unwrap();
    let layout = Layout::open(dir.path()).unwrap();
    let (manifest, layer) = image(&layout, "amd64").await;
    layout.record("127.0.0.1:5000/team/app:v1", descriptor(&manifest)).await.unwrap();
    let index = multi(&layout).await;
    layout.record(NAME, descriptor(&index)).await.unwrap();
    for name in ["127.0.0.1:5000/team/app:v1", NAME] {
        let output =
            Command::new("skopeo").arg("inspect").arg(format!("oci:{}:{name}", dir.path().display())).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains(&layer.to_string()), "{text}");
    }
}

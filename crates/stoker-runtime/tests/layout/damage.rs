//! Blobs that change on disk, before they come in and afterwards.

use std::fs::FileTimes;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use super::*;

/// Turns one bit of a file over, without changing its length or its inode.
fn flip(file: &Path, at: u64) {
    let file = fs::File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// A store with one image; gives the digest of its layer.
async fn with_image(dir: &Path) -> (Layout, Digest) {
    let layout = Layout::open(dir).unwrap();
    let (manifest, layer) = image(&layout, "amd64").await;
    layout.record(NAME, descriptor(&manifest)).await.unwrap();
    (layout, layer)
}

#[tokio::test]
async fn a_file_with_other_bytes_does_not_come_in() {
    let (dir, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let layout = Layout::open(dir.path()).unwrap();
    let file = other.path().join("spooled");
    fs::write(&file, vec![7; 3 << 20]).unwrap();
    flip(&file, 1_234_567);
    let wanted = digest(&vec![7; 3 << 20]);
    let error = layout.adopt(&wanted, &file).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }) && error.wants_another_file(), "{error}");
    assert!(error.to_string().contains(&wanted.to_string()), "{error}");
    assert!(!blob(&layout, &wanted).exists(), "it was never visible");
    assert!(file.exists(), "whoever brought it decides what becomes of it");
    flip(&file, 1_234_567);
    layout.adopt(&wanted, &file).await.unwrap();
    assert!(!file.exists() && has(&layout, &wanted, 3 << 20).await);
}

#[tokio::test]
async fn a_file_of_another_filesystem_with_other_bytes_does_not_come_in() {
    let Ok(other) = TempDir::new_in("/dev/shm") else {
        println!("SKIPPED: no second filesystem to copy from");
        return;
    };
    let dir = TempDir::new().unwrap();
    let layout = Layout::open(dir.path()).unwrap();
    let file = other.path().join("spooled");
    fs::write(&file, vec![7; 5 << 20]).unwrap();
    flip(&file, 4 << 20);
    let wanted = digest(&vec![7; 5 << 20]);
    let error = layout.adopt(&wanted, &file).await.unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    let left: Vec<_> = fs::read_dir(dir.path().join("blobs/sha256")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_damaged_blob_is_not_there_and_is_replaced() {
    let (dir, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (layout, layer) = with_image(dir.path()).await;
    assert!(find(&layout, NAME).await.whole().is_some());
    flip(&blob(&layout, &layer), 2);
    assert_eq!(find(&layout, NAME).await, Stored::Damaged(blob(&layout, &layer)));
    assert_eq!(layout.blob(&layer, 5, Care::Hashed).await.unwrap(), Stored::Damaged(blob(&layout, &layer)));
    // A process that begins now finds it out as well.
    assert_eq!(find(&Layout::open(dir.path()).unwrap(), NAME).await, Stored::Damaged(blob(&layout, &layer)));
    let file = other.path().join("spooled");
    fs::write(&file, b"layer").unwrap();
    layout.adopt(&layer, &file).await.unwrap();
    assert!(!file.exists());
    assert_eq!(fs::read(blob(&layout, &layer)).unwrap(), b"layer");
    assert!(find(&layout, NAME).await.whole().is_some());
}

#[tokio::test]
async fn a_damaged_document_is_not_there_and_is_replaced() {
    let dir = TempDir::new().unwrap();
    let (layout, _) = with_image(dir.path()).await;
    let root = find(&layout, NAME).await.whole().unwrap().root;
    let right = fs::read(blob(&layout, root.digest())).unwrap();
    flip(&blob(&layout, root.digest()), 0);
    assert_eq!(find(&layout, NAME).await, Stored::Damaged(blob(&layout, root.digest())));
    layout.put(root.digest(), right).await.unwrap();
    assert!(find(&layout, NAME).await.whole().is_some());
}

/// Of two platforms one is enough, whichever is whole.
#[tokio::test]
async fn damage_of_another_platform_does_not_matter() {
    let dir = TempDir::new().unwrap();
    let layout = Layout::open(dir.path()).unwrap();
    let mut entries = Vec::new();
    for architecture in ["amd64", "arm64"] {
        let (mut entry, _) = image(&layout, architecture).await;
        entry["platform"] = json!({"os": "linux", "architecture": architecture});
        entries.push(entry);
    }
    let index = json!({"schemaVersion": 2, "mediaType": MediaType::ImageIndex.as_ref(), "manifests": entries});
    let index = put(&layout, MediaType::ImageIndex.as_ref(), index.to_string().as_bytes()).await;
    layout.record(NAME, descriptor(&index)).await.unwrap();
    let config = |entry: &Value| {
        let manifest = fs::read(blob(&layout, descriptor(entry).digest())).unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        blob(&layout, descriptor(&manifest["config"]).digest())
    };
    flip(&config(&entries[0]), 3);
    assert!(find(&layout, NAME).await.whole().is_some());
    flip(&config(&entries[1]), 3);
    assert_eq!(find(&layout, NAME).await.whole(), None);
}

/// [`Care::Unchanged`] says what is known without a hash, and hashes what changed since.
#[tokio::test]
async fn what_was_hashed_is_remembered_until_the_file_changes() {
    let dir = TempDir::new().unwrap();
    let (layout, layer) = with_image(dir.path()).await;
    let path = blob(&layout, &layer);
    flip(&path, 0);
    assert!(layout.find(NAME, Care::Unchanged).await.unwrap().whole().is_some(), "nobody hashed it yet");
    assert_eq!(find(&layout, NAME).await, Stored::Damaged(path.clone()));
    assert_eq!(layout.find(NAME, Care::Unchanged).await.unwrap(), Stored::Damaged(path.clone()), "now it is known");
    flip(&path, 0);
    assert!(layout.find(NAME, Care::Unchanged).await.unwrap().whole().is_some(), "it changed, so it was hashed again");
    // Somebody sets the time of the last write back: the time of the last change gives it away.
    let written = fs::metadata(&path).unwrap();
    flip(&path, 4);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_times(FileTimes::new().set_modified(written.modified().unwrap())).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mtime_nsec(), written.mtime_nsec());
    assert_eq!(find(&layout, NAME).await, Stored::Damaged(path));
}

#[tokio::test]
async fn a_store_is_looked_through() {
    let dir = TempDir::new().unwrap();
    let (layout, layer) = with_image(dir.path()).await;
    let index = multi(&layout).await;
    layout.record("other:v1", descriptor(&index)).await.unwrap();
    layout.put(&digest(b"alone"), b"alone".to_vec()).await.unwrap();
    let verify = async || {
        let mut told = Vec::new();
        let verified = layout.verify(|done, total| told.push((done, total))).await.unwrap();
        assert_eq!(told.last(), Some(&(verified.bytes, verified.bytes)), "{told:?}");
        verified
    };
    let verified = verify().await;
    assert!(verified.is_good(), "{verified:?}");
    assert_eq!(verified.images, 2);

    flip(&blob(&layout, &layer), 1);
    flip(&blob(&layout, &digest(b"alone")), 1);
    let verified = verify().await;
    assert_eq!(verified.missing, []);
    let of = |wanted: &Digest| verified.damaged.iter().find(|blob| blob.digest == *wanted).unwrap();
    assert_eq!(of(&layer).images, [NAME, "other:v1"]);
    assert_eq!((of(&layer).size, of(&layer).path.clone()), (5, blob(&layout, &layer)));
    assert!(of(&layer).why.contains("sha256"), "{:?}", of(&layer));
    assert_eq!(of(&digest(b"alone")).images, Vec::<String>::new());

    fs::remove_file(blob(&layout, &layer)).unwrap();
    let missing: Vec<_> = verify().await.missing.into_iter().map(|lack| (lack.image, lack.what)).collect();
    assert_eq!(missing, [(NAME.to_owned(), layer.to_string()), ("other:v1".to_owned(), layer.to_string())]);
}

#[tokio::test]
async fn a_directory_that_is_no_layout_is_not_made_one() {
    let dir = TempDir::new().unwrap();
    let error = Layout::existing(dir.path()).unwrap_err();
    assert!(matches!(error, Error::NotALayout { .. }), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    Layout::open(dir.path()).unwrap();
    assert!(Layout::existing(dir.path()).unwrap().verify(|_, _| {}).await.unwrap().is_good());
}

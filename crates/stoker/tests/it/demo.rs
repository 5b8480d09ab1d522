//! `stoker demo`, from nothing to verified images.

use std::path::Path;

use crate::bed::{Ran, stoker};

#[test]
fn the_demo_brings_three_images_to_three_nodes_and_proves_it() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let output = stoker().args(["demo", "--data"]).arg(&data).env("TMPDIR", home.path()).output().unwrap();
    let ran = Ran::of(output);
    ran.exits(0).says(&data.display().to_string()).says("nodes read from each other");
    // Usually 1.00; it is no promise, and a machine that is very busy may make a node go to the registry.
    let times = ran.out.split_once("left the registry, ").and_then(|(_, rest)| rest.split_whitespace().next());
    assert!(times.and_then(|times| times.parse::<f64>().ok()).is_some_and(|times| times < 2.5), "{}", ran.out);
    assert_eq!(ran.out.matches(" Succeeded\n").count(), 9, "{}", ran.out);
    assert_eq!(ran.out.matches("every sha256 is right").count(), 3, "{}", ran.out);
    for node in ["node-1", "node-2", "node-3"] {
        assert_eq!(hash_again(&data.join("nodes").join(node).join("images/blobs/sha256")), 14);
        let spool = data.join("nodes").join(node).join("spool");
        let left: Vec<_> = std::fs::read_dir(spool).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.iter().all(|path| path.is_dir() || path.metadata().unwrap().len() == 0), "{left:?}");
    }
    let beside: Vec<_> = std::fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(beside, ["data"], "it leaves nothing behind but its data directory");
}

/// Hashes every blob and compares with its name; returns how many there are.
pub(crate) fn hash_again(blobs: &Path) -> usize {
    let blobs: Vec<_> = std::fs::read_dir(blobs).unwrap().map(|entry| entry.unwrap().path()).collect();
    for blob in &blobs {
        let digest = stoker_testbed::registry::digest(&std::fs::read(blob).unwrap());
        assert_eq!(digest, format!("sha256:{}", blob.file_name().unwrap().to_str().unwrap()));
    }
    blobs.len()
}

#[test]
fn a_directory_that_is_not_empty_is_refused() {
    let data = tempfile::tempdir().unwrap();
    std::fs::write(data.path().join("mine"), "").unwrap();
    let output = stoker().args(["demo", "--data"]).arg(data.path()).output().unwrap();
    Ran::of(output).exits(1).says("is not empty");
}

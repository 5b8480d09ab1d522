//! Bits that flip on a node's disk: what is wrong is never called right, and is fetched again.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::api::DynamicObject;
use serde_json::{Value, json};
use stoker_testbed::registry::{Fault, On, Registry, noise};

use crate::bed::{Ran, Up, eventually, stoker};
use crate::demo::hash_again;

const MIB: u64 = 1 << 20;

/// Turns one bit of a file over, without changing its length.
fn flip(file: &Path, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

fn blob(up: &Up, digest: &str) -> PathBuf {
    up.images("node-1").join("blobs/sha256").join(&digest["sha256:".len()..])
}

/// The report of the node's only pull; what it was asked about the digest is another one.
async fn report(up: &Up) -> Value {
    let find = |object: &DynamicObject| {
        let reports = object.data.pointer("/status/reports").and_then(Value::as_object);
        reports.and_then(|reports| reports.values().find(|report| report["phase"] == "Succeeded").cloned())
    };
    find(&up.wait("NodePreheat", "node-1", |object| find(object).is_some()).await).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bit_that_flips_in_the_spool_does_not_reach_the_store() {
    let registry = Registry::start().await.unwrap();
    let pushed = registry.push("shop/web", "v1", &[noise(2 << 20, 1)]);
    let layer = &pushed.layers[0];
    registry.fault(On::Path(layer.clone()), 1, Fault::StallAfter(MIB));
    let up = Up::start(1);
    let image = format!("{}/shop/web:v1", registry.host());
    up.run(&["pull", &image, "--name", "web", "--no-wait"]).await.exits(0);
    let spooled = up.data().join("nodes/node-1/spool").join(format!("{}.{}", &layer["sha256:".len()..], 2 * MIB));
    let there = async || std::fs::metadata(&spooled).is_ok_and(|file| file.len() > MIB / 2);
    eventually("half of the layer is in the spool", there).await;
    // The agent has hashed these bytes when it wrote them.
    flip(&spooled, 1_000);
    registry.let_go();
    let status = up.ended("Preheat", "web").await;
    assert_eq!(status["phase"], "Succeeded", "{status:#}");
    assert_eq!(hash_again(&up.images("node-1").join("blobs/sha256")), 3);
    assert_eq!(report(&up).await["attempt"], 1, "a mended blob is no failed attempt");
    assert_eq!(registry.body_bytes(layer), 4 * MIB, "it was fetched once more, and nothing else was");
    assert_eq!(registry.requests(&pushed.config).len(), 1);
}

/// A disk on which every file is wrong when it is read: the blob is fetched a few times and no more, and never stored.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_damages_everything_fails_with_what_to_do() {
    const SIZE: u64 = MIB / 2;
    let registry = Registry::start().await.unwrap();
    let pushed = registry.push("shop/web", "v1", &[noise(SIZE as usize, 1)]);
    let layer = &pushed.layers[0];
    // Slow enough that the wrong byte is there before the last one.
    registry.pace(MIB);
    let up = Up::start(1);
    let spooled = up.data().join("nodes/node-1/spool").join(format!("{}.{SIZE}", &layer["sha256:".len()..]));
    let wrong = noise(SIZE as usize, 1)[1_000] ^ 1;
    let damaging = tokio::spawn(async move {
        loop {
            if let Ok(file) = std::fs::File::options().write(true).open(&spooled)
                && file.metadata().unwrap().len() > 1_000
            {
                file.write_all_at(&[wrong], 1_000).unwrap();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let spec = json!({"images": [{"image": format!("{}/shop/web:v1", registry.host())}], "pull": {"retries": 0}});
    let preheat =
        json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": "web"}, "spec": spec});
    up.create(&preheat.to_string()).await;
    let status = up.ended("Preheat", "web").await;
    damaging.abort();
    let failed = &status["failedNodes"][0];
    assert_eq!(failed["reason"], "StoreError", "{status:#}");
    let message = failed["message"].as_str().unwrap();
    assert!(message.contains("check this node's disk and memory") && message.contains(layer), "{message}");
    assert!(message.contains("shop/web:v1"), "{message}");
    assert!(!blob(&up, layer).exists());
    assert_eq!(registry.body_bytes(layer), 4 * SIZE, "four times and no more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bit_that_flips_in_the_store_is_found_by_the_next_job() {
    let registry = Registry::start().await.unwrap();
    let pushed = registry.push("shop/web", "v1", &[noise(2 << 20, 1), noise(1_000, 2)]);
    let up = Up::start(1);
    let image = format!("{}/shop/web:v1", registry.host());
    up.run(&["pull", &image]).await.exits(0);
    up.run(&["pull", &image]).await.exits(0).says("already on all 1 nodes");
    for (wrong, at) in [(&pushed.layers[0], MIB), (&pushed.config, 3), (&pushed.manifest, 20)] {
        let asked = |digest: &String| registry.requests(&format!("blobs/{digest}")).len();
        let blobs: Vec<&String> = pushed.layers.iter().chain([&pushed.config]).collect();
        let before: Vec<usize> = blobs.iter().map(|digest| asked(digest)).collect();
        flip(&blob(&up, wrong), at);
        let verify = stoker().args(["verify", "--data"]).arg(up.data()).output().unwrap();
        Ran::of(verify).exits(1).says("1 damaged, 0 missing").says(wrong);
        up.run(&["pull", &image]).await.exits(0);
        assert_eq!(hash_again(&up.images("node-1").join("blobs/sha256")), 4);
        let again = blobs.iter().zip(before).filter(|(digest, before)| asked(digest) > *before);
        let fetched: Vec<&String> = again.map(|(digest, _)| *digest).collect();
        let expected: Vec<&String> = if *wrong == pushed.manifest { vec![] } else { vec![wrong] };
        assert_eq!(fetched, expected, "what was right is not fetched again");
        if *wrong != pushed.manifest {
            let told = report(&up).await["message"].to_string();
            assert!(told.contains("damaged") && told.contains(wrong), "{told}");
        }
        up.run(&["pull", &image]).await.exits(0).says("already on all 1 nodes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_says_what_is_wrong_and_what_to_do() {
    let registry = Registry::start().await.unwrap();
    let pushed = registry.push("shop/web", "v1", &[noise(300_000, 1), noise(2_000, 2)]);
    let up = Up::start(2);
    let image = format!("{}/shop/web:v1", registry.host());
    up.run(&["pull", &image]).await.exits(0);
    let verify = |dir: &Path| Ran::of(stoker().args(["verify", "--data"]).arg(dir).output().unwrap());
    let all = verify(up.data());
    all.exits(0);
    assert_eq!(all.out.matches("every sha256 is right").count(), 2, "{}", all.out);
    assert!(all.out.contains("node-1: 1 images, 4 blobs, 295."), "{}", all.out);

    flip(&blob(&up, &pushed.layers[0]), 299_999);
    std::fs::remove_file(blob(&up, &pushed.layers[1])).unwrap();
    let all = verify(up.data());
    all.exits(1)
        .says("node-1: 1 images, 3 blobs, 293.")
        .says("1 damaged, 1 missing")
        .says(&format!("damaged: {} (293.0 KiB): its bytes have the sha256 ", pushed.layers[0]))
        .says(&format!("file: {}", blob(&up, &pushed.layers[0]).display()))
        .says(&format!("missing: {} of {image}", pushed.layers[1]))
        .says("node-2: 1 images, 4 blobs")
        .says(&format!("stoker pull {image} --node node-1"));
    // A layout itself, which another tool may have made.
    verify(&up.images("node-2")).exits(0).says("every sha256 is right");
    verify(&up.images("node-1")).exits(1).says("1 damaged, 1 missing");
    // What it says helps.
    up.run(&["pull", &image, "--node", "node-1"]).await.exits(0);
    verify(up.data()).exits(0);

    let empty = tempfile::tempdir().unwrap();
    verify(empty.path()).exits(2).says("there is no image layout in").says("--data");
    verify(&empty.path().join("none")).exits(2).says("there is no image layout in");
    Ran::of(stoker().arg("verify").output().unwrap()).exits(2).says("--data");
    assert_eq!(std::fs::read_dir(empty.path()).unwrap().count(), 0, "it makes nothing");
}

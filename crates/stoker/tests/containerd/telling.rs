//! What `get` and `why` say while images come: numbers that grow, and that are those of the objects.

use stoker_testbed::containerd::Version;

use crate::bed::{Node, Registry, on_both};
use crate::wishes::noise;

/// What the link lets through before each look.
const PIECE: u64 = 3_000_000;
/// What of that is not the image's: documents and headers.
const REST: u64 = 100_000;

/// `12.3 MiB` as bytes.
fn bytes(number: &str, unit: &str) -> f64 {
    let unit = ["B", "KiB", "MiB", "GiB"].iter().position(|known| *known == unit).unwrap_or_else(|| panic!("{unit}"));
    number.parse::<f64>().unwrap() * 1024f64.powi(i32::try_from(unit).unwrap())
}

/// The bytes that `stoker get JOB` shows as done, and those of the image.
async fn shown(node: &Node, job: &str) -> (f64, f64) {
    let ran = node.up.run(&["get", job]).await;
    let line = ran.exits(0).out.lines().find(|line| line.starts_with("node-1")).unwrap().to_owned();
    let words: Vec<&str> = line.split_whitespace().collect();
    // NODE STATE IMAGE DIGEST DONE SIZE …
    (bytes(words[4], words[5]), bytes(words[6], words[7]))
}

async fn numbers_grow_and_are_true(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let image = noise(2, 8_000_000, 1);
    let name = registry.push("shop/web", "v1", &image).await;
    // Piece by piece: however long the looks take, it goes on only after them, and the last piece is not the image's.
    registry.link.stall_after(PIECE);
    node.begin("web", &name, &[]).await;
    for piece in 1..=3 {
        let before = node.report(|report| report.done + REST >= piece * PIECE).await.done;
        let (done, size) = shown(&node, "web").await;
        let after = node.report(|_| true).await.done;
        // It shows one digit after the point.
        let true_ones = before as f64 - 60_000.0..=after as f64 + 60_000.0;
        assert!(true_ones.contains(&done), "{before} <= {done} <= {after}");
        assert!((size - image.layer_bytes() as f64).abs() < 100_000.0, "{size}");
        assert!(after <= registry.link.received() + 10_000, "no more than came");
        let why = node.up.run(&["why", "web"]).await;
        why.exits(0).says("Pulling").says(&format!("{name}: ")).says(" of 15.3 MiB");
        registry.link.stall_after(PIECE);
    }
    node.up.run(&["get"]).await.exits(0).says("Running");
    registry.link.let_go();
    assert_eq!(node.end("web").await["phase"], "Succeeded");
    let (done, size) = shown(&node, "web").await;
    assert_eq!(done, size);
    node.up.run(&["why", "web"]).await.exits(0).says("no node is waiting");
    node.up.run(&["why", "web", "node-1"]).await.exits(0).says("has every image");
}
on_both!(numbers_grow_and_are_true);

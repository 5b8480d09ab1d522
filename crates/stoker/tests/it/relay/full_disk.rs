//! Nodes in the middle of a chain whose disk is full: they fail alone.

use std::io::Write as _;

use stoker_testbed::small_disk::SmallDisk;

use super::*;

/// Four nodes in a chain, the second one on a disk of this size. `None` for those who may not mount.
async fn start(disk: &str) -> Option<(Fleet, SmallDisk, tempfile::TempDir)> {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path().join("disk"), disk) else {
        println!("SKIPPED: not root, nothing can be mounted");
        return None;
    };
    let mut fleet = Fleet::start(1).await;
    fleet.join_in("n02", disk.path().join("n02")).await;
    fleet.join("n03").await;
    fleet.join("n04").await;
    Some((fleet, disk, dir))
}

/// All have the image but the second one, which says why; and the image left the registry once.
async fn one_fails(fleet: &mut Fleet, reason: &str) {
    let status = fleet.up.ended("Preheat", "web").await;
    assert_eq!((&status["succeeded"], &status["failed"]), (&json!(3), &json!(1)), "{status:#}");
    let failed = &status["failedNodes"][0];
    assert_eq!((&failed["node"], &failed["reason"]), (&json!("n02"), &json!(reason)), "{status:#}");
    assert!(fleet.left() < SIZE as u64 + 4096, "{} left the registry: {status:#}", fleet.left());
    fleet.agents.remove("n02");
    fleet.verify(1);
}

#[tokio::test]
async fn a_node_without_room_for_the_image_fails_and_its_readers_read_from_others() {
    let Some((mut fleet, _disk, _dir)) = start("16m").await else { return };
    let image = fleet.push("shop/web", 10);
    fleet.registry.pace(PACE);
    fleet.preheat("web", &image, json!({"upstreamCopies": 1, "retries": 0})).await;
    one_fails(&mut fleet, "Disk").await;
}

#[tokio::test]
async fn a_node_whose_disk_fills_in_the_middle_fails_and_its_readers_go_on_at_their_byte() {
    let Some((mut fleet, disk, _dir)) = start("64m").await else { return };
    let image = fleet.push("shop/web", 11);
    fleet.registry.pace(PACE / 2);
    fleet.preheat("web", &image, json!({"upstreamCopies": 1, "retries": 0})).await;
    let chain = halfway(&fleet).await;
    assert_eq!(chain[1], "n02", "{chain:?}");
    // Somebody else writes until nothing more can be written.
    let mut ballast = std::fs::File::create(disk.path().join("ballast")).unwrap();
    while ballast.write_all(&[1; 64 << 10]).is_ok() {}
    one_fails(&mut fleet, "NoSpace").await;
}

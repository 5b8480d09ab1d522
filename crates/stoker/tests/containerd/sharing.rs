//! What is there is not fetched again: layers that images share, two jobs for one image, images that are recorded and not
//! unpacked. Counted in bytes at the registry's link.

use stoker_testbed::containerd::{Options, Version};
use stoker_testbed::image::{Compression, Image, ImageBuilder, Layer, LayerBuilder};

use crate::bed::{Node, Registry, collect, leases, on_both};
use crate::kubelet::Kubelet;

/// What documents and headers may have.
const REST: u64 = 30_000;

fn noise(length: u64, seed: u64) -> Layer {
    LayerBuilder::new().noise(&format!("noise-{seed}"), length, seed).build(Compression::Gzip).unwrap()
}

fn image(layers: &[&Layer]) -> Image {
    layers.iter().fold(ImageBuilder::new(), |image, layer| image.layer(layer)).build()
}

fn size(layers: &[&Layer]) -> u64 {
    layers.iter().map(|layer| layer.bytes.len() as u64).sum()
}

async fn a_layer_of_two_images_is_fetched_once(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let (base, a, b, c) = (noise(4_000_000, 1), noise(100_000, 2), noise(100_000, 3), noise(100_000, 4));
    let first = registry.push("share/a", "v1", &image(&[&base, &a])).await;
    let second = registry.push("share/b", "v1", &image(&[&base, &b])).await;
    // On another base it is another snapshot, of the same blob.
    let third = registry.push("share/c", "v1", &image(&[&c, &base])).await;
    registry.link.pace(Some(4_000_000));
    node.up.run(&["pull", &first, &second, &third]).await.exits(0);
    let fetched = registry.link.received();
    let bytes = size(&[&base, &a, &b, &c]);
    assert!((bytes..bytes + 2 * REST).contains(&fetched), "{fetched} of {bytes}");
    registry.link.pace(None);
    let later = registry.push("share/d", "v1", &image(&[&base, &a, &b])).await;
    node.pull(&later).await.exits(0);
    let more = registry.link.received() - fetched;
    assert!(more < REST, "{more}: nothing is missing but the documents");
    assert_eq!(leases(&node.containerd).await, Vec::<String>::new());
}
on_both!(a_layer_of_two_images_is_fetched_once);

async fn a_blob_that_is_twice_in_an_image_is_fetched_once(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let (base, twice) = (noise(100_000, 1), noise(2_000_000, 2));
    let name = registry.push("share/twice", "v1", &image(&[&twice, &base, &twice])).await;
    node.pull(&name).await.exits(0);
    let (fetched, bytes) = (registry.link.received(), size(&[&base, &twice]));
    assert!((bytes..bytes + REST).contains(&fetched), "{fetched} of {bytes}");
}
on_both!(a_blob_that_is_twice_in_an_image_is_fetched_once);

/// Every content names the repositories that it can be had from, and containerd refuses a label of more than 4096 bytes: the
/// eighteenth of these would be too much.
async fn a_blob_of_more_repositories_than_a_label_holds_fails_no_image(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let shared = image(&[&noise(10_000, 1)]);
    let mut names = Vec::new();
    for number in 0..20 {
        names.push(registry.push(&format!("{}/{number}", "share".repeat(46)), "v1", &shared).await);
    }
    for name in &names {
        node.pull(name).await.exits(0);
    }
    let there = node.names().await;
    assert!(names.iter().all(|name| there.contains(name)), "{there:?}");
}
on_both!(a_blob_of_more_repositories_than_a_label_holds_fails_no_image);

async fn two_jobs_for_one_image_are_one_pull(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let image = image(&[&noise(3_000_000, 1)]);
    let name = registry.push("share/jobs", "v1", &image).await;
    registry.link.pace(Some(3_000_000));
    node.begin("one", &name, &[]).await;
    registry.link.wait_for_bytes(500_000).await.unwrap();
    node.begin("two", &name, &[]).await;
    for job in ["one", "two"] {
        assert_eq!(node.end(job).await["phase"], "Succeeded");
    }
    let (fetched, bytes) = (registry.link.received(), image.layer_bytes());
    assert!((bytes..bytes + REST).contains(&fetched), "{fetched} of {bytes}");
}
on_both!(two_jobs_for_one_image_are_one_pull);

/// v2 after v1, in a new repository each: by us and by containerd itself.
async fn next_version(version: Version, discard_unpacked_layers: bool) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let options = || Options { discard_unpacked_layers, ..Options::default() };
    let Some(node) = Node::start_with(version, options(), &[]).await else { return };
    let Some(kubelet) = Kubelet::start(version, options()).await else { return };
    let (base, middle, old, new) = (noise(500_000, 1), noise(400_000, 2), noise(300_000, 3), noise(200_000, 4));
    let v1 = registry.push("shop/web", "v1", &image(&[&base, &middle, &old])).await;
    let v2 = registry.push("shop/web", "v2", &image(&[&base, &middle, &new])).await;
    kubelet.pull(&v1).await;
    node.pull(&v1).await.exits(0);
    let before = registry.link.received();
    kubelet.pull(&v2).await;
    let theirs = registry.link.received() - before;
    node.pull(&v2).await.exits(0);
    let ours = registry.link.received() - before - theirs;
    assert!(ours <= theirs, "{ours} bytes by us, {theirs} by containerd itself");
    assert!(ours < new.bytes.len() as u64 + REST, "{ours}");
    collect(&node.containerd).await;
    let blobs = node.containerd.ctr_ok(&["content", "ls", "-q"]).await.unwrap();
    let kept = [&base, &middle, &old, &new].iter().any(|layer| blobs.contains(&layer.digest));
    assert_eq!(kept, !discard_unpacked_layers, "{blobs}");
    for name in [&v1, &v2] {
        node.containerd.mount(name).await.unwrap();
    }
}

async fn a_next_version_costs_what_is_new(version: Version) {
    next_version(version, false).await;
}
on_both!(a_next_version_costs_what_is_new);

async fn a_next_version_costs_what_is_new_where_blobs_are_thrown_away(version: Version) {
    next_version(version, true).await;
}
on_both!(a_next_version_costs_what_is_new_where_blobs_are_thrown_away);

async fn an_image_that_is_not_unpacked_is_completed(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let image = image(&[&noise(1_000_000, 1), &noise(1_000_000, 2)]);
    let name = registry.push("share/packed", "v1", &image).await;
    // Contents and a record, and nothing unpacked.
    let fetch = ["content", "fetch", "--plain-http", &name];
    node.containerd.ctr_ok(&fetch).await.unwrap();
    assert!(node.names().await.contains(&name));
    let before = registry.link.received();
    node.pull(&name).await.exits(0);
    let fetched = registry.link.received() - before;
    assert!(fetched < 10_000, "{fetched}: every blob was there");
    let snapshots = node.containerd.ctr_ok(&["snapshots", "ls"]).await.unwrap();
    assert!(snapshots.lines().filter(|line| line.contains("Committed")).count() >= 2, "{snapshots}");
    node.pull(&name).await.exits(0).says("nothing was fetched");
}
on_both!(an_image_that_is_not_unpacked_is_completed);

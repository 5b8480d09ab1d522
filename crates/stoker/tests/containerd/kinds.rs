//! Every kind of image comes, and looks as if containerd had pulled it itself: records, contents, labels, CRI's list.

use serde_json::json;
use stoker_testbed::containerd::Version;
use stoker_testbed::image::{Compression, Flavor, Image, ImageBuilder, Layer, LayerBuilder};

use crate::bed::{Node, Registry, collect, leases, on_both};
use crate::kubelet::{Kubelet, inventory, listed, listed_as};
use crate::wishes;

fn layers(count: u64, seed: u64, compression: Compression) -> Vec<Layer> {
    let layer = |at| LayerBuilder::new().file(&format!("dir/{at}"), "x").noise("noise", 40_000, seed * 100 + at);
    (0..count).map(|at| layer(at).build(compression).unwrap()).collect()
}

fn image(flavor: Flavor, layers: &[Layer]) -> Image {
    layers.iter().fold(ImageBuilder::new().flavor(flavor), ImageBuilder::layer).build()
}

async fn images_look_as_if_containerd_had_pulled_them(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let Some(kubelet) = Kubelet::start(version, Default::default()).await else { return };
    let other = |seed| ImageBuilder::new().architecture("s390x").layer(&layers(1, seed, Compression::Gzip)[0]).build();
    let own = |flavor, seed| image(flavor, &layers(2, seed, Compression::Gzip));
    let kinds = [
        ("one", image(Flavor::Oci, &layers(1, 1, Compression::Gzip))),
        ("eight", image(Flavor::Oci, &layers(8, 2, Compression::Gzip))),
        ("plain", image(Flavor::Oci, &layers(2, 3, Compression::None))),
        ("zstd", image(Flavor::Oci, &layers(2, 4, Compression::Zstd))),
        // Only containerd unpacks these.
        ("zstd-wide", image(Flavor::Oci, &layers(2, 40, Compression::ZstdWide))),
        ("docker", image(Flavor::Docker, &layers(2, 5, Compression::Gzip))),
        ("docker-plain", image(Flavor::Docker, &layers(2, 6, Compression::None))),
        ("index", Image::index(Flavor::Oci, &[other(7), own(Flavor::Oci, 8)])),
        ("list", Image::index(Flavor::Docker, &[own(Flavor::Docker, 9), other(10)])),
    ];
    let cri = node.cri().await;
    let mut names = Vec::new();
    for (kind, image) in kinds {
        let name = registry.push(&format!("kinds/{kind}"), "v1", &image).await;
        let before = registry.link.received();
        node.pull(&name).await.exits(0);
        let fetched = registry.link.received() - before;
        let foreign: u64 = match kind {
            "index" | "list" => image.layers.iter().map(|layer| layer.bytes.len() as u64).min().unwrap_or(0),
            _ => 0,
        };
        let bytes = image.layer_bytes() - foreign;
        assert!((bytes..bytes + 20_000).contains(&fetched), "{kind}: {fetched} of {bytes}");
        kubelet.pull(&name).await;
        assert_eq!(listed(&cri, &name).await, listed(&kubelet.cri, &name).await, "{kind}");
        names.push(name);
    }
    // What the garbage collector leaves is what the records hold.
    collect(&node.containerd).await;
    collect(&kubelet.containerd).await;
    let (ours, theirs) = (inventory(&node.containerd).await, inventory(&kubelet.containerd).await);
    for (name, labels) in &theirs {
        assert_eq!(ours.get(name), Some(labels), "{name}");
    }
    assert_eq!(ours.len(), theirs.len(), "{ours:#?} {theirs:#?}");
    assert_eq!(leases(&node.containerd).await, Vec::<String>::new());
    // And when they go, all goes.
    for (cri, containerd) in [(&cri, &node.containerd), (&kubelet.cri, &kubelet.containerd)] {
        for name in &names {
            cri.remove(name).await.unwrap();
        }
        collect(containerd).await;
    }
    let ours = inventory(&node.containerd).await;
    assert_eq!(ours, inventory(&kubelet.containerd).await);
    assert!(!ours.keys().any(|key| key.starts_with("content")), "{ours:#?}");
    let snapshots = node.containerd.ctr_ok(&["snapshots", "ls"]).await.unwrap();
    assert!(!snapshots.contains("stoker"), "{snapshots}");
}
on_both!(images_look_as_if_containerd_had_pulled_them);

/// The agent's own decoder would need 128 MiB for each of these layers.
async fn layers_with_a_large_zstd_window_are_unpacked_by_containerd(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let started = wishes::node(version, Default::default(), &["--runtime", "containerd"], &[]).await;
    let Some((node, log)) = started else { return };
    let name = registry.push("kinds/wide", "v1", &image(Flavor::Oci, &layers(2, 41, Compression::ZstdWide))).await;
    node.pull(&name).await.exits(0);
    let mount = node.containerd.mount(&name).await.unwrap();
    assert_eq!(std::fs::read_to_string(mount.join("dir/1")).unwrap(), "x");
    let log = std::fs::read_to_string(log.path()).unwrap();
    let left = log.lines().filter(|line| line.contains("left to containerd") && line.contains("8 MiB"));
    assert_eq!(left.count(), 2, "{log}");
}
on_both!(quick layers_with_a_large_zstd_window_are_unpacked_by_containerd);

async fn a_digest_reference_is_found_again(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let Some(kubelet) = Kubelet::start(version, Default::default()).await else { return };
    let image = image(Flavor::Oci, &layers(2, 1, Compression::Gzip));
    let tag = registry.push("kinds/digest", "v1", &image).await;
    let name = format!("{}@{}", tag.strip_suffix(":v1").unwrap(), image.digest());
    node.pull(&name).await.exits(0);
    kubelet.pull(&name).await;
    let cri = node.cri().await;
    assert_eq!(listed(&cri, &name).await, listed(&kubelet.cri, &name).await);
    assert_eq!(inventory(&node.containerd).await, inventory(&kubelet.containerd).await);
    let names = node.names().await;
    assert!(names.contains(&name) && !names.contains(&tag), "{names:?}");
    let before = registry.link.received();
    node.pull(&name).await.exits(0).says("nothing was fetched");
    // By tag only the record is missing, and the registry is asked what the tag means.
    node.pull(&tag).await.exits(0);
    let fetched = registry.link.received() - before;
    assert!(fetched < 5_000, "{fetched}");
    assert!(node.names().await.contains(&tag));
}
on_both!(quick a_digest_reference_is_found_again);

async fn a_tag_that_moves_is_followed(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let Some(kubelet) = Kubelet::start(version, Default::default()).await else { return };
    let [old, new] = [1, 2].map(|seed| image(Flavor::Oci, &layers(2, seed, Compression::Gzip)));
    let cri = node.cri().await;
    for (job, image) in [("old", &old), ("new", &new)] {
        let name = registry.push("kinds/moving", "latest", image).await;
        let manifest = json!({
            "apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": job},
            "spec": {"images": [{"image": name}], "pull": {"policy": "Always"}},
        });
        node.up.create(&manifest.to_string()).await;
        node.up.wait("Preheat", job, |object| object.data["status"]["phase"] == "Succeeded").await;
        kubelet.pull(&name).await;
        let theirs = listed(&kubelet.cri, &name).await;
        assert!(theirs.digests[0].ends_with(image.digest()));
        listed_as(&cri, &name, &theirs).await;
        assert_eq!(inventory(&node.containerd).await, inventory(&kubelet.containerd).await);
    }
}
on_both!(a_tag_that_moves_is_followed);

async fn a_large_image_comes_once(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let layer = |at| LayerBuilder::new().noise("noise", 38 << 20, at).build(Compression::Gzip).unwrap();
    let layers: Vec<Layer> = (0..8).map(layer).collect();
    let image = image(Flavor::Oci, &layers);
    let name = registry.push("kinds/large", "v1", &image).await;
    node.pull(&name).await.exits(0);
    let fetched = registry.link.received();
    let bytes = image.layer_bytes();
    assert!((bytes..bytes + bytes / 500).contains(&fetched), "{fetched} of {bytes}");
    let spool = node.up.data().join("nodes/node-1/spool");
    assert_eq!(std::fs::read_dir(spool).unwrap().count(), 0, "what containerd has is not kept twice");
}
on_both!(a_large_image_comes_once);

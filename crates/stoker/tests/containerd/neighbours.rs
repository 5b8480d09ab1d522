//! What a registry or an image can do to the images of others on a node: nothing, whatever layers they have in common.

use std::time::Duration;

use serde_json::json;
use stoker_testbed::containerd::Version;
use stoker_testbed::image::{Compression, Image, ImageBuilder, Layer, LayerBuilder};
use stoker_testbed::registry::{self, Fault, On};

use crate::bed::{Node, Registry, on_both};
use crate::up::eventually;
use crate::wishes::noise;

/// Time enough for an image of a few megabytes, on a busy machine too. The images that hardly come need more than this.
const SOON: &str = "60s";

/// The same files, as a blob of this kind.
fn base(compression: Compression) -> Layer {
    LayerBuilder::new().noise("base", 16 << 20, 1).build(compression).unwrap()
}

fn on_base(base: &Layer, seed: u64) -> Image {
    let top = LayerBuilder::new().noise("top", 100_000, seed).build(Compression::Gzip).unwrap();
    ImageBuilder::new().layer(base).layer(&top).build()
}

/// Begins an image of a registry that sends a quarter of it, and then two kilobytes a second.
async fn hardly_comes(node: &Node, image: &Image) -> Option<Registry> {
    let registry = Registry::start(Default::default()).await?;
    let name = registry.push("hostile/app", "v1", image).await;
    registry.link.pace(Some(4 << 20));
    node.begin("hostile", &name, &["--timeout", "24h"]).await;
    registry.link.wait_for_bytes(image.layer_bytes() / 4).await.unwrap();
    registry.link.pace(Some(2_000));
    Some(registry)
}

/// An image on a base that an image of a slow registry has, too.
async fn comes_all_the_same(node: &Node, image: &Image) -> Option<()> {
    let registry = Registry::start(Default::default()).await?;
    let name = registry.push("shop/web", "v1", image).await;
    node.wish("web", &name, &[], json!({"timeout": SOON, "retries": 0})).await;
    let status = node.end("web").await;
    assert_eq!(status["phase"], "Succeeded", "{status:#}");
    node.containerd.mount(&name).await.unwrap();
    Some(())
}

async fn a_registry_that_hardly_sends_a_layer_holds_up_no_image_of_another(version: Version) {
    let Some(node) = Node::start(version).await else { return };
    let base = base(Compression::Gzip);
    let Some(_slow) = hardly_comes(&node, &on_base(&base, 2)).await else { return };
    if comes_all_the_same(&node, &on_base(&base, 3)).await.is_none() {
        return;
    }
    // The layer is there now. All that the other image still lacks are 100 kB.
    assert_eq!(node.end("hostile").await["phase"], "Succeeded");
}
on_both!(quick a_registry_that_hardly_sends_a_layer_holds_up_no_image_of_another);

/// The configuration of an image says what its layers unpack to, and anybody can write one.
async fn an_image_that_says_to_unpack_to_the_layers_of_another_does_not_hold_it_up(version: Version) {
    let Some(node) = Node::start(version).await else { return };
    let (theirs, ours) = (base(Compression::None), base(Compression::Gzip));
    assert!(theirs.diff_id == ours.diff_id && theirs.digest != ours.digest);
    let Some(_slow) = hardly_comes(&node, &on_base(&theirs, 2)).await else { return };
    comes_all_the_same(&node, &on_base(&ours, 3)).await;
}
on_both!(an_image_that_says_to_unpack_to_the_layers_of_another_does_not_hold_it_up);

/// containerd has one writer for each blob. A slow one of ours would make the kubelet wait.
async fn a_pull_of_the_kubelets_does_not_wait_for_a_registry_that_hardly_sends(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let base = base(Compression::Gzip);
    let name = registry.push("shop/web", "v1", &on_base(&base, 3)).await;
    let Some(_slow) = hardly_comes(&node, &on_base(&base, 2)).await else { return };
    let limit = Duration::from_secs(60);
    node.cri().await.pull(&name, None, None, limit).await.unwrap();
}
on_both!(a_pull_of_the_kubelets_does_not_wait_for_a_registry_that_hardly_sends);

/// As many layers as are unpacked at one time, of images whose registry sends a little of each and then nothing.
async fn layers_that_never_come_keep_no_other_from_being_unpacked(version: Version) {
    let registry = registry::Registry::start().await.unwrap();
    let Some(node) = Node::start(version).await else { return };
    for seed in [100, 200] {
        let image = noise(4, 200_000, seed);
        for layer in &image.layers {
            registry.fault(On::Path(layer.digest.clone()), usize::MAX, Fault::StallAfter(1_000));
        }
        let name = image.put(&registry, &format!("hostile/tar{seed}"), "v1");
        node.begin(&format!("tar{seed}"), &name, &["--timeout", "24h"]).await;
    }
    let staged = async || {
        let snapshots = node.containerd.ctr_ok(&["snapshots", "ls"]).await.unwrap();
        snapshots.lines().filter(|line| line.starts_with("stage-stoker")).count() == 8
    };
    eventually("all of their layers have begun", staged).await;
    let name = noise(2, 200_000, 300).put(&registry, "shop/web", "v1");
    node.wish("web", &name, &[], json!({"timeout": SOON, "retries": 0})).await;
    let status = node.end("web").await;
    assert_eq!(status["phase"], "Succeeded", "{status:#}");
}
on_both!(quick layers_that_never_come_keep_no_other_from_being_unpacked);

/// The digest of a layer is checked when all of it has come. What a registry sent of it, and then no more, may be anything: it must not be
/// what a pull of the kubelet's goes on with.
async fn wrong_bytes_of_a_layer_that_never_ends_spoil_no_pull_of_the_kubelets(version: Version) {
    let hostile = registry::Registry::start().await.unwrap();
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let base = base(Compression::Gzip);
    let name = registry.push("shop/web", "v1", &on_base(&base, 3)).await;
    for fault in [Fault::CorruptAt(1_000), Fault::StallAfter(4 << 20)] {
        hostile.fault(On::Path(base.digest.clone()), usize::MAX, fault);
    }
    let stuck = on_base(&base, 2).put(&hostile, "hostile/app", "v1");
    // One attempt lets go because nothing comes; those after it end with their time.
    node.wish("hostile", &stuck, &[], json!({"timeout": "20s", "retries": 10})).await;
    hostile.wait_for_bytes(&base.digest, 4 << 20).await;
    node.cri().await.pull(&name, None, None, Duration::from_secs(60)).await.unwrap();
}
on_both!(wrong_bytes_of_a_layer_that_never_ends_spoil_no_pull_of_the_kubelets);

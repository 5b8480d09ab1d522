//! Bits that flip between the spool and containerd: containerd hashes what it is given, we hash what we unpack, and neither
//! takes the other's word for it.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use serde_json::json;
use stoker_runtime::containerd::{LayerSource, Settings, WantedImage};
use stoker_runtime::room::Purse;
use stoker_testbed::containerd::{Containerd, Version};
use stoker_testbed::image::{self, Compression, Image, ImageBuilder, LayerBuilder};
use stoker_testbed::registry;
use stoker_transfer::{Descriptor, Digest, MediaType};
use tokio::sync::Notify;

use crate::bed::{Node, Registry, on_both};
use crate::up::eventually;
use crate::wishes::noise;

/// Turns one bit of a file over, without changing its length.
fn flip(file: &Path, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// That containerd's blob is the right one.
fn assert_right(containerd: &Containerd, digest: &str) {
    let file = containerd.root().join("io.containerd.content.v1.content/blobs").join(digest.replace(':', "/"));
    assert_eq!(registry::digest(&std::fs::read(file).unwrap()), digest);
}

/// A layer that is held back is given to containerd when it is complete, from the file in the spool.
async fn a_bit_that_flips_in_the_spool(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let image = noise(1, 4_000_000, 1);
    let name = registry.push("damage/spool", "v1", &image).await;
    let layer = &image.layers[0];
    registry.link.stall_after(3_000_000);
    let spec = json!({"images": [{"image": name}], "pull": {"retries": 0}, "pace": {"bandwidth": "1Gi"}});
    let preheat =
        json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": "spool"}, "spec": spec});
    node.up.create(&preheat.to_string()).await;
    let file = format!("{}.{}", &layer.digest["sha256:".len()..], layer.bytes.len());
    let spooled = node.up.data().join("nodes/node-1/spool").join(file);
    let half = async || std::fs::metadata(&spooled).is_ok_and(|file| file.len() > 1_000_000);
    eventually("a part of the layer is in the spool", half).await;
    flip(&spooled, 1_000);
    registry.link.let_go();
    let status = node.end("spool").await;
    assert_eq!(status["phase"], "Succeeded", "{status:#}");
    assert_right(&node.containerd, &layer.digest);
    let mount = node.containerd.mount(&name).await.unwrap();
    assert_eq!(std::fs::metadata(mount.join("noise-0")).unwrap().len(), 4_000_000);
    let (fetched, layers) = (registry.link.received(), image.layer_bytes());
    assert!((2 * layers..2 * layers + layers / 4).contains(&fetched), "{fetched} of {layers}, which came twice");
}
on_both!(quick a_bit_that_flips_in_the_spool);

fn descriptor(blob: &image::Blob) -> Descriptor {
    Descriptor::new(MediaType::from(blob.media_type), blob.bytes.len() as u64, blob.digest.parse::<Digest>().unwrap())
}

fn wanted(image: &Image, name: &str) -> WantedImage {
    WantedImage {
        pull: name.replace(['/', ':'], "-"),
        names: vec![format!("damage.example/{name}")],
        source: ("damage.example".into(), "image".into()),
        root: descriptor(&image.root),
        documents: vec![(descriptor(&image.root), image.root.bytes.clone())],
        config: (descriptor(&image.configs[0]), image.configs[0].bytes.clone()),
        layers: image.layers.iter().map(descriptor).collect(),
    }
}

/// The import into containerd and our unpacking each read the layer. Whichever of them reads a wrong byte once, the image that
/// is there in the end is right.
async fn a_bit_that_flips_for_one_of_two_readers(version: Version) {
    let Some(containerd) = Containerd::start(version, Default::default()).await.unwrap() else { return };
    let runtime = stoker_runtime::Containerd::connect(Settings::new(containerd.socket())).await.unwrap();
    for wrong in [0, 1] {
        // Not compressed: a wrong byte makes no broken stream, but another file.
        let layer = LayerBuilder::new().noise("noise", 600_000, 7 + wrong as u64).build(Compression::None).unwrap();
        let image = ImageBuilder::new().layer(&layer).build();
        let (right, mut damaged) = (image.layers[0].bytes.clone(), image.layers[0].bytes.to_vec());
        damaged[300_000] ^= 1;
        let (damaged, opened, first) = (Bytes::from(damaged), AtomicUsize::new(0), Notify::new());
        let open = |from: u64| {
            first.notify_one();
            let bytes = if opened.fetch_add(1, Ordering::Relaxed) == wrong { &damaged } else { &right };
            futures::stream::iter([Ok::<_, std::io::Error>(bytes.slice(from as usize..))]).boxed()
        };
        let name = format!("reader:{wrong}");
        let session = runtime.begin(wanted(&image, &name), Timestamp::now()).await.unwrap();
        // A layer that is held back is imported when it is complete: our unpacking is the first to read.
        let complete = first.notified().map(Ok).boxed();
        let taken = std::sync::atomic::AtomicU64::new(0);
        let blob = LayerSource { open: &open, complete, slow: &|| true, taken: &taken };
        session.layer(0, Some(blob), &Purse::bottomless()).await.unwrap();
        session.finish().await.unwrap();
        assert!(opened.load(Ordering::Relaxed) > wrong, "the wrong bytes were read");
        assert_right(&containerd, &image.layers[0].digest);
        let mount = containerd.mount(&format!("damage.example/{name}")).await.unwrap();
        let file = std::fs::read(mount.join("noise")).unwrap();
        let within = |tar: &Bytes| tar.windows(file.len()).any(|part| part == file);
        assert!(within(&right) && !within(&damaged), "the file has a wrong byte");
    }
}
on_both!(quick a_bit_that_flips_for_one_of_two_readers);

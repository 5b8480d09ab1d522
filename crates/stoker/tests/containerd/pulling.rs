//! Images come, look like any other, and run with the registry gone.

use stoker_testbed::containerd::Version;
use stoker_testbed::image::{Compression, ImageBuilder, LayerBuilder, busybox};

use crate::bed::{Node, Registry, on_both};

async fn an_image_runs_with_the_registry_gone(version: Version) {
    let Some(mut registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let base = busybox().unwrap().file("etc/motd", "hello").build(Compression::Gzip).unwrap();
    let top = LayerBuilder::new().whiteout("etc/motd").file("etc/news", "good").build(Compression::Gzip).unwrap();
    let image = ImageBuilder::new().layer(&base).layer(&top).build();
    let name = registry.push("shop/web", "v1", &image).await;
    node.pull(&name).await.exits(0);
    let fetched = registry.link.received();
    assert!(fetched < image.layer_bytes() + 50_000, "{fetched}");
    let names = node.names().await;
    assert!(names.contains(&name), "{names:?}");
    registry.real.stop();
    let ran = node.containerd.run(&name, &["/bin/sh", "-c", "cat /etc/news; ls /etc"]).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "goodnews\n");
    node.up.run(&["get", "nodes"]).await.exits(0).says("containerd");
}
on_both!(quick an_image_runs_with_the_registry_gone);

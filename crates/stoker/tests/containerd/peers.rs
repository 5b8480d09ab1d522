//! A node that reads an image from the containerd of another one, which has had it for a while. Whether containerd keeps packed layers or throws
//! them away, the image leaves the registry once.

use std::net::TcpListener;
use std::process::Child;

use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::api::{Api, DynamicObject, PostParams};
use serde_json::{Value, json};
use stoker_testbed::containerd::{Containerd, Options, Version};
use stoker_transfer::Platform;

use crate::bed::{Node, Registry, bound, collect, on_both, reports};
use crate::wishes::noise;

/// What documents and headers may have.
const REST: u64 = 10_000;

/// A second node of the same cluster, with a containerd of its own.
struct Second {
    containerd: Containerd,
    agent: Child,
    _data: tempfile::TempDir,
}

impl Second {
    /// `None`, said loudly, where there is no such containerd.
    async fn join(first: &Node, version: Version, options: Options) -> Option<Self> {
        let containerd = Containerd::start(version, options).await.unwrap()?;
        let Platform { os, architecture, .. } = Platform::host();
        let node = json!({
            "metadata": {"name": "second", "labels": {"kubernetes.io/os": os, "kubernetes.io/arch": architecture}},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            },
        });
        let node: KubeNode = serde_json::from_value(node).unwrap();
        Api::<KubeNode>::all(first.up.client().await).create(&PostParams::default(), &node).await.unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let (data, endpoint) = (tempfile::tempdir().unwrap(), containerd.endpoint());
        let mut agent = first.up.command(&["agent", "--node", "second", "--peer-port", &port, "--max-disk", "100"]);
        agent.args(["--runtime", "containerd", "--runtime-endpoint", &endpoint, "--data"]).arg(data.path());
        let second = Self { containerd, agent: agent.spawn().unwrap(), _data: data };
        let reads = |object: &DynamicObject| object.data.pointer("/status/agent/peer/port").is_some();
        first.up.wait("NodePreheat", "second", reads).await;
        Some(second)
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}

async fn served(version: Version, discard_unpacked_layers: bool) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let options = || Options { discard_unpacked_layers, ..Options::default() };
    let Some(first) = Node::start_with(version, options(), &[]).await else { return };
    let Some(second) = Second::join(&first, version, options()).await else { return };
    let image = noise(3, 2_000_000, 30);
    let name = registry.push("shop/web", "v1", &image).await;
    first.up.run(&["pull", &name, "--node", "node-1"]).await.exits(0);
    let once = registry.link.received();
    assert!(once <= bound(&image, 0), "{once}");
    // All that containerd does not need is gone before anybody reads.
    collect(&first.containerd).await;
    let blobs = first.containerd.ctr_ok(&["content", "ls", "-q"]).await.unwrap();
    let kept = image.layers.iter().filter(|layer| blobs.contains(&layer.digest)).count();
    assert_eq!(kept, if discard_unpacked_layers { 0 } else { 3 }, "{blobs}");

    first.up.run(&["pull", &name, "--node", "second", "--source", "PeersOnly"]).await.exits(0);
    let more = registry.link.received() - once;
    assert!(more < REST, "{more}: it was asked what the tag means, and no more");
    second.containerd.mount(&name).await.unwrap();
    let object = first.up.api("NodePreheat").await.get("second").await.unwrap();
    let report = reports(&object).remove(0);
    assert_eq!((report.phase.as_str(), report.upstream), ("Succeeded", 0), "{report:?}");
    let all = object.data["status"]["reports"].as_object().unwrap();
    let peers: u64 = all.values().filter_map(|report| report.pointer("/bytes/peers")).filter_map(Value::as_u64).sum();
    assert!(peers >= image.layer_bytes(), "{peers} bytes came from the other node");
}

async fn an_image_is_read_from_the_containerd_of_another_node(version: Version) {
    served(version, false).await;
}
on_both!(quick an_image_is_read_from_the_containerd_of_another_node);

async fn an_image_is_read_from_another_node_that_throws_blobs_away(version: Version) {
    served(version, true).await;
}
on_both!(an_image_is_read_from_another_node_that_throws_blobs_away);

//! Nodes that read images from each other, as pods of a real cluster.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use serde_json::Value;
use stoker_transfer::peer::{Peer, PeerIdentity, PeerList, PeerReader, PeerWays};
use stoker_transfer::{Digest, Platform, Reference};

use crate::bed::{Cluster, image};
use crate::link::Linked;

fn is_running(pod: Option<&Pod>) -> bool {
    pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()).is_some_and(|phase| phase == "Running")
}

/// The order of a NodePreheat that fetches an image.
fn order_in<'a>(object: &'a DynamicObject, image: &str) -> Option<&'a Value> {
    let fetches = |order: &&Value| order["image"] == image && order["ask"] == "Fetch";
    object.data["spec"]["orders"].as_object()?.values().find(fetches)
}

/// Pulls an image, and returns the first order of `node` that fetches it and is as `wanted`. The order is watched for while the job runs: the controller
/// removes the orders of an ended job along with its next write.
async fn pull_and_see_order(cluster: &Cluster, pull: &[&str], node: &str, wanted: fn(&Value) -> bool) -> Value {
    let image = pull[0];
    let has_it =
        move |object: Option<&DynamicObject>| object.and_then(|object| order_in(object, image)).is_some_and(wanted);
    let node_preheats = cluster.node_preheats();
    let words = [&["pull"], pull].concat();
    let (pulled, seen) = tokio::join!(cluster.stoker(&words), cluster.wait(&node_preheats, node, has_it));
    pulled.exits(0);
    order_in(&seen.unwrap(), image).unwrap().clone()
}

/// How n1 serves, as the API server knows it.
async fn n1(cluster: &Cluster) -> Peer {
    let object: DynamicObject = cluster.node_preheats().get("n1").await.unwrap();
    let peer = object.data["status"]["agent"]["peer"].clone();
    let (port, key) = (peer["port"].as_u64().unwrap(), peer["key"].as_str().unwrap());
    let address = format!("10.77.0.11:{port}").parse().unwrap();
    Peer { node: "n1".into(), addr: address, id: key.parse().unwrap(), far: false }
}

/// One node reaches the registry, the other one does not: both have the image, and pods run from it. Then somebody has taken over the second node,
/// with its key and its ticket: it can read what it was ordered to have, and nothing else.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_node_that_cannot_reach_the_registry_reads_what_it_was_ordered_from_one_that_can_and_nothing_else() {
    let Some(cluster) = Cluster::enter().await else { return };
    let linked = Linked::start(&cluster, &[], image(20_000_000)).await;
    let folder = format!("/etc/containerd/certs.d/{}", linked.link.host());
    let nobody = "server = \"http://127.0.0.1:1\"\n[host.\"http://127.0.0.1:1\"]\n";
    cluster.on_node("n2", &format!("cat > {folder}/hosts.toml <<'END'\n{nobody}END\n")).await.exits(0);
    let pull = [linked.reference.as_str(), "--name", "web", "--upstream-copies", "1"];
    // The first order of n2 has no ticket if n2 was to fetch from the registry at first.
    let own = pull_and_see_order(&cluster, &pull, "n2", |order| order["ticket"].is_string()).await;
    linked.sent_at_most(1, 0);
    for node in ["n1", "n2"] {
        cluster.start_pod(&format!("relayed-{node}"), node, &linked.reference).await;
        cluster.wait(&cluster.pods(), &format!("relayed-{node}"), is_running).await;
    }
    let shown = cluster.stoker(&["get", "web", "-o", "wide"]).await;
    shown.exits(0).says("n1");

    let stolen = cluster.on_node("n2", "od -An -v -tx1 /var/lib/stoker/peer.key").await;
    let stolen = stolen.exits(0).out.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap());
    let thief = PeerReader::new(PeerIdentity::from_bytes(&stolen.collect::<Vec<u8>>()).unwrap());
    let ticket = own["ticket"].as_str().unwrap();
    let root = |order: &Value| -> Digest { order["pin"]["digest"].as_str().unwrap().parse().unwrap() };
    let ways = |reader: &PeerReader, ticket: &str, peer: &Peer| {
        let list = PeerList { upstream: false, ticket: ticket.into(), peers: vec![peer.clone()] };
        PeerWays::new(reader.clone(), list)
    };
    let (n1, platform) = (n1(&cluster).await, Platform::host());
    let reference: Reference = linked.reference.parse().unwrap();
    // It asks again and again where nobody gives anything.
    let reads = async |ways: &PeerWays, root: &Digest| {
        let read = ways.image(&reference, root, &platform);
        tokio::time::timeout(Duration::from_secs(5), read).await.is_ok_and(|read| matches!(read, Ok(Some(_))))
    };
    assert!(reads(&ways(&thief, ticket, &n1), &root(&own)).await, "what it was ordered to have");
    let stranger = PeerReader::new(PeerIdentity::generate().unwrap());
    let copied = ways(&stranger, ticket, &n1);
    assert!(!reads(&copied, &root(&own)).await, "a ticket is worthless without its key");
    let why = copied.exhausted().unwrap_or_default();
    assert!(why.contains("refuses the ticket"), "{why}");
    let (secret, _) = cluster.push("shop/secret", 100_000).await;
    let pull = [secret.as_str(), "--node", "n1", "--name", "secret"];
    let hidden = pull_and_see_order(&cluster, &pull, "n1", |order| order["pin"]["digest"].is_string()).await;
    for ticket in [ticket, "", "AAAA"] {
        let ways = ways(&thief, ticket, &n1);
        assert!(!reads(&ways, &root(&hidden)).await, "{:?}", ways.exhausted());
    }
}

//! A network that is parted in the middle of a transfer, and heals.

use kube::api::{Patch, PatchParams};

use super::halves::half;
use super::*;

/// So slow that no node has the image before the others complain.
const CRAWL: u64 = 1 << 20;

impl Fleet {
    fn net(&self) -> &Halves {
        &self.apart.as_ref().unwrap().0
    }

    /// The nodes of the half of this one, and those of the other half.
    fn split(&self, node: &str) -> (Vec<&str>, Vec<&str>) {
        self.agents.keys().map(String::as_str).partition(|other| half(other) == half(node))
    }

    /// Parts the halves. The one without the source says that it has none and waits; the other one goes on and has the image. Then all is
    /// well again.
    async fn part_and_heal(&self, job: &str, source: &str, hurry: impl AsyncFn()) -> Value {
        let (near, far) = self.split(source);
        eventually("all nodes have a part", async || {
            self.agents.keys().all(|node| *node == source || self.spooled(node) > SIZE as u64 / 8)
        })
        .await;
        self.net().part();
        let starves = async || {
            for node in &far {
                if self.report(node).await["reason"] == "NoSource" {
                    return true;
                }
            }
            false
        };
        eventually("a node says that it has no source", starves).await;
        self.up.run(&["why", job]).await.exits(0).says("NoSource");
        hurry().await;
        for node in near {
            eventually("a node near the source has it", async || self.report(node).await["phase"] == "Succeeded").await;
        }
        for node in &far {
            let report = self.report(node).await;
            assert_eq!(report["phase"], "Pulling", "{node}: {report:#}");
            assert!(self.spooled(node) < SIZE as u64, "{node} has it, from nobody");
        }
        self.net().heal();
        succeeds(self, job).await
    }
}

#[tokio::test]
#[ignore = "long"]
async fn a_half_without_source_waits_and_goes_on_at_its_byte_when_the_network_heals() {
    let test = "relay::partition::a_half_without_source_waits_and_goes_on_at_its_byte_when_the_network_heals";
    let Some(net) = Halves::enter(test) else { return };
    let fleet = Fleet::start_in(Some(net), 4).await;
    let image = fleet.push("shop/web", 8);
    fleet.registry.pace(PACE);
    fleet.preheat("web", &image, json!({"upstreamCopies": 1})).await;
    eventually("all nodes have their orders", async || fleet.chain().await.len() == 4).await;
    let seed = fleet.chain().await.remove(0);
    fleet.until_left(SIZE as u64 / 4).await;
    fleet.registry.pace(CRAWL);
    let status = fleet.part_and_heal("web", &seed, async || fleet.registry.pace(u64::MAX)).await;
    let once = fleet.left();
    assert!(once < SIZE as u64 + 4096, "{once} bytes left the registry: {status:#}");
    assert_eq!((&status["bytes"]["upstream"], &status["bytes"]["peers"]), (&json!(once), &json!(3 * once)));
    fleet.verify(1);

    // The same where nobody may ask the registry, and a node has the image.
    let image = fleet.push("shop/next", 9);
    fleet.up.run(&["pull", &image, "--node", "n03"]).await.exits(0);
    let twice = fleet.left();
    let limit = async |upload: Value| {
        let patch = Patch::Merge(json!({"spec": {"upload": upload}}));
        fleet.up.api("NodePreheat").await.patch("n03", &PatchParams::default(), &patch).await.unwrap();
    };
    limit(json!("3Mi")).await;
    fleet.preheat("next", &image, json!({"source": "PeersOnly"})).await;
    let status = fleet.part_and_heal("next", "n03", async || limit(Value::Null).await).await;
    assert_eq!(fleet.left(), twice, "nothing left the registry: {status:#}");
    assert_eq!(status["bytes"]["peers"], json!(3 * (twice - once)), "{status:#}");
    for agent in fleet.agents.values() {
        let blobs = hash_again(&agent.data.join("images/blobs/sha256"));
        assert_eq!(blobs, 5, "two manifests, two layers, and a configuration that is the same");
    }
}

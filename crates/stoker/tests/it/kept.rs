//! What was fetched for a job that is deleted or suspended stays for the one that wants it next. Counted in bytes at the
//! registry.

use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use stoker_testbed::registry::{Fault, On, Registry, noise};

use crate::bed::{Up, eventually};

const MIB: u64 = 1 << 20;

/// A node whose pull of one layer of 4 MiB stands still when half of it is in the spool; and a job for it.
struct Half {
    registry: Registry,
    up: Up,
    image: String,
    layer: String,
}

impl Half {
    async fn start(more: &[&str]) -> Self {
        let registry = Registry::start().await.unwrap();
        let pushed = registry.push("shop/web", "v1", &[noise(4 << 20, 1)]);
        let layer = pushed.layers[0].clone();
        registry.fault(On::Path(layer.clone()), 1, Fault::StallAfter(2 * MIB));
        let up = Up::start_with(tempfile::tempdir().unwrap(), 1, more);
        let image = format!("{}/shop/web:v1", registry.host());
        let half = Self { registry, up, image, layer };
        half.begin("first").await;
        eventually("half of the layer is in the spool", async || half.spooled() == Some(2 * MIB)).await;
        half
    }

    async fn begin(&self, name: &str) {
        self.up.run(&["pull", &self.image, "--name", name, "--no-wait"]).await.exits(0);
    }

    /// The bytes of the layer in the spool.
    fn spooled(&self) -> Option<u64> {
        let file = format!("{}.{}", &self.layer["sha256:".len()..], 4 * MIB);
        std::fs::metadata(self.up.data().join("nodes/node-1/spool").join(file)).ok().map(|file| file.len())
    }

    /// Waits until the agent has noted that nobody wants what was fetched.
    async fn left(&self) {
        let noted = async || {
            let pulls = std::fs::read_dir(self.up.data().join("nodes/node-1/pulls")).unwrap();
            let texts = pulls.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap_or_default());
            texts.filter(|text| text.contains("\"left\"")).count() == 1
        };
        eventually("what was fetched is left", noted).await;
    }

    /// That the job ends well, and asks for no byte that was in the spool. (How many bytes of an answer that is dropped
    /// the kernel has taken is a matter of how busy the machine is.)
    async fn ends(&self, name: &str) {
        let status = self.up.ended("Preheat", name).await;
        assert_eq!(status["phase"], "Succeeded", "{status:#}");
        let asked: Vec<Option<String>> =
            self.registry.requests(&self.layer).into_iter().map(|seen| seen.range).collect();
        let from = |range: &Option<String>| -> Option<u64> {
            range.as_deref()?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
        };
        let rest = |range: &Option<String>| from(range).is_some_and(|from| from >= 2 * MIB);
        assert!(asked[1..].iter().all(rest), "{asked:?}");
        let pulls = std::fs::read_dir(self.up.data().join("nodes/node-1/pulls")).unwrap().count();
        assert_eq!((self.spooled(), pulls), (None, 0), "nothing is left");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_deleted_and_made_anew_goes_on_where_it_was() {
    let half = Half::start(&[]).await;
    half.up.run(&["delete", "first"]).await.exits(0);
    half.left().await;
    assert_eq!(half.spooled(), Some(2 * MIB));
    half.begin("second").await;
    half.ends("second").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_left_is_there_after_a_restart_of_the_agent() {
    let mut half = Half::start(&[]).await;
    half.up.run(&["delete", "first"]).await.exits(0);
    half.left().await;
    half.up.kill_and_restart();
    half.begin("second").await;
    half.ends("second").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_two_jobs_is_deleted_and_the_other_goes_on_where_it_was() {
    let half = Half::start(&[]).await;
    half.begin("second").await;
    let waits = |object: &kube::api::DynamicObject| object.data.pointer("/status/startTime").is_some();
    half.up.wait("Preheat", "second", waits).await;
    half.up.run(&["delete", "first"]).await.exits(0);
    half.registry.let_go();
    half.ends("second").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_suspended_goes_on_where_it_was() {
    let half = Half::start(&[]).await;
    let suspend = async |suspend: bool| {
        let patch = Patch::Merge(json!({"spec": {"suspend": suspend}}));
        half.up.api("Preheat").await.patch("first", &PatchParams::default(), &patch).await.unwrap();
    };
    suspend(true).await;
    let held = |object: &kube::api::DynamicObject| {
        let orders = object.data.pointer("/spec/orders").and_then(Value::as_object);
        orders.is_some_and(|orders| orders.values().any(|order| order["hold"] == true))
    };
    half.up.wait("NodePreheat", "node-1", held).await;
    suspend(false).await;
    half.ends("first").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_told_so_keeps_nothing() {
    let half = Half::start(&["--keep-fetched", "0s"]).await;
    half.up.run(&["delete", "first"]).await.exits(0);
    eventually("the spool is empty", async || half.spooled().is_none()).await;
    let pulls = half.up.data().join("nodes/node-1/pulls");
    eventually("no pull is noted", async || std::fs::read_dir(&pulls).unwrap().next().is_none()).await;
}

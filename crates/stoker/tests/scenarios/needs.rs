//! An order that wants more than the agent knows, as from a controller that is newer than it.

use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::json;
use stoker_api::native::{NodePreheat, Preheat};
use stoker_testbed::registry::{Registry, noise};

use crate::bed::{Site, Wishes};

/// The key of the order to fetch an image.
fn key(object: &DynamicObject, image: &str) -> Option<String> {
    let orders = object.data.pointer("/spec/orders")?.as_object()?;
    orders.iter().find(|(_, order)| order["ask"] == "Fetch" && order["image"].as_str().is_some_and(|name| name.contains(image))).map(|(key, _)| key.clone())
}

pub(crate) async fn an_order_that_needs_what_an_agent_lacks_fails_and_others_go_on(site: &Site) {
    let registry = Registry::start().await.unwrap();
    let slow = registry.push("shop/slow", "v1", &[noise(200_000, 1)]);
    registry.push("shop/newer", "v1", &[noise(1_000, 2)]);
    registry.push("shop/later", "v1", &[noise(1_000, 3)]);
    // One pull at a time: what is ordered while it lasts has not begun, and can still be changed.
    let bed = site.bed(Wishes { agents: &["--max-pulls", "1"], ..Wishes::default() }).await;
    let node = bed.nodes[0].as_str();
    let order = async |name: &str, more: &[&str]| {
        let image = format!("{}/shop/{name}:v1", registry.host());
        bed.run(&[&["pull", &image, "--name", name, "--node", node, "--no-wait"], more].concat()).await.exits(0);
    };
    // Slow, and not stalled: that would give its place away.
    order("slow", &["--bandwidth", "4Ki"]).await;
    registry.wait_for(|seen| seen.iter().any(|seen| seen.path.contains(&slow.layers[0]))).await;
    order("newer", &[]).await;
    order("later", &[]).await;
    let object = bed.wait("NodePreheat", node, |object| key(object, "shop/newer").is_some()).await;
    let key = key(&object, "shop/newer").unwrap();
    // No controller of this version needs anything, so the administrator writes what a later one would.
    let patch = json!({"spec": {"orders": {&key: {"needs": ["telepathy"]}}}});
    let preheats: Api<NodePreheat> = Api::all(bed.administrator.clone());
    preheats.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();

    let report = |object: &DynamicObject| object.data.pointer(&format!("/status/reports/{key}")).cloned();
    let ended = |object: &DynamicObject| report(object).is_some_and(|report| report["phase"] != "Pulling");
    let object = bed.wait("NodePreheat", node, ended).await;
    let report = report(&object).unwrap();
    assert_eq!((&report["phase"], &report["reason"]), (&json!("Failed"), &json!("Unsupported")), "{report:#}");
    let newer = bed.ended("Preheat", "newer").await;
    assert_eq!(newer["phase"], "Failed", "{newer:#}");
    assert_eq!(newer["failedNodes"][0]["reason"], "Unsupported", "{newer:#}");
    let why = bed.run(&["get", "newer"]).await;
    why.exits(0).says("Unsupported").says("this agent does not know telepathy; update it to the controller's version");
    let fetched = registry.requests("shop/newer").iter().filter(|seen| seen.path.contains("/blobs/")).count();
    assert_eq!(fetched, 0, "nothing was fetched for it");

    // What waits for its turn says so, along with what the node says of others.
    let behind = |object: &DynamicObject| {
        let reports = object.data.pointer("/status/reports").and_then(|reports| reports.as_object());
        reports.into_iter().flatten().any(|(_, report)| report["message"] == "behind 1 other image on this node")
    };
    bed.wait("NodePreheat", node, behind).await;
    bed.run(&["why", "later"]).await.exits(0).says("behind 1 other image on this node");

    // The pull that was under way goes on, and so does what waits behind the order that was refused.
    let quick = Patch::Merge(json!({"spec": {"pace": {"bandwidth": "100Mi"}}}));
    let jobs: Api<Preheat> = Api::default_namespaced(bed.client().await);
    jobs.patch("slow", &PatchParams::default(), &quick).await.unwrap();
    for name in ["slow", "later"] {
        let status = bed.ended("Preheat", name).await;
        assert_eq!(status["phase"], "Succeeded", "{status:#}");
    }
}

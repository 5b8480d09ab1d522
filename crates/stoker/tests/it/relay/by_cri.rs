//! A node whose runtime pulls by itself, among nodes that read from each other.

use stoker_testbed::scripted::{Ends, Script, Scripted};

use super::*;

/// Such a runtime asks the registry whatever the job says, so it is not asked for an image that must come from other nodes.
#[tokio::test]
async fn a_node_that_pulls_by_cri_waits_where_nobody_may_ask_the_registry() {
    let mut fleet = Fleet::start(2).await;
    let folder = fleet.home.path().join("runtime");
    let runtime = Scripted::open("n03", &folder, Script::default(), Ends::untold()).unwrap();
    let endpoint = format!("unix://{}", runtime.socket().display());
    tokio::spawn(runtime.serve());
    let cri = ["--runtime", "cri", "--runtime-endpoint", &endpoint, "--max-disk", "100"];
    fleet.join_with("n03", fleet.home.path().join("n03"), &cri).await;
    let pushed = fleet.registry.push("shop/web", "v1", &[noise(1 << 20, 12)]);
    let image = format!("{}/shop/web@{}", fleet.registry.host(), pushed.manifest);
    fleet.up.run(&["pull", &image, "--node", "n01"]).await.exits(0);
    let once = fleet.left();
    fleet.preheat("web", &image, json!({"source": "PeersOnly"})).await;
    let one_waits = |object: &DynamicObject| {
        let waiting = object.data.pointer("/status/waitingFor").and_then(Value::as_array).cloned().unwrap_or_default();
        object.data["status"]["succeeded"] == 2 && waiting.iter().any(|waiting| waiting["reason"] == "NoSource")
    };
    fleet.up.wait("Preheat", "web", one_waits).await;
    fleet.up.run(&["why", "web"]).await.exits(0).says("NoSource").says("n03");
    assert_eq!(fleet.left(), once);
    assert!(!folder.join("images").exists(), "the runtime was asked to pull");

    // It may where one more node may ask the registry.
    let runtime = stoker_testbed::scripted::digest(&image);
    assert_eq!(runtime, pushed.manifest);
    fleet.up.run(&["delete", "web"]).await.exits(0);
    fleet.up.run(&["pull", &image, "--node", "n03"]).await.exits(0);
    assert!(std::fs::read_to_string(folder.join("images")).unwrap().contains(&pushed.manifest));
}

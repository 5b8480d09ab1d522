//! What others wrote into objects never reaches a terminal as it is.

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::bed::{Ran, Up};

/// Clears the screen, names the window, writes from right to left, and makes another line.
const EVIL: &str = "x\u{1b}[2J\u{1b}]0;owned\u{7}\u{202e}\u{9b}31m\r\nnode-9  Done  has every image";

#[track_caller]
fn is_plain(ran: &Ran) {
    for text in [&ran.out, &ran.err] {
        let raw = text.chars().find(|letter| *letter != '\n' && letter.is_control() || *letter == '\u{202e}');
        assert_eq!(raw, None, "{text:?}");
        assert!(!text.lines().any(|line| line.starts_with("node-9")), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_characters_in_objects_are_shown_and_not_acted_on() {
    let up = Up::start(1);
    let paused = ["pull", "registry.example/shop:v1", "--name", "web", "--parallelism", "0", "--no-wait"];
    up.run(&paused).await.exits(0);
    // An ended job is nobody's to write any more but ours.
    let failed = json!([{ "node": "node-1", "reason": "StoreError", "message": EVIL }]);
    let ended = json!({ "status": {
        "phase": "Failed", "desired": 1, "failed": 1, "failedNodes": failed, "message": EVIL, "observedGeneration": 1,
        "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:01Z",
    } });
    let jobs = up.api("Preheat").await;
    jobs.patch_status("web", &PatchParams::default(), &Patch::Merge(&ended)).await.unwrap();
    for command in [&["get", "web"][..], &["get", "-o", "wide"], &["why", "web"]] {
        is_plain(up.run(command).await.exits(0).says("\\u001b[2J"));
    }
    // Programs read what is there.
    let (json, yaml) = (up.run(&["get", "web", "-o", "json"]).await, up.run(&["get", "web", "-o", "yaml"]).await);
    is_plain(json.exits(0));
    is_plain(yaml.exits(0));
    let (json, yaml): (Value, Value) =
        (serde_json::from_str(&json.out).unwrap(), serde_saphyr::from_str(&yaml.out).unwrap());
    assert_eq!(json["status"]["message"], EVIL);
    assert_eq!(yaml, json);

    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "evil" } });
    let node: Node = serde_json::from_value(node).unwrap();
    Api::<Node>::all(up.client().await).create(&PostParams::default(), &node).await.unwrap();
    up.create(&json!({ "apiVersion": "stoker.dev/v1alpha1", "kind": "NodePreheat", "metadata": { "name": "evil" }, "spec": {} }).to_string()).await;
    let agent =
        json!({ "status": { "agent": { "runtime": EVIL, "platform": EVIL, "version": EVIL, "chosen": EVIL } } });
    let preheats = up.api("NodePreheat").await;
    preheats.patch_status("evil", &PatchParams::default(), &Patch::Merge(&agent)).await.unwrap();
    is_plain(up.run(&["get", "nodes", "-o", "wide"]).await.exits(0).says("\\u001b[2J"));
}

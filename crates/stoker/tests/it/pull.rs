//! `stoker pull` against `stoker up`.

use std::io::BufRead as _;
use std::process::{Command, Stdio};

use futures::{StreamExt as _, TryStreamExt as _};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::{Value, json};
use stoker_testbed::registry::{Fault, On, Registry, noise};

use crate::bed::{Up, rest, stoker};

#[tokio::test(flavor = "multi_thread")]
async fn an_image_reaches_every_node_and_is_there_the_second_time() {
    let registry = Registry::start().await.unwrap();
    let layers = [noise(300_000, 1), noise(5_000, 2)];
    let pushed = registry.push("shop/web", "v1", &layers);
    let up = Up::start(3);
    let image = format!("{}/shop/web:v1", registry.host());
    up.run(&["pull", &image, "--parallelism", "2"]).await.exits(0).says("on all 3 nodes");
    for layer in &pushed.layers {
        assert_eq!(registry.requests(layer).len(), 3, "one request a node");
    }
    let heads = registry.seen().iter().filter(|seen| seen.path.ends_with("manifests/v1")).count();
    assert_eq!(heads, 1, "the tag is resolved once, by one node");
    let before = registry.seen().len();
    up.run(&["pull", &image]).await.exits(0).says("already on all 3 nodes, nothing was fetched");
    assert_eq!(registry.seen().len(), before, "the registry was not even asked");
    let get = up.run(&["get"]).await;
    get.exits(0);
    assert_eq!(get.out.matches("Succeeded").count(), 2, "{}", get.out);
    for node in ["node-1", "node-2", "node-3"] {
        let blob = up.images(node).join("blobs/sha256").join(pushed.layers[0].trim_start_matches("sha256:"));
        assert_eq!(std::fs::read(blob).unwrap(), layers[0]);
    }
}

/// The writes of a node's object, without those of mere progress: that its image is on its way, and how far.
fn writes(seen: &[DynamicObject], node: &str) -> usize {
    let mut states: Vec<Value> = Vec::new();
    for object in seen.iter().filter(|object| object.name_any() == node) {
        let mut state = json!({ "orders": object.data.pointer("/spec/orders"), "reports": {} });
        for (key, report) in object.data.pointer("/status/reports").and_then(Value::as_object).into_iter().flatten() {
            if report["phase"] != "Pulling" || !report["pin"].is_null() {
                state["reports"][key] = json!([report["phase"], report["pin"]]);
            }
        }
        if states.last() != Some(&state) {
            states.push(state);
        }
    }
    states.len() - 1
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_costs_a_node_two_writes_and_the_one_that_asks_one_more() {
    let registry = Registry::start().await.unwrap();
    registry.push("shop/web", "v1", &[noise(1_000, 1)]);
    let up = Up::start(3);
    for node in ["node-1", "node-2", "node-3"] {
        up.wait("NodePreheat", node, |object| object.data.pointer("/status/agent").is_some()).await;
    }
    let watch = watcher(up.api("NodePreheat").await, Default::default()).applied_objects().boxed();
    let image = format!("{}/shop/web:v1", registry.host());
    let pulled = async {
        up.run(&["pull", &image]).await.exits(0);
    };
    let seen: Vec<DynamicObject> = watch.take_until(pulled).try_collect().await.unwrap();
    assert_eq!(["node-1", "node-2", "node-3"].map(|node| writes(&seen, node)), [3, 2, 2], "{seen:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_nodes_are_named_with_their_reasons_while_others_go_on() {
    let registry = Registry::start().await.unwrap();
    registry.push("shop/web", "v1", &[noise(1_000, 1)]);
    let up = Up::start(2);
    let (good, bad) = (format!("{}/shop/web:v1", registry.host()), format!("{}/shop/web:v9", registry.host()));
    let ran = up.run(&["pull", &good, &bad, "--name", "mixed"]).await;
    ran.exits(1).says("2 of 2 nodes failed").says("node-1: NotFound").says("node-2: NotFound").says("v9");
    assert!(up.images("node-2").join("index.json").exists());
    let index = std::fs::read_to_string(up.images("node-2").join("index.json")).unwrap();
    assert!(index.contains("web:v1"), "the good image is there: {index}");
    up.run(&["pull", &good, "--name", "mixed"]).await.exits(1).says("there is a Preheat mixed already");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_nodes_that_were_asked_for() {
    let registry = Registry::start().await.unwrap();
    registry.push("shop/web", "v1", &[noise(1_000, 1)]);
    let up = Up::start(3);
    let image = format!("{}/shop/web:v1", registry.host());
    up.run(&["pull", &image, "--node", "node-2"]).await.exits(0).says("on all 1 nodes");
    assert!(!up.images("node-1").join("blobs/sha256").read_dir().unwrap().any(|_| true));
    up.run(&["pull", &image, "-l", "kubernetes.io/hostname in (node-1,node-2)"]).await.exits(0).says("on all 2 nodes");
    up.run(&["pull", &image, "-l", "pool=none"]).await.exits(1).says("no node matches");
    up.run(&["pull", &image, "--node", "node-9"])
        .await
        .exits(1)
        .says("no node node-9; there are: node-1, node-2, node-3");
    up.run(&["pull", "Not An Image"])
        .await
        .exits(1)
        .says("is not an image reference: the repository must be lowercase");
    up.run(&["pull", &image, "-l", "a b"]).await.exits(2).says("is not a label selector");
    up.run(&["pull", &image, "--timeout", "soon"]).await.exits(2).says("is not a length of time");
    up.run(&["pull", &image, "--parallelism", "-1"]).await.exits(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_stops_following_and_not_the_job() {
    let registry = Registry::start().await.unwrap();
    let layer = noise(200_000, 1);
    let pushed = registry.push("shop/web", "v1", &[layer]);
    registry.fault(On::Path(pushed.layers[0].clone()), usize::MAX, Fault::StallAfter(1_000));
    let up = Up::start(1);
    let image = format!("{}/shop/web:v1", registry.host());
    let follower = up.command(&["pull", &image, "--name", "web"]).stderr(Stdio::piped()).spawn().unwrap();
    registry.wait_for(|seen| seen.iter().any(|seen| seen.path.contains(&pushed.layers[0]))).await;
    up.wait("Preheat", "web", |object| object.data.pointer("/status/pulling") == Some(&1.into())).await;
    let (code, said) = tokio::task::spawn_blocking(move || interrupt(follower)).await.unwrap();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("no longer following; Preheat web goes on"), "{said}");
    registry.let_go();
    up.wait("Preheat", "web", |object| object.data.pointer("/status/phase") == Some(&"Succeeded".into())).await;
}

fn interrupt(mut child: std::process::Child) -> (Option<i32>, String) {
    // It has installed its handler by the time that it follows: the first line of progress says so.
    let mut err = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    err.read_line(&mut first).unwrap();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let said = first + &rest(err);
    (child.wait().unwrap().code(), said)
}

#[test]
fn without_a_cluster_the_error_says_what_to_do() {
    let run = |args: &[&str]| crate::bed::Ran::of(stoker().args(args).output().unwrap());
    run(&["get"]).exits(1).says("no cluster").says("stoker up --data DIR");
    run(&["get", "--kubeconfig", "/nonexistent/config"]).exits(1).says("/nonexistent/config cannot be read");
    run(&["pull"]).exits(2).says("IMAGE");
    run(&["--version"]).exits(0).says(env!("CARGO_PKG_VERSION"));
    run(&["completions", "bash"]).exits(0).says("complete -F");
}

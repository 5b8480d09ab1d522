//! `stoker pull`.

use std::io::BufRead as _;
use std::process::{Command, Stdio};

use futures::{StreamExt as _, TryStreamExt as _};
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, watcher};
use serde_json::{Value, json};
use stoker_testbed::registry::{Fault, On, Registry, noise};

use crate::bed::{Site, Wishes};
use crate::up::{PATIENCE, rest};

pub(crate) async fn an_image_reaches_every_node_and_is_there_the_second_time(site: &Site) {
    let registry = Registry::start().await.unwrap();
    let layers = [noise(300_000, 1), noise(5_000, 2)];
    let pushed = registry.push("shop/web", "v1", &layers);
    let bed = site.bed(Wishes::default()).await;
    let all = bed.nodes.len();
    let image = format!("{}/shop/web:v1", registry.host());
    bed.run(&["pull", &image, "--parallelism", "2"]).await.exits(0).says(&format!("on all {all} nodes"));
    for layer in &pushed.layers {
        let asked = registry.requests(layer).len();
        let few = if bed.relays { (1..all).contains(&asked) } else { asked == all };
        assert!(few, "{asked} requests of {all} nodes");
    }
    let heads = registry.seen().iter().filter(|seen| seen.path.ends_with("manifests/v1")).count();
    assert_eq!(heads, 2, "two nodes ask what the tag means, and all go by what both heard");
    let before = registry.seen().len();
    bed.run(&["pull", &image]).await.exits(0).says(&format!("already on all {all} nodes, nothing was fetched"));
    assert_eq!(registry.seen().len(), before, "the registry was not even asked");
    let get = bed.run(&["get"]).await;
    get.exits(0);
    assert_eq!(get.out.matches("Succeeded").count(), 2, "{}", get.out);
    for node in &bed.nodes {
        let blob = bed.images(node).join("blobs/sha256").join(pushed.layers[0].trim_start_matches("sha256:"));
        assert_eq!(std::fs::read(blob).unwrap(), layers[0]);
    }
}

pub(crate) async fn nodes_look_for_a_tag_that_others_have_and_who_lacks_it_gets_it(site: &Site) {
    let registry = Registry::start().await.unwrap();
    registry.push("shop/web", "v1", &[noise(3_000, 1)]);
    let pushed = registry.push("shop/web", "v2", &[noise(3_000, 2)]);
    let bed = site.bed(Wishes::default()).await;
    let all = bed.nodes.len();
    let [v1, v2] = ["v1", "v2"].map(|tag| format!("{}/shop/web:{tag}", registry.host()));
    bed.run(&["pull", &v1]).await.exits(0);
    let before = registry.seen().len();
    bed.run(&["pull", &v1]).await.exits(0).says(&format!("already on all {all} nodes, nothing was fetched"));
    assert_eq!(registry.seen().len(), before, "the registry was not even asked");
    let last = bed.nodes[all - 1].as_str();
    let looked = |object: &DynamicObject| {
        let orders = object.data.pointer("/spec/orders").and_then(Value::as_object);
        orders.is_some_and(|orders| orders.values().any(|order| order["image"] == v1 && order["needs"] == json!(["look"])))
    };
    let nodes = bed.api("NodePreheat").await.list(&Default::default()).await.unwrap().items;
    assert!(nodes.iter().any(looked), "{nodes:#?}");

    // All but the last one have it: that one looks in vain, and then it is the one that asks.
    let mut some = vec!["pull", &v2];
    some.extend(bed.nodes[..all - 1].iter().flat_map(|node| ["--node", node.as_str()]));
    bed.run(&some).await.exits(0);
    bed.run(&["pull", &v2]).await.exits(0).says(&format!("on all {all} nodes"));
    let heads = registry.seen().iter().filter(|seen| seen.path.ends_with("manifests/v2")).count();
    assert_eq!(heads, 3, "by two nodes for the first job, and by the one that lacks it for the second");
    let manifest = bed.images(last).join("blobs/sha256").join(pushed.manifest.trim_start_matches("sha256:"));
    assert!(manifest.exists(), "{}", manifest.display());
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

/// Whether the node has answered, and well.
fn succeeded(object: &DynamicObject) -> bool {
    let reports = object.data.pointer("/status/reports").and_then(Value::as_object);
    let mut pulls = reports.into_iter().flatten().map(|(_, report)| report).filter(|report| report["phase"] != "Resolved").peekable();
    pulls.peek().is_some() && pulls.all(|report| report["phase"] == "Succeeded")
}

pub(crate) async fn an_image_costs_a_node_two_writes_and_those_that_ask_two_more(site: &Site) {
    let registry = Registry::start().await.unwrap();
    registry.push("shop/web", "v1", &[noise(1_000, 1)]);
    let bed = site.bed(Wishes::default()).await;
    for node in &bed.nodes {
        bed.wait("NodePreheat", node, |object| object.data.pointer("/status/agent").is_some()).await;
    }
    let api = bed.api("NodePreheat").await;
    let mut watch = watcher(api.clone(), Default::default()).boxed();
    let mut seen: Vec<DynamicObject> = Vec::new();
    // From here on the server keeps what happens until it is read.
    while let Some(event) = watch.try_next().await.unwrap() {
        match event {
            watcher::Event::InitApply(object) => seen.push(object),
            watcher::Event::InitDone => break,
            _ => {}
        }
    }
    let image = format!("{}/shop/web:v1", registry.host());
    bed.run(&["pull", &image]).await.exits(0);
    let last = api.list(&Default::default()).await.unwrap().items;
    assert!(last.iter().all(succeeded) && last.len() == bed.nodes.len(), "{last:#?}");
    let same = |one: &DynamicObject, other: &DynamicObject| {
        (one.name_any(), one.resource_version()) == (other.name_any(), other.resource_version())
    };
    let read = async {
        while !last.iter().all(|last| seen.iter().any(|seen| same(seen, last))) {
            if let watcher::Event::Apply(object) = watch.try_next().await.unwrap().unwrap() {
                seen.push(object);
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("the watch does not come to the end");
    // The first two nodes are those that ask: the question and its answer are the two more.
    let wanted = (0..bed.nodes.len()).map(|node| if node < 2 { 4 } else { 2 });
    let written: Vec<usize> = bed.nodes.iter().map(|node| writes(&seen, node)).collect();
    assert_eq!(written, wanted.collect::<Vec<_>>(), "{seen:#?}");
}

pub(crate) async fn failed_nodes_are_named_with_their_reasons_while_others_go_on(site: &Site) {
    let registry = Registry::start().await.unwrap();
    registry.push("shop/web", "v1", &[noise(1_000, 1)]);
    let bed = site.bed(Wishes::default()).await;
    let (good, bad) = (format!("{}/shop/web:v1", registry.host()), format!("{}/shop/web:v9", registry.host()));
    let ran = bed.run(&["pull", &good, &bad, "--name", "mixed"]).await;
    let all = bed.nodes.len();
    ran.exits(1).says(&format!("{all} of {all} nodes failed")).says("v9");
    for node in &bed.nodes {
        ran.says(&format!("{node}: NotFound"));
    }
    let index = std::fs::read_to_string(bed.images(&bed.nodes[1]).join("index.json")).unwrap();
    assert!(index.contains("web:v1"), "the good image is there: {index}");
    bed.run(&["pull", &good, "--name", "mixed"]).await.exits(1).says("there is a Preheat mixed already");
}

pub(crate) async fn only_the_nodes_that_were_asked_for(site: &Site) {
    let registry = Registry::start().await.unwrap();
    registry.push("shop/web", "v1", &[noise(1_000, 1)]);
    let bed = site.bed(Wishes::default()).await;
    let image = format!("{}/shop/web:v1", registry.host());
    let (first, second) = (bed.nodes[0].as_str(), bed.nodes[1].as_str());
    bed.run(&["pull", &image, "--node", second]).await.exits(0).says("on all 1 nodes");
    assert!(!bed.images(first).join("blobs/sha256").read_dir().unwrap().any(|_| true));
    let two = format!("kubernetes.io/hostname in ({first},{second})");
    bed.run(&["pull", &image, "-l", &two]).await.exits(0).says("on all 2 nodes");
    let none = bed.run(&["pull", &image, "-l", "pool=none", "--name", "none"]).await;
    none.exits(1).says("no node matches").says("stoker delete none");
    let waits = |object: &DynamicObject| object.data.pointer("/status/waitingFor/0/reason") == Some(&"NoNodes".into());
    bed.wait("Preheat", "none", waits).await;
    bed.run(&["pull", &image, "--node", "node-9"])
        .await
        .exits(1)
        .says(&format!("no node node-9; there are: {}", bed.nodes.join(", ")));
    bed.run(&["pull", "Not An Image"])
        .await
        .exits(2)
        .says("is not an image reference: the repository must be lowercase");
    bed.run(&["pull", &image, "-l", "a b"]).await.exits(2).says("is not a label selector");
    bed.run(&["pull", &image, "--timeout", "soon"]).await.exits(2).says("is not a length of time");
    bed.run(&["pull", &image, "--parallelism", "-1"]).await.exits(2);
}

pub(crate) async fn ctrl_c_stops_following_and_not_the_job(site: &Site) {
    let registry = Registry::start().await.unwrap();
    let layer = noise(200_000, 1);
    let pushed = registry.push("shop/web", "v1", &[layer]);
    registry.fault(On::Path(pushed.layers[0].clone()), usize::MAX, Fault::StallAfter(1_000));
    let bed = site.bed(Wishes::default()).await;
    let image = format!("{}/shop/web:v1", registry.host());
    let follower = bed.command(&["pull", &image, "--name", "web", "--node", &bed.nodes[0]]).stderr(Stdio::piped()).spawn().unwrap();
    registry.wait_for(|seen| seen.iter().any(|seen| seen.path.contains(&pushed.layers[0]))).await;
    bed.wait("Preheat", "web", |object| object.data.pointer("/status/pulling") == Some(&1.into())).await;
    let (code, said) = tokio::task::spawn_blocking(move || interrupt(follower)).await.unwrap();
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("no longer following; Preheat web goes on"), "{said}");
    registry.let_go();
    bed.wait("Preheat", "web", |object| object.data.pointer("/status/phase") == Some(&"Succeeded".into())).await;
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

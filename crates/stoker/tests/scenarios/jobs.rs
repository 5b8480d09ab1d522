//! `get`, `why` and `delete`.

use kube::api::DynamicObject;
use serde_json::Value;
use stoker_testbed::registry::{Fault, On, Registry, noise};

use crate::bed::{Site, Wishes};

pub(crate) async fn why_says_what_each_node_waits_for_and_delete_stops_it(site: &Site) {
    let registry = Registry::start().await.unwrap();
    let pushed = registry.push("shop/web", "v1", &[noise(200_000, 1)]);
    registry.fault(On::Path(pushed.layers[0].clone()), usize::MAX, Fault::StallAfter(1_000));
    let bed = site.bed(Wishes::default()).await;
    let all = bed.nodes.len();
    let (first, last) = (bed.nodes[0].as_str(), bed.nodes[all - 1].as_str());
    let image = format!("{}/shop/web:v1", registry.host());
    bed.run(&["pull", &image, "--name", "web", "--parallelism", "1", "--no-wait"])
        .await
        .exits(0)
        .says("Preheat web made");
    bed.wait("Preheat", "web", |object| {
        object.data.pointer("/status/waitingFor/0/reason") == Some(&"Parallelism".into())
    })
    .await;
    // What the plan wants may be told before it is ordered.
    registry.wait_for(|seen| seen.iter().any(|seen| seen.path.contains(&pushed.layers[0]))).await;
    let why = bed.run(&["why", "web"]).await;
    why.exits(0).says("the job's parallelism allows (1)");
    assert_eq!(why.out.matches("Waiting").count(), all - 1, "{}", why.out);
    assert_eq!(why.out.matches("Pulling").count(), 1, "{}", why.out);
    let stalls = |object: &DynamicObject| {
        let reports = object.data.pointer("/status/reports").and_then(Value::as_object);
        reports.into_iter().flatten().any(|(_, report)| !report["stalled"].is_null())
    };
    bed.wait("NodePreheat", first, stalls).await;
    bed.run(&["why", "web", first]).await.exits(0).says(first).says("stalled ").says(" s, retrying: ").says("sends nothing");
    bed.run(&["why", "web", "node-9"]).await.exits(1).says("there is no node node-9");
    bed.run(&["get", "web"]).await.exits(0).says(last).says("web:v1").says("Waiting");
    bed.run(&["delete", "web"]).await.exits(0).says("images that are on nodes stay");
    bed.wait("NodePreheat", first, |object| {
        object.data.pointer("/spec/orders").and_then(Value::as_object).is_none_or(|orders| orders.is_empty())
    })
    .await;
    bed.run(&["get", "web"]).await.exits(1).says(&format!("no Preheat web in namespace {}", bed.namespace));
    bed.run(&["delete", "web"]).await.exits(1).says("there are none");
    // The node is free for others.
    registry.let_go();
    bed.run(&["pull", &image]).await.exits(0).says(&format!("on all {all} nodes"));
}

pub(crate) async fn after_the_end_a_job_is_told_of_by_its_own_reports_and_then_by_its_status(site: &Site) {
    let registry = Registry::start().await.unwrap();
    registry.push("shop/web", "v1", &[noise(1_000, 1)]);
    let bed = site.bed(Wishes::default()).await;
    let (first, missing) = (bed.nodes[0].as_str(), format!("{}/shop/web:v9", registry.host()));
    let image = format!("{}/shop/web:v1", registry.host());
    bed.run(&["pull", &image, "--name", "good", "--node", first]).await.exits(0);
    bed.run(&["pull", &missing, "--name", "bad", "--node", first]).await.exits(1);
    // Another job writes to the node, which sweeps the orders of both; the reports stay.
    bed.run(&["pull", &format!("{image}@sha256:{}", "0".repeat(64)), "--name", "other", "--node", first]).await.exits(1);
    bed.run(&["get", "good"]).await.exits(0).says("Done").says("sha256:");
    bed.run(&["why", "bad", first]).await.exits(0).says("NotFound").says("v9");
    bed.run(&["why", "good", "node-99"]).await.exits(1).says("there is no node node-99");
    // A second job for the same image has the report of the node now: nothing of it is told of the first.
    bed.run(&["pull", &missing, "--name", "again", "--node", first]).await.exits(1);
    let told = bed.run(&["why", "bad", first]).await;
    told.exits(0).says("NotFound").says("v9");
    let get = bed.run(&["get", "bad"]).await;
    get.exits(0).says("Failed").says("NotFound");
}

pub(crate) async fn a_job_that_joins_a_pull_sees_how_far_it_is_and_nothing_is_counted_away(site: &Site) {
    let registry = Registry::start().await.unwrap();
    let pushed = registry.push("shop/web", "v1", &[noise(2 << 20, 1)]);
    registry.fault(On::Path(pushed.layers[0].clone()), 1, Fault::StallAfter(1 << 20));
    let bed = site.bed(Wishes::default()).await;
    let (first, image) = (bed.nodes[0].as_str(), format!("{}/shop/web:v1", registry.host()));
    bed.run(&["pull", &image, "--name", "one", "--node", first, "--no-wait"]).await.exits(0);
    registry.wait_for_bytes(&pushed.layers[0], 1 << 20).await;
    bed.run(&["pull", &image, "--name", "two", "--node", first, "--no-wait"]).await.exits(0);
    let bytes = |status: &Value, field: &str| status["bytes"][field].as_u64().unwrap_or(0);
    bed.wait("Preheat", "two", |object| bytes(&object.data["status"], "done") > 0).await;
    registry.let_go();
    for name in ["one", "two"] {
        let status = bed.ended("Preheat", name).await;
        assert_eq!(status["phase"], "Succeeded", "{status:#}");
        assert!(bytes(&status, "upstream") >= 2 << 20, "{name}: {status:#}");
    }
}

pub(crate) async fn objects_and_nodes_are_printed(site: &Site) {
    let registry = Registry::start().await.unwrap();
    registry.push("shop/web", "v1", &[noise(1_000, 1)]);
    let bed = site.bed(Wishes::default()).await;
    let (all, namespace) = (bed.nodes.len(), &bed.namespace);
    bed.run(&["get"]).await.exits(0).says(&format!("no jobs in namespace {namespace}"));
    let image = format!("{}/shop/web:v1", registry.host());
    bed.run(&["pull", &image, "--name", "web"]).await.exits(0);
    let nodes = bed.run(&["get", "nodes"]).await;
    nodes.exits(0).says(&bed.nodes[1]).says("layout").says("linux/").says("Ready");
    let json: Value = serde_json::from_str(&bed.run(&["get", "web", "-o", "json"]).await.out).unwrap();
    assert_eq!(json["kind"], "Preheat");
    assert_eq!(json["status"]["succeeded"], all);
    assert_eq!(json["status"]["conditions"][0]["status"], "True");
    let yaml: Value = serde_saphyr::from_str(&bed.run(&["get", "-o", "yaml"]).await.out).unwrap();
    assert_eq!(yaml["items"][0]["metadata"]["name"], "web");
    let everywhere = bed.operator.run(&["get", "-o", "wide", "-A"]).await;
    everywhere.exits(0).says("NAMESPACE").says(namespace).says(&format!("all images are on all {all} nodes"));
    bed.run(&["get", "web"]).await.exits(0).says("sha256:");
    bed.run(&["why", "web"]).await.exits(0).says("no node is waiting");
    bed.run(&["get", "pod/x"]).await.exits(2).says("`pod` is not a kind of job");
}

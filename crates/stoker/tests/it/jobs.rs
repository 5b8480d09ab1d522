//! `get`, `why`, `delete` and the life of `up`.

use serde_json::Value;
use stoker_testbed::registry::{Fault, On, Registry, noise};

use crate::bed::Up;

#[tokio::test(flavor = "multi_thread")]
async fn why_says_what_each_node_waits_for_and_delete_stops_it() {
    let registry = Registry::start().await.unwrap();
    let pushed = registry.push("shop/web", "v1", &[noise(200_000, 1)]);
    registry.fault(On::Path(pushed.layers[0].clone()), usize::MAX, Fault::StallAfter(1_000));
    let up = Up::start(3);
    let image = format!("{}/shop/web:v1", registry.host());
    up.run(&["pull", &image, "--name", "web", "--parallelism", "1", "--no-wait"])
        .await
        .exits(0)
        .says("Preheat web made");
    up.wait("Preheat", "web", |object| {
        object.data.pointer("/status/waitingFor/0/reason") == Some(&"Parallelism".into())
    })
    .await;
    let why = up.run(&["why", "web"]).await;
    why.exits(0).says("the job's parallelism allows (1)");
    assert_eq!(why.out.matches("Waiting").count(), 2, "{}", why.out);
    assert_eq!(why.out.matches("Pulling").count(), 1, "{}", why.out);
    up.run(&["why", "web", "node-1"]).await.exits(0).says("node-1");
    up.run(&["why", "web", "node-9"]).await.exits(1).says("does not want its images on node node-9");
    up.run(&["get", "web"]).await.exits(0).says("node-3").says("web:v1").says("Waiting");
    up.run(&["delete", "web"]).await.exits(0).says("images that are on nodes stay");
    up.wait("NodePreheat", "node-1", |object| {
        object.data.pointer("/spec/orders").and_then(Value::as_object).is_none_or(|orders| orders.is_empty())
    })
    .await;
    up.run(&["get", "web"]).await.exits(1).says("no Preheat web in namespace default");
    up.run(&["delete", "web"]).await.exits(1).says("there are none");
    // The node is free for others.
    registry.let_go();
    up.run(&["pull", &image]).await.exits(0).says("on all 3 nodes");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_and_nodes_are_printed() {
    let registry = Registry::start().await.unwrap();
    registry.push("shop/web", "v1", &[noise(1_000, 1)]);
    let up = Up::start(2);
    up.run(&["get"]).await.exits(0).says("no jobs in namespace default");
    let image = format!("{}/shop/web:v1", registry.host());
    up.run(&["pull", &image, "--name", "web"]).await.exits(0);
    let nodes = up.run(&["get", "nodes"]).await;
    nodes.exits(0).says("node-2").says("layout").says("linux/").says("Ready");
    let json: Value = serde_json::from_str(&up.run(&["get", "web", "-o", "json"]).await.out).unwrap();
    assert_eq!(json["kind"], "Preheat");
    assert_eq!(json["status"]["succeeded"], 2);
    assert_eq!(json["status"]["conditions"][0]["status"], "True");
    let yaml: Value = serde_saphyr::from_str(&up.run(&["get", "-o", "yaml"]).await.out).unwrap();
    assert_eq!(yaml["items"][0]["metadata"]["name"], "web");
    up.run(&["get", "-o", "wide", "-A"]).await.exits(0).says("NAMESPACE").says("all images are on all 2 nodes");
    up.run(&["get", "web"]).await.exits(0).says("sha256:");
    up.run(&["why", "web"]).await.exits(0).says("no node is waiting");
    up.run(&["get", "pod/x"]).await.exits(1).says("`pod` is not a kind of job");
}

#[tokio::test(flavor = "multi_thread")]
async fn up_stops_cleanly_and_its_kubeconfig_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let up = Up::start(1);
    let mode = std::fs::metadata(up.kubeconfig()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_stoker"))
        .args(["up", "--listen", "127.0.0.1:0", "--data"])
        .arg(up.data())
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&second.stderr).contains("is in use by another stoker"));
    let port = up.client().await; // a port in use is named
    let config = std::fs::read_to_string(up.kubeconfig()).unwrap();
    let address = config.split("https://").nth(1).unwrap().split_whitespace().next().unwrap().trim_matches('"');
    let other = tempfile::tempdir().unwrap();
    let taken = crate::bed::stoker().args(["up", "--listen", address, "--data"]).arg(other.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&taken.stderr).contains(address), "{taken:?}");
    drop(port);
    assert!(up.stop("-TERM").success());
}

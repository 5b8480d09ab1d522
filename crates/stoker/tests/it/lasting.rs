//! What survives a kill at any moment: objects, bytes, the kubeconfig.

use kube::api::DynamicObject;
use serde_json::Value;
use stoker_testbed::registry::{Registry, noise};

use crate::bed::Up;

const MIB: u64 = 1 << 20;

fn field<'a>(object: &'a DynamicObject, pointer: &str) -> &'a Value {
    object.data.pointer(pointer).unwrap_or(&Value::Null)
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_kills_in_the_middle_of_a_pull_lose_nothing() {
    const KILLS: u64 = 20;
    const SIZE: u64 = 60 * MIB;
    let registry = Registry::start().await.unwrap();
    let layers: Vec<_> = (0..3).map(|layer| noise((SIZE / 3) as usize, layer + 1)).collect();
    registry.push("shop/model", "v1", &layers);
    registry.pace(12 * MIB);
    let mut up = Up::start(1);
    let image = format!("{}/shop/model:v1", registry.host());
    up.run(&["pull", &image, "--name", "model", "--no-wait"]).await.exits(0);
    let mut acknowledged = Vec::new();
    for kill in 1..=KILLS {
        // Somewhere in the share of the bytes that is this kill's: not twice at the same place.
        let until = SIZE * kill / (KILLS + 2) + noise(8, kill)[0] as u64 * 4096;
        registry.wait_for_bytes("blobs", until).await;
        let name = format!("note-{kill}");
        up.run(&["pull", &image, "--name", &name, "--parallelism", "0", "--no-wait"]).await.exits(0);
        acknowledged.push(name);
        up.kill_and_restart();
    }
    registry.pace(u64::MAX);
    let done = up.wait("Preheat", "model", |object| !field(object, "/status/completionTime").is_null()).await;
    assert_eq!(field(&done, "/status/phase"), "Succeeded", "{done:#?}");
    let names: Vec<String> = up.run(&["get"]).await.out.lines().map(|line| line.to_string()).collect();
    for name in &acknowledged {
        assert!(names.iter().any(|line| line.starts_with(&format!("{name} "))), "{name} is lost: {names:#?}");
    }
    let sent = registry.body_bytes("blobs");
    let most = SIZE + SIZE / 50 + KILLS * MIB;
    assert!(sent <= most, "{sent} bytes left the registry for {SIZE}, at most {most} are allowed");
    println!("{sent} bytes left the registry for an image of {SIZE}, with {KILLS} kills");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_jobs_their_results_and_the_kubeconfig() {
    let registry = Registry::start().await.unwrap();
    registry.push("shop/web", "v1", &[noise(1_000, 1)]);
    let mut up = Up::start(2);
    let image = format!("{}/shop/web:v1", registry.host());
    up.run(&["pull", &image, "--name", "web"]).await.exits(0);
    let token = |config: String| config.lines().find(|line| line.contains("token:")).map(str::to_string);
    let before = token(std::fs::read_to_string(up.kubeconfig()).unwrap());
    up.kill_and_restart();
    assert_eq!(token(std::fs::read_to_string(up.kubeconfig()).unwrap()), before, "a login stays a login");
    let get = up.run(&["get", "web", "-o", "json"]).await;
    let object: Value = serde_json::from_str(&get.exits(0).out).unwrap();
    assert_eq!(object["status"]["phase"], "Succeeded");
    let asked = registry.seen().len();
    up.run(&["pull", &image]).await.exits(0).says("already on all 2 nodes");
    assert_eq!(registry.seen().len(), asked);
}

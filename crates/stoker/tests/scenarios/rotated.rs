//! A login that changes while a pull runs: what is refused with the old one is tried at once with the new one.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use stoker_testbed::docker_registry::{self, DockerRegistry};
use stoker_testbed::image::{Compression, ImageBuilder, LayerBuilder};
use stoker_testbed::proxy::Proxy;

use crate::bed::{Site, Wishes};
use crate::up::docker_login;

/// The logins that the only order to fetch an image names.
fn logins(object: &DynamicObject) -> Option<Value> {
    let orders = object.data.pointer("/spec/orders")?.as_object()?;
    orders.values().find(|order| order["ask"] == "Fetch").map(|order| order["logins"].clone())
}

pub(crate) async fn a_pull_that_is_refused_goes_on_with_the_secret_that_came_meanwhile(site: &Site) {
    let account = |password: &str| [("ada".to_owned(), password.to_owned())];
    let options = docker_registry::Options { accounts: account("hunter2-old").into(), tls: false };
    let Some(mut registry) = DockerRegistry::start(options).await.unwrap() else { return };
    let link = Proxy::start(registry.addr()).await.unwrap();
    let layer = |seed| LayerBuilder::new().noise("noise", 2_000_000, seed).build(Compression::Gzip).unwrap();
    let image = ImageBuilder::new().layer(&layer(1)).layer(&layer(2)).build();
    registry.push("shop/web", "v1", &image).await.unwrap();
    // One layer after the other, so that the second is asked for with a password that is no longer good.
    let bed = site.bed(Wishes { agents: &["--max-layers", "1"], ..Wishes::default() }).await;
    let node = &bed.nodes[0];
    bed.docker_secret("login", &docker_login(&link.host(), "ada", "hunter2-old")).await;
    link.stall_after(1_000_000);
    let job = json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": "web"}, "spec": {
        "images": [{"image": format!("{}/shop/web:v1", link.host()), "pullSecrets": [{"name": "login"}]}],
        "nodes": {"names": [node]}, "pull": {"retries": 0},
    }});
    bed.create(&job.to_string()).await;
    link.wait_for_bytes(1_000_000).await.unwrap();
    let before = logins(&bed.wait("NodePreheat", node, |object| logins(object).is_some()).await).unwrap();

    let secret = json!({ "stringData": { ".dockerconfigjson": docker_login(&link.host(), "ada", "hunter2-new") } });
    let secrets: Api<Secret> = Api::default_namespaced(bed.client().await);
    secrets.patch("login", &PatchParams::default(), &Patch::Merge(&secret)).await.unwrap();
    let other = |object: &DynamicObject| logins(object).is_some_and(|logins| logins != before);
    bed.wait("NodePreheat", node, other).await;
    registry.set_accounts(&account("hunter2-new")).unwrap();
    link.let_go();

    let status = bed.ended("Preheat", "web").await;
    assert_eq!(status["phase"], "Succeeded", "{status:#}");
    bed.run(&["get", "web", "-o", "wide"]).await.exits(0).says("ATTEMPT").says(" 1");
    let object = bed.wait("NodePreheat", node, |_| true).await;
    let reports = object.data["status"]["reports"].as_object().unwrap();
    let report = reports.values().find(|report| report["phase"] != "Resolved").unwrap();
    assert_eq!(report["attempt"], 1, "it counts as the same attempt, for the job allows no other: {report:#}");
    let (fetched, bytes) = (link.received(), image.layer_bytes());
    assert!(fetched <= bytes + bytes / 50 + (1 << 20), "{fetched} of {bytes}");
}

//! A node whose disk lost the key to which its logins are sealed.

use serde_json::json;
use stoker_testbed::docker_registry::{self, DockerRegistry};
use stoker_testbed::image::{Compression, ImageBuilder, LayerBuilder};
use stoker_testbed::proxy::Proxy;

use crate::bed::{Up, docker_login};

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lost_its_key_gets_its_login_again_and_pulls_on() {
    let accounts = vec![("ada".to_owned(), "hunter2".to_owned())];
    let Some(registry) = DockerRegistry::start(docker_registry::Options { accounts, tls: false }).await.unwrap() else {
        return;
    };
    let link = Proxy::start(registry.addr()).await.unwrap();
    let layer = LayerBuilder::new().noise("noise", 2_000_000, 1).build(Compression::Gzip).unwrap();
    registry.push("shop/web", "v1", &ImageBuilder::new().layer(&layer).build()).await.unwrap();
    let mut up = Up::start(1);
    up.docker_secret("login", &docker_login(&link.host(), "ada", "hunter2")).await;
    link.stall_after(1_000_000);
    let job = json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": "web"}, "spec": {
        "images": [{"image": format!("{}/shop/web:v1", link.host()), "pullSecrets": [{"name": "login"}]}],
        "pull": {"retries": 0},
    }});
    up.create(&job.to_string()).await;
    link.wait_for_bytes(1_000_000).await.unwrap();
    let object = up.wait("NodePreheat", "node-1", |object| object.data.pointer("/spec/logins").is_some()).await;
    let published = object.data["status"]["agent"]["key"].clone();

    up.kill();
    std::fs::remove_file(up.data().join("nodes/node-1/node.key")).unwrap();
    link.let_go();
    up.restart();
    let status = up.ended("Preheat", "web").await;
    assert_eq!(status["phase"], "Succeeded", "a login that cannot be opened is no failure: {status:#}");
    let object = up.wait("NodePreheat", "node-1", |_| true).await;
    assert_ne!(object.data["status"]["agent"]["key"], published, "the node has another key now");
}

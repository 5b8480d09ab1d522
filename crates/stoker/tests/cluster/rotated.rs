//! A login that changes while a pull runs.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use stoker_testbed::image::{Compression, ImageBuilder, LayerBuilder};

use crate::bed::{Cluster, SHOP, SYSTEM, unique};
use crate::embedded::docker_login;
use crate::link::Linked;

/// The logins that the order of this image names.
fn logins(object: &DynamicObject, image: &str) -> Option<Value> {
    let orders = object.data["spec"]["orders"].as_object()?;
    orders.values().find(|order| order["image"] == image).map(|order| order["logins"].clone())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_pull_goes_on_with_the_secret_that_came_meanwhile() {
    let Some(cluster) = Cluster::enter().await else { return };
    let layer = |seed| LayerBuilder::new().noise("noise", 2_000_000, seed).build(Compression::Gzip).unwrap();
    // More layers than a node works on at one time: some are asked for with a password that is no longer good.
    let layers: Vec<_> = (0..12).map(|number| layer(unique() + number)).collect();
    let image = layers.iter().fold(ImageBuilder::new(), ImageBuilder::layer).build();
    let mut linked = Linked::start(&cluster, &[("ada", "hunter2-old")], image).await;
    let host = linked.link.host();
    cluster.person.docker_secret("login", &docker_login(&host, "ada", "hunter2-old")).await;
    linked.link.stall_after(3_000_000);
    let job = json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": "web"}, "spec": {
        "images": [{"image": linked.reference, "pullSecrets": [{"name": "login"}]}],
        "nodes": {"names": ["n2"]}, "pull": {"retries": 0},
    }});
    cluster.create(&job).await;
    linked.link.wait_for_bytes(3_000_000).await.unwrap();
    let of = |object: &DynamicObject| logins(object, &linked.reference);
    let before = of(&cluster.node_preheats().get("n2").await.unwrap()).unwrap();
    assert_eq!(before.as_array().map(Vec::len), Some(1), "{before}");

    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), SHOP);
    let new = json!({"stringData": {".dockerconfigjson": docker_login(&host, "ada", "hunter2-new")}});
    secrets.patch("login", &PatchParams::default(), &Patch::Merge(&new)).await.unwrap();
    let other = |object: Option<&DynamicObject>| object.and_then(of).is_some_and(|logins| logins != before);
    let now = cluster.wait(&cluster.node_preheats(), "n2", other).await.unwrap();
    assert!(!now.data.to_string().contains("hunter2"), "{:#}", now.data);
    linked.real.set_accounts(&[("ada".to_owned(), "hunter2-new".to_owned())]).unwrap();
    linked.link.let_go();

    cluster.succeeds("web", 1).await;
    linked.sent_at_most(1, 1);
    // Nothing of either login is where people look.
    cluster.kubectl_as_person(&["delete", "preheat", "web"]).await.exits(0);
    let copies: Api<Secret> = Api::namespaced(cluster.client.clone(), SYSTEM);
    let copies = copies.list(&Default::default()).await.unwrap().items;
    assert!(!format!("{copies:?}").contains("pull-"), "a Secret was copied");
    for pod in cluster.parts("agent").await.iter().chain(&cluster.parts("controller").await) {
        let name = pod.metadata.name.as_deref().unwrap();
        let log = cluster.kubectl(&["-n", SYSTEM, "logs", name]).await;
        assert!(!log.exits(0).out.contains("hunter2"), "{name} wrote the password into its log");
    }
}

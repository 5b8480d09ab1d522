//! A cluster that lacks a kind of jobs, and jobs that a schema takes and nobody can serve.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use stoker_api::dialect::kruise::{ImageListPullJob, ImagePullJob};

use crate::bed::{Up, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_that_is_not_installed_has_no_jobs_and_by_name_is_said_to_be_missing() {
    let up = Up::start(1);
    let paused = ["pull", "registry.example/shop:v1", "--name", "web", "--parallelism", "0", "--no-wait"];
    up.run(&paused).await.exits(0);
    let definitions: Api<CustomResourceDefinition> = Api::all(up.client().await);
    definitions.delete("imagepulljobs.apps.kruise.io", &Default::default()).await.unwrap();
    let get = up.run(&["get"]).await;
    get.exits(0).says("web");
    assert_eq!(get.err, "");
    up.run(&["why", "web"]).await.exits(0);
    up.run(&["get", "imagepulljob/x"]).await.exits(1).says("does not know the kind ImagePullJob");
}

/// A schema cannot check the keys of `matchLabels`. No node has such a label, so that the job would be done at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_selector_that_no_label_can_match_is_held_with_the_reason() {
    let up = Up::start(1);
    let client = up.client().await;
    let (jobs, lists) =
        (Api::<ImagePullJob>::default_namespaced(client.clone()), Api::<ImageListPullJob>::default_namespaced(client));
    let selector = json!({ "matchLabels": { "a..b/x": "y" } });
    let image = "registry.example/shop:v1";
    for (name, field) in [("nodes", "selector"), ("pods", "podSelector")] {
        let job = json!({ "metadata": { "name": name }, "spec": { "image": image, field: selector } });
        jobs.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
        let says = format!("spec.{field} cannot be read: `a..b/x` is not a key of a label");
        eventually("the job says why nothing is pulled", async || {
            let status = jobs.get(name).await.unwrap().status.unwrap_or_default();
            status.message.contains(&says) && status.completion_time.is_none()
        })
        .await;
        up.run(&["why", &format!("imagepulljob/{name}")]).await.exits(0).says("SpecUnreadable").says(&says);
    }
    let list = json!({ "metadata": { "name": "both" }, "spec": { "images": [image], "selector": selector } });
    let list: ImageListPullJob = serde_json::from_value(list).unwrap();
    lists.create(&PostParams::default(), &list).await.unwrap();
    eventually("why names the child that cannot be served", async || {
        let why = up.run(&["why", "imagelistpulljob/both"]).await;
        why.out.contains("imagepulljob/both-") && why.out.contains("is not a key of a label")
    })
    .await;
}

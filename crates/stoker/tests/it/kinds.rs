//! A cluster that lacks a kind of jobs.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;

use crate::bed::Up;

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

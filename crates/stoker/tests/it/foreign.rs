//! Jobs of another project's kind while its own controller is there: what people are told.

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, PostParams};
use serde_json::json;
use stoker_controller::snapshot;

use crate::bed::{Up, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_about_a_job_of_another_controller_is_told_which_and_how_to_hand_over() {
    let up = Up::start(1);
    let client = up.client().await;
    let rule = json!({
        "apiGroups": ["apps.kruise.io"], "apiVersions": ["*"], "resources": ["imagepulljobs"], "operations": ["CREATE"],
    });
    let webhook = json!({
        "name": "vimagepulljob.kb.io", "rules": [rule], "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": { "url": "https://nobody.invalid" }, "failurePolicy": "Ignore",
    });
    let name = "kruise-validating-webhook-configuration";
    let object = serde_json::from_value(json!({ "metadata": { "name": name }, "webhooks": [webhook] })).unwrap();
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    webhooks.create(&PostParams::default(), &object).await.unwrap();
    eventually("it is seen", async || !snapshot::left_alone(&client).await.is_empty()).await;
    let spec = "{image: registry.invalid/base:v1, completionPolicy: {type: Always}}";
    up.create(&format!(
        "{{apiVersion: apps.kruise.io/v1alpha1, kind: ImagePullJob, metadata: {{name: base}}, spec: {spec}}}"
    ))
    .await;

    let who = format!("ForeignController: the ValidatingWebhookConfiguration {name} names imagepulljobs.");
    let how = "see docs/migrate-from-openkruise.md#beside-openkruise";
    up.run(&["why", "imagepulljob/base"]).await.exits(0).says(&who).says(how);
    up.run(&["get", "imagepulljob/base"]).await.exits(0).says(&who).says(how);
    up.run(&["get"]).await.exits(0).says("imagepulljob/base").says(&who);
    let job = up.api("ImagePullJob").await.get("base").await.unwrap();
    assert!(job.data.get("status").is_none(), "{:?}", job.data);

    webhooks.delete(name, &Default::default()).await.unwrap();
    up.wait("ImagePullJob", "base", |job| job.data["status"]["desired"] == 1).await;
    eventually("nothing is said of it", async || !up.run(&["get"]).await.err.contains("ForeignController")).await;
    assert!(up.stop("-TERM").success());
}

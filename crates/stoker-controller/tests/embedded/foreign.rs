//! Beside the original controller of a dialect: its objects are left alone while it is at work, and served when it is gone.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Namespace};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use stoker_api::HandOver;
use stoker_api::dialect::kruise::ImagePullJob;
use stoker_api::native::NodePreheat;
use stoker_controller::{Metrics, Settings, snapshot};
use stoker_core::Clock;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::bed::{self, Way, api, clock, node, ordered, over, preheat, run};

const LEASE: &str = "kruise-manager";

fn jobs(client: &Client) -> Api<DynamicObject> {
    Api::default_namespaced_with(client.clone(), &ApiResource::erase::<ImagePullJob>(&()))
}

/// An API with a node, a Preheat and an ImagePullJob.
async fn cluster(clock: &Clock) -> Client {
    let client = api(clock);
    node(&client, "n1").await;
    preheat(&client, "ours").await;
    let job = json!({
        "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "metadata": {"name": "base"},
        "spec": {"image": "registry.example/kruise:v1", "completionPolicy": {"type": "Always"}},
    });
    jobs(&client).create(&Default::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
    let namespace = json!({"metadata": {"name": "kruise-system"}});
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
    namespaces.create(&Default::default(), &serde_json::from_value(namespace).unwrap()).await.unwrap();
    client
}

/// OpenKruise's manager, as far as others see it: it renews its Lease.
struct Manager(AbortHandle);

impl Manager {
    async fn start(client: &Client, clock: &Clock) -> Self {
        let leases: Api<Lease> = Api::namespaced(client.clone(), "kruise-system");
        let lease = json!({"metadata": {"name": LEASE}, "spec": {"holderIdentity": "manager-abc"}});
        if leases.get_opt(LEASE).await.unwrap().is_none() {
            leases.create(&Default::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
        }
        let clock = clock.clone();
        let renewing = tokio::spawn(async move {
            loop {
                let time = format!("{:.6}", clock());
                let patch = Patch::Merge(json!({"spec": {"holderIdentity": "manager-abc", "renewTime": time}}));
                leases.patch(LEASE, &PatchParams::default(), &patch).await.unwrap();
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
        });
        Self(renewing.abort_handle())
    }

    /// It dies without giving its Lease back.
    fn kill(self) {
        self.0.abort();
    }
}

async fn add_webhooks(client: &Client) {
    let rule = json!({
        "apiGroups": ["apps.kruise.io"], "apiVersions": ["v1alpha1"], "resources": ["imagepulljobs"], "operations": ["CREATE"],
    });
    let webhook = json!({
        "name": "vimagepulljob.kb.io", "rules": [rule], "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": "https://nobody.invalid"},
    });
    let all: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let object = json!({"metadata": {"name": "kruise-validating-webhook-configuration"}, "webhooks": [webhook]});
    all.create(&Default::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
}

/// The version of the ImagePullJob, and how many Events are about it.
async fn written(client: &Client) -> (Option<String>, usize) {
    let events = Api::<Event>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    let about = events.items.iter().filter(|event| event.involved_object.name.as_deref() == Some("base"));
    (jobs(client).get("base").await.unwrap().metadata.resource_version, about.count())
}

async fn images(client: &Client) -> Vec<String> {
    let orders = Api::<NodePreheat>::all(client.clone()).get("n1").await.unwrap().spec.orders;
    let mut images: Vec<String> = orders.into_values().map(|order| order.image).collect();
    images.sort();
    images
}

fn left_alone(metrics: &Metrics) -> bool {
    let (mut registry, mut text) = (Registry::default(), String::new());
    metrics.register(&mut registry);
    encode(&mut text, &registry).unwrap();
    text.contains("stoker_controller_dialects_left_alone{dialect=\"kruise\"} 1")
}

#[tokio::test(start_paused = true)]
async fn jobs_are_left_alone_while_the_lease_is_renewed_and_served_when_it_is_not() {
    let clock = clock();
    let client = cluster(&clock).await;
    let manager = Manager::start(&client, &clock).await;
    let before = written(&client).await;
    let (cancel, settings) = (CancellationToken::new(), bed::settings(&client, &clock, "only"));
    let metrics = settings.metrics.clone();
    let running = run(settings, &cancel);
    ordered(&client, "n1", 1).await;
    tokio::time::sleep(Duration::from_secs(150)).await;
    assert_eq!(images(&client).await, ["registry.example/ours:v1"]);
    assert_eq!(written(&client).await, before, "no status and no Event");
    assert!(left_alone(&metrics));
    let said = snapshot::take(&client, "default").await.unwrap();
    assert_eq!(said.left_alone["kruise"], "the Lease kruise-system/kruise-manager is renewed by manager-abc");
    let kinds: Vec<String> = said.world.jobs().map(|job| job.kind().to_string()).collect();
    assert_eq!(kinds, ["Preheat"], "the same as the controller knows");

    manager.kill();
    ordered(&client, "n1", 2).await;
    assert!(!left_alone(&metrics));
    let served = jobs(&client).get("base").await.unwrap();
    assert_eq!(served.data["status"]["desired"], 1);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(snapshot::left_alone(&client).await.is_empty());

    // It comes back: what is under way for its jobs is taken back.
    let manager = Manager::start(&client, &clock).await;
    ordered(&client, "n1", 1).await;
    let before = written(&client).await;
    tokio::time::sleep(Duration::from_secs(150)).await;
    assert_eq!((images(&client).await, written(&client).await), (vec!["registry.example/ours:v1".into()], before));
    manager.kill();
    Api::<Lease>::namespaced(client.clone(), "kruise-system").delete(LEASE, &Default::default()).await.unwrap();
    ordered(&client, "n1", 2).await;
    cancel.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn handed_over_as_a_whole_the_lease_is_no_sign_and_webhooks_are() {
    let clock = clock();
    let client = cluster(&clock).await;
    let _manager = Manager::start(&client, &clock).await;
    let cancel = CancellationToken::new();
    let handed_over = [("kruise", HandOver::Whole)].into();
    let running = run(Settings { handed_over, ..bed::settings(&client, &clock, "only") }, &cancel);
    ordered(&client, "n1", 2).await;
    // The Event about the start follows the status write that it is about, so it may come after the orders.
    while written(&client).await.1 == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    add_webhooks(&client).await;
    ordered(&client, "n1", 1).await;
    let before = written(&client).await;
    tokio::time::sleep(Duration::from_secs(150)).await;
    assert_eq!(written(&client).await, before);
    let said = "the ValidatingWebhookConfiguration kruise-validating-webhook-configuration names imagepulljobs";
    assert_eq!(snapshot::left_alone(&client).await["kruise"], said);
    let all: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    all.delete("kruise-validating-webhook-configuration", &Default::default()).await.unwrap();
    ordered(&client, "n1", 2).await;
    cancel.cancel();
    running.await.unwrap();
}

/// A controller that starts anew must not write before it knows whose the jobs are; and a sign that nobody may see is none.
#[tokio::test(start_paused = true)]
async fn while_signs_cannot_be_listed_orders_stay_and_nothing_is_written() {
    let clock = clock();
    let client = cluster(&clock).await;
    let cancel = CancellationToken::new();
    let running = run(bed::settings(&client, &clock, "first"), &cancel);
    ordered(&client, "n1", 2).await;
    cancel.cancel();
    running.await.unwrap();
    let status = Patch::Merge(json!({"status": {"desired": 7}}));
    jobs(&client).patch_status("base", &PatchParams::default(), &status).await.unwrap();
    let before = (images(&client).await, written(&client).await);
    for (code, served) in [(500, false), (403, true)] {
        let refused =
            over(&client, move |request| match request.uri().path().ends_with("/validatingwebhookconfigurations") {
                true => Way::Refused(code),
                false => Way::Free,
            });
        let cancel = CancellationToken::new();
        let name = format!("job-{code}");
        preheat(&client, &name).await;
        let running = run(bed::settings(&refused, &clock, &name), &cancel);
        let planned = async || images(&client).await.contains(&format!("registry.example/{name}:v1"));
        while !planned().await {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        let now = (images(&client).await, written(&client).await);
        assert!(before.0.iter().all(|image| now.0.contains(image)), "{code}: {now:?}");
        assert_eq!(now.1 != before.1, served, "{code}");
        cancel.cancel();
        running.await.unwrap();
    }
    let desired: Value = jobs(&client).get("base").await.unwrap().data["status"]["desired"].clone();
    assert_eq!(desired, 1);
}

/// Whoever may edit a namespace can make a Lease in it. Only the one in Stoker's own namespace says what the controller leaves alone.
#[tokio::test]
async fn a_lease_of_a_stranger_says_nothing_of_what_is_left_alone() {
    let client = cluster(&clock()).await;
    let make = async |namespace: &str, seen: &str| {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let object = json!({ "metadata": { "name": namespace } });
        let _ = namespaces.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await;
        let annotations = json!({ "stoker.dev/left-alone": json!({ "kruise": seen }).to_string() });
        let lease = json!({ "metadata": { "name": "stoker-controller", "annotations": annotations } });
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
    };
    make("shop", "a stranger says so").await;
    assert!(snapshot::left_alone(&client).await.is_empty());
    make(stoker_api::NAMESPACE, "the usual place").await;
    assert_eq!(snapshot::left_alone(&client).await["kruise"], "the usual place");

    make("platform", "where Stoker is installed").await;
    let name = "stoker-controller";
    let binding = json!({
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": "platform" }],
    });
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    assert_eq!(snapshot::left_alone(&client).await["kruise"], "where Stoker is installed");
}

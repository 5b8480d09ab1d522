//! NodeImages on an embedded API: what jobs do is shown there, and people ask single nodes for images there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};
use stoker_api::HandOver;
use stoker_api::dialect::kruise::{ImagePullJob, ImageTagStatus, NodeImage};
use stoker_api::native::NodePreheat;
use stoker_controller::Settings;
use stoker_core::Clock;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::bed::{self, Way, api, clock, does_what_it_has, node, ordered, over, run};

fn digest() -> String {
    format!("sha256:{}", "d".repeat(64))
}

fn images(client: &Client) -> Api<NodeImage> {
    Api::all(client.clone())
}

async fn job(client: &Client, name: &str, image: &str) {
    let spec = json!({ "image": image, "parallelism": 100, "imagePullPolicy": "IfNotPresent" });
    let object = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap();
    Api::<ImagePullJob>::default_namespaced(client.clone()).create(&PostParams::default(), &object).await.unwrap();
}

/// Waits until this holds of the NodeImage of a node, and returns it.
async fn until(client: &Client, node: &str, what: impl Fn(&NodeImage) -> bool) -> NodeImage {
    let there = await_condition(images(client), node, |image: Option<&NodeImage>| image.is_some_and(&what));
    match tokio::time::timeout(Duration::from_secs(1200), there).await {
        Ok(image) => image.unwrap().unwrap(),
        Err(_) => panic!("it never holds of {:#?}", images(client).get_opt(node).await.unwrap()),
    }
}

/// What the status says of a tag.
fn said(image: &NodeImage, name: &str, tag: &str) -> Option<ImageTagStatus> {
    let tags = &image.status.as_ref()?.image_statuses.get(name)?.tags;
    tags.iter().find(|entry| entry.tag == tag).cloned()
}

fn has_tag(image: &NodeImage, name: &str, tag: &str) -> bool {
    image.spec.images.get(name).is_some_and(|image| image.tags.iter().any(|one| one.tag == tag))
}

async fn write(client: &Client, node: &str, spec: Value) {
    let patch = Patch::Merge(json!({ "spec": spec }));
    images(client).patch(node, &PatchParams::default(), &patch).await.unwrap();
}

fn tag(version: i64) -> Value {
    json!({ "tag": digest(), "version": version, "pullPolicy": { "ttlSecondsAfterFinished": 3600 } })
}

/// The images that a node is ordered to pull.
async fn orders(client: &Client, node: &str) -> Vec<String> {
    let preheats: Api<NodePreheat> = Api::all(client.clone());
    preheats.get(node).await.unwrap().spec.orders.into_values().map(|order| order.image).collect()
}

/// Writes by method, kind and name of the object.
type Writes = Arc<Mutex<BTreeMap<String, usize>>>;

fn counted(client: &Client, writes: &Writes) -> Client {
    let count = writes.clone();
    over(client, move |request| {
        if request.method() != http::Method::GET {
            let path = request.uri().path().trim_end_matches("/status").to_owned();
            let path = path.rsplit('/').take(2).collect::<Vec<_>>().join(" ");
            *count.lock().unwrap().entry(path).or_default() += 1;
        }
        Way::Free
    })
}

/// A controller that runs.
struct Running {
    clock: Clock,
    client: Client,
    cancel: CancellationToken,
    controller: JoinHandle<()>,
}

impl Running {
    /// One with settings of its own, in a cluster with these nodes, which have agents.
    async fn of(nodes: &[&str], settings: impl FnOnce(Settings) -> Settings) -> Self {
        let (clock, cancel) = (clock(), CancellationToken::new());
        let client = api(&clock);
        for name in nodes {
            node(&client, name).await;
        }
        let controller = run(settings(bed::settings(&client, &clock, "one")), &cancel);
        Self { clock, client, cancel, controller }
    }

    async fn end(self) {
        self.cancel.cancel();
        self.controller.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_for_a_job_costs_a_node_four_writes_and_is_shown() {
    let writes = Writes::default();
    let running = Running::of(&["n1", "n2", "n3"], |settings| Settings {
        client: counted(&settings.client, &writes),
        ..settings
    });
    let running = running.await;
    let client = running.client.clone();
    for name in ["n1", "n2", "n3"] {
        until(&client, name, |_| true).await;
    }
    let before = writes.lock().unwrap().clone();
    job(&client, "web", &format!("registry.example/web@{}", digest())).await;
    for name in ["n1", "n2", "n3"] {
        ordered(&client, name, 1).await;
        until(&client, name, |image| has_tag(image, "registry.example/web", &digest())).await;
        does_what_it_has(&client, name).await;
    }
    for name in ["n1", "n2", "n3"] {
        let image = until(&client, name, |image| said(image, "registry.example/web", &digest()).is_some()).await;
        let entry = said(&image, "registry.example/web", &digest()).unwrap();
        assert_eq!((entry.phase.as_str(), entry.progress), ("Succeeded", Some(100)));
        assert_eq!(entry.image_id, Some(format!("registry.example/web@{}", digest())));
        let status = image.status.unwrap();
        assert_eq!((status.desired, status.succeeded, status.pulling, status.waiting), (1, 1, 0, 0));
        let owner = &image.spec.images["registry.example/web"].tags[0].owner_references[0];
        assert_eq!((owner.kind.as_deref(), owner.name.as_deref()), (Some("ImagePullJob"), Some("web")));
    }
    // Long enough for anything that would still be written.
    tokio::time::sleep(Duration::from_secs(120)).await;
    let after = writes.lock().unwrap().clone();
    for name in ["n1", "n2", "n3"] {
        let made = |path: &str| {
            let path = format!("{name} {path}");
            after.get(&path).copied().unwrap_or_default() - before.get(&path).copied().unwrap_or_default()
        };
        // The fourth one is the report of the agent.
        assert_eq!((made("nodeimages"), made("nodepreheats")), (2, 1), "{name}: {after:?}");
    }
    let jobs: Api<ImagePullJob> = Api::default_namespaced(client.clone());
    jobs.delete("web", &DeleteParams::default()).await.unwrap();
    for name in ["n1", "n2", "n3"] {
        until(&client, name, |image| image.spec.images.is_empty()).await;
        until(&client, name, |image| image.status.as_ref().is_some_and(|status| status.desired == 0)).await;
    }
    Api::<Node>::all(client.clone()).delete("n2", &DeleteParams::default()).await.unwrap();
    let gone = await_condition(images(&client), "n2", |image: Option<&NodeImage>| image.is_none());
    tokio::time::timeout(Duration::from_secs(600), gone).await.expect("it stays").unwrap();
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_tag_that_somebody_wrote_is_pulled_and_a_raised_version_is_pulled_again() {
    let running = Running::of(&["n1", "n2"], |settings| settings).await;
    let client = running.client.clone();
    until(&client, "n1", |_| true).await;
    for version in [0, 1] {
        let entry = if version == 0 {
            json!({ "tag": digest(), "pullPolicy": { "ttlSecondsAfterFinished": 3600 } })
        } else {
            tag(version)
        };
        write(&client, "n1", json!({ "images": { "nginx": { "tags": [entry] } } })).await;
        let preheats: Api<NodePreheat> = Api::all(client.clone());
        let open = await_condition(preheats.clone(), "n1", |object: Option<&NodePreheat>| {
            object.is_some_and(|object| {
                let reports = object.status.as_ref().map(|status| status.reports.clone()).unwrap_or_default();
                let answered = |(key, order): (&String, &stoker_api::native::WireOrder)| {
                    reports.get(key).is_some_and(|report| report.asked == order.asked)
                };
                object.spec.orders.iter().any(|order| !answered(order))
            })
        });
        tokio::time::timeout(Duration::from_secs(1200), open).await.expect("nothing is asked").unwrap();
        does_what_it_has(&client, "n1").await;
        let image = until(&client, "n1", |image| {
            said(image, "nginx", &digest())
                .is_some_and(|entry| entry.phase == "Succeeded" && entry.version.unwrap_or_default() == version)
        });
        let image = image.await;
        assert!(image.spec.images["nginx"].tags[0].owner_references.is_empty(), "nobody took it over");
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    assert!(orders(&client, "n2").await.is_empty(), "nobody asked for it there");
    // Its time to live ends.
    tokio::time::sleep(Duration::from_secs(3600)).await;
    until(&client, "n1", |image| image.spec.images.is_empty()).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn tags_of_jobs_come_back_and_those_of_people_stay() {
    let running = Running::of(&["n1"], |settings| settings).await;
    let client = running.client.clone();
    until(&client, "n1", |_| true).await;
    write(&client, "n1", json!({ "images": { "nginx": { "tags": [tag(0)] } } })).await;
    ordered(&client, "n1", 1).await;
    job(&client, "web", &format!("nginx@{}", digest())).await;
    job(&client, "db", &format!("registry.example/db@{}", digest())).await;
    let both = until(&client, "n1", |image| {
        has_tag(image, "registry.example/db", &digest())
            && image.spec.images["nginx"].tags[0].owner_references.len() == 2
    });
    let both = both.await;
    assert_eq!(both.spec.images["nginx"].tags.len(), 1);
    // Somebody empties what jobs use.
    write(&client, "n1", json!({ "images": { "registry.example/db": null } })).await;
    until(&client, "n1", |image| has_tag(image, "registry.example/db", &digest())).await;
    let jobs: Api<ImagePullJob> = Api::default_namespaced(client.clone());
    jobs.delete("web", &DeleteParams::default()).await.unwrap();
    jobs.delete("db", &DeleteParams::default()).await.unwrap();
    let left = until(&client, "n1", |image| !image.spec.images.contains_key("registry.example/db")).await;
    assert!(has_tag(&left, "nginx", &digest()), "somebody wrote it before the job came");
    let own = until(&client, "n1", |image| {
        let owners = &image.spec.images["nginx"].tags[0].owner_references;
        owners.iter().all(|owner| owner.kind.as_deref() != Some("ImagePullJob"))
    });
    own.await;
    does_what_it_has(&client, "n1").await;
    until(&client, "n1", |image| said(image, "nginx", &digest()).is_some_and(|entry| entry.phase == "Succeeded")).await;
    running.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_image_without_a_node_takes_part_in_jobs() {
    let running = Running::of(&["n1"], |settings| settings).await;
    let client = running.client.clone();
    until(&client, "n1", |_| true).await;
    let labels = json!({ "apps.kruise.io/fake-nodeimage": "", "pool": "edge" });
    let object = json!({ "metadata": { "name": "edge-1", "labels": labels }, "spec": {} });
    images(&client).create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    bed::preheat(&client, "native").await;
    job(&client, "web", &format!("registry.example/web@{}", digest())).await;
    let image = until(&client, "edge-1", |image| !image.spec.images.is_empty()).await;
    let wanted = image.spec.images["registry.example/web"].tags[0].clone();
    assert_eq!(image.spec.images.len(), 1, "a Preheat wants nodes of the cluster");
    does_what_it_has(&client, "n1").await;
    let entry = json!({
        "tag": wanted.tag, "version": wanted.version, "phase": "Failed", "message": "the edge is offline",
        "completionTime": (running.clock)().to_string(),
    });
    let status = json!({ "desired": 1, "imageStatuses": { "registry.example/web": { "tags": [entry] } } });
    let patch = Patch::Merge(json!({ "status": status }));
    images(&client).patch_status("edge-1", &PatchParams::default(), &patch).await.unwrap();
    let jobs: Api<ImagePullJob> = Api::default_namespaced(client.clone());
    let ended = await_condition(jobs, "web", |job: Option<&ImagePullJob>| {
        job.and_then(|job| job.status.as_ref()).is_some_and(|status| status.completion_time.is_some())
    });
    let ended = tokio::time::timeout(Duration::from_secs(600), ended).await.expect("it goes on").unwrap().unwrap();
    let ended = ended.status.unwrap();
    assert_eq!((ended.desired, ended.succeeded, ended.failed), (2, 1, 1));
    assert_eq!(ended.failed_nodes, ["edge-1"]);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(images(&client).get_opt("edge-1").await.unwrap().is_some(), "it needs no Node");
    assert!(Api::<NodePreheat>::all(client.clone()).get_opt("edge-1").await.unwrap().is_none());
    running.end().await;
}

fn half(settings: Settings) -> Settings {
    Settings { handed_over: [("kruise", HandOver::Half)].into(), ..settings }
}

#[tokio::test(start_paused = true)]
async fn in_half_a_hand_over_only_the_status_of_node_images_is_written() {
    let running = Running::of(&["n1", "n2"], half).await;
    let client = running.client.clone();
    job(&client, "web", &format!("registry.example/web@{}", digest())).await;
    let owner = json!({ "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "namespace": "default", "name": "gone" });
    let entry = json!({
        "tag": digest(), "version": 2, "ownerReferences": [owner], "pullPolicy": { "ttlSecondsAfterFinished": 5 },
    });
    let object = json!({
        "metadata": { "name": "n1", "labels": { "of": "upstream" } }, "spec": { "images": { "nginx": { "tags": [entry] } } },
    });
    images(&client).create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    // Within five minutes something is said of it, and upstream's manager does not fail it.
    let waits = until(&client, "n1", |image| said(image, "nginx", &digest()).is_some()).await;
    let entry = said(&waits, "nginx", &digest()).unwrap();
    assert_eq!((entry.phase.as_str(), entry.version), ("Waiting", Some(2)));
    ordered(&client, "n1", 1).await;
    does_what_it_has(&client, "n1").await;
    let done = until(&client, "n1", |image| {
        said(image, "nginx", &digest()).is_some_and(|entry| entry.phase == "Succeeded" && entry.version == Some(2))
    });
    let done = done.await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let later = images(&client).get("n1").await.unwrap();
    assert_eq!(later.spec, done.spec, "the manager removes it");
    assert_eq!(later.metadata.labels, done.metadata.labels);
    assert!(images(&client).get_opt("n2").await.unwrap().is_none(), "the manager makes it");
    let jobs: Api<ImagePullJob> = Api::default_namespaced(client.clone());
    assert_eq!(jobs.get("web").await.unwrap().status, None, "the manager serves it");
    assert!(orders(&client, "n2").await.is_empty());
    running.end().await;
}

/// As many as are written at one time. Each of them is tried again and again.
#[tokio::test(start_paused = true)]
async fn node_images_that_cannot_be_written_keep_no_other_from_being_written() {
    let names: Vec<String> = (0..40).map(|n| format!("n{n:02}")).collect();
    let refused: Vec<String> = names.iter().take(36).cloned().collect();
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    let running = Running::of(&nodes, |settings| {
        let client = over(&settings.client, move |request| {
            let path = request.uri().path();
            let is_of = |name: &String| path.ends_with(&format!("/nodeimages/{name}"));
            match request.method() == http::Method::PATCH && refused.iter().any(is_of) {
                true => Way::Refused(500),
                false => Way::Free,
            }
        });
        Settings { client, ..settings }
    });
    let running = running.await;
    let client = running.client.clone();
    for name in &nodes {
        until(&client, name, |_| true).await;
    }
    // Every NodeImage is to be changed.
    job(&client, "web", &format!("registry.example/web@{}", digest())).await;
    for name in nodes.iter().skip(36) {
        until(&client, name, |image| has_tag(image, "registry.example/web", &digest())).await;
    }
    running.end().await;
}

//! The three samples that OpenKruise's users start from, on a real image, to their own status, messages and columns.

use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use stoker_api::dialect::kruise::{ImageListPullJob, ImagePullJob, versions};
use stoker_testbed::registry::{Registry, noise};

use crate::bed::{Bed, Site, Wishes};
use crate::up::eventually;

fn status<'a>(object: &'a DynamicObject, field: &str) -> &'a Value {
    object.data.get("status").and_then(|status| status.get(field)).unwrap_or(&Value::Null)
}

/// The manifest of the fixture with an image that exists.
fn manifest(fixture: &str, image: &str) -> String {
    let file = format!("{}/../stoker-api/tests/fixtures/kruise/{fixture}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(file).unwrap();
    let lines = text.lines().map(|line| match line.strip_prefix("  image: ") {
        Some(_) => format!("  image: {image}\n"),
        None => format!("{line}\n"),
    });
    lines.collect()
}

pub(crate) async fn the_samples_of_the_article_run(site: &Site) {
    let registry = Registry::start().await.unwrap();
    registry.push("base/image", "latest", &[noise(10_000, 1)]);
    let image = format!("{}/base/image:latest", registry.host());
    let bed = site.bed(Wishes::default()).await;
    let all = bed.nodes.len();
    let label = Patch::Merge(json!({"metadata": {"labels": {"resource-pool": "serverless"}}}));
    let nodes = kube::Api::<k8s_openapi::api::core::v1::Node>::all(bed.administrator.clone());
    nodes.patch(&bed.own_node, &PatchParams::default(), &label).await.unwrap();

    bed.create(&manifest("cluster-wide", &image)).await;
    let never = bed.wait("ImagePullJob", "base-image-job", |object| *status(object, "succeeded") == all).await;
    assert_eq!(*status(&never, "desired"), all);
    assert_eq!(*status(&never, "message"), "job is running, progress 100.0%");
    assert_eq!(*status(&never, "completionTime"), Value::Null, "a job of type Never does not end");

    bed.create(&manifest("sidecar", &image)).await;
    let always = bed.ended("ImagePullJob", "sidecar-image-job").await;
    assert_eq!(always["message"], "job has completed");
    assert_eq!(
        (&always["succeeded"], &always["failed"], &always["active"]),
        (&json!(all), &json!(0), &json!(0))
    );

    bed.create(&manifest("resource-pool", &image)).await;
    let pool = bed.wait("ImagePullJob", "serverless-job", |object| *status(object, "succeeded") == 1).await;
    assert_eq!(*status(&pool, "desired"), 1);

    let get = bed.run(&["get"]).await;
    get.exits(0).says("imagepulljob/base-image-job").says("imagepulljob/sidecar-image-job");
    bed.run(&["get", "imagepulljob/serverless-job"]).await.exits(0).says(&bed.own_node).says("Done");
    bed.run(&["why", "imagepulljob/base-image-job"]).await.exits(0).says("no node is waiting");
    bed.run(&["delete", "imagepulljob/base-image-job"]).await.exits(0).says("ImagePullJob base-image-job deleted");
    let asked = registry.requests("blobs").len();
    let once = if bed.relays { (2..=2 * all).contains(&asked) } else { asked == 2 * all };
    assert!(once, "each node fetched the config and the layer once for all jobs, or read them from another: {asked}");
}

/// What an API server says to an object with this spec, in the older version where `older`.
async fn asked(bed: &Bed, kind: &str, older: bool, spec: &Value) -> Result<DynamicObject, String> {
    let [newest, alpha] = match kind {
        "ImagePullJob" => versions::<ImagePullJob>(),
        _ => versions::<ImageListPullJob>(),
    };
    let resource = if older { alpha } else { newest };
    let api: Api<DynamicObject> = Api::default_namespaced_with(bed.client().await, &resource);
    let mut object = DynamicObject::new("asked", &resource);
    if !spec.is_null() {
        object.data = json!({ "spec": spec });
    }
    let dry = PostParams { dry_run: true, ..Default::default() };
    match api.create(&dry, &object).await {
        Err(kube::Error::Api(refusal)) => Err(refusal.message.clone()),
        answer => Ok(answer.unwrap()),
    }
}

/// A spec with the image or images that its kind needs.
fn with_image(kind: &str, mut spec: Value) -> Value {
    let (field, value) = match kind {
        "ImagePullJob" => ("image", json!("a")),
        _ => ("images", json!(["a"])),
    };
    spec.as_object_mut().unwrap().entry(field).or_insert(value);
    spec
}

pub(crate) async fn upstreams_refusals_are_the_schemas(site: &Site) {
    let bed = site.bed(Wishes::default()).await;
    let both = [
        (json!({"parallelism": -1}), "parallelism must be non-negative"),
        (json!({"parallelism": "-1"}), "parallelism must be non-negative"),
        (json!({"parallelism": "many"}), "parallelism must be a valid integer: "),
        (json!({"parallelism": "+5"}), "parallelism must be a valid integer: "),
        (json!({"parallelism": "101%"}), "parallelism must be a valid integer: "),
        (json!({"parallelism": "-5%"}), "parallelism must be a valid integer: "),
        (json!({"parallelism": "1234567890"}), "spec.parallelism"),
        (json!({"parallelism": 1.5}), "spec.parallelism"),
        (
            json!({"selector": {"names": ["x"], "matchLabels": {"a": "b"}}}),
            "can not set both names and labelSelector in this spec.selector",
        ),
        (json!({"selector": {"names": ["x", "x"]}}), "spec.selector.names"),
        (json!({"selector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}}), "operator"),
        (json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}), "values"),
        (json!({"selector": {}, "podSelector": {}}), "can not set both selector and podSelector"),
        (
            json!({"completionPolicy": {"type": "Never", "ttlSecondsAfterFinished": 5}}),
            "activeDeadlineSeconds and ttlSecondsAfterFinished can only work with Always CompletionPolicyType",
        ),
        (
            json!({"completionPolicy": {"type": "Never", "activeDeadlineSeconds": 900}}),
            "activeDeadlineSeconds and ttlSecondsAfterFinished can only work with Always CompletionPolicyType",
        ),
        (json!({"completionPolicy": {"type": "Sometimes"}}), "unknown type of completionPolicy: Sometimes"),
    ];
    let one = [
        (Value::Null, "image can not be empty"),
        (json!({}), "spec.image"),
        (json!({"image": ""}), "image can not be empty"),
        (json!({"image": "https://a/b"}), "invalid image https://a/b"),
        (json!({"image": "a:b:c"}), "invalid image a:b:c"),
        (
            json!({"image": "a", "completionPolicy": {"activeDeadlineSeconds": 599}}),
            "completionPolicy.activeDeadlineSeconds must be greater than pullPolicy.timeoutSeconds(default 600)",
        ),
    ];
    let numbers: Vec<String> = (0..256).map(|number| format!("i{number}")).collect();
    let list = [
        (Value::Null, "image can not be empty"),
        (json!({}), "spec.images"),
        (json!({"images": []}), "spec.images"),
        (json!({"images": ["a", ""]}), "image can not be empty"),
        (json!({"images": ["a", "A"]}), "invalid image A"),
        (json!({"images": ["a", "b", "a"]}), "Duplicate value"),
        (json!({"images": numbers}), "the maximum number of images cannot > 255"),
    ];
    for (kind, own) in [("ImagePullJob", &one[..]), ("ImageListPullJob", &list[..])] {
        let shared = both.iter().map(|(spec, words)| (with_image(kind, spec.clone()), *words));
        for (spec, expected) in shared.chain(own.iter().cloned()) {
            for older in [false, true] {
                match asked(&bed, kind, older, &spec).await {
                    Err(message) => assert!(message.contains(expected), "{kind} {spec}: {message}"),
                    Ok(object) => panic!("{kind} {spec}: {object:?}"),
                }
            }
        }
    }
}

pub(crate) async fn what_upstream_accepts_is_accepted(site: &Site) {
    let bed = site.bed(Wishes::default()).await;
    let many: Vec<String> = (0..255).map(|number| format!("registry.example/team/image-{number}:v1")).collect();
    let both = [
        json!({}),
        json!({"parallelism": 0}),
        json!({"parallelism": "5"}),
        json!({"parallelism": 2_000_000_000}),
        // More than upstream.
        json!({"parallelism": "100%"}),
        json!({"selector": null, "podSelector": {}}),
        json!({"selector": {"names": []}}),
        json!({"selector": {"names": ["x", "y"]}}),
        json!({"selector": {}}),
        json!({"podSelector": {}}),
        json!({"podSelector": {"matchLabels": {"app": "web"}}}),
        json!({"pullPolicy": {"backoffLimit": -1}}),
        json!({"pullPolicy": {"timeoutSeconds": 300}, "completionPolicy": {"activeDeadlineSeconds": 300}}),
        json!({"completionPolicy": {"type": ""}}),
        json!({"completionPolicy": {"type": "Never"}}),
        json!({"imagePullPolicy": ""}),
        json!({"imagePullPolicy": "Whenever"}),
        json!({"pullSecrets": ["a", "a"]}),
        json!({"pullSecrets": (0..64).map(|number| format!("s{number}")).collect::<Vec<_>>()}),
        json!({"sandboxConfig": {"labels": {"a": "b"}, "annotations": {"c": "d"}}}),
    ];
    let images = [
        "nginx",
        "nginx:1.27",
        "127.0.0.1:5000/a/b_c__d--e.f:V1_x",
        "[::1]:5000/a",
        "Registry.Example/a@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ];
    let one = images.iter().map(|image| json!({ "image": image }));
    // Upstream compares the deadline of a list with nothing.
    let list = [json!({"images": many}), json!({"images": images}), json!({"completionPolicy": {"activeDeadlineSeconds": 5}})];
    for (kind, own) in [("ImagePullJob", one.collect::<Vec<_>>()), ("ImageListPullJob", list.to_vec())] {
        for spec in both.iter().cloned().chain(own).map(|spec| with_image(kind, spec)) {
            for older in [false, true] {
                if let Err(message) = asked(&bed, kind, older, &spec).await {
                    panic!("{kind} {spec}: {message}");
                }
            }
        }
    }
    let policies = json!({
        "pullPolicy": {"timeoutSeconds": 600, "backoffLimit": 3}, "completionPolicy": {"type": "Always"},
    });
    let mut defaults = policies.clone();
    (defaults["image"], defaults["imagePullPolicy"]) = (json!("a"), json!("IfNotPresent"));
    assert_eq!(asked(&bed, "ImagePullJob", true, &json!({"image": "a"})).await.unwrap().data["spec"], defaults);
    let mut defaults = policies;
    defaults["images"] = json!(["a"]);
    assert_eq!(asked(&bed, "ImageListPullJob", true, &json!({"images": ["a"]})).await.unwrap().data["spec"], defaults);
}

pub(crate) async fn pull_secrets_of_a_list_can_be_changed(site: &Site) {
    let bed = site.bed(Wishes::default()).await;
    let made = "{apiVersion: apps.kruise.io/v1alpha1, kind: ImageListPullJob, metadata: {name: list}, spec: {images: ['127.0.0.1:1/a'], pullSecrets: [old], completionPolicy: {}}}";
    bed.create(made).await;
    let api: Api<DynamicObject> =
        Api::default_namespaced_with(bed.client().await, &versions::<ImageListPullJob>()[0]);
    let patch = Patch::Merge(json!({ "spec": { "pullSecrets": ["new"] } }));
    let changed = api.patch("list", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(changed.data["spec"]["pullSecrets"], json!(["new"]));
    api.delete("list", &Default::default()).await.unwrap();
}

/// A list takes a deadline that none of its children may have.
pub(crate) async fn a_list_whose_children_are_refused_says_so_and_ends_after_an_edit(site: &Site) {
    let registry = Registry::start().await.unwrap();
    registry.push("base/image", "latest", &[noise(1_000, 1)]);
    let image = format!("{}/base/image:latest", registry.host());
    let bed = site.bed(Wishes::default()).await;
    let made = format!(
        "{{apiVersion: apps.kruise.io/v1alpha1, kind: ImageListPullJob, metadata: {{name: refused}}, \
         spec: {{images: ['{image}'], parallelism: 5, completionPolicy: {{activeDeadlineSeconds: 5}}}}}}"
    );
    bed.create(&made).await;
    let events: Api<Event> = Api::namespaced(bed.administrator.clone(), &bed.namespace);
    let words = "completionPolicy.activeDeadlineSeconds must be greater than pullPolicy.timeoutSeconds(default 600)";
    let told = async || {
        let events = events.list(&Default::default()).await.unwrap().items.into_iter();
        let mut about = events.filter(|event| event.involved_object.name.as_deref() == Some("refused"));
        about.any(|event| {
            let is_refusal = event.reason.as_deref() == Some("Failed create ImagePullJob");
            is_refusal && event.type_.as_deref() == Some("Warning") && event.message.is_some_and(|said| said.contains(words))
        })
    };
    eventually("an event says why the child is refused", told).await;
    let why = bed.run(&["why", "imagelistpulljob/refused"]).await;
    why.exits(0).says("imagepulljob/refused-").says("Missing").says(&image).says("kubectl describe imagelistpulljob refused");

    let api = bed.api("ImageListPullJob").await;
    let patch = Patch::Merge(json!({ "spec": { "completionPolicy": { "activeDeadlineSeconds": null } } }));
    api.patch("refused", &PatchParams::default(), &patch).await.unwrap();
    let status = bed.ended("ImageListPullJob", "refused").await;
    assert_eq!((&status["desired"], &status["succeeded"]), (&json!(1), &json!(1)), "{status:#}");
    bed.run(&["why", "imagelistpulljob/refused"]).await.exits(0).says("no image is waiting");
    api.delete("refused", &Default::default()).await.unwrap();
}

//! Pull secrets against a registry that wants a login: Debian's docker-registry with htpasswd.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use stoker_testbed::docker_registry::{self, DockerRegistry};
use stoker_testbed::image::{Compression, ImageBuilder, LayerBuilder};

use crate::bed::{Bed, Site, Wishes};
use crate::up::{Ran, docker_login, every_object};

/// What nobody may ever see.
const PASSWORDS: [&str; 2] = ["hunter2-first", "hunter2-rotated"];

/// A registry with one account and one image.
struct Registry {
    registry: DockerRegistry,
    image: String,
}

impl Registry {
    /// None where a program is missing.
    async fn start() -> Option<Self> {
        let options = docker_registry::Options { accounts: vec![account(PASSWORDS[0])], tls: false };
        let registry = DockerRegistry::start(options).await.unwrap()?;
        let layer = LayerBuilder::new().noise("noise", 50_000, 1).build(Compression::Gzip).unwrap();
        let image = registry.push("shop/web", "v1", &ImageBuilder::new().layer(&layer).build()).await.unwrap();
        Some(Self { registry, image })
    }

    fn host(&self) -> String {
        self.registry.host()
    }

    /// From now on only the second password is right.
    fn rotate(&mut self) {
        self.registry.set_accounts(&[account(PASSWORDS[1])]).unwrap();
    }

    /// The file that `docker login` would write.
    fn login(&self, password: &str) -> String {
        docker_login(&self.host(), "ada", password)
    }
}

fn account(password: &str) -> (String, String) {
    ("ada".to_owned(), password.to_owned())
}

impl Bed {
    /// Waits until the orders of a node name this many logins.
    async fn wait_for_logins(&self, node: &str, number: usize) {
        let named = |object: &DynamicObject| -> BTreeSet<String> {
            let orders = object.data.pointer("/spec/orders").and_then(Value::as_object).into_iter().flatten();
            let logins = orders.flat_map(|(_, order)| order["logins"].as_array().cloned().unwrap_or_default());
            logins.map(|name| name.as_str().unwrap().to_owned()).collect()
        };
        self.wait("NodePreheat", node, |object| named(object).len() == number).await;
    }

    async fn pull(&self, image: &str, secrets: &[&str], more: &[&str]) -> Ran {
        let secrets = secrets.iter().flat_map(|name| ["--secret", name]);
        let args: Vec<&str> = ["pull", image].into_iter().chain(secrets).chain(more.iter().copied()).collect();
        self.run(&args).await
    }
}

pub(crate) async fn a_private_registry_with_right_wrong_two_and_rotated_secrets(site: &Site) {
    let Some(mut registry) = Registry::start().await else { return };
    let image = registry.image.clone();
    let bed = site.bed(Wishes { trace: true, ..Wishes::default() }).await;
    let (all, namespace) = (bed.nodes.len(), &bed.namespace);
    let (first, second) = (bed.nodes[0].as_str(), bed.nodes[1].as_str());
    bed.docker_secret("right", &registry.login(PASSWORDS[0])).await;
    bed.docker_secret("same", &registry.login(PASSWORDS[0])).await;
    bed.docker_secret("wrong", &registry.login("not-the-password")).await;
    bed.docker_secret("other", &json!({"auths": {"elsewhere.example": {"auth": "YWRhOng="}}}).to_string()).await;
    bed.docker_secret("broken", "{\"auths\": \"hunter2-first\"}").await;
    let mut said: Vec<Ran> = Vec::new();

    // None, wrong, for another registry, missing, malformed: each failure says what to do.
    let refused = [
        (&[][..], "Unauthorized", "there is none".to_owned()),
        (&["wrong"], "Unauthorized", "refuses the login (401)".to_owned()),
        (&["other"], "Unauthorized", "there is none".to_owned()),
        (&["gone"], "SecretMissing", format!("Secret {namespace}/gone is not there")),
        (
            &["broken", "wrong"],
            "SecretUnusable",
            format!("Secret {namespace}/broken cannot be used: its .dockerconfigjson"),
        ),
    ];
    for (secrets, reason, sentence) in refused {
        let ran = bed.pull(&image, secrets, &[]).await;
        ran.exits(1).says(&format!("{all} of {all} nodes failed"));
        ran.says(&format!("{first}: {reason}")).says(&sentence);
        said.push(ran);
    }

    // One Secret that is right is enough, whatever stands beside it.
    said.push(
        bed.pull(&image, &["gone", "broken", "wrong", "other", "right"], &["--node", first, "--name", "all"]).await,
    );
    said.last().unwrap().exits(0).says("on all 1 nodes");
    let keep = json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": "keeps"}, "spec": {
        "images": [{"image": image, "pullSecrets": [{"name": "right"}, {"name": "same"}]}],
        "pull": {"policy": "Always"}, "completion": {"mode": "Continuous"}, "nodes": {"names": [second]},
    }});
    bed.create(&keep.to_string()).await;
    let synced = |object: &DynamicObject| object.data.pointer("/status/phase") == Some(&"Synced".into());
    let keeps = bed.wait("Preheat", "keeps", synced).await;
    assert_eq!(keeps.data["status"]["succeeded"], 1, "{:#}", keeps.data);
    // One for each Secret that is in use.
    bed.wait_for_logins(second, 2).await;

    // Rotated: the logins follow the Secret, and pulls work again.
    registry.rotate();
    let ask = |name: &str| {
        let images = json!([{"image": image, "pullSecrets": [{"name": "right"}]}]);
        let spec = json!({"images": images, "pull": {"policy": "Always"}});
        json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": name}, "spec": spec})
    };
    bed.create(&ask("stale").to_string()).await;
    let stale = bed.ended("Preheat", "stale").await;
    assert_eq!(stale["failedNodes"][0]["reason"], "Unauthorized", "{stale:#}");
    let secret = json!({ "stringData": { ".dockerconfigjson": registry.login(PASSWORDS[1]) } });
    for name in ["right", "same"] {
        let api: Api<Secret> = Api::default_namespaced(bed.client().await);
        api.patch(name, &PatchParams::default(), &Patch::Merge(&secret)).await.unwrap();
    }
    bed.create(&ask("again").to_string()).await;
    let again = bed.ended("Preheat", "again").await;
    assert_eq!(again["phase"], "Succeeded", "{again:#}");
    bed.run(&["delete", "keeps"]).await.exits(0);

    // Nobody has seen a password.
    let printed = bed.log();
    let objects = every_object(&bed.administrator).await;
    assert!(objects.contains("again"));
    for text in said.iter().map(|ran| format!("{}{}", ran.out, ran.err)).chain([printed, objects]) {
        for secret in PASSWORDS.into_iter().chain(["not-the-password"]) {
            let encoded = base64(&format!("ada:{secret}"));
            assert!(!text.contains(secret) && !text.contains(&encoded), "a password is in:\n{text}");
        }
    }
}

fn base64(text: &str) -> String {
    // As an API server writes bytes.
    serde_json::to_value(k8s_openapi::ByteString(text.into())).unwrap().as_str().unwrap().to_owned()
}

pub(crate) async fn an_imagepulljob_pulls_with_secrets_that_cannot_be_changed(site: &Site) {
    let Some(registry) = Registry::start().await else { return };
    let bed = site.bed(Wishes::default()).await;
    let old = json!({ registry.host(): { "auth": base64(&format!("ada:{}", PASSWORDS[0])) } }).to_string();
    bed.make_secret("old", "kubernetes.io/dockercfg", ".dockercfg", &old).await;
    let manifest = json!({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ImagePullJob", "metadata": { "name": "private" },
        "spec": { "image": registry.image, "pullSecrets": ["old"] },
    });
    bed.create(&manifest.to_string()).await;
    let status = bed.ended("ImagePullJob", "private").await;
    assert_eq!((&status["succeeded"], &status["failed"]), (&json!(bed.nodes.len()), &json!(0)), "{status:#}");
    let api = bed.api("ImagePullJob").await;
    for change in [json!(["other"]), json!([]), Value::Null] {
        let patch = Patch::Merge(json!({ "spec": { "pullSecrets": change } }));
        match api.patch("private", &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(refusal)) => assert!(refusal.message.contains("spec.pullSecrets is immutable")),
            other => panic!("{change}: {other:?}"),
        }
    }
}

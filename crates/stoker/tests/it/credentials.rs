//! Pull secrets against a registry that wants a login: Debian's docker-registry with htpasswd.

use std::collections::BTreeMap;
use std::fs;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use stoker_testbed::docker_registry::{self, DockerRegistry};
use stoker_testbed::image::{Compression, ImageBuilder, LayerBuilder};

use crate::bed::{Ran, Up};

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
        json!({ "auths": { self.host(): { "username": "ada", "password": password } } }).to_string()
    }
}

fn account(password: &str) -> (String, String) {
    ("ada".to_owned(), password.to_owned())
}

impl Up {
    async fn secrets(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.client().await, namespace)
    }

    async fn make_secret(&self, name: &str, kind: &str, key: &str, content: &str) {
        let secret = json!({
            "metadata": { "name": name }, "type": kind, "stringData": { key: content },
        });
        let secret: Secret = serde_json::from_value(secret).unwrap();
        self.secrets("default").await.create(&PostParams::default(), &secret).await.unwrap();
    }

    pub(crate) async fn docker_secret(&self, name: &str, content: &str) {
        self.make_secret(name, "kubernetes.io/dockerconfigjson", ".dockerconfigjson", content).await;
    }

    /// The names of the copies in Stoker's namespace.
    async fn copies(&self) -> Vec<String> {
        let all = self.secrets("stoker-system").await.list(&ListParams::default()).await.unwrap();
        all.items.into_iter().filter_map(|secret| secret.metadata.name).collect()
    }

    /// Waits until there are this many copies: an event does it, so looking again often is soon enough.
    async fn wait_for_copies(&self, number: usize) -> Vec<String> {
        let waiting = async {
            loop {
                let copies = self.copies().await;
                if copies.len() == number {
                    return copies;
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(crate::bed::PATIENCE, waiting).await.expect("the copies did not become as many")
    }

    async fn pull(&self, image: &str, secrets: &[&str], more: &[&str]) -> Ran {
        let secrets = secrets.iter().flat_map(|name| ["--secret", name]);
        let args: Vec<&str> = ["pull", image].into_iter().chain(secrets).chain(more.iter().copied()).collect();
        self.run(&args).await
    }

    /// Every object but the Secrets, as text.
    async fn every_object(&self) -> String {
        let client = self.client().await;
        let kinds = [
            ("stoker.dev", "v1alpha1", "Preheat"),
            ("stoker.dev", "v1alpha1", "NodePreheat"),
            ("apps.kruise.io", "v1alpha1", "ImagePullJob"),
            ("", "v1", "Event"),
            ("", "v1", "Node"),
            ("", "v1", "ConfigMap"),
            ("coordination.k8s.io", "v1", "Lease"),
        ];
        let mut text = String::new();
        for (group, version, kind) in kinds {
            let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
            for object in api.list(&ListParams::default()).await.unwrap().items {
                text += &serde_json::to_string(&object).unwrap();
            }
        }
        text
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_registry_with_right_wrong_two_and_rotated_secrets() {
    let Some(mut registry) = Registry::start().await else { return };
    let image = registry.image.clone();
    let data = tempfile::tempdir().unwrap();
    let log = data.path().join("log");
    let up = Up::start_logging(2, &log);
    up.docker_secret("right", &registry.login(PASSWORDS[0])).await;
    up.docker_secret("same", &registry.login(PASSWORDS[0])).await;
    up.docker_secret("wrong", &registry.login("not-the-password")).await;
    up.docker_secret("other", &json!({"auths": {"elsewhere.example": {"auth": "YWRhOng="}}}).to_string()).await;
    up.docker_secret("broken", "{\"auths\": \"hunter2-first\"}").await;
    let mut said: Vec<Ran> = Vec::new();

    // None, wrong, for another registry, missing, malformed: each failure says what to do.
    let refused = [
        (&[][..], "node-1: Unauthorized", "there is none"),
        (&["wrong"], "node-1: Unauthorized", "refuses the login (401)"),
        (&["other"], "node-1: Unauthorized", "there is none"),
        (&["gone"], "node-1: SecretMissing", "Secret default/gone is not there"),
        (&["broken", "wrong"], "node-1: Unauthorized", "Secret default/broken cannot be used: its .dockerconfigjson"),
    ];
    for (secrets, reason, sentence) in refused {
        let ran = up.pull(&image, secrets, &[]).await;
        ran.exits(1).says("2 of 2 nodes failed").says(reason).says(sentence);
        said.push(ran);
    }

    // One Secret that is right is enough, whatever stands beside it.
    said.push(
        up.pull(&image, &["gone", "broken", "wrong", "other", "right"], &["--node", "node-1", "--name", "all"]).await,
    );
    said.last().unwrap().exits(0).says("on all 1 nodes");
    let keep = json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": "keeps"}, "spec": {
        "images": [{"image": image, "pullSecrets": [{"name": "right"}, {"name": "same"}]}],
        "pull": {"policy": "Always"}, "completion": {"mode": "Continuous"}, "nodes": {"names": ["node-2"]},
    }});
    up.create(&keep.to_string()).await;
    let synced = |object: &DynamicObject| object.data.pointer("/status/phase") == Some(&"Synced".into());
    let keeps = up.wait("Preheat", "keeps", synced).await;
    assert_eq!(keeps.data["status"]["succeeded"], 1, "{:#}", keeps.data);
    // One for each Secret that is in use; those of ended jobs are gone.
    let before = up.wait_for_copies(2).await;

    // Rotated: the copy follows the Secret, the old one goes, and pulls work again.
    registry.rotate();
    let ended = |object: &DynamicObject| object.data.pointer("/status/completionTime").is_some();
    let ask = |name: &str| {
        let images = json!([{"image": image, "pullSecrets": [{"name": "right"}]}]);
        let spec = json!({"images": images, "pull": {"policy": "Always"}});
        json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": name}, "spec": spec})
    };
    up.create(&ask("stale").to_string()).await;
    let stale = up.wait("Preheat", "stale", ended).await;
    assert_eq!(stale.data["status"]["failedNodes"][0]["reason"], "Unauthorized", "{:#}", stale.data);
    let secret = json!({ "stringData": { ".dockerconfigjson": registry.login(PASSWORDS[1]) } });
    for name in ["right", "same"] {
        let api = up.secrets("default").await;
        api.patch(name, &PatchParams::default(), &Patch::Merge(&secret)).await.unwrap();
    }
    up.wait_for_copies(4).await;
    up.create(&ask("again").to_string()).await;
    let again = up.wait("Preheat", "again", ended).await;
    assert_eq!(again.data["status"]["phase"], "Succeeded", "{:#}", again.data);
    let mut after = up.wait_for_copies(2).await;
    after.retain(|copy| before.contains(copy));
    assert_eq!(after, Vec::<String>::new(), "the old copy is gone");
    up.run(&["delete", "keeps"]).await.exits(0);
    up.wait_for_copies(0).await;

    // Nobody has seen a password.
    let printed = fs::read_to_string(&log).unwrap();
    assert!(printed.contains("copying a Secret"), "the log says what happens: {printed}");
    let objects = up.every_object().await;
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

#[tokio::test(flavor = "multi_thread")]
async fn an_imagepulljob_pulls_with_secrets_that_cannot_be_changed() {
    let Some(registry) = Registry::start().await else { return };
    let up = Up::start(1);
    let old = json!({ registry.host(): { "auth": base64(&format!("ada:{}", PASSWORDS[0])) } }).to_string();
    up.make_secret("old", "kubernetes.io/dockercfg", ".dockercfg", &old).await;
    let manifest = json!({
        "apiVersion": "apps.kruise.io/v1alpha1", "kind": "ImagePullJob", "metadata": { "name": "private" },
        "spec": { "image": registry.image, "pullSecrets": ["old"] },
    });
    up.create(&manifest.to_string()).await;
    let ended = |object: &DynamicObject| object.data.pointer("/status/completionTime").is_some();
    let job = up.wait("ImagePullJob", "private", ended).await;
    let counts: BTreeMap<&str, &Value> =
        ["succeeded", "failed"].into_iter().map(|field| (field, &job.data["status"][field])).collect();
    assert_eq!(counts, BTreeMap::from([("succeeded", &json!(1)), ("failed", &json!(0))]));
    let api = up.api("ImagePullJob").await;
    for change in [json!(["other"]), json!([]), Value::Null] {
        let patch = Patch::Merge(json!({ "spec": { "pullSecrets": change } }));
        match api.patch("private", &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(refusal)) => assert!(refusal.message.contains("pullSecrets cannot be changed")),
            other => panic!("{change}: {other:?}"),
        }
    }
}

//! What users write: jobs with settings of their own, and logins. And a node with an environment and a log of its own.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use stoker_testbed::containerd::{self, Containerd, Version};
use stoker_testbed::image::{Compression, Image, ImageBuilder, LayerBuilder};

use crate::bed::Node;
use crate::up::{Ran, Up};

/// An image of layers of noise, each of this many bytes.
pub(crate) fn noise(layers: u64, bytes: u64, seed: u64) -> Image {
    let layer =
        |at| LayerBuilder::new().noise(&format!("noise-{at}"), bytes, seed + at).build(Compression::Gzip).unwrap();
    (0..layers).fold(ImageBuilder::new(), |image, at| image.layer(&layer(at))).build()
}

/// What may be received for an image that was interrupted this often.
pub(crate) fn bound(image: &Image, cuts: u64) -> u64 {
    image.layer_bytes() + image.layer_bytes() / 50 + (cuts.max(1) << 20)
}

/// A node in whose environment this is, on this runtime, with its log.
pub(crate) async fn node(
    version: Version,
    options: containerd::Options,
    args: &[&str],
    env: &[(&str, String)],
) -> Option<(Node, tempfile::NamedTempFile)> {
    let containerd = Containerd::start(version, options).await.unwrap()?;
    let endpoint = containerd.endpoint();
    let log = tempfile::NamedTempFile::new().unwrap();
    // The machine's own disk is nobody's business, unless a case is about disks.
    let disk: &[&str] = if args.contains(&"--max-disk") { &[] } else { &["--max-disk", "100"] };
    let args = [&["--runtime-endpoint", &endpoint], disk, args].concat();
    let up = Up::start_in_env(1, &args, env, log.path());
    Some((Node { up, containerd }, log))
}

impl Node {
    /// `stoker pull` with these Secrets.
    pub(crate) async fn pull_with(&self, image: &str, secrets: &[&str]) -> Ran {
        let secrets = secrets.iter().flat_map(|name| ["--secret", name]);
        self.up.run(&["pull", image].into_iter().chain(secrets).collect::<Vec<_>>()).await
    }

    /// Makes a Preheat of one image; `pull` are its settings.
    pub(crate) async fn wish(&self, name: &str, image: &str, secrets: &[&str], pull: Value) {
        let secrets: Vec<Value> = secrets.iter().map(|name| json!({ "name": name })).collect();
        let spec = json!({"images": [{"image": image, "pullSecrets": secrets}], "pull": pull});
        let preheat = json!({
            "apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": name}, "spec": spec,
        });
        self.up.create(&preheat.to_string()).await;
    }

    /// The status of a job at its end.
    pub(crate) async fn end(&self, name: &str) -> Value {
        let ended = |object: &DynamicObject| object.data.pointer("/status/completionTime").is_some();
        self.up.wait("Preheat", name, ended).await.data["status"].clone()
    }

    /// That a job has failed, with its reason and message.
    pub(crate) async fn failure(&self, name: &str) -> (String, String) {
        let status = self.end(name).await;
        let text = |field: &str| status["failedNodes"][0][field].as_str().unwrap_or_default().to_owned();
        assert_eq!(status["phase"], "Failed", "{status:#}");
        (text("reason"), text("message"))
    }

    pub(crate) async fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.up.client().await, "default")
    }

    /// A Secret with a login, as `docker login` would write it.
    pub(crate) async fn login(&self, name: &str, host: &str, user: &str, password: &str) {
        let secret = json!({
            "metadata": { "name": name }, "type": "kubernetes.io/dockerconfigjson", "stringData": content(host, user, password),
        });
        let secret: Secret = serde_json::from_value(secret).unwrap();
        self.secrets().await.create(&PostParams::default(), &secret).await.unwrap();
    }

    /// The Secret with another login.
    pub(crate) async fn change_login(&self, name: &str, host: &str, user: &str, password: &str) {
        let patch = Patch::Merge(json!({ "stringData": content(host, user, password) }));
        self.secrets().await.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Every object that is not a Secret, as text.
    pub(crate) async fn every_object(&self) -> String {
        let client = self.up.client().await;
        let kinds =
            [("stoker.dev", "v1alpha1", "Preheat"), ("stoker.dev", "v1alpha1", "NodePreheat"), ("", "v1", "Event")];
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

fn content(host: &str, user: &str, password: &str) -> Value {
    json!({ ".dockerconfigjson": json!({"auths": {host: {"username": user, "password": password}}}).to_string() })
}

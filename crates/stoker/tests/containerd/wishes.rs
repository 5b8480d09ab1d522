//! What users write: jobs with settings of their own, and logins. And a node with an environment and a log of its own.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use stoker_testbed::containerd::{self, Containerd, Version};
use stoker_testbed::image::{Compression, Image, ImageBuilder, LayerBuilder};

use crate::bed::Node;
use crate::up::{Ran, Up, docker_login};

/// An image of layers of noise, each of this many bytes.
pub(crate) fn noise(layers: u64, bytes: u64, seed: u64) -> Image {
    let layer =
        |at| LayerBuilder::new().noise(&format!("noise-{at}"), bytes, seed + at).build(Compression::Gzip).unwrap();
    (0..layers).fold(ImageBuilder::new(), |image, at| image.layer(&layer(at))).build()
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
        self.up.ended("Preheat", name).await
    }

    /// That a job has failed, with its reason and message.
    pub(crate) async fn failure(&self, name: &str) -> (String, String) {
        let status = self.end(name).await;
        let text = |field: &str| status["failedNodes"][0][field].as_str().unwrap_or_default().to_owned();
        assert_eq!(status["phase"], "Failed", "{status:#}");
        (text("reason"), text("message"))
    }

    /// A Secret with a login, as `docker login` would write it.
    pub(crate) async fn login(&self, name: &str, host: &str, user: &str, password: &str) {
        self.up.docker_secret(name, &docker_login(host, user, password)).await;
    }

    /// The Secret with another login.
    pub(crate) async fn change_login(&self, name: &str, host: &str, user: &str, password: &str) {
        let content = docker_login(host, user, password);
        let patch = Patch::Merge(json!({ "stringData": { ".dockerconfigjson": content } }));
        let secrets: Api<Secret> = Api::default_namespaced(self.up.client().await);
        secrets.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }
}

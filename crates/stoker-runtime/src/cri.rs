//! Any runtime that speaks the Container Runtime Interface, as the kubelet uses it.
//!
//! A reference and a login come in; the runtime pulls, and what it then has goes out. It tells nothing on the way, and a
//! pull that is dropped is lost as a whole: where there is another way, it is the better one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::transport::Channel;

use crate::grpc::{self, ANSWER, Error, RuntimeErrorKind};
use crate::wire::cri as wire;
use wire::image_service_client::ImageServiceClient;
use wire::runtime_service_client::RuntimeServiceClient;

/// A runtime behind its socket. Clones are the same connection.
#[derive(Debug, Clone)]
pub struct Cri {
    socket: PathBuf,
    channel: Channel,
    name: String,
    version: String,
}

/// An image as the runtime lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The runtime's id for it.
    pub id: String,
    /// Names with tags.
    pub tags: Vec<String>,
    /// Names with digests.
    pub digests: Vec<String>,
    /// Its size as the runtime reckons it.
    pub size: u64,
    /// Whether garbage collection leaves it alone.
    pub pinned: bool,
}

/// A login for the registry. Never shown.
#[derive(Clone, Default)]
pub struct RegistryAuth {
    /// Who.
    pub username: String,
    /// The proof.
    pub password: String,
    /// Instead of both: a token to get other tokens with.
    pub identity_token: String,
    /// Instead of all: a token for the registry itself.
    pub registry_token: String,
}

impl std::fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Auth(…)")
    }
}

/// What the runtime is told about the pod that the image is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodSandbox {
    /// Labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod.
    pub annotations: BTreeMap<String, String>,
}

impl Cri {
    /// Asks the runtime who it is.
    pub async fn connect(socket: impl Into<PathBuf>) -> Result<Self, Error> {
        let socket = socket.into();
        let channel = grpc::channel(&socket).map_err(|e| Error {
            runtime: name_of(&socket),
            action: "be reached".into(),
            why: e.to_string(),
            kind: RuntimeErrorKind::Other,
        })?;
        let mut cri = Self { socket, channel, name: String::new(), version: String::new() };
        let answer = cri.ask_version().await?;
        (cri.name, cri.version) = (answer.runtime_name, answer.runtime_version);
        Ok(cri)
    }

    async fn ask_version(&self) -> Result<wire::VersionResponse, Error> {
        let answer = grpc::once_started(|| {
            let mut client = RuntimeServiceClient::new(self.channel.clone());
            let request = grpc::within(wire::VersionRequest { version: "v1".into() }, ANSWER);
            async move { client.version(request).await }
        })
        .await;
        Ok(answer.map_err(|status| self.failed("say its version", &status))?.into_inner())
    }

    /// Whether it answers.
    pub async fn answers(&self) -> bool {
        self.ask_version().await.is_ok()
    }

    /// Its name, e.g. containerd or cri-o.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its version.
    pub fn version(&self) -> &str {
        self.version.trim_start_matches('v')
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The image of this name, if the runtime lists it. (Listed does not mean unpacked.)
    pub async fn find(&self, image: &str) -> Result<Option<Listed>, Error> {
        let message = wire::ImageStatusRequest { image: Some(spec(image)), verbose: false };
        match self.images().image_status(grpc::within(message, ANSWER)).await {
            Ok(answer) => Ok(answer.into_inner().image.map(listed)),
            Err(status) if RuntimeErrorKind::of(&status) == RuntimeErrorKind::NotFound => Ok(None),
            Err(status) => Err(self.failed(format!("look for {image}"), &status)),
        }
    }

    /// All images.
    pub async fn list(&self) -> Result<Vec<Listed>, Error> {
        let request = grpc::within(wire::ListImagesRequest { filter: None }, ANSWER);
        let answer = self.images().list_images(request).await;
        let answer = answer.map_err(|status| self.failed("list its images", &status))?;
        Ok(answer.into_inner().images.into_iter().map(listed).collect())
    }

    /// Lets the runtime pull, as the kubelet would. Dropping it stops the pull.
    pub async fn pull(
        &self,
        image: &str,
        auth: Option<&RegistryAuth>,
        sandbox: Option<&PodSandbox>,
        limit: Duration,
    ) -> Result<String, Error> {
        let message = wanted(image, auth, sandbox);
        let answer = self.images().pull_image(grpc::within(message, limit)).await;
        Ok(answer.map_err(|status| self.failed(format!("pull {image}"), &status))?.into_inner().image_ref)
    }

    /// Takes an image away, with all its names.
    pub async fn remove(&self, image: &str) -> Result<(), Error> {
        let request = grpc::within(wire::RemoveImageRequest { image: Some(spec(image)) }, ANSWER);
        match self.images().remove_image(request).await {
            Err(status) if RuntimeErrorKind::of(&status) != RuntimeErrorKind::NotFound => {
                Err(self.failed(format!("remove {image}"), &status))
            }
            _ => Ok(()),
        }
    }

    /// Where the runtime keeps its images.
    pub async fn filesystem(&self) -> Result<Option<PathBuf>, Error> {
        let answer = self.images().image_fs_info(grpc::within(wire::ImageFsInfoRequest {}, ANSWER)).await;
        let answer = answer.map_err(|status| self.failed("say where its images are", &status))?.into_inner();
        let first = answer.image_filesystems.into_iter().find_map(|usage| usage.fs_id);
        Ok(first.map(|id| id.mountpoint.into()))
    }

    fn images(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel.clone()).max_decoding_message_size(16 << 20)
    }

    fn failed(&self, action: impl Into<String>, status: &tonic::Status) -> Error {
        Error {
            runtime: name_of(&self.socket),
            action: action.into(),
            why: grpc::words(status),
            kind: RuntimeErrorKind::of(status),
        }
    }
}

fn name_of(socket: &Path) -> String {
    format!("the runtime at {}", socket.display())
}

fn spec(image: &str) -> wire::ImageSpec {
    wire::ImageSpec { image: image.into(), ..Default::default() }
}

/// What the kubelet would ask, as far as we know it.
fn wanted(image: &str, auth: Option<&RegistryAuth>, sandbox: Option<&PodSandbox>) -> wire::PullImageRequest {
    let auth = auth.map(|auth| wire::AuthConfig {
        username: auth.username.clone(),
        password: auth.password.clone(),
        identity_token: auth.identity_token.clone(),
        registry_token: auth.registry_token.clone(),
        ..Default::default()
    });
    let sandbox_config = sandbox.map(|sandbox| wire::PodSandboxConfig {
        metadata: None,
        labels: sandbox.labels.clone(),
        annotations: sandbox.annotations.clone(),
    });
    let mut asked = spec(image);
    asked.annotations = sandbox.map(|sandbox| sandbox.annotations.clone()).unwrap_or_default();
    wire::PullImageRequest { image: Some(asked), auth, sandbox_config }
}

fn listed(image: wire::Image) -> Listed {
    let wire::Image { id, repo_tags, repo_digests, size, pinned, .. } = image;
    Listed { id, tags: repo_tags, digests: repo_digests, size, pinned }
}

impl Listed {
    /// The digest under which it is known in this repository.
    pub fn digest_in(&self, repository: &str) -> Option<&str> {
        let digests = self.digests.iter().filter_map(|name| name.split_once('@'));
        digests.filter(|(name, _)| *name == repository).map(|(_, digest)| digest).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_tells_who_asks_and_for_which_pod() {
        let pairs = |key: &str| BTreeMap::from([(key.to_owned(), "x".to_owned())]);
        let sandbox = PodSandbox { labels: pairs("label"), annotations: pairs("annotation") };
        let auth = RegistryAuth { username: "ada".into(), password: "hunter2".into(), ..RegistryAuth::default() };
        let request = wanted("reg.io/app:v1", Some(&auth), Some(&sandbox));
        assert!(!format!("{request:?} {auth:?}").contains("hunter2"));
        let told = request.auth.unwrap();
        assert_eq!((told.username.as_str(), told.password.as_str()), ("ada", "hunter2"));
        let pod = request.sandbox_config.unwrap();
        assert_eq!((pod.labels, pod.annotations), (pairs("label"), pairs("annotation")));
        let image = request.image.unwrap();
        assert_eq!((image.image.as_str(), image.annotations), ("reg.io/app:v1", pairs("annotation")));
        let plain = wanted("reg.io/app:v1", None, None);
        assert!(plain.auth.is_none() && plain.sandbox_config.is_none());
    }

    #[test]
    fn an_image_is_known_by_a_digest_in_each_repository() {
        let listed = Listed {
            id: "sha256:c".into(),
            tags: vec!["reg.io/app:v1".into()],
            digests: vec!["reg.io/other@sha256:a".into(), "reg.io/app@sha256:b".into()],
            size: 1,
            pinned: false,
        };
        assert_eq!(listed.digest_in("reg.io/app"), Some("sha256:b"));
        assert_eq!(listed.digest_in("reg.io/ap"), None);
    }
}

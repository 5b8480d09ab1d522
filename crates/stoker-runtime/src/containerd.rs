//! containerd, by its own services: content, snapshots, leases, image records.
//!
//! Verified bytes and documents come in; images that the kubelet, CRI, `crictl` and `ctr` see like any pull of their own
//! go out, unpacked. It fetches nothing and knows no Kubernetes. Ready means: a container could start at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tonic::metadata::AsciiMetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Status};

use crate::grpc::{self, ANSWER, Error, RuntimeErrorKind};
use crate::name_locks::NameLocks;

mod blob;
mod chain;
mod content;
mod decoders;
mod events;
mod image;
mod ingest;
mod lease;
mod node;
mod session;
mod settings;
mod sight;
mod snapshot;
mod source;
mod stage;
mod verifiers;

pub use self::blob::ContentBlob;
pub use self::node::ContainerdNode;
pub use self::session::{LayerSource, LayerState, LayerTrouble, Session, WantedImage};

/// Labels of containerd's objects.
pub(crate) type ObjectLabels = BTreeMap<String, String>;

/// Where containerd is, and what of it is ours.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its socket.
    pub socket: PathBuf,
    /// The namespace that the kubelet's images are in.
    pub namespace: String,
    /// Unpack layers ourselves where that is possible, while they come.
    pub direct: bool,
}

impl Settings {
    /// The kubelet's namespace, on this socket.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), namespace: "k8s.io".into(), direct: true }
    }
}

/// A containerd. Clones are the same connection.
#[derive(Debug, Clone)]
pub struct Containerd {
    inner: Arc<ContainerdInner>,
}

#[derive(Debug)]
struct ContainerdInner {
    settings: Settings,
    channel: Channel,
    namespace: AsciiMetadataValue,
    node: ContainerdNode,
    /// One for each layer that is being unpacked: images that share it unpack it once.
    stages: NameLocks,
    /// For the layers that we unpack ourselves, of all pulls together.
    decoders: decoders::Decoders,
    pulls: lease::LeasedPulls,
}

impl Containerd {
    /// Asks containerd who it is and how it is set up.
    pub async fn connect(settings: Settings) -> Result<Self, Error> {
        let unusable = |why: String| Error {
            runtime: name_of(&settings.socket),
            action: "be reached".into(),
            why,
            kind: RuntimeErrorKind::Other,
        };
        let channel = grpc::channel(&settings.socket).map_err(|e| unusable(e.to_string()))?;
        let namespace = AsciiMetadataValue::try_from(&settings.namespace);
        let namespace = namespace.map_err(|_| unusable("its namespace has characters that it may not".into()))?;
        let (stages, pulls) = (NameLocks::default(), lease::LeasedPulls::default());
        let decoders = decoders::Decoders::default();
        let mut inner =
            ContainerdInner { settings, channel, namespace, node: ContainerdNode::default(), stages, decoders, pulls };
        inner.node = node::look(&inner).await?;
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What was found out about it.
    pub fn node(&self) -> &ContainerdNode {
        &self.inner.node
    }

    /// Whether it answers.
    pub async fn answers(&self) -> bool {
        node::version(&self.inner).await.is_ok()
    }

    /// A document that it has: a manifest, an index or a configuration.
    pub async fn document(&self, digest: &str) -> Result<Option<bytes::Bytes>, Error> {
        self.inner.read(digest).await
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.inner.settings.socket
    }
}

impl ContainerdInner {
    /// A question in our namespace, with a time in which it must be answered.
    fn ask<T>(&self, message: T) -> Request<T> {
        self.ask_within(message, ANSWER)
    }

    fn ask_within<T>(&self, message: T, limit: Duration) -> Request<T> {
        let mut request = grpc::within(message, limit);
        request.metadata_mut().insert("containerd-namespace", self.namespace.clone());
        request
    }

    /// The same; what it makes belongs to this lease.
    fn leased<T>(&self, message: T, lease: &AsciiMetadataValue) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("containerd-namespace", self.namespace.clone());
        request.metadata_mut().insert("containerd-lease", lease.clone());
        request
    }

    fn failed(&self, action: impl Into<String>, status: &Status) -> Error {
        Error {
            runtime: name_of(&self.settings.socket),
            action: action.into(),
            why: grpc::words(status),
            kind: RuntimeErrorKind::of(status),
        }
    }

    fn broken(&self, action: impl Into<String>, why: impl Into<String>, kind: RuntimeErrorKind) -> Error {
        Error { runtime: name_of(&self.settings.socket), action: action.into(), why: why.into(), kind }
    }
}

fn name_of(socket: &Path) -> String {
    format!("containerd at {}", socket.display())
}

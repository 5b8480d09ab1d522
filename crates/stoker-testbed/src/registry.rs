//! A registry that misbehaves as told, on a real loopback socket.
//!
//! Images and faults come in; what was asked and how many bytes of bodies really went to the socket go out. It speaks
//! HTTP by hand: a server library would hide the very bytes that tests count. It never verifies anything.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

mod answer;
mod fault;
mod wire;

pub use self::fault::{Auth, Fault, On};

/// The media type of an OCI manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// The media type of an OCI index.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// One request, and what was sent for it.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Which connection it came over: the first one is 0.
    pub connection: usize,
    /// `GET` or `HEAD`.
    pub method: String,
    /// The path without its query.
    pub path: String,
    /// What came after the question mark.
    pub query: String,
    /// The host that was asked for where this registry was taken for a proxy; it then answers in its place.
    pub in_place_of: Option<String>,
    /// The Range header.
    pub range: Option<String>,
    /// The Authorization header.
    pub authorization: Option<String>,
    /// All headers: names in lower case, and values.
    pub headers: Vec<(String, String)>,
    /// The status of the answer.
    pub status: u16,
    /// Bytes of the body that went to the socket.
    pub body_bytes: u64,
}

/// What [`Registry::push`] made.
#[derive(Debug, Clone)]
pub struct Pushed {
    /// The manifest's digest.
    pub manifest: String,
    /// The manifest's bytes.
    pub bytes: Bytes,
    /// The digest of the configuration.
    pub config: String,
    /// The digests of the layers, the base first.
    pub layers: Vec<String>,
}

/// A registry on a port of its own; it stops when dropped.
#[derive(Debug)]
pub struct Registry {
    addr: SocketAddr,
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug, Default)]
struct Store {
    blobs: HashMap<String, Bytes>,
    /// By `repository@digest` and `repository:tag`; the media type comes with it.
    manifests: HashMap<String, (String, Bytes)>,
    auth: Auth,
    rules: Vec<fault::Rule>,
    /// How often each token was used.
    tokens: HashMap<String, usize>,
    seen: Vec<Seen>,
}

#[derive(Debug)]
struct Shared {
    addr: SocketAddr,
    store: Mutex<Store>,
    /// Opens what [`Fault::StallAfter`] holds back.
    open: watch::Sender<bool>,
    /// Counts requests and bytes, so that tests can wait for them.
    changed: watch::Sender<u64>,
    /// Bytes of bodies in a second, of all connections together, and when the next ones may go.
    pace: Mutex<(u64, Instant)>,
}

impl Registry {
    /// Listens on a free port of loopback, empty and without faults.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            addr,
            store: Mutex::default(),
            open: watch::Sender::new(false),
            changed: watch::Sender::new(0),
            pace: Mutex::new((u64::MAX, Instant::now())),
        });
        let ours = shared.clone();
        let task = tokio::spawn(async move {
            // The set goes with the task, and all connections with the set.
            let mut connections = JoinSet::new();
            let mut count = 0..;
            while let (Ok((stream, _)), Some(number)) = (listener.accept().await, count.next()) {
                connections.spawn(wire::serve(stream, ours.clone(), number));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { addr, shared, task: task.abort_handle() })
    }

    /// `127.0.0.1:PORT`, to begin references with.
    pub fn host(&self) -> String {
        self.addr.to_string()
    }

    /// Stores a blob and gives its digest.
    pub fn put_blob(&self, bytes: impl Into<Bytes>) -> String {
        let bytes = bytes.into();
        let digest = digest(&bytes);
        self.store().blobs.insert(digest.clone(), bytes);
        digest
    }

    /// Stores a manifest or index under its digest and, if given, a tag.
    pub fn put_manifest(
        &self,
        repository: &str,
        tag: Option<&str>,
        media_type: &str,
        bytes: impl Into<Bytes>,
    ) -> String {
        let bytes = bytes.into();
        let digest = digest(&bytes);
        let mut store = self.store();
        store.manifests.insert(format!("{repository}@{digest}"), (media_type.to_owned(), bytes.clone()));
        if let Some(tag) = tag {
            store.manifests.insert(format!("{repository}:{tag}"), (media_type.to_owned(), bytes));
        }
        digest
    }

    /// Stores a whole image of these layers.
    pub fn push(&self, repository: &str, tag: &str, layers: &[Bytes]) -> Pushed {
        let config =
            json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}).to_string();
        let config_size = config.len();
        let config = self.put_blob(config);
        let digests: Vec<String> = layers.iter().map(|layer| self.put_blob(layer.clone())).collect();
        let layer = |(digest, bytes): (&String, &Bytes)| json!({"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest, "size": bytes.len()});
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config, "size": config_size},
            "layers": digests.iter().zip(layers).map(layer).collect::<Vec<_>>(),
        });
        let bytes = Bytes::from(manifest.to_string());
        let manifest = self.put_manifest(repository, Some(tag), MANIFEST, bytes.clone());
        Pushed { manifest, bytes, config, layers: digests }
    }

    /// Stores an index of manifests (digest, bytes, media type, `os/arch`) under a tag.
    pub fn put_index(&self, repository: &str, tag: &str, entries: &[(&str, usize, &str, &str)]) -> String {
        let entry = |(digest, size, media_type, platform): &(&str, usize, &str, &str)| {
            let (os, architecture) = platform.split_once('/').unwrap_or((platform, ""));
            json!({"mediaType": media_type, "digest": digest, "size": size,
                   "platform": {"os": os, "architecture": architecture}})
        };
        let index = json!({"schemaVersion": 2, "mediaType": INDEX,
            "manifests": entries.iter().map(entry).collect::<Vec<_>>()});
        self.put_manifest(repository, Some(tag), INDEX, index.to_string())
    }

    /// Who may pull, from now on.
    pub fn protect(&self, auth: Auth) {
        self.store().auth = auth;
    }

    /// Does this to the next `times` matching requests (`usize::MAX`: to all). Of several faults for one request each is
    /// done, and each is used up by it.
    pub fn fault(&self, on: On, times: usize, fault: Fault) {
        self.store().rules.push(fault::Rule { on, left: times, fault });
    }

    /// Lets everything go on that [`Fault::StallAfter`] holds back, now and later.
    pub fn let_go(&self) {
        self.shared.open.send_replace(true);
    }

    /// From now on no more than this many bytes of bodies in a second.
    pub fn pace(&self, bytes_per_second: u64) {
        *self.shared.pace.lock().unwrap_or_else(PoisonError::into_inner) = (bytes_per_second, Instant::now());
    }

    /// Waits until this many bytes of bodies went out for paths that hold this text.
    pub async fn wait_for_bytes(&self, part: &str, bytes: u64) {
        self.wait_for(|seen| {
            let sent = seen.iter().filter(|seen| seen.path.contains(part)).map(|seen| seen.body_bytes);
            sent.sum::<u64>() >= bytes
        })
        .await;
    }

    /// All requests so far, in the order they came.
    pub fn seen(&self) -> Vec<Seen> {
        self.store().seen.clone()
    }

    /// The requests whose path holds this text.
    pub fn requests(&self, part: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.path.contains(part)).collect()
    }

    /// The bytes of bodies that went out for paths that hold this text.
    pub fn body_bytes(&self, part: &str) -> u64 {
        self.requests(part).iter().map(|seen| seen.body_bytes).sum()
    }

    /// Waits until the requests so far are as the test wants them.
    pub async fn wait_for(&self, wanted: impl Fn(&[Seen]) -> bool) {
        let mut changed = self.shared.changed.subscribe();
        while !wanted(&self.seen()) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.shared.store()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until these bytes may go.
    async fn may_send(&self, bytes: usize) {
        let at = {
            let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
            let at = pace.1.max(Instant::now());
            pace.1 = at + Duration::from_secs_f64(bytes as f64 / pace.0.max(1) as f64);
            at
        };
        tokio::time::sleep_until(at).await;
    }

    /// Notes a change of what was seen.
    fn note<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        let result = change(&mut self.store());
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
        result
    }
}

/// The sha256 digest of these bytes, as registries write it.
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Bytes::copy_from_slice(&Sha256::digest(bytes)))
}

/// Bytes that look random and are the same each time.
pub fn noise(length: usize, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    Bytes::from(bytes)
}

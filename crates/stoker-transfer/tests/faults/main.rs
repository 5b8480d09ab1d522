//! The registry's ways to fail, on real sockets, with the bytes counted where they leave.

// Helpers of tests may unwrap as the tests themselves do; clippy's exception sees only the latter.
#![allow(clippy::unwrap_used)]

mod auth;
mod blobs;
mod credentials;
mod damage;
mod documents;
mod elsewhere;
mod hosts;
mod limits;
mod messages;
mod packed;
mod parsing;
mod peers;
mod permission;
mod providers;
mod proxies;
mod serving;
mod sharing;
mod threads;
mod tickets;
mod tls;
mod trouble;

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use stoker_testbed::registry::{self as testbed, Pushed};
use stoker_transfer::{
    BlobSource, Descriptor, Digest, Error, Growing, Login, MediaType, Reference, Registry, Retry, Settings, Spool,
    SpoolSettings,
};
use tempfile::TempDir;
use tokio::net::TcpSocket;

/// Not a multiple of any buffer.
const SIZE: usize = 3 * 1024 * 1024 + 17;

/// A registry with one image, and a client that has never seen it.
struct Bench {
    registry: testbed::Registry,
    client: Registry,
    spool: Spool,
    dir: TempDir,
    layer: Bytes,
    pushed: Pushed,
}

/// Long, so that a machine that is slow or stands still fails no test. Nobody waits for it: see [`pass`].
const STALL: Duration = Duration::from_secs(60);

fn settings() -> Settings {
    Settings {
        stall_timeout: STALL,
        retry: Retry { attempts: 3, first: Duration::from_millis(10), ..Retry::default() },
        ..Settings::default()
    }
}

impl Bench {
    async fn new() -> Self {
        let registry = testbed::Registry::start().await.unwrap();
        let layer = testbed::noise(SIZE, 7);
        let pushed = registry.push("team/app", "v1", std::slice::from_ref(&layer));
        let client = Registry::new(settings()).unwrap();
        let dir = TempDir::new().unwrap();
        let spool = open(dir.path(), &client);
        Self { registry, client, spool, dir, layer, pushed }
    }

    /// The same with a client that has these settings.
    fn set(&mut self, settings: Settings) {
        self.client = Registry::new(settings).unwrap();
        self.spool = open(self.dir.path(), &self.client);
    }

    fn image(&self) -> Reference {
        format!("{}/team/app:v1", self.registry.host()).parse().unwrap()
    }

    fn source(&self) -> BlobSource {
        BlobSource::new(self.image(), None)
    }

    fn descriptor(&self) -> Descriptor {
        descriptor(&self.pushed.layers[0], self.layer.len() as u64)
    }

    /// Fetches the layer and gives what the file holds.
    async fn fetch(&self) -> Result<Vec<u8>, Error> {
        self.fetch_as(None).await
    }

    async fn fetch_as(&self, login: Option<Login>) -> Result<Vec<u8>, Error> {
        let source = BlobSource::new(self.image(), login);
        let file = self.spool.blob(source, self.descriptor()).complete().await?;
        Ok(std::fs::read(file).unwrap())
    }

    /// The files of the spool, and the bytes of each.
    async fn held(&self) -> Vec<(Digest, u64)> {
        self.spool.held().await.unwrap().into_iter().map(|file| (file.digest, file.bytes)).collect()
    }

    /// Bytes of blobs that left the registry.
    fn sent(&self) -> u64 {
        self.registry.body_bytes("/blobs/")
    }

    fn ranges(&self) -> Vec<Option<String>> {
        self.registry.requests("/blobs/").into_iter().map(|seen| seen.range).collect()
    }
}

fn open(dir: &Path, client: &Registry) -> Spool {
    Spool::open(dir.to_owned(), client.clone(), SpoolSettings::default()).unwrap()
}

/// Lets this time pass at once, for everything that waits or grows old. Only where the test knows what that is: a request
/// on its way would take it for a stall.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

/// Waits until this many bytes came from upstream, written or not.
async fn came(growing: &Growing, bytes: u64) {
    while growing.progress().upstream() < bytes {
        let ended = tokio::time::timeout(Duration::from_millis(1), growing.complete()).await;
        assert!(ended.is_err() || growing.progress().upstream() >= bytes, "{ended:?}");
    }
}

/// An address where nobody listens, nor can while this is held.
fn nobody() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let host = socket.local_addr().unwrap().to_string();
    (socket, host)
}

fn descriptor(digest: &str, size: u64) -> Descriptor {
    Descriptor::new(MediaType::ImageLayer, size, digest_of(digest))
}

fn digest_of(text: &str) -> Digest {
    text.parse().unwrap()
}

fn login(password: &str) -> Login {
    Login { username: "ada".into(), password: password.into() }
}

/// An error's text must help, and must not tell what is secret.
fn assert_clean(error: &Error) {
    let text = format!("{error} {error:?}");
    for secret in ["hunter2", "signed-secret", "X-Signature", "token-"] {
        assert!(!text.contains(secret), "{text}");
    }
}

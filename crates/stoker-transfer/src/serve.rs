//! A small read-only registry over an OCI layout.
//!
//! A layout directory comes in; `/v2/`, manifests by tag and digest, and blobs (with a single range) go out over
//! HTTP. It never writes, never leaves the directory, and streams files in pieces, so that its memory stays flat.
//! It has no TLS and no login: it is meant for loopback.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::limit::Pace;

mod answer;
mod layout;
mod range;

use self::layout::ServedLayout;

/// Why a server cannot be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is taken, or not ours.
    #[error("cannot listen on {addr}: {source}; choose another port, or stop what uses it")]
    Listen {
        /// The address that was asked for.
        addr: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The directory is not an OCI layout.
    #[error("{} is not an OCI layout: {why}; make one with `skopeo copy … oci:DIR:NAME`", .dir.display())]
    NotALayout {
        /// The directory.
        dir: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The listener broke.
    #[error("the registry on {addr} stopped: {source}")]
    Stopped {
        /// Where it listened.
        addr: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
}

/// How a server serves.
#[derive(Debug, Clone, Default)]
pub struct ServeSettings {
    /// The most that leaves in a second, over all connections together; `None` is as fast as it goes.
    pub bytes_per_second: Option<u64>,
}

/// A registry that is bound to its address; [`run`](Self::run) serves it.
#[derive(Debug)]
pub struct RegistryServer {
    listener: TcpListener,
    addr: SocketAddr,
    shared: Arc<ServeShared>,
}

/// What all requests share.
#[derive(Debug)]
struct ServeShared {
    layout: ServedLayout,
    pace: Option<Pace>,
    sent: Arc<AtomicU64>,
    stop: CancellationToken,
}

impl RegistryServer {
    /// Takes the address (port 0: any) and looks at the layout. Nothing is answered before [`run`](Self::run).
    pub async fn bind(addr: SocketAddr, layout_dir: PathBuf, settings: ServeSettings) -> Result<Self, Error> {
        let layout = ServedLayout::open(layout_dir).await?;
        let listener = TcpListener::bind(addr).await.map_err(|source| Error::Listen { addr, source })?;
        let addr = listener.local_addr().map_err(|source| Error::Listen { addr, source })?;
        let shared = ServeShared {
            layout,
            pace: settings.bytes_per_second.map(Pace::new),
            sent: Arc::default(),
            stop: CancellationToken::new(),
        };
        Ok(Self { listener, addr, shared: Arc::new(shared) })
    }

    /// The address it really has.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Bytes of bodies that left so far.
    pub fn sent(&self) -> Arc<AtomicU64> {
        self.shared.sent.clone()
    }

    /// Serves until told to stop. Answers that are under way are cut then, so that a slow reader holds nothing up.
    pub async fn run(self, stop: CancellationToken) -> Result<(), Error> {
        let ours = self.shared.stop.clone();
        let ended = async move {
            stop.cancelled().await;
            ours.cancel();
        };
        let router = Router::new().fallback(handle).with_state(self.shared);
        let addr = self.addr;
        let serve = axum::serve(self.listener, router).with_graceful_shutdown(ended);
        serve.await.map_err(|source| Error::Stopped { addr, source })
    }
}

async fn handle(State(shared): State<Arc<ServeShared>>, request: Request) -> Response {
    answer::answer(shared, request).await
}

impl ServeShared {
    /// Waits for its turn and counts; `false` when the server stops meanwhile.
    async fn pass(&self, bytes: usize) -> bool {
        let turn = async {
            if let Some(pace) = &self.pace {
                pace.wait(bytes).await;
            }
        };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => false,
            () = turn => {
                self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
                true
            }
        }
    }

    fn piece(&self) -> usize {
        self.pace.as_ref().map_or(128 * 1024, Pace::piece)
    }
}

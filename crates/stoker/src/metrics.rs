//! A small HTTP server for Prometheus and for probes: /metrics, /healthz, /readyz. Off unless asked for.
//!
//! Numbers come in, text goes out. It has no TLS and no login, takes few connections at one time and gives each little
//! time: whoever can reach it can read counts, and nothing else.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Connections at one time; others wait in the listener's queue.
const CONNECTIONS: usize = 16;

/// A connection is one request, and over after this.
const PATIENCE: Duration = Duration::from_secs(10);

/// After an accept that failed, which is mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The numbers of the parts that run in this process.
#[derive(Clone, Default)]
pub(crate) struct Numbers {
    pub(crate) controller: Option<stoker_controller::Metrics>,
    pub(crate) agents: Option<stoker_agent::Metrics>,
}

impl Numbers {
    fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        self.controller.iter().for_each(|controller| controller.register(&mut registry));
        self.agents.iter().for_each(|agents| agents.register(&mut registry));
        registry
    }

    /// The first sentence that a part says against it.
    fn healthy(&self) -> Result<(), String> {
        self.controller.as_ref().map_or(Ok(()), |controller| controller.healthy())?;
        self.agents.as_ref().map_or(Ok(()), |agents| agents.healthy())
    }

    fn ready(&self) -> Result<(), String> {
        self.controller.as_ref().map_or(Ok(()), |controller| controller.ready())?;
        self.agents.as_ref().map_or(Ok(()), |agents| agents.ready())
    }
}

/// What requests share.
struct Shared {
    numbers: Numbers,
    registry: Registry,
}

/// Bound to its address; [`run`](Self::run) serves it.
pub(crate) struct Server {
    listener: TcpListener,
    addr: SocketAddr,
    router: Router,
}

impl Server {
    /// Takes the address (port 0: any), where one is given.
    pub(crate) async fn bind(addr: Option<SocketAddr>, numbers: &Numbers) -> anyhow::Result<Option<Self>> {
        let Some(addr) = addr else { return Ok(None) };
        let listener = TcpListener::bind(addr).await.with_context(|| {
            format!("cannot serve metrics on {addr}; give another --metrics address, or stop what uses it")
        })?;
        let addr = listener.local_addr()?;
        Ok(Some(Self { listener, addr, router: router(numbers.clone()) }))
    }

    /// The address, with the port that was really taken.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves until cancelled; what is under way then is cut.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let service = TowerToHyperService::new(self.router);
        let slots = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let accepted = tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                accepted = accept(&self.listener, &slots) => accepted,
            };
            let (stream, slot) = match accepted {
                Ok(accepted) => accepted,
                Err(problem) => {
                    tracing::warn!("a connection for metrics could not be accepted: {problem}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(PATIENCE).keep_alive(false);
            let connection = http.serve_connection(TokioIo::new(stream), service.clone());
            connections.spawn(async move {
                let _slot = slot;
                if !matches!(tokio::time::timeout(PATIENCE, connection).await, Ok(Ok(()))) {
                    tracing::debug!("a connection for metrics ended early");
                }
            });
        }
        connections.shutdown().await;
    }
}

async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> std::io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let slot = slots.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    Ok((listener.accept().await?.0, slot))
}

fn router(numbers: Numbers) -> Router {
    let registry = numbers.registry();
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(async |State(shared): State<Arc<Shared>>| answer(shared.numbers.healthy())))
        .route("/readyz", get(async |State(shared): State<Arc<Shared>>| answer(shared.numbers.ready())))
        .with_state(Arc::new(Shared { numbers, registry }))
}

async fn metrics(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = encode(&mut text, &shared.registry);
    ([(CONTENT_TYPE, OPEN_METRICS)], text)
}

/// The answer to a probe.
fn answer(result: Result<(), String>) -> (StatusCode, String) {
    match result {
        Ok(()) => (StatusCode::OK, "ok\n".into()),
        Err(sentence) => (StatusCode::SERVICE_UNAVAILABLE, format!("{sentence}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn both() -> Numbers {
        Numbers { controller: Some(Default::default()), agents: Some(Default::default()) }
    }

    #[test]
    fn the_page_names_every_metric_and_no_other() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md")).unwrap();
        // Rows that begin with a mere name, with the type next to it.
        let rows = page.lines().filter_map(|line| line.strip_prefix("| `stoker_")?.split_once("` | "));
        let rows = rows.filter(|(name, _)| name.chars().all(|letter| letter == '_' || letter.is_ascii_alphanumeric()));
        let rows = rows.map(|(name, rest)| (format!("stoker_{name}"), rest.split(' ').next().unwrap().to_string()));
        let documented: BTreeSet<(String, String)> = rows.collect();
        let mut text = String::new();
        encode(&mut text, &both().registry()).unwrap();
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let suffix = |kind: &str| if kind == "counter" { "_total" } else { "" };
        let exported: BTreeSet<(String, String)> =
            types.map(|(name, kind)| (format!("{name}{}", suffix(kind)), kind.to_string())).collect();
        assert_eq!(documented, exported, "docs/metrics.md and what is exported differ");
    }

    #[tokio::test]
    async fn a_probe_says_what_is_wrong_and_a_port_in_use_is_named() {
        let numbers = both();
        assert_eq!(answer(numbers.healthy()), (StatusCode::OK, "ok\n".into()));
        let (status, said) = answer(numbers.ready());
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(said.starts_with("the controller is not ready: "), "{said}");
        assert_eq!(answer(Numbers { controller: None, ..numbers.clone() }.ready()).1, "no agent has started yet\n");

        let first = Server::bind(Some(([127, 0, 0, 1], 0).into()), &numbers).await.unwrap().unwrap();
        let second = Server::bind(Some(first.addr()), &numbers).await.err().unwrap();
        let (said, addr) = (format!("{second:#}"), first.addr().to_string());
        assert!(said.contains(&addr) && said.contains("--metrics"), "{said}");
        assert!(Server::bind(None, &numbers).await.unwrap().is_none());
    }
}

//! Small HTTP servers for Prometheus (/metrics, and the pages of probes too) and for the kubelet's probes (/healthz, /readyz) on a port
//! of their own: whoever holds all connections for metrics must not have a healthy pod restarted. Off unless asked for.
//!
//! Numbers come in, text goes out. It has no TLS and no login, takes few connections at one time and gives each little
//! time: whoever can reach it can read counts, and nothing else.

use std::io;
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
use stoker_embedded::{Crowd, accept};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What strangers may take.
#[derive(Debug, Clone, Copy)]
struct RequestLimits {
    /// Connections at one time; others wait in the listener's queue.
    connections: usize,
    /// A connection is one request, and over after this.
    patience: Duration,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { connections: 16, patience: Duration::from_secs(10) }
    }
}

/// How long an address that is in use is waited for: a predecessor that was killed may have much to give back.
const FREE_WITHIN: Duration = Duration::from_secs(30);
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

/// What a server is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    Metrics,
    /// Nobody waits for a connection: one too many closes the oldest.
    Probes,
}

impl For {
    /// The word in messages, and the option that gives the address.
    fn word(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Probes => "probes",
        }
    }
}

/// What requests share.
struct MetricsShared {
    numbers: Numbers,
    registry: Registry,
}

/// Bound to its address; [`run`](Self::run) serves it.
pub(crate) struct MetricsServer {
    purpose: For,
    listener: TcpListener,
    addr: SocketAddr,
    router: Router,
    limits: RequestLimits,
}

impl MetricsServer {
    /// Takes the address (port 0: any), where one is given. Who has it may be about to go: a pod that is replaced on its node
    /// ends while the next one begins.
    pub(crate) async fn bind(
        purpose: For,
        addr: Option<SocketAddr>,
        numbers: &Numbers,
    ) -> anyhow::Result<Option<Self>> {
        let (Some(addr), word) = (addr, purpose.word()) else { return Ok(None) };
        let (begun, mut told) = (Instant::now(), false);
        let listener = loop {
            match TcpListener::bind(addr).await {
                Err(problem) if problem.kind() == io::ErrorKind::AddrInUse && begun.elapsed() < FREE_WITHIN => {
                    if !told {
                        tracing::warn!(
                            "{addr}, for {word}, is in use; waiting up to {} s for it",
                            FREE_WITHIN.as_secs()
                        );
                        told = true;
                    }
                    tokio::time::sleep(FREE_WITHIN / 100).await;
                }
                bound => break bound,
            }
        };
        let listener = listener.with_context(|| {
            format!("cannot serve {word} on {addr}; give another --{word} address, or stop what uses it")
        })?;
        let addr = listener.local_addr()?;
        let router = router(purpose, numbers.clone());
        Ok(Some(Self { purpose, listener, addr, router, limits: RequestLimits::default() }))
    }

    /// Both servers, those whose addresses are given. They wait for their addresses at the same time.
    pub(crate) async fn bind_both(
        metrics: Option<SocketAddr>,
        probes: Option<SocketAddr>,
        numbers: &Numbers,
    ) -> anyhow::Result<Vec<Self>> {
        let (metrics, probes) =
            tokio::try_join!(Self::bind(For::Metrics, metrics, numbers), Self::bind(For::Probes, probes, numbers))?;
        Ok(metrics.into_iter().chain(probes).collect())
    }

    /// What it serves, for the log.
    pub(crate) fn describe(&self) -> String {
        match self.purpose {
            For::Metrics => format!("metrics at http://{}/metrics", self.addr),
            For::Probes => format!("probes at http://{}/healthz and /readyz", self.addr),
        }
    }

    /// The address, with the port that was really taken.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Serves until cancelled; what is under way then is cut.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let service = TowerToHyperService::new(self.router);
        let RequestLimits { connections, patience } = self.limits;
        // Those that are being closed count until they are gone.
        let (slots, waits) = match self.purpose {
            For::Metrics => (connections, true),
            For::Probes => (2 * connections, false),
        };
        let crowd = Crowd::new(if waits { usize::MAX } else { connections }, patience);
        let serve = |stream| {
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(patience).keep_alive(false);
            let connection = http.serve_connection(TokioIo::new(stream), service.clone());
            let stranger = crowd.enter();
            async move {
                tokio::select! {
                    ended = connection => if let Err(error) = ended {
                        tracing::debug!(%error, "a connection for metrics or probes ended early");
                    },
                    () = stranger.must_go() => tracing::debug!("a connection for metrics or probes was closed"),
                }
            }
        };
        accept(&self.listener, slots, &cancel, serve).await.shutdown().await;
    }
}

fn router(purpose: For, numbers: Numbers) -> Router {
    let registry = numbers.registry();
    let router = match purpose {
        For::Metrics => Router::new().route("/metrics", get(metrics)),
        For::Probes => Router::new(),
    };
    router
        .route("/healthz", get(async |State(shared): State<Arc<MetricsShared>>| answer(shared.numbers.healthy())))
        .route("/readyz", get(async |State(shared): State<Arc<MetricsShared>>| answer(shared.numbers.ready())))
        .with_state(Arc::new(MetricsShared { numbers, registry }))
}

async fn metrics(State(shared): State<Arc<MetricsShared>>) -> impl IntoResponse {
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
    use std::io;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::task::JoinHandle;

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

    #[tokio::test(start_paused = true)]
    async fn a_probe_says_what_is_wrong_and_a_port_that_stays_in_use_is_named() {
        let numbers = both();
        assert_eq!(answer(numbers.healthy()), (StatusCode::OK, "ok\n".into()));
        let (status, said) = answer(numbers.ready());
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(said.starts_with("the controller is not ready: "), "{said}");
        assert_eq!(answer(Numbers { controller: None, ..numbers.clone() }.ready()).1, "no agent has started yet\n");

        let bind = async |purpose, addr| MetricsServer::bind(purpose, addr, &numbers).await;
        let first = bind(For::Metrics, Some(([127, 0, 0, 1], 0).into())).await.unwrap().unwrap();
        for (purpose, option) in [(For::Metrics, "--metrics"), (For::Probes, "--probes")] {
            let second = bind(purpose, Some(first.addr())).await.err().unwrap();
            let (said, addr) = (format!("{second:#}"), first.addr().to_string());
            assert!(said.contains(&addr) && said.contains(option), "{said}");
        }
        let addr = first.addr();
        let freed = async {
            tokio::time::sleep(FREE_WITHIN / 2).await;
            drop(first);
        };
        let ((), third) = tokio::join!(freed, bind(For::Probes, Some(addr)));
        assert_eq!(third.unwrap().unwrap().addr(), addr, "it was freed in time");
        assert!(bind(For::Metrics, None).await.unwrap().is_none());
        assert!(MetricsServer::bind_both(None, None, &numbers).await.unwrap().is_empty());
    }

    /// A server with these limits, and how it is ended.
    async fn serve(purpose: For, limits: RequestLimits) -> (SocketAddr, CancellationToken, JoinHandle<()>) {
        let server = MetricsServer::bind(purpose, Some(([127, 0, 0, 1], 0).into()), &both()).await.unwrap().unwrap();
        let (addr, cancel) = (server.addr(), CancellationToken::new());
        let running = tokio::spawn(MetricsServer { limits, ..server }.run(cancel.clone()));
        (addr, cancel, running)
    }

    async fn ask(addr: SocketAddr) -> io::Result<String> {
        ask_for(addr, "/healthz").await
    }

    async fn ask_for(addr: SocketAddr, page: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(format!("GET {page} HTTP/1.1\r\nHost: here\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    #[tokio::test]
    async fn more_connections_than_slots_wait_and_have_their_turn() {
        let (addr, cancel, running) =
            serve(For::Metrics, RequestLimits { connections: 2, patience: Duration::from_secs(3600) }).await;
        let mut silent = Vec::new();
        for _ in 0..2 {
            silent.push(TcpStream::connect(addr).await.unwrap());
        }
        let asking: Vec<_> = (0..5).map(|_| tokio::spawn(ask(addr))).collect();
        // Far more turns than an answer takes when there is a slot.
        for _ in 0..2000 {
            tokio::task::yield_now().await;
        }
        assert!(asking.iter().all(|asking| !asking.is_finished()), "both slots are taken");
        silent.pop();
        for asking in asking {
            let answer = asking.await.unwrap().unwrap();
            assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        }
        cancel.cancel();
        running.await.unwrap();
        assert_eq!(silent[0].read(&mut [0]).await.unwrap_or(0), 0, "what is open at the end is cut");
    }

    /// Whoever holds every connection of a port, that of metrics or their own: probes are answered.
    #[tokio::test]
    async fn probes_are_answered_whoever_holds_connections() {
        let limits = RequestLimits { connections: 4, patience: Duration::from_secs(3600) };
        let (addr, cancel, running) = serve(For::Probes, limits).await;
        let mut silent = Vec::new();
        for _ in 0..40 {
            silent.push(TcpStream::connect(addr).await.unwrap());
        }
        let answer = ask(addr).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        let answer = ask_for(addr, "/readyz").await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("not ready"), "{answer}");
        let answer = ask_for(addr, "/metrics").await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
        cancel.cancel();
        running.await.unwrap();
    }

    #[tokio::test]
    async fn who_says_nothing_or_not_all_is_cut_and_the_slot_is_free_again() {
        let (addr, cancel, running) =
            serve(For::Metrics, RequestLimits { connections: 1, patience: Duration::from_millis(20) }).await;
        for said in ["", "GET /metrics HTTP/1.1\r\nHost: he", "POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf"]
        {
            let mut stream = TcpStream::connect(addr).await.unwrap();
            stream.write_all(said.as_bytes()).await.unwrap();
            // It ends although this side keeps it open: with nothing, or with the refusal that it was already worth.
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer).await;
            let answer = String::from_utf8(answer).unwrap();
            assert!(!answer.contains("200 OK"), "{said:?}: {answer}");
        }
        // A slow machine may cut one that asks, too; not every one.
        loop {
            if ask(addr).await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 OK")) {
                break;
            }
        }
        cancel.cancel();
        running.await.unwrap();
    }
}

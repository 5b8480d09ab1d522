//! An API server that comes back with an older state under a living controller, as after a restored backup: what it has is the
//! truth, whatever the controller knew.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::client::Body;
use kube::runtime::wait::await_condition;
use serde_json::json;
use stoker_api::native::{NodePreheat, Preheat};
use stoker_core::Clock;
use stoker_embedded::Api as Embedded;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::bed::{self, Line, Way, does_its_orders, does_what_it_has, node, over_line, preheat};

/// How far the job has come when the backup is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Backup {
    /// It is there, and nothing else.
    Made,
    /// The node has its order.
    Ordered,
    /// The node has reported.
    Reported,
    /// Its status says so.
    Ended,
}

/// A server that can be replaced by one with an older state.
struct Served {
    dir: tempfile::TempDir,
    clock: Clock,
    current: watch::Sender<Client>,
    line: Line,
}

impl Served {
    fn start(clock: &Clock) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let current = watch::Sender::new(open(clock, &dir.path().join("journal")));
        Self { dir, clock: clock.clone(), current, line: Line::default() }
    }

    /// Whoever answers now.
    fn client(&self) -> Client {
        self.current.borrow().clone()
    }

    /// Over the way to whoever answers at the time.
    fn over(&self, way: impl Fn(&http::Request<Body>) -> Way + Send + Sync + 'static) -> Client {
        let current = self.current.subscribe();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let client = current.borrow().clone();
            async move { client.send(request).await }
        });
        over_line(&Client::new(service, "default"), &self.line, way)
    }

    fn back_up(&self) -> PathBuf {
        let backup = self.dir.path().join("backup");
        std::fs::copy(self.dir.path().join("journal"), &backup).unwrap();
        backup
    }

    fn restore(&self, backup: &Path) {
        self.current.send_replace(open(&self.clock, backup));
        self.line.cut();
    }
}

fn open(clock: &Clock, journal: &Path) -> Client {
    let settings = stoker_embedded::Settings { journal: Some(journal.into()), ..bed::api_settings(clock) };
    Embedded::new(settings).unwrap().client("default")
}

fn is_orders(request: &http::Request<Body>) -> bool {
    request.method() == Method::PATCH && request.uri().path().ends_with("/nodepreheats/n1")
}

fn is_status(request: &http::Request<Body>) -> bool {
    request.method() == Method::PATCH && request.uri().path().ends_with("/preheats/web/status")
}

/// Waits until the status of the job says that all is well.
async fn succeeds(client: &Client, backup: Backup) {
    let jobs: Api<Preheat> = Api::default_namespaced(client.clone());
    let done = |job: Option<&Preheat>| {
        let status = job.and_then(|job| job.status.as_ref());
        status.is_some_and(|status| status.phase == "Succeeded" && status.completion_time.is_some())
    };
    let done = tokio::time::timeout(Duration::from_secs(60), await_condition(jobs, "web", done)).await;
    assert!(done.is_ok(), "{backup:?}: it stays as it is");
}

/// The job ends, the server goes back to the backup, and the job ends again.
async fn a_job_ends_again(moment: Backup) {
    let clock: Clock = Arc::new(jiff::Timestamp::now);
    let served = Served::start(&clock);
    node(&served.client(), "n1").await;
    // Until the backup is made nothing more than it should have is written.
    let (hold, held) = watch::channel(true);
    let way = move |request: &http::Request<Body>| {
        let late = match moment {
            Backup::Made => is_orders(request) || is_status(request),
            Backup::Ordered | Backup::Reported => is_status(request),
            Backup::Ended => false,
        };
        if late && *held.borrow() { Way::Refused(503) } else { Way::Free }
    };
    let cancel = CancellationToken::new();
    let leader = bed::run(bed::settings(&served.over(way), &clock, "only"), &cancel);
    let client = served.client();
    preheat(&client, "web").await;
    if matches!(moment, Backup::Reported | Backup::Ended) {
        does_its_orders(&client, "n1", 1).await;
    }
    match moment {
        Backup::Ended => succeeds(&client, moment).await,
        Backup::Ordered => drop(bed::ordered(&client, "n1", 1).await),
        Backup::Made | Backup::Reported => {}
    }
    let backup = served.back_up();
    hold.send(false).unwrap();
    if !matches!(moment, Backup::Reported | Backup::Ended) {
        does_its_orders(&client, "n1", 1).await;
    }
    succeeds(&client, moment).await;
    // Much more is lost than will be written soon: versions stay lower than those that were known.
    let preheats: Api<NodePreheat> = Api::all(client.clone());
    let jobs: Api<Preheat> = Api::default_namespaced(client.clone());
    for number in 0..200 {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {"example/number": number.to_string()}}}));
        preheats.patch("n1", &PatchParams::default(), &patch).await.unwrap();
        jobs.patch("web", &PatchParams::default(), &patch).await.unwrap();
    }

    served.restore(&backup);
    let client = served.client();
    // What the agent said is said again, and what it is asked anew is done.
    let agent = async {
        loop {
            does_what_it_has(&client, "n1").await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = agent => {}
        () = succeeds(&client, moment) => {}
    }
    cancel.cancel();
    leader.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_lost_is_done_again() {
    let moments = [Backup::Made, Backup::Ordered, Backup::Reported, Backup::Ended];
    futures::future::join_all(moments.map(a_job_ends_again)).await;
}

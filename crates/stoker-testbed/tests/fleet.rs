//! A small fleet on the API in the box, with the real controller: jobs reach all nodes, and what the script lets fail is
//! reported with its reason. The large one, on a real API server, is `cargo xtask cluster up --fake-nodes`.

use std::time::Duration;

use kube::api::{Api, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::json;
use stoker_api::native::{NodePreheat, Preheat};
use stoker_controller::Limits;
use stoker_testbed::fleet::{self, Settings};
use stoker_testbed::scripted::{self, Ends};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// It only ends a hang.
const PATIENCE: Duration = Duration::from_secs(300);
const NODES: usize = 20;
/// Nobody listens there.
const IMAGE: &str = "127.0.0.1:1/fleet/app:v1";

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_pulls_a_job_to_its_end_and_says_what_failed() {
    let data = tempfile::tempdir().unwrap();
    let clock = fleet::clock();
    let crds = stoker_api::crds().iter().map(|(_, crd)| serde_json::to_value(crd).unwrap()).collect();
    let api = stoker_embedded::Api::new(stoker_embedded::Settings::new(crds, clock.clone())).unwrap();
    let client = api.client("default");
    let cancel = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let controller = stoker_controller::Settings {
        client: client.clone(),
        clock,
        limits: Limits { writes_per_second: 10_000, ..Limits::default() },
        namespace: stoker_api::NAMESPACE.into(),
        identity: "test".into(),
        trust_one_witness: false,
        peers: false,
        handed_over: Default::default(),
        serve: Default::default(),
        metrics: stoker_controller::Metrics::new(),
    };
    let until = cancel.clone();
    tasks.spawn(async move { stoker_controller::run(controller, until).await.unwrap() });
    let (say, registered) = oneshot::channel();
    let settings = Settings {
        nodes: NODES,
        data: data.path().into(),
        pull_time: Duration::from_millis(1),
        fail_every: Some(10),
        ends: Ends::to(&data.path().join("ends")).unwrap(),
    };
    let (its, until) = (client.clone(), cancel.clone());
    tasks.spawn(async move {
        let identify = |_: &str| its.clone();
        fleet::run(its.clone(), identify, settings, || say.send(()).unwrap(), until).await.unwrap();
    });
    tokio::time::timeout(PATIENCE, registered).await.unwrap().unwrap();

    let preheats: Api<Preheat> = Api::namespaced(client.clone(), "default");
    let job = json!({
        "apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": { "name": "app" },
        "spec": { "images": [{ "image": IMAGE }], "pace": { "parallelism": NODES }, "pull": { "retries": 0 } },
    });
    preheats.create(&PostParams::default(), &serde_json::from_value(job).unwrap()).await.unwrap();
    let ended = await_condition(preheats.clone(), "app", |job: Option<&Preheat>| {
        job.and_then(|job| job.status.as_ref()).is_some_and(|status| status.completion_time.is_some())
    });
    let job = tokio::time::timeout(PATIENCE, ended).await.unwrap().unwrap().unwrap();
    let status = job.status.unwrap();
    assert_eq!((status.desired, status.succeeded, status.failed), (20, 18, 2), "{status:?}");
    let failed: Vec<(&str, &str)> =
        status.failed_nodes.iter().map(|node| (node.node.as_str(), node.reason.as_str())).collect();
    assert_eq!(failed, [("fake-00010", "NotFound"), ("fake-00020", "NotFound")]);

    let nodes: Api<NodePreheat> = Api::all(client.clone());
    for (name, digest) in [("fake-00001", Some(scripted::digest(IMAGE))), ("fake-00010", None)] {
        let reports = nodes.get(name).await.unwrap().status.unwrap().reports;
        let report = reports.values().next().unwrap();
        assert_eq!(report.digest.clone().filter(|_| report.reason.is_none()), digest, "{name}: {report:?}");
    }
    let ends = std::fs::read_to_string(data.path().join("ends")).unwrap();
    let of = |end: &str| ends.lines().filter(|line| line.ends_with(end)).count();
    assert_eq!((of("pulled"), of("failed")), (18, 2), "{ends}");
    assert!(ends.lines().all(|line| line.contains(IMAGE)));

    cancel.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

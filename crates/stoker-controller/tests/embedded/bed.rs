//! An embedded API with what agents and people put there, controllers of it, and a way between the two that can be made worse.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::runtime::wait::await_condition;
use serde_json::json;
use stoker_api::native::{NodePreheat, NodePreheatSpec, Preheat};
use stoker_controller::{Limits, Metrics, Settings};
use stoker_core::Clock;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Wall time that follows tokio's clock, paused or not.
pub(crate) fn clock() -> Clock {
    let (wall, start) = (Timestamp::from_second(1_800_000_000).unwrap(), tokio::time::Instant::now());
    Arc::new(move || stoker_core::model::after(wall, start.elapsed()))
}

pub(crate) fn api(clock: &Clock) -> Client {
    let crds = stoker_api::crds().iter().map(|(_, crd)| serde_json::to_value(crd).unwrap()).collect();
    stoker_embedded::Api::new(stoker_embedded::Settings::new(crds, clock.clone())).unwrap().client("default")
}

/// Of one controller with this identity.
pub(crate) fn settings(client: &Client, clock: &Clock, identity: &str) -> Settings {
    Settings {
        client: client.clone(),
        clock: clock.clone(),
        limits: Limits::default(),
        namespace: stoker_api::NAMESPACE.into(),
        identity: identity.into(),
        metrics: Metrics::new(),
    }
}

pub(crate) fn run(settings: Settings, cancel: &CancellationToken) -> JoinHandle<()> {
    let run = stoker_controller::run(settings, cancel.clone());
    tokio::spawn(async move { run.await.unwrap() })
}

/// A node with an agent's object, as an agent would make them.
pub(crate) async fn node(client: &Client, name: &str) {
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}, "status": ready})).unwrap();
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let patch = Patch::Merge(json!({ "status": ready }));
    nodes.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    let preheats: Api<NodePreheat> = Api::all(client.clone());
    preheats.create(&PostParams::default(), &NodePreheat::new(name, NodePreheatSpec::default())).await.unwrap();
}

pub(crate) async fn preheat(client: &Client, name: &str) {
    let spec = json!({"images": [{"image": format!("registry.example/{name}:v1")}]});
    let object = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    Api::<Preheat>::default_namespaced(client.clone()).create(&PostParams::default(), &object).await.unwrap();
}

/// Waits until the node has this many orders; returns the epoch that they were written in.
pub(crate) async fn ordered(client: &Client, name: &str, count: usize) -> i64 {
    let preheats: Api<NodePreheat> = Api::all(client.clone());
    let object = await_condition(preheats, name, move |object: Option<&NodePreheat>| {
        object.is_some_and(|object| object.spec.orders.len() == count)
    });
    object.await.unwrap().unwrap().spec.epoch.unwrap()
}

pub(crate) async fn holder(client: &Client) -> Option<String> {
    let lease = Api::<Lease>::namespaced(client.clone(), stoker_api::NAMESPACE).get("stoker-controller").await.unwrap();
    lease.spec.unwrap().holder_identity.filter(|holder| !holder.is_empty())
}

/// What becomes of a request.
pub(crate) enum Way {
    /// It is answered.
    Free,
    /// It is done, and answered after a while.
    Late(Duration),
    /// It waits until then, and is done and answered.
    Held(Instant),
    /// Nobody hears it or says anything.
    Cut,
    /// It is refused with this code.
    Refused(u16),
}

/// The same API over a way on which each request fares as `way` says.
pub(crate) fn over(client: &Client, way: impl Fn(&http::Request<Body>) -> Way + Send + Sync + 'static) -> Client {
    let client = client.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, way) = (client.clone(), way(&request));
        async move {
            match way {
                Way::Free => client.send(request).await,
                Way::Late(pause) => {
                    let answer = client.send(request).await;
                    tokio::time::sleep(pause).await;
                    answer
                }
                Way::Held(until) => {
                    tokio::time::sleep_until(until).await;
                    client.send(request).await
                }
                Way::Cut => std::future::pending().await,
                Way::Refused(code) => Ok(refusal(code)),
            }
        }
    });
    Client::new(service, "default")
}

fn refusal(code: u16) -> http::Response<Body> {
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": if code == 403 { "Forbidden" } else { "NotFound" },
        "message": "not here and not now",
        "code": code,
    });
    let json = http::header::HeaderValue::from_static("application/json");
    let answer = http::Response::builder().status(code).header(http::header::CONTENT_TYPE, json);
    answer.body(Body::from(serde_json::to_vec(&status).unwrap())).unwrap()
}

//! An embedded API with what agents and people put there, controllers of it, and a way between the two that can be made worse.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
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
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

/// Wall time that follows tokio's clock, paused or not.
pub(crate) fn clock() -> Clock {
    let (wall, start) = (Timestamp::from_second(1_800_000_000).unwrap(), tokio::time::Instant::now());
    Arc::new(move || stoker_core::model::after(wall, start.elapsed()))
}

pub(crate) fn api(clock: &Clock) -> Client {
    stoker_embedded::Api::new(api_settings(clock)).unwrap().client("default")
}

pub(crate) fn api_settings(clock: &Clock) -> stoker_embedded::Settings {
    let crds = stoker_api::crds().iter().map(|(_, crd)| serde_json::to_value(crd).unwrap()).collect();
    stoker_embedded::Settings::new(crds, clock.clone())
}

/// The same with definitions that allow anything: objects may have been written under another version of their schema.
pub(crate) fn api_without_schemas(clock: &Clock) -> Client {
    let crds = stoker_api::crds().into_iter().map(|(_, crd)| {
        let mut crd = serde_json::to_value(crd).unwrap();
        let any = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let anything = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": any, "status": any}}});
        for version in crd["spec"]["versions"].as_array_mut().unwrap() {
            version["schema"] = anything.clone();
        }
        crd
    });
    let settings = stoker_embedded::Settings::new(crds.collect(), clock.clone());
    stoker_embedded::Api::new(settings).unwrap().client("default")
}

/// Of one controller with this identity.
pub(crate) fn settings(client: &Client, clock: &Clock, identity: &str) -> Settings {
    Settings {
        client: client.clone(),
        clock: clock.clone(),
        limits: Limits::default(),
        namespace: stoker_api::NAMESPACE.into(),
        identity: identity.into(),
        trust_one_witness: false,
        peers: false,
        handed_over: Default::default(),
        serve: Default::default(),
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
    let object = tokio::time::timeout(Duration::from_secs(1200), object).await;
    object.expect("it never has so many").unwrap().unwrap().spec.epoch.unwrap()
}

pub(crate) async fn holder(client: &Client) -> Option<String> {
    let lease = Api::<Lease>::namespaced(client.clone(), stoker_api::NAMESPACE).get("stoker-controller").await.unwrap();
    lease.spec.unwrap().holder_identity.filter(|holder| !holder.is_empty())
}

/// Waits until the node has this many orders, and says that it has done them all.
pub(crate) async fn does_its_orders(client: &Client, name: &str, count: usize) {
    ordered(client, name, count).await;
    does_what_it_has(client, name).await;
}

/// The node says that it has done all orders that it has now.
pub(crate) async fn does_what_it_has(client: &Client, name: &str) {
    let preheats: Api<NodePreheat> = Api::all(client.clone());
    let orders = preheats.get(name).await.unwrap().spec.orders;
    let digest = format!("sha256:{}", "d".repeat(64));
    let reports = orders.into_iter().map(|(key, order)| {
        let asked = order.asked;
        let report = json!({
            "asked": asked, "phase": "Succeeded", "digest": digest, "pin": { "asked": asked, "digest": digest },
            "attempt": 1, "started": asked, "finished": asked, "updated": asked,
        });
        (key, report)
    });
    let reports: serde_json::Map<_, _> = reports.collect();
    let patch = Patch::Merge(json!({ "status": { "reports": reports } }));
    preheats.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// What becomes of a request.
pub(crate) enum Way {
    /// It is answered.
    Free,
    /// It is done, and answered after a while.
    Late(Duration),
    /// It is done and answered, and what is in the answer comes after a while.
    Slow(Duration),
    /// It waits until then, and is done and answered.
    Held(Instant),
    /// Nobody hears it or says anything.
    Cut,
    /// It is refused with this code.
    Refused(u16),
    /// It is a watch, and is told that its version is too old.
    Expired,
}

/// The same API over a way on which each request fares as `way` says.
pub(crate) fn over(client: &Client, way: impl Fn(&http::Request<Body>) -> Way + Send + Sync + 'static) -> Client {
    over_line(client, &Line::default(), way)
}

/// The same over connections that can be cut.
pub(crate) fn over_line(
    client: &Client,
    line: &Line,
    way: impl Fn(&http::Request<Body>) -> Way + Send + Sync + 'static,
) -> Client {
    let (client, line) = (client.clone(), line.clone());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (client, line, way) = (client.clone(), line.clone(), way(&request));
        async move {
            let slow = if let Way::Slow(pause) = way { pause } else { Duration::ZERO };
            let answer = match way {
                Way::Free | Way::Slow(_) => client.send(request).await,
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
                Way::Expired => Ok(answer(200, &json!({ "type": "ERROR", "object": status(410) }))),
            };
            answer.map(|answer| answer.map(|body| line.carry(body, slow)))
        }
    });
    Client::new(service, "default")
}

/// Connections that last until they are cut.
#[derive(Clone, Default)]
pub(crate) struct Line(Arc<watch::Sender<u64>>);

impl Line {
    /// Whatever is being received ends in the middle.
    pub(crate) fn cut(&self) {
        self.0.send_modify(|cuts| *cuts += 1);
    }

    fn carry(&self, body: Body, slow: Duration) -> Carried {
        let mut cuts = self.0.subscribe();
        let cut = async move {
            if cuts.changed().await.is_err() {
                std::future::pending().await
            }
        };
        Carried { body: Some(body), comes: Box::pin(tokio::time::sleep(slow)), cut: Box::pin(cut) }
    }
}

struct Carried {
    body: Option<Body>,
    comes: Pin<Box<Sleep>>,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl http_body::Body for Carried {
    type Data = <Body as http_body::Body>::Data;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        let came = self.comes.as_mut().poll(context).is_ready();
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        if came && let Poll::Ready(frame) = Pin::new(body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        std::task::ready!(self.cut.as_mut().poll(context));
        self.body = None;
        Poll::Ready(Some(Err("the connection was cut".into())))
    }
}

fn status(code: u16) -> serde_json::Value {
    let reason = match code {
        403 => "Forbidden",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        _ => "NotFound",
    };
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": reason,
        "message": "not here and not now",
        "code": code,
    })
}

fn refusal(code: u16) -> http::Response<Body> {
    answer(code, &status(code))
}

fn answer(code: u16, value: &serde_json::Value) -> http::Response<Body> {
    let json = http::header::HeaderValue::from_static("application/json");
    let answer = http::Response::builder().status(code).header(http::header::CONTENT_TYPE, json);
    answer.body(Body::from(serde_json::to_vec(value).unwrap())).unwrap()
}

//! Objects with dates that an API server keeps and that nobody here can hold. Whoever may edit a job may put one into its managedFields,
//! and whoever has taken over a node into the Node's status.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::Frame;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};
use kube::client::Body;
use serde_json::json;
use stoker_api::native::Preheat;
use tokio_util::sync::CancellationToken;

use crate::bed::{self, api, clock, does_its_orders, node, ordered, preheat};

/// The embedded API keeps no managedFields, and refuses such dates: they are put in on the way.
const CHANGES: [(&str, &str); 2] = [
    (
        r#""name":"poison""#,
        r#""managedFields":[{"manager":"x","operation":"Update","time":"9999-12-31T23:59:59Z"}],"name":"poison""#,
    ),
    ("2026-02-03T04:05:06Z", "9999-12-31T23:59:59Z"),
];

struct Changed(Body);

impl http_body::Body for Changed {
    type Data = <Body as http_body::Body>::Data;
    type Error = <Body as http_body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let change = |data: Self::Data| {
            let text = String::from_utf8(data.to_vec()).unwrap();
            CHANGES.iter().fold(text, |text, (from, to)| text.replace(from, to)).into()
        };
        let frame = std::task::ready!(Pin::new(&mut self.0).poll_frame(context));
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(change))))
    }
}

fn changed(client: &Client) -> Client {
    let client = client.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let client = client.clone();
        async move { client.send(request).await.map(|answer| answer.map(Changed)) }
    });
    Client::new(service, "default")
}

async fn succeeds(client: &Client, name: &'static str) {
    let preheats: Api<Preheat> = Api::default_namespaced(client.clone());
    let ended = |job: Option<&Preheat>| {
        job.and_then(|job| job.status.as_ref()).is_some_and(|status| status.completion_time.is_some())
    };
    kube::runtime::wait::await_condition(preheats, name, ended).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_object_with_a_date_that_nobody_can_hold_stops_no_other() {
    let clock = clock();
    let client = api(&clock);
    let late = changed(&client);
    Api::<Preheat>::default_namespaced(late.clone()).list(&Default::default()).await.unwrap();
    for name in ["n1", "n9"] {
        node(&client, name).await;
    }
    let evil = json!({ "type": "Ready", "status": "True", "lastHeartbeatTime": "2026-02-03T04:05:06Z" });
    let evil = Patch::Merge(json!({ "status": { "conditions": [evil] } }));
    Api::<Node>::all(client.clone()).patch_status("n9", &PatchParams::default(), &evil).await.unwrap();
    preheat(&client, "poison").await;
    Api::<Preheat>::default_namespaced(late.clone()).list(&Default::default()).await.unwrap_err();
    Api::<Node>::all(late.clone()).list(&Default::default()).await.unwrap_err();

    // Listed, by a controller that begins; then watched.
    let cancel = CancellationToken::new();
    let leader = bed::run(bed::settings(&late, &clock, "only"), &cancel);
    preheat(&client, "web").await;
    for name in ["n1", "n9"] {
        ordered(&client, name, 2).await;
    }
    let touched = Patch::Merge(json!({ "metadata": { "labels": { "touched": "yes" } } }));
    Api::<Preheat>::default_namespaced(client.clone())
        .patch("poison", &PatchParams::default(), &touched)
        .await
        .unwrap();
    Api::<Node>::all(client.clone()).patch("n9", &PatchParams::default(), &touched).await.unwrap();
    preheat(&client, "later").await;
    for name in ["n1", "n9"] {
        ordered(&client, name, 3).await;
    }
    for _ in 0..2 {
        for name in ["n1", "n9"] {
            does_its_orders(&client, name, 3).await;
        }
    }
    // The answer to the write of its status is read as well.
    for name in ["web", "later", "poison"] {
        succeeds(&client, name).await;
    }
    cancel.cancel();
    leader.await.unwrap();
}

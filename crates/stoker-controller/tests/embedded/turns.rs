//! Writes take turns: whoever has many of them delays nobody else's.

use http::Method;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, PostParams};
use kube::runtime::wait::await_condition;
use serde_json::json;
use stoker_api::dialect::kruise::ImageListPullJob;
use stoker_api::native::Preheat;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::bed::{self, Way, api, clock, node, ordered, over, preheat};

const LISTS: usize = 4;
const IMAGES: usize = 255;

/// Each list has an ImagePullJob made for each image.
#[tokio::test(start_paused = true)]
async fn a_thousand_jobs_that_lists_have_made_delay_no_order_and_no_status_of_another_namespace() {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    let namespace = serde_json::from_value(json!({"metadata": {"name": "evil"}})).unwrap();
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let (made, mut children) = watch::channel(0);
    let counted = over(&client, move |request| {
        let path = request.uri().path();
        if request.method() == Method::POST && path.contains("/namespaces/evil/imagepulljobs") {
            made.send_modify(|count| *count += 1);
        }
        Way::Free
    });
    let cancel = CancellationToken::new();
    let controller = bed::run(bed::settings(&counted, &clock, "only"), &cancel);
    let lists: Api<ImageListPullJob> = Api::namespaced(client.clone(), "evil");
    for list in 0..LISTS {
        let images: Vec<String> = (0..IMAGES).map(|image| format!("registry.example/evil-{list}-{image}:v1")).collect();
        let spec = json!({"images": images, "selector": {"names": ["nowhere"]}, "completionPolicy": {}});
        let object = json!({"metadata": {"name": format!("list-{list}")}, "spec": spec});
        lists.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }
    let before = *children.wait_for(|made| *made > 0).await.unwrap();
    preheat(&client, "good").await;
    ordered(&client, "n1", 1).await;
    let at_the_order = *children.borrow() - before;
    assert!(at_the_order < LISTS * IMAGES / 2, "{at_the_order} other writes went before the order");
    let begun = |object: Option<&Preheat>| object.is_some_and(|object| object.status.is_some());
    await_condition(Api::<Preheat>::default_namespaced(client.clone()), "good", begun).await.unwrap();
    let at_the_status = *children.borrow() - before;
    assert!(at_the_status < LISTS * IMAGES / 2, "{at_the_status} other writes went before the status");
    children.wait_for(|made| *made == LISTS * IMAGES).await.unwrap();
    cancel.cancel();
    controller.await.unwrap();
}

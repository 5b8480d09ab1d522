//! What Stoker is for: images that are there before they are needed.

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::bed::Cluster;

fn is_running(pod: Option<&Pod>) -> bool {
    pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref()).is_some_and(|phase| phase == "Running")
}

/// Why its container does not start, as the kubelet puts it.
fn waits_for_image(pod: Option<&Pod>) -> bool {
    let status = pod.and_then(|pod| pod.status.as_ref()?.container_statuses.as_ref()?.first());
    let reason = status.and_then(|status| status.state.as_ref()?.waiting.as_ref()?.reason.as_deref());
    matches!(reason, Some("ErrImagePull" | "ImagePullBackOff"))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn pods_start_from_preheated_images_while_the_registry_is_away() {
    let Some(cluster) = Cluster::enter().await else { return };
    let (image, _) = cluster.push("shop/web", 20_000_000).await;
    let (other, _) = cluster.push("shop/other", 1_000).await;
    cluster.stoker(&["pull", &image]).await.exits(0).says("on all 2 nodes");

    let away = cluster.without("control/registry").await;
    for node in ["n1", "n2"] {
        cluster.start_pod(&format!("web-{node}"), node, &image).await;
    }
    // What was not preheated cannot start: so the registry is really away.
    cluster.start_pod("other", "n1", &other).await;
    for name in ["web-n1", "web-n2"] {
        cluster.wait(&cluster.pods(), name, is_running).await;
        let events = cluster.kubectl(&["-n", "shop", "events", "--for", &format!("pod/{name}"), "-o", "json"]).await;
        let events: Value = serde_json::from_str(&events.exits(0).out).unwrap();
        let pulled = events["items"].as_array().unwrap().iter().find(|event| event["reason"] == "Pulled").unwrap();
        let message = pulled["message"].as_str().unwrap();
        assert!(message.contains("already present on machine"), "{message}");
    }
    cluster.wait(&cluster.pods(), "other", waits_for_image).await;
    drop(away);
}

//! What namespaces can do to one another on a node: nothing.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DynamicObject, PostParams};
use serde_json::json;
use stoker_testbed::registry::{Fault, On, Registry, noise};
use stoker_testbed::small_disk::SmallDisk;

use crate::bed::Up;

async fn make_namespace(up: &Up, name: &str) {
    let namespaces: Api<Namespace> = Api::all(up.client().await);
    let namespace = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
}

/// As many images as a node pulls at one time, whose registry sends a little and then nothing, hold every place.
#[tokio::test(flavor = "multi_thread")]
async fn images_that_never_come_do_not_keep_those_of_others_from_coming() {
    let registry = Registry::start().await.unwrap();
    let tarpit: Vec<String> = (0..6).map(|n| format!("{}/hostile/tar{n}:v1", registry.host())).collect();
    let mut stuck = Vec::new();
    for n in 0..6 {
        let pushed = registry.push(&format!("hostile/tar{n}"), "v1", &[noise(200_000, n)]);
        registry.fault(On::Path(pushed.layers[0].clone()), usize::MAX, Fault::StallAfter(1_000));
        stuck.push(pushed.layers[0].clone());
    }
    registry.push("shop/web", "v1", &[noise(1_000, 9)]);
    let up = Up::start(1);
    make_namespace(&up, "hostile").await;
    for (n, image) in tarpit.iter().enumerate() {
        let (name, namespace) = (format!("tar{n}"), "hostile");
        up.run(&["-n", namespace, "pull", image, "--name", &name, "--timeout", "24h", "--no-wait"]).await.exits(0);
    }
    registry
        .wait_for(|seen| stuck.iter().filter(|layer| seen.iter().any(|seen| seen.path.contains(*layer))).count() >= 3)
        .await;
    let image = format!("{}/shop/web:v1", registry.host());
    up.run(&["pull", &image, "--timeout", "2m"]).await.exits(0);
    // Those that gave their places away say so, and go on where they were.
    let waits = |object: &DynamicObject| {
        object.data["status"]["reports"].to_string().contains("has given its place on this node to others")
    };
    up.wait("NodePreheat", "node-1", waits).await;
    registry.let_go();
    let all_there = |object: &DynamicObject| {
        let reports = object.data["status"]["reports"].as_object().into_iter().flatten();
        reports.filter(|(_, report)| report["phase"] == json!("Succeeded")).count() == 7
    };
    up.wait("NodePreheat", "node-1", all_there).await;
}

/// An image that reserves nearly all of the disk and comes at a kilobyte a second is no stall, and there are free places.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_hardly_comes_does_not_keep_the_disk_from_others() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = SmallDisk::mount(dir.path().join("disk"), "64m") else {
        return eprintln!("not root: nothing is mounted, and nothing tested");
    };
    let registry = Registry::start().await.unwrap();
    let hog = registry.push("hostile/hog", "v1", &[noise(40 << 20, 1)]);
    registry.push("shop/web", "v1", &[noise(20 << 20, 2)]);
    let up = Up::start_with(tempfile::tempdir_in(disk.path()).unwrap(), 1, &["--max-disk", "80", "--turn", "5s"]);
    make_namespace(&up, "hostile").await;
    let image = format!("{}/hostile/hog:v1", registry.host());
    let slowly = ["--bandwidth", "1Ki", "--timeout", "8760h", "--no-wait"];
    up.run(&[["-n", "hostile", "pull", &image, "--name", "hog"].as_slice(), &slowly].concat()).await.exits(0);
    registry.wait_for(|seen| seen.iter().any(|seen| seen.path.contains(&hog.layers[0]))).await;
    let image = format!("{}/shop/web:v1", registry.host());
    up.run(&["pull", &image, "--name", "web", "--no-wait"]).await.exits(0);
    let reports = |object: &DynamicObject| object.data["status"]["reports"].to_string();
    up.wait("NodePreheat", "node-1", |object| reports(object).contains("waiting for room")).await;
    // It is done although the other never is.
    let status = up.ended("Preheat", "web").await;
    assert_eq!(status["succeeded"], json!(1), "{status}");
    // What is left of the disk is not enough for the other one by now, which says so.
    up.wait("NodePreheat", "node-1", |object| reports(object).contains("past the limit of 80 %")).await;
}

/// A node has two images. A job of another namespace wants what their tags mean now: one registry does not say it, the other one does not send
/// it. Who is content with the images that are there does not wait.
#[tokio::test(flavor = "multi_thread")]
async fn images_that_are_there_are_enough_whatever_others_wait_for() {
    let registry = Registry::start().await.unwrap();
    let images = ["asked", "pulled"].map(|name| {
        registry.push(&format!("shop/{name}"), "v1", &[noise(1_000, 1)]);
        format!("{}/shop/{name}:v1", registry.host())
    });
    let up = Up::start(1);
    make_namespace(&up, "hostile").await;
    up.run(&["pull", &images[0], &images[1], "--timeout", "2m"]).await.exits(0);
    let later = Fault::Status(503, Some("3600".into()));
    registry.fault(On::Path("shop/asked/manifests".into()), usize::MAX, later);
    let newer = registry.push("shop/pulled", "v1", &[noise(200_000, 2)]);
    registry.fault(On::Path(newer.layers[0].clone()), usize::MAX, Fault::StallAfter(1_000));
    for (name, image) in ["asks", "pulls"].iter().zip(&images) {
        let job = json!({
            "apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": { "name": name, "namespace": "hostile" },
            "spec": { "images": [{ "image": image }], "pull": { "policy": "Always", "retries": 100, "timeout": "24h" } },
        });
        up.create(&job.to_string()).await;
    }
    let says_so = |object: &DynamicObject| {
        let reports = object.data["status"]["reports"].as_object().into_iter().flatten();
        reports.filter(|(_, report)| report["present"] == json!(true)).count() == 2
    };
    up.wait("NodePreheat", "node-1", says_so).await;
    up.run(&["pull", &images[0], &images[1], "--timeout", "2m"]).await.exits(0);
}

/// A manifest says how large its layers are, and reports repeat it. The API server takes no number past 63 bits: one write with all
/// reports of the node would be refused again and again.
#[tokio::test(flavor = "multi_thread")]
async fn sizes_that_no_image_has_mute_no_report_of_the_node_also_after_a_restart() {
    const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    let registry = Registry::start().await.unwrap();
    let good = registry.push("shop/web", "v1", &[noise(1_000, 1)]);
    registry.push("shop/next", "v1", &[noise(1_000, 2)]);
    let mut up = Up::start(1);
    // One that is too large, one whose sum is 0 if it wraps around, and one whose sum alone is too large.
    let hostile = [("huge", vec![1_u64 << 63]), ("wraps", vec![1 << 63, 1 << 63]), ("sum", vec![(1 << 63) - 1, 1])];
    for (name, sizes) in &hostile {
        let mut manifest: serde_json::Value = serde_json::from_slice(&good.bytes).unwrap();
        let layer = |size: &u64| json!({ "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": good.layers[0], "size": size });
        manifest["layers"] = sizes.iter().map(layer).collect();
        registry.put_manifest(&format!("hostile/{name}"), Some("v1"), MANIFEST, manifest.to_string());
        let image = format!("{}/hostile/{name}:v1", registry.host());
        // A job that never ends: its order is there after the restart, too.
        let job = json!({
            "apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": { "name": name },
            "spec": { "images": [{ "image": image }], "completion": { "mode": "Continuous", "resync": "24h" } },
        });
        up.create(&job.to_string()).await;
    }
    let refused = |object: &DynamicObject| {
        let reports = object.data["status"]["reports"].as_object().into_iter().flatten();
        reports.filter(|(_, report)| report["reason"] == json!("TooLarge")).count() == hostile.len()
    };
    up.wait("NodePreheat", "node-1", refused).await;
    let images = ["web", "next"].map(|name| format!("{}/shop/{name}:v1", registry.host()));
    up.run(&["pull", &images[0], "--timeout", "2m"]).await.exits(0);
    up.kill_and_restart();
    up.run(&["pull", &images[1], "--timeout", "2m"]).await.exits(0);
    up.wait("NodePreheat", "node-1", refused).await;
    assert_eq!(registry.requests(&good.layers[0]).len(), 1, "no layer of the hostile images was asked for");
}

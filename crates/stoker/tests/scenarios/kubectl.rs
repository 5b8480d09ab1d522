//! The examples with the stock kubectl.

use stoker_testbed::registry::{Registry, noise};

use crate::bed::{Site, Wishes};
use crate::up::kubectl;

pub(crate) async fn the_examples_are_applied_shown_and_deleted(site: &Site) {
    if kubectl().is_none() {
        println!("SKIPPED: the examples with kubectl: there is no kubectl 1.28 or newer on the PATH or in $KUBECTL");
        return;
    }
    let registry = Registry::start().await.unwrap();
    for image in ["demo/web", "demo/cart"] {
        registry.push(image, "v1", &[noise(10_000, 1)]);
    }
    let bed = site.bed(Wishes::default()).await;
    let run = async |args: &[&str]| bed.kubectl(bed.scratch(), args).await.unwrap();
    let all = bed.nodes.len();
    let example = |name: &str| {
        let file = format!("{}/../../examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(file).unwrap().replace("127.0.0.1:5000", &registry.host());
        let copy = bed.scratch().join(format!("{name}.yaml"));
        std::fs::write(&copy, text).unwrap();
        copy.to_str().unwrap().to_string()
    };
    let preheat = example("preheat");
    run(&["apply", "-f", &preheat]).await.exits(0).says("preheat.stoker.dev/next-release created");
    run(&["apply", "-f", &preheat]).await.exits(0).says("preheat.stoker.dev/next-release unchanged");
    run(&["wait", "--for=condition=Complete", "--timeout=60s", "preheat/next-release"]).await.exits(0);
    run(&["get", "ph"]).await.exits(0).says("PHASE").says("Succeeded").says("next-release");
    let wide = run(&["get", "preheats", "-o", "wide"]).await;
    wide.exits(0).says(&format!("all images are on all {all} nodes"));
    let received =
        run(&["get", "preheat", "next-release", "-o", "jsonpath={.status.received}"]).await.exits(0).out.clone();
    assert!(received.ends_with("KiB"), "{received}");
    wide.says("UPSTREAM").says(&format!(" {received} "));
    run(&["get", "nodes,nodepreheats"]).await.exits(0).says(&bed.nodes[1]).says("layout");
    let nodes = run(&["get", "nodepreheats", "-o", "wide"]).await;
    let free = nodes.exits(0).out.lines().last().unwrap().trim_end().to_string();
    assert!(free.ends_with("iB"), "{free}");
    let described = run(&["describe", "preheat", "next-release"]).await;
    described.exits(0).says("Started").says(&format!("Preheating 2 images on {all} nodes"));
    described.says("Succeeded").says(&format!("Preheated 2 images on {all} nodes"));
    let policy = example("policy");
    let applied = run(&["apply", "-f", &policy]).await;
    match site {
        // Whoever may edit a namespace does not say what its jobs may have. `cluster/policies.rs` has an administrator.
        Site::Real(_) => {
            applied.exits(1).says("preheatpolicies.stoker.dev is forbidden");
        }
        Site::Embedded => {
            applied.exits(0).says("preheatpolicy.stoker.dev/team-a created");
            run(&["get", "php", "-o", "wide"]).await.exits(0).says("JOBS").says("team-a").says("ghcr.io/acme/**");
            run(&["delete", "-f", &policy]).await.exits(0);
        }
    }
    let job = example("imagepulljob");
    run(&["apply", "-f", &job]).await.exits(0).says("imagepulljob.apps.kruise.io/base-image created");
    bed.ended("ImagePullJob", "base-image").await;
    let newest = run(&["get", "imagepulljobs"]).await;
    assert!(!newest.exits(0).says("SUCCEED").out.contains("MESSAGE"), "only the older version has this column");
    run(&["get", "imagepulljobs.v1alpha1.apps.kruise.io"]).await.exits(0).says("SUCCEED").says("job has completed");
    let prefetch = example("imageprefetch");
    run(&["apply", "-f", &prefetch]).await.exits(0).says("imageprefetch.ofen.cybozu.io/web created");
    run(&["wait", "--for=condition=Ready", "--timeout=60s", "imageprefetch/web"]).await.exits(0);
    run(&["get", "imageprefetches"]).await.exits(0).says("DESIREDNODES").says("IMAGEPULLEDNODES").says("web");
    run(&["get", "nodeimagesets", "-o", "wide"]).await.exits(0).says("nodeimageset-web-").says("AVAILABLE");
    bed.run(&["get", "imageprefetch/web"]).await.exits(0).says("2 of 2 nodes have all images");
    run(&["delete", "-f", &prefetch]).await.exits(0);
    let list = example("imagelistpulljob");
    run(&["apply", "-f", &list]).await.exits(0).says("imagelistpulljob.apps.kruise.io/base-images created");
    bed.ended("ImageListPullJob", "base-images").await;
    // What is counted are images, and each has a job of its own.
    bed.run(&["get"]).await.exits(0).says("imagelistpulljob/base-images").says("2 images");
    let children = bed.run(&["get", "imagelistpulljob/base-images"]).await;
    children.exits(0).says("2 of 2 images are done").says("imagepulljob/base-images-");
    bed.run(&["why", "imagelistpulljob/base-images"])
        .await
        .exits(0)
        .says("no image is waiting; 2 of 2 images are done");
    let bad = bed.scratch().join("bad.yaml");
    let text = std::fs::read_to_string(&preheat).unwrap();
    std::fs::write(&bad, text.replace("parallelism", "paralelism").replace("next-release", "bad")).unwrap();
    run(&["apply", "-f", bad.to_str().unwrap()]).await.exits(1).says("spec.pace.paralelism");
    std::fs::write(&bad, text.replace("parallelism: 3", "parallelism: -3").replace("next-release", "bad")).unwrap();
    run(&["apply", "-f", bad.to_str().unwrap()]).await.exits(1).says("spec.pace.parallelism");
    // One that fails: the end can be waited for, also by somebody who does not know how it will end.
    let missing = text
        .replace("demo/cart:v1", "demo/missing:v1")
        .replace("next-release", "failing")
        .replace("retries: 3", "retries: 0");
    std::fs::write(&bad, &missing).unwrap();
    run(&["apply", "-f", bad.to_str().unwrap()]).await.exits(0);
    for end in ["jsonpath={.status.completionTime}", "condition=Stalled"] {
        run(&["wait", &format!("--for={end}"), "--timeout=60s", "preheat/failing"])
            .await
            .exits(0)
            .says("condition met");
    }
    let phase = run(&["get", "preheat", "failing", "-o", "jsonpath={.status.phase}"]).await.exits(0).out.clone();
    assert_eq!(phase, "Failed");
    run(&["delete", "-f", bad.to_str().unwrap()]).await.exits(0);
    run(&["delete", "-f", &preheat, "-f", &job, "-f", &list]).await.exits(0).says("deleted");
    run(&["get", "preheats,imagelistpulljobs"]).await.exits(0).says("No resources found");
}

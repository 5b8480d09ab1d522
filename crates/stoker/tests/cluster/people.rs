//! What a person sees, with kubectl and with `stoker`, who may edit one namespace and see nodes.

use serde_json::json;

use crate::bed::Cluster;

/// The words of a table's first line.
pub(crate) fn header(table: &str) -> Vec<&str> {
    table.lines().next().unwrap_or_default().split_whitespace().collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn kubectl_shows_explains_describes_and_waits() {
    let Some(cluster) = Cluster::enter().await else { return };
    let (image, _) = cluster.push("shop/web", 1_000_000).await;
    let missing = format!("{}-missing", image);
    let job = |name: &str, image: &str| {
        json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": name}, "spec": {
            "images": [{"image": image}], "pull": {"retries": 0},
        }})
    };
    cluster.create(&job("good", &image)).await;
    cluster.create(&job("bad", &missing)).await;
    let kubectl = async |args: &[&str]| cluster.kubectl_as_person(args).await;
    kubectl(&["wait", "--for=condition=Complete", "--timeout=90s", "preheat/good"])
        .await
        .exits(0)
        .says("condition met");
    kubectl(&["wait", "--for=condition=Stalled", "--timeout=90s", "preheat/bad"]).await.exits(0).says("condition met");
    kubectl(&["wait", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=9s", "ph/good"]).await.exits(0);

    let table = kubectl(&["get", "preheats"]).await;
    assert_eq!(header(&table.exits(0).out), ["NAME", "PHASE", "NODES", "DONE", "PULLING", "FAILED", "AGE"]);
    table.says("good").says("Succeeded").says("bad").says("Failed");
    let wide = kubectl(&["get", "preheats", "-o", "wide"]).await;
    wide.exits(0).says("MESSAGE").says("all images are on all 2 nodes");
    let nodes = kubectl(&["get", "nodepreheats"]).await;
    assert_eq!(header(&nodes.exits(0).out), ["NAME", "RUNTIME", "PLATFORM", "VERSION", "AGE"]);
    nodes.says("containerd 1.6").says("containerd 2.2").says("(overlayfs)");

    let described = kubectl(&["describe", "preheat", "good"]).await;
    described.exits(0).says("Started").says("Succeeded").says("on 2 nodes");
    let events = kubectl(&["events", "--for", "preheat/bad"]).await;
    events.exits(0).says("Warning").says("NotFound").says("Failed");

    let explained = kubectl(&["explain", "preheat.spec.completion.mode"]).await;
    explained.exits(0).says("Once").says("Continuous").says("ENUM");
    kubectl(&["explain", "preheat.spec", "--recursive"]).await.exits(0).says("pullSecrets").says("parallelism");
    kubectl(&["explain", "nodepreheat.status"]).await.exits(0).says("reports");

    let wrong = cluster.file("wrong.json");
    for (field, value) in [("paralelism", json!(1)), ("parallelism", json!(-3)), ("bandwidth", json!("fast"))] {
        let mut object = job("wrong", &image);
        object["spec"]["pace"] = json!({ field: value });
        std::fs::write(&wrong, object.to_string()).unwrap();
        let path = format!("spec.pace.{field}");
        kubectl(&["apply", "-f", wrong.to_str().unwrap()]).await.exits(1).says(&path);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn stoker_pulls_gets_says_why_and_deletes() {
    let Some(cluster) = Cluster::enter().await else { return };
    let (image, _) = cluster.push("shop/web", 5_000_000).await;
    let pulled = cluster.stoker(&["pull", &image, "--name", "web"]).await;
    pulled.exits(0).says("Preheat web: on all 2 nodes").says("received from the registry");
    cluster.stoker(&["get"]).await.exits(0).says("web").says("Succeeded");
    cluster.stoker(&["get", "web"]).await.exits(0).says("n1").says("n2");
    cluster.stoker(&["get", "nodes"]).await.exits(0).says("containerd 1.6").says("containerd 2.2").says("Ready");
    cluster.stoker(&["why", "web"]).await.exits(0).says("web");

    let missing = format!("{image}-missing");
    let failed = cluster.stoker(&["pull", &missing, "--name", "gone", "--node", "n2"]).await;
    failed.exits(1).says("NotFound");
    cluster.stoker(&["why", "gone"]).await.exits(0).says("n2").says("NotFound");
    cluster.stoker(&["why", "gone", "n1"]).await.says("n1");
    cluster.stoker(&["get", "nothing"]).await.exits(1).says("nothing");
    for name in ["web", "gone"] {
        cluster.stoker(&["delete", name]).await.exits(0).says("deleted");
    }
    cluster.stoker(&["get"]).await.exits(0).says("no jobs");
}

/// Go holds dates that nobody here can. Whoever may edit a job may put one into its managedFields, which every list carries.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_job_with_a_date_that_nobody_can_hold_stops_no_other() {
    let Some(cluster) = Cluster::enter().await else { return };
    let (image, _) = cluster.push("shop/web", 1_000_000).await;
    let job = |name: &str| {
        json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": name}, "spec": {
            "images": [{"image": image}],
        }})
    };
    cluster.create(&job("poison")).await;
    let late = json!([{"op": "replace", "path": "/metadata/managedFields/0/time", "value": "9999-12-31T23:59:59Z"}]);
    cluster.kubectl_as_person(&["patch", "preheat", "poison", "--type=json", "-p", &late.to_string()]).await.exits(0);
    let shown = cluster.kubectl_as_person(&["get", "preheat", "poison", "-o", "json", "--show-managed-fields"]).await;
    shown.exits(0).says("9999-12-31T23:59:59Z");
    // A leader that begins must list it.
    let (leader, _, _) = cluster.leader().await;
    cluster.delete_part(&leader).await;
    cluster.create(&job("web")).await;
    cluster.succeeds("web", 2).await;
    cluster.stoker(&["get"]).await.exits(0).says("web").says("poison");
    cluster.stoker(&["delete", "poison"]).await.exits(0);
}

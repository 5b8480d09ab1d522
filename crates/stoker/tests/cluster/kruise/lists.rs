//! Lists of images: an ImagePullJob each.

use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::{completes, ended, is_gone, jobs, list, lists, says};
use crate::bed::{Cluster, image};
use crate::embedded::eventually;
use crate::link::Linked;
use crate::people::header;

/// Names and images of the ImagePullJobs that a list controls, by image.
async fn children(cluster: &Cluster, of: &str) -> Vec<(String, String)> {
    let uid = lists(cluster).get(of).await.unwrap().metadata.uid.unwrap();
    let all = jobs(cluster).list(&ListParams::default()).await.unwrap().items;
    let own = all
        .into_iter()
        .filter(|job| job.owner_references().iter().any(|owner| owner.uid == uid && owner.controller == Some(true)));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut own: Vec<(String, String)> = own.map(|job| (text(&job.data["spec"]["image"]), job.name_any())).collect();
    own.sort();
    own
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_list_has_a_job_for_each_image_at_once_and_says_which_image_failed() {
    let Some(cluster) = Cluster::enter().await else { return };
    let linked = Linked::start(&cluster, &[], image(1_000_000)).await;
    linked.real.push("shop/other", "v1", &image(1_000_000)).await.unwrap();
    let (web, other) = (linked.reference.as_str(), format!("{}/shop/other:v1", linked.link.host()));
    let mut images = [web, &other];
    images.sort_unstable();

    // Nothing of either image comes, and both are asked for.
    linked.link.stall_after(0);
    let spec = json!({"parallelism": 2, "completionPolicy": {"ttlSecondsAfterFinished": 3}});
    cluster.create(&list("pair", &images, spec)).await;
    let both = async || children(&cluster, "pair").await.len() == 2;
    eventually("the list has two children", both).await;
    let own = children(&cluster, "pair").await;
    assert_eq!(own.iter().map(|(image, _)| image.as_str()).collect::<Vec<_>>(), images);
    let runs = json!({"desired": 2, "completed": 0, "succeeded": 0, "completionTime": null});
    cluster.wait(&lists(&cluster), "pair", says(runs)).await;
    // People ask for the list, and are told of the jobs that it is made of.
    for command in ["get", "why"] {
        let said = cluster.stoker(&[command, "imagelistpulljob/pair"]).await;
        own.iter().for_each(|(_, child)| _ = said.exits(0).says(&format!("imagepulljob/{child}")));
    }
    linked.link.let_go();
    let status = ended(&cluster, &lists(&cluster), "pair").await;
    let counts = ["desired", "active", "completed", "succeeded"].map(|field| status[field].as_u64());
    assert_eq!(counts, [2, 0, 2, 2].map(Some), "{status:#}");
    assert_eq!(status["failedImageStatuses"], Value::Null);
    for node in ["n1", "n2"] {
        for image in images {
            assert!(cluster.has(node, image).await, "{image} is not on {node}");
        }
    }

    // A registry that has no such image fails one of two; the list ends all the same.
    let missing = format!("{web}-missing");
    let spec = json!({"parallelism": 2, "pullPolicy": {"backoffLimit": 0}});
    cluster.create(&list("half", &[web, &missing], spec)).await;
    let status = ended(&cluster, &lists(&cluster), "half").await;
    let counts = ["desired", "active", "completed", "succeeded"].map(|field| status[field].as_u64());
    assert_eq!(counts, [2, 0, 2, 1].map(Some), "{status:#}");
    let (_, failed) = children(&cluster, "half").await.into_iter().find(|(image, _)| *image == missing).unwrap();
    let message = format!("Please check for details which nodes failed by 'kubectl get ImagePullJob {failed}'.");
    assert_eq!(
        status["failedImageStatuses"],
        json!([{"name": missing, "imagePullJob": failed, "message": message}]),
        "{status:#}"
    );
    let status = jobs(&cluster).get(&failed).await.unwrap().data["status"].take();
    assert_eq!((&status["failed"], &status["failedNodes"]), (&json!(2), &json!(["n1", "n2"])), "{status:#}");
    assert_eq!(status["message"], "job has completed");

    let events = cluster.kubectl_as_person(&["events", "--for", "imagelistpulljob/half"]).await;
    events.exits(0).says("Successful create ImagePullJob").says(&failed);
    // An Event is a write of its own, after that of the status.
    let mut told = String::new();
    for _ in 0..100 {
        let events = cluster.kubectl_as_person(&["events", "--for", &format!("imagepulljob/{failed}")]).await;
        told = events.exits(0).out.clone();
        if told.contains("Failed ") && told.contains("NodeFailed") {
            break;
        }
    }
    assert!(told.contains("NotFound"), "{told}\n{status:#}");
    let table = cluster.kubectl_as_person(&["get", "imagelistpulljobs", "half"]).await;
    assert_eq!(header(&table.exits(0).out), ["NAME", "TOTAL", "SUCCEEDED", "COMPLETED", "AGE"]);
    let line: Vec<&str> = table.out.lines().last().unwrap().split_whitespace().collect();
    assert_eq!(line[..4], ["half", "2", "1", "2"]);
    cluster.stoker(&["why", &format!("imagepulljob/{failed}")]).await.exits(0).says("NotFound");

    // By now the time of the first one is over, and Kubernetes removes its children with it.
    cluster.wait(&lists(&cluster), "pair", is_gone).await;
    for (_, child) in own {
        cluster.wait(&jobs(&cluster), &child, is_gone).await;
    }
    // Where the images are already, another list has nothing to wait for.
    cluster.create(&list("again", &images, json!({}))).await;
    for (_, child) in {
        eventually("it has children", async || children(&cluster, "again").await.len() == 2).await;
        children(&cluster, "again").await
    } {
        completes(&cluster, &child, 2).await;
    }
}

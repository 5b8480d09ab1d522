//! One test for each fault that somebody has found in NodeImages.

use jiff::SignedDuration;
use serde_json::{Value, json};
use stoker_testbed::paper::PaperId;

use crate::bed::Bed;

/// A NodeImage without a Node.
const FAKE: &str = r#"
apiVersion: apps.kruise.io/v1beta1
kind: NodeImage
metadata: { name: edge-1, labels: { apps.kruise.io/fake-nodeimage: "", zone: b } }
spec: { images: {} }
"#;

const NODE: &str = "
apiVersion: v1
kind: Node
metadata: { name: n1, labels: { zone: b } }
";

/// A job that has all nodes pull this image.
fn job(image: &str, uid: &str) -> String {
    format!(
        "
apiVersion: apps.kruise.io/v1beta1
kind: ImagePullJob
metadata: {{ name: web, uid: {uid}, generation: 1 }}
spec:
  image: {image}
  parallelism: 1
  imagePullPolicy: IfNotPresent
  pullPolicy: {{ timeoutSeconds: 3600, backoffLimit: 0 }}
  completionPolicy: {{ type: Always }}
"
    )
}

fn digest() -> String {
    format!("sha256:{}", "a".repeat(64))
}

fn edge() -> PaperId {
    PaperId::new("NodeImage", "", "edge-1")
}

fn web() -> PaperId {
    PaperId::new("ImagePullJob", "shop", "web")
}

impl Bed {
    fn of(objects: &[&str]) -> Self {
        let mut bed = Self::new(false, crate::shown);
        objects.iter().for_each(|object| bed.put(object, true));
        bed.rest();
        bed
    }

    fn pass(&mut self, minutes: i64) {
        self.now += SignedDuration::from_mins(minutes);
        self.beat();
        self.rest();
    }

    /// The only tag of a repository of a NodeImage.
    fn tag(&self, id: &PaperId, image: &str) -> Value {
        let object = self.paper.get(id).unwrap();
        let tags = &object.data["spec"]["images"][image]["tags"];
        assert_eq!(tags.as_array().map(Vec::len), Some(1), "{}\n{}", object.data, self.said);
        tags[0].clone()
    }

    /// The status of an object.
    fn status(&self, id: &PaperId) -> Value {
        self.paper.get(id).unwrap().data["status"].clone()
    }

    /// Whoever plays the agent of the NodeImage without a Node says this of its tag.
    fn maker_says(&mut self, image: &str, phase: &str) {
        let tag = self.tag(&edge(), image);
        let now = self.now.to_string();
        let mut entry = json!({ "tag": tag["tag"], "phase": phase, "startTime": now, "completionTime": now });
        if !tag["version"].is_null() {
            entry["version"] = tag["version"].clone();
        }
        let status = json!({ "desired": 1, "imageStatuses": { image: { "tags": [entry] } } });
        self.write(&edge(), &json!({ "status": status }), true);
        self.rest();
    }
}

/// The tag is all that says that such a node is done.
#[test]
fn the_tag_of_a_fake_node_outlives_its_time_while_its_job_runs() {
    let mut bed = Bed::of(&[NODE, FAKE, &job(&format!("reg.test/slow@{}", digest()), "u1")]);
    bed.maker_says("reg.test/slow", "Succeeded");
    // Its time to live is ten minutes at most.
    (0..8).for_each(|_| bed.pass(4));
    assert_eq!(bed.tag(&edge(), "reg.test/slow")["version"], Value::Null, "{}", bed.said);
    let status = bed.status(&web());
    assert_eq!((&status["succeeded"], &status["active"]), (&json!(1), &json!(1)), "{}", bed.said);
}

/// Otherwise its node would hold the only place of the job until then.
#[test]
fn a_time_that_somebody_writes_into_the_tag_of_a_fake_node_holds_no_place() {
    for restarts in [false, true] {
        let mut bed = Bed::of(&[FAKE, &job(&format!("reg.test/web@{}", digest()), "u1")]);
        bed.put(NODE, true);
        bed.rest();
        assert!(bed.world.orders("n1").is_none_or(|orders| orders.is_empty()), "edge-1 has the place");
        let mut tag = bed.tag(&edge(), "reg.test/web");
        tag["createdAt"] = json!("2099-01-01T00:00:00Z");
        if restarts {
            bed.paper
                .patch(&edge(), &json!({ "spec": { "images": { "reg.test/web": { "tags": [tag] } } } }), false)
                .unwrap();
            bed.restart();
        } else {
            bed.write(&edge(), &json!({ "spec": { "images": { "reg.test/web": { "tags": [tag] } } } }), false);
        }
        bed.rest();
        let tag = bed.tag(&edge(), "reg.test/web");
        assert!(tag["createdAt"].as_str().unwrap().starts_with("2026-"), "{tag}: {}", bed.said);
        assert_eq!(tag["version"], 1, "whoever plays the agent looks again");
        // It says nothing.
        bed.pass(11);
        assert_eq!(bed.status(&web())["succeeded"], 1, "{}", bed.said);
    }
}

/// A status of the old tag says nothing about the pull of the new one.
#[test]
fn a_tag_that_is_made_anew_does_not_take_the_status_of_the_old_one() {
    let job = |uid| job(&format!("reg.test/broken@{}", digest()), uid).replace("parallelism: 1", "parallelism: 2");
    let mut bed = Bed::of(&[NODE, FAKE, &job("u1")]);
    bed.maker_says("reg.test/broken", "Succeeded");
    let n1 = PaperId::new("NodeImage", "", "n1");
    assert_eq!(bed.status(&n1)["failed"], 1, "{}", bed.said);
    // Both happen before anybody looks.
    bed.put(&job("u1"), false);
    bed.put(&job("u2"), true);
    bed.pass(1);
    assert_eq!(bed.tag(&n1, "reg.test/broken")["version"], 1, "{}", bed.said);
    assert_eq!(bed.status(&n1)["imageStatuses"]["reg.test/broken"]["tags"][0]["version"], 1, "{}", bed.said);
    assert_eq!(bed.tag(&edge(), "reg.test/broken")["version"], 1, "{}", bed.said);
    assert_eq!(bed.status(&web())["succeeded"], 0, "nobody has pulled it for this job: {}", bed.said);
}

/// A second job asks for the image before the pull for the first job begins. The tag has no place for two times, so the pull answers the first job alone.
#[test]
fn a_fake_node_pulls_once_more_for_a_job_that_asked_before_the_first_pull_began() {
    let image = format!("reg.test/web@{}", digest());
    let mut bed = Bed::of(&[FAKE, &job(&image, "u1")]);
    bed.now += SignedDuration::from_secs(3);
    bed.put(&job(&image, "u2").replace("name: web", "name: again"), true);
    bed.rest();
    assert_eq!(bed.tag(&edge(), "reg.test/web")["version"], Value::Null, "nothing was said of it yet");
    for version in [Value::Null, json!(1)] {
        assert_eq!(bed.tag(&edge(), "reg.test/web")["version"], version, "{}", bed.said);
        bed.now += SignedDuration::from_secs(3);
        bed.maker_says("reg.test/web", "Succeeded");
    }
    for name in ["web", "again"] {
        let status = bed.status(&PaperId::new("ImagePullJob", "shop", name));
        assert_eq!(status["message"], "job has completed", "{name}: {}", bed.said);
    }
}

/// The policy of one of the jobs was shown. Whoever plays the agent was content with an old image, and a controller that starts asked again for the other job.
#[test]
fn a_tag_of_two_jobs_has_the_stricter_policy() {
    let image = format!("reg.test/web@{}", digest());
    let always = job(&image, "u2").replace("IfNotPresent", "Always");
    for strict in ["a", "z"] {
        let mut bed = Bed::of(&[FAKE, &job(&image, "u1"), &always.replace("name: web", &format!("name: {strict}"))]);
        assert_eq!(bed.tag(&edge(), "reg.test/web")["imagePullPolicy"], "Always", "{}", bed.said);
        bed.maker_says("reg.test/web", "Succeeded");
        assert_eq!(bed.status(&web())["message"], "job has completed", "{strict}: {}", bed.said);
    }
}

/// The answer to the question what the tag means stays on n2 until something else is written there. It was shown as a tag that was taken away and made
/// again with every look, and that said `Succeeded` when the job had ended without n2.
#[test]
fn a_node_that_its_job_wants_no_more_has_no_tag_of_that_job() {
    let n2 = PaperId::new("NodeImage", "", "n2");
    let selects = "spec:\n  selector: { matchLabels: { zone: b } }";
    let mut bed = Bed::of(&[NODE, &NODE.replace("n1", "n2"), &job("reg.test/slow:1", "u1").replace("spec:", selects)]);
    assert_eq!(bed.tag(&n2, "reg.test/slow")["ownerReferences"][0]["name"], "web");
    bed.put(&NODE.replace("n1", "n2").replace("zone: b", "zone: c"), true);
    bed.rest();
    let images = bed.paper.get(&n2).unwrap().data["spec"]["images"].clone();
    assert_eq!(images, json!({}), "{}", bed.said);
    assert!(!bed.world.orders("n2").unwrap().is_empty(), "the answer is there");
}

/// The clock is set back between the ask and the end of the job, and the report goes with its order before the status of the NodeImage is written.
#[test]
fn the_end_of_a_tag_is_shown_after_the_clock_was_set_back() {
    let n1 = PaperId::new("NodeImage", "", "n1");
    let mut bed = Bed::of(&[NODE, &job(&format!("reg.test/slow@{}", digest()), "u1")]);
    let said = |bed: &Bed| bed.status(&n1)["imageStatuses"]["reg.test/slow"]["tags"][0]["phase"].clone();
    assert_eq!(said(&bed), "Pulling");
    bed.now -= SignedDuration::from_mins(5);
    let ended = json!({ "completionTime": bed.now.to_string(), "desired": 1, "succeeded": 1, "active": 0 });
    bed.write(&web(), &json!({ "status": ended }), true);
    bed.world.apply(stoker_core::Event::Orders("n1".into(), Default::default()));
    bed.rest();
    assert_eq!(said(&bed), "Succeeded", "{}", bed.said);
}

/// A NodeImage has one field for both.
#[test]
fn a_fake_node_succeeds_with_an_image_that_has_a_tag_and_a_digest() {
    let mut bed = Bed::of(&[FAKE, &job(&format!("reg.test/web:1@{}", digest()), "u1")]);
    assert_eq!(bed.tag(&edge(), "reg.test/web")["tag"], digest());
    bed.maker_says("reg.test/web", "Succeeded");
    let status = bed.status(&web());
    assert_eq!((&status["succeeded"], &status["message"]), (&json!(1), &json!("job has completed")), "{}", bed.said);
}

/// What it said while it was one of somebody else's counts for nothing.
#[test]
fn a_fake_node_whose_node_joins_is_asked_itself() {
    let mut bed = Bed::of(&[FAKE, &job(&format!("reg.test/slow@{}", digest()), "u1")]);
    bed.put(&NODE.replace("n1", "edge-1"), true);
    bed.rest();
    let labels = bed.paper.get(&edge()).unwrap().metadata.labels.clone().unwrap_or_default();
    assert_eq!(labels.into_keys().collect::<Vec<_>>(), ["zone"], "it is fake no more");
    let status = bed.status(&edge());
    assert_eq!(status["imageStatuses"]["reg.test/slow"]["tags"][0]["phase"], "Pulling", "{}", bed.said);
}

/// Where the time of an earlier version stays in a tag, its version alone is raised: what was read or asked before that does not count.
#[test]
fn a_version_that_somebody_raises_is_given_a_time() {
    let spec = |version: u8, created: &str| {
        json!({ "spec": { "images": { "reg.test/web": { "tags": [{
        "tag": digest(), "version": version, "createdAt": created, "pullPolicy": { "ttlSecondsAfterFinished": 3600 },
    }] } } } })
    };
    let n1 = PaperId::new("NodeImage", "", "n1");
    let mut bed = Bed::of(&[NODE]);
    bed.write(&n1, &spec(1, "2026-01-02T03:00:00Z"), false);
    bed.rest();
    assert_eq!(bed.tag(&n1, "reg.test/web")["createdAt"], "2026-01-02T03:00:00Z");
    bed.pass(1);
    bed.write(&n1, &spec(2, "2026-01-02T03:00:00Z"), false);
    bed.rest();
    assert_eq!(bed.tag(&n1, "reg.test/web")["createdAt"], "2026-01-02T03:05:05Z", "{}", bed.said);
    assert_eq!(bed.status(&n1)["imageStatuses"]["reg.test/web"]["tags"][0]["version"], 2);
}

/// Whoever else counts tags leaves what was said of those that are gone, and a tag may go before it was begun.
#[test]
fn what_was_said_of_tags_that_are_gone_goes() {
    let n1 = PaperId::new("NodeImage", "", "n1");
    let mut bed = Bed::of(&[NODE]);
    let entries = json!([
        { "tag": "1", "phase": "Waiting" },
        { "tag": "2", "phase": "Failed", "version": 3 },
        { "tag": "3", "phase": "Waiting", "version": -1, "message": "no tag has this version" },
    ]);
    let status = json!({ "desired": 0, "imageStatuses": { "reg.test/web": { "tags": entries } } });
    bed.write(&n1, &json!({ "status": status }), true);
    bed.rest();
    assert_eq!(bed.status(&n1)["imageStatuses"]["reg.test/web"]["tags"], json!([entries[2]]), "{}", bed.said);
}

/// Upstream allows 256 images of a node. Its manager then fails to write the tag, and the job goes no further.
#[test]
fn a_node_image_that_is_full_stops_no_job() {
    let n1 = PaperId::new("NodeImage", "", "n1");
    let mut bed = Bed::of(&[NODE]);
    let tag = json!({ "tag": digest(), "pullPolicy": { "ttlSecondsAfterFinished": 3600 } });
    let images: serde_json::Map<String, Value> =
        (0..256).map(|n| (format!("reg.test/i{n}"), json!({ "tags": [tag] }))).collect();
    bed.write(&n1, &json!({ "spec": { "images": images } }), false);
    bed.rest();
    bed.put(&job(&format!("reg.test/web@{}", digest()), "u1"), true);
    bed.rest();
    let status = bed.status(&web());
    assert_eq!((&status["succeeded"], &status["message"]), (&json!(1), &json!("job has completed")), "{}", bed.said);
    let images = bed.paper.get(&n1).unwrap().data["spec"]["images"].as_object().map(serde_json::Map::len);
    assert_eq!(images, Some(256), "as many as a schema allows");
}

/// A NodeImage without a Node is served by its tags alone: what is not shown there is not pulled.
#[test]
fn tags_of_jobs_that_have_ended_make_room_and_others_do_not() {
    let mut bed = Bed::of(&[FAKE]);
    let tag = json!({ "tag": digest(), "pullPolicy": { "ttlSecondsAfterFinished": 3600 } });
    let peoples: serde_json::Map<String, Value> =
        (0..239).map(|n| (format!("reg.test/i{n}"), json!({ "tags": [tag] }))).collect();
    bed.write(&edge(), &json!({ "spec": { "images": peoples } }), false);
    let put = |bed: &mut Bed, name: &str| {
        let job = job(&format!("reg.test/{name}@{}", digest()), &format!("uid of {name}"));
        bed.put(&job.replace("name: web", &format!("name: {name}")), true);
        bed.rest();
    };
    // Of the jobs; tags of people stay.
    let shown = |bed: &Bed| -> Vec<String> {
        let images = bed.paper.get(&edge()).unwrap().data["spec"]["images"].as_object().unwrap().clone();
        assert!(peoples.keys().all(|name| images.contains_key(name)), "{}", bed.said);
        images.into_iter().map(|(name, _)| name).filter(|name| !peoples.contains_key(name)).collect()
    };
    put(&mut bed, "first");
    put(&mut bed, "second");
    assert_eq!(shown(&bed), ["reg.test/first"], "it runs: {}", bed.said);
    bed.maker_says("reg.test/first", "Succeeded");
    assert_eq!(shown(&bed), ["reg.test/second"], "it has ended: {}", bed.said);
    bed.maker_says("reg.test/second", "Succeeded");
    for name in ["first", "second"] {
        let status = bed.status(&PaperId::new("ImagePullJob", "shop", name));
        assert_eq!(
            (&status["succeeded"], &status["message"]),
            (&json!(1), &json!("job has completed")),
            "{}",
            bed.said
        );
    }
}

/// Whoever plays the agent has no orders with logins, and no other way to know which Secrets have them.
#[test]
fn a_fake_node_is_told_the_secrets_and_the_pod_of_jobs_until_their_tags_go() {
    let mut bed = Bed::of(&[NODE, FAKE]);
    let own = json!([{ "namespace": "edge", "name": "own" }]);
    let peoples = json!({ "tag": "own", "pullPolicy": { "ttlSecondsAfterFinished": 3600 } });
    let (kept, bare) = (json!({ "pullSecrets": own, "tags": [peoples] }), json!({ "pullSecrets": own, "tags": [] }));
    bed.write(&edge(), &json!({ "spec": { "images": { "reg.test/kept": kept, "reg.test/bare": bare } } }), false);
    let put = |bed: &mut Bed, name: &str, image: &str, more: &str| {
        let job = job(&format!("reg.test/{image}@{}", digest()), &format!("uid of {name}"))
            .replace("parallelism: 1", "parallelism: 2");
        bed.put(&format!("{}  {more}\n", job.replace("name: web", &format!("name: {name}"))), true);
        bed.rest();
    };
    let more = "pullSecrets: [regcred]\n  sandboxConfig: { labels: { app: web }, annotations: { a: b } }";
    put(&mut bed, "web", "slow", more);
    put(&mut bed, "second", "slow", "pullSecrets: [regcred, a, b, c, d]");
    put(&mut bed, "kept", "kept", "pullSecrets: [regcred]");
    put(&mut bed, "bare", "bare", "pullSecrets: [regcred]");
    let images = bed.paper.get(&edge()).unwrap().data["spec"]["images"].clone();
    let secret = |namespace: &str, name: &str| json!({ "namespace": namespace, "name": name });
    let all = ["regcred", "a", "b", "c"].map(|name| secret("shop", name));
    assert_eq!(images["reg.test/slow"]["pullSecrets"], json!(all), "so many, and none twice: {}", bed.said);
    let annotations = json!({ "a": "b", "apps.kruise.io/pulling-image-by": "kruise-daemon" });
    let pod = json!({ "labels": { "app": "web" }, "annotations": annotations });
    assert_eq!(images["reg.test/slow"]["sandboxConfig"], pod);
    let both = json!([secret("edge", "own"), secret("shop", "regcred")]);
    assert_eq!(images["reg.test/kept"]["pullSecrets"], both, "nobody's Secret is lost");
    assert_eq!(images["reg.test/bare"]["pullSecrets"], both, "{}", bed.said);
    let of_node =
        bed.paper.get(&PaperId::new("NodeImage", "", "n1")).unwrap().data["spec"]["images"]["reg.test/slow"].clone();
    assert_eq!(
        (&of_node["pullSecrets"], &of_node["sandboxConfig"]),
        (&Value::Null, &Value::Null),
        "its agent has orders"
    );
    for name in ["web", "second", "bare"] {
        bed.put(&job("reg.test/slow", "").replace("name: web", &format!("name: {name}")), false);
    }
    bed.rest();
    let images = bed.paper.get(&edge()).unwrap().data["spec"]["images"].clone();
    assert_eq!(images["reg.test/bare"], json!({ "pullSecrets": own, "tags": [] }), "{}", bed.said);
    assert_eq!(images["reg.test/slow"], Value::Null, "they go with the last tag: {}", bed.said);
}

/// Upstream accepts such values.
#[test]
fn a_negative_time_to_live_is_over_at_once_and_a_negative_timeout_is_a_second() {
    let n1 = PaperId::new("NodeImage", "", "n1");
    let mut bed = Bed::of(&[NODE]);
    let policy = json!({ "ttlSecondsAfterFinished": -5, "timeoutSeconds": -1 });
    let images = json!({ "reg.test/web": { "tags": [{ "tag": digest(), "pullPolicy": policy }] } });
    bed.write(&n1, &json!({ "spec": { "images": images } }), false);
    bed.rest();
    let orders = bed.world.orders("n1").unwrap();
    let timeouts: Vec<u64> = orders.values().map(|order| order.terms.pull.timeout.as_secs()).collect();
    assert_eq!(timeouts, [1]);
    assert_eq!(bed.paper.get(&n1).unwrap().data["spec"]["images"], json!({}), "{}", bed.said);
    assert!(bed.said.contains("PullImageSucceed"), "{}", bed.said);
}

/// Whoever may write a status could mute the NodeImage, and keep each later version from being pulled.
#[test]
fn an_end_in_the_far_future_stops_no_later_version() {
    let n1 = PaperId::new("NodeImage", "", "n1");
    for absurd in ["2106-02-07T06:28:15Z", "2100-01-01T00:00:00Z", "2026-01-02T06:00:00Z"] {
        let mut bed = Bed::of(&[NODE]);
        let tag = |version: u8| {
            json!({
                "tag": digest(), "version": version, "createdAt": "2026-01-02T03:00:00Z",
                "pullPolicy": { "ttlSecondsAfterFinished": 3600 },
            })
        };
        let image = |version: u8| json!({ "tags": [tag(version)] });
        bed.write(&n1, &json!({ "spec": { "images": { "reg.test/a": image(1), "reg.test/b": image(1) } } }), false);
        let ended = json!({ "tag": digest(), "version": 1, "phase": "Failed", "completionTime": absurd });
        bed.write(&n1, &json!({ "status": { "imageStatuses": { "reg.test/a": { "tags": [ended] } } } }), true);
        bed.rest();
        bed.write(&n1, &json!({ "spec": { "images": { "reg.test/a": image(2), "reg.test/b": image(2) } } }), false);
        bed.rest();
        for repository in ["reg.test/a", "reg.test/b"] {
            let said = &bed.status(&n1)["imageStatuses"][repository]["tags"];
            assert_eq!(
                (&said[0]["version"], &said[0]["phase"]),
                (&json!(2), &json!("Succeeded")),
                "{said}\n{}",
                bed.said
            );
            assert_eq!(said.as_array().map(Vec::len), Some(1), "{said}");
        }
    }
}

/// A tag that people wrote is theirs, whatever jobs of some namespace want of the same image.
#[test]
fn a_job_does_not_change_the_terms_of_a_tag_that_people_wrote() {
    let n1 = PaperId::new("NodeImage", "", "n1");
    let mut bed = Bed::of(&[NODE]);
    let tag = json!({
        "tag": digest(), "version": 5, "createdAt": "2026-01-02T03:00:00Z", "imagePullPolicy": "IfNotPresent",
        "pullPolicy": { "ttlSecondsAfterFinished": 36000 },
    });
    bed.write(&n1, &json!({ "spec": { "images": { "reg.test/web": { "tags": [tag] } } } }), false);
    bed.rest();
    bed.pass(1);
    let always = job(&format!("reg.test/web@{}", digest()), "u1").replace("IfNotPresent", "Always");
    bed.put(&always, true);
    bed.rest();
    let now = bed.tag(&n1, "reg.test/web");
    assert_eq!((&now["version"], &now["imagePullPolicy"]), (&json!(6), &json!("IfNotPresent")), "{}", bed.said);
    assert_eq!(now["pullPolicy"], tag["pullPolicy"]);
}

/// A pipeline that makes a job for each build would grow the tag until the NodeImage does not fit into etcd.
#[test]
fn a_tag_has_few_owners_however_many_jobs_want_it() {
    let n1 = PaperId::new("NodeImage", "", "n1");
    let mut bed = Bed::of(&[NODE]);
    for build in 0..40 {
        let image = format!("reg.test/web@{}", digest());
        let job = job(&image, &format!("u{build}")).replace("name: web", &format!("name: build-{build}"));
        bed.put(&job, true);
        bed.rest();
        bed.pass(1);
        let status = bed.status(&PaperId::new("ImagePullJob", "shop", &format!("build-{build}")));
        assert_eq!(status["succeeded"], 1, "{status}");
        let owners = bed.tag(&n1, "reg.test/web")["ownerReferences"].as_array().unwrap().clone();
        assert!(owners.len() <= 16, "{owners:#?}");
        assert!(owners.iter().any(|owner| owner["name"] == format!("build-{build}")), "{owners:#?}");
    }
}

/// All tags were looked at for each tag, and all entries of the status for each of those: the controller's loop stood still for minutes.
#[test]
fn thousands_of_tags_with_strange_statuses_are_served_in_passing() {
    const EACH: usize = 250;
    let n1 = PaperId::new("NodeImage", "", "n1");
    let mut bed = Bed::of(&[NODE]);
    let mut images = [serde_json::Map::new(), serde_json::Map::new()];
    for image in 0..8 {
        let of = |entry: &dyn Fn(usize) -> Value| json!({ "tags": (0..EACH).map(entry).collect::<Vec<_>>() });
        let name = format!("reg.test/i{image}");
        let wished = of(&|n| {
            json!({
                "tag": format!("t{n}"), "version": 1, "createdAt": "2026-01-02T03:00:00Z",
                "pullPolicy": { "ttlSecondsAfterFinished": 3600 },
            })
        });
        images[0].insert(name.clone(), wished);
        images[1].insert(name, of(&|n| json!({ "tag": format!("t{n}"), "version": -1, "phase": "Waiting" })));
    }
    bed.write(&n1, &json!({ "status": { "imageStatuses": images[1] } }), true);
    bed.write(&n1, &json!({ "spec": { "images": images[0] } }), false);
    bed.settle();
    assert_eq!(bed.world.jobs().count(), 8 * EACH);
}

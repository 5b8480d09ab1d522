//! Everything a user can get wrong, and everything that can be wrong around them, with what they then read. One
//! snapshot holds all of it, for a person to judge: does each name the thing and the next step? What API servers refuse, they
//! refuse in the same words.

use std::fmt::Write as _;

use bytes::Bytes;
use serde_json::{Value, json};
use stoker_testbed::registry::{Auth, Fault, INDEX, On, Registry, digest, noise};

use crate::bed::{Site, Wishes};
use crate::up::{Ran, docker_login, stoker};

/// The report that becomes the snapshot.
#[derive(Default)]
struct Page(String);

impl Page {
    fn command(&mut self, what: &str, ran: &Ran) {
        // How far it was at which moment differs; what it says at the end does not.
        let said = format!("{}{}", ran.out, ran.err);
        let said = said.find("\nPreheat ").map_or(said.as_str(), |end| &said[end..]);
        writeln!(self.0, "## {what}\nexit {}: {}\n", ran.code.unwrap(), said.trim()).unwrap();
    }

    fn refusal(&mut self, what: &str, refusal: kube::Error) {
        let kube::Error::Api(status) = refusal else { panic!("{what}: {refusal:?}") };
        writeln!(self.0, "## {what}\nrefused: {}\n", status.message).unwrap();
    }

    fn job(&mut self, what: &str, status: &Value) {
        writeln!(self.0, "## {what}\n{}: {}\n", status["phase"].as_str().unwrap(), status["message"].as_str().unwrap())
            .unwrap();
    }

    /// Without what differs from run to run.
    fn steady(self, parts: &[(&str, &str)]) -> String {
        parts.iter().fold(self.0, |text, (from, to)| text.replace(from, to))
    }
}

fn preheat(name: &str, node: &str, spec: Value) -> Value {
    let mut whole = json!({"nodes": {"names": [node]}, "pull": {"retries": 0}});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": name}, "spec": whole})
}

pub(crate) async fn every_mistake_is_answered_with_the_thing_and_the_next_step(site: &Site) {
    let registry = Registry::start().await.unwrap();
    let host = registry.host();
    let good = registry.push("shop/web", "v1", &[noise(1_000, 1)]);
    let corrupt = registry.push("shop/corrupt", "v1", &[noise(2_000, 2)]);
    registry.fault(On::Path(corrupt.layers[0].clone()), usize::MAX, Fault::CorruptAt(10));
    let other = registry.push("shop/liar", "v1", &[noise(3_000, 3)]);
    registry.fault(On::Path("liar/manifests".into()), usize::MAX, Fault::Serve(Bytes::from_static(b"{}")));
    registry.put_index("shop/far", "v1", &[(&good.manifest, good.bytes.len(), INDEX, "plan9/mips")]);
    registry.push("shop/large", "v1", &[noise(8 << 20, 4)]);
    let bed = site.bed(Wishes { small_disk: true, ..Wishes::default() }).await;
    let (first, second) = (bed.nodes[0].as_str(), bed.nodes[1].as_str());
    let mut page = Page::default();

    let config: Value = serde_saphyr::from_str(&std::fs::read_to_string(bed.kubeconfig()).unwrap()).unwrap();
    let run_with = |pointer: &str, value: &str| {
        let (mut config, file) = (config.clone(), bed.scratch().join("wrong"));
        *config.pointer_mut(pointer).unwrap() = value.into();
        std::fs::write(&file, config.to_string()).unwrap();
        Ran::of(stoker().arg("get").arg("--kubeconfig").arg(&file).output().unwrap())
    };
    page.command("a wrong token", &run_with("/users/0/user/token", "wrong"));
    let nobody = run_with("/clusters/0/cluster/server", "https://127.0.0.1:1");
    page.command("an API server that is not there", &nobody);

    let image = format!("{host}/shop/web:v1");
    page.command("a reference that does not parse", &bed.run(&["pull", "Not An Image"]).await);
    page.command("an unknown node", &bed.run(&["pull", &image, "--node", "node-9"]).await);
    page.command("no images", &bed.run(&["pull"]).await);
    page.command("parallelism -1", &bed.run(&["pull", &image, "--parallelism", "-1"]).await);
    page.command("a selector that does not parse", &bed.run(&["pull", &image, "-l", "a b"]).await);
    page.command(
        "a selector that matches nothing",
        &bed.run(&["pull", &image, "-l", "pool=none", "--name", "nothing"]).await,
    );
    page.command(
        "an image that is not there",
        &bed.run(&["pull", &format!("{host}/shop/web:v9"), "--name", "v9", "--node", first, "--node", second]).await,
    );
    page.command("a job that is not there", &bed.run(&["get", "wbe"]).await);
    page.command("a kind that is not a job", &bed.run(&["why", "pod/web"]).await);

    let private = Registry::start().await.unwrap();
    // An image each: jobs that share a pull would share their Secrets.
    for image in ["open", "gone", "wrong", "broken"] {
        private.push(&format!("shop/{image}"), "v1", &[noise(1_000, 1)]);
    }
    private.protect(Auth::Basic { login: "ada:right".into() });
    bed.docker_secret("wrong", &docker_login(&private.host(), "ada", "wrong")).await;
    bed.docker_secret("broken", "{\"auths\": \"wrong\"}").await;
    let behind = |image: &str, secrets: Value| {
        let image = format!("{}/shop/{image}:v1", private.host());
        json!({"images": [{"image": image, "pullSecrets": secrets}]})
    };

    let api = bed.api("Preheat").await;
    let refused = [
        ("a manifest without images", json!({"images": []})),
        ("a manifest with parallelism -1", json!({"images": [{"image": "a"}], "pace": {"parallelism": -1}})),
        ("a manifest with an image twice", json!({"images": [{"image": "a"}, {"image": "a"}]})),
        ("a manifest with a wrong length of time", json!({"images": [{"image": "a"}], "pull": {"timeout": "soon"}})),
        (
            "a manifest with a deadline at its start",
            json!({"images": [{"image": "a"}], "completion": {"deadline": "0s"}}),
        ),
        (
            "a manifest with a ttl that has no end",
            json!({"images": [{"image": "a"}], "completion": {"mode": "Continuous", "ttl": "5m"}}),
        ),
    ];
    for (what, spec) in refused {
        let object = serde_json::from_value(preheat("bad", first, spec)).unwrap();
        page.refusal(what, api.create(&Default::default(), &object).await.unwrap_err());
    }

    let mut jobs = vec![
        (
            "a manifest with a reference that does not parse, beside a good one",
            json!({"images": [{"image": "Bad Name"}, {"image": image}]}),
        ),
        ("a registry that is not there", json!({"images": [{"image": "127.0.0.1:1/shop/web:v1"}]})),
        (
            "a digest that the registry does not have",
            json!({"images": [{"image": format!("{host}/shop/web@{}", digest(b"x"))}]}),
        ),
        (
            "a registry that serves something else",
            json!({"images": [{"image": format!("{host}/shop/liar@{}", other.manifest)}]}),
        ),
        ("a corrupt blob", json!({"images": [{"image": format!("{host}/shop/corrupt:v1")}]})),
        ("a registry that wants a login, and there is no Secret", behind("open", json!([]))),
        ("a Secret that is not there", behind("gone", json!([{"name": "gone"}]))),
        ("a Secret with a wrong password", behind("wrong", json!([{"name": "wrong"}]))),
        ("a Secret that is malformed", behind("broken", json!([{"name": "broken"}]))),
        ("a platform that the index lacks", json!({"images": [{"image": format!("{host}/shop/far:v1")}]})),
        (
            "a node that never joins",
            json!({"images": [{"image": image}], "nodes": {"names": ["node-9"]}, "completion": {"deadline": "1s"}}),
        ),
    ];
    match bed.has_small_disk() {
        true => jobs.push((
            "a full disk",
            json!({
                "images": [{"image": format!("{host}/shop/large:v1")}], "nodes": {"names": [second]},
            }),
        )),
        false => println!("SKIPPED: a full disk: this user may not mount a small one"),
    }
    for (number, (_, spec)) in jobs.iter().enumerate() {
        let object = serde_json::from_value(preheat(&format!("job-{number}"), first, spec.clone())).unwrap();
        api.create(&Default::default(), &object).await.unwrap();
    }
    for (number, (what, _)) in jobs.iter().enumerate() {
        page.job(what, &bed.ended("Preheat", &format!("job-{number}")).await);
    }
    // Through all of that the node went on with what was good.
    bed.run(&["pull", &image, "--node", first]).await.exits(0);
    if bed.has_small_disk() {
        let text = page.steady(&[
            (&host, "REGISTRY"),
            (&private.host(), "PRIVATE"),
            (&bed.nodes.join(", "), "ALL-NODES"),
            (first, "FIRST-NODE"),
            (second, "SECOND-NODE"),
            (&format!("namespace {}", bed.namespace), "namespace NAMESPACE"),
            (&format!("Secret {}/", bed.namespace), "Secret NAMESPACE/"),
            // The files of an agent are on that disk, too.
            ("images to 401 %", "images to 400 %"),
        ]);
        insta::assert_snapshot!("mistakes", text);
    }
}

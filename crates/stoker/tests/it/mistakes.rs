//! Everything a user can get wrong, and everything that can be wrong around them, with what they then read. One
//! snapshot holds all of it, for a person to judge: does each name the thing and the next step?

use std::fmt::Write as _;
use std::process::Command;

use bytes::Bytes;
use serde_json::{Value, json};
use stoker_testbed::registry::{Auth, Fault, INDEX, On, Registry, digest, noise};

use crate::bed::{Ran, Up, stoker};

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

fn preheat(name: &str, spec: Value) -> Value {
    let mut whole = json!({"nodes": {"names": ["node-1"]}, "pull": {"retries": 0}});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({"apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": name}, "spec": whole})
}

/// A disk of two MiB, where mounting one is allowed.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(path: std::path::PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&path).unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "stoker-test"]).arg(&path).output();
        mount.is_ok_and(|output| output.status.success()).then_some(Self(path))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mistake_is_answered_with_the_thing_and_the_next_step() {
    let registry = Registry::start().await.unwrap();
    let host = registry.host();
    let good = registry.push("shop/web", "v1", &[noise(1_000, 1)]);
    let corrupt = registry.push("shop/corrupt", "v1", &[noise(2_000, 2)]);
    registry.fault(On::Path(corrupt.layers[0].clone()), usize::MAX, Fault::CorruptAt(10));
    let other = registry.push("shop/liar", "v1", &[noise(3_000, 3)]);
    registry.fault(On::Path("liar/manifests".into()), usize::MAX, Fault::Serve(Bytes::from_static(b"{}")));
    registry.put_index("shop/far", "v1", &[(&good.manifest, good.bytes.len(), INDEX, "plan9/mips")]);
    registry.push("shop/large", "v1", &[noise(8 << 20, 4)]);
    let data = tempfile::tempdir().unwrap();
    let disk = SmallDisk::mount(data.path().join("nodes/node-2"));
    let up = Up::start_in(data, 2);
    let mut page = Page::default();

    page.command("no cluster", &Ran::of(stoker().arg("get").output().unwrap()));
    let missing = stoker().args(["get", "--kubeconfig", "/nonexistent/config"]).output().unwrap();
    page.command("a kubeconfig that is not there", &Ran::of(missing));
    let config = std::fs::read_to_string(up.kubeconfig()).unwrap();
    let token = config.lines().find_map(|line| line.trim().strip_prefix("token:")).unwrap().trim().trim_matches('"');
    let wrong = up.data().join("wrong-token");
    std::fs::write(&wrong, config.replace(token, "wrong")).unwrap();
    page.command("a wrong token", &Ran::of(stoker().arg("get").arg("--kubeconfig").arg(&wrong).output().unwrap()));
    let nobody = up.data().join("nobody");
    let address =
        config.lines().find_map(|line| line.trim().strip_prefix("server: ")).unwrap().trim().trim_matches('"');
    std::fs::write(&nobody, config.replace(address, "https://127.0.0.1:1")).unwrap();
    let unreachable = Ran::of(stoker().arg("get").arg("--kubeconfig").arg(&nobody).output().unwrap());
    page.command("an API server that is not there", &unreachable);
    let file = up.data().join("a-file");
    std::fs::write(&file, "").unwrap();
    let unwritable = stoker().args(["up", "--data"]).arg(file.join("below")).output().unwrap();
    page.command("a data directory that cannot be written", &Ran::of(unwritable));
    let other_data = tempfile::tempdir().unwrap();
    let listen = address.trim_start_matches("https://");
    let taken = stoker().args(["up", "--listen", listen, "--data"]).arg(other_data.path()).output().unwrap();
    page.command("a port in use", &Ran::of(taken));
    let second = stoker().args(["up", "--listen", "127.0.0.1:0", "--data"]).arg(up.data()).output().unwrap();
    page.command("a data directory in use", &Ran::of(second));

    let image = format!("{host}/shop/web:v1");
    page.command("a reference that does not parse", &up.run(&["pull", "Not An Image"]).await);
    page.command("an unknown node", &up.run(&["pull", &image, "--node", "node-9"]).await);
    page.command("no images", &up.run(&["pull"]).await);
    page.command("parallelism -1", &up.run(&["pull", &image, "--parallelism", "-1"]).await);
    page.command("a selector that does not parse", &up.run(&["pull", &image, "-l", "a b"]).await);
    page.command(
        "a selector that matches nothing",
        &up.run(&["pull", &image, "-l", "pool=none", "--name", "nothing"]).await,
    );
    page.command(
        "an image that is not there",
        &up.run(&["pull", &format!("{host}/shop/web:v9"), "--name", "v9"]).await,
    );
    page.command("a job that is not there", &up.run(&["get", "wbe"]).await);
    page.command("a kind that is not a job", &up.run(&["why", "pod/web"]).await);

    let private = Registry::start().await.unwrap();
    // An image each: jobs that share a pull would share their Secrets.
    for image in ["open", "gone", "wrong", "broken"] {
        private.push(&format!("shop/{image}"), "v1", &[noise(1_000, 1)]);
    }
    private.protect(Auth::Basic { login: "ada:right".into() });
    let login = json!({"auths": {private.host(): {"username": "ada", "password": "wrong"}}}).to_string();
    up.docker_secret("wrong", &login).await;
    up.docker_secret("broken", "{\"auths\": \"wrong\"}").await;
    let behind = |image: &str, secrets: Value| {
        let image = format!("{}/shop/{image}:v1", private.host());
        json!({"images": [{"image": image, "pullSecrets": secrets}]})
    };

    let api = up.api("Preheat").await;
    let refused = [
        ("a manifest without images", json!({"images": []})),
        ("a manifest with parallelism -1", json!({"images": [{"image": "a"}], "pace": {"parallelism": -1}})),
        ("a manifest with an image twice", json!({"images": [{"image": "a"}, {"image": "a"}]})),
        ("a manifest with a wrong length of time", json!({"images": [{"image": "a"}], "pull": {"timeout": "soon"}})),
        (
            "a manifest with a ttl that has no end",
            json!({"images": [{"image": "a"}], "completion": {"mode": "Continuous", "ttl": "5m"}}),
        ),
    ];
    for (what, spec) in refused {
        let object = serde_json::from_value(preheat("bad", spec)).unwrap();
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
    match &disk {
        Some(_) => jobs.push((
            "a full disk",
            json!({
                "images": [{"image": format!("{host}/shop/large:v1")}], "nodes": {"names": ["node-2"]},
            }),
        )),
        None => println!("SKIPPED: a full disk: this user may not mount a small one"),
    }
    for (number, (_, spec)) in jobs.iter().enumerate() {
        let object = serde_json::from_value(preheat(&format!("job-{number}"), spec.clone())).unwrap();
        api.create(&Default::default(), &object).await.unwrap();
    }
    for (number, (what, _)) in jobs.iter().enumerate() {
        let ended = |object: &kube::api::DynamicObject| object.data.pointer("/status/completionTime").is_some();
        let object = up.wait("Preheat", &format!("job-{number}"), ended).await;
        page.job(what, &object.data["status"]);
    }
    // Through all of that the node went on with what was good.
    up.run(&["pull", &image, "--node", "node-1"]).await.exits(0);
    let data = up.data().to_str().unwrap().to_string();
    if disk.is_some() {
        let text = page.steady(&[
            (&host, "REGISTRY"),
            (&private.host(), "PRIVATE"),
            (listen, "API"),
            (&data, "DATA"),
            (token, "TOKEN"),
        ]);
        insta::assert_snapshot!("mistakes", text);
    }
}

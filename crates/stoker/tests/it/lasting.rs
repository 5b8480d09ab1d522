//! What survives a kill at any moment: objects, bytes, the kubeconfig.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::PostParams;
use kube::runtime::wait::await_condition;
use serde_json::{Value, json};
use stoker_api::native::{NodePreheat, Preheat};
use stoker_embedded::Server;
use stoker_testbed::registry::{Fault, On, Registry, noise};
use tokio_util::sync::CancellationToken;

use crate::bed::{PATIENCE, Up, eventually, stoker};

const MIB: u64 = 1 << 20;

/// How much of each of these blobs is on the disk of the only node: in its spool, where a file is as long as what came, or in
/// its store, where one is whole.
fn kept(up: &Up, blobs: &[String]) -> Vec<u64> {
    let files = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let stored = up.images("node-1").join("blobs/sha256");
    let files: Vec<_> = files(up.data().join("nodes/node-1/spool")).chain(files(stored)).collect();
    let length = |digest: &String| {
        let of_it =
            files.iter().filter(|file| file.file_name().to_string_lossy().starts_with(&digest["sha256:".len()..]));
        of_it.filter_map(|file| file.metadata().ok()).map(|file| file.len()).max().unwrap_or(0)
    };
    blobs.iter().map(length).collect()
}

/// Bytes that were sent are not counted against a bound: how many of them the kernel holds when their reader is killed is a
/// matter of how busy the machine is. What the disk had by then must never be asked for again.
#[tokio::test(flavor = "multi_thread")]
async fn twenty_kills_in_the_middle_of_a_pull_lose_nothing() {
    const KILLS: u64 = 20;
    const SIZE: u64 = 60 * MIB;
    /// What one life gets of each layer: too little to have all of it before the last kill.
    const PIECE: u64 = SIZE / 3 / (KILLS + 2);
    let registry = Registry::start().await.unwrap();
    let layers: Vec<_> = (0..3).map(|layer| noise((SIZE / 3) as usize, layer + 1)).collect();
    let layers = registry.push("shop/model", "v1", &layers).layers;
    registry.fault(On::Blobs, usize::MAX, Fault::StallAfter(PIECE));
    registry.pace(8 * MIB);
    let mut up = Up::start(1);
    let image = format!("{}/shop/model:v1", registry.host());
    up.run(&["pull", &image, "--name", "model", "--no-wait"]).await.exits(0);
    let (mut acknowledged, mut lives, mut before) = (Vec::new(), Vec::new(), 0);
    for kill in 1..=KILLS {
        // Somewhere in what this life gets: not twice at the same place.
        let until = before + PIECE * 3 * noise(8, kill)[0] as u64 / 256;
        let name = format!("note-{kill}");
        // At one time, so that now this comes just before the kill and now that.
        let note = ["pull", &image, "--name", &name, "--parallelism", "0", "--no-wait"];
        let (noted, ()) = tokio::join!(up.run(&note), registry.wait_for_bytes("blobs", until));
        noted.exits(0);
        acknowledged.push(name);
        if kill == KILLS {
            eventually("something is kept", async || kept(&up, &layers).iter().all(|bytes| *bytes > 0)).await;
        }
        up.kill();
        let kept = kept(&up, &layers);
        lives.push((kept, registry.seen().len()));
        before = registry.body_bytes("blobs");
        up.restart();
    }
    registry.let_go();
    registry.pace(u64::MAX);
    let status = up.ended("Preheat", "model").await;
    assert_eq!(status["phase"], "Succeeded", "{status:#}");
    let names: Vec<String> = up.run(&["get"]).await.out.lines().map(|line| line.to_string()).collect();
    for name in &acknowledged {
        assert!(names.iter().any(|line| line.starts_with(&format!("{name} "))), "{name} is lost: {names:#?}");
    }
    let seen = registry.seen();
    for (kept, asked) in &lives {
        for (layer, kept) in layers.iter().zip(kept) {
            for request in seen[*asked..].iter().filter(|request| request.path.contains(layer)) {
                let range = request.range.as_deref().unwrap_or("bytes=0-");
                let from: u64 = range.strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap().parse().unwrap();
                assert!(from >= *kept, "{kept} bytes of {layer} were there, and it asked for {range}");
            }
        }
    }
    let sent = registry.body_bytes("blobs");
    println!("{sent} bytes left the registry for an image of {SIZE}, with {KILLS} kills");
}

/// Whoever reads the kubeconfig while `up` is killed and started again finds a whole one, and at last the one of this run.
#[tokio::test(flavor = "multi_thread")]
async fn the_kubeconfig_is_whole_at_any_time() {
    let mut up = Up::start(1);
    let (file, enough) = (up.kubeconfig().to_owned(), Arc::new(AtomicBool::new(false)));
    let reader = std::thread::spawn({
        let enough = enough.clone();
        move || {
            let mut reads = 0;
            while !enough.load(Ordering::Relaxed) {
                let text = std::fs::read_to_string(&file).expect("it is there");
                let config: Value = serde_saphyr::from_str(&text).expect("it is YAML");
                assert!(config.pointer("/users/0/user/token").is_some(), "half of it: {text}");
                reads += 1;
            }
            reads
        }
    });
    // Every one has another port.
    for _ in 0..3 {
        up.kill_and_restart();
        up.run(&["get"]).await.exits(0);
    }
    enough.store(true, Ordering::Relaxed);
    assert!(reader.join().unwrap() > 0);
    let mode = std::fs::metadata(up.kubeconfig()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it holds a token");
    assert!(!up.data().join("kubeconfig.part").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_jobs_their_results_and_the_kubeconfig() {
    let registry = Registry::start().await.unwrap();
    registry.push("shop/web", "v1", &[noise(1_000, 1)]);
    let mut up = Up::start(2);
    let image = format!("{}/shop/web:v1", registry.host());
    up.run(&["pull", &image, "--name", "web"]).await.exits(0);
    let token = |config: String| config.lines().find(|line| line.contains("token:")).map(str::to_string);
    let before = token(std::fs::read_to_string(up.kubeconfig()).unwrap());
    up.kill_and_restart();
    assert_eq!(token(std::fs::read_to_string(up.kubeconfig()).unwrap()), before, "a login stays a login");
    let get = up.run(&["get", "web", "-o", "json"]).await;
    let object: Value = serde_json::from_str(&get.exits(0).out).unwrap();
    assert_eq!(object["status"]["phase"], "Succeeded");
    let asked = registry.seen().len();
    up.run(&["pull", &image]).await.exits(0).says("already on all 2 nodes");
    assert_eq!(registry.seen().len(), asked);
}

fn agent(home: &std::path::Path, kubeconfig: &std::path::Path) -> Child {
    let mut command = stoker();
    command
        .args(["agent", "--node", "edge", "--runtime", "layout", "--max-disk", "99", "--log", "warn", "--data"])
        .arg(home)
        .arg("--kubeconfig")
        .arg(kubeconfig);
    command.stdout(Stdio::null()).spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_finishes_its_orders_with_the_api_server_away_and_across_its_own_restart() {
    let registry = Registry::start().await.unwrap();
    let pushed = registry.push("shop/web", "v1", &[noise(2 << 20, 1)]);
    registry.fault(On::Path(pushed.layers[0].clone()), 2, Fault::StallAfter(1 << 20));
    let scratch = tempfile::tempdir().unwrap();
    let clock: stoker_core::Clock = Arc::new(jiff::Timestamp::now);
    let crds = stoker_api::crds().iter().map(|(_, crd)| serde_json::to_value(crd).unwrap()).collect();
    let api = stoker_embedded::Api::new(stoker_embedded::Settings::new(crds, clock.clone())).unwrap();
    let identity = scratch.path().join("identity");
    let listen: SocketAddr = ([127, 0, 0, 1], 0).into();
    let server = Server::bind_kept(api.clone(), listen, &identity).await.unwrap();
    let address = server.addr();
    let kubeconfig = scratch.path().join("kubeconfig");
    std::fs::write(&kubeconfig, server.kubeconfig()).unwrap();
    let online = CancellationToken::new();
    let serving = tokio::spawn(server.run(online.clone()));
    let client = api.client("default");
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let node = serde_json::from_value(json!({"metadata": {"name": "edge"}, "status": ready})).unwrap();
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await.unwrap();
    let cancel = CancellationToken::new();
    let settings = stoker_controller::Settings {
        client: client.clone(),
        clock,
        limits: Default::default(),
        namespace: stoker_api::NAMESPACE.into(),
        identity: "test".into(),
        trust_one_witness: false,
        peers: false,
        handed_over: Default::default(),
        serve: Default::default(),
        metrics: Default::default(),
    };
    let controlling = tokio::spawn(stoker_controller::run(settings, cancel.clone()));
    let home = scratch.path().join("edge");
    let mut child = agent(&home, &kubeconfig);
    let spec = json!({"images": [{"image": format!("{}/shop/web:v1", registry.host())}]});
    let preheat = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
    let preheats: Api<Preheat> = Api::default_namespaced(client.clone());
    preheats.create(&PostParams::default(), &preheat).await.unwrap();
    registry.wait_for_bytes(&pushed.layers[0], 1 << 20).await;
    // What is on the wire yet would be lost with the agent.
    let spool = home.join("spool");
    let kept = async || {
        let files = std::fs::read_dir(&spool).into_iter().flatten().flatten();
        files.filter_map(|file| file.metadata().ok()).any(|file| file.len() >= (1 << 20) - (1 << 20) / 4)
    };
    eventually("what came is in the spool", kept).await;

    // The API server goes away, and the agent is killed.
    online.cancel();
    serving.await.unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let mut child = agent(&home, &kubeconfig);
    registry.let_go();
    let index = home.join("images/index.json");
    let arrived = async || std::fs::read_to_string(&index).is_ok_and(|index| index.contains("shop/web:v1"));
    eventually("the image arrives with the API server away", arrived).await;
    let sent = registry.body_bytes(&pushed.layers[0]);
    assert!(sent <= (2 << 20) + (1 << 20) / 4, "{sent} bytes for a layer of 2 MiB: it went on where it was");

    // It comes back, and is told.
    let server = Server::bind_kept(api.clone(), address, &identity).await.unwrap();
    let online = CancellationToken::new();
    let serving = tokio::spawn(server.run(online.clone()));
    let ended = |object: Option<&Preheat>| {
        object.and_then(|object| object.status.as_ref()).is_some_and(|status| status.phase == "Succeeded")
    };
    tokio::time::timeout(PATIENCE, await_condition(preheats, "web", ended)).await.expect("it is told").unwrap();
    let reported = Api::<NodePreheat>::all(client).get("edge").await.unwrap();
    assert_eq!(reported.status.unwrap().reports.len(), 1, "of the pull; the question is over");
    child.kill().unwrap();
    child.wait().unwrap();
    cancel.cancel();
    controlling.await.unwrap().unwrap();
    online.cancel();
    serving.await.unwrap().unwrap();
}

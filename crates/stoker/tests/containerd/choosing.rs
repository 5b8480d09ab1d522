//! Which runtime was chosen and why, where people look for it; and a containerd that must pull by itself.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Stdio;

use kube::api::DynamicObject;
use serde_json::json;
use stoker_testbed::containerd::{self, Containerd, Version};

use crate::bed::{Node, Registry, on_both, reports};
use crate::up::{Ran, stoker};
use crate::wishes::{node, noise};

async fn auto_takes_what_answers_and_says_why(version: Version) {
    let Some((node, log)) = node(version, Default::default(), &["--runtime", "auto"], &[]).await else { return };
    let socket = node.containerd.socket().display().to_string();
    let why = format!("it answers where it was said to be, {socket}");
    let introduced = |object: &DynamicObject| object.data.pointer("/status/agent/chosen").is_some();
    let object = node.up.wait("NodePreheat", "node-1", introduced).await;
    let agent = &object.data["status"]["agent"];
    assert_eq!(agent["chosen"], json!(why));
    let runtime = agent["runtime"].as_str().unwrap().to_owned();
    assert!(runtime.starts_with("containerd ") && runtime.ends_with(" (overlayfs)"), "{runtime}");
    node.up.run(&["get", "nodes"]).await.exits(0).says(&runtime);
    node.up.run(&["get", "nodes", "-o", "wide"]).await.exits(0).says("WHY").says(&why);
    let log = fs::read_to_string(log.path()).unwrap();
    assert!(log.contains(&format!("images go to {runtime}: {why}")), "{log}");
}
on_both!(quick auto_takes_what_answers_and_says_why);

/// The snapshotter is the one that CRI has, also where CRI does not say it.
async fn the_snapshotter_of_the_node_is_used(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let options = containerd::Options { snapshotter: "native", ..Default::default() };
    let Some(node) = Node::start_with(version, options, &[]).await else { return };
    node.up.run(&["get", "nodes"]).await.exits(0).says("(native)");
    let image = noise(2, 50_000, 1);
    let name = registry.push("shop/web", "v1", &image).await;
    node.pull(&name).await.exits(0);
    let snapshots = node.containerd.ctr_ok(&["snapshots", "--snapshotter", "native", "ls"]).await.unwrap();
    // Its two layers, and the one of the image for sandboxes.
    assert_eq!(snapshots.lines().skip(1).filter(|line| line.contains("Committed")).count(), 3, "{snapshots}");
    let others = node.containerd.ctr_ok(&["snapshots", "--snapshotter", "overlayfs", "ls"]).await.unwrap();
    assert_eq!(others.lines().skip(1).count(), 0, "{others}");
}
on_both!(the_snapshotter_of_the_node_is_used);

/// A program that lets in what is not called "bad". Made elsewhere, so that it is never seen half-made.
fn judge_in(verifiers: &Path, elsewhere: &Path) {
    let judge = elsewhere.join("judge");
    fs::write(&judge, "#!/bin/sh\ncat > /dev/null\ncase \"$*\" in *bad*) echo no; exit 1;; esac\necho yes\n").unwrap();
    fs::set_permissions(&judge, fs::Permissions::from_mode(0o755)).unwrap();
    symlink(&judge, verifiers.join("judge")).unwrap();
}

/// A program judges images, and only containerd's own pull asks it: the pull is left to containerd, from the moment that
/// there is one, and that is told.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn a_containerd_with_image_verifiers_pulls_by_itself() {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let (programs, verifiers) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = containerd::Options { verifiers: Some(verifiers.path().to_owned()), ..Default::default() };
    let Some(node) = Node::start_with(Version::Two, options.clone(), &[]).await else { return };
    let early = registry.push("shop/bad-early", "v1", &noise(1, 100_000, 1)).await;
    node.pull(&early).await.exits(0);

    judge_in(verifiers.path(), programs.path());
    let because = format!("programs in {} judge images", verifiers.path().display());
    let name = registry.push("shop/good", "v1", &noise(1, 100_000, 2)).await;
    node.begin("good", &name, &[]).await;
    assert_eq!(node.end("good").await["phase"], "Succeeded");
    let told = format!("pulled by containerd itself: {because}");
    node.up.run(&["get", "good"]).await.exits(0).says(&told);
    let noted = |object: &DynamicObject| reports(object).iter().any(|report| report.message.contains(&told));
    node.up.wait("NodePreheat", "node-1", noted).await;
    assert!(node.names().await.contains(&name));

    let bad = registry.push("shop/bad", "v1", &noise(1, 100_000, 3)).await;
    node.wish("bad", &bad, &[], json!({"retries": 0})).await;
    let (reason, message) = node.failure("bad").await;
    assert_eq!(reason, "StoreError", "{message}");
    assert!(message.contains(&bad) && message.contains("verifier judge rejected"), "{message}");
    assert!(!node.names().await.contains(&bad));

    // Who starts with such a containerd says so at once.
    let Some(node) = Node::start_with(Version::Two, options, &[]).await else { return };
    node.up.run(&["get", "nodes"]).await.exits(0).says("(overlayfs, by CRI)");
    node.up.run(&["get", "nodes", "-o", "wide"]).await.exits(0).says(&because);
}

/// Makes a root directory with nothing but these directories of the machine in it, as a pod has, and becomes a program in it. The
/// usual place of verifiers is there, and empty.
const POD: &str = r#"
set -e
root=$1 seen=$2
shift 2
for dir in /usr /bin /sbin /lib /lib64 /etc /proc $seen; do
    [ -e "$dir" ] || continue
    mkdir -p "$root$dir"
    mount --rbind "$dir" "$root$dir"
done
mkdir -p "$root/opt/containerd"
mount -t tmpfs none "$root/opt/containerd"
exec chroot "$root" "$@"
"#;

/// An agent in a pod does not see the directory that containerd's settings name: they may judge images, so containerd pulls.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn image_verifiers_that_an_agent_does_not_see_are_not_passed_by() {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let verifiers = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    judge_in(verifiers.path(), elsewhere.path());
    let options = containerd::Options { verifiers: Some(verifiers.path().to_owned()), ..Default::default() };
    let Some(containerd) = Containerd::start(Version::Two, options).await.unwrap() else { return };
    let (root, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = env!("CARGO_BIN_EXE_stoker");
    let (certs, programs) = (containerd.certs(), Path::new(program).parent().unwrap());
    let seen = [certs.parent().unwrap(), data.path(), programs].map(|path| path.display().to_string()).join(" ");
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", POD, "pod"]).arg(root.path()).args([&seen, program]);
    command.env_remove("KUBECONFIG").env("HOME", "/nonexistent").stdin(Stdio::null());
    let endpoint = containerd.endpoint();
    let args = ["--runtime", "containerd", "--runtime-endpoint", &endpoint, "--max-disk", "100"];
    let node = Node { up: crate::up::Up::start_by(command, data, &args), containerd };

    let bad = registry.push("shop/bad", "v1", &noise(1, 100_000, 4)).await;
    node.wish("bad", &bad, &[], json!({"retries": 0})).await;
    let (reason, message) = node.failure("bad").await;
    assert_eq!(reason, "StoreError", "{message}");
    assert!(message.contains("verifier judge rejected"), "{message}");
    assert!(!node.names().await.contains(&bad));
    let advice = format!("stoker install --host-dir {}", verifiers.path().display());
    node.up.run(&["get", "nodes", "-o", "wide"]).await.exits(0).says(&advice);
    node.pull(&registry.push("shop/good", "v1", &noise(1, 100_000, 5)).await).await.exits(0);
}

/// A socket where nobody listens, or one that is none, is an error that names it.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_at_the_endpoint_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing.sock");
    for (runtime, endpoint, code, words) in [
        ("auto", format!("unix://{}", missing.display()), 1, "missing.sock"),
        ("containerd", missing.display().to_string(), 1, "is it running"),
        ("cri", missing.display().to_string(), 1, "is it running"),
        ("auto", "tcp://127.0.0.1:1".to_owned(), 2, "give a socket"),
        ("layout", missing.display().to_string(), 2, "leave --runtime-endpoint out"),
    ] {
        let mut command = stoker();
        command.args([
            "up",
            "--listen",
            "127.0.0.1:0",
            "--runtime",
            runtime,
            "--runtime-endpoint",
            &endpoint,
            "--data",
        ]);
        command.arg(dir.path().join("data")).stdin(Stdio::null());
        let ran = Ran::by(command).await;
        ran.exits(code).says(words);
    }
}

/// An endpoint that is there later is not waited for at the start, and a containerd that goes is: one that was chosen stays.
async fn what_was_chosen_stays(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(mut node) = Node::start(version).await else { return };
    let name = registry.push("shop/web", "v1", &noise(1, 50_000, 3)).await;
    node.containerd.kill();
    node.begin("waits", &name, &[]).await;
    let report = node.report(|report| report.reason == "RuntimeUnavailable").await;
    assert!(report.message.contains("containerd.sock"), "{report:?}");
    let why = node.up.run(&["why", "waits"]).await;
    why.exits(0).says("RuntimeUnavailable").says("containerd.sock");
    node.containerd.restart().await.unwrap();
    assert_eq!(node.end("waits").await["phase"], "Succeeded");
    assert_eq!(names(&node.containerd, &name).await, 1);
}
on_both!(what_was_chosen_stays);

async fn names(containerd: &Containerd, name: &str) -> usize {
    let names = containerd.ctr_ok(&["images", "ls", "-q"]).await.unwrap();
    names.lines().filter(|line| *line == name).count()
}

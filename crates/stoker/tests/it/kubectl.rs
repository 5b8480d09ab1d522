//! The examples with the stock kubectl.

use std::process::Command;

use stoker_testbed::registry::{Registry, noise};

use crate::bed::{Ran, Up};

/// A kubectl that is new enough, from $KUBECTL or the PATH.
pub(crate) fn kubectl() -> Option<String> {
    let program = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".into());
    let output = Command::new(&program).args(["version", "--client", "-o", "json"]).output().ok()?;
    let version: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let minor = version["clientVersion"]["minor"].as_str()?.trim_end_matches('+').parse::<u32>().ok()?;
    (minor >= 28).then_some(program)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_are_applied_shown_and_deleted() {
    let Some(program) = kubectl() else {
        println!("SKIPPED: the examples with kubectl: there is no kubectl 1.28 or newer on the PATH or in $KUBECTL");
        return;
    };
    let registry = Registry::start().await.unwrap();
    for image in ["demo/web", "demo/cart"] {
        registry.push(image, "v1", &[noise(10_000, 1)]);
    }
    let up = Up::start(2);
    let run = async |args: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("--kubeconfig").arg(up.kubeconfig()).args(args).env("HOME", up.data());
        Ran::of(tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap())
    };
    let example = |name: &str| {
        let file = format!("{}/../../examples/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(file).unwrap().replace("127.0.0.1:5000", &registry.host());
        let copy = up.data().join(format!("{name}.yaml"));
        std::fs::write(&copy, text).unwrap();
        copy.to_str().unwrap().to_string()
    };
    let preheat = example("preheat");
    run(&["apply", "-f", &preheat]).await.exits(0).says("preheat.stoker.dev/next-release created");
    run(&["apply", "-f", &preheat]).await.exits(0).says("preheat.stoker.dev/next-release unchanged");
    run(&["wait", "--for=condition=Complete", "--timeout=60s", "preheat/next-release"]).await.exits(0);
    run(&["get", "ph"]).await.exits(0).says("PHASE").says("Succeeded").says("next-release");
    run(&["get", "preheats", "-o", "wide"]).await.exits(0).says("all images are on all 2 nodes");
    run(&["get", "nodes,nodepreheats"]).await.exits(0).says("node-2").says("layout");
    let described = run(&["describe", "preheat", "next-release"]).await;
    described.exits(0).says("Started").says("Succeeded").says("2 of 2 nodes have every image");
    let job = example("imagepulljob");
    run(&["apply", "-f", &job]).await.exits(0).says("imagepulljob.apps.kruise.io/base-image created");
    up.wait("ImagePullJob", "base-image", |object| object.data.pointer("/status/completionTime").is_some()).await;
    run(&["get", "imagepulljobs"]).await.exits(0).says("SUCCEED").says("job has completed");
    let bad = up.data().join("bad.yaml");
    let text = std::fs::read_to_string(&preheat).unwrap();
    std::fs::write(&bad, text.replace("parallelism", "paralelism").replace("next-release", "bad")).unwrap();
    run(&["apply", "-f", bad.to_str().unwrap()]).await.exits(1).says("spec.pace.paralelism");
    std::fs::write(&bad, text.replace("parallelism: 3", "parallelism: -3").replace("next-release", "bad")).unwrap();
    run(&["apply", "-f", bad.to_str().unwrap()]).await.exits(1).says("spec.pace.parallelism");
    run(&["delete", "-f", &preheat, "-f", &job]).await.exits(0).says("deleted");
    run(&["get", "preheats,imagepulljobs"]).await.exits(0).says("No resources found");
}

//! The documentation's own commands, in the order in which a reader meets them.

use std::path::{Path, PathBuf};
use std::process::Command;

use stoker_testbed::registry::{Registry, noise};

use crate::bed::kubectl;
use crate::bed::{Ran, Up};

/// The lines after `$` in the console blocks of a page.
fn commands(page: &str) -> Vec<String> {
    let blocks = page.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines = blocks.flat_map(|block| block.lines().filter_map(|line| line.strip_prefix("$ ")));
    lines.map(str::to_string).collect()
}

/// A directory in which `stoker` and `kubectl` are what the test means by them.
fn programs(scratch: &Path, kubectl: Option<&str>) -> PathBuf {
    let bin = scratch.join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_stoker"), bin.join("stoker")).unwrap();
    if let Some(program) = kubectl {
        let path = std::env::var_os("PATH").unwrap();
        let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file());
        std::os::unix::fs::symlink(found.unwrap_or_else(|| program.into()), bin.join("kubectl")).unwrap();
    }
    bin
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_first_steps_works() {
    every_command_works("first-steps.md", 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_the_guide_works() {
    every_command_works("guide.md", 7).await;
}

async fn every_command_works(page: &str, at_least: usize) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let commands = commands(&std::fs::read_to_string(root.join("docs").join(page)).unwrap());
    assert!(commands.len() >= at_least, "{commands:#?}");
    let registry = Registry::start().await.unwrap();
    for (image, tag) in [("shop/web", "v42"), ("shop/cart", "v7"), ("demo/web", "v1"), ("demo/cart", "v1")] {
        registry.push(image, tag, &[noise(10_000, 1)]);
    }
    let up = Up::start(3);
    let scratch = tempfile::tempdir().unwrap();
    let kubectl = kubectl();
    let bin = programs(scratch.path(), kubectl);
    std::fs::create_dir(scratch.path().join("examples")).unwrap();
    for example in ["preheat.yaml", "imagepulljob.yaml", "imagelistpulljob.yaml"] {
        let text = std::fs::read_to_string(root.join("examples").join(example)).unwrap();
        let text = text.replace("127.0.0.1:5000", &registry.host());
        std::fs::write(scratch.path().join("examples").join(example), text).unwrap();
    }
    let mut path = vec![bin];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap()));
    let path = std::env::join_paths(path).unwrap();
    let mut left_out = 0;
    for line in commands {
        let applied = ["imagepulljob/base-image", "imagelistpulljob/base-images", "next-release", "--secret"]
            .iter()
            .any(|object| line.contains(object));
        if kubectl.is_none() && (line.starts_with("kubectl ") || applied) {
            left_out += 1;
            continue;
        }
        let mut command = Command::new("sh");
        // A person's patience is not what is tested.
        let line = line.replace("registry.example", &registry.host()).replace("--timeout=60s", "--timeout=600s");
        command.arg("-c").arg(&line).current_dir(scratch.path());
        command.env("PATH", &path).env("KUBECONFIG", up.kubeconfig()).env("HOME", scratch.path());
        let ran = Ran::by(command).await;
        assert_eq!(ran.code, Some(0), "$ {line}\n{}{}", ran.out, ran.err);
    }
    if left_out > 0 {
        println!("SKIPPED: {left_out} commands of docs/{page}: there is no kubectl 1.28 or newer");
    }
}

//! The ways to pull: ours through the whole system, CRI's, and `ctr`'s. Each on a containerd of its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use kube::api::{Api, DeleteParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Client, Config, ResourceExt as _};
use serde_json::json;
use stoker_api::native::Preheat;
use stoker_runtime::Cri;
use stoker_testbed::containerd::{Containerd, Options, Version};

use crate::Outcome;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arm {
    Ours,
    Cri,
    Ctr,
}

/// A containerd with an empty root.
pub(crate) async fn containerd(version: Version, discard: bool) -> Outcome<Option<Containerd>> {
    let options = Options { discard_unpacked_layers: discard, sandbox: false, ..Options::default() };
    Ok(Containerd::start(version, options).await?)
}

/// Pulls in one way, and says how long it took until a container could start.
pub(crate) async fn pull(arm: Arm, containerd: &Containerd, image: &str) -> Outcome<Duration> {
    match arm {
        Arm::Ours => {
            let mut stoker = Stoker::start(containerd)?;
            let took = stoker.pull(image).await?;
            stoker.stop()?;
            Ok(took)
        }
        Arm::Cri => {
            let cri = Cri::connect(containerd.socket()).await?;
            let start = Instant::now();
            cri.pull(image, None, None, Duration::from_secs(600)).await?;
            Ok(start.elapsed())
        }
        Arm::Ctr => {
            let start = Instant::now();
            containerd.ctr_ok(&["images", "pull", "--plain-http", image]).await?;
            Ok(start.elapsed())
        }
    }
}

/// `stoker up` on a containerd.
pub(crate) struct Stoker {
    child: Child,
    data: tempfile::TempDir,
    endpoint: String,
}

impl Stoker {
    pub(crate) fn start(containerd: &Containerd) -> Outcome<Self> {
        // On the same disk as containerd's root.
        let data = tempfile::tempdir()?;
        let endpoint = containerd.endpoint();
        Ok(Self { child: spawn(data.path(), &endpoint)?, data, endpoint })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn kill_and_restart(&mut self) -> Outcome<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.child = spawn(self.data.path(), &self.endpoint)?;
        Ok(())
    }

    pub(crate) async fn client(&self) -> Outcome<Client> {
        let path: PathBuf = self.data.path().join("kubeconfig");
        // It is written when everything is ready.
        while !path.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let config =
            Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    /// From the wish to the job's own word that it is done.
    pub(crate) async fn pull(&mut self, image: &str) -> Outcome<Duration> {
        let preheats: Api<Preheat> = Api::default_namespaced(self.client().await?);
        let start = Instant::now();
        let name = ask(&preheats, image).await?;
        done(&preheats, &name).await?;
        let took = start.elapsed();
        preheats.delete(&name, &DeleteParams::default()).await?;
        Ok(took)
    }

    pub(crate) fn stop(&mut self) -> Outcome<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Stoker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(data: &Path, endpoint: &str) -> Outcome<Child> {
    let _ = std::fs::remove_file(data.join("kubeconfig"));
    let child = Command::new(env!("CARGO_BIN_EXE_stoker"))
        .args(["up", "--listen", "127.0.0.1:0", "--max-disk", "100", "--runtime", "containerd", "--runtime-endpoint"])
        .arg(endpoint)
        .arg("--data")
        .arg(data)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok(child)
}

/// Makes a Preheat.
pub(crate) async fn ask(preheats: &Api<Preheat>, image: &str) -> Outcome<String> {
    let preheat = json!({
        "apiVersion": "stoker.dev/v1alpha1",
        "kind": "Preheat",
        "metadata": {"generateName": "bench-"},
        "spec": {"images": [{"image": image}]},
    });
    let made = preheats.create(&PostParams::default(), &serde_json::from_value(preheat)?).await?;
    Ok(made.name_any())
}

/// Waits until it says that it is done.
pub(crate) async fn done(preheats: &Api<Preheat>, name: &str) -> Outcome<()> {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut objects = watcher(preheats.clone(), config).default_backoff().applied_objects().boxed();
    while let Some(object) = objects.next().await {
        // An API that is being restarted is not there for a while.
        let Ok(object) = object else { continue };
        let status = object.status.unwrap_or_default();
        match (status.completion_time, status.failed) {
            (Some(_), 0) => return Ok(()),
            (Some(_), _) => return Err(format!("{name} failed: {:?}", status.message).into()),
            _ => {}
        }
    }
    Err("the watch ended".into())
}

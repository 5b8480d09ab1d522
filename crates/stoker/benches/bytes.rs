//! B13: the processor time that an agent needs for the bytes that it receives, over a link of 100 Mbit/s and of 1 Gbit/s.
//!
//! The registry runs in one network namespace, `stoker up` (for its API and controller) and a `stoker agent` in another; a veth pair connects
//! both, and tbf shapes the link. The figure is the processor time of the agent from the creation of a Preheat to its end, divided by the
//! processor time of one thread that hashes the same bytes with SHA-256 and writes them to a file. `cargo xtask bench bytes` runs it, as
//! root. With a number: that many rounds.

#[path = "scale/figures.rs"]
mod figures;

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::await_condition;
use kube::{Client, Config};
use oci_spec::image::{DescriptorBuilder, MediaType};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use stoker_api::native::{NodePreheat, Preheat};
use stoker_runtime::Layout;
use stoker_testbed::image::{Compression, Image, ImageBuilder, LayerBuilder};
use stoker_testbed::processor;
use stoker_transfer::{RegistryServer, ServeSettings};
use tokio_util::sync::CancellationToken;

use crate::figures::{median, spread};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const ROUNDS: usize = 3;
const SIZE: u64 = 256 << 20;
const GB: f64 = 1e9;
const RATES: [&str; 2] = ["100mbit", "1gbit"];
const NODE: &str = "receiver";
const IMAGE: &str = "bench/bytes:v1";
const REGISTRY: &str = "10.78.13.1:5000";
const PATIENCE: Duration = Duration::from_secs(600);

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match *words.as_slice() {
        ["serve", layout] => run(serve(Path::new(layout))),
        ["measure", link, rounds] => run(measure(link, rounds.parse()?)),
        ["hash", from, to] => hash(Path::new(from), Path::new(to)),
        _ => outside(words.iter().find_map(|word| word.parse().ok()).unwrap_or(ROUNDS)),
    }
}

fn run(work: impl Future<Output = Outcome<()>>) -> Outcome<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

/// Makes the two namespaces, and goes on inside of one of them.
fn outside(rounds: usize) -> Outcome<()> {
    let Some(link) = Link::make()? else {
        println!("SKIPPED: B13 needs root, `ip` and `tc` (package iproute2)");
        return Ok(());
    };
    let status = link.inside("node").args(["measure", &link.0, &rounds.to_string()]).status()?;
    if status.success() { Ok(()) } else { Err("the measurement failed; see above".into()) }
}

/// Two network namespaces with a link between them; they go when this is dropped.
struct Link(String);

impl Link {
    fn make() -> Outcome<Option<Self>> {
        let link = Self(format!("sb{}", std::process::id()));
        let (registry, node) = (link.name("registry"), link.name("node"));
        if !ip(&["netns", "add", &registry]) {
            return Ok(None);
        }
        let (near, far) = (format!("{}r", link.0), format!("{}n", link.0));
        let steps: [&[&str]; 8] = [
            &["netns", "add", &node],
            &["link", "add", &near, "netns", &registry, "type", "veth", "peer", "name", &far, "netns", &node],
            &["-n", &registry, "addr", "add", "10.78.13.1/24", "dev", &near],
            &["-n", &node, "addr", "add", "10.78.13.2/24", "dev", &far],
            &["-n", &registry, "link", "set", &near, "up"],
            &["-n", &node, "link", "set", &far, "up"],
            &["-n", &registry, "link", "set", "lo", "up"],
            &["-n", &node, "link", "set", "lo", "up"],
        ];
        match steps.iter().find(|step| !ip(step)) {
            Some(step) => Err(format!("ip {} failed", step.join(" ")).into()),
            None => Ok(Some(link)),
        }
    }

    fn name(&self, part: &str) -> String {
        format!("{}-{part}", self.0)
    }

    /// This program, in one of the namespaces.
    fn inside(&self, part: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.name(part))).arg("--");
        command.arg(std::env::current_exe().unwrap_or_default());
        command
    }

    fn shape(&self, rate: &str) -> Outcome<()> {
        let device = format!("{}r", self.0);
        let shape =
            ["qdisc", "replace", "dev", &device, "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"];
        match Command::new("tc").args(["-n", &self.name("registry")]).args(shape).status()?.success() {
            true => Ok(()),
            false => Err("tc cannot shape the link".into()),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for part in ["registry", "node"] {
            ip(&["netns", "delete", &self.name(part)]);
        }
    }
}

fn ip(words: &[&str]) -> bool {
    Command::new("ip").args(words).status().is_ok_and(|status| status.success())
}

async fn serve(layout: &Path) -> Outcome<()> {
    let server = RegistryServer::bind(REGISTRY.parse()?, layout.into(), ServeSettings::default()).await?;
    Ok(server.run(CancellationToken::new()).await?)
}

async fn measure(link: &str, rounds: usize) -> Outcome<()> {
    // Made and removed by whoever started this.
    let link = std::mem::ManuallyDrop::new(Link(link.into()));
    let scratch = tempfile::tempdir()?;
    let image =
        ImageBuilder::new().layer(&LayerBuilder::new().noise("noise", SIZE, 13).build(Compression::None)?).build();
    put(&scratch.path().join("registry"), &image).await?;
    let hosts = scratch.path().join("hosts").join(REGISTRY);
    fs::create_dir_all(&hosts)?;
    fs::write(hosts.join("hosts.toml"), format!("[host.\"http://{REGISTRY}\"]\n"))?;
    let _registry = Killed(link.inside("registry").arg("serve").arg(scratch.path().join("registry")).spawn()?);
    let layer = scratch.path().join("layer");
    fs::write(&layer, &image.layers[0].bytes)?;
    let gigabytes = image.layer_bytes() as f64 / GB;
    let mut least = Vec::new();
    let mut used: [Vec<f64>; RATES.len()] = Default::default();
    for _ in 0..rounds {
        least.push(hashed(&layer, &scratch.path().join("copy"))? / gigabytes);
        for (rate, used) in RATES.iter().zip(&mut used) {
            link.shape(rate)?;
            used.push(received(&scratch.path().join("hosts")).await? / gigabytes);
        }
    }
    println!("processor seconds a GB: hashed and written in one thread {}", spread(&least));
    for (rate, used) in RATES.iter().zip(&used) {
        println!("received at {rate} {}, {:.2} times as much", spread(used), median(used) / median(&least));
    }
    Ok(())
}

async fn put(dir: &Path, image: &Image) -> Outcome<()> {
    let layout = Layout::open(dir)?;
    let blobs = image.layers.iter().chain(&image.configs).chain(&image.manifests).chain([&image.root]);
    for blob in blobs {
        layout.put(&blob.digest.parse()?, blob.bytes.clone()).await?;
    }
    let root = DescriptorBuilder::default()
        .media_type(MediaType::from(image.root.media_type))
        .digest(image.root.digest.parse::<oci_spec::image::Digest>()?)
        .size(image.root.bytes.len() as u64)
        .build()?;
    Ok(layout.record(IMAGE, root).await?)
}

/// The processor time of one thread that hashes and writes a file, in seconds.
fn hashed(from: &Path, to: &Path) -> Outcome<f64> {
    let output = Command::new(std::env::current_exe()?).arg("hash").args([from, to]).output()?;
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

fn hash(from: &Path, to: &Path) -> Outcome<()> {
    let mut from = fs::File::open(from)?;
    let (mut to, mut hash, mut piece) = (fs::File::create(to)?, Sha256::new(), vec![0; 512 << 10]);
    loop {
        let read = from.read(&mut piece)?;
        if read == 0 {
            break;
        }
        hash.update(&piece[..read]);
        to.write_all(&piece[..read])?;
    }
    std::hint::black_box(hash.finalize());
    println!("{}", processor::seconds(std::process::id()).ok_or("no /proc")?);
    Ok(())
}

/// The processor time of an agent that receives the image, in seconds.
async fn received(hosts: &Path) -> Outcome<f64> {
    let data = tempfile::tempdir()?;
    let stoker = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stoker"));
        command.stdout(Stdio::null()).args(["--log", "error"]);
        command
    };
    let mut up = Killed(stoker().args(["up", "--listen", "127.0.0.1:0", "--data"]).arg(data.path()).spawn()?);
    let kubeconfig = data.path().join("kubeconfig");
    // It is written when everything is ready.
    while !kubeconfig.exists() {
        if let Some(status) = up.0.try_wait()? {
            return Err(format!("`stoker up` ended: {status}; see what it said above").into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let config = Kubeconfig::read_from(&kubeconfig)?;
    let client = Client::try_from(Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?)?;
    let ready = json!({"type": "Ready", "status": "True"});
    let node = serde_json::from_value(json!({"metadata": {"name": NODE}, "status": {"conditions": [ready]}}))?;
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await?;
    let agent = Killed(
        stoker()
            .args(["agent", "--node", NODE, "--runtime", "layout", "--data"])
            .arg(data.path().join("agent"))
            .arg("--registry-hosts")
            .arg(hosts)
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .spawn()?,
    );
    let known = |object: Option<&NodePreheat>| object.is_some_and(|object| object.status.is_some());
    tokio::time::timeout(PATIENCE, await_condition(Api::<NodePreheat>::all(client.clone()), NODE, known)).await??;
    let jobs: Api<Preheat> = Api::default_namespaced(client);
    let job = json!({
        "apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat", "metadata": {"name": "bytes"},
        "spec": {"images": [{"image": format!("{REGISTRY}/{IMAGE}")}], "nodes": {"names": [NODE]}},
    });
    let used = || processor::seconds(agent.0.id()).ok_or("the agent is gone");
    let before = used()?;
    jobs.create(&PostParams::default(), &serde_json::from_value(job)?).await?;
    let over = |job: Option<&Preheat>| {
        job.and_then(|job| job.status.as_ref()).is_some_and(|status| status.completion_time.is_some())
    };
    let ended = tokio::time::timeout(PATIENCE, await_condition(jobs, "bytes", over)).await??;
    let after = used()?;
    let status = ended.and_then(|job| job.status).ok_or("the job is gone")?;
    if status.succeeded != 1 {
        return Err(format!("the job should succeed: {}, {}", status.phase, status.message).into());
    }
    Ok(after - before)
}

/// A process that ends with its owner.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

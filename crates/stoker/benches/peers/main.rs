//! B1, B1b, B2 and a part of B6: how long an image takes to reach many nodes that read it from each other, and how often it leaves the
//! registry.
//!
//! A registry and 16 nodes are network namespaces of their own, each behind a link of 100 Mbit/s both ways that tbf shapes; the API server is
//! reached over links without a limit. `stoker up` runs the API and the controller, and each node has a `stoker agent` with a layout. The
//! time is from the creation of the Preheat until the slowest agent has the image, divided by the time that the same bytes take from the
//! registry's namespace to one node over one TCP connection, sent by the kernel from a file. `cargo xtask bench peers` runs it, as root.
//! With words: only these parts (all, slow, direct, memory). With numbers: so many rounds, nodes and Mbit/s. With
//! `STOKER_BENCH_LOGS=DIR`: the agents write what they do to files there.

#[path = "../scale/figures.rs"]
mod figures;
mod fleet;
mod net;
mod raw;

use std::path::Path;
use std::time::Duration;

use stoker_runtime::Layout;
use stoker_testbed::image::{Compression, Image, ImageBuilder, LayerBuilder};
use stoker_transfer::{Descriptor, Digest, MediaType, RegistryServer, ServeSettings};
use tokio_util::sync::CancellationToken;

use crate::figures::{median, spread};
use crate::fleet::{Fleet, Times};
use crate::net::{Net, machine};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const ROUNDS: usize = 5;
const NODES: usize = 16;
const MBITS: usize = 100;
const SIZE: u64 = 256 << 20;
const LARGE: u64 = 1 << 30;
/// Nodes that get the large image.
const RELAYS: usize = 4;
const REGISTRY: &str = "10.79.16.1:5000";
const RAW: &str = "10.79.16.1:5001";

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match *words.as_slice() {
        ["serve", layout] => run(serve(Path::new(layout))),
        ["raw-send", file] => raw::send(Path::new(file)),
        ["raw-take", size] => raw::take(size.parse()?),
        ["measure", name, rounds, nodes, mbits, ref parts @ ..] => {
            // Made and removed by whoever started this.
            let net = std::mem::ManuallyDrop::new(Net::named(name, nodes.parse()?, mbits.parse()?));
            run(measure(&net, parts, rounds.parse()?))
        }
        _ => {
            let mut numbers = words.iter().filter_map(|word| word.parse().ok());
            let (rounds, nodes, mbits) = (numbers.next(), numbers.next(), numbers.next());
            let parts: Vec<&str> = words.iter().copied().filter(|word| word.parse::<usize>().is_err()).collect();
            outside(&parts, rounds.unwrap_or(ROUNDS), nodes.unwrap_or(NODES), mbits.unwrap_or(MBITS))
        }
    }
}

fn run(work: impl Future<Output = Outcome<()>>) -> Outcome<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

async fn serve(layout: &Path) -> Outcome<()> {
    let server = RegistryServer::bind(REGISTRY.parse()?, layout.into(), ServeSettings::default()).await?;
    Ok(server.run(CancellationToken::new()).await?)
}

/// Makes the namespaces, and goes on inside of the one from which all others can be reached.
fn outside(parts: &[&str], rounds: usize, nodes: usize, mbits: usize) -> Outcome<()> {
    let Some(net) = Net::make(nodes, mbits)? else {
        println!("SKIPPED: B1 needs root, `ip` and `tc` (package iproute2)");
        return Ok(());
    };
    let numbers = [rounds, nodes, mbits].map(|number| number.to_string());
    let status = net.inside("hub").args(["measure", net.name()]).args(numbers).args(parts).status()?;
    if status.success() { Ok(()) } else { Err("the measurement failed; see above".into()) }
}

async fn measure(net: &Net, parts: &[&str], rounds: usize) -> Outcome<()> {
    let wants = |part: &str| parts.is_empty() || parts.contains(&part);
    let mut bench = Bench::start(net).await?;
    if wants("all") {
        bench.together(rounds).await?;
    }
    if wants("slow") {
        bench.with_a_slow_link(rounds).await?;
    }
    if wants("direct") {
        bench.direct().await?;
    }
    if wants("memory") {
        bench.memory().await?;
    }
    Ok(())
}

/// Everything that runs.
struct Bench<'a> {
    net: &'a Net,
    fleet: Fleet<'a>,
    scratch: tempfile::TempDir,
    _registry: fleet::Killed,
    /// Each image is another one, so that nobody has it.
    images: u64,
}

/// What one pull on all nodes gave.
struct Pulled {
    /// By node.
    times: Times,
    /// Bytes that left the registry's namespace.
    left: u64,
    /// The part of all processors that was busy.
    busy: f64,
}

fn least(seconds: &[f64]) -> f64 {
    seconds.iter().copied().fold(f64::MAX, f64::min)
}

fn greatest(seconds: &[f64]) -> f64 {
    seconds.iter().copied().fold(0.0, f64::max)
}

impl<'a> Bench<'a> {
    async fn start(net: &'a Net) -> Outcome<Self> {
        let scratch = tempfile::tempdir()?;
        let layout = scratch.path().join("registry");
        Layout::open(&layout)?;
        let registry = fleet::Killed(net.inside("registry").arg("serve").arg(&layout).spawn()?);
        let fleet = Fleet::start(net, scratch.path()).await?;
        Ok(Self { net, fleet, scratch, _registry: registry, images: 0 })
    }

    /// A new image with one layer that cannot be compressed, in the registry.
    async fn push(&mut self, size: u64) -> Outcome<(String, Image)> {
        self.images += 1;
        let seed = self.images;
        let made = tokio::task::spawn_blocking(move || {
            LayerBuilder::new().noise("noise", size, seed).build(Compression::None)
        });
        let image = ImageBuilder::new().layer(&made.await??).build();
        let layout = Layout::open(self.scratch.path().join("registry"))?;
        for blob in image.layers.iter().chain(&image.configs).chain(&image.manifests).chain([&image.root]) {
            layout.put(&blob.digest.parse()?, blob.bytes.clone()).await?;
        }
        let name = format!("bench/peers:v{seed}");
        let (media_type, digest) = (MediaType::from(image.root.media_type), image.root.digest.parse::<Digest>()?);
        layout.record(&name, Descriptor::new(media_type, image.root.bytes.len() as u64, digest)).await?;
        Ok((format!("{REGISTRY}/{name}"), image))
    }

    /// The seconds that the bytes of an image take over one link, and what leaves the registry's namespace for that.
    async fn raw(&self, image: &Image) -> Outcome<(f64, u64)> {
        let file = self.scratch.path().join("raw");
        let bytes = image.layers[0].bytes.clone();
        let size = bytes.len();
        tokio::fs::write(&file, bytes).await?;
        let before = self.net.left_registry()?;
        let _sender = fleet::Killed(self.net.inside("registry").arg("raw-send").arg(&file).spawn()?);
        let taken = self.net.inside(&machine(1)).args(["raw-take", &size.to_string()]).output()?;
        let seconds = String::from_utf8(taken.stdout)?.trim().parse()?;
        Ok((seconds, self.net.left_registry()?.saturating_sub(before)))
    }

    async fn pull(&mut self, image: &str) -> Outcome<Pulled> {
        let (left, busy) = (self.net.left_registry()?, net::processors()?);
        let times = self.fleet.pull(image, self.net.nodes).await?;
        let busy = net::processors()?.since(busy);
        Ok(Pulled { times, left: self.net.left_registry()?.saturating_sub(left), busy })
    }

    /// B1 and B2.
    async fn together(&mut self, rounds: usize) -> Outcome<()> {
        let (mut ratios, mut aa, mut copies, mut busy) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            let (name, image) = self.push(SIZE).await?;
            let (before, bytes) = self.raw(&image).await?;
            let ours = self.pull(&name).await?;
            let (after, _) = self.raw(&image).await?;
            let slowest = greatest(&ours.times.ended);
            println!(
                "raw {before:.2} s, ours {:.2} (first) to {slowest:.2} s, begun after {:.2} to {:.2} s, raw {after:.2} s, busy {:.0} %",
                least(&ours.times.ended),
                least(&ours.times.begun),
                greatest(&ours.times.begun),
                ours.busy * 100.0
            );
            ratios.push(slowest * 2.0 / (before + after));
            aa.push(after / before);
            copies.push(ours.left as f64 / bytes as f64);
            busy.push(ours.busy);
        }
        println!(
            "B1: {} nodes, slowest / one raw transfer {}; A/A, raw / raw {}",
            self.net.nodes,
            spread(&ratios),
            spread(&aa)
        );
        println!("B2: what left the registry / what one raw transfer sent {}", spread(&copies));
        println!("processors busy {:.0} %", median(&busy) * 100.0);
        Ok(())
    }

    /// B1b.
    async fn with_a_slow_link(&mut self, rounds: usize) -> Outcome<()> {
        let slow = self.net.nodes / 2;
        let mut ratios = Vec::new();
        for _ in 0..rounds {
            let (name, image) = self.push(SIZE).await?;
            let (before, _) = self.raw(&image).await?;
            self.net.shape(slow, self.net.mbits / 10)?;
            let ours = self.pull(&name).await?;
            self.net.shape(slow, self.net.mbits)?;
            let others = ours.times.ended.iter().enumerate().filter(|(node, _)| node + 1 != slow);
            let slowest = others.map(|(_, time)| *time).fold(0.0, f64::max);
            println!(
                "one link at a tenth: raw {before:.2} s, slowest of the others {slowest:.2} s, the slow one {:.2} s",
                ours.times.ended[slow - 1]
            );
            ratios.push(slowest / before);
        }
        println!("B1b: slowest of the others / one raw transfer {}", spread(&ratios));
        Ok(())
    }

    /// The same when every node asks the registry; a smaller image, because all share the registry's link.
    async fn direct(&mut self) -> Outcome<()> {
        let (name, image) = self.push(SIZE / 4).await?;
        let (raw, bytes) = self.raw(&image).await?;
        self.fleet.group("none").await?;
        let direct = self.pull(&name).await?;
        self.fleet.group("bench").await?;
        let slowest = greatest(&direct.times.ended);
        println!(
            "direct: slowest / one raw transfer {:.2}, what left the registry {:.2} times",
            slowest / raw,
            direct.left as f64 / bytes as f64
        );
        Ok(())
    }

    /// B6: the agents' memory while they relay 1 GiB over links without a limit.
    async fn memory(&mut self) -> Outcome<()> {
        for node in 0..=self.net.nodes {
            self.net.unshape(node)?;
        }
        let (name, image) = self.push(LARGE).await?;
        drop(image);
        let peak = self.fleet.peak_while_pulling(&name, RELAYS.min(self.net.nodes), Duration::from_millis(20)).await?;
        println!("B6: peak RssAnon of an agent that relays 1 GiB {peak:.1} MiB");
        Ok(())
    }
}

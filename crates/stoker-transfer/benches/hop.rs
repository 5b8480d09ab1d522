//! How long a byte stays in a node that passes it on, and what that costs.
//!
//! A chain of nodes in one process, each with a spool and a server of its own, over loopback with TLS: the first reads from a registry
//! that sends 100 Mbit/s, each other one from the node before it. The hop is the time from a byte in the file of one node to the
//! same byte in the file of the next. `cargo xtask bench hop` runs it. With a number: that many nodes.

#![allow(missing_docs)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use stoker_testbed::processor;
use stoker_testbed::registry::{Registry as TestRegistry, noise};
use stoker_transfer::peer::{
    Gate, Peer, PeerId, PeerIdentity, PeerLimits, PeerList, PeerReader, PeerServer, PeerState, PeerWays, ServedPart,
    Shelf, Ticket, TicketError, TicketKeys, TicketSigner,
};
use stoker_transfer::{BlobSource, Descriptor, Digest, Growing, MediaType, Registry, Settings, Spool, SpoolSettings};
use tokio_util::sync::CancellationToken;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const NODES: usize = 8;
const SIZE: usize = 128 << 20;
/// 100 Mbit/s.
const PACE: u64 = 12_500_000;
const STEP: u64 = 1 << 20;

struct OneBlob(Growing);

impl Shelf for OneBlob {
    fn find<'a>(&'a self, _: &'a Digest, _: &'a Digest) -> BoxFuture<'a, ServedPart> {
        std::future::ready(ServedPart::Growing(self.0.clone())).boxed()
    }

    fn state<'a>(&'a self, _: &'a Digest) -> BoxFuture<'a, Option<PeerState>> {
        let state = PeerState { have: self.0.progress().have(), whole: false, readers: 0 };
        std::future::ready(Some(state)).boxed()
    }
}

struct Tickets(TicketKeys);

impl Gate for Tickets {
    fn check<'a>(&'a self, ticket: &'a str, caller: PeerId) -> BoxFuture<'a, Result<Ticket, TicketError>> {
        std::future::ready(self.0.check(ticket, caller, 1)).boxed()
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let nodes = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(NODES);
    let registry = TestRegistry::start().await?;
    let layer = noise(SIZE, 3);
    let pushed = registry.push("bench/hop", "v1", std::slice::from_ref(&layer));
    registry.pace(PACE);
    let (root, digest): (Digest, Digest) = (pushed.manifest.parse()?, pushed.layers[0].parse()?);
    let blob = Descriptor::new(MediaType::ImageLayer, SIZE as u64, digest);
    let signer = TicketSigner::generate()?;
    let image: stoker_transfer::Reference = format!("{}/bench/hop:v1", registry.host()).parse()?;
    let client = Registry::new(Settings::default())?;
    let scratch = tempfile::tempdir()?;
    let (mut before, mut watched): (Option<Peer>, Vec<_>) = (None, Vec::new());
    let used = processor::seconds(std::process::id()).ok_or("no /proc")?;
    let start = Instant::now();
    for node in 0..nodes {
        let key = PeerIdentity::generate()?;
        let spool = Spool::open(scratch.path().join(node.to_string()), client.clone(), SpoolSettings::default())?;
        let mut source = BlobSource::new(image.clone(), None);
        if let Some(before) = before.take() {
            let ticket = signer.sign(&root, key.id(), 3600).ok_or("no ticket")?;
            let list = PeerList { upstream: false, ticket: ticket.into(), peers: vec![before] };
            source = source.by(PeerWays::new(PeerReader::new(key.clone()), list));
        }
        let growing = spool.blob(source, blob.clone());
        let gate = Arc::new(Tickets([signer.public()].into_iter().collect()));
        let shelf = Arc::new(OneBlob(growing.clone()));
        let server = PeerServer::bind(([127, 0, 0, 1], 0).into(), &key, shelf, gate, PeerLimits::default()).await?;
        before = Some(Peer { node: node.to_string().into(), addr: server.addr(), id: key.id(), far: false });
        tokio::spawn(server.run(CancellationToken::new()));
        watched.push((growing.clone(), tokio::spawn(arrivals(growing, start))));
    }
    let mut all = Vec::new();
    for (growing, times) in watched {
        growing.complete().await?;
        all.push(times.await?);
    }
    let took = start.elapsed().as_secs_f64();
    let used = processor::seconds(std::process::id()).ok_or("no /proc")? - used;
    let mut hops: Vec<f64> = Vec::new();
    for pair in all.windows(2) {
        // The first ones are connections that are just made.
        hops.extend(pair[0].iter().zip(&pair[1]).skip(2).map(|(near, far)| (*far - *near).max(0.0) * 1000.0));
    }
    hops.sort_by(f64::total_cmp);
    let at = |part: f64| hops.get((hops.len() as f64 * part) as usize).copied().unwrap_or_default();
    println!("{nodes} nodes: {took:.2} s, {:.2} s at the pace of the registry", SIZE as f64 / PACE as f64);
    println!("hop in ms: p50 {:.2}, p90 {:.2}, p99 {:.2}", at(0.5), at(0.9), at(0.99));
    println!(
        "processor seconds a GB and node, registry included: {:.2}; sent {}",
        used / nodes as f64 / (SIZE as f64 / 1e9),
        registry.body_bytes("/blobs/")
    );
    Ok(())
}

/// When each MiB was in the file, in seconds.
async fn arrivals(growing: Growing, start: Instant) -> Vec<f64> {
    let (progress, mut times) = (growing.progress(), Vec::new());
    while times.len() < SIZE / STEP as usize {
        let have = progress.have();
        while (times.len() as u64 + 1) * STEP <= have {
            times.push(start.elapsed().as_secs_f64());
        }
        let _ = tokio::time::timeout(Duration::from_secs(10), progress.changed(have)).await;
    }
    times
}

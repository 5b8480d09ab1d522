//! How long a plan takes in a large world: 5,000 nodes, 200 running jobs that each want all of them.
//!
//! Prints `name value unit` lines: the median and the worst of plans after a single report and of plans of everything,
//! and the memory of the World. It judges nothing. Other sizes: `plan-bench NODES JOBS`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use stoker_core::model::{Job, Node, NodeName};
use stoker_core::reference::InvalidReference;
use stoker_core::select::Selector;
use stoker_core::{
    Ask, Bytes, Completion, Empty, Event, Image, JobId, Key, Order, Phase, Pin, Policy, Pull, Reason, Report, Terms,
    Unreachable, Words, World, pace,
};

/// How many nodes of each job pull at one time.
const PARALLELISM: usize = 50;
const SINGLE_REPORTS: usize = 2_000;
const FULL_PLANS: usize = 15;
const IMAGE_SIZE: u64 = 500_000_000;

/// Where the bench's fleet has a job on a node.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Waiting,
    Active,
    Done,
    Failed,
}

struct Fleet {
    nodes: usize,
    jobs: usize,
    began: Timestamp,
    /// By node, then by job.
    places: Vec<Vec<Place>>,
    keys: Vec<Key>,
    names: Vec<NodeName>,
}

impl Fleet {
    /// Each job is at another point of its way through the nodes; one node in a hundred has failed.
    fn new(nodes: usize, jobs: usize, began: Timestamp) -> Self {
        let place = |node: usize, job: usize| {
            let done = nodes * job / (jobs + 1);
            match node {
                node if node < done && (node + job).is_multiple_of(100) => Place::Failed,
                node if node < done => Place::Done,
                node if node < done + PARALLELISM => Place::Active,
                _ => Place::Waiting,
            }
        };
        Self {
            nodes,
            jobs,
            began,
            places: (0..nodes).map(|node| (0..jobs).map(|job| place(node, job)).collect()).collect(),
            keys: (0..jobs).map(|job| Key::of(&image(job))).collect(),
            names: (0..nodes).map(|node| format!("node-{node:05}").into()).collect(),
        }
    }

    fn pin(&self, job: usize) -> Pin {
        Pin::new(self.began, format!("sha256:{job:064x}"))
    }

    fn order(&self, job: usize) -> Order {
        let pull = Pull {
            policy: Policy::IfNotPresent,
            timeout: Duration::from_secs(600),
            retries: 3,
            bandwidth: None,
            priority: 0,
            sandbox: Default::default(),
            source: Default::default(),
            upstream_copies: None,
        };
        let terms = Terms { pull, logins: Vec::new(), progress: pace::progress_interval(PARALLELISM) };
        let jobs = BTreeSet::from([job_id(job)]);
        Order::new(&image(job), jobs, self.began, Ask::Fetch(Some(self.pin(job))), terms)
    }

    fn report(&self, place: Place, done: u64, job: usize) -> Report {
        let failed = place == Place::Failed;
        Report {
            asked: self.began,
            // As the controller keeps them.
            jobs: BTreeSet::new(),
            phase: match place {
                Place::Done => Phase::Succeeded,
                Place::Failed => Phase::Failed,
                Place::Active | Place::Waiting => Phase::Pulling,
            },
            digest: Some(self.pin(job).digest.into()),
            pin: None,
            bytes: Bytes { total: IMAGE_SIZE, done, upstream: done, ..Bytes::default() },
            from: None,
            bad: Vec::new(),
            attempt: 1,
            reason: failed.then_some(Reason::Unreachable),
            message: if failed { "the registry cannot be reached: no route to host".into() } else { String::new() },
            present: false,
            stalled: None,
            started: self.began,
            finished: (place != Place::Active).then_some(self.began),
            updated: self.began,
        }
    }

    /// What the agent's object says; of one job it has got as far as `done`.
    fn reports(&self, node: usize, changed: Option<(usize, u64)>) -> BTreeMap<Key, Report> {
        let places = self.places.get(node).into_iter().flatten().zip(&self.keys).enumerate();
        let asked = places.filter(|(_, (place, _))| **place != Place::Waiting);
        let reports = asked.map(|(job, (place, key))| {
            let done = match changed {
                Some((at, done)) if at == job => done,
                _ if *place == Place::Active => IMAGE_SIZE / 2,
                _ => IMAGE_SIZE,
            };
            (*key, self.report(*place, done, job))
        });
        reports.collect()
    }

    fn orders(&self, node: usize) -> BTreeMap<Key, Order> {
        let places = self.places.get(node).into_iter().flatten().zip(&self.keys).enumerate();
        let asked = places.filter(|(_, (place, _))| **place != Place::Waiting);
        asked.map(|(job, (_, key))| (*key, self.order(job))).collect()
    }

    fn world(&self) -> World {
        let mut world = World::new();
        for (node, name) in self.names.iter().enumerate() {
            let labels = BTreeMap::from([("pool".to_string(), "main".to_string())]);
            world.apply(Event::Node(Node {
                name: name.clone(),
                labels,
                ready: true,
                ready_changed: None,
                cordoned: false,
                foreign: false,
            }));
            world.apply(Event::Orders(name.clone(), self.orders(node)));
            world.apply(Event::Reports(name.clone(), self.reports(node, None)));
        }
        for number in 0..self.jobs {
            world.apply(Event::Job(Box::new(job(number, self.began))));
        }
        world
    }
}

fn image(job: usize) -> String {
    format!("registry.example.com/team-{}/service-{job}:v1", job % 10)
}

fn job_id(job: usize) -> JobId {
    JobId::new(("stoker.dev", "Preheat"), "default", &format!("service-{job}"))
}

fn job(number: usize, began: Timestamp) -> Job {
    let name = image(number);
    Job {
        id: job_id(number),
        uid: number.to_string(),
        words: &Words { resume: "", secrets: "", orders: "" },
        generation: 1,
        created: began,
        images: vec![Image {
            secrets: Vec::new(),
            written: name.clone(),
            reference: name.parse().map_err(|_: InvalidReference| name.clone()),
        }],
        names: None,
        pick: None,
        selector: Selector::default(),
        foreign_nodes: false,
        parallelism: u32::try_from(PARALLELISM).unwrap_or(u32::MAX),
        percent: false,
        tolerance: None,
        unseen: None,
        pull: Pull {
            policy: Policy::IfNotPresent,
            timeout: Duration::from_secs(600),
            retries: 3,
            bandwidth: None,
            priority: 0,
            sandbox: Default::default(),
            source: Default::default(),
            upstream_copies: None,
        },
        completion: Completion::Once { deadline: None, ttl: None },
        suspend: false,
        unreachable: Unreachable::Wait,
        bounds: Default::default(),
        empty: Empty::Waits,
        unreadable: None,
        started: Some(began),
        ended: None,
    }
}

/// Median and worst, in microseconds.
fn summary(mut times: Vec<Duration>) -> (u128, u128) {
    times.sort_unstable();
    let micros = |time: Option<&Duration>| time.map(Duration::as_micros).unwrap_or_default();
    (micros(times.get(times.len() / 2)), micros(times.last()))
}

/// The anonymous memory of this process in KiB.
fn anonymous_memory() -> std::io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    Ok(line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or_default())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut sizes = std::env::args().skip(1).map(|size| size.parse::<usize>());
    let nodes = sizes.next().transpose()?.unwrap_or(5_000).max(1);
    let jobs = sizes.next().transpose()?.unwrap_or(200).max(1);
    let now = Timestamp::from_second(1_800_000_000)?;
    let mut fleet = Fleet::new(nodes, jobs, now);
    let before = anonymous_memory()?;
    let mut world = fleet.world();
    let first = Instant::now();
    world.plan(now);
    let first = first.elapsed();
    let memory = anonymous_memory()?.saturating_sub(before);

    let full = (0..FULL_PLANS).map(|_| {
        world.touch_everything();
        let start = Instant::now();
        world.plan(now);
        start.elapsed()
    });
    let full = summary(full.collect());

    let (mut progress, mut finish, mut facts, mut written) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for turn in 0..SINGLE_REPORTS {
        // A walk that comes by all jobs; every second report ends a pull, so that the next node is handed out.
        let job = turn * 7 % fleet.jobs;
        let Some(node) = (0..fleet.nodes).find(|&node| fleet.place(node, job) == Some(Place::Active)) else { continue };
        let ends = turn.is_multiple_of(2);
        if ends {
            fleet.put(node, job, Place::Done);
        }
        let done = if ends { IMAGE_SIZE } else { IMAGE_SIZE / 2 + u64::try_from(turn)? };
        let reports = fleet.reports(node, Some((job, done)));
        let Some(name) = fleet.names.get(node).cloned() else { continue };
        let start = Instant::now();
        world.apply(Event::Reports(name, reports));
        facts.push(start.elapsed());
        let start = Instant::now();
        let plan = world.plan(now);
        let times = if ends { &mut finish } else { &mut progress };
        times.push(start.elapsed());
        for write in &plan.orders {
            let handed_out = fleet.names.binary_search(&write.node).unwrap_or(fleet.nodes);
            fleet.put(handed_out, job, Place::Active);
            written += write.keys.len();
        }
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "nodes {nodes} 1\njobs {jobs} 1\nworld-memory {} MiB", memory / 1024)?;
    writeln!(out, "first-plan {} us", first.as_micros())?;
    let rows =
        [("apply-report", summary(facts)), ("plan-progress", summary(progress)), ("plan-finish", summary(finish))];
    for (name, (median, worst)) in rows.into_iter().chain([("plan-everything", full)]) {
        writeln!(out, "{name}-median {median} us\n{name}-worst {worst} us")?;
    }
    writeln!(out, "orders-written {written} 1")?;
    Ok(())
}

impl Fleet {
    fn place(&self, node: usize, job: usize) -> Option<Place> {
        self.places.get(node)?.get(job).copied()
    }

    fn put(&mut self, node: usize, job: usize, place: Place) {
        if let Some(at) = self.places.get_mut(node).and_then(|places| places.get_mut(job)) {
            *at = place;
        }
    }
}

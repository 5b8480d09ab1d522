//! How an image spreads over a large fleet that relays it: 5,000 nodes with the real plan, and agents and links on paper.
//!
//! Each scenario prints `name value unit` lines: how long the slowest node took against one transfer at the usual speed, how often the image left
//! the registry and crossed a border between zones, how often nodes were written to, and how long plans took. It judges nothing. Another size:
//! `relay-bench NODES`.
//!
//! Bytes flow as a fluid: an uplink is shared evenly, and a node forwards what it received [`HOP`] seconds ago. An agent whose source dies takes the next of
//! its list; when none is left it complains. It does not move for more speed, so links that are slow by surprise are not part of this.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Write as _;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use stoker_core::model::{Job, Node, NodeName, after};
use stoker_core::reference::InvalidReference;
use stoker_core::select::Selector;
use stoker_core::{
    Bytes, Completion, Empty, Event, Image, JobId, Key, Order, PeerFacts, PeerKey, Phase, Policy, Pull, Reason, Report,
    Unreachable, Words, World,
};

const SIZE: f64 = 256.0 * 1024.0 * 1024.0;
/// The usual link, 100 Mbit.
const LINK: f64 = 12_500_000.0;
/// What the registry can send to all.
const REGISTRY: f64 = 1_250_000_000.0;
/// From receiving a piece to forwarding it, in seconds.
const HOP: f64 = 0.003;
/// How long an agent needs to see that its source is away, in seconds.
const FAILOVER: f64 = 0.25;
/// How long the cluster needs to see that a node is away, in seconds.
const NOT_READY: f64 = 40.0;
/// A simulated moment, in seconds.
const STEP: f64 = 0.1;
/// Scenarios end at the latest then, in seconds.
const MOST_SECONDS: f64 = 4.0 * 3600.0;

struct Scenario {
    name: &'static str,
    parallelism: Option<u32>,
    zones: usize,
    /// The part of all nodes that fails each minute.
    failures: f64,
    /// Links differ by this part of the usual one, and one in ten is a tenth as fast.
    uneven: bool,
    /// Orders that are written each second.
    writes: f64,
}

const USUAL: Scenario =
    Scenario { name: "all-at-once", parallelism: None, zones: 1, failures: 0.0, uneven: false, writes: 100.0 };

const SCENARIOS: [Scenario; 6] = [
    USUAL,
    Scenario { name: "all-at-once-250", writes: 250.0, ..USUAL },
    Scenario { name: "failures", failures: 0.01, ..USUAL },
    Scenario { name: "zones", zones: 3, failures: 0.01, ..USUAL },
    Scenario { name: "uneven-links", zones: 3, failures: 0.01, uneven: true, ..USUAL },
    Scenario { name: "fifty-at-a-time", parallelism: Some(50), zones: 3, failures: 0.0005, uneven: true, ..USUAL },
];

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    /// From 0 to 1.
    fn roll(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[derive(Clone, Copy, PartialEq)]
enum RelayState {
    Idle,
    Running,
    Done,
    Dead,
}

struct Agent {
    name: NodeName,
    zone: usize,
    link: f64,
    state: RelayState,
    have: f64,
    order: Option<Order>,
    /// The place in its list from which it reads.
    turn: usize,
    /// It looks for another source until then.
    busy_until: f64,
    complained: bool,
    began: f64,
    took: f64,
}

struct RelayFleet {
    world: World,
    agents: Vec<Agent>,
    key: Key,
    now: f64,
    /// Nodes with orders to be written.
    owed: VecDeque<usize>,
    /// The same, to be looked up.
    waits: BTreeSet<usize>,
    /// Nodes that will be seen to be away, and when.
    away: VecDeque<(f64, usize)>,
    allowance: f64,
    order_writes: usize,
    reports: usize,
    upstream: f64,
    crossed: f64,
    seeds: BTreeSet<usize>,
    plans: Vec<Duration>,
    wake: Option<Timestamp>,
    changed: bool,
}

const BEGIN: i64 = 1_800_000_000;

fn time(seconds: f64) -> Timestamp {
    let begin = Timestamp::from_second(BEGIN).unwrap_or(Timestamp::UNIX_EPOCH);
    after(begin, Duration::from_secs_f64(seconds.max(0.0)))
}

/// The number of the node of this name.
fn number(name: &str) -> Option<usize> {
    name.strip_prefix("node-")?.parse().ok()
}

fn image() -> String {
    format!("registry.example.com/team/service@sha256:{}", "a".repeat(64))
}

fn job(parallelism: u32) -> Job {
    let name = image();
    Job {
        id: JobId::new(("stoker.dev", "Preheat"), "default", "service"),
        uid: "1".into(),
        words: &Words { resume: "", secrets: "", orders: "" },
        generation: 1,
        created: time(0.0),
        images: vec![Image {
            secrets: Vec::new(),
            written: name.clone(),
            reference: name.parse().map_err(|_: InvalidReference| name.clone()),
        }],
        names: None,
        pick: None,
        selector: Selector::default(),
        foreign_nodes: false,
        parallelism,
        percent: false,
        tolerance: None,
        unseen: None,
        pull: Pull {
            policy: Policy::IfNotPresent,
            timeout: Duration::from_secs(3600),
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
        started: Some(time(0.0)),
        ended: None,
    }
}

fn node(agent: &Agent, ready: bool) -> Event {
    let zone = ("topology.kubernetes.io/zone".to_string(), format!("zone-{}", agent.zone));
    Event::Node(Node {
        name: agent.name.clone(),
        labels: [zone].into(),
        ready,
        ready_changed: None,
        cordoned: false,
        foreign: false,
    })
}

impl RelayFleet {
    fn new(nodes: usize, scenario: &Scenario, dice: &mut Dice) -> Self {
        let agent = |n: usize, dice: &mut Dice| {
            let slow = scenario.uneven && dice.roll() < 0.1;
            let spread = if scenario.uneven { 0.7 + 0.6 * dice.roll() } else { 1.0 };
            Agent {
                name: format!("node-{n:05}").into(),
                zone: n % scenario.zones,
                link: LINK * spread * if slow { 0.1 } else { 1.0 },
                state: RelayState::Idle,
                have: 0.0,
                order: None,
                turn: 0,
                busy_until: 0.0,
                complained: false,
                began: 0.0,
                took: 0.0,
            }
        };
        let agents: Vec<Agent> = (0..nodes).map(|n| agent(n, dice)).collect();
        let mut world = World::new();
        world.relay(true);
        for agent in &agents {
            world.apply(node(agent, true));
            world.apply(Event::Orders(agent.name.clone(), BTreeMap::new()));
            world.apply(Event::Features(
                agent.name.clone(),
                ["look", "resolve", "sealed", "peers"].map(String::from).into(),
            ));
            // As agents publish it: the greatest power of two that they have seen.
            let rate = Some(1u64 << (agent.link as u64).max(1).ilog2());
            let facts = PeerFacts {
                address: [10, 0, 0, 1].into(),
                port: 7000,
                key: PeerKey::new(&agent.name),

                keeps: true,
                rate,
                sent: rate,
            };
            world.apply(Event::Peer(agent.name.clone(), Some(facts)));
        }
        let parallelism = scenario.parallelism.unwrap_or_else(|| u32::try_from(nodes).unwrap_or(u32::MAX));
        world.apply(Event::Job(Box::new(job(parallelism))));
        Self {
            world,
            agents,
            key: Key::of(&image()),
            now: 0.0,
            owed: VecDeque::new(),
            waits: BTreeSet::new(),
            away: VecDeque::new(),
            allowance: 0.0,
            order_writes: 0,
            reports: 0,
            upstream: 0.0,
            crossed: 0.0,
            seeds: BTreeSet::new(),
            plans: Vec::new(),
            wake: None,
            changed: true,
        }
    }

    /// Agents write what became of their orders.
    fn report(&mut self, at: usize, phase: Phase, reason: Option<Reason>) {
        let now = time(self.now);
        let Some((agent, order)) = self.agents.get(at).and_then(|agent| Some((agent, agent.order.as_ref()?))) else {
            return;
        };
        let done = agent.have as u64;
        let bad =
            if reason.is_some() { order.peers.iter().map(|peer| peer.node.clone()).collect() } else { Vec::new() };
        let report = Report {
            asked: order.asked,
            jobs: BTreeSet::new(),
            phase,
            digest: order.pin().map(|pin| pin.digest.as_str().into()),
            pin: None,
            present: false,
            bytes: Bytes { total: SIZE as u64, done, ..Bytes::default() },
            from: None,
            bad,
            attempt: 1,
            reason,
            message: String::new(),
            stalled: None,
            started: now,
            finished: (phase != Phase::Pulling).then_some(now),
            updated: now,
        };
        let (name, reports) = (agent.name.clone(), BTreeMap::from([(self.key, report)]));
        self.world.apply(Event::Reports(name, reports));
        self.reports += 1;
        self.changed = true;
    }

    fn plan(&mut self) {
        let now = time(self.now);
        if !self.changed && self.wake.is_none_or(|wake| wake > now) {
            return;
        }
        let start = Instant::now();
        let plan = self.world.plan(now);
        self.plans.push(start.elapsed());
        (self.changed, self.wake) = (false, plan.wake);
        for at in plan.orders.iter().filter_map(|write| number(&write.node)) {
            if self.waits.insert(at) {
                self.owed.push_back(at);
            }
        }
    }

    /// Writes as many orders as may be.
    fn deliver(&mut self, scenario: &Scenario) {
        self.allowance = (self.allowance + scenario.writes * STEP).min(scenario.writes);
        while self.allowance >= 1.0 {
            let Some(at) = self.owed.pop_front() else { break };
            self.waits.remove(&at);
            self.allowance -= 1.0;
            self.order_writes += 1;
            let Some(agent) = self.agents.get_mut(at) else { continue };
            let order = self.world.orders(&agent.name).and_then(|mut orders| orders.remove(&self.key));
            if agent.state == RelayState::Idle && order.is_some() {
                (agent.state, agent.began) = (RelayState::Running, self.now);
            }
            if order.as_ref().is_some_and(|order| order.upstream) {
                self.seeds.insert(at);
            }
            (agent.order, agent.turn, agent.complained) = (order, 0, false);
        }
    }

    fn fail(&mut self, scenario: &Scenario, dice: &mut Dice) {
        for at in 0..self.agents.len() {
            let dies = dice.roll() < scenario.failures / 60.0 * STEP;
            let Some(agent) = self.agents.get_mut(at).filter(|agent| dies && agent.state != RelayState::Dead) else {
                continue;
            };
            agent.state = RelayState::Dead;
            self.away.push_back((self.now + NOT_READY, at));
        }
        while let Some((_, at)) = self.away.front().copied().filter(|(when, _)| *when <= self.now) {
            self.away.pop_front();
            if let Some(agent) = self.agents.get(at) {
                self.world.apply(node(agent, false));
                self.changed = true;
            }
        }
    }

    /// Who reads from whom now. Agents without a living source look for one, and complain when they find none.
    fn sources(&mut self) -> BTreeMap<usize, Vec<usize>> {
        let mut readers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut complaints = Vec::new();
        for at in 0..self.agents.len() {
            let Some(agent) = self.agents.get(at).filter(|agent| agent.state == RelayState::Running) else { continue };
            let Some(order) = agent.order.as_ref().filter(|order| !order.upstream && agent.busy_until <= self.now)
            else {
                continue;
            };
            let source = order.peers.get(agent.turn).and_then(|peer| number(&peer.node));
            let alive = source
                .and_then(|source| self.agents.get(source))
                .is_some_and(|source| source.state != RelayState::Dead);
            match source.filter(|_| alive) {
                Some(source) => readers.entry(source).or_default().push(at),
                None => {
                    let last = agent.turn + 1 >= order.peers.len();
                    if last && !agent.complained {
                        complaints.push(at);
                    }
                    if let Some(agent) = self.agents.get_mut(at) {
                        agent.turn = if last { 0 } else { agent.turn + 1 };
                        agent.busy_until = self.now + if last { 5.0 } else { FAILOVER };
                        agent.complained |= last;
                    }
                }
            }
        }
        for at in complaints {
            self.report(at, Phase::Pulling, Some(Reason::NoSource));
        }
        readers
    }

    /// Bytes flow for a moment, from those who have them to those who read from them, and on.
    fn flow(&mut self, readers: &BTreeMap<usize, Vec<usize>>) {
        let running = |agent: &Agent| agent.state == RelayState::Running;
        let seeds: Vec<usize> = (0..self.agents.len())
            .filter(|at| {
                self.agents
                    .get(*at)
                    .is_some_and(|agent| running(agent) && agent.order.as_ref().is_some_and(|order| order.upstream))
            })
            .collect();
        let share = REGISTRY / seeds.len().max(1) as f64;
        let mut next: VecDeque<(usize, f64)> = VecDeque::new();
        for at in seeds {
            let Some(agent) = self.agents.get_mut(at) else { continue };
            let came = (agent.link.min(share) * STEP).min(SIZE - agent.have);
            agent.have += came;
            self.upstream += came;
            next.push_back((at, came));
        }
        let idle = |at: &&usize| {
            self.agents.get(**at).is_some_and(|agent| {
                agent.state != RelayState::Running || agent.order.as_ref().is_some_and(|order| !order.upstream)
            })
        };
        let read: BTreeSet<usize> = readers.values().flatten().copied().collect();
        next.extend(readers.keys().filter(idle).filter(|at| !read.contains(at)).map(|at| (*at, 0.0)));
        let mut seen: BTreeSet<usize> = next.iter().map(|(at, _)| *at).collect();
        while let Some((at, came)) = next.pop_front() {
            let Some((have, link, zone)) = self.agents.get(at).map(|agent| (agent.have, agent.link, agent.zone)) else {
                continue;
            };
            // What came in the last moment is not forwarded yet.
            let ahead = if have >= SIZE { SIZE } else { have - came / STEP * HOP };
            let mut wishes: Vec<(f64, usize)> = Vec::new();
            for reader in readers.get(&at).into_iter().flatten() {
                let Some(agent) = self.agents.get(*reader) else { continue };
                wishes.push(((ahead - agent.have).min(agent.link * STEP).max(0.0), *reader));
            }
            wishes.sort_by(|a, b| a.0.total_cmp(&b.0));
            let (mut left, mut waiting) = (link * STEP, wishes.len());
            for (wish, reader) in wishes {
                let came = wish.min(left / waiting.max(1) as f64);
                left -= came;
                waiting -= 1;
                let Some(agent) = self.agents.get_mut(reader) else { continue };
                agent.have += came;
                self.crossed += if agent.zone == zone { 0.0 } else { came };
                if seen.insert(reader) {
                    next.push_back((reader, came));
                }
            }
        }
        for at in 0..self.agents.len() {
            let Some(agent) = self.agents.get_mut(at).filter(|agent| running(agent) && agent.have >= SIZE - 1.0) else {
                continue;
            };
            (agent.state, agent.have, agent.took) = (RelayState::Done, SIZE, self.now - agent.began);
            self.report(at, Phase::Succeeded, None);
        }
    }

    fn is_over(&self) -> bool {
        self.agents.iter().all(|agent| matches!(agent.state, RelayState::Done | RelayState::Dead))
    }
}

fn run(nodes: usize, scenario: &Scenario) -> Result<(), Box<dyn std::error::Error>> {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut fleet = RelayFleet::new(nodes, scenario, &mut dice);
    while !fleet.is_over() && fleet.now < MOST_SECONDS {
        fleet.fail(scenario, &mut dice);
        fleet.plan();
        fleet.deliver(scenario);
        let readers = fleet.sources();
        fleet.flow(&readers);
        fleet.now += STEP;
    }
    let once = SIZE / LINK;
    let mut took: Vec<f64> =
        fleet.agents.iter().filter(|agent| agent.state == RelayState::Done).map(|agent| agent.took / once).collect();
    took.sort_by(f64::total_cmp);
    fleet.plans.sort_unstable();
    let middle = |plans: &[Duration]| plans.get(plans.len() / 2).map(Duration::as_micros).unwrap_or_default();
    let slowest = fleet.plans.last().map(Duration::as_micros).unwrap_or_default();
    let lost = fleet.agents.iter().filter(|agent| agent.state != RelayState::Done).count();
    let name = scenario.name;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{name}-makespan {:.2} transfers", fleet.now / once)?;
    writeln!(out, "{name}-own-time-median {:.3} transfers", took.get(took.len() / 2).copied().unwrap_or_default())?;
    writeln!(out, "{name}-own-time-worst {:.3} transfers", took.last().copied().unwrap_or_default())?;
    writeln!(out, "{name}-upstream {:.3} images\n{name}-seeds {} 1", fleet.upstream / SIZE, fleet.seeds.len())?;
    writeln!(out, "{name}-between-zones {:.3} images", fleet.crossed / SIZE)?;
    writeln!(out, "{name}-failed {lost} nodes")?;
    let writes = |count: usize| count as f64 / nodes.max(1) as f64;
    writeln!(
        out,
        "{name}-orders {:.3} writes-a-node\n{name}-reports {:.3} writes-a-node",
        writes(fleet.order_writes),
        writes(fleet.reports)
    )?;
    writeln!(out, "{name}-plan-median {} us\n{name}-plan-worst {slowest} us", middle(&fleet.plans))?;
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nodes = std::env::args().nth(1).map(|size| size.parse::<usize>()).transpose()?.unwrap_or(5_000).max(1);
    for scenario in &SCENARIOS {
        run(nodes, scenario)?;
    }
    Ok(())
}

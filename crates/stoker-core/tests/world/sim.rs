//! A small cluster that random histories happen to: API objects, writes under way, agents, a clock. The World is the
//! real one; everything else is as simple as it can be.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;
use stoker_core::model::{Job, Node, NodeName, Order, Report};
use stoker_core::world::{OrderWrite, WantedSecrets};
use stoker_core::{
    Ask, Event, JobId, Key, Origin, Outcome, PeerFacts, Phase, Pin, Plan, Policy, Reason, Restriction, Stage, World,
};

use crate::build::{GUEST, KINDS, OTHER, acknowledge, at, id, kind, node, pulling, secs};
use crate::history::{Happening, IMAGES, SECRETS, Work, found};

pub(crate) const NODES: [&str; 5] = ["n1", "n2", "n3", "n4", FOREIGN];
/// A node without an agent of ours.
pub(crate) const FOREIGN: &str = "f1";
/// What it says that tags mean; nobody has asked it.
pub(crate) const FOREIGN_WORD: &str = "sha256:foreign";
/// What an agent says that was taken over.
pub(crate) const LIE: &str = "sha256:lie";
pub(crate) const LIAR: &str = "n2";
/// A node that has some image of every name.
const HAS_ALL: &str = "n3";
const JOBS: [&str; 3] = ["a", GUEST, OTHER];
const NAMESPACES: [&str; 2] = ["default", "elsewhere"];
const POLICIES: [&str; 2] = ["p", "q"];

/// What a plan changes on nodes, in its own order, as the World that has made it says: a taken order is none.
pub(crate) fn changes(world: &World, plan: &Plan) -> Vec<(NodeName, BTreeMap<Key, Option<Order>>)> {
    let orders = |write: &OrderWrite| write.keys.iter().map(|key| (*key, world.order(&write.node, *key))).collect();
    plan.orders.iter().map(|write| (write.node.clone(), orders(write))).collect()
}

/// What the API server keeps of one agent.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentObject {
    pub(crate) orders: BTreeMap<Key, Order>,
    pub(crate) reports: BTreeMap<Key, Report>,
    pub(crate) features: BTreeSet<String>,
    pub(crate) peer: Option<PeerFacts>,
}

/// A write that was planned and has not arrived.
#[derive(Clone, Debug)]
enum Write {
    Orders(NodeName, BTreeMap<Key, Option<Order>>),
    Status(Box<Outcome>),
}

/// All that the API server has.
#[derive(Clone, Debug)]
struct Saved {
    jobs: BTreeMap<&'static str, Job>,
    agents: BTreeMap<&'static str, AgentObject>,
}

#[derive(Clone, Debug)]
pub(crate) struct Sim {
    pub(crate) world: World,
    pub(crate) now: Timestamp,
    pub(crate) jobs: BTreeMap<&'static str, Job>,
    pub(crate) nodes: BTreeMap<&'static str, Node>,
    pub(crate) agents: BTreeMap<&'static str, AgentObject>,
    /// The peer groups of nodes that have one of their own.
    groups: BTreeMap<&'static str, &'static str>,
    cordoned: BTreeSet<&'static str>,
    /// The content of each Secret.
    pub(crate) secrets: BTreeMap<&'static str, u8>,
    under_way: VecDeque<Write>,
    /// Answers to writes of jobs that are on their way: the object as it was then, and its version.
    late: VecDeque<(Job, u64)>,
    /// The version of each job's object, and the newest one that the World has seen.
    versions: BTreeMap<&'static str, (u64, u64)>,
    /// Objects that were ever made, for their uids.
    made: u64,
    saved: Option<Box<Saved>>,
    pub(crate) policies: BTreeMap<&'static str, Restriction>,
    /// The namespaces that have the label of a team.
    teams: BTreeSet<&'static str>,
    /// Whether policies cannot be listed.
    pub(crate) blind: bool,
    /// Kinds of jobs, by number, whose objects nobody hears of.
    frozen: BTreeSet<usize>,
    /// Whether the API server ever lost what it had acknowledged.
    pub(crate) rolled_back: bool,
    /// Since when the World has listened: the silence before does not count.
    pub(crate) listening: Timestamp,
    /// Every event that the World was given, for those who want to give them to another.
    pub(crate) events: Vec<Event>,
    /// The stage that was last said of each job.
    said: BTreeMap<JobId, Stage>,
    /// Registries move tags: every fourth answer is a new digest.
    answers: u64,
    /// Whether plans say which nodes to look at.
    pub(crate) tells_nodes: bool,
}

impl Sim {
    pub(crate) fn new() -> Self {
        let mut sim = Self {
            world: relaying(),
            now: at(0),
            jobs: BTreeMap::new(),
            nodes: BTreeMap::new(),
            agents: BTreeMap::new(),
            groups: BTreeMap::new(),
            cordoned: BTreeSet::new(),
            secrets: BTreeMap::new(),
            under_way: VecDeque::new(),
            late: VecDeque::new(),
            versions: BTreeMap::new(),
            made: 0,
            saved: None,
            policies: BTreeMap::new(),
            teams: BTreeSet::new(),
            blind: false,
            frozen: BTreeSet::new(),
            rolled_back: false,
            listening: at(0),
            events: Vec::new(),
            said: BTreeMap::new(),
            answers: 0,
            tells_nodes: false,
        };
        for n in 0..NAMESPACES.len() {
            sim.happen(&Happening::Label { namespace: n, team: false });
        }
        for n in 0..NODES.len() {
            sim.happen(&Happening::Node { node: n, ready: true, main: true });
            sim.happen(&Happening::Agent { node: n });
        }
        sim
    }

    fn tell(&mut self, event: Event) {
        self.events.push(event.clone());
        self.world.apply(event);
    }

    /// Makes it happen. Returns the plan, where that is what happened.
    pub(crate) fn happen(&mut self, happening: &Happening) -> Option<Plan> {
        match happening {
            Happening::Create { job, wish } => {
                let name = JOBS[job % JOBS.len()];
                if !self.jobs.contains_key(name) {
                    self.made += 1;
                    let uid = format!("{name}-{}", self.made);
                    self.put_job(name, Job { uid, ..wish.job(name, self.now) });
                }
            }
            Happening::Edit { job, wish } => {
                let name = JOBS[job % JOBS.len()];
                if let Some(old) = self.jobs.get(name) {
                    let mut job = Job { uid: old.uid.clone(), ..wish.job(name, old.created) };
                    (job.suspend, job.generation) = (old.suspend, old.generation + 1);
                    // An edit of a job that ended is a new run.
                    job.started = old.started.filter(|_| old.ended.is_none() && !job.is_standing());
                    if let (Some(pick), Some(old)) = (&mut job.pick, &old.pick) {
                        pick.chosen.clone_from(&old.chosen);
                    }
                    if job.is_standing() && old.is_standing() {
                        job.names = old.names.clone();
                    }
                    self.put_job(name, job);
                }
            }
            Happening::Suspend { job, suspend } => {
                let name = JOBS[job % JOBS.len()];
                if let Some(mut job) = self.jobs.get(name).cloned() {
                    job.suspend = *suspend;
                    self.put_job(name, job);
                }
            }
            Happening::Delete { job } => {
                let name = JOBS[job % JOBS.len()];
                if self.jobs.remove(name).is_some() {
                    // A status is written to the object that it is about, not to the next one of the same name.
                    let about = |write: &Write| matches!(write, Write::Status(outcome) if outcome.job == id(name));
                    self.under_way.retain(|write| !about(write));
                    if !self.is_frozen(&id(name)) {
                        self.tell(Event::JobGone(id(name)));
                    }
                }
            }
            Happening::Tag { job, node, tag } => {
                let name = JOBS[job % JOBS.len()];
                if let Some(mut job) = self.jobs.get(name).filter(|job| job.is_standing()).cloned() {
                    let node = NODES[node % NODES.len()].into();
                    let mut names = job.names.as_deref().cloned().unwrap_or_default();
                    match tag {
                        true => names.insert(node, self.now),
                        false => names.remove(&node),
                    };
                    job.names = Some(Arc::new(names));
                    self.put_job(name, job);
                }
            }
            Happening::Node { node: n, ready, main } => {
                let name = NODES[n % NODES.len()];
                let mut node = node(name);
                node.cordoned = self.cordoned.contains(name);
                node.foreign = name == FOREIGN;
                node.ready = *ready;
                node.ready_changed = Some(self.now);
                if !main {
                    node.labels.clear();
                }
                let zone = if n % NODES.len() < 2 { "east" } else { "west" };
                node.labels.insert("topology.kubernetes.io/zone".into(), zone.into());
                if let Some(group) = self.groups.get(name) {
                    node.labels.insert("stoker.dev/peer-group".into(), (*group).into());
                }
                self.nodes.insert(name, node.clone());
                self.tell(Event::Node(node));
            }
            Happening::NodeGone { node } => {
                let name = NODES[node % NODES.len()];
                if self.nodes.remove(name).is_some() {
                    self.tell(Event::NodeGone(name.into()));
                }
            }
            Happening::Agent { node } => {
                let name = NODES[node % NODES.len()];
                if !self.agents.contains_key(name) {
                    self.agents.insert(name, AgentObject::default());
                    self.tell(Event::Orders(name.into(), BTreeMap::new()));
                    self.happen(&Happening::Features { node: *node, sealed: true });
                }
            }
            Happening::AgentGone { node } => {
                let name = NODES[node % NODES.len()];
                // Its object is deleted only when nothing is being written to it: the next patch would be a 404.
                if !self.writing_to(name) && self.agents.remove(name).is_some() {
                    self.tell(Event::AgentGone(name.into()));
                }
            }
            Happening::Work { node, order, result } => self.work(NODES[node % NODES.len()], *order, *result),
            Happening::Secret { secret: n, content } => {
                let name = SECRETS[n % SECRETS.len()];
                match content {
                    Some(content) => self.secrets.insert(name, *content),
                    None => self.secrets.remove(name),
                };
            }
            Happening::Policy { policy, rule } => {
                let name = POLICIES[policy % POLICIES.len()];
                match rule {
                    Some(rule) => self.policies.insert(name, rule.restriction(name)),
                    None => self.policies.remove(name),
                };
                if !self.blind {
                    self.tell(self.all_policies());
                }
            }
            Happening::Label { namespace, team } => {
                let name = NAMESPACES[namespace % NAMESPACES.len()];
                match team {
                    true => self.teams.insert(name),
                    false => self.teams.remove(name),
                };
                self.tell(self.labels(name));
            }
            Happening::Blind => {
                self.blind = true;
                self.tell(Event::PoliciesUnseen("PreheatPolicy"));
            }
            Happening::Sight => self.sight(),
            Happening::Read => self.read(),
            Happening::Features { node, sealed } => {
                let name = NODES[node % NODES.len()];
                if let Some(agent) = self.agents.get_mut(name).filter(|_| name != FOREIGN) {
                    let all = ["look", "resolve", "sealed", "peers"];
                    let all = all.iter().filter(|feature| *sealed || **feature != "sealed");
                    agent.features = all.map(|feature| feature.to_string()).collect();
                    let features = agent.features.clone();
                    self.tell(Event::Features(name.into(), features));
                }
            }
            Happening::Group { node, group } => {
                let name = NODES[node % NODES.len()];
                match group {
                    Some(group) => self.groups.insert(name, group),
                    None => self.groups.remove(name),
                };
                self.node_again(*node);
            }
            Happening::Cordon { node, cordon } => {
                let name = NODES[node % NODES.len()];
                match cordon {
                    true => self.cordoned.insert(name),
                    false => self.cordoned.remove(name),
                };
                self.node_again(*node);
            }
            Happening::Peer { node, facts } => self.publish(NODES[node % NODES.len()], facts.clone()),
            Happening::Peers { facts } => {
                for name in NODES {
                    self.publish(name, Some(facts.clone()));
                }
            }
            Happening::Pass { seconds } => self.now += secs(u64::try_from(*seconds).unwrap()),
            Happening::Plan => return Some(self.plan()),
            Happening::Deliver => self.deliver(),
            Happening::DeliverUnheard => self.deliver_unheard(),
            Happening::LateAnswer => self.late_answer(),
            Happening::LostWrite => {
                if let Some(write) = self.under_way.front().cloned() {
                    self.perform(&write);
                }
            }
            Happening::Save => {
                let (jobs, agents) = (self.jobs.clone(), self.agents.clone());
                self.saved = Some(Box::new(Saved { jobs, agents }));
            }
            Happening::RollBack => self.roll_back(),
            Happening::Freeze { kind: n } => {
                if self.frozen.insert(*n) {
                    self.tell(Event::Freeze(kind(*n)));
                }
            }
            Happening::Thaw { kind } => self.thaw(*kind),
            Happening::Restart => {
                self.under_way.clear();
                self.late.clear();
                self.world = self.restarted();
                self.world.tell_nodes(self.tells_nodes);
                self.listening = at(0);
            }
        }
        None
    }

    /// Something else is known of a node that is there.
    fn node_again(&mut self, node: usize) {
        if let Some(Node { ready, labels, .. }) = self.nodes.get(NODES[node % NODES.len()]) {
            let (ready, main) = (*ready, labels.contains_key("pool"));
            self.happen(&Happening::Node { node, ready, main });
        }
    }

    /// An agent says where it serves, and how fast it is.
    fn publish(&mut self, name: &'static str, facts: Option<PeerFacts>) {
        if let Some(agent) = self.agents.get_mut(name) {
            agent.peer = facts.clone();
            self.tell(Event::Peer(name.into(), facts));
        }
    }

    /// Reads the Secrets that jobs name.
    pub(crate) fn read(&mut self) {
        let wanted = self.world.wanted_secrets();
        self.read_these(&wanted);
    }

    /// Reads these Secrets.
    pub(crate) fn read_these(&mut self, wanted: &WantedSecrets) {
        self.contents(wanted).into_iter().for_each(|event| self.tell(event));
    }

    /// What is found in the Secrets that the jobs of a World name.
    fn contents(&self, wanted: &WantedSecrets) -> Vec<Event> {
        let read = wanted.iter().map(|(id, wanted)| {
            let found = found(self.secrets.get(id.name.as_str()).copied());
            Event::Secret(id.clone(), wanted.images.keys().map(|key| (*key, found.clone())).collect(), self.now)
        });
        read.collect()
    }

    /// The object is this from now on, and a watch says so.
    fn put_job(&mut self, name: &'static str, job: Job) {
        let version = self.store_job(name, job.clone());
        if !self.is_frozen(&job.id) {
            self.see_job(name, job, version);
        }
    }

    /// Whether nobody hears of the objects of this job's kind.
    pub(crate) fn is_frozen(&self, id: &JobId) -> bool {
        self.frozen.iter().any(|n| kind(*n).has(id))
    }

    /// Whether nothing is decided about this job.
    pub(crate) fn stands_still(&self, id: &JobId) -> bool {
        self.blind || self.is_frozen(id)
    }

    /// The objects of a kind are listed, and watched again.
    fn thaw(&mut self, n: usize) {
        if !self.frozen.remove(&n) {
            return;
        }
        for name in JOBS.into_iter().filter(|name| kind(n).has(&id(name))) {
            match self.jobs.get(name).cloned() {
                Some(job) => {
                    let (version, _) = self.versions.get(name).copied().unwrap_or_default();
                    self.see_job(name, job, version);
                }
                None if self.world.job(&id(name)).is_some() => self.tell(Event::JobGone(id(name))),
                None => {}
            }
        }
        self.tell(Event::Thaw(kind(n)));
    }

    fn all_policies(&self) -> Event {
        Event::Policies(self.policies.values().cloned().collect())
    }

    fn labels(&self, namespace: &'static str) -> Event {
        Event::Namespace(namespace.into(), self.labels_of(namespace))
    }

    /// The labels of a namespace.
    pub(crate) fn labels_of(&self, namespace: &str) -> Option<BTreeMap<String, String>> {
        let labels = self.teams.contains(namespace).then(|| ("pool".to_string(), "team".to_string()));
        NAMESPACES.contains(&namespace).then(|| labels.into_iter().collect())
    }

    /// Policies are listed again.
    fn sight(&mut self) {
        if std::mem::take(&mut self.blind) {
            self.tell(self.all_policies());
        }
    }

    /// Everything can be listed again.
    pub(crate) fn thaw_all(&mut self) {
        self.sight();
        (0..KINDS.len()).for_each(|kind| self.thaw(kind));
    }

    fn store_job(&mut self, name: &'static str, job: Job) -> u64 {
        self.jobs.insert(name, job);
        let (version, _) = self.versions.entry(name).or_default();
        *version += 1;
        *version
    }

    fn see_job(&mut self, name: &'static str, job: Job, version: u64) {
        let (_, seen) = self.versions.entry(name).or_default();
        if *seen <= version {
            *seen = version;
            self.tell(Event::Job(Box::new(job)));
        }
    }

    /// An answer is only about an object that is known to be there.
    fn late_answer(&mut self) {
        let Some((job, version)) = self.late.pop_front() else { return };
        let Some(name) = JOBS.into_iter().find(|name| id(name) == job.id) else { return };
        if self.world.job(&job.id).is_some_and(|known| known.uid == job.uid) {
            self.see_job(name, job, version);
        }
    }

    fn roll_back(&mut self) {
        let Some(saved) = self.saved.clone() else { return };
        self.thaw_all();
        self.rolled_back = true;
        let gone: Vec<&'static str> = self.jobs.keys().copied().filter(|name| !saved.jobs.contains_key(name)).collect();
        gone.iter().for_each(|name| self.tell(Event::JobGone(id(name))));
        self.late.clear();
        // A fresh list wins over memory, whatever the versions say.
        self.versions.clear();
        self.jobs.clear();
        for (name, job) in saved.jobs {
            self.put_job(name, job);
        }
        let gone: Vec<&'static str> =
            self.agents.keys().copied().filter(|name| !saved.agents.contains_key(name)).collect();
        for name in gone {
            self.under_way.retain(|write| !matches!(write, Write::Orders(node, _) if &**node == name));
            self.agents.remove(name);
            self.tell(Event::AgentGone(name.into()));
        }
        for (name, agent) in saved.agents {
            if !self.writing_to(name) {
                self.tell(Event::Orders(name.into(), agent.orders.clone()));
            }
            self.tell(Event::Reports(name.into(), agent.reports.clone()));
            self.tell(Event::Features(name.into(), agent.features.clone()));
            self.tell(Event::Peer(name.into(), agent.peer.clone()));
            self.agents.insert(name, agent);
        }
        self.world.listening(self.now);
        self.listening = self.now;
    }

    pub(crate) fn plan(&mut self) -> Plan {
        let plan = self.world.plan(self.now);
        self.said.extend(plan.outcomes.iter().map(|outcome| (outcome.job.clone(), outcome.stage)));
        self.under_way
            .extend(changes(&self.world, &plan).into_iter().map(|(node, orders)| Write::Orders(node, orders)));
        self.under_way.extend(plan.outcomes.iter().cloned().map(Box::new).map(Write::Status));
        plan
    }

    pub(crate) fn said(&self, id: &JobId) -> Option<Stage> {
        self.said.get(id).copied()
    }

    fn writing_to(&self, name: &str) -> bool {
        self.under_way.iter().any(|write| matches!(write, Write::Orders(node, _) if &**node == name))
    }

    /// The oldest write arrives, and its answer with it.
    fn deliver(&mut self) {
        let Some(write) = self.under_way.pop_front() else { return };
        let answer = self.perform(&write);
        match write {
            Write::Orders(node, _) => {
                let Some(name) = NODES.into_iter().find(|name| **name == *node) else { return };
                self.hear_orders(name);
            }
            Write::Status(_) => {
                if let Some((name, job, version)) = answer {
                    self.see_job(name, job, version);
                }
            }
        }
    }

    /// The oldest write arrives; of a job's status the answer comes later.
    fn deliver_unheard(&mut self) {
        if !matches!(self.under_way.front(), Some(Write::Status(_))) {
            return;
        }
        let Some(write) = self.under_way.pop_front() else { return };
        if let Some((_, job, version)) = self.perform(&write) {
            self.late.push_back((job, version));
        }
    }

    /// What is ordered on a node is heard of when no write of it is under way.
    fn hear_orders(&mut self, name: &'static str) {
        let orders = self.agents.get(name).map(|agent| agent.orders.clone());
        if let Some(orders) = orders.filter(|_| !self.writing_to(name)) {
            self.tell(Event::Orders(name.into(), orders));
        }
    }

    /// What a write does to the objects. Of a job the object as it is then, with its version.
    fn perform(&mut self, write: &Write) -> Option<(&'static str, Job, u64)> {
        match write {
            Write::Orders(node, changes) => {
                let name = NODES.into_iter().find(|name| **name == **node)?;
                let agent = self.agents.get_mut(name)?;
                for (key, change) in changes.clone() {
                    match change {
                        Some(order) => agent.orders.insert(key, order),
                        None => agent.orders.remove(&key),
                    };
                }
                None
            }
            Write::Status(outcome) => {
                let name = JOBS.into_iter().find(|name| id(name) == outcome.job)?;
                let mut job = self.jobs.get(name).cloned()?;
                if outcome.generation != job.generation {
                    return None; // what is said of an edited job comes after what was said of it before
                }
                acknowledge(&mut job, outcome);
                let version = self.store_job(name, job.clone());
                Some((name, job, version))
            }
        }
    }

    pub(crate) fn deliver_all(&mut self) {
        while !self.under_way.is_empty() {
            self.deliver();
        }
        while !self.late.is_empty() {
            self.late_answer();
        }
    }

    /// An agent goes on with one of its orders.
    fn work(&mut self, name: &'static str, order: usize, work: Work) {
        let Some(agent) = self.agents.get_mut(name) else { return };
        let open = agent.orders.iter().filter(|(key, order)| {
            !order.hold && agent.reports.get(key).is_none_or(|report| !report.ended() || report.asked != order.asked)
        });
        let open: Vec<(Key, Order)> = open.map(|(key, order)| (*key, order.clone())).collect();
        let Some((key, order)) = open.get(order % open.len().max(1)).cloned() else { return };
        let earlier = agent.reports.get(&key).filter(|report| report.asked == order.asked).cloned();
        let mut report = earlier.unwrap_or_else(|| pulling(order.asked, self.now));
        report.updated = self.now;
        report.bytes.total = 100;
        report.jobs = order.jobs.clone();
        let content = order.terms.pull.policy == Policy::IfNotPresent;
        let fail = |report: &mut Report, reason: Reason| {
            report.phase = Phase::Failed;
            report.reason = Some(reason);
        };
        match (work, &order.ask) {
            (Work::Lie, _) if name != LIAR => return,
            (
                Work::Starve | Work::Lag | Work::Accuse | Work::Move | Work::Rest | Work::TimeOut,
                Ask::Look | Ask::Resolve,
            ) => return,
            (Work::Begin, _) => report.bytes.done = 50,
            (Work::Succeed, Ask::Resolve | Ask::Look) if content => report.phase = Phase::Succeeded,
            (_, Ask::Look) => fail(&mut report, Reason::Unresolved),
            (Work::Unable, Ask::Resolve) => fail(&mut report, Reason::Unsupported),
            (Work::Resolve | Work::Succeed, Ask::Resolve) => {
                report.phase = Phase::Resolved;
                report.pin = Some(answer(&mut self.answers, &order));
            }
            (Work::Resolve | Work::Succeed, Ask::Fetch(None))
                if report.pin.is_none() && (!content || work == Work::Resolve) =>
            {
                report.pin = Some(answer(&mut self.answers, &order));
            }
            (Work::Resolve, Ask::Fetch(_)) => {}
            (Work::Succeed, Ask::Fetch(pin)) => {
                report.phase = Phase::Succeeded;
                report.digest = pin.as_ref().or(report.pin.as_ref()).map(|pin| pin.digest.as_str().into());
                report.bytes.done = 100;
                report.finished = Some(self.now);
            }
            (Work::Starve | Work::Lag | Work::Accuse | Work::TimeOut, _) if order.upstream => return,
            (Work::Starve | Work::TimeOut, _) => {
                let starves = work == Work::Starve;
                report.reason = Some(if starves { Reason::NoSource } else { Reason::Timeout });
                let from = order.peers.first().map(|peer| Origin::Peer(peer.node.clone()));
                report.from = if starves { report.from } else { from };
                report.bad = order.peers.iter().map(|peer| peer.node.clone()).collect();
            }
            (Work::Lag, _) => report.reason = Some(Reason::Lagging),
            (Work::Accuse, _) => {
                report.reason = Some(Reason::PeerLied);
                let listed = order.peers.iter().take(1).map(|peer| peer.node.clone());
                // One accuses everybody, and each of them twice.
                let all = NODES.into_iter().chain(NODES).map(NodeName::from).filter(|_| name == LIAR);
                report.bad = listed.chain(all).collect();
            }
            (Work::Move, _) => {
                let source: Option<NodeName> = order.peers.last().map(|peer| peer.node.clone());
                report.from = source.map(Origin::Peer);
                report.reason = None;
            }
            (Work::Rest, _) => report.reason = Some(Reason::Unreachable),
            // It was not asked, and says so of an ask that is still to come.
            (Work::Lie, _) => {
                let asked = if report.asked.as_second() % 2 == 0 { order.asked } else { self.now + secs(5) };
                report.pin = Some(Pin::new(asked, LIE));
                // And now and then of one that no order will ever make.
                match self.answers % 4 {
                    0 => report.asked = Timestamp::MAX,
                    1 => (report.asked, report.phase) = (self.now + secs(86_400), Phase::Failed),
                    _ => {}
                }
            }
            (Work::Refuse, _) => fail(&mut report, Reason::Unauthorized),
            (Work::Fail | Work::Unable, _) => fail(&mut report, Reason::NotFound),
        }
        if name == FOREIGN && report.pin.is_some() {
            report.pin = Some(Pin::new(order.asked, FOREIGN_WORD));
        }
        report.present = name == HAS_ALL && !content && report.phase != Phase::Succeeded;
        agent.reports.insert(key, report);
        // What it has to say no more goes along: it is no reason to write.
        agent.reports.retain(|key, _| agent.orders.contains_key(key));
        let reports = agent.reports.clone();
        self.tell(Event::Reports(name.into(), reports));
    }

    /// A World that was made from the API objects, and that has read the Secrets.
    pub(crate) fn restarted(&self) -> World {
        let mut world = relaying();
        self.objects().into_iter().for_each(|event| world.apply(event));
        let wanted = world.wanted_secrets();
        self.contents(&wanted).into_iter().for_each(|event| world.apply(event));
        world
    }

    /// The API objects as events, as far as they can be listed.
    pub(crate) fn objects(&self) -> Vec<Event> {
        let policies = if self.blind { Event::PoliciesUnseen("PreheatPolicy") } else { self.all_policies() };
        let policies = NAMESPACES.into_iter().map(|name| self.labels(name)).chain([policies]);
        let frozen = self.frozen.iter().map(|n| Event::Freeze(kind(*n)));
        let jobs = self.jobs.values().filter(|job| !self.is_frozen(&job.id));
        let jobs = jobs.cloned().map(|job| Event::Job(Box::new(job)));
        let nodes = self.nodes.values().cloned().map(Event::Node);
        let agents = self.agents.iter().flat_map(|(name, agent)| {
            [
                Event::Orders((*name).into(), agent.orders.clone()),
                Event::Reports((*name).into(), agent.reports.clone()),
                Event::Features((*name).into(), agent.features.clone()),
                Event::Peer((*name).into(), agent.peer.clone()),
            ]
        });
        policies.chain(frozen).chain(jobs).chain(nodes).chain(agents).collect()
    }

    /// Every agent finishes every order that it has; one fails and one is refused.
    pub(crate) fn all_work(&mut self) {
        let ends = [Work::Succeed, Work::Fail, Work::Succeed, Work::Refuse, Work::Refuse];
        for (name, end) in NODES.into_iter().zip(ends) {
            // A question and an order for each image.
            for _ in 0..2 * IMAGES.len() {
                self.work(name, 0, Work::Resolve);
                self.work(name, 0, end);
            }
        }
    }
}

/// A World in which nodes that serve others are read from.
pub(crate) fn relaying() -> World {
    let mut world = World::new();
    world.relay(true);
    world
}

/// What a registry says to the node with this order.
fn answer(answers: &mut u64, order: &Order) -> Pin {
    *answers += 1;
    Pin::new(order.asked, format!("sha256:{}", *answers / 4))
}

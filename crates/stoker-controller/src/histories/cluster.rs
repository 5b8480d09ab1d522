//! The cluster: objects on paper, the controller, its watches and writes, the agents, and one clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use jiff::Timestamp;
use serde_json::json;
use stoker_api::HandOver;
use stoker_core::World;
use stoker_testbed::paper::{Paper, PaperId};
use tokio::sync::{Notify, mpsc, watch};

use super::agents::{self, PaperAgent};
use super::ears::{Ear, Feed};
use super::happenings::{Fate, Happening};
use super::laws::{self, Laws};
use super::manager::{Manager, Managing};
use super::policies;
use super::rude::Marks;
use super::users::{KINDS, NAMESPACES, place};
use super::wire;
use crate::hearing::Hearing;
use crate::leading::Leading;
use crate::metrics::{LeaderMetrics, Metrics};
use crate::moment::Moments;
use crate::owed::Owed;
use crate::run::Shell;
use crate::secrets::Secrets;
use crate::watch::Fact;
use crate::watches::Input;
use crate::writer::{Done, Id, Numbered};

pub(super) const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];
const PODS: usize = 4;
/// Histories begin at this second, so that there is time before it.
const BEGIN: i64 = 1_800_000_000;

pub(super) struct Cluster {
    pub(super) paper: Paper,
    pub(super) shell: Shell,
    clock: Arc<AtomicI64>,
    pub(super) ears: BTreeMap<Feed, Ear>,
    pub(super) moments: Moments,
    writes: mpsc::UnboundedReceiver<Numbered>,
    /// Writes that were not sent, by object.
    pub(super) waiting: BTreeMap<Id, VecDeque<Numbered>>,
    /// The number of the last write that was handed out.
    pub(super) last_write: u64,
    /// Answers that are on their way, one an object at most.
    pub(super) late: BTreeMap<Id, Done>,
    pub(super) agents: BTreeMap<&'static str, PaperAgent>,
    pub(super) marks: Marks,
    pub(super) laws: Laws,
    /// Kruise's manager, which keeps ImagePullJobs and the specs of NodeImages in half a hand-over.
    pub(super) manager: Option<Manager>,
    /// How often a controller began to lead.
    terms: i64,
    /// When it plans again even if nothing happens.
    pub(super) wake: Option<Timestamp>,
    /// What happened, for people.
    pub(super) log: Vec<String>,
}

/// A controller that knows nothing, in half a hand-over or not.
fn controller(clock: &Arc<AtomicI64>, terms: i64, half: bool) -> (Shell, mpsc::UnboundedReceiver<Numbered>) {
    let time = clock.clone();
    let clock: stoker_core::Clock =
        Arc::new(move || Timestamp::from_millisecond(time.load(Ordering::Relaxed)).unwrap_or_default());
    let (writes, written) = mpsc::unbounded_channel();
    let secrets = Secrets::new(watch::Sender::new(Arc::default()), mpsc::unbounded_channel().0);
    let metrics = LeaderMetrics::new(&Metrics::new());
    let mut hearing = Hearing::new(clock, World::new(), metrics, terms);
    if half {
        hearing.view.hand_over(&[("kruise", HandOver::Half)].into());
    }
    let leading = Leading::new(secrets, Arc::new(Notify::new()), Owed::default(), writes);
    (Shell { hearing, leading }, written)
}

impl Cluster {
    /// One in which everything is ours, or in which Kruise's manager goes on (`half`).
    pub(super) fn new(half: bool) -> Self {
        let clock = Arc::new(AtomicI64::new(BEGIN * 1000));
        let (shell, writes) = controller(&clock, 1, half);
        let mut cluster = Self {
            paper: Paper::default(),
            shell,
            clock,
            ears: BTreeMap::new(),
            moments: Moments::default(),
            writes,
            waiting: BTreeMap::new(),
            last_write: 0,
            late: BTreeMap::new(),
            agents: BTreeMap::new(),
            marks: Marks::default(),
            laws: Laws::default(),
            manager: half.then(Manager::default),
            terms: 1,
            wake: None,
            log: Vec::new(),
        };
        (0..NODES.len()).for_each(|node| cluster.node(node, true, true));
        (0..PODS).for_each(|pod| cluster.pod(pod, pod, pod % 2 == 0, false));
        let now = cluster.now();
        policies::namespaces(&mut cluster.paper, now);
        cluster.manage(Managing::Round);
        cluster.follow();
        cluster.hear_open(true);
        cluster
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_millisecond(self.clock.load(Ordering::Relaxed)).unwrap()
    }

    pub(super) fn pass(&mut self, seconds: i64) {
        self.clock.fetch_add(seconds * 1000, Ordering::Relaxed);
    }

    pub(super) fn say(&mut self, text: String) {
        let second = self.now().as_second() - BEGIN;
        self.log.push(format!("{second:>6} s  {text}"));
    }

    /// Makes it happen, and says which law it broke.
    pub(super) fn happen(&mut self, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::Hear { .. } | Happening::Deliver { .. } | Happening::Work { .. } => {}
            other => self.say(format!("{other:?}")),
        }
        let now = self.now();
        match happening {
            Happening::Wish { kind, name, wish } => {
                let (kind, (namespace, name)) = (kind % KINDS.len(), place(*name));
                let object = wish.object(kind, namespace, name);
                let id = PaperId::new(KINDS[kind].0, namespace, name);
                match self.paper.get(&id).is_some() {
                    true => {
                        let spec =
                            replace(&wire::field(self.paper.get(&id).unwrap(), "/spec").clone(), &object["spec"]);
                        self.paper.patch(&id, &json!({ "spec": spec }), false).unwrap();
                    }
                    false => {
                        self.paper.create(serde_json::from_value(object).unwrap(), now).unwrap();
                    }
                }
            }
            Happening::Delete { kind, name } => {
                let (namespace, name) = place(*name);
                let id = PaperId::new(KINDS[kind % KINDS.len()].0, namespace, name);
                let _ = self.paper.delete(&id, None, now);
            }
            Happening::Node { node, ready, pool } => self.node(*node, *ready, *pool),
            Happening::NodeGone { node } => {
                let name = NODES[node % NODES.len()];
                let _ = self.paper.delete(&PaperId::new("Node", "", name), None, now);
                let _ = self.paper.delete(&agents::id(name), None, now);
                self.agents.remove(name);
            }
            Happening::Pod { pod, node, app, ended } => self.pod(*pod, *node, *app, *ended),
            Happening::PodGone { pod } => {
                let _ = self.paper.delete(&pod_id(*pod), None, now);
            }
            Happening::Policy { policy, content } => self.policy(*policy, *content),
            Happening::Rude { object, rudeness } => self.be_rude(*object, *rudeness),
            Happening::Collect => self.paper.collect(now),
            Happening::Read { node } => {
                let name = NODES[node % NODES.len()];
                if let Some(agent) = self.agents.get_mut(name) {
                    agent.read(&self.paper, name);
                }
            }
            Happening::Work { node, order, work } => {
                let name = NODES[node % NODES.len()];
                let did = self.agents.get_mut(name).and_then(|agent| agent.work(*order, *work, now));
                did.into_iter().for_each(|did| self.say(format!("{name} {work:?}: {did}")));
            }
            Happening::Say { node, times } => {
                let name = NODES[node % NODES.len()];
                if let Some(agent) = self.agents.get(name) {
                    agent.say(&mut self.paper, name, *times, now);
                }
            }
            Happening::Pass { seconds } => {
                self.pass(*seconds);
                self.laws.passed(*seconds);
                if *seconds < 0 {
                    // No moment comes twice.
                    self.clock.fetch_sub(10, Ordering::Relaxed);
                }
            }
            Happening::Hear { ear, times } => {
                for _ in 0..*times {
                    self.hear(*ear);
                }
            }
            Happening::Deafen { ear, lists } => {
                let inputs = self.ear(*ear).deafen(*lists);
                inputs.into_iter().for_each(|input| self.tell(input));
            }
            Happening::Refuse { ear } => {
                let feeds: Vec<Feed> = self.ears.keys().filter(|feed| feed.may_be_refused()).cloned().collect();
                let feed = &feeds[ear % feeds.len()];
                let inputs = self.ears.get_mut(feed).map(Ear::refuse).unwrap_or_default();
                inputs.into_iter().for_each(|input| self.tell(input));
            }
            Happening::Turn => self.turn()?,
            Happening::Deliver { write, fate } => self.deliver(*write, *fate)?,
            Happening::Answer { answer } => {
                let ids: Vec<Id> = self.late.keys().cloned().collect();
                if let Some(done) = ids.get(answer % ids.len().max(1)).and_then(|id| self.late.remove(id)) {
                    self.acknowledge(done);
                }
            }
            Happening::Flow { writes } => {
                // Twice, so that what is read of jobs is listed, too.
                for _ in 0..2 {
                    self.hear_open(false);
                    self.turn()?;
                }
                for _ in 0..*writes {
                    self.deliver(0, Fate::Done)?;
                }
            }
            Happening::Bustle { node, work } => {
                let name = NODES[node % NODES.len()];
                if let Some(mut agent) = self.agents.remove(name) {
                    agent.read(&self.paper, name);
                    let did: Vec<String> = (0..4).filter_map(|order| agent.work(order, *work, now)).collect();
                    self.say(format!("{name} {}", did.join("; ")));
                    agent.say(&mut self.paper, name, 1, now);
                    self.agents.insert(name, agent);
                }
            }
            Happening::Restart { arrive } => self.restart(*arrive)?,
            Happening::Manage { managing } => self.manage(*managing),
            Happening::Make { fake, tag, making } => self.make(*fake, *tag, *making),
        }
        self.check()
    }

    /// A node, with an agent.
    pub(super) fn node(&mut self, node: usize, ready: bool, pool: bool) {
        let (name, now) = (NODES[node % NODES.len()], self.now());
        let ready = if ready { "True" } else { "Unknown" };
        let pool = if pool { "main" } else { "other" };
        let content = json!({
            "metadata": { "labels": { "pool": pool } },
            "status": { "conditions": [{ "type": "Ready", "status": ready, "lastTransitionTime": now.to_string() }] },
        });
        let id = PaperId::new("Node", "", name);
        if self.paper.get(&id).is_none() {
            let object = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
            self.paper.create(serde_json::from_value(object).unwrap(), now).unwrap();
        }
        self.paper.patch(&id, &content, false).unwrap();
        agents::register(&mut self.paper, name, now);
        self.agents.entry(name).or_default();
    }

    fn pod(&mut self, pod: usize, node: usize, app: bool, ended: bool) {
        let id = pod_id(pod);
        let node = NODES.get(node % (NODES.len() + 1)).copied().unwrap_or_default();
        let phase = if ended { "Succeeded" } else { "Running" };
        let content = json!({
            "metadata": { "labels": { "app": if app { "web" } else { "db" } } },
            "spec": { "nodeName": node }, "status": { "phase": phase },
        });
        if self.paper.get(&id).is_none() {
            let object = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": id.name, "namespace": id.namespace } });
            self.paper.create(serde_json::from_value(object).unwrap(), self.now()).unwrap();
        }
        self.paper.patch(&id, &content, false).unwrap();
    }

    fn ear(&mut self, which: usize) -> &mut Ear {
        let count = self.ears.len();
        self.ears.values_mut().nth(which % count).unwrap()
    }

    fn hear(&mut self, which: usize) {
        let count = self.ears.len();
        let Some(ear) = self.ears.values_mut().nth(which % count) else { return };
        for input in ear.hear(&self.paper, &self.moments) {
            self.tell(input);
        }
    }

    /// The controller hears it.
    fn tell(&mut self, input: Input) {
        if let Input::Row(_, Fact::There(row, _)) = &input {
            self.laws.told(&row.uid, self.last_write);
        }
        self.shell.hear(input);
    }

    /// Everything that watches have to say, and all late answers.
    pub(super) fn hear_all(&mut self) {
        std::mem::take(&mut self.late).into_values().for_each(|done| self.acknowledge(done));
        self.hear_open(true);
    }

    /// Everything that watches have to say that are not interrupted, or all of them.
    pub(super) fn hear_open(&mut self, all: bool) {
        let mut ears = std::mem::take(&mut self.ears);
        for ear in ears.values_mut() {
            while (all || ear.is_open()) && !ear.is_up_to_date(&self.paper) {
                ear.hear(&self.paper, &self.moments).into_iter().for_each(|input| self.tell(input));
            }
        }
        self.ears = ears;
    }

    /// Watches what is wanted, and nothing else.
    fn follow(&mut self) {
        let wanted: BTreeSet<Feed> = self.shell.hearing.view.wanted().into_iter().map(Feed::Query).collect();
        let unwanted: Vec<Feed> = self.ears.keys().filter(|feed| !wanted.contains(feed)).cloned().collect();
        for feed in unwanted {
            if let Feed::Query(query) = &feed {
                self.shell.hearing.forget(query);
                self.ears.remove(&feed);
            }
        }
        for feed in wanted.into_iter().chain([Feed::Nodes, Feed::NodePreheats]) {
            self.ears.entry(feed.clone()).or_insert_with(|| Ear::new(feed));
        }
    }

    /// One turn of the controller's loop.
    pub(super) fn turn(&mut self) -> Result<(), String> {
        if let Some(why) = self.shell.hearing.overtaken() {
            return Err(format!("the controller steps down: {why:?}"));
        }
        self.shell.hearing.settle();
        self.follow();
        let now = self.now();
        self.wake = None;
        let before = laws::asked(&self.shell.hearing.world);
        if let Some(led) = self.shell.lead() {
            self.wake = led.wake;
            self.laws.planned(&before, &self.shell.hearing.world, now)?;
        }
        while let Ok(write) = self.writes.try_recv() {
            self.queue(write);
        }
        while self.shell.leading.owes() {
            if let Some(write) = self.shell.leading.next_owed(&mut self.shell.hearing) {
                self.queue(write);
            }
        }
        Ok(())
    }

    /// The controller ends, and another one begins. Of the writes that were on their way some arrive.
    pub(super) fn restart(&mut self, arrive: usize) -> Result<(), String> {
        for (_, mut waiting) in std::mem::take(&mut self.waiting).into_iter().take(arrive) {
            if let Some((number, write)) = waiting.pop_front() {
                self.perform(number, &write)?;
            }
        }
        self.late.clear();
        self.laws.forget_told();
        self.last_write = 0;
        self.terms += 1;
        let (shell, writes) = controller(&self.clock, self.terms, self.manager.is_some());
        (self.shell, self.writes) = (shell, writes);
        self.ears.clear();
        self.follow();
        Ok(())
    }
}

fn pod_id(pod: usize) -> PaperId {
    PaperId::new("Pod", NAMESPACES[pod / 2 % NAMESPACES.len()], &format!("pod{}", pod % PODS))
}

/// The merge patch that makes the second value of the first.
pub(super) fn replace(from: &serde_json::Value, to: &serde_json::Value) -> serde_json::Value {
    let (Some(old), Some(new)) = (from.as_object(), to.as_object()) else { return to.clone() };
    let gone = old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), serde_json::Value::Null));
    let set = new.iter().map(|(key, value)| (key.clone(), replace(old.get(key).unwrap_or(&json!(null)), value)));
    serde_json::Value::Object(gone.chain(set).collect())
}

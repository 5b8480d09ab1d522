//! What was heard: objects become rows of the View and facts of the World. Knows how surely everything is known, and whether the
//! API server has gone back to an older state.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::ResourceExt as _;
use stoker_api::native::NodeObject;
use stoker_api::view::{Heard, ObjectName, Query, SeenRow};
use stoker_api::{Dialect, View};
use stoker_core::{Clock, Event, Reason, World, model};
use tokio::time::Instant;

use crate::facts;
use crate::metrics::LeaderMetrics;
use crate::moment::Source;
use crate::peers::{self, PeerBook};
use crate::sight::{Sight, Sights};
use crate::watch::Fact;
use crate::watches::HeardNode;

/// Kinds without which nothing can be planned: silence, deadlines and ends would be guesses.
const BASE: [&str; 2] = [NODE, NODE_PREHEAT];
const NODE: &str = "Node";
const NODE_PREHEAT: &str = "NodePreheat";

/// Everything that is known.
pub(crate) struct Hearing {
    pub(crate) clock: Clock,
    /// When it began to hear. How long ago something was heard is told by this, and not by the clock, which somebody may set.
    begun: Instant,
    pub(crate) world: World,
    pub(crate) view: View,
    pub(crate) metrics: LeaderMetrics,
    /// Where nodes serve images to each other.
    peers: PeerBook,
    /// Whether nodes are told to read from each other.
    pub(crate) relays: bool,
    /// Of NodePreheats.
    node_sights: Sights<String>,
    /// Of all other objects that are watched.
    sights: BTreeMap<Query, Sights<ObjectName>>,
    /// Kinds of the base of which not everything is known: the first list is not complete, or the watch is interrupted.
    unheard: BTreeSet<&'static str>,
    /// Ours, once every object was seen: higher than any before.
    pub(crate) epoch: Option<i64>,
    /// The highest that was seen.
    highest: i64,
    /// The API server has lost something that is known here.
    rolled_back: bool,
}

/// Why a leader must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overtaken {
    /// The API server went back to an older state.
    RolledBack,
    /// A controller with this epoch writes orders.
    Epoch(i64),
}

impl Hearing {
    /// Nothing is known. `highest` is the epoch that nobody's orders can have passed.
    pub(crate) fn new(clock: Clock, world: World, metrics: LeaderMetrics, highest: i64) -> Self {
        Self {
            clock,
            begun: Instant::now(),
            world,
            view: View::default(),
            metrics,
            peers: PeerBook::default(),
            relays: false,
            node_sights: Sights::default(),
            sights: BTreeMap::new(),
            unheard: BASE.into(),
            epoch: None,
            highest,
            rolled_back: false,
        }
    }

    /// Why this controller must stop leading, if it must.
    pub(crate) fn overtaken(&self) -> Option<Overtaken> {
        let overtaken = self.epoch.filter(|epoch| *epoch < self.highest).map(|_| Overtaken::Epoch(self.highest));
        if self.rolled_back { Some(Overtaken::RolledBack) } else { overtaken }
    }

    /// The epoch of orders that are written.
    pub(crate) fn epoch(&self) -> i64 {
        self.epoch.unwrap_or(self.highest)
    }

    /// A fact about Nodes.
    pub(crate) fn node(&mut self, fact: Fact<HeardNode>) {
        match fact {
            Fact::There(HeardNode { node, address }, _) => {
                let peer = self.peers.node(&node.name, address, Instant::now());
                // Of a heartbeat nothing follows.
                let known = self.world.node(&node.name);
                let name = (known != Some(&node)).then(|| node.name.clone());
                // What somebody else's node of this name was told and has said is none of this one's. It has no agent until that is seen.
                if known.is_some_and(|known| known.foreign) && self.node_version(&node.name) == 0 {
                    self.world.apply(Event::AgentGone(node.name.clone()));
                }
                self.world.apply(Event::Node(node));
                self.world.apply(peer);
                name.iter().for_each(|name| self.touch_node(name));
            }
            Fact::Gone((_, name)) => {
                self.world.apply(self.peers.node(&name, None, Instant::now()));
                self.world.apply(Event::NodeGone(name.as_str().into()));
                self.touch_node(&name);
            }
            Fact::Listed | Fact::Resumed | Fact::Refused => self.hears(NODE),
            Fact::Deaf => self.deaf(NODE),
        }
    }

    /// Something of this node has changed: objects of other projects may show it.
    pub(crate) fn touch_node(&mut self, name: &str) {
        self.view.touch_node(name, self.world.has_node(name));
    }

    /// NodePreheats can be heard, or cannot.
    pub(crate) fn node_preheats(&mut self, heard: bool) {
        match heard {
            true => self.hears(NODE_PREHEAT),
            false => self.deaf(NODE_PREHEAT),
        }
    }

    fn hears(&mut self, kind: &'static str) {
        self.metrics.hears_of(kind);
        if self.unheard.remove(kind) && self.unheard.is_empty() && self.epoch.is_some() {
            self.begin();
        }
    }

    fn deaf(&mut self, kind: &'static str) {
        self.unheard.insert(kind);
        self.metrics.deaf(kind, true);
    }

    /// Whether everything was seen that a plan depends on. The first time that takes every kind of job and all that they read;
    /// later a kind of job that cannot be heard keeps only its own jobs from being planned.
    pub(crate) fn is_complete(&mut self) -> bool {
        if !self.unheard.is_empty() || self.epoch.is_none() && !self.view.is_known() {
            return false;
        }
        if self.epoch.is_none() {
            self.begin();
        }
        true
    }

    fn begin(&mut self) {
        let epoch = *self.epoch.get_or_insert(self.highest + 1);
        self.highest = self.highest.max(epoch);
        tracing::info!(epoch, "all objects are known, planning begins");
        self.world.listening((self.clock)());
        self.metrics.hears();
    }

    /// A NodePreheat as a watch saw it or as it answered a write; false where it is not the newest state. Orders that are under way
    /// are `assumed` and not taken back.
    pub(crate) fn see_node(&mut self, object: NodeObject, source: Source, assumed: bool) -> bool {
        let name = object.name_any();
        let sight = self.node_sights.see(
            name.clone(),
            object.metadata.uid.as_deref().unwrap_or_default(),
            facts::version(&object),
            source,
        );
        if !self.is_new(sight) {
            return false;
        }
        self.highest = self.highest.max(object.epoch);
        let mut object = object;
        // A report that outlived its order is for people: what the plan counts has an order.
        object.reports.retain(|key, _| object.orders.contains_key(key));
        // The order says whose it is; thousands of reports need not say it once more.
        object.reports.values_mut().for_each(|report| report.jobs.clear());
        let peer = self.peers.agent(&name, peers::said(&object), Instant::now());
        let (orders, said) = facts::node(object);
        // Where an agent of ours is, nobody else plays it.
        if self.world.node(&name).is_some_and(|node| node.foreign) {
            self.world.apply(Event::NodeGone(name.as_str().into()));
            self.world.apply(Event::AgentGone(name.as_str().into()));
        }
        if !assumed {
            self.world.apply(orders);
        }
        said.into_iter().chain([peer]).for_each(|event| self.world.apply(event));
        self.world.heard(&name, (self.clock)());
        true
    }

    /// Nodes are told to read from each other, or are not.
    pub(crate) fn relay(&mut self, relays: bool) {
        self.relays = relays;
        self.world.relay(relays);
    }

    /// The version of a NodePreheat.
    pub(crate) fn node_version(&self, name: &str) -> u64 {
        self.node_sights.version(name).unwrap_or_default()
    }

    /// The NodePreheat is gone.
    pub(crate) fn forget_node(&mut self, name: &str) {
        self.node_sights.forget(name);
        self.peers.agent(name, None, Instant::now());
        self.world.apply(Event::AgentGone(name.into()));
        // Somebody else may play the agent there.
        self.touch_node(name);
    }

    /// A fact about the objects of a query.
    pub(crate) fn row(&mut self, query: &Query, fact: Fact<SeenRow>) {
        let listed = matches!(self.view.heard(query), Heard::Listed | Heard::Deaf { listed: true });
        match fact {
            Fact::There(row, source) => self.see_row(query, row, source),
            Fact::Gone(name) => {
                if let Some(sights) = self.sights.get_mut(query) {
                    sights.forget(&name);
                }
                self.view.gone(query, &name);
            }
            Fact::Listed | Fact::Resumed => self.hear(query, Heard::Listed),
            Fact::Refused => self.hear(query, Heard::Refused),
            Fact::Deaf => self.hear(query, Heard::Deaf { listed }),
        }
    }

    fn hear(&mut self, query: &Query, heard: Heard) {
        self.view.hear(query, heard);
        match heard {
            Heard::Deaf { .. } => self.metrics.deaf(query.kind.name, false),
            Heard::Listed | Heard::Refused | Heard::Unlisted => self.metrics.hears_of(query.kind.name),
        }
    }

    /// An object as a watch saw it, or as it answered a write.
    pub(crate) fn see_row(&mut self, query: &Query, row: SeenRow, source: Source) {
        let sights = self.sights.entry(query.clone()).or_default();
        let sight = sights.see(row.name.clone(), &row.uid, row.version, source);
        if self.is_new(sight) {
            self.view.see_row(query, row);
        }
    }

    fn is_new(&mut self, sight: Sight) -> bool {
        self.rolled_back |= sight == Sight::RolledBack;
        sight == Sight::New
    }

    /// When something is to be looked at although nothing happens.
    pub(crate) fn wake(&self) -> Option<Timestamp> {
        let left = |at: std::time::Duration| at.saturating_sub(self.begun.elapsed());
        let look = self.view.next_look().map(|at| model::after((self.clock)(), left(at)));
        let moves = self.peers.wake().map(|at| at.saturating_duration_since(Instant::now()));
        let moves = moves.map(|left| model::after((self.clock)(), left));
        self.view.wake().into_iter().chain(look).chain(moves).min()
    }

    /// What is known of this query is void.
    pub(crate) fn forget(&mut self, query: &Query) {
        self.sights.remove(query);
        if matches!(self.view.heard(query), Heard::Deaf { .. }) {
            self.metrics.hears_of(query.kind.name);
        }
        self.view.forget(query);
    }

    /// Makes jobs of what has changed, and none of what is left to somebody else.
    pub(crate) fn settle(&mut self) {
        for event in self.peers.due(Instant::now()) {
            self.world.apply(event);
        }
        for name in self.view.look(self.begun.elapsed()) {
            let seen = self.view.left_alone().get(name);
            self.metrics.leaves_alone(name, seen.is_some());
            match (seen, Dialect::named(name)) {
                (Some(seen), Some(dialect)) => {
                    let reason = Reason::ForeignController.as_str();
                    tracing::warn!(dialect = name, "{reason}: {}", dialect.left_alone(seen));
                }
                _ => tracing::info!(dialect = name, "no sign of its original controller is left; Stoker serves it"),
            }
        }
        let settled = self.view.settle(&mut self.world);
        settled.gone.iter().for_each(|id| self.metrics.forget(id));
        for problem in settled.problems {
            tracing::warn!("a job cannot be read and is left out: {problem}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;
    use crate::moment::Moments;
    use serde_json::json;
    use std::sync::Arc;
    use std::time::Duration;
    use stoker_core::Reference;
    use stoker_core::model::{Ask, Order, Policy, Pull, Sandbox, Terms};

    fn hearing() -> Hearing {
        let clock: Clock = Arc::new(jiff::Timestamp::now);
        Hearing::new(clock, World::new(), LeaderMetrics::new(&Metrics::default()), 0)
    }

    fn pods(labels: &str) -> Query {
        Query { kind: &stoker_api::pods::PODS, namespace: Some("shop".into()), labels: labels.into() }
    }

    fn pod(query: &Query, version: u64) -> SeenRow {
        let metadata =
            json!({ "name": "web", "namespace": "shop", "uid": "u", "resourceVersion": version.to_string() });
        let object = json!({ "metadata": metadata, "spec": { "nodeName": "n1" } });
        SeenRow::of(query, serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_list_that_was_under_way_while_another_watch_told_of_the_same_object_is_no_rolled_back_server() {
        let (mut hearing, moments) = (hearing(), Moments::default());
        let (asked, both) = (moments.now(), [pods("app=web"), pods("tier=front")]);
        hearing.row(&both[0], Fact::There(pod(&both[0], 7), Source::Watch));
        hearing.row(&both[1], Fact::There(pod(&both[1], 6), Source::List(asked)));
        assert_eq!(hearing.overtaken(), None);
        hearing.row(&both[0], Fact::There(pod(&both[0], 6), Source::List(moments.now())));
        assert_eq!(hearing.overtaken(), Some(Overtaken::RolledBack), "one watch goes back only where its server does");
    }

    /// What whoever played its agent was told and has said is none of its own.
    #[test]
    fn a_node_inherits_nothing_of_a_foreign_one_of_its_name() {
        let (mut hearing, image) = (hearing(), "reg.test/web:1".parse::<Reference>().unwrap());
        let labels = BTreeMap::new();
        let foreign =
            model::Node { name: "n1".into(), labels, ready: true, ready_changed: None, cordoned: false, foreign: true };
        let pull = Pull {
            policy: Policy::Always,
            timeout: Duration::from_secs(600),
            retries: 3,
            bandwidth: None,
            priority: 0,
            sandbox: Sandbox::default(),
            source: Default::default(),
            upstream_copies: None,
        };
        let terms = Terms { pull, logins: Vec::new(), progress: Duration::from_secs(60) };
        let order = Order::new(image.name(), BTreeSet::new(), Timestamp::UNIX_EPOCH, Ask::Fetch(None), terms);
        hearing.world.apply(Event::Node(foreign.clone()));
        hearing.world.apply(Event::Orders("n1".into(), [(image.key(), order)].into()));
        let node = model::Node { foreign: false, ..foreign };
        hearing.node(Fact::There(HeardNode { node, address: None }, Source::Watch));
        assert_eq!(hearing.world.orders("n1"), Some(BTreeMap::new()));
    }

    #[test]
    fn what_is_void_is_forgotten() {
        let (mut hearing, moments, query) = (hearing(), Moments::default(), pods("app=web"));
        hearing.row(&query, Fact::There(pod(&query, 7), Source::Watch));
        hearing.row(&query, Fact::Listed);
        hearing.forget(&query);
        assert_eq!(hearing.view.heard(&query), Heard::Unlisted);
        hearing.row(&query, Fact::There(pod(&query, 6), Source::List(moments.now())));
        assert_eq!(hearing.overtaken(), None);
    }
}

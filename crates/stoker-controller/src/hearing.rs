//! What was heard: objects become rows of the View and facts of the World. Knows how surely everything is known, and whether the
//! API server has gone back to an older state.

use std::collections::BTreeSet;

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use stoker_api::View;
use stoker_api::native::NodeObject;
use stoker_api::view::{Heard, ObjectName, Query};
use stoker_core::{Clock, Event, World, model};

use crate::facts;
use crate::metrics::LeaderMetrics;
use crate::moment::Source;
use crate::sight::{Seen, Sight, Sights};
use crate::watch::Fact;

/// Kinds without which nothing can be planned: silence, deadlines and ends would be guesses.
const BASE: [&str; 2] = [NODE, NODE_PREHEAT];
const NODE: &str = "Node";
const NODE_PREHEAT: &str = "NodePreheat";

/// Everything that is known.
pub(crate) struct Hearing {
    pub(crate) clock: Clock,
    pub(crate) world: World,
    pub(crate) view: View,
    pub(crate) metrics: LeaderMetrics,
    sights: Sights,
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
            world,
            view: View::default(),
            metrics,
            sights: Sights::default(),
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
    pub(crate) fn node(&mut self, fact: Fact<model::Node>) {
        match fact {
            Fact::There(node, _) => self.world.apply(Event::Node(node)),
            Fact::Gone((_, name)) => self.world.apply(Event::NodeGone(name.into())),
            Fact::Listed | Fact::Resumed | Fact::Refused => self.hears(NODE),
            Fact::Deaf => self.deaf(NODE),
        }
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
        let sight = self.sights.see(
            node_id(&name),
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
        let (orders, said) = facts::node(object);
        if !assumed {
            self.world.apply(orders);
        }
        said.into_iter().for_each(|event| self.world.apply(event));
        self.world.heard(&name, (self.clock)());
        true
    }

    /// The version of a NodePreheat.
    pub(crate) fn node_version(&self, name: &str) -> u64 {
        self.sights.version(&node_id(name)).unwrap_or_default()
    }

    /// The NodePreheat is gone.
    pub(crate) fn forget_node(&mut self, name: &str) {
        self.sights.forget(&node_id(name));
        self.world.apply(Event::AgentGone(name.into()));
    }

    /// A fact about the objects of a query.
    pub(crate) fn row(&mut self, query: &Query, fact: Fact<Box<DynamicObject>>) {
        let listed = matches!(self.view.heard(query), Heard::Listed | Heard::Deaf { listed: true });
        match fact {
            Fact::There(object, source) => self.see_row(query, *object, source),
            Fact::Gone(name) => {
                self.sights.forget(&(Seen::By(query.clone()), name.clone()));
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

    /// A query is not watched any more.
    pub(crate) fn forget(&mut self, query: &Query) {
        self.sights.forget_query(query);
        self.view.forget(query);
    }

    /// An object as a watch saw it, or as it answered a write.
    pub(crate) fn see_row(&mut self, query: &Query, object: DynamicObject, source: Source) {
        let name: ObjectName = (object.namespace().unwrap_or_default(), object.name_any());
        let (uid, version) = (object.uid().unwrap_or_default(), facts::version(&object));
        let sight = self.sights.see((Seen::By(query.clone()), name), &uid, version, source);
        if self.is_new(sight) {
            self.view.see(query, object);
        }
    }

    fn is_new(&mut self, sight: Sight) -> bool {
        self.rolled_back |= sight == Sight::RolledBack;
        sight == Sight::New
    }

    /// Makes jobs of what has changed.
    pub(crate) fn settle(&mut self) {
        let settled = self.view.settle(&mut self.world);
        settled.gone.iter().for_each(|id| self.metrics.forget(id));
        for problem in settled.problems {
            tracing::warn!("a job cannot be read and is left out: {problem}");
        }
    }
}

fn node_id(name: &str) -> (Seen, ObjectName) {
    (Seen::NodePreheat, (String::new(), name.to_owned()))
}

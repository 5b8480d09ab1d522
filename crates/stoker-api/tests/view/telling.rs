//! A View that is told of objects as watches tell: query by query, in any order, late, and with gaps.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use proptest::prelude::*;
use stoker_api::dialect::kruise::ROLLOUTS;
use stoker_api::view::{Heard, ObjectName, Query, Root};
use stoker_api::{DIALECTS, HandOver, View, Write};
use stoker_core::{Event, Plan, World};
use stoker_testbed::paper::{Paper, PaperId};

use crate::objects::{NODES, Thing, thing};

/// One thing that happens; numbers are indices, taken modulo what there is.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Somebody makes or changes an object.
    Put(Thing),
    /// Somebody deletes one.
    Remove(usize),
    /// The watch of a query says one thing that it has not said.
    Tell {
        query: usize,
        which: usize,
    },
    /// A watch is interrupted.
    Deafen(usize),
    /// The kind of a query is not ours to see any more.
    Refuse(usize),
    /// Everything of a query is listed, again or for the first time.
    List(usize),
    /// The own controller of a dialect is alive, or dead.
    LeaveAlone {
        alive: bool,
    },
    Settle,
    /// What is due is projected, and every write fails.
    Project,
    /// What nobody wants is forgotten.
    Forget,
}

/// Any of them.
pub(crate) fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => thing().prop_map(Step::Put),
        2 => any::<usize>().prop_map(Step::Remove),
        10 => (any::<usize>(), any::<usize>()).prop_map(|(query, which)| Step::Tell { query, which }),
        1 => any::<usize>().prop_map(Step::Deafen),
        1 => any::<usize>().prop_map(Step::Refuse),
        3 => any::<usize>().prop_map(Step::List),
        1 => any::<bool>().prop_map(|alive| Step::LeaveAlone { alive }),
        4 => Just(Step::Settle),
        2 => Just(Step::Project),
        1 => Just(Step::Forget),
    ]
}

pub(crate) fn now() -> Timestamp {
    "2026-01-01T00:01:00Z".parse().unwrap()
}

/// A World with a few nodes that have agents.
pub(crate) fn fleet() -> World {
    let mut world = World::new();
    for name in NODES {
        let (labels, ready_changed) = (BTreeMap::new(), None);
        let node = stoker_core::Node {
            name: name.into(),
            labels,
            ready: true,
            ready_changed,
            cordoned: false,
            foreign: false,
        };
        world.apply(Event::Node(node));
        world.apply(Event::Orders(name.into(), BTreeMap::new()));
    }
    world
}

/// A View, and what it was told.
pub(crate) struct Teller {
    pub(crate) paper: Paper,
    pub(crate) view: View,
    pub(crate) world: World,
    /// What each watch has said is there.
    said: BTreeMap<Query, BTreeSet<ObjectName>>,
    pub(crate) left_alone: bool,
    half: bool,
}

impl Teller {
    pub(crate) fn new(paper: Paper, half: bool) -> Self {
        let mut view = View::without_signs();
        match half {
            true => view.hand_over(&[("kruise", HandOver::Half)].into()),
            false => view.serve(&[ROLLOUTS].into()),
        }
        Self { paper, view, world: fleet(), said: BTreeMap::new(), left_alone: false, half }
    }

    /// Plans, and has the nodes looked at that the plan names.
    pub(crate) fn plan(&mut self) -> Plan {
        let plan = self.world.plan(now());
        plan.nodes.iter().for_each(|node| self.view.touch_node(node, self.world.has_node(node)));
        // A node that is gone is looked at there.
        self.settle();
        plan
    }

    pub(crate) fn step(&mut self, step: &Step) {
        let queries: Vec<Query> = self.view.wanted().into_iter().collect();
        let query = |n: &usize| queries[n % queries.len()].clone();
        match step {
            Step::Put(thing) => self.paper.put(thing.object()),
            Step::Remove(n) => {
                let ids: Vec<PaperId> = self.paper.all().map(|(id, _)| id.clone()).collect();
                if let Some(id) = ids.get(n % ids.len().max(1)) {
                    self.paper.delete(id, None, now()).unwrap();
                }
            }
            Step::Tell { query: n, which } => {
                let query = query(n);
                if matches!(self.view.heard(&query), Heard::Listed | Heard::Unlisted) {
                    self.tell_one(&query, *which);
                }
            }
            Step::Deafen(n) => {
                let query = query(n);
                let listed = matches!(self.view.heard(&query), Heard::Listed | Heard::Deaf { listed: true });
                self.view.hear(&query, Heard::Deaf { listed });
            }
            Step::Refuse(n) => {
                let query = query(n);
                for name in self.said.remove(&query).unwrap_or_default() {
                    self.view.gone(&query, &name);
                }
                self.view.hear(&query, Heard::Refused);
            }
            Step::List(n) => self.list(&query(n)),
            Step::LeaveAlone { alive } => {
                self.left_alone = *alive;
                self.view.leave_alone("kruise", alive.then(|| "its Lease is renewed".to_string()));
            }
            Step::Settle => self.settle(),
            Step::Project => {
                self.settle();
                let roots: Vec<Root> = self.view.due(now()).cloned().collect();
                for root in roots {
                    if !self.view.project(&root, &self.world, now()).is_empty() {
                        self.view.touch_root(root);
                    }
                }
            }
            Step::Forget => {
                let wanted = self.view.wanted();
                let unwanted: Vec<Query> = self.said.keys().filter(|query| !wanted.contains(query)).cloned().collect();
                for query in unwanted {
                    self.said.remove(&query);
                    self.view.forget(&query);
                }
            }
        }
    }

    pub(crate) fn settle(&mut self) {
        self.view.settle(&mut self.world);
        // Who watches more than the table of dialects says would need rights that nobody gave it.
        for query in self.view.wanted() {
            let kinds =
                DIALECTS.iter().flat_map(|dialect| dialect.kinds.iter().chain(dialect.workloads).chain(dialect.nodes));
            let kinds = kinds.map(|kind| &kind.kind);
            let mut known = kinds.chain(DIALECTS.iter().flat_map(|dialect| dialect.asks.iter().copied()));
            assert!(known.any(|kind| *kind == *query.kind), "{query:?} is in no table");
        }
    }

    /// The writes of everything that is due.
    pub(crate) fn due(&mut self) -> Vec<Write> {
        let roots: Vec<Root> = self.view.due(now()).cloned().collect();
        roots.iter().flat_map(|root| self.view.project(root, &self.world, now())).collect()
    }

    /// One object of a query that is not as it was said.
    fn tell_one(&mut self, query: &Query, which: usize) {
        let there: BTreeSet<ObjectName> = self.paper.select(query).map(name_of).collect();
        let said = self.said.entry(query.clone()).or_default();
        let all: Vec<ObjectName> = there.union(said).cloned().collect();
        let Some(name) = all.get(which % all.len().max(1)) else { return };
        let object = self.paper.select(query).find(|object| name_of(object) == *name).cloned();
        match object {
            Some(object) => {
                said.insert(name.clone());
                self.view.see(query, object);
            }
            None => {
                said.remove(name);
                self.view.gone(query, name);
            }
        }
    }

    fn list(&mut self, query: &Query) {
        let there: Vec<_> = self.paper.select(query).cloned().collect();
        let names: BTreeSet<ObjectName> = there.iter().map(name_of).collect();
        there.into_iter().for_each(|object| self.view.see(query, object));
        for name in self.said.insert(query.clone(), names.clone()).unwrap_or_default().difference(&names) {
            self.view.gone(query, name);
        }
        self.view.hear(query, Heard::Listed);
    }

    /// Everything that is wanted is listed, but what is refused; in an order that `seed` decides.
    pub(crate) fn catch_up(&mut self, seed: usize) {
        let mut listed: BTreeSet<Query> = BTreeSet::new();
        loop {
            self.settle();
            let left: Vec<Query> = self.view.wanted().into_iter().filter(|query| !listed.contains(query)).collect();
            let Some(query) = left.get(seed % left.len().max(1)).cloned() else { break };
            if self.view.heard(&query) != Heard::Refused {
                self.list(&query);
            }
            listed.insert(query);
        }
    }

    /// One that is told the same by fewer words: only what is there now.
    pub(crate) fn fresh(&self, seed: usize) -> Self {
        let mut fresh = Self::new(self.paper.clone(), self.half);
        // What nodes were ordered to do is in objects of theirs.
        for name in NODES {
            fresh.world.apply(Event::Orders(name.into(), self.world.orders(name).unwrap_or_default()));
        }
        if self.left_alone {
            fresh.step(&Step::LeaveAlone { alive: true });
        }
        for query in self.view.wanted().into_iter().filter(|query| self.view.heard(query) == Heard::Refused) {
            fresh.view.hear(&query, Heard::Refused);
        }
        fresh.catch_up(seed);
        fresh
    }

    /// Performs writes, and returns those that have changed something. An event that is told twice has the same name and is refused; one
    /// root may write in vain to what another one deletes.
    pub(crate) fn perform(&mut self, writes: &[Write]) -> Vec<Write> {
        let done = writes.iter().filter(|write| {
            let before = self.paper.version();
            let answer = self.paper.perform(write, now());
            let known = matches!(write, Write::Create(target, _) if target.resource.kind == "Event");
            // What another root has deleted meanwhile is gone, and nothing more.
            let gone = answer.as_ref().is_err_and(|status| status.code == 404);
            // What another root has changed is another version: a part of an object is given its labels by that object.
            let is_of_part = write.target().resource.kind == "NodeImageSet";
            let changed = is_of_part && answer.as_ref().is_err_and(|status| status.code == 409);
            assert!(answer.is_ok() || known || gone || changed, "{write:?}: {answer:?}");
            self.paper.version() != before
        });
        done.cloned().collect()
    }
}

fn name_of(object: &kube_core::dynamic::DynamicObject) -> ObjectName {
    (object.metadata.namespace.clone().unwrap_or_default(), object.metadata.name.clone().unwrap_or_default())
}

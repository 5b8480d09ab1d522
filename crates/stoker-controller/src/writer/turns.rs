//! Which write is next. Orders and other writes take turns, and so do the namespaces of the other writes: whoever has a thousand writes
//! delays a write of somebody else by a few. One write of an object is under way at a time, and the newest state goes next.
//!
//! Writes come in, and go out one by one. Nothing here knows a clock or a client.

use std::collections::{BTreeMap, VecDeque};

use kube::Resource as _;
use stoker_api::native::NodeObject;
use stoker_api::{Target, Write, kinds_of_nodes};

use super::Numbered;
use super::merge::push;

/// Group, plural, namespace and name of an object.
pub(crate) type Id = (String, String, String, String);

pub(crate) fn id(target: &Target) -> Id {
    let Target { resource, namespace, name } = target;
    (resource.group.clone(), resource.plural.clone(), namespace.clone().unwrap_or_default(), name.clone())
}

/// Whether this is the object with the orders of a node.
pub(super) fn holds_orders(target: &Target) -> bool {
    target.resource.kind == NodeObject::kind(&())
}

/// Whose turn it is that a write takes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    /// Orders of nodes.
    Orders,
    /// Other writes in a namespace; the name is empty for objects that are in none.
    Of(String),
    /// Objects of other projects that show what nodes do. There are as many as orders, and they go when nothing else may.
    Nodes,
}

impl Lane {
    fn of(write: &Write) -> Self {
        let target = write.target();
        let is_of_node = || kinds_of_nodes().any(|kind| kind.kind.name == target.resource.kind);
        match holds_orders(target) {
            true => Self::Orders,
            false if target.namespace.is_none() && is_of_node() => Self::Nodes,
            false => Self::Of(target.namespace.clone().unwrap_or_default()),
        }
    }
}

/// Writes that wait and objects that are being written.
pub(super) struct Turns {
    waiting: BTreeMap<Id, VecDeque<Numbered>>,
    /// Objects whose next write may be sent, by lane; no lane is empty.
    ready: BTreeMap<Lane, VecDeque<Id>>,
    /// Namespaces with such objects, in the order of their turns.
    namespaces: VecDeque<String>,
    /// Whether the last turn was one of orders.
    orders_had_it: bool,
    /// Objects that are being written, or rest after a failure.
    busy: BTreeMap<Id, Lane>,
    /// How many of them are being written, by lane.
    flying: BTreeMap<Lane, usize>,
    /// Writes at one time.
    at_once: usize,
}

impl Turns {
    pub(super) fn new(at_once: usize) -> Self {
        Self {
            waiting: BTreeMap::new(),
            ready: BTreeMap::new(),
            namespaces: VecDeque::new(),
            orders_had_it: false,
            busy: BTreeMap::new(),
            flying: BTreeMap::new(),
            at_once: at_once.max(1),
        }
    }

    /// Objects whose next write waits for its turn, or for another try.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether more orders may come in. Where they wait otherwise they are small.
    pub(super) fn wants_orders(&self) -> bool {
        self.ready.get(&Lane::Orders).map_or(0, VecDeque::len) < self.at_once
    }

    /// Adds a write behind those that wait for the same object.
    pub(super) fn add(&mut self, write: Numbered) {
        let (id, lane) = (id(write.1.target()), Lane::of(&write.1));
        let waiting = self.waiting.entry(id.clone()).or_default();
        let is_first = waiting.is_empty();
        push(waiting, write);
        if is_first && !self.busy.contains_key(&id) {
            self.make_ready(id, lane);
        }
    }

    fn make_ready(&mut self, id: Id, lane: Lane) {
        if let Lane::Of(namespace) = &lane
            && !self.ready.contains_key(&lane)
        {
            self.namespaces.push_back(namespace.clone());
        }
        self.ready.entry(lane).or_default().push_back(id);
    }

    /// Whether there is a write that may be sent now.
    pub(super) fn has_next(&self) -> bool {
        self.next_lane().is_some()
    }

    /// The lane whose turn it is: orders and others by turns, where both have something that may go.
    fn next_lane(&self) -> Option<Lane> {
        let flying = |lane: &Lane| self.flying.get(lane).copied().unwrap_or_default();
        let (orders, all) = (flying(&Lane::Orders), self.flying.values().sum::<usize>());
        if all >= self.at_once {
            return None;
        }
        // Answers may be slow for orders, for others, or for those of one namespace, whose webhooks the API server asks: each leaves
        // room for the rest.
        let most = (self.at_once - self.at_once / 4).max(1);
        let most_of_a_namespace = (self.at_once / 2).max(1);
        let orders_may = orders < most && self.ready.contains_key(&Lane::Orders);
        let lanes = self.namespaces.iter().map(|namespace| Lane::Of(namespace.clone()));
        let other = (all - orders < most).then(|| lanes.into_iter().find(|lane| flying(lane) < most_of_a_namespace));
        // Only what nobody else would have now, and never so much that slow answers keep the others waiting.
        let nodes_may = flying(&Lane::Nodes) < (self.at_once / 4).max(1) && self.ready.contains_key(&Lane::Nodes);
        match other.flatten() {
            Some(other) if self.orders_had_it || !orders_may => Some(other),
            _ if orders_may => Some(Lane::Orders),
            _ => nodes_may.then_some(Lane::Nodes),
        }
    }

    /// Takes the write whose turn it is; it is under way until [`Turns::landed`] is called.
    pub(super) fn next(&mut self) -> Option<Numbered> {
        let lane = self.next_lane()?;
        let ids = self.ready.get_mut(&lane)?;
        let id = ids.pop_front()?;
        let is_last = ids.is_empty();
        if is_last {
            self.ready.remove(&lane);
        }
        self.orders_had_it = lane == Lane::Orders;
        if let Lane::Of(namespace) = &lane {
            self.namespaces.retain(|other| other != namespace);
            if !is_last {
                self.namespaces.push_back(namespace.clone());
            }
        }
        let waiting = self.waiting.get_mut(&id)?;
        let write = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&id);
        }
        *self.flying.entry(lane.clone()).or_default() += 1;
        self.busy.insert(id, lane);
        write
    }

    /// A write of this object is not under way any more. The next one waits until [`Turns::go_on`] is called.
    pub(super) fn landed(&mut self, id: &Id) {
        let Some(lane) = self.busy.get(id) else { return };
        if let Some(flying) = self.flying.get_mut(lane) {
            *flying = flying.saturating_sub(1);
            if *flying == 0 {
                self.flying.remove(lane);
            }
        }
    }

    /// Puts back a write that was taken: before what came later, and merged with it.
    pub(super) fn put_back(&mut self, write: Numbered) {
        let id = id(write.1.target());
        let newer = self.waiting.remove(&id).unwrap_or_default();
        let waiting = self.waiting.entry(id).or_default();
        [write].into_iter().chain(newer).for_each(|write| push(waiting, write));
    }

    /// Puts back a write that was taken as two, which are not merged again.
    pub(super) fn put_back_apart(&mut self, first: Numbered, second: Numbered) {
        let waiting = self.waiting.entry(id(first.1.target())).or_default();
        waiting.push_front(second);
        waiting.push_front(first);
    }

    /// What waits for this object may be sent.
    pub(super) fn go_on(&mut self, id: Id) {
        if let Some(lane) = self.busy.remove(&id)
            && self.waiting.contains_key(&id)
        {
            self.make_ready(id, lane);
        }
    }

    /// Whether a write of this object is under way, or rests after a failure.
    pub(super) fn is_busy(&self, id: &Id) -> bool {
        self.busy.contains_key(id)
    }

    /// The objects that are being written or rest.
    #[cfg(test)]
    fn busy(&self) -> std::collections::BTreeSet<Id> {
        self.busy.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use std::collections::BTreeSet;

    const ORDERS: &str = "";

    /// A write for the object of this name: of a namespace, or of the orders of a node where that is empty.
    fn write(number: u64, namespace: &str, name: &str) -> Numbered {
        let name = name.to_string();
        let write = match namespace {
            ORDERS => {
                let resource = kube::core::ApiResource::erase::<stoker_api::native::NodePreheat>(&());
                Write::Patch(Target { resource, namespace: None, name }, json!({ "spec": { "n": number } }))
            }
            namespace => {
                let resource = kube::core::ApiResource::erase::<stoker_api::native::Preheat>(&());
                let target = Target { resource, namespace: Some(namespace.into()), name };
                Write::Status(target, json!({ "status": { "n": number } }))
            }
        };
        (number, write)
    }

    /// Takes so many writes, each of which ends at once, and says whose they were.
    fn take(turns: &mut Turns, count: usize) -> Vec<String> {
        let mut taken = Vec::new();
        for _ in 0..count {
            let Some((_, write)) = turns.next() else { break };
            let id = id(write.target());
            taken.push(write.target().namespace.clone().unwrap_or_default());
            turns.landed(&id);
            turns.go_on(id);
        }
        taken
    }

    #[test]
    fn a_thousand_writes_of_one_namespace_delay_those_of_others_by_a_few() {
        let mut turns = Turns::new(32);
        (0..1_000).for_each(|n| turns.add(write(n, "evil", &format!("child-{n}"))));
        take(&mut turns, 10);
        turns.add(write(1_001, "shop", "web"));
        turns.add(write(1_002, "bank", "db"));
        assert!(turns.wants_orders(), "however many others wait");
        turns.add(write(1_003, ORDERS, "n1"));
        turns.add(write(1_004, ORDERS, "n2"));
        assert_eq!(take(&mut turns, 7), [ORDERS, "evil", ORDERS, "shop", "bank", "evil", "evil"]);
        assert_eq!(turns.waiting(), 987);
    }

    #[test]
    fn thousands_of_orders_delay_other_writes_by_a_few() {
        let mut turns = Turns::new(4);
        let mut taken_in = 0;
        while turns.wants_orders() {
            taken_in += 1;
            turns.add(write(taken_in, ORDERS, &format!("n{taken_in}")));
        }
        assert_eq!(taken_in, 4, "the rest waits where it is small");
        turns.add(write(10, "shop", "web"));
        turns.add(write(11, "shop", "db"));
        assert_eq!(take(&mut turns, 6), [ORDERS, "shop", ORDERS, "shop", ORDERS, ORDERS]);
    }

    /// A write for the NodeImage of this name.
    fn of_node(number: u64, name: &str) -> Numbered {
        let resource = stoker_api::dialect::kruise::NODE_IMAGES.kind.newest();
        let target = Target { resource, namespace: None, name: name.into() };
        (number, Write::Guarded(target, json!({ "spec": { "n": number } })))
    }

    #[test]
    fn node_images_wait_for_orders_and_statuses_and_never_hold_them_up() {
        let mut turns = Turns::new(32);
        (0..1_000).for_each(|n| turns.add(of_node(n, &format!("n{n}"))));
        turns.add(write(1_001, ORDERS, "n1"));
        turns.add(write(1_002, "shop", "web"));
        turns.add(write(1_003, ORDERS, "n2"));
        let numbers: Vec<u64> = std::iter::from_fn(|| turns.next()).map(|(number, _)| number).collect();
        assert_eq!(numbers.get(..4), Some(&[1_001, 1_002, 1_003, 0][..]));
        assert_eq!(numbers.len(), 3 + 8, "slow answers leave room for others");
        turns.add(write(1_004, ORDERS, "n3"));
        assert_eq!(turns.next().map(|(number, _)| number), Some(1_004));
    }

    #[test]
    fn who_is_answered_slowly_leaves_room_for_others() {
        for (namespace, most) in [(ORDERS, 24), ("evil", 16)] {
            let mut turns = Turns::new(32);
            (0..100).for_each(|n| turns.add(write(n, namespace, &format!("x{n}"))));
            let flying = std::iter::from_fn(|| turns.next()).count();
            assert_eq!(flying, most, "{namespace}");
            turns.add(write(200, "shop", "web"));
            assert_eq!(turns.next().map(|(number, _)| number), Some(200));
        }
        for at_once in 1..4 {
            let mut turns = Turns::new(at_once);
            (0..9).for_each(|n| turns.add(write(n, "shop", &format!("x{n}"))));
            assert!(turns.next().is_some(), "{at_once}");
        }
    }

    #[test]
    fn what_was_put_back_goes_before_what_came_later_and_with_it() {
        let mut turns = Turns::new(1);
        turns.add(write(1, ORDERS, "n1"));
        let first = turns.next().unwrap();
        turns.add(write(2, ORDERS, "n1"));
        let id = id(first.1.target());
        turns.landed(&id);
        turns.put_back(first);
        assert!(turns.next().is_none(), "it rests");
        turns.go_on(id);
        let (number, write) = turns.next().unwrap();
        assert_eq!(number, 2);
        assert!(matches!(write, Write::Patch(_, patch) if patch["spec"]["n"] == 2));
        assert_eq!(turns.waiting(), 0);
    }

    #[derive(Clone, Debug)]
    enum Happening {
        Add(usize, usize),
        Next,
        Land(usize, bool),
        GoOn(usize),
    }

    fn happening() -> impl Strategy<Value = Happening> {
        prop_oneof![
            (0..4_usize, 0..6_usize).prop_map(|(namespace, name)| Happening::Add(namespace, name)),
            Just(Happening::Next),
            (any::<usize>(), any::<bool>()).prop_map(|(which, fails)| Happening::Land(which, fails)),
            any::<usize>().prop_map(Happening::GoOn),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        /// One write of an object at a time, never more than allowed, and the newest write of every object comes out in the end.
        #[test]
        fn every_object_is_written_once_at_a_time_and_ends_with_its_newest_state(
            at_once in 1..6_usize,
            happenings in prop::collection::vec(happening(), 0..120),
        ) {
            let namespaces = [ORDERS, "a", "b", "c"];
            let mut turns = Turns::new(at_once);
            let (mut newest, mut written) = (BTreeMap::new(), BTreeMap::new());
            let (mut flying, mut resting): (BTreeMap<Id, Numbered>, BTreeSet<Id>) = Default::default();
            let drain = (0..200).flat_map(|n| [Happening::Next, Happening::Land(n, false), Happening::GoOn(n)]);
            for (number, happening) in (1..).zip(happenings.into_iter().chain(drain)) {
                match happening {
                    Happening::Add(namespace, name) => {
                        let write = write(number, namespaces[namespace], &format!("x{name}"));
                        newest.insert(id(write.1.target()), number);
                        turns.add(write);
                    }
                    Happening::Next => {
                        prop_assert_eq!(turns.has_next(), turns.next_lane().is_some());
                        if let Some(write) = turns.next() {
                            let id = id(write.1.target());
                            prop_assert!(!resting.contains(&id));
                            prop_assert!(flying.insert(id, write).is_none());
                        }
                        prop_assert!(flying.len() <= at_once);
                    }
                    Happening::Land(which, fails) => {
                        let Some(id) = flying.keys().nth(which % flying.len().max(1)).cloned() else { continue };
                        let write = flying.remove(&id).unwrap();
                        turns.landed(&id);
                        if fails && holds_orders(write.1.target()) {
                            turns.put_back(write);
                        } else {
                            prop_assert!(written.insert(id.clone(), write.0) < Some(write.0));
                        }
                        resting.insert(id);
                    }
                    Happening::GoOn(which) => {
                        let Some(id) = resting.iter().nth(which % resting.len().max(1)).cloned() else { continue };
                        resting.remove(&id);
                        turns.go_on(id);
                    }
                }
                prop_assert_eq!(turns.busy(), flying.keys().chain(&resting).cloned().collect());
            }
            prop_assert_eq!((turns.waiting(), turns.has_next()), (0, false));
            prop_assert_eq!(written, newest);
        }
    }
}

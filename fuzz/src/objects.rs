//! Objects of the API as an agent and a controller read them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube_core::dynamic::DynamicObject;
use stoker_api::native::{NodeObject, from_core};
use stoker_api::view::{Query, Root};
use stoker_api::{Amount, Span, View, served_kinds, workload_kinds};
use stoker_core::model::{Key, Node};
use stoker_core::step::{self, Able, Task};
use stoker_core::world::{Event, World};

/// Amounts of bytes and lengths of time: printed and read again they are the same.
pub fn quantity(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(amount) = text.parse::<Amount>() {
        assert!(amount.0 > 0, "{text}");
        assert_eq!(amount.to_string().parse::<Amount>().as_ref(), Ok(&amount), "{text}");
    }
    if let Ok(span) = text.parse::<Span>() {
        // What is longer than the schema can write is written as the longest.
        let written = span.to_string();
        let again = written.parse::<Span>().expect("what was written is read");
        assert!(again <= span && again.to_string() == written, "{text}");
    }
}

/// A NodePreheat: orders and reports that are read are written and read again without a loss, and the agent can say what to do next.
pub fn node_object(bytes: &[u8]) {
    let Ok(object) = serde_json::from_slice::<NodeObject>(bytes) else { return };
    let written = from_core::node_preheat(&object.orders, &object.tickets, &object.logins, &object.reports);
    let again: NodeObject = serde_json::from_value(written.clone()).expect("what was written is read");
    let orders = (&object.orders, &object.tickets, &object.reports);
    assert_eq!((&again.orders, &again.tickets, &again.reports), orders, "{written:#}");
    assert_eq!(again.broken, Vec::<String>::new(), "{written:#}");
    let now: Timestamp = "2026-01-02T03:04:05Z".parse().expect("a time");
    let tasks: BTreeMap<Key, Task> =
        object.reports.iter().map(|(key, report)| (*key, step::adopt(report.clone(), now))).collect();
    step::step(&object.orders, &tasks, &Able { orders_at_once: 2, ..Able::default() }, now);
    step::step(&object.orders, &BTreeMap::new(), &Able::default(), now);
}

/// An object of any kind that means jobs, or has some made for it: it gives jobs or an error, a plan can be made for them, and what
/// came of it can be written.
pub fn job(bytes: &[u8]) {
    let Ok(object) = serde_json::from_slice::<DynamicObject>(bytes) else { return };
    let now: Timestamp = "2026-01-02T03:04:05Z".parse().expect("a time");
    for kind in served_kinds().chain(workload_kinds()) {
        (kind.summary)(&object);
        let (mut world, mut view) = (World::new(), View::default());
        view.see(&Query::all(&kind.kind), object.clone());
        view.settle(&mut world);
        for name in ["n1", "n2"] {
            let labels = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
            world.apply(Event::Node(Node {
                name: name.into(),
                labels,
                ready: true,
                ready_changed: None,
                cordoned: false,
                foreign: false,
            }));
            world.apply(Event::Orders(name.into(), BTreeMap::new()));
        }
        let plan = world.plan(now);
        assert_eq!(world.plan(now).orders, [], "what was ordered is not ordered again: {plan:?}");
        let roots: Vec<Root> = view.roots().cloned().collect();
        roots.iter().for_each(|root| drop(view.project(root, &world, now)));
    }
}

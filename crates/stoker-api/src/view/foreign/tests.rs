use super::*;
use crate::dialect::kruise;
use crate::native::PREHEAT_POLICIES;
use crate::view::{Root, View};
use jiff::Timestamp;
use kube_core::dynamic::DynamicObject;
use serde_json::{Value, json};
use stoker_core::{Event, Node, World};

const KRUISE: &str = kruise::DIALECT;

fn object(value: Value) -> DynamicObject {
    serde_json::from_value(value).unwrap()
}

fn job() -> DynamicObject {
    object(json!({
        "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob",
        "metadata": { "name": "base", "namespace": "shop", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": { "image": "registry.example/base:v1", "completionPolicy": { "type": "Always" } },
    }))
}

/// The Lease of a manager that was renewed so many times.
fn lease(holder: &str, renewed: u32) -> DynamicObject {
    object(json!({
        "metadata": { "name": "kruise-manager", "namespace": "kruise-system" },
        "spec": { "holderIdentity": holder, "renewTime": format!("2026-01-01T00:00:{renewed:02}.000000Z") },
    }))
}

fn webhooks(resource: &str) -> DynamicObject {
    let rule = json!({ "apiGroups": ["apps.kruise.io"], "resources": [resource] });
    object(json!({ "metadata": { "name": "kruise-validating" }, "webhooks": [{ "name": "v", "rules": [rule] }] }))
}

fn leases() -> Query {
    Query::all(kruise::SIGNS[0].kind())
}

fn validating() -> Query {
    Query::all(&crate::sign::VALIDATING_WEBHOOKS)
}

/// A view and a World with one node, and a clock.
struct Seen {
    view: View,
    world: World,
    now: Duration,
}

impl Seen {
    /// Every kind is listed: one ImagePullJob, and no sign.
    fn all() -> Self {
        let mut seen = Self::jobs();
        seen.listed();
        seen
    }

    /// Jobs are listed, signs are not.
    fn jobs() -> Self {
        let mut world = World::new();
        world.apply(Event::Node(Node {
            name: "n1".into(),
            labels: Default::default(),
            ready: true,
            ready_changed: None,
            cordoned: false,
            foreign: false,
        }));
        world.apply(Event::Orders("n1".into(), Default::default()));
        let mut view = View::default();
        for kind in crate::served_kinds() {
            view.hear(&Query::all(&kind.kind), Heard::Listed);
        }
        view.hear(&Query::all(&PREHEAT_POLICIES), Heard::Listed);
        view.see(&Query::all(&kruise::IMAGE_PULL_JOBS.kind), job());
        Self { view, world, now: Duration::ZERO }
    }

    fn listed(&mut self) {
        for query in self.view.wanted() {
            self.view.hear(&query, Heard::Listed);
        }
    }

    /// So many seconds later: whether the World has the job, and what is written to it.
    fn after(&mut self, seconds: u64) -> (bool, usize) {
        self.now += Duration::from_secs(seconds);
        self.view.look(self.now);
        self.view.settle(&mut self.world);
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        self.world.plan(now);
        let writes = self.view.project(&root(), &self.world, now);
        (self.world.job(&root().job()).is_some(), writes.len())
    }

    fn says(&self) -> Option<&str> {
        self.view.left_alone().get(KRUISE).map(String::as_str)
    }
}

fn root() -> Root {
    Root { kind: &kruise::IMAGE_PULL_JOBS, namespace: "shop".into(), name: "base".into() }
}

const OURS: (bool, usize) = (true, 2);
const NOT_OURS: (bool, usize) = (false, 0);

#[test]
fn a_lease_counts_while_it_changes() {
    let mut seen = Seen::all();
    assert_eq!(seen.after(0), OURS, "an event and a status");
    for renewed in 1..10 {
        seen.view.see(&leases(), lease("m_1", renewed));
        assert_eq!(seen.after(50), NOT_OURS);
        assert_eq!(seen.says(), Some("the Lease kruise-system/kruise-manager is renewed by m_1"));
        assert_eq!(seen.view.next_look(), Some(seen.now + ALIVE_FOR));
    }
    assert_eq!(seen.after(59), NOT_OURS);
    assert_eq!(seen.after(1), OURS, "it stopped");
    assert_eq!((seen.says(), seen.view.next_look()), (None, None));
    seen.view.see(&leases(), lease("m_2", 11));
    assert_eq!(seen.after(0), NOT_OURS, "another one holds it");
    seen.view.see(&leases(), lease("", 11));
    assert_eq!(seen.after(0), OURS, "it was given back");
    seen.view.see(&leases(), lease("m_2", 12));
    assert_eq!(seen.after(0), NOT_OURS);
    seen.view.gone(&leases(), &("kruise-system".into(), "kruise-manager".into()));
    assert_eq!(seen.after(0), OURS);
}

#[test]
fn a_lease_that_nobody_renews_counts_for_the_first_minute_if_it_is_held() {
    for (holder, first) in [("m_1", NOT_OURS), ("", OURS)] {
        let mut seen = Seen::jobs();
        seen.view.see(&leases(), lease(holder, 1));
        seen.listed();
        assert_eq!(seen.after(3), first, "{holder}");
        assert_eq!(seen.after(59), first, "{holder}");
        assert_eq!(seen.after(1), OURS, "{holder}");
    }
}

#[test]
fn nothing_is_derived_or_written_before_all_signs_were_heard() {
    let mut seen = Seen::jobs();
    assert_eq!(seen.after(0), NOT_OURS);
    assert!(!seen.view.is_known());
    seen.view.hear(&validating(), Heard::Listed);
    seen.view.hear(&Query::all(&crate::sign::MUTATING_WEBHOOKS), Heard::Refused);
    assert_eq!(seen.after(0), NOT_OURS);
    // It cannot be listed: all other dialects are planned.
    seen.view.hear(&leases(), Heard::Deaf { listed: false });
    assert_eq!(seen.after(0), NOT_OURS);
    for sign in crate::dialect::ofen::SIGNS {
        seen.view.hear(&Query::all(sign.kind()), Heard::Refused);
    }
    assert!(seen.view.is_known());
    seen.view.hear(&leases(), Heard::Refused);
    assert_eq!(seen.after(0), OURS, "what cannot be seen is no sign");
}

/// A job that was ours before the signs could not be heard stays as it is.
#[test]
fn orders_stay_while_signs_that_were_refused_cannot_be_heard() {
    let mut seen = Seen::all();
    assert_eq!(seen.after(0), OURS);
    let orders = seen.world.orders("n1").unwrap();
    assert_eq!(orders.len(), 1);
    seen.view.hear(&leases(), Heard::Deaf { listed: false });
    assert_eq!(seen.after(0), (true, 0));
    assert_eq!(seen.world.orders("n1").unwrap(), orders);
    seen.view.gone(&Query::all(&kruise::IMAGE_PULL_JOBS.kind), &("shop".into(), "base".into()));
    assert_eq!(seen.after(0), (false, 0), "one that is gone is gone");
}

/// Whoever may edit a namespace may make a Lease of any name there.
#[test]
fn a_lease_in_the_namespace_of_somebody_else_says_nothing() {
    let mut seen = Seen::all();
    let mut theirs = lease("m_1", 1);
    theirs.metadata.namespace = Some("shop".into());
    seen.view.see(&leases(), theirs);
    assert_eq!(seen.after(0), OURS);
}

#[test]
fn a_lease_that_was_alive_stays_so_while_nothing_can_be_heard() {
    let mut seen = Seen::all();
    seen.view.see(&leases(), lease("m_1", 1));
    assert_eq!(seen.after(10), NOT_OURS);
    seen.view.hear(&leases(), Heard::Deaf { listed: true });
    for _ in 0..10 {
        assert_eq!(seen.after(60), NOT_OURS);
    }
    seen.view.hear(&leases(), Heard::Listed);
    assert_eq!(seen.after(59), NOT_OURS, "it has a minute to be renewed");
    assert_eq!(seen.after(1), OURS);
    seen.view.hear(&leases(), Heard::Deaf { listed: true });
    assert_eq!(seen.after(60), OURS, "one that was dead stays so");
}

#[test]
fn webhooks_count_while_they_are_there() {
    let mut seen = Seen::all();
    seen.view.see(&validating(), webhooks("clonesets"));
    assert_eq!(seen.after(0), OURS);
    seen.view.see(&validating(), webhooks("imagelistpulljobs"));
    assert_eq!(seen.after(1_000), NOT_OURS, "both kinds are left alone: lists make jobs");
    assert_eq!(seen.says(), Some("the ValidatingWebhookConfiguration kruise-validating names imagelistpulljobs"));
    seen.view.gone(&validating(), &(String::new(), "kruise-validating".into()));
    assert_eq!(seen.after(0), OURS);
}

#[test]
fn where_the_kinds_are_handed_over_a_lease_is_no_sign_and_is_not_looked_at() {
    let mut seen = Seen::jobs();
    seen.view.hand_over(&[(KRUISE, HandOver::Whole)].into());
    assert!(!seen.view.wanted().contains(&leases()));
    assert!(seen.view.wanted().contains(&validating()));
    seen.view.see(&leases(), lease("m_1", 1));
    seen.listed();
    assert_eq!(seen.after(0), OURS);
    seen.view.see(&validating(), webhooks("*"));
    assert_eq!(seen.after(0), NOT_OURS);
}

#[test]
fn signs_are_looked_at_only_where_there_are_objects_to_leave_alone() {
    let mut view = View::default();
    let signs = || [leases(), validating()];
    assert!(signs().iter().all(|sign| !view.wanted().contains(sign)));
    for kind in crate::served_kinds() {
        view.hear(&Query::all(&kind.kind), if kind.is_foreign() { Heard::Refused } else { Heard::Listed });
    }
    view.hear(&Query::all(&PREHEAT_POLICIES), Heard::Refused);
    view.look(Duration::ZERO);
    assert!(signs().iter().all(|sign| !view.wanted().contains(sign)));
    assert!(view.is_known(), "a cluster without OpenKruise's kinds waits for nothing");
    view.hear(&Query::all(&kruise::IMAGE_PULL_JOBS.kind), Heard::Listed);
    assert!(signs().iter().all(|sign| view.wanted().contains(sign)));
}

/// Whatever was heard first, the same is known in the end.
#[test]
fn the_order_of_events_does_not_matter() {
    let see_lease = |view: &mut View| view.see(&leases(), lease("m_1", 1));
    let see_webhooks = |view: &mut View| view.see(&validating(), webhooks("imagepulljobs"));
    let see_job = |view: &mut View| view.see(&Query::all(&kruise::IMAGE_PULL_JOBS.kind), job());
    let list = |view: &mut View| {
        for query in view.wanted() {
            view.hear(&query, Heard::Listed);
        }
    };
    let events: [&dyn Fn(&mut View); 5] = [&see_lease, &see_webhooks, &see_job, &list, &list];
    let mut known = BTreeSet::new();
    for first in 0..events.len() {
        for backwards in [false, true] {
            let mut order: Vec<usize> = (0..events.len()).map(|at| (first + at) % events.len()).collect();
            if backwards {
                order.reverse();
            }
            let (mut view, mut world) = (View::default(), World::new());
            for event in order {
                events[event](&mut view);
                view.look(Duration::from_secs(1));
                view.settle(&mut world);
            }
            let jobs = world.job(&root().job()).is_some();
            known.insert(format!("{:?} {:?} {jobs}", view.left_alone(), view.foreign.unknown));
        }
    }
    assert_eq!(known.len(), 1, "{known:?}");
    assert!(known.iter().all(|known| known.contains("kruise-manager") && known.ends_with("{} false")), "{known:?}");
}

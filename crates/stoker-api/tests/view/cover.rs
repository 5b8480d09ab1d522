//! Which watch serves a query decides nothing: not which nodes a job has, and not when it is derived again.

use std::collections::{BTreeMap, BTreeSet};

use kube_core::dynamic::DynamicObject;
use proptest::prelude::*;
use serde_json::{Value, json};
use stoker_api::view::Query;
use stoker_testbed::paper::{Paper, PaperId};

use crate::objects::NODES;
use crate::telling::Teller;

/// Different in what they select, or only in how they are written.
fn selectors() -> Vec<Value> {
    let one = |key: &str, operator: &str, values: &[&str]| {
        let values = (!values.is_empty()).then_some(values);
        json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] })
    };
    vec![
        json!({ "matchLabels": { "app": "web" } }),
        json!({ "matchLabels": { "app": "web", "tier": "front" } }),
        json!({ "matchLabels": { "app": "db" } }),
        json!({ "matchLabels": { "tier": "" } }),
        one("app", "In", &["web"]),
        one("app", "In", &["web", "db"]),
        one("app", "NotIn", &["web"]),
        one("app", "NotIn", &["db", ""]),
        one("tier", "Exists", &[]),
        one("tier", "DoesNotExist", &[]),
        one("example.com/app", "Exists", &[]),
        one("example.com/app", "In", &["web"]),
    ]
}

fn job(name: usize, selector: &Value) -> DynamicObject {
    let kinds = [("Preheat", "stoker.dev/v1alpha1"), ("ImagePullJob", "apps.kruise.io/v1beta1")];
    let (kind, api_version) = kinds[name % 2];
    let spec = match kind {
        "Preheat" => json!({ "images": [{ "image": "reg.test/web:1" }], "nodes": { "podSelector": selector } }),
        _ => json!({ "image": "reg.test/web:1", "podSelector": selector }),
    };
    let metadata = json!({ "name": format!("j{name}"), "namespace": "a", "creationTimestamp": "2026-01-01T00:00:00Z" });
    serde_json::from_value(json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec }))
        .unwrap()
}

/// A pod is there, with these labels and on this node; or it is gone.
#[derive(Clone, Debug)]
struct Change {
    name: u8,
    namespace: &'static str,
    pod: Option<(usize, BTreeMap<String, String>)>,
}

fn change() -> impl Strategy<Value = Change> {
    let value = || prop_oneof![Just(None), Just(Some("web")), Just(Some("db")), Just(Some("front")), Just(Some(""))];
    let labels = (value(), value(), value()).prop_map(|(app, tier, other)| {
        let all = [("app", app), ("tier", tier), ("example.com/app", other)].into_iter();
        all.filter_map(|(key, value)| Some((key.to_string(), value?.to_string()))).collect()
    });
    let pod = prop::option::weighted(0.8, (0..NODES.len(), labels));
    let namespace = prop_oneof![4 => Just("a"), 1 => Just("b")];
    (0..4u8, namespace, pod).prop_map(|(name, namespace, pod)| Change { name, namespace, pod })
}

impl Change {
    fn happen(&self, paper: &mut Paper) {
        let name = format!("p{}", self.name);
        match &self.pod {
            Some((node, labels)) => {
                let metadata = json!({ "name": name, "namespace": self.namespace, "labels": labels });
                let spec = json!({ "nodeName": NODES[*node] });
                let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec });
                paper.put(serde_json::from_value(pod).unwrap());
            }
            None => {
                let _ = paper.delete(&PaperId::new("Pod", self.namespace, &name), None, crate::telling::now());
            }
        }
    }
}

/// The nodes of every job.
fn nodes(teller: &Teller) -> BTreeMap<String, BTreeSet<String>> {
    let jobs = teller.world.jobs().filter_map(|id| teller.world.job(id));
    let names =
        |job: &stoker_core::Job| job.names.iter().flat_map(|names| names.keys()).map(ToString::to_string).collect();
    jobs.map(|job| (job.id.name().to_string(), names(job))).collect()
}

fn watches_of_pods(teller: &Teller) -> Vec<Query> {
    teller.view.wanted().into_iter().filter(|query| query.kind.name == "Pod").collect()
}

proptest! {
    #![proptest_config(crate::laws::config())]

    #[test]
    fn what_is_selected_does_not_depend_on_who_selects(changes in prop::collection::vec(change(), 1..30), seed in any::<usize>()) {
        let mut together = Teller::new(Paper::default(), false);
        let mut alone: Vec<Teller> = Vec::new();
        for (name, selector) in selectors().iter().enumerate() {
            let mut one = Teller::new(Paper::default(), false);
            one.paper.put(job(name, selector));
            together.paper.put(job(name, selector));
            alone.push(one);
        }
        for change in &changes {
            for teller in alone.iter_mut().chain([&mut together]) {
                change.happen(&mut teller.paper);
                teller.catch_up(seed);
            }
            assert_eq!(nodes(&together), alone.iter().flat_map(nodes).collect());
        }
        let whole = watches_of_pods(&together);
        assert_eq!((whole.len(), whole[0].labels.as_str()), (1, ""));
        assert!(alone.iter().all(|one| watches_of_pods(one).iter().all(|query| !query.labels.is_empty())));
    }
}

/// One who may edit a namespace may write as many selectors as there is room for.
#[test]
fn many_selectors_of_a_namespace_are_one_watch() {
    let mut teller = Teller::new(Paper::default(), false);
    let pod = |name: &str, app: &str| -> DynamicObject {
        let metadata = json!({ "name": name, "namespace": "a", "labels": { "app": app } });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": { "nodeName": "n1" } });
        serde_json::from_value(pod).unwrap()
    };
    for number in 0..1_100 {
        teller.paper.put(job(number, &json!({ "matchLabels": { "app": format!("a{number}") } })));
    }
    teller.paper.put(pod("p", "a7"));
    teller.catch_up(0);
    assert_eq!(watches_of_pods(&teller).len(), 1);
    let on_n1 = |teller: &Teller| -> Vec<String> {
        nodes(teller).into_iter().filter(|(_, nodes)| nodes.contains("n1")).map(|(job, _)| job).collect()
    };
    assert_eq!(on_n1(&teller), ["j7"]);
    teller.paper.put(pod("p", "a9"));
    teller.catch_up(0);
    assert_eq!(
        on_n1(&teller),
        ["j9"],
        "both the one that it has left and the one that it has joined are derived again"
    );
    // When few are left, the API server selects again.
    for number in 2..1_100 {
        let kind = ["Preheat", "ImagePullJob"][number % 2];
        teller.paper.delete(&PaperId::new(kind, "a", &format!("j{number}")), None, crate::telling::now()).unwrap();
    }
    teller.catch_up(0);
    let selected: Vec<String> = watches_of_pods(&teller).into_iter().map(|query| query.labels).collect();
    assert_eq!(selected, ["app=a0", "app=a1"]);
}

/// An API server refuses such a selector, and the watch would be tried again for ever. A schema cannot check the keys of `matchLabels`.
#[test]
fn a_selector_that_no_api_server_could_evaluate_is_not_watched() {
    let mut teller = Teller::new(Paper::default(), false);
    (0..2).for_each(|name| teller.paper.put(job(name, &json!({ "matchLabels": { "a..b/x": "web" } }))));
    teller.catch_up(0);
    assert_eq!(watches_of_pods(&teller), []);
    assert_eq!(teller.world.jobs().count(), 0, "nothing is pulled for them");
    let problems: Vec<&str> = teller.view.roots().filter_map(|root| teller.view.problem(root)).collect();
    assert_eq!(problems.len(), 2);
    assert!(problems.iter().all(|problem| problem.contains("podSelector cannot be read: `a..b/x`")), "{problems:?}");
}

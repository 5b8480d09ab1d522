//! What a View tells the World of policies, and of the labels of namespaces where one goes by them.

use kube_core::dynamic::DynamicObject;
use serde_json::{Value, json};
use stoker_api::View;
use stoker_api::native::{NAMESPACES, PREHEAT_POLICIES, PREHEATS};
use stoker_api::view::{Heard, Query};
use stoker_core::World;
use stoker_core::world::NodeState;

use crate::telling::{fleet, now};

struct Scene {
    view: View,
    world: World,
    policies: Query,
    namespaces: Query,
}

fn object(kind: &str, name: &str, spec: Value) -> DynamicObject {
    let version = if kind == "Namespace" { "v1" } else { "stoker.dev/v1alpha1" };
    let labels = if kind == "Namespace" { spec.clone() } else { json!({}) };
    let metadata = json!({ "name": name, "uid": name, "labels": labels, "creationTimestamp": "2026-01-01T00:00:00Z" });
    let mut object = json!({ "apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec });
    if kind == "Preheat" {
        object["metadata"]["namespace"] = json!("shop");
    }
    serde_json::from_value(object).unwrap()
}

impl Scene {
    /// A Preheat of the namespace `shop`.
    fn new() -> Self {
        let (mut view, preheats) = (View::without_signs(), Query::all(&PREHEATS.kind));
        view.see(&preheats, object("Preheat", "web", json!({ "images": [{ "image": "reg.test/web:1" }] })));
        view.hear(&preheats, Heard::Listed);
        let (policies, namespaces) = (Query::all(&PREHEAT_POLICIES), Query::all(&NAMESPACES));
        Self { view, world: fleet(), policies, namespaces }
    }

    fn policy(&mut self, name: &str, spec: Value) {
        self.view.see(&self.policies, object("PreheatPolicy", name, spec));
    }

    fn namespace(&mut self, labels: Value) {
        self.view.see(&self.namespaces, object("Namespace", "shop", labels));
    }

    /// Whether nodes wait because they are not allowed, after a plan.
    fn is_held(&mut self) -> bool {
        self.view.settle(&mut self.world);
        self.world.plan(now());
        let job = self.world.jobs().next().unwrap().clone();
        let views = self.world.nodes(&job, now());
        views
            .iter()
            .any(|view| matches!(&view.state, NodeState::Waiting(waiting) if waiting.reason().as_str() == "NotAllowed"))
    }
}

#[test]
fn namespaces_are_watched_while_a_policy_goes_by_their_labels() {
    let mut scene = Scene::new();
    scene.policy("all", json!({ "images": ["reg.test/*"] }));
    scene.view.hear(&scene.policies, Heard::Listed);
    assert!(!scene.is_held());
    assert!(scene.view.wanted().contains(&scene.policies));
    assert!(!scene.view.wanted().contains(&scene.namespaces));
    scene.policy("team", json!({ "namespaces": { "matchLabels": { "team": "a" } }, "images": ["ghcr.io/**"] }));
    scene.is_held();
    assert!(scene.view.wanted().contains(&scene.namespaces));
    assert_eq!(scene.world.policies_unseen(), Some("Namespace"), "nothing is decided until they are listed");
    scene.namespace(json!({ "team": "a" }));
    scene.view.hear(&scene.namespaces, Heard::Listed);
    assert!(scene.is_held());
    assert_eq!(scene.world.policies_unseen(), None);
    scene.namespace(json!({ "team": "b" }));
    assert!(!scene.is_held());
    scene.view.gone(&scene.policies, &(String::new(), "team".into()));
    assert!(!scene.is_held());
    assert!(!scene.view.wanted().contains(&scene.namespaces));
    scene.view.forget(&scene.namespaces);
    scene.policy("team", json!({ "namespaces": { "matchLabels": { "team": "a" } } }));
    scene.is_held();
    assert_eq!(scene.world.policies_unseen(), Some("Namespace"), "what was known of them is void");
}

#[test]
fn what_cannot_be_listed_allows_nothing_new() {
    for (heard, unseen) in [
        (Heard::Deaf { listed: false }, Some("PreheatPolicy")),
        (Heard::Deaf { listed: true }, Some("PreheatPolicy")),
        // There is no such kind.
        (Heard::Refused, None),
    ] {
        let mut scene = Scene::new();
        scene.view.hear(&scene.policies, heard);
        assert!(!scene.view.is_known());
        scene.view.settle(&mut scene.world);
        assert_eq!(scene.world.policies_unseen(), unseen, "{heard:?}");
        assert_eq!(scene.world.plan(now()).orders.is_empty(), unseen.is_some(), "{heard:?}");
    }
    for heard in [Heard::Unlisted, Heard::Deaf { listed: true }, Heard::Refused] {
        let mut scene = Scene::new();
        scene.policy("team", json!({ "namespaces": {}, "images": ["reg.test/*"] }));
        scene.view.hear(&scene.policies, Heard::Listed);
        scene.view.hear(&scene.namespaces, heard);
        scene.view.settle(&mut scene.world);
        assert_eq!(scene.world.policies_unseen(), Some("Namespace"), "{heard:?}");
        assert!(scene.world.plan(now()).orders.is_empty(), "{heard:?}");
    }
}

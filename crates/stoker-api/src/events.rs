//! What is worth an event: that a job started, that its first node failed, how it ended. Compared with what the object's
//! own status says, so that a controller that restarts does not say it twice.

use jiff::Timestamp;
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use serde_json::{Value, json};
use stoker_core::human::count;
use stoker_core::model::Key;
use stoker_core::rollup::{Outcome, Stage};
use stoker_core::{Reason, text};

use crate::dialect::JobKind;
use crate::native::from_core;
use crate::write::{Target, Write};

/// The events that lie between an object's status and the outcome of its job, which has so many images.
pub(crate) fn events(
    kind: &JobKind,
    object: &DynamicObject,
    (images, outcome): (usize, &Outcome),
    now: Timestamp,
) -> Vec<Write> {
    let before = (kind.summary)(object);
    let images = count(u32::try_from(images).unwrap_or(u32::MAX), "image");
    let nodes = count(outcome.desired, "node");
    let mut events = Vec::new();
    let lacked_nodes = before.desired == 0 && !before.phase.is_empty() && !before.ended;
    let was_held = before.message.contains(NOT_ALLOWED) && started(object).is_none();
    let begins = before.phase.is_empty() || was_held || lacked_nodes && outcome.desired > 0;
    if begins && outcome.started.is_some() && !outcome.lacks_nodes {
        let message = format!("Preheating {images} on {nodes}");
        events.push(event(kind, object, "Started", true, &message, now));
        // What is ignored of an object of another project, which no schema can refuse.
        let ignored = before.warnings.iter().filter(|_| kind.is_foreign());
        events.extend(ignored.map(|warning| event(kind, object, "Ignored", false, warning, now)));
        // Objects of other projects have no field for warnings.
        if outcome.private && kind.is_foreign() {
            events.push(event(kind, object, "ImagesShared", false, from_core::SHARED, now));
        }
    }
    if let Some(refusal) = &outcome.not_allowed {
        // How many nodes there are may change all the time.
        let said = format!("PreheatPolicy {}{NOT_ALLOWED}{})", refusal.policy, refusal.field);
        if !before.message.contains(&said) && !before.ended {
            events.push(event(kind, object, Reason::NotAllowed.as_str(), false, &refusal.to_string(), now));
        }
    }
    if outcome.waits_for_nodes() && !lacked_nodes {
        let [none, compare] = from_core::no_nodes(object);
        let none = || format!("{none}, so nothing is pulled; {compare}");
        let message = from_core::unseen(outcome).unwrap_or_else(none);
        events.push(event(kind, object, from_core::without_nodes(outcome).as_str(), false, &message, now));
    }
    if before.failed == 0
        && let Some(first) = outcome.failures.first()
    {
        let message = format!("Node {} failed with {}: {}", first.node, first.reason, first.message);
        events.push(event(kind, object, "NodeFailed", false, &message, now));
    }
    let ends = !before.ended && outcome.completed.is_some();
    // A job that does not end is complete again and again: whenever none of its nodes is left to do anything.
    let was_complete = before.desired > 0 && before.succeeded.saturating_add(before.failed) >= before.desired;
    if ends || outcome.stage == Stage::Synced && !was_complete {
        let alone = outcome.alone.iter().filter(|_| kind.is_foreign());
        events
            .extend(alone.map(|image| event(kind, object, "DigestUnconfirmed", false, &from_core::alone(image), now)));
    }
    if ends {
        let (good, reason, message) = match outcome.stage {
            Stage::Succeeded if outcome.failed > 0 => {
                let message = format!("Preheated {images} on {} of {nodes}; as many failed as may", outcome.succeeded);
                (true, "Succeeded", message)
            }
            Stage::Succeeded => (true, "Succeeded", format!("Preheated {images} on {nodes}")),
            _ if outcome.lacks_nodes => {
                (false, "Failed", format!("Preheating {images} failed: no node matched before the deadline"))
            }
            _ => (false, "Failed", format!("Preheating {images} failed on {} of {nodes}", outcome.failed)),
        };
        events.push(event(kind, object, reason, good, &message, now));
    }
    events
}

/// What stands between a policy and its field where it does not allow a job: see [`stoker_core::Refusal`].
const NOT_ALLOWED: &str = " does not allow this job (";

/// When the job began, as its object says. All kinds have this field.
fn started(object: &DynamicObject) -> Option<&Value> {
    object.data.pointer("/status/startTime").filter(|time| !time.is_null())
}

/// The event of an object whose status cannot be read.
pub(crate) fn unreadable(kind: &JobKind, object: &DynamicObject, problem: &str, now: Timestamp) -> Write {
    let message = format!(
        "the status of this object cannot be read, so nobody knows whether the job has ended, and nothing is done about it; mend \
         its status, or delete the object and make it anew ({problem})"
    );
    event(kind, object, Reason::StatusUnreadable.as_str(), false, &message, now)
}

/// The event of an object that has orders, and whose nodes are not known any more because objects of this kind cannot be listed.
pub(crate) fn lost_sight(kind: &JobKind, object: &DynamicObject, unseen: &str, now: Timestamp) -> Write {
    let message = format!(
        "the nodes are not known, because {unseen} objects of this namespace cannot be listed; what was ordered stays as it is until \
         then; `stoker install` prints the roles that allow it"
    );
    event(kind, object, Reason::CannotSee.as_str(), false, &message, now)
}

pub(crate) fn event(
    kind: &JobKind,
    object: &DynamicObject,
    reason: &str,
    good: bool,
    message: &str,
    now: Timestamp,
) -> Write {
    let resource = kind.kind.resource_of(object);
    let name = object.metadata.name.clone().unwrap_or_default();
    // Events of objects without a namespace are in this one.
    let namespace = object.metadata.namespace.clone().unwrap_or_else(|| "default".into());
    // What is said of one state of the object again has the same name, and is refused as such: a write that failed is made anew.
    let version = object.metadata.resource_version.as_deref().unwrap_or_default();
    let unique = Key::of(&format!("{version} {message}")).to_string();
    let kind = resource.kind.to_lowercase();
    // A part of a name must not end in a dash or a dot either.
    let begins = name.get(..150).unwrap_or(&name).trim_end_matches(['-', '.']);
    let event_name = format!("{begins}.{kind}.{}.{unique:.16}", reason.to_lowercase().replace(' ', "-"));
    let second = Timestamp::from_second(now.as_second()).unwrap_or(now).to_string();
    let target = Target {
        resource: ApiResource {
            group: String::new(),
            version: "v1".into(),
            api_version: "v1".into(),
            kind: "Event".into(),
            plural: "events".into(),
        },
        namespace: Some(namespace.clone()),
        name: event_name.clone(),
    };
    Write::Create(
        target,
        json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": { "name": event_name, "namespace": namespace },
            "involvedObject": {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "name": name,
                "namespace": object.metadata.namespace,
                "uid": object.metadata.uid,
            },
            "reason": reason,
            "message": text::message(message).chars().take(1000).collect::<String>(),
            "type": if good { "Normal" } else { "Warning" },
            "count": 1,
            "firstTimestamp": second,
            "lastTimestamp": second,
            "source": { "component": "stoker" },
            "reportingComponent": "stoker.dev/controller",
            "reportingInstance": "stoker",
        }),
    )
}

/// The same event, which tells of a write of this other object: it is told where that write has succeeded, whatever becomes of others.
pub(crate) fn related(event: Write, to: &Target) -> Write {
    let Write::Create(target, mut event) = event else { return event };
    let Target { resource, namespace, name } = to;
    event["related"] = json!({
        "apiVersion": resource.api_version, "kind": resource.kind, "namespace": namespace, "name": name,
    });
    Write::Create(target, event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_core::rollup::FailedNode;
    use stoker_core::{Event, Reason, World};

    /// A Preheat of so many images, and how it stands on so many nodes when it is first planned.
    fn begun(images: usize, nodes: usize) -> (DynamicObject, Outcome) {
        let images: Vec<_> = (0..images).map(|number| json!({ "image": format!("r.example/i{number}:1") })).collect();
        let mut object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "stoker.dev/v1alpha1", "kind": "Preheat",
            "metadata": { "name": "web", "namespace": "shop", "uid": "u", "generation": 1 },
            "spec": { "images": images },
        }))
        .unwrap();
        let now = Timestamp::UNIX_EPOCH;
        object.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
        let mut world = World::new();
        for number in 0..nodes {
            let name = format!("n{number}");
            let node = stoker_core::Node {
                name: name.as_str().into(),
                labels: Default::default(),
                ready: true,
                ready_changed: None,
                cordoned: false,
                foreign: false,
            };
            world.apply(Event::Node(node));
            world.apply(Event::Orders(name.as_str().into(), Default::default()));
        }
        let mut view = crate::View::default();
        view.see(&crate::view::Query::all(&crate::native::PREHEATS.kind), object.clone());
        view.settle(&mut world);
        let outcome = world.plan(now).outcomes.remove(0);
        (object, outcome)
    }

    fn said(object: &DynamicObject, outcome: &Outcome) -> Vec<String> {
        let images = object.data["spec"]["images"].as_array().unwrap().len();
        let events = events(&crate::native::PREHEATS, object, (images, outcome), Timestamp::UNIX_EPOCH);
        let text = |write: Write| match write {
            Write::Create(_, event) => {
                let part = |field: &str| event[field].as_str().unwrap_or_default().to_string();
                format!("{} {}: {}", part("type"), part("reason"), part("message"))
            }
            other => panic!("{other:?}"),
        };
        events.into_iter().map(text).collect()
    }

    /// As an API server wants it of objects that have no namespace.
    #[test]
    fn events_of_objects_without_a_namespace_are_in_the_default_one() {
        let (mut object, _) = begun(1, 1);
        for (namespace, of_event) in [(Some("shop"), "shop"), (None, "default")] {
            object.metadata.namespace = namespace.map(str::to_owned);
            let write = event(&crate::native::PREHEATS, &object, "Started", true, "x", Timestamp::UNIX_EPOCH);
            let Write::Create(target, event) = write else { panic!("{write:?}") };
            assert_eq!(target.namespace.as_deref(), Some(of_event));
            assert_eq!(event["metadata"]["namespace"], of_event);
            assert_eq!(event["involvedObject"]["namespace"].as_str(), namespace);
            assert_eq!(Target::of(crate::native::PREHEATS.kind.newest(), &object).namespace.as_deref(), namespace);
            let id = crate::native::PREHEATS.job_id_of(&object);
            let root = crate::view::Root::of(&id).unwrap();
            assert_eq!((root.namespace.as_str(), root.job()), (namespace.unwrap_or_default(), id));
        }
    }

    #[test]
    fn the_part_of_a_long_name_that_an_event_is_named_after_is_a_name() {
        let (mut object, _) = begun(1, 1);
        for letter in ["-", "."] {
            object.metadata.name = Some(format!("{}{letter}{}", "a".repeat(149), "b".repeat(20)));
            let write = event(&crate::native::PREHEATS, &object, "Started", true, "x", Timestamp::UNIX_EPOCH);
            assert!(write.target().name.starts_with(&format!("{}.preheat.", "a".repeat(149))), "{write:?}");
        }
    }

    /// A Preheat says the same in its status.
    #[test]
    fn objects_of_other_projects_are_warned_by_events() {
        let (mut object, mut outcome) = begun(1, 2);
        let jobs = &crate::dialect::kruise::IMAGE_PULL_JOBS;
        (object.data, object.types) = (json!({ "spec": { "image": "r.example/i0:1" } }), None);
        let reasons = |kind: &JobKind, object: &DynamicObject, outcome: &Outcome| -> Vec<String> {
            let events = events(kind, object, (1, outcome), Timestamp::UNIX_EPOCH).into_iter();
            let reason = |write: Write| match write {
                Write::Create(_, event) => event["reason"].as_str().unwrap().to_string(),
                other => panic!("{other:?}"),
            };
            events.map(reason).collect()
        };
        outcome.private = true;
        assert_eq!(reasons(jobs, &object, &outcome), ["Started", "ImagesShared"]);
        outcome.private = false;
        assert_eq!(reasons(jobs, &object, &outcome), ["Started"]);
        object.data["status"] = json!({ "startTime": "1970-01-01T00:00:00Z", "desired": 2, "active": 2 });
        outcome.alone = vec!["r.example/i0:1".into()];
        assert_eq!(reasons(jobs, &object, &outcome), [""; 0], "another node may confirm it yet");
        (outcome.stage, outcome.succeeded, outcome.completed) = (Stage::Succeeded, 2, Some(Timestamp::UNIX_EPOCH));
        assert_eq!(reasons(jobs, &object, &outcome), ["DigestUnconfirmed", "Succeeded"]);
        // One of type Never does not end.
        (outcome.stage, outcome.completed) = (Stage::Synced, None);
        assert_eq!(reasons(jobs, &object, &outcome), ["DigestUnconfirmed"]);
        object.data["status"] =
            json!({ "startTime": "1970-01-01T00:00:00Z", "desired": 2, "active": 0, "succeeded": 1, "failed": 1 });
        assert_eq!(reasons(jobs, &object, &outcome), [""; 0], "it was said of this round");
        (outcome.stage, outcome.completed) = (Stage::Succeeded, Some(Timestamp::UNIX_EPOCH));
        let native = &crate::native::PREHEATS;
        (object.data, outcome.private) = (begun(1, 2).0.data, true);
        assert!(reasons(native, &object, &outcome).iter().all(|reason| reason == "Started" || reason == "Succeeded"));
    }

    #[test]
    fn events_are_plain_sentences() {
        let (_, one) = begun(1, 1);
        let (mut object, mut outcome) = begun(2, 3);
        assert_eq!(said(&begun(1, 1).0, &one), ["Normal Started: Preheating 1 image on 1 node"]);
        assert_eq!(said(&object, &outcome), ["Normal Started: Preheating 2 images on 3 nodes"]);

        let waiting = Outcome { desired: 0, lacks_nodes: true, ..outcome.clone() };
        let none = "Warning NoNodes: no node matches spec.nodes, so nothing is pulled; compare it with `kubectl get nodes \
                    --show-labels`";
        assert_eq!(said(&object, &waiting), [none], "nothing has started");
        let mut by_pods = object.clone();
        by_pods.data["spec"]["nodes"] = json!({ "podSelector": {} });
        let none = "Warning NoNodes: no pod of this namespace that is on a node matches spec.nodes.podSelector, so nothing is pulled; \
                    compare it with `kubectl get pods -o wide --show-labels`";
        assert_eq!(said(&by_pods, &waiting), [none]);
        object.data["status"] = json!({ "phase": "Running", "observedGeneration": 1, "desired": 0 });
        assert_eq!(said(&object, &waiting), [""; 0]);
        assert_eq!(said(&object, &outcome), ["Normal Started: Preheating 2 images on 3 nodes"], "now it has");
        let completed = Some(Timestamp::UNIX_EPOCH);
        let ended = Outcome { stage: Stage::Failed, completed, ..waiting };
        assert_eq!(
            said(&object, &ended),
            ["Warning Failed: Preheating 2 images failed: no node matched before the deadline"]
        );

        object.data["status"] = json!({ "phase": "Running", "observedGeneration": 1, "desired": 3 });
        assert_eq!(said(&object, &outcome), [""; 0], "it was said");
        outcome.completed = Some(Timestamp::UNIX_EPOCH);
        (outcome.stage, outcome.succeeded) = (Stage::Succeeded, 3);
        assert_eq!(said(&object, &outcome), ["Normal Succeeded: Preheated 2 images on 3 nodes"]);

        (outcome.stage, outcome.succeeded, outcome.failed) = (Stage::Failed, 2, 1);
        let message = "r.example has no image r.example/i0:1; check the name, or push it".to_string();
        outcome.failures = vec![FailedNode { node: "n1".into(), reason: Reason::NotFound, message }];
        let wanted = [
            "Warning NodeFailed: Node n1 failed with NotFound: r.example has no image r.example/i0:1; check the name, or push it",
            "Warning Failed: Preheating 2 images failed on 1 of 3 nodes",
        ];
        assert_eq!(said(&object, &outcome), wanted);
    }
}

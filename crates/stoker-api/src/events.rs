//! What is worth an event: that a job started, that its first node failed, how it ended. Compared with what the object's
//! own status says, so that a controller that restarts does not say it twice.

use jiff::Timestamp;
use kube_core::discovery::ApiResource;
use kube_core::dynamic::DynamicObject;
use serde_json::json;
use stoker_core::Reason;
use stoker_core::rollup::{Outcome, Stage};

use crate::dialect::Dialect;
use crate::write::{Target, Write};

/// The events that lie between an object's status and an outcome.
pub fn events(dialect: &Dialect, object: &DynamicObject, outcome: &Outcome, now: Timestamp) -> Vec<Write> {
    let before = (dialect.summary)(object);
    let mut events = Vec::new();
    if before.phase.is_empty() && outcome.started.is_some() {
        let message = format!("{} nodes shall have the images", outcome.desired);
        events.push(event(dialect, object, "Started", true, &message, now));
    }
    let lacked_nodes = before.desired == 0 && !before.phase.is_empty();
    if outcome.waits_for_nodes() && !lacked_nodes {
        let message =
            "no node matches spec.nodes, so nothing is pulled; compare it with `kubectl get nodes --show-labels`";
        events.push(event(dialect, object, Reason::NoNodes.as_str(), false, message, now));
    }
    if before.failed == 0
        && let Some(first) = outcome.failures.first()
    {
        let message = format!("node {}: {}: {}", first.node, first.reason, first.message);
        events.push(event(dialect, object, "NodeFailed", false, &message, now));
    }
    if !before.ended && outcome.completed.is_some() {
        let (good, reason) = match outcome.stage {
            Stage::Succeeded => (true, "Succeeded"),
            _ => (false, "Failed"),
        };
        let message = format!("{} of {} nodes have every image", outcome.succeeded, outcome.desired);
        events.push(event(dialect, object, reason, good, &message, now));
    }
    events
}

/// The event of an object whose status cannot be read.
pub fn unreadable(dialect: &Dialect, object: &DynamicObject, problem: &str, now: Timestamp) -> Write {
    let message = format!(
        "the status of this object cannot be read, so nobody knows whether the job has ended, and nothing is done about it; mend \
         its status, or delete the object and make it anew ({problem})"
    );
    event(dialect, object, Reason::StatusUnreadable.as_str(), false, &message, now)
}

fn event(dialect: &Dialect, object: &DynamicObject, reason: &str, good: bool, message: &str, now: Timestamp) -> Write {
    let resource = (dialect.resource)();
    let name = object.metadata.name.clone().unwrap_or_default();
    let namespace = object.metadata.namespace.clone().unwrap_or_default();
    // The same event again is the same name, and refused as such.
    let unique = format!("{:x}", now.as_millisecond());
    let event_name = format!("{:.200}.{}.{unique}", name, reason.to_lowercase());
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
                "namespace": namespace,
                "uid": object.metadata.uid,
            },
            "reason": reason,
            "message": message.chars().take(1000).collect::<String>(),
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

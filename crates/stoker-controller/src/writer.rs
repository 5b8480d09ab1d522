//! Performs writes: one in flight an object with the newest state next, never more than a rate of all together.
//! What fails is tried again with growing pauses until it succeeds or its object is gone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use stoker_api::{Target, Write};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How much the writer may ask of an API server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Writes in a second; saturating an API server is an incident.
    pub writes_per_second: u32,
    /// Writes at one time.
    pub at_once: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { writes_per_second: 100, at_once: 32 }
    }
}

/// The end of a write.
#[derive(Debug)]
pub(crate) struct Done {
    /// The object.
    pub(crate) target: Target,
    /// As it is now; none where it is gone.
    pub(crate) object: Option<DynamicObject>,
    /// Whether no newer write of it waits.
    pub(crate) settled: bool,
}

type Id = (String, String, String, String);

fn id(target: &Target) -> Id {
    let Target { resource, namespace, name } = target;
    (resource.group.clone(), resource.plural.clone(), namespace.clone().unwrap_or_default(), name.clone())
}

/// Writes of one object that have not begun.
#[derive(Default)]
struct Waiting {
    /// In the order they were handed in; patches of one part are merged.
    writes: VecDeque<Write>,
}

impl Waiting {
    fn push(&mut self, write: Write) {
        match (self.writes.back_mut(), write) {
            (Some(Write::Patch(_, old)), Write::Patch(_, new))
            | (Some(Write::Status(_, old)), Write::Status(_, new)) => {
                compose(old, new);
            }
            (_, write) => self.writes.push_back(write),
        }
    }
}

/// One merge patch that does what `first` and then `second` would; unlike applying, nulls stay.
fn compose(first: &mut serde_json::Value, second: serde_json::Value) {
    use serde_json::Value::Object;
    match (first, second) {
        (Object(first), Object(second)) => {
            for (key, value) in second {
                compose(first.entry(key).or_insert(serde_json::Value::Null), value);
            }
        }
        (first, second) => *first = second,
    }
}

/// Performs what comes in until the channel closes.
pub(crate) async fn run(
    client: Client,
    limits: Limits,
    mut writes: mpsc::UnboundedReceiver<Write>,
    done: mpsc::UnboundedSender<Done>,
) {
    let mut waiting: BTreeMap<Id, Waiting> = BTreeMap::new();
    let mut ready: VecDeque<Id> = VecDeque::new();
    let mut busy: BTreeSet<Id> = BTreeSet::new();
    let mut flights: FuturesUnordered<BoxFuture<'static, (Target, Option<DynamicObject>)>> = FuturesUnordered::new();
    let pause = Duration::from_secs(1) / limits.writes_per_second.max(1);
    let mut next = Instant::now();
    loop {
        let may_start = !ready.is_empty() && flights.len() < limits.at_once;
        tokio::select! {
            write = writes.recv() => {
                let Some(write) = write else { return };
                let id = id(write.target());
                let slot = waiting.entry(id.clone()).or_default();
                if slot.writes.is_empty() && !busy.contains(&id) {
                    ready.push_back(id);
                }
                slot.push(write);
            }
            Some((target, object)) = flights.next(), if !flights.is_empty() => {
                let id = id(&target);
                busy.remove(&id);
                let settled = !waiting.contains_key(&id);
                if !settled {
                    ready.push_back(id);
                }
                if done.send(Done { target, object, settled }).is_err() {
                    return;
                }
            }
            () = tokio::time::sleep_until(next), if may_start => {
                let Some(id) = ready.pop_front() else { continue };
                let Some(slot) = waiting.get_mut(&id) else { continue };
                let Some(write) = slot.writes.pop_front() else { continue };
                if slot.writes.is_empty() {
                    waiting.remove(&id);
                }
                busy.insert(id);
                // A second's worth may go at once after a quiet time; then the rate holds.
                let earliest = Instant::now().checked_sub(Duration::from_secs(1)).unwrap_or(next);
                next = next.max(earliest) + pause;
                flights.push(perform(client.clone(), write).boxed());
            }
        }
    }
}

/// Tries until it succeeds or the object is gone.
async fn perform(client: Client, write: Write) -> (Target, Option<DynamicObject>) {
    let target = write.target().clone();
    let api: Api<DynamicObject> = match &target.namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &target.resource),
        None => Api::all_with(client, &target.resource),
    };
    let mut pause = Duration::from_millis(200);
    loop {
        let result = match &write {
            Write::Patch(_, patch) => {
                api.patch(&target.name, &PatchParams::default(), &Patch::Merge(patch)).await.map(Some)
            }
            Write::Status(_, patch) => {
                api.patch_status(&target.name, &PatchParams::default(), &Patch::Merge(patch)).await.map(Some)
            }
            Write::Delete(_, uid) => {
                let preconditions = uid.clone().map(|uid| Preconditions { uid: Some(uid), resource_version: None });
                api.delete(&target.name, &DeleteParams { preconditions, ..DeleteParams::background() })
                    .await
                    .map(|_| None)
            }
        };
        match result {
            Ok(object) => return (target, object),
            Err(kube::Error::Api(status)) if status.code == 404 => return (target, None),
            // The uid is another: this object is not the one that was to go.
            Err(kube::Error::Api(status)) if status.code == 409 && matches!(write, Write::Delete(..)) => {
                return (target, None);
            }
            Err(problem) => {
                tracing::warn!(
                    kind = target.resource.kind,
                    name = target.name,
                    "write failed, trying again: {problem}"
                );
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(30));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn composed_patches_do_what_both_would() {
        let cases = [
            (json!({"a": 1}), json!({"b": null}), json!({"a": 1, "b": null})),
            (json!({"a": {"x": 1}}), json!({"a": null}), json!({"a": null})),
            (json!({"a": {"x": 1}}), json!({"a": {"y": 2}}), json!({"a": {"x": 1, "y": 2}})),
            (json!({"a": null}), json!({"a": {"y": 2}}), json!({"a": {"y": 2}})),
        ];
        for (first, second, both) in cases {
            let mut composed = first.clone();
            compose(&mut composed, second.clone());
            assert_eq!(composed, both, "{first} then {second}");
        }
    }
}

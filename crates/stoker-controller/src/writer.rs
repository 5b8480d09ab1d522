//! Performs writes: one in flight an object with the newest state next, never more than a rate of all together. What
//! fails waits with growing pauses, without holding up others. Orders are then sent again, until they succeed or their object is
//! gone; of any other write it is said that it failed, and whoever asked for it computes it anew. Nothing is sent when the term of
//! whoever leads is over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use kube::{Client, Resource as _};
use serde_json::Value;
use stoker_api::native::NodeObject;
use stoker_api::{AnyObject, Target, Write, is_refused_for_its_content};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::lease::Term;
use crate::metrics::Metrics;
use crate::moment::{Moment, Moments};
use crate::problem::Problem;
use crate::run::Settings;

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

/// No answer after this long is as good as a broken connection.
const PATIENCE: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A write with its number: they are numbered in the order in which they are handed out.
pub(crate) type Numbered = (u64, Write);

/// The end of a write.
#[derive(Debug)]
pub(crate) struct Done {
    /// The object.
    pub(crate) target: Target,
    /// The newest write that this is the end of.
    pub(crate) number: u64,
    /// What came of it.
    pub(crate) answer: Answer,
    /// When the answer came.
    pub(crate) at: Moment,
}

/// What came of a write.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The NodePreheat as it is now, without what nobody looks at.
    Node(Box<NodeObject>),
    /// The object of any other kind as it is now.
    Object(Box<DynamicObject>),
    /// The object is gone, another one has its name, or it was changed by somebody else where the write is for one state of it.
    Gone,
    /// It failed, and the pause after that is over. Orders do not end so: they are sent again.
    Failed,
}

impl Answer {
    fn node(object: NodeObject) -> Self {
        Self::Node(Box::new(object))
    }

    fn object(AnyObject(object): AnyObject) -> Self {
        Self::Object(Box::new(object))
    }
}

/// Group, plural, namespace and name of an object.
pub(crate) type Id = (String, String, String, String);

pub(crate) fn id(target: &Target) -> Id {
    let Target { resource, namespace, name } = target;
    (resource.group.clone(), resource.plural.clone(), namespace.clone().unwrap_or_default(), name.clone())
}

/// Adds a write behind those that wait for the same object; a patch of the same part is merged into the last.
pub(crate) fn push(waiting: &mut VecDeque<Numbered>, (number, write): Numbered) {
    use Write::{Patch, Status};
    if let (Some((last, Patch(_, old))), Patch(_, new)) | (Some((last, Status(_, old))), Status(_, new)) =
        (waiting.back_mut(), &write)
        && compose(old, new)
    {
        *last = number;
        return;
    }
    waiting.push_back((number, write));
}

/// Makes of the first merge patch one that does what both would; false where no single patch can: what was taken away
/// and is put back would bring back its old parts.
fn compose(first: &mut Value, second: &Value) -> bool {
    if !composable(first, second) {
        return false;
    }
    match (first, second) {
        (Value::Object(first), Value::Object(second)) => {
            for (key, value) in second {
                match first.get_mut(key) {
                    Some(old) => {
                        compose(old, value);
                    }
                    None => {
                        first.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        (first, second) => first.clone_from(second),
    }
    true
}

fn composable(first: &Value, second: &Value) -> bool {
    match (first, second) {
        (Value::Object(first), Value::Object(second)) => {
            second.iter().all(|(key, value)| first.get(key).is_none_or(|old| composable(old, value)))
        }
        (_, Value::Object(_)) => false,
        _ => true,
    }
}

/// A try, and what came of it.
type Flight = (Numbered, Result<Answer, String>, Moment);

struct Writer {
    client: Client,
    term: Term,
    moments: Moments,
    metrics: Metrics,
    waiting: BTreeMap<Id, VecDeque<Numbered>>,
    ready: VecDeque<Id>,
    /// In flight, or resting after a failure.
    busy: BTreeSet<Id>,
    flights: FuturesUnordered<BoxFuture<'static, Flight>>,
    rests: FuturesUnordered<BoxFuture<'static, (Id, Option<Done>)>>,
    /// Of those whose last try failed: the next pause, and the problem that was said.
    troubles: BTreeMap<Id, (Duration, String)>,
}

/// What is to be written.
pub(crate) struct Inbox {
    /// Orders, and what must not overtake them: thousands at a time, so they are taken only when they can go soon. Where they
    /// wait they are small.
    pub(crate) orders: mpsc::Receiver<Numbered>,
    /// Everything else, which never has to wait for more than a few of them.
    pub(crate) others: mpsc::UnboundedReceiver<Numbered>,
    /// How many nodes wait for orders that did not come in yet.
    pub(crate) owed: Arc<AtomicUsize>,
}

/// Performs what comes in until the channels close.
pub(crate) async fn run(
    settings: Settings,
    term: Term,
    moments: Moments,
    mut inbox: Inbox,
    done: mpsc::UnboundedSender<Done>,
) {
    let Settings { client, limits, metrics, .. } = settings;
    let mut writer = Writer {
        client,
        term,
        moments,
        metrics,
        waiting: BTreeMap::new(),
        ready: VecDeque::new(),
        busy: BTreeSet::new(),
        flights: FuturesUnordered::new(),
        rests: FuturesUnordered::new(),
        troubles: BTreeMap::new(),
    };
    let pause = Duration::from_secs(1) / limits.writes_per_second.max(1);
    let mut next = Instant::now();
    loop {
        writer.metrics.writes_waiting(writer.waiting.len() + inbox.owed.load(Ordering::Relaxed));
        let may_start = !writer.ready.is_empty() && writer.flights.len() < limits.at_once;
        tokio::select! {
            write = inbox.others.recv() => {
                let Some(write) = write else { return };
                writer.take(write);
            }
            // Those that rest after a failure are not in the way of others.
            Some(write) = inbox.orders.recv(), if writer.ready.len() < limits.at_once => writer.take(write),
            Some(flight) = writer.flights.next(), if !writer.flights.is_empty() => {
                if let Some(end) = writer.land(flight)
                    && done.send(end).is_err()
                {
                    return;
                }
            }
            Some((id, failed)) = writer.rests.next(), if !writer.rests.is_empty() => {
                writer.go_on(id);
                if let Some(failed) = failed
                    && done.send(failed).is_err()
                {
                    return;
                }
            }
            () = tokio::time::sleep_until(next), if may_start => {
                // A second's worth may go at once after a quiet time; then the rate holds.
                let earliest = Instant::now().checked_sub(Duration::from_secs(1)).unwrap_or(next);
                next = next.max(earliest) + pause;
                writer.start();
            }
        }
    }
}

impl Writer {
    fn take(&mut self, write: Numbered) {
        let id = id(write.1.target());
        let waiting = self.waiting.entry(id.clone()).or_default();
        if waiting.is_empty() && !self.busy.contains(&id) {
            self.ready.push_back(id);
        }
        push(waiting, write);
    }

    fn start(&mut self) {
        let Some(id) = self.ready.pop_front() else { return };
        let Some(waiting) = self.waiting.get_mut(&id) else { return };
        let Some(write) = waiting.pop_front() else { return };
        if waiting.is_empty() {
            self.waiting.remove(&id);
        }
        self.busy.insert(id);
        let (client, mut term, moments) = (self.client.clone(), self.term.clone(), self.moments.clone());
        let flight = async move {
            // The one place where anything is sent, so the one place to ask; the last thing before it.
            term.holds().await;
            let result = match tokio::time::timeout(PATIENCE, perform(client, &write.1)).await {
                Ok(result) => result,
                Err(_) => Err(format!("no answer after {} s", PATIENCE.as_secs())),
            };
            (write, result, moments.now())
        };
        self.flights.push(flight.boxed());
    }

    /// What waits for this object may be sent.
    fn go_on(&mut self, id: Id) {
        self.busy.remove(&id);
        if self.waiting.contains_key(&id) {
            self.ready.push_back(id);
        }
    }

    fn land(&mut self, ((number, write), result, at): Flight) -> Option<Done> {
        let target = write.target().clone();
        let id = id(&target);
        self.metrics.wrote(&target.resource.kind, result.is_ok());
        match result {
            Ok(answer) => {
                self.troubles.remove(&id);
                self.go_on(id);
                Some(Done { target, number, answer, at })
            }
            Err(problem) if target.resource.kind != NodeObject::kind(&()) => {
                let rest = self.complain(&target, &id, problem);
                let failed = Done { target, number, answer: Answer::Failed, at };
                self.rests.push(tokio::time::sleep(rest).map(move |()| (id, Some(failed))).boxed());
                None
            }
            Err(problem) => {
                // Before what came later, and merged with it: the newest state goes next.
                let newer = self.waiting.remove(&id).unwrap_or_default();
                let waiting = self.waiting.entry(id.clone()).or_default();
                for write in [(number, write)].into_iter().chain(newer) {
                    push(waiting, write);
                }
                let rest = self.complain(&target, &id, problem);
                self.rests.push(tokio::time::sleep(rest).map(move |()| (id, None)).boxed());
                None
            }
        }
    }
}

impl Writer {
    /// Says what went wrong, once for as long as it stays the same; returns how long to wait before the next try.
    fn complain(&mut self, target: &Target, id: &Id, problem: String) -> Duration {
        let (kind, name) = (&target.resource.kind, &target.name);
        let (rest, said) = self.troubles.remove(id).unwrap_or((FIRST_PAUSE, String::new()));
        match problem == said {
            true => tracing::debug!(kind, name, "write failed, trying again: {problem}"),
            false => tracing::warn!(kind, name, "write failed, trying again: {problem}"),
        }
        self.troubles.insert(id.clone(), ((rest * 2).min(LONGEST_PAUSE), problem));
        rest
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.metrics.writes_waiting(0);
    }
}

/// One try. An object that is gone, or whose name another one has, is no failure.
async fn perform(client: Client, write: &Write) -> Result<Answer, String> {
    let Target { resource, namespace, name } = write.target();
    let api: Api<AnyObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    };
    let params = PatchParams::default();
    let result = match write {
        Write::Patch(_, patch) if resource.kind == NodeObject::kind(&()) => {
            write_orders(&Api::all(client), name, patch).await.map(Answer::node)
        }
        Write::Patch(_, patch) => api.patch(name, &params, &Patch::Merge(patch)).await.map(Answer::object),
        Write::Status(_, patch) => api.patch_status(name, &params, &Patch::Merge(patch)).await.map(Answer::object),
        Write::Guarded(_, patch) => api.patch(name, &params, &Patch::Merge(patch)).await.map(Answer::object),
        Write::Create(_, object) => match serde_json::from_value::<AnyObject>(object.clone()) {
            Ok(object) => api.create(&PostParams::default(), &object).await.map(Answer::object),
            Err(problem) => Err(kube::Error::SerdeError(problem)),
        },
        Write::Delete(_, uid) => {
            let preconditions = uid.clone().map(|uid| Preconditions { uid: Some(uid), resource_version: None });
            let params = DeleteParams { preconditions, ..DeleteParams::background() };
            api.delete(name, &params).await.map(|_| Answer::Gone)
        }
    };
    let status = match result {
        Err(kube::Error::Api(status)) => status,
        result => return result.map_err(|problem| Problem::Request(&problem).to_string()),
    };
    let gone = match refusal(&status, write) {
        Refusal::Gone => true,
        Refusal::Failed => false,
        Refusal::GoneUnless(uid) => !is_there(&api, name, uid.as_deref()).await?,
    };
    match gone {
        true => Ok(Answer::Gone),
        false => Err(Problem::Request(&kube::Error::Api(status)).to_string()),
    }
}

/// What it means that a write was refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// What it was for is not there any more.
    Gone,
    /// The same, unless the object of this name is there, the one with this uid where one is given.
    GoneUnless(Option<String>),
    /// It may be taken another time.
    Failed,
}

pub(crate) fn refusal(status: &Status, write: &Write) -> Refusal {
    let of = |patch: &Value, field: &str| patch.pointer(field).and_then(Value::as_str).map(str::to_owned);
    match (status.code, write) {
        (404, _) | (409, Write::Guarded(..)) => Refusal::Gone,
        // Somebody else was quicker, or the server could not say in time that nobody was: it is made anew, for the state that is known then.
        (409, Write::Status(_, patch)) if of(patch, "/metadata/resourceVersion").is_some() => Refusal::Failed,
        // A quota that is written by others is a conflict too, and a matter of time.
        (409, Write::Create(..)) if status.reason != "Conflict" => Refusal::Gone,
        (409, Write::Patch(_, patch) | Write::Status(_, patch)) => Refusal::GoneUnless(of(patch, "/metadata/uid")),
        (409, Write::Delete(_, uid)) => Refusal::GoneUnless(uid.clone()),
        // A field that must not change, so the object has another one.
        (422, _) if status.message.contains("metadata.uid") => Refusal::Gone,
        _ => Refusal::Failed,
    }
}

/// Writes orders of a node. Where the API server refuses them because of what is in them, they are written one by one: an order that
/// cannot be written keeps no other from being written, and is tried again with the next ones.
async fn write_orders(api: &Api<NodeObject>, name: &str, patch: &Value) -> Result<NodeObject, kube::Error> {
    let params = PatchParams::default();
    let refused = match api.patch(name, &params, &Patch::Merge(patch)).await {
        Err(kube::Error::Api(status)) if is_refused_for_its_content(&status) => kube::Error::Api(status),
        result => return result,
    };
    let parts = one_by_one(patch);
    if parts.len() < 2 {
        return Err(refused);
    }
    let mut last = Err(refused);
    let mut broken = None;
    for part in parts {
        match api.patch(name, &params, &Patch::Merge(part)).await {
            Err(problem) => broken = Some(problem),
            written => last = written,
        }
    }
    broken.map_or(last, Err)
}

/// A patch of several orders as one patch for each of them.
fn one_by_one(patch: &Value) -> Vec<Value> {
    let orders = patch.pointer("/spec/orders").and_then(Value::as_object).into_iter().flatten();
    let alone = orders.map(|(key, order)| {
        let mut alone = patch.clone();
        if let Some(orders) = alone.pointer_mut("/spec/orders") {
            *orders = serde_json::json!({ key: order });
        }
        alone
    });
    alone.collect()
}

/// Whether the object that a write is for is there, the one with this uid where the write is for that one alone. A conflict
/// says that another has its name, or only that others wrote it at the same time. Listed and not got: that is what a
/// controller may do.
async fn is_there(api: &Api<AnyObject>, name: &str, uid: Option<&str>) -> Result<bool, String> {
    let there = api.list(&ListParams::default().fields(&format!("metadata.name={name}"))).await;
    let there = there.map_err(|problem| Problem::Request(&problem).to_string())?;
    Ok(there.items.iter().any(|object| uid.is_none() || object.meta().uid.as_deref() == uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::client::Body;
    use serde_json::json;

    /// etcd refuses an object that is too large with a 500, and then no order of the node would be written.
    #[tokio::test]
    async fn orders_that_are_too_large_for_etcd_keep_no_other_from_being_written() {
        let (written, orders) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let written = written.clone();
            async move {
                let patch = request.into_body().collect_bytes().await?;
                let (code, answer) = match patch.len() > 1_000 {
                    true => (
                        500,
                        json!({ "status": "Failure", "code": 500, "message": "etcdserver: request is too large" }),
                    ),
                    false => {
                        written.send(serde_json::from_slice::<Value>(&patch)?).ok();
                        (200, json!({ "metadata": { "name": "n1" } }))
                    }
                };
                let answer = http::Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(answer?)
            }
        });
        let api = Api::all(Client::new(service, "default"));
        let patch = json!({ "spec": { "epoch": 1, "orders": {
            "a": { "image": "r/a:1" },
            "large": { "image": "x".repeat(2_000) },
            "z": { "image": "r/z:1" },
        } } });
        assert!(write_orders(&api, "n1", &patch).await.is_err(), "the large one is tried again");
        let mut orders = orders;
        let mut keys = Vec::new();
        while let Ok(patch) = orders.try_recv() {
            keys.extend(patch["spec"]["orders"].as_object().unwrap().keys().cloned());
        }
        assert_eq!(keys, ["a", "z"]);
    }

    /// A patch that was made for one state of an object is stale when somebody else has changed the object. It is not tried again: the
    /// newer state has another patch made.
    #[tokio::test]
    async fn a_conflict_ends_a_guarded_write_and_no_other_patch() {
        for (guarded, is_over, requests) in [(true, true, 1), (false, false, 2)] {
            let sent = Arc::new(AtomicUsize::new(0));
            let counted = sent.clone();
            let service = tower::service_fn(move |request: http::Request<Body>| {
                counted.fetch_add(1, Ordering::Relaxed);
                // The object is there: what is listed is the one that the patch is for.
                let there = json!({ "metadata": {}, "items": [{ "metadata": { "name": "web", "uid": "u" } }] });
                let conflict = json!({ "status": "Failure", "code": 409, "reason": "Conflict", "message": "modified" });
                let (code, answer) = if request.method() == http::Method::GET { (200, there) } else { (409, conflict) };
                let answer = http::Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                async move { Ok::<_, Box<dyn std::error::Error + Send + Sync>>(answer?) }
            });
            let target = Target {
                resource: stoker_api::native::PREHEATS.kind.newest(),
                namespace: Some("shop".into()),
                name: "web".into(),
            };
            let patch = json!({ "metadata": { "uid": "u", "resourceVersion": "7", "finalizers": [] } });
            let write = if guarded { Write::Guarded(target, patch) } else { Write::Patch(target, patch) };
            let ended = perform(Client::new(service, "default"), &write).await;
            assert_eq!(matches!(ended, Ok(Answer::Gone)), is_over, "{write:?}: {ended:?}");
            assert_eq!(sent.load(Ordering::Relaxed), requests, "{write:?}");
        }
    }

    #[test]
    fn composed_patches_do_what_both_would() {
        let cases = [
            (json!({"a": 1}), json!({"b": null}), Some(json!({"a": 1, "b": null}))),
            (json!({"a": {"x": 1}}), json!({"a": null}), Some(json!({"a": null}))),
            (json!({"a": {"x": 1}}), json!({"a": {"y": 2}}), Some(json!({"a": {"x": 1, "y": 2}}))),
            (json!({"a": [1]}), json!({"a": [2]}), Some(json!({"a": [2]}))),
            (json!({"a": null}), json!({"a": {"y": 2}}), None),
            (json!({"b": 1, "a": {"c": null}}), json!({"b": 2, "a": {"c": {"y": 2}}}), None),
        ];
        for (first, second, both) in cases {
            let mut composed = first.clone();
            match both {
                Some(both) => {
                    assert!(compose(&mut composed, &second));
                    assert_eq!(composed, both, "{first} then {second}");
                }
                None => {
                    assert!(!compose(&mut composed, &second));
                    assert_eq!(composed, first, "left as it was");
                }
            }
        }
    }
}

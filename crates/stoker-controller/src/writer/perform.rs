//! One try of a write, and what an answer of the API server means.

use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use kube::{Client, Resource as _};
use serde_json::Value;
use stoker_api::native::NodeObject;
use stoker_api::{AnyObject, Target, Write, is_refused_for_its_content};

use super::Answer;
use super::merge::UID;
use super::turns::holds_orders;
use crate::problem::Problem;

/// The schema's word to a controller that no longer leads.
const EPOCH_FELL: &str = "epoch may neither fall nor vanish";

/// Why a try failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The API server does not take what the write says, and never will; it may take a part of it.
    Refused(String),
    /// Anything else: the same write may be taken another time.
    Passing(String),
}

/// One try. An object that is gone, or whose name another one has, is no failure.
pub(super) async fn perform(client: Client, write: &Write) -> Result<Answer, Failure> {
    let Target { resource, namespace, name } = write.target();
    let api: Api<AnyObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    };
    let params = PatchParams::default();
    let of_object = |object| Answer::object(write.target(), object);
    let result = match write {
        Write::Patch(target, patch) if holds_orders(target) => {
            let api: Api<NodeObject> = Api::all(client);
            api.patch(name, &params, &Patch::Merge(patch)).await.map(Answer::node)
        }
        Write::Patch(_, patch) => api.patch(name, &params, &Patch::Merge(patch)).await.map(of_object),
        Write::Status(_, patch) => api.patch_status(name, &params, &Patch::Merge(patch)).await.map(of_object),
        Write::Guarded(_, patch) => api.patch(name, &params, &Patch::Merge(patch)).await.map(of_object),
        Write::GuardedStatus(_, patch) => api.patch_status(name, &params, &Patch::Merge(patch)).await.map(of_object),
        Write::Create(_, object) => match serde_json::from_value::<AnyObject>(object.clone()) {
            Ok(object) => api.create(&PostParams::default(), &object).await.map(of_object),
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
        result => return result.map_err(|problem| Failure::Passing(Problem::Request(&problem).to_string())),
    };
    let gone = match refusal(&status, write) {
        Refusal::Gone => true,
        Refusal::Failed => false,
        Refusal::GoneUnless(uid) => !is_there(&api, name, uid.as_deref()).await.map_err(Failure::Passing)?,
    };
    // Whoever leads no more is refused whatever it says, and steps down soon.
    let is_refused = is_refused_for_its_content(&status) && !status.message.contains(EPOCH_FELL);
    let problem = || Problem::Request(&kube::Error::Api(status)).to_string();
    match gone {
        true => Ok(Answer::Gone),
        false if is_refused => Err(Failure::Refused(problem())),
        false => Err(Failure::Passing(problem())),
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
        (404, _) | (409, Write::Guarded(..) | Write::GuardedStatus(..)) => Refusal::Gone,
        // Somebody else was quicker, or the server could not say in time that nobody was: it is made anew, for the state that is known then.
        (409, Write::Status(_, patch)) if of(patch, "/metadata/resourceVersion").is_some() => Refusal::Failed,
        // A quota that is written by others is a conflict too, and a matter of time.
        (409, Write::Create(..)) if status.reason != "Conflict" => Refusal::Gone,
        (409, Write::Patch(_, patch) | Write::Status(_, patch)) => Refusal::GoneUnless(of(patch, UID)),
        (409, Write::Delete(_, uid)) => Refusal::GoneUnless(uid.clone()),
        // A field that must not change, so the object has another one.
        (422, _) if status.message.contains("metadata.uid") => Refusal::Gone,
        _ => Refusal::Failed,
    }
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use kube::client::Body;
    use serde_json::json;

    /// etcd refuses an object that is too large with a 500, and a part of the write may be taken all the same.
    #[tokio::test]
    async fn a_write_that_is_too_large_for_etcd_is_refused_for_its_content() {
        for (code, message, refused) in [
            (500, "etcdserver: request is too large", true),
            (422, "no", true),
            (422, EPOCH_FELL, false),
            (500, "no", false),
        ] {
            let service = tower::service_fn(move |_: http::Request<Body>| async move {
                let answer = json!({ "status": "Failure", "code": code, "message": message });
                let answer = http::Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(answer?)
            });
            let target = Target {
                resource: kube::core::ApiResource::erase::<stoker_api::native::NodePreheat>(&()),
                namespace: None,
                name: "n1".into(),
            };
            let write = Write::Patch(target, json!({ "spec": { "orders": { "a": { "image": "r/a:1" } } } }));
            let ended = perform(Client::new(service, "default"), &write).await;
            assert_eq!(matches!(ended, Err(Failure::Refused(_))), refused, "{code} {message}: {ended:?}");
        }
    }

    /// A patch that was made for one state of an object is stale when somebody else has changed the object. It is not tried again: the
    /// newer state has another patch made.
    #[tokio::test]
    async fn a_conflict_ends_a_guarded_write_and_no_other_patch() {
        type Made = fn(Target, Value) -> Write;
        let all: [(Made, bool, usize); 3] =
            [(Write::Guarded, true, 1), (Write::GuardedStatus, true, 1), (Write::Patch, false, 2)];
        for (write, is_over, requests) in all {
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
            let write = write(target, patch);
            let ended = perform(Client::new(service, "default"), &write).await;
            assert_eq!(matches!(ended, Ok(Answer::Gone)), is_over, "{write:?}: {ended:?}");
            assert_eq!(sent.load(Ordering::Relaxed), requests, "{write:?}");
        }
    }
}

//! The World as the API server's objects make it, once: the same facts and the same plan as the controller's, for
//! a command that explains a job. Nothing is written.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::core::{ObjectList, TypeMeta};
use kube::{Client, ResourceExt as _};
use stoker_api::native::{NAMESPACES, NodeObject, PREHEAT_POLICIES};
use stoker_api::view::{Heard, Query};
use stoker_api::{AnyObject, Dialect, JobKind, PlainNode, View, job_kinds, served_kinds};
use stoker_core::{Event, Found, Job, JobId, Key, Reason, SecretId, World};
use tokio::time::Instant;

use crate::peers::{self, PeerBook};
use crate::{facts, home, lease};

/// What was read.
pub struct Snapshot {
    /// The World; it is not planned yet.
    pub world: World,
    /// Kinds that could not be listed, and why: nothing is known of jobs of these.
    pub unheard: Vec<(&'static str, kube::Error)>,
    /// Dialects that are left to their original controllers, and what was seen of these.
    pub left_alone: BTreeMap<&'static str, String>,
    /// Jobs whose objects cannot be read, and why: the World does not know them.
    pub unreadable: BTreeMap<JobId, String>,
}

/// The dialects that the controller leaves to their original controllers, as its Lease says. Only the Lease in Stoker's own namespace
/// counts: anybody who may edit another namespace can make one there. `stoker up` has no bindings, and the usual namespace. Whoever
/// may not see the binding or the Lease knows of none.
pub async fn left_alone(client: &Client) -> BTreeMap<&'static str, String> {
    let home = home(client).await;
    leader_lease(client, home).await.iter().flat_map(said_left_alone).collect()
}

/// The namespace in which Stoker is installed; none where that may not be seen.
async fn home(client: &Client) -> Option<String> {
    let home = home::installed_in(client).await.ok()?;
    Some(home.unwrap_or_else(|| stoker_api::NAMESPACE.to_owned()))
}

/// The Lease of the controller in this namespace, as far as it can be seen.
async fn leader_lease(client: &Client, home: Option<String>) -> Option<AnyObject> {
    let leases = Api::<AnyObject>::namespaced_with(client.clone(), &home?, &ApiResource::erase::<Lease>(&()));
    leases.get_opt(lease::NAME).await.ok().flatten()
}

fn said_left_alone(lease: &AnyObject) -> Vec<(&'static str, String)> {
    let text = lease.annotations().get(lease::LEFT_ALONE).map(String::as_str).unwrap_or("{}");
    let said: BTreeMap<String, String> = serde_json::from_str(text).unwrap_or_default();
    // A newer controller may know others.
    said.into_iter().filter_map(|(name, seen)| Some((Dialect::named(&name)?.name, seen))).collect()
}

/// Reads everything that a plan depends on. Who may not see the jobs of all namespaces explains those of this one: what a job
/// waits for is in its own spec, in Nodes and in NodePreheats.
pub async fn take(client: &Client, namespace: &str) -> Result<Snapshot, kube::Error> {
    let all = ListParams::default();
    let (mut world, mut view) = (World::new(), View::without_signs());
    let home = home(client).await;
    home.iter().for_each(|home| view.live_in(home));
    let lease = leader_lease(client, home).await;
    let left_alone: BTreeMap<_, _> = lease.iter().flat_map(said_left_alone).collect();
    world.relay(lease.is_some_and(|lease| lease.annotations().get(lease::PEERS).is_some_and(|said| said == lease::ON)));
    let (mut peers, now) = (PeerBook::default(), Instant::now());
    left_alone.iter().for_each(|(dialect, seen)| view.leave_alone(dialect, Some(seen.clone())));
    for node in Api::<PlainNode>::all(client.clone()).list(&all).await? {
        let peer = peers.node(&node.name_any(), node.address, now);
        world.apply(Event::Node(node.into_core()));
        world.apply(peer);
    }
    for object in Api::<NodeObject>::all(client.clone()).list(&all).await? {
        let peer = peers.agent(&object.name_any(), peers::said(&object), now);
        let (orders, said) = facts::node(object);
        world.apply(orders);
        said.into_iter().chain([peer]).for_each(|event| world.apply(event));
    }
    let mut unheard = Vec::new();
    // What is read of jobs may want more to be read.
    while let Some(query) = view.wanted().into_iter().find(|query| view.heard(query) == Heard::Unlisted) {
        match list(client, &query, namespace).await {
            Ok(objects) => {
                objects.into_iter().for_each(|object| view.see(&query, object));
                view.hear(&query, Heard::Listed);
            }
            // What it means that there are policies the controller knows; whoever may not see them is told of none.
            Err(problem) if *query.kind == PREHEAT_POLICIES && code(&problem) == Some(403) => {
                view.hear(&query, Heard::Refused);
                unheard.push((query.kind.name, problem));
            }
            Err(problem) if may_be_refused(&query) && is_refused(&problem) => view.hear(&query, Heard::Refused),
            Err(problem) => {
                view.hear(&query, Heard::Deaf { listed: false });
                unheard.push((query.kind.name, problem));
            }
        }
        view.settle(&mut world);
    }
    let unreadable = view.roots().filter_map(|root| Some((root.job(), view.problem(root)?.to_owned())));
    let unreadable = unreadable.collect();
    let mut known: BTreeMap<SecretId, BTreeMap<Key, Found>> = BTreeMap::new();
    for root in view.roots() {
        let (Some(object), Some(job)) = (view.object(root), world.job(&root.job())) else { continue };
        for (id, found) in secrets(root.kind, object, job) {
            known.entry(id).or_default().extend(found);
        }
    }
    // Nothing is said of those that tags in NodeImages name.
    for job in world.jobs().filter_map(|id| world.job(id)).filter(|job| job.is_standing()) {
        for image in &job.images {
            let Ok(reference) = &image.reference else { continue };
            for id in &image.secrets {
                known.entry(id.clone()).or_default().entry(reference.key()).or_insert(Found::Unseen);
            }
        }
    }
    known.into_iter().for_each(|(id, found)| world.apply(Event::Secret(id, found, Timestamp::MAX)));
    Ok(Snapshot { world, unheard, left_alone, unreadable })
}

/// The objects of a query, in the newest version that is served. Who may not list all namespaces lists this one.
async fn list(client: &Client, query: &Query, namespace: &str) -> Result<Vec<DynamicObject>, kube::Error> {
    let params = ListParams {
        label_selector: Some(query.labels.clone()).filter(|labels| !labels.is_empty()),
        field_selector: query.kind.fields.map(str::to_owned),
        ..ListParams::default()
    };
    let mut result = Ok(Vec::new());
    for resource in (query.kind.versions)() {
        let within = |namespace: &str| Api::<AnyObject>::namespaced_with(client.clone(), namespace, &resource);
        let listed = match &query.namespace {
            Some(namespace) => within(namespace).list(&params).await,
            None => match Api::<AnyObject>::all_with(client.clone(), &resource).list(&params).await {
                Err(problem) if code(&problem) == Some(403) && is_namespaced(query) => {
                    within(namespace).list(&params).await
                }
                listed => listed,
            },
        };
        // Who may see one namespace may often not list all of them.
        let listed = match listed {
            Err(problem) if *query.kind == NAMESPACES && code(&problem) == Some(403) => {
                let one =
                    Api::<AnyObject>::all_with(client.clone(), &resource).get(namespace).await.map_err(|_| problem);
                one.map(|one| ObjectList { types: Default::default(), metadata: Default::default(), items: vec![one] })
            }
            listed => listed,
        };
        let types = TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() };
        result = listed.map(|objects| {
            let typed = |AnyObject(object): AnyObject| DynamicObject { types: Some(types.clone()), ..object };
            objects.items.into_iter().map(typed).collect()
        });
        if !result.as_ref().is_err_and(|problem| code(problem) == Some(404)) {
            break;
        }
    }
    result
}

/// Whether this answer to a list is as good as an empty one: another project's kind that is not installed, or that is not
/// ours to see. Nobody can tell these apart by a list: who has no right to a kind hears that first, kind or no kind.
pub fn has_no_jobs(kind: &JobKind, problem: &kube::Error) -> bool {
    kind.is_foreign() && is_refused(problem)
}

fn is_namespaced(query: &Query) -> bool {
    let others = ![&PREHEAT_POLICIES, &NAMESPACES].contains(&query.kind);
    served_kinds().find(|kind| kind.kind == *query.kind).map_or(others, |kind| kind.namespaced)
}

fn may_be_refused(query: &Query) -> bool {
    !job_kinds().any(|kind| kind.kind == *query.kind && !kind.is_foreign())
}

fn is_refused(problem: &kube::Error) -> bool {
    matches!(code(problem), Some(403 | 404))
}

fn code(problem: &kube::Error) -> Option<u16> {
    match problem {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// What is known of the Secrets of a job without reading any: what its status says. Those of which it says nothing can be used.
fn secrets(kind: &JobKind, object: &DynamicObject, job: &Job) -> BTreeMap<SecretId, BTreeMap<Key, Found>> {
    let troubles = (kind.summary)(object).secrets;
    let mut known: BTreeMap<SecretId, BTreeMap<Key, Found>> = BTreeMap::new();
    for image in &job.images {
        let Ok(reference) = &image.reference else { continue };
        for id in &image.secrets {
            let trouble = troubles.iter().find(|trouble| trouble.secret == *id);
            let found = match trouble.map(|trouble| (trouble.reason, &trouble.message)) {
                None => Found::Unseen,
                Some((Reason::SecretMissing, _)) => Found::Missing,
                Some((Reason::SecretForbidden, _)) => Found::Forbidden,
                Some((_, message)) => Found::Unusable(message.clone()),
            };
            known.entry(id.clone()).or_default().insert(reference.key(), found);
        }
    }
    known
}

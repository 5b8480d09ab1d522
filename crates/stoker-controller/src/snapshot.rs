//! The World as the API server's objects make it, once: the same facts and the same plan as the controller's, for
//! a command that explains a job. Nothing is written.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use stoker_api::native::NodeObject;
use stoker_api::{DIALECTS, Dialect, native, node};
use stoker_core::{Event, Found, Job, Key, Reason, SecretId, World};

use crate::facts;

/// Reads everything that a plan depends on; it is not planned yet. Who may not see the jobs of all namespaces explains
/// those of this one: what a job waits for is in its own spec, in Nodes and in NodePreheats.
pub async fn take(client: &Client, namespace: &str) -> Result<World, kube::Error> {
    let all = ListParams::default();
    let mut world = World::new();
    let mut known: BTreeMap<SecretId, BTreeMap<Key, Found>> = BTreeMap::new();
    for node in Api::<Node>::all(client.clone()).list(&all).await? {
        world.apply(Event::Node(node::to_core(&node)));
    }
    for object in Api::<NodeObject>::all(client.clone()).list(&all).await? {
        let (orders, said) = facts::node(object);
        world.apply(orders);
        said.into_iter().for_each(|event| world.apply(event));
    }
    for dialect in DIALECTS {
        let resource = (dialect.resource)();
        let mut objects = Api::<DynamicObject>::all_with(client.clone(), &resource).list(&all).await;
        if objects.as_ref().is_err_and(is_forbidden) {
            let own = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource);
            objects = own.list(&all).await;
        }
        let objects = match objects {
            Err(problem) if has_no_jobs(dialect, &problem) => continue,
            objects => objects?,
        };
        let alive = objects.items.iter().filter(|object| object.metadata.deletion_timestamp.is_none());
        for (object, job) in alive.filter_map(|object| Some((object, facts::job(dialect, object)?))) {
            for (id, found) in secrets(dialect, object, &job) {
                known.entry(id).or_default().extend(found);
            }
            world.apply(Event::Job(Box::new(job)));
        }
    }
    known.into_iter().for_each(|(id, found)| world.apply(Event::Secret(id, found, Timestamp::MAX)));
    Ok(world)
}

/// Whether this answer to a list is as good as an empty one: another project's kind that is not installed, or that is not
/// ours to see. Nobody can tell these apart by a list: who has no right to a kind hears that first, kind or no kind.
pub fn has_no_jobs(dialect: &Dialect, problem: &kube::Error) -> bool {
    is_foreign(dialect) && matches!(problem, kube::Error::Api(status) if matches!(status.code, 403 | 404))
}

/// Whether it is a kind of another project, which nobody need install.
pub(crate) fn is_foreign(dialect: &Dialect) -> bool {
    (dialect.resource)().group != native::GROUP
}

fn is_forbidden(problem: &kube::Error) -> bool {
    matches!(problem, kube::Error::Api(status) if status.code == 403)
}

/// What is known of the Secrets of a job without reading any: what its status says. Those of which it says nothing can be used.
fn secrets(dialect: &Dialect, object: &DynamicObject, job: &Job) -> BTreeMap<SecretId, BTreeMap<Key, Found>> {
    let troubles = (dialect.summary)(object).secrets;
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

//! The World as the API server's objects make it, once: the same facts and the same plan as the controller's, for
//! a command that explains a job. Nothing is written.

use k8s_openapi::api::core::v1::{Node, Secret};
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use stoker_api::native::NodeObject;
use stoker_api::secret::{self, PullSecret};
use stoker_api::{DIALECTS, Dialect, native, node};
use stoker_core::{Event, World};

use crate::facts;

/// Reads everything that a plan depends on; it is not planned yet. Who may not see the jobs of all namespaces explains
/// those of this one: what a job waits for is in its own spec, in Nodes and in NodePreheats.
pub async fn take(client: &Client, namespace: &str) -> Result<World, kube::Error> {
    let all = ListParams::default();
    let mut world = World::new();
    let secrets = pull_secrets(client).await?;
    secrets.iter().flatten().flat_map(facts::secret).for_each(|event| world.apply(event));
    let known = |event: Event| if secrets.is_some() { event } else { without_secrets(event) };
    for node in Api::<Node>::all(client.clone()).list(&all).await? {
        world.apply(Event::Node(node::to_core(&node)));
    }
    for object in Api::<NodeObject>::all(client.clone()).list(&all).await? {
        let (orders, reports) = facts::node(object);
        world.apply(known(orders));
        world.apply(reports);
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
        let jobs = alive.filter_map(|object| facts::job(dialect, object)).map(|job| Event::Job(Box::new(job)));
        jobs.map(known).for_each(|event| world.apply(event));
    }
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

/// Every Secret with logins; none at all where they are not ours to see.
async fn pull_secrets(client: &Client) -> Result<Option<Vec<PullSecret>>, kube::Error> {
    let api = Api::<Secret>::all(client.clone());
    let mut all = Vec::new();
    for (kind, _) in secret::TYPES {
        match api.list(&ListParams::default().fields(&format!("type={kind}"))).await {
            Err(kube::Error::Api(status)) if status.code == 403 => return Ok(None),
            // Where Stoker is installed nobody has to say: a copy is known by its label and its name.
            secrets => all.extend(secrets?.items.iter().filter_map(|secret| {
                PullSecret::read(secret, secret.metadata.namespace.as_deref().unwrap_or_default())
            })),
        }
    }
    Ok(Some(all))
}

/// The same job or orders as if nobody had ever named a Secret: who may not see them explains the rest rightly.
fn without_secrets(event: Event) -> Event {
    match event {
        Event::Job(mut job) => {
            job.images.iter_mut().for_each(|image| image.secrets.clear());
            Event::Job(job)
        }
        Event::Orders(node, mut orders) => {
            orders.values_mut().for_each(|order| order.terms.secrets.clear());
            Event::Orders(node, orders)
        }
        other => other,
    }
}

//! The World as the API server's objects make it, once: the same facts and the same plan as the controller's, for
//! a command that explains a job. Nothing is written.

use k8s_openapi::api::core::v1::{Node, Secret};
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::ApiResource;
use stoker_api::secret::{self, PullSecret};
use stoker_api::{DIALECTS, native, node};
use stoker_core::{Event, World};

use crate::facts;

/// The World and the objects that it was made of.
pub struct Snapshot {
    /// All facts; not planned yet.
    pub world: World,
    /// The NodePreheats.
    pub node_preheats: Vec<DynamicObject>,
    /// The Nodes.
    pub nodes: Vec<Node>,
}

/// Reads everything that a plan depends on. A dialect that is not installed has no jobs. Who may not see the jobs of all
/// namespaces explains those of this one: what a job waits for is in its own spec, in Nodes and in NodePreheats.
pub async fn take(client: &Client, namespace: &str) -> Result<Snapshot, kube::Error> {
    let all = ListParams::default();
    let mut world = World::new();
    let secrets = pull_secrets(client).await?;
    secrets.iter().flatten().flat_map(facts::secret).for_each(|event| world.apply(event));
    let known = |event: Event| if secrets.is_some() { event } else { without_secrets(event) };
    let nodes = Api::<Node>::all(client.clone()).list(&all).await?.items;
    for node in &nodes {
        world.apply(Event::Node(node::to_core(node)));
    }
    let resource = ApiResource::erase::<native::NodePreheat>(&());
    let node_preheats = Api::<DynamicObject>::all_with(client.clone(), &resource).list(&all).await?.items;
    for object in &node_preheats {
        world.apply(known(facts::orders(object)));
        world.apply(facts::reports(object));
    }
    for dialect in DIALECTS {
        let resource = (dialect.resource)();
        let mut objects = Api::<DynamicObject>::all_with(client.clone(), &resource).list(&all).await;
        if code(&objects) == Some(403) {
            let own = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource);
            objects = own.list(&all).await;
        }
        let objects = match code(&objects) {
            Some(404) => continue,
            // A kind that is not there is forbidden to whoever has no right to it.
            Some(403) if dialect.kind != "Preheat" => continue,
            _ => objects?,
        };
        let alive = objects.items.iter().filter(|object| object.metadata.deletion_timestamp.is_none());
        alive.filter_map(|object| facts::job(dialect, object)).map(known).for_each(|event| world.apply(event));
    }
    Ok(Snapshot { world, node_preheats, nodes })
}

fn code<T>(result: &Result<T, kube::Error>) -> Option<u16> {
    match result {
        Err(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
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
            orders.values_mut().for_each(|order| order.secrets.clear());
            Event::Orders(node, orders)
        }
        other => other,
    }
}

//! Which watches run: those that a plan always depends on, and those of queries that somebody reads.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::core::TypeMeta;
use stoker_api::native::NodeObject;
use stoker_api::view::Query;
use stoker_api::{AnyObject, PlainNode, job_kinds};
use stoker_core::{SecretId, model};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::moment::Moments;
use crate::reading::Read;
use crate::watch::{Fact, Watch};

/// NodePreheats that are listed with one request: with 20 images each is 30 KB of text, and as much again when it is read.
const NODES_A_PAGE: u32 = 20;

/// A query that nobody reads for this long is not watched any more.
const UNREAD_FOR: Duration = Duration::from_secs(60);

/// What the loop hears.
pub(crate) enum Input {
    Node(Fact<model::Node>),
    NodePreheat(Fact<Box<NodeObject>>),
    Row(Query, Fact<Box<DynamicObject>>),
    /// A Secret was read that was asked for at this time.
    Secret(SecretId, Read, Timestamp),
}

/// Watches the nodes' side, which every plan depends on.
pub(crate) fn watch_nodes(
    client: &Client,
    moments: &Moments,
    input: &mpsc::Sender<Input>,
    tasks: &mut JoinSet<&'static str>,
) {
    let (nodes, to) = (Watch::new(vec![Api::<PlainNode>::all(client.clone())], "Node", moments), input.clone());
    tasks.spawn(async move {
        // Translated at once: of a Node's kilobytes little is wanted.
        nodes.run(to, |fact, _| Input::Node(fact.map(PlainNode::into_core))).await;
        "watch of Nodes"
    });
    let preheats = Watch::new(vec![Api::<NodeObject>::all(client.clone())], "NodePreheat", moments);
    let (preheats, to) = (preheats.page(NODES_A_PAGE), input.clone());
    tasks.spawn(async move {
        preheats.run(to, |fact, _| Input::NodePreheat(fact.map(Box::new))).await;
        "watch of NodePreheats"
    });
}

/// The watch of a query.
struct Running {
    task: AbortHandle,
    /// Since when nobody reads it.
    unread: Option<Instant>,
}

/// The watches of queries.
pub(crate) struct Watches {
    client: Client,
    moments: Moments,
    input: mpsc::Sender<Input>,
    running: BTreeMap<Query, Running>,
}

impl Watches {
    pub(crate) fn new(client: Client, moments: Moments, input: mpsc::Sender<Input>) -> Self {
        Self { client, moments, input, running: BTreeMap::new() }
    }

    /// Has these queries watched, and those no more that nobody wanted for a while. Returns those of which what is known is void: the
    /// latter, and those whose watch begins, because something that an earlier watch had told may still have arrived after its end.
    pub(crate) fn follow(&mut self, wanted: &BTreeSet<Query>, tasks: &mut JoinSet<&'static str>) -> Vec<Query> {
        let mut void = Vec::new();
        for query in wanted {
            match self.running.get_mut(query) {
                Some(running) => running.unread = None,
                None => {
                    let task =
                        tasks.spawn(watch(self.client.clone(), &self.moments, query.clone(), self.input.clone()));
                    self.running.insert(query.clone(), Running { task, unread: None });
                    void.push(query.clone());
                }
            }
        }
        let now = Instant::now();
        self.running.retain(|query, running| {
            if wanted.contains(query) || now < *running.unread.get_or_insert(now) + UNREAD_FOR {
                return true;
            }
            running.task.abort();
            void.push(query.clone());
            false
        });
        void
    }

    /// When a query that nobody reads is to be looked at again.
    pub(crate) fn looks_again(&self) -> bool {
        self.running.values().any(|running| running.unread.is_some())
    }
}

fn watch(
    client: Client,
    moments: &Moments,
    query: Query,
    to: mpsc::Sender<Input>,
) -> impl Future<Output = &'static str> + Send + 'static {
    let versions = (query.kind.versions)();
    let apis = versions.iter().map(|resource| match &query.namespace {
        Some(namespace) => Api::<AnyObject>::namespaced_with(client.clone(), namespace, resource),
        None => Api::all_with(client.clone(), resource),
    });
    let ours = job_kinds().any(|kind| kind.kind == *query.kind && !kind.is_foreign());
    let watch = Watch::new(apis.collect(), query.kind.name, moments).selecting(&query.labels, query.kind.fields);
    let watch = if ours { watch } else { watch.may_be_refused() };
    async move {
        let wrap = |fact: Fact<AnyObject>, version: usize| {
            let fact = fact.map(|AnyObject(mut object)| {
                // Items of a list come without it.
                if let Some(resource) = versions.get(version) {
                    object.types =
                        Some(TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() });
                }
                Box::new(object)
            });
            Input::Row(query.clone(), fact)
        };
        watch.run(to, wrap).await;
        "watch of jobs"
    }
}

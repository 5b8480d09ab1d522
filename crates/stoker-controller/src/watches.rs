//! Which watches run: those that a plan always depends on, and those of queries that somebody reads.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::Api;
use kube::core::TypeMeta;
use stoker_api::native::{NAMESPACES, NodeObject, PREHEAT_POLICIES};
use stoker_api::view::{Query, SeenRow};
use stoker_api::{AnyObject, PlainNode, job_kinds, kinds_of_nodes};
use stoker_core::{SecretId, model};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::moment::Moments;
use crate::peer_keys::PublishedKeys;
use crate::reading::Read;
use crate::watch::{Fact, Watch};

/// NodePreheats that are listed with one request: with 20 images each is 30 KB of text, and as much again when it is read.
const NODES_A_PAGE: u32 = 20;

/// A query that nobody reads for this long is not watched any more.
const UNREAD_FOR: Duration = Duration::from_secs(60);

/// Queries that nobody reads and that are watched still, at most: somebody may read others all the time.
const MOST_UNREAD: usize = 32;

/// What the loop hears.
pub(crate) enum Input {
    Node(Fact<HeardNode>),
    NodePreheat(Fact<Box<NodeObject>>),
    Row(Query, Fact<SeenRow>),
    /// A Secret was read that was asked for at this time.
    Secret(SecretId, Read, Timestamp),
    /// The keys for tickets that are published; none where the last try has failed.
    PeerKeys(Option<PublishedKeys>),
}

/// A Node, as far as anybody looks at it.
pub(crate) struct HeardNode {
    pub(crate) node: model::Node,
    /// Where other nodes reach it.
    pub(crate) address: Option<IpAddr>,
}

impl From<PlainNode> for HeardNode {
    fn from(node: PlainNode) -> Self {
        let address = node.address;
        Self { node: node.into_core(), address }
    }
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
        nodes.run(to, |fact, _| Input::Node(fact.map(HeardNode::from))).await;
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
        let unread = self.running.iter_mut().filter(|(query, _)| !wanted.contains(*query));
        let mut since: Vec<Instant> = unread.map(|(_, running)| *running.unread.get_or_insert(now)).collect();
        since.sort_unstable_by(|one, other| other.cmp(one));
        let mut spare = MOST_UNREAD;
        // Those that were read last are the likeliest to be read again.
        let oldest = since.get(MOST_UNREAD - 1).copied();
        self.running.retain(|query, running| {
            let Some(since) = running.unread else { return true };
            if now < since + UNREAD_FOR && oldest.is_none_or(|oldest| oldest <= since) && spare > 0 {
                spare -= 1;
                return true;
            }
            running.task.abort();
            void.push(query.clone());
            false
        });
        void
    }

    /// Whether this comes from a watch that still runs. What an ended one had told may arrive later: nobody would take it away again, and
    /// the next one who reads that query would go by it until its new watch is listed.
    pub(crate) fn follows(&self, input: &Input) -> bool {
        match input {
            Input::Row(query, _) => self.running.contains_key(query),
            Input::Node(_) | Input::NodePreheat(_) | Input::Secret(..) | Input::PeerKeys(_) => true,
        }
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
    let watch = match query.kind {
        kind if *kind == PREHEAT_POLICIES => watch.may_be_absent(kind.newest()),
        // Without the labels of namespaces nobody knows whom a policy concerns.
        kind if ours || *kind == NAMESPACES => watch,
        _ => watch.may_be_refused(),
    };
    let of_nodes = kinds_of_nodes().any(|kind| kind.kind == *query.kind);
    let watch = if of_nodes { watch.page(NODES_A_PAGE) } else { watch };
    async move {
        let wrap = |fact: Fact<AnyObject>, version: usize| {
            let fact = fact.map(|AnyObject(mut object)| {
                // Items of a list come without it.
                if let Some(resource) = versions.get(version) {
                    object.types =
                        Some(TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() });
                }
                // At once: what waits for the loop is small then.
                SeenRow::of(&query, object)
            });
            Input::Row(query.clone(), fact)
        };
        watch.run(to, wrap).await;
        "watch of jobs"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::client::Body;
    use stoker_api::pods::PODS;

    /// One who reads other queries every moment would have each of them watched for a minute.
    #[tokio::test]
    async fn queries_that_were_read_a_moment_ago_have_a_bound() {
        let silent = tower::service_fn(|_: http::Request<Body>| async {
            std::future::pending::<Result<http::Response<Body>, std::io::Error>>().await
        });
        let (input, _inputs) = mpsc::channel(1);
        let mut watches = Watches::new(Client::new(silent, "default"), Moments::default(), input);
        let mut tasks = JoinSet::new();
        let query = |n: usize| Query { kind: &PODS, namespace: Some("shop".into()), labels: format!("app=a{n}") };
        for n in 0..100 {
            let wanted: BTreeSet<Query> = [query(n), query(1_000)].into();
            watches.follow(&wanted, &mut tasks);
            assert!(wanted.iter().all(|query| watches.running.contains_key(query)));
            assert!(watches.running.len() <= 2 + MOST_UNREAD, "{}", watches.running.len());
        }
        assert!(watches.running.contains_key(&query(98)), "those that were read last are kept");
        let told = |n: usize| watches.follows(&Input::Row(query(n), Fact::Listed));
        assert_eq!((told(0), told(98), told(1_000)), (false, true, true), "what an ended watch had told is not heard");
    }
}

//! What the loop hears, and from where: a watch of each kind that a plan depends on, each a task.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, DynamicObject};
use stoker_api::native::NodeObject;
use stoker_api::{DIALECTS, Dialect, node};
use stoker_core::{SecretId, model};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::moment::Moments;
use crate::reading::Read;
use crate::run::Settings;
use crate::watch::{Fact, Watch};

/// NodePreheats that are listed with one request: with 20 images each is 30 KB of text, and as much again when it is read.
const NODES_A_PAGE: u32 = 20;

/// What the loop hears from its watches.
pub(crate) enum Input {
    Node(Fact<model::Node>),
    NodePreheat(Fact<Box<NodeObject>>),
    Job(&'static Dialect, Fact<Box<DynamicObject>>),
    /// A Secret was read that was asked for at this time.
    Secret(SecretId, Read, Timestamp),
}

/// Everything that must be listed before the first plan.
pub(crate) fn every_kind() -> impl Iterator<Item = &'static str> {
    let jobs = DIALECTS.iter().map(|dialect| dialect.kind);
    ["Node", "NodePreheat"].into_iter().chain(jobs)
}

/// Watches everything that a plan depends on.
pub(crate) fn watch_all(
    settings: &Settings,
    moments: &Moments,
    input: &mpsc::Sender<Input>,
    tasks: &mut JoinSet<&'static str>,
) {
    let client = &settings.client;
    let (nodes, to) = (Watch::new(Api::<Node>::all(client.clone()), "Node", moments), input.clone());
    tasks.spawn(async move {
        // Translated at once: of a Node's kilobytes little is wanted.
        nodes.run(to, |fact| Input::Node(fact.map(|node| node::to_core(&node)))).await;
        "watch of Nodes"
    });
    let preheats = Watch::new(Api::<NodeObject>::all(client.clone()), "NodePreheat", moments);
    let (preheats, to) = (preheats.page(NODES_A_PAGE), input.clone());
    tasks.spawn(async move {
        preheats.run(to, |fact| Input::NodePreheat(fact.map(Box::new))).await;
        "watch of NodePreheats"
    });
    for dialect in DIALECTS {
        let jobs = Api::all_with(client.clone(), &(dialect.resource)());
        let (jobs, to) = (Watch::new(jobs, dialect.kind, moments), input.clone());
        tasks.spawn(async move {
            jobs.run(to, |fact| Input::Job(dialect, fact.map(Box::new))).await;
            "watch of jobs"
        });
    }
}

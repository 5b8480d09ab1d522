//! A NodeImage without a Node behind it: whoever made it plays the agent. To the World it is a node whose orders are the tags of the spec
//! and whose reports are what the status says of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use stoker_core::model::{Ask, Bytes, Key, Order, Phase, Policy, Pull, Report, Sandbox, Terms};
use stoker_core::{Event, Node, Reason, Reference, World};

use super::row::{NodeImageRow, TagRow, seconds};
use super::tags::name_and_tag;
use crate::dialect::kruise::IMAGE_PULL_JOBS;
use crate::dialect::kruise::node_image::ImageTagStatus;
use crate::view::Row;

/// What the World is told of a NodeImage without a Node; nothing of others. A Node of that name counts more.
pub(super) fn facts(name: &str, row: Option<&Row>, world: &World) -> Vec<Event> {
    let known = world.node(name);
    let row = match row {
        Some(Row::NodeImage(row)) if !row.going => Some(&**row),
        _ => None,
    };
    let labels = row.and_then(|row| Some((row, row.fake.as_ref()?)));
    match (labels, known) {
        (Some(_), Some(node)) if !node.foreign => Vec::new(),
        // An agent of ours is there, whose Node was not heard of yet.
        (Some(_), None) if world.orders(name).is_some() => Vec::new(),
        (Some((row, labels)), _) => {
            let node = Node {
                name: name.into(),
                labels: labels.clone(),
                ready: true,
                ready_changed: None,
                cordoned: false,
                foreign: true,
            };
            let (orders, reports) = orders(name, row, world);
            vec![Event::Node(node), Event::Orders(name.into(), orders), Event::Reports(name.into(), reports)]
        }
        (None, Some(node)) if node.foreign => vec![Event::NodeGone(name.into()), Event::AgentGone(name.into())],
        (None, _) => Vec::new(),
    }
}

/// The orders of the node: those that the World has planned, which may not be written yet, and those that are tags already.
fn orders(name: &str, row: &NodeImageRow, world: &World) -> (BTreeMap<Key, Order>, BTreeMap<Key, Report>) {
    let mut orders = world.orders(name).unwrap_or_default();
    let mut reports = BTreeMap::new();
    for tag in row.tags.iter().filter(|tag| !tag.spec.jobs.is_empty()) {
        let Ok(reference) = tag.spec.written().parse::<Reference>() else { continue };
        let created = Timestamp::from_second(i64::from(tag.created)).unwrap_or(Timestamp::UNIX_EPOCH);
        // A tag has no room for both a tag and a digest, which a job may name.
        let name = name_and_tag(&reference);
        let is_own = |order: &Order| order.image.parse().is_ok_and(|own| name_and_tag(&own) == name);
        let key = orders.iter().find(|(_, order)| is_own(order)).map_or(reference.key(), |(key, _)| *key);
        // Only this controller asks: a time that somebody else has written into a tag counts for nothing that is known. That time has lost
        // what is below a second.
        orders.entry(key).or_insert_with(|| order(&reference, tag, created));
        let Some(order) = orders.get(&key) else { continue };
        let status = row.status(tag).filter(|_| order.asked.as_second() == created.as_second());
        reports.extend(status.and_then(|status| Some((key, report(order, &status)?))));
    }
    (orders, reports)
}

fn order(reference: &Reference, tag: &TagRow, asked: Timestamp) -> Order {
    let parsed = tag.spec.parsed();
    let policy = parsed.pull_policy.unwrap_or_default();
    let is_content = parsed.image_pull_policy.as_deref() == Some("IfNotPresent");
    let pull = Pull {
        policy: if is_content { Policy::IfNotPresent } else { Policy::Always },
        timeout: Duration::from_secs(u64::try_from(policy.timeout_seconds.unwrap_or(600)).unwrap_or(600)),
        retries: u32::try_from(policy.backoff_limit.unwrap_or(3)).unwrap_or(3),
        bandwidth: None,
        priority: 0,
        sandbox: Sandbox::default(),
        source: Default::default(),
        upstream_copies: None,
    };
    let jobs = tag.spec.jobs.iter().map(|(namespace, name)| IMAGE_PULL_JOBS.job_id(namespace, name)).collect();
    let terms = Terms { pull, logins: Vec::new(), progress: Duration::from_secs(60) };
    Order::new(reference.name(), jobs, asked, Ask::Fetch(None), terms)
}

fn report(order: &Order, status: &ImageTagStatus) -> Option<Report> {
    let phase = match status.phase.as_str() {
        "Pulling" => Phase::Pulling,
        "Succeeded" => Phase::Succeeded,
        "Failed" => Phase::Failed,
        _ => return None,
    };
    let time = |text: Option<&str>| {
        let seconds = seconds(text);
        Timestamp::from_second(i64::from(seconds)).ok().filter(|_| seconds != 0)
    };
    let started = time(status.start_time.as_deref()).unwrap_or(order.asked);
    let finished = time(status.completion_time.as_deref()).or(Some(started)).filter(|_| phase != Phase::Pulling);
    Some(Report {
        asked: order.asked,
        jobs: BTreeSet::new(),
        phase,
        digest: None,
        pin: None,
        present: false,
        bytes: Bytes::default(),
        from: None,
        bad: Vec::new(),
        attempt: 1,
        reason: (phase == Phase::Failed).then_some(Reason::Unknown),
        message: stoker_core::text::message(status.message.as_deref().unwrap_or_default()),
        stalled: None,
        started,
        finished,
        updated: finished.unwrap_or(started),
    })
}

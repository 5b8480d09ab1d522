//! Small builders of the facts that tests are about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use stoker_core::Reference;
use stoker_core::model::{Job, NamedNodes, Node, Report};
use stoker_core::reference::InvalidReference;
use stoker_core::select::{Operator, Requirement, Selector};
use stoker_core::{
    Bytes, Completion, Empty, Image, JobId, Key, KindName, Outcome, Phase, Policy, Pull, Unreachable, Words,
};

/// Tests begin at this second, so that there is time before it.
pub(crate) const BEGIN: i64 = 1_800_000_000;

/// Seconds after the beginning.
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(BEGIN + second).unwrap()
}

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The kinds that jobs of tests are of: all are of the first one, but that of this name.
pub(crate) const KINDS: [(&str, &str); 2] = [("stoker.dev", "Preheat"), ("other.test", "PullJob")];
pub(crate) const OTHER: &str = "other";
/// The name of jobs that are in a namespace of their own.
pub(crate) const GUEST: &str = "guest";

pub(crate) fn id(name: &str) -> JobId {
    let namespace = if name == GUEST { "elsewhere" } else { "default" };
    JobId::new(KINDS[usize::from(name == OTHER)], namespace, name)
}

pub(crate) fn kind(n: usize) -> KindName {
    KindName::new(KINDS[n % KINDS.len()])
}

/// The same job in another namespace.
pub(crate) fn of_namespace(namespace: &str, mut job: Job) -> Job {
    job.id = JobId::new((job.id.group(), job.id.kind()), namespace, job.id.name());
    job
}

/// The reference of an image that tests write as `web:1` or, with a short digest, `web@sha256:w`.
pub(crate) fn reference(written: &str) -> Result<Reference, String> {
    let whole = match written.split_once("@sha256:") {
        Some((name, short)) => {
            let digits: String = short.bytes().map(|byte| format!("{byte:02x}")).collect();
            format!("reg.test/{name}@sha256:{digits:0>64}")
        }
        None => format!("reg.test/{written}"),
    };
    whole.parse().map_err(|problem: InvalidReference| problem.to_string())
}

/// A digest as tests write it.
pub(crate) fn short(digest: &str) -> String {
    let Some(digits) = digest.strip_prefix("sha256:").filter(|digits| digits.len() == 64) else { return digest.into() };
    let pairs = digits.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap());
    format!("sha256:{}", String::from_utf8(pairs.skip_while(|byte| *byte == 0).collect()).unwrap())
}

/// The key of an image; one that is not valid never has an entry, but tests ask for it too.
pub(crate) fn key(written: &str) -> Key {
    reference(written).map_or_else(|_| Key::of(written), |reference| reference.key())
}

pub(crate) fn image(written: &str) -> Image {
    Image { written: written.into(), reference: reference(written), secrets: Vec::new() }
}

/// How the users of these jobs call things.
pub(crate) const WORDS: Words =
    Words { resume: "set spec.suspend to false", secrets: "pullSecrets", orders: "NodePreheat" };

/// A job on all nodes, made at the beginning, ten nodes at one time, once.
pub(crate) fn job(name: &str, images: &[&str]) -> Job {
    Job {
        id: id(name),
        uid: name.into(),
        words: &WORDS,
        generation: 1,
        created: at(0),
        images: images.iter().map(|written| image(written)).collect(),
        names: None,
        pick: None,
        selector: Selector::default(),
        foreign_nodes: false,
        parallelism: 10,
        percent: false,
        tolerance: None,
        unseen: None,
        pull: Pull {
            policy: Policy::IfNotPresent,
            timeout: secs(600),
            retries: 3,
            bandwidth: None,
            priority: 0,
            sandbox: Default::default(),
            source: Default::default(),
            upstream_copies: None,
        },
        completion: Completion::Once { deadline: None, ttl: None },
        suspend: false,
        unreachable: Unreachable::Wait,
        bounds: Default::default(),
        empty: Empty::Waits,
        started: None,
        ended: None,
        unreadable: None,
    }
}

pub(crate) fn names(names: &[&str]) -> Option<NamedNodes> {
    Some(Job::named(names.iter().copied()))
}

/// These nodes, each counting from its own second.
pub(crate) fn own_times(nodes: &[(&str, i64)]) -> Option<NamedNodes> {
    Some(Arc::new(nodes.iter().map(|(name, second)| ((*name).into(), at(*second))).collect()))
}

/// A job that stands for entries of an image on these nodes, each made at its second.
pub(crate) fn standing(name: &str, image: &str, nodes: &[(&str, i64)]) -> Job {
    let mut job = job(name, &[image]);
    job.id = JobId::new(("apps.test", "NodeImage"), "", name);
    (job.created, job.completion, job.names) = (Timestamp::UNIX_EPOCH, Completion::Standing, own_times(nodes));
    (job.unreachable, job.empty) = (Unreachable::GiveUp, Empty::Completes);
    job
}

/// The object of a job says what came of it.
pub(crate) fn acknowledge(job: &mut Job, outcome: &Outcome) {
    (job.started, job.ended) = (outcome.started, outcome.completed);
    if let Some(pick) = &mut job.pick {
        pick.chosen = outcome.chosen.as_ref().map(|chosen| chosen.keys().cloned().collect());
    }
}

/// Takes the nodes with the label `pool` of this value.
pub(crate) fn pool(value: &str) -> Selector {
    let values = BTreeSet::from([value.to_string()]);
    Selector(vec![Requirement { key: "pool".into(), operator: Operator::In, values }])
}

/// A ready node of the pool `main`.
pub(crate) fn node(name: &str) -> Node {
    let labels = BTreeMap::from([("pool".to_string(), "main".to_string())]);
    Node { name: name.into(), labels, ready: true, ready_changed: None, cordoned: false, foreign: false }
}

/// The report of a pull that has just begun.
pub(crate) fn pulling(asked: Timestamp, now: Timestamp) -> Report {
    Report {
        asked,
        jobs: BTreeSet::new(),
        phase: Phase::Pulling,
        digest: None,
        pin: None,
        present: false,
        bytes: Bytes::default(),
        from: None,
        bad: Vec::new(),
        attempt: 1,
        reason: None,
        message: String::new(),
        stalled: None,
        started: now,
        finished: None,
        updated: now,
    }
}

//! Random histories: what may happen to a small cluster, and the jobs that are wished in it.

use jiff::Timestamp;
use proptest::prelude::*;
use stoker_core::model::{Found, Job, LoginId, Offer, SecretId};
use stoker_core::{Completion, Policy, Unreachable};

use crate::build::{job, names, pool, secs};

pub(crate) const IMAGES: [&str; 3] = ["web:1", "db:1", "web@sha256:pinned"];
pub(crate) const SECRETS: [&str; 6] = ["u", "v", "w", "x", "y", "z"];

/// The login in a Secret with this content; contents are numbers.
pub(crate) fn login(content: u8) -> LoginId {
    LoginId::new(&format!("login-{content}"))
}

/// What a controller finds that reads a Secret with this content. The greatest one it may not read, another makes no sense.
pub(crate) fn found(content: Option<u8>) -> Found {
    match content {
        None => Found::Missing,
        Some(7) => Found::Forbidden,
        Some(6) => Found::Unusable("it is not JSON".into()),
        Some(content) => Found::Logins(vec![Offer { id: login(content), closeness: u32::from(content % 2) }]),
    }
}

/// One thing that happens. Numbers are indices, taken modulo what there is.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    Create {
        job: usize,
        wish: Wish,
    },
    Edit {
        job: usize,
        wish: Wish,
    },
    Suspend {
        job: usize,
        suspend: bool,
    },
    Delete {
        job: usize,
    },
    Node {
        node: usize,
        ready: bool,
        main: bool,
    },
    NodeGone {
        node: usize,
    },
    Agent {
        node: usize,
    },
    AgentGone {
        node: usize,
    },
    Work {
        node: usize,
        order: usize,
        result: Work,
    },
    /// A Secret has this content from now on, or none: it is gone.
    Secret {
        secret: usize,
        content: Option<u8>,
    },
    /// The controller reads the Secrets that jobs name.
    Read,
    /// The agent of a node publishes its features: with or without that for logins.
    Features {
        node: usize,
        sealed: bool,
    },
    Pass {
        seconds: i64,
    },
    Plan,
    /// The oldest write arrives, and its answer with it.
    Deliver,
    /// The oldest write arrives; nobody hears of it before its answer comes.
    DeliverUnheard,
    /// The oldest of such answers comes, whatever happened since.
    LateAnswer,
    /// The oldest write arrives, and its answer never comes: it is written once more.
    LostWrite,
    Restart,
    /// The objects of a kind of jobs cannot be watched any more.
    Freeze {
        kind: usize,
    },
    /// They are listed again.
    Thaw {
        kind: usize,
    },
    /// Somebody saves all that the API server has.
    Save,
    /// The API server comes back with what was saved, and everything is listed anew.
    RollBack,
}

/// The parts of a job that histories vary.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    images: [bool; 3],
    /// For each image which Secrets, as bits.
    secrets: [u8; 3],
    parallelism: u32,
    percent: bool,
    nodes: u8,
    completion: u8,
    always: bool,
    timeout: u64,
    give_up: bool,
}

/// What an agent does about an order that it has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Work {
    Begin,
    Resolve,
    Succeed,
    Fail,
    /// The registry wants another login.
    Refuse,
    /// It says what the tag means, asked or not. One node of four does so.
    Lie,
    /// It cannot answer what it is asked; what it can do, it fails at.
    Unable,
}

fn wish() -> impl Strategy<Value = Wish> {
    let secrets = prop_oneof![2 => Just(0), 3 => 0..64u8];
    let shape =
        (any::<[bool; 3]>(), prop::array::uniform3(secrets), (0..4u32, prop::bool::weighted(0.3)), 0..4u8, 0..6u8);
    let terms = (any::<bool>(), prop_oneof![Just(1), Just(60), Just(600)], prop::bool::weighted(0.2));
    (shape, terms).prop_map(
        |((images, secrets, (parallelism, percent), nodes, completion), (always, timeout, give_up))| Wish {
            images,
            secrets,
            parallelism,
            percent,
            nodes,
            completion,
            always,
            timeout,
            give_up,
        },
    )
}

pub(crate) fn happening() -> impl Strategy<Value = Happening> {
    let work = prop_oneof![
        1 => Just(Work::Begin),
        1 => Just(Work::Resolve),
        1 => Just(Work::Succeed),
        1 => Just(Work::Fail),
        2 => Just(Work::Refuse),
        4 => Just(Work::Lie),
        1 => Just(Work::Unable)
    ];
    let content = prop_oneof![1 => Just(None), 6 => (0..8u8).prop_map(Some)];
    let seconds = prop_oneof![4 => 0..5i64, 1 => Just(120), 1 => Just(301), 1 => Just(601), 1 => Just(3_700)];
    prop_oneof![
        4 => (0..3usize, wish()).prop_map(|(job, wish)| Happening::Create { job, wish }),
        2 => (0..3usize, wish()).prop_map(|(job, wish)| Happening::Edit { job, wish }),
        2 => (0..3usize, any::<bool>()).prop_map(|(job, suspend)| Happening::Suspend { job, suspend }),
        1 => (0..3usize).prop_map(|job| Happening::Delete { job }),
        2 => (0..4usize, prop::bool::weighted(0.8), prop::bool::weighted(0.8))
            .prop_map(|(node, ready, main)| Happening::Node { node, ready, main }),
        1 => (0..4usize).prop_map(|node| Happening::NodeGone { node }),
        2 => (0..4usize).prop_map(|node| Happening::Agent { node }),
        1 => (0..4usize).prop_map(|node| Happening::AgentGone { node }),
        16 => (0..4usize, 0..3usize, work).prop_map(|(node, order, result)| Happening::Work { node, order, result }),
        6 => (0..6usize, content).prop_map(|(secret, content)| Happening::Secret { secret, content }),
        8 => Just(Happening::Read),
        2 => (0..4usize, prop::bool::weighted(0.7)).prop_map(|(node, sealed)| Happening::Features { node, sealed }),
        8 => seconds.prop_map(|seconds| Happening::Pass { seconds }),
        14 => Just(Happening::Plan),
        10 => Just(Happening::Deliver),
        3 => Just(Happening::DeliverUnheard),
        3 => Just(Happening::LateAnswer),
        2 => Just(Happening::LostWrite),
        1 => Just(Happening::Restart),
        2 => (0..2usize).prop_map(|kind| Happening::Freeze { kind }),
        3 => (0..2usize).prop_map(|kind| Happening::Thaw { kind }),
        1 => Just(Happening::Save),
        1 => Just(Happening::RollBack),
    ]
}

/// A history that begins with four nodes that have agents, so that much can happen.
pub(crate) fn history() -> impl Strategy<Value = Vec<Happening>> {
    prop::collection::vec(happening(), 10..90)
}

impl Wish {
    /// The object of this name that somebody makes of it.
    pub(crate) fn job(&self, name: &str, created: Timestamp) -> Job {
        let images: Vec<&str> = IMAGES.iter().zip(self.images).filter(|(_, take)| *take).map(|(i, _)| *i).collect();
        let mut job = job(name, &images);
        let secrets = self.secrets.iter().zip(self.images).filter(|(_, take)| *take).map(|(bits, _)| bits);
        let namespace = job.id.namespace().to_string();
        for (image, bits) in job.images.iter_mut().zip(secrets) {
            let named = SECRETS.iter().enumerate().filter(|(bit, _)| bits & (1 << bit) != 0);
            image.secrets = named.map(|(_, name)| SecretId::new(namespace.as_str(), *name)).collect();
        }
        job.created = created;
        // A third of the nodes, two thirds, all of them.
        (job.parallelism, job.percent) = (self.parallelism * if self.percent { 33 } else { 1 }, self.percent);
        match self.nodes {
            0 => job.names = names(&["n1", "n2", "n9"]),
            1 => job.selector = pool("main"),
            _ => {}
        }
        job.completion = match self.completion {
            0 => Completion::Continuous { resync: secs(3_600) },
            1 => Completion::Once { deadline: Some(secs(1_000)), ttl: Some(secs(60)) },
            _ => Completion::Once { deadline: None, ttl: None },
        };
        job.pull.timeout = secs(self.timeout);
        if self.always {
            job.pull.policy = Policy::Always;
        }
        if self.give_up {
            job.unreachable = Unreachable::GiveUp;
        }
        job
    }
}

//! Random histories: what may happen to a small cluster, and the jobs that are wished in it.

use std::sync::Arc;

use jiff::Timestamp;
use proptest::prelude::*;
use stoker_core::model::{Found, Job, LoginId, Offer, SecretId, Tolerance};
use stoker_core::{
    Ceilings, Completion, Empty, ImagePattern, PeerFacts, PeerKey, Policy, PullSource, Restriction, Unreachable,
};

use crate::build::{at, job, names, pool, secs};

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
    /// A node of a standing job counts from now on, or is one of its nodes no more.
    Tag {
        job: usize,
        node: usize,
        tag: bool,
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
    /// A node has a peer group of its own, or none.
    Group {
        node: usize,
        group: Option<&'static str>,
    },
    /// Somebody cordons a node, or uncordons it.
    Cordon {
        node: usize,
        cordon: bool,
    },
    /// The agent of a node says where it serves, or that it does not.
    Peer {
        node: usize,
        facts: Option<PeerFacts>,
    },
    /// All agents say so.
    Peers {
        facts: PeerFacts,
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
    /// Somebody writes a policy, or deletes it.
    Policy {
        policy: usize,
        rule: Option<Rule>,
    },
    /// Somebody labels a namespace, or takes the label away.
    Label {
        namespace: usize,
        team: bool,
    },
    /// Policies cannot be listed any more.
    Blind,
    /// They are listed again.
    Sight,
    /// Somebody saves all that the API server has.
    Save,
    /// The API server comes back with what was saved, and everything is listed anew.
    RollBack,
}

/// The parts of a policy that histories vary.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    team: bool,
    web: bool,
    main: bool,
    images: Option<u32>,
    nodes: Option<u32>,
    jobs: Option<u32>,
    timeout: Option<u64>,
    bandwidth: Option<u64>,
}

fn rule() -> impl Strategy<Value = Rule> {
    let most = || prop::option::weighted(0.15, 0..4u32);
    let terms = (prop::option::weighted(0.1, Just(60)), prop::option::weighted(0.3, 1..4u64));
    let weighted = prop::bool::weighted;
    (weighted(0.3), weighted(0.15), weighted(0.3), most(), most(), most(), terms).prop_map(
        |(team, web, main, images, nodes, jobs, (timeout, bandwidth))| Rule {
            team,
            web,
            main,
            images,
            nodes,
            jobs,
            timeout,
            bandwidth,
        },
    )
}

impl Rule {
    /// The policy of this name that somebody makes of it.
    pub(crate) fn restriction(&self, name: &str) -> Restriction {
        Restriction {
            policy: name.into(),
            namespaces: self.team.then(|| pool("team")),
            images: self.web.then(|| ImagePattern::new("reg.test/web")).into_iter().collect(),
            nodes: self.main.then(|| Arc::new(pool("main"))),
            most: Ceilings {
                images: self.images,
                nodes: self.nodes,
                jobs: self.jobs,
                timeout: self.timeout.map(secs),
                bandwidth: self.bandwidth,
            },
            unreadable: None,
        }
    }
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
    retries: u32,
    bandwidth: Option<u64>,
    give_up: bool,
    foreign: bool,
    /// How many nodes may go upstream: none, one, two; else no promise.
    copies: u32,
    /// How many of its nodes it wants, where it wants only some.
    replicas: Option<u32>,
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
    /// None of its peers can serve it.
    Starve,
    /// It is slower than its source.
    Lag,
    /// The first of its peers sends wrong bytes.
    Accuse,
    /// It reads from the last of its peers.
    Move,
    /// An attempt failed, and another one follows.
    Rest,
    /// An attempt ended in time, because its peers gave next to nothing.
    TimeOut,
}

fn facts() -> impl Strategy<Value = PeerFacts> {
    let rate = || prop_oneof![1 => Just(None), 2 => (20..24u32).prop_map(|bits| Some(1u64 << bits))];
    (any::<bool>(), rate(), rate(), 0..2u16).prop_map(|(keeps, rate, sent, port)| PeerFacts {
        address: [10, 0, 0, 1].into(),
        port: 7000 + port,
        key: PeerKey::new("key"),

        keeps,
        rate,
        sent,
    })
}

fn wish() -> impl Strategy<Value = Wish> {
    let secrets = prop_oneof![2 => Just(0), 3 => 0..64u8];
    let shape =
        (any::<[bool; 3]>(), prop::array::uniform3(secrets), (0..4u32, prop::bool::weighted(0.3)), 0..6u8, 0..8u8);
    let timeout = prop_oneof![Just(1), Just(60), Just(600)];
    let bandwidth = prop_oneof![2 => Just(None), 1 => (1..4u64).prop_map(Some)];
    let replicas = prop::option::weighted(0.3, 1..4u32);
    let terms =
        (any::<bool>(), timeout, 0..4u32, bandwidth, prop::bool::weighted(0.2), any::<bool>(), 0..7u32, replicas);
    (shape, terms).prop_map(
        |(
            (images, secrets, (parallelism, percent), nodes, completion),
            (always, timeout, retries, bandwidth, give_up, foreign, copies, replicas),
        )| Wish {
            images,
            secrets,
            parallelism,
            percent,
            nodes,
            completion,
            always,
            timeout,
            retries,
            bandwidth,
            give_up,
            foreign,
            copies,
            replicas,
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
        1 => Just(Work::Unable),
        2 => Just(Work::Starve),
        1 => Just(Work::Lag),
        1 => Just(Work::Accuse),
        1 => Just(Work::Move),
        1 => Just(Work::Rest),
        1 => Just(Work::TimeOut),
    ];
    let content = prop_oneof![1 => Just(None), 6 => (0..8u8).prop_map(Some)];
    let seconds = prop_oneof![4 => 0..5i64, 1 => Just(120), 1 => Just(301), 1 => Just(601), 1 => Just(3_700)];
    prop_oneof![
        4 => (0..3usize, wish()).prop_map(|(job, wish)| Happening::Create { job, wish }),
        2 => (0..3usize, wish()).prop_map(|(job, wish)| Happening::Edit { job, wish }),
        2 => (0..3usize, any::<bool>()).prop_map(|(job, suspend)| Happening::Suspend { job, suspend }),
        1 => (0..3usize).prop_map(|job| Happening::Delete { job }),
        4 => (0..3usize, 0..5usize, prop::bool::weighted(0.8))
            .prop_map(|(job, node, tag)| Happening::Tag { job, node, tag }),
        2 => (0..5usize, prop::bool::weighted(0.8), prop::bool::weighted(0.8))
            .prop_map(|(node, ready, main)| Happening::Node { node, ready, main }),
        1 => (0..5usize).prop_map(|node| Happening::NodeGone { node }),
        2 => (0..5usize).prop_map(|node| Happening::Agent { node }),
        1 => (0..5usize).prop_map(|node| Happening::AgentGone { node }),
        20 => (0..5usize, 0..3usize, work).prop_map(|(node, order, result)| Happening::Work { node, order, result }),
        6 => (0..6usize, content).prop_map(|(secret, content)| Happening::Secret { secret, content }),
        8 => Just(Happening::Read),
        2 => (0..5usize, prop::bool::weighted(0.7)).prop_map(|(node, sealed)| Happening::Features { node, sealed }),
        1 => (0..5usize, prop_oneof![Just(None), Just(Some("none")), Just(Some("other"))])
            .prop_map(|(node, group)| Happening::Group { node, group }),
        2 => (0..5usize, any::<bool>()).prop_map(|(node, cordon)| Happening::Cordon { node, cordon }),
        2 => (0..5usize, prop::option::weighted(0.8, facts())).prop_map(|(node, facts)| Happening::Peer { node, facts }),
        3 => facts().prop_map(|facts| Happening::Peers { facts }),
        8 => seconds.prop_map(|seconds| Happening::Pass { seconds }),
        14 => Just(Happening::Plan),
        10 => Just(Happening::Deliver),
        3 => Just(Happening::DeliverUnheard),
        3 => Just(Happening::LateAnswer),
        2 => Just(Happening::LostWrite),
        1 => Just(Happening::Restart),
        2 => (0..2usize).prop_map(|kind| Happening::Freeze { kind }),
        3 => (0..2usize).prop_map(|kind| Happening::Thaw { kind }),
        3 => (0..2usize, prop::option::weighted(0.6, rule())).prop_map(|(policy, rule)| Happening::Policy { policy, rule }),
        1 => (0..2usize, any::<bool>()).prop_map(|(namespace, team)| Happening::Label { namespace, team }),
        1 => Just(Happening::Blind),
        2 => Just(Happening::Sight),
        1 => Just(Happening::Save),
        1 => Just(Happening::RollBack),
    ]
}

/// A history that begins with four nodes that have agents and a foreign one, so that much can happen.
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
            // The objects that say which nodes it wants cannot be listed.
            2 => (job.names, job.unseen) = (names(&[]), Some("Pod")),
            _ => {}
        }
        job.completion = match self.completion {
            0 => Completion::Continuous { resync: secs(3_600) },
            1 => Completion::Once { deadline: Some(secs(1_000)), ttl: Some(secs(60)) },
            6.. => Completion::Standing,
            _ => Completion::Once { deadline: None, ttl: None },
        };
        if job.is_standing() {
            // People have made entries for some nodes just now.
            let nodes =
                [&["n1", "n2"][..], &["n1", "n2", "n3", "n4"], &[], &["n2", "n9", "f1"], &["n3"], &["n1", "n4", "f1"]];
            let nodes = nodes.get(usize::from(self.nodes)).into_iter().copied().flatten();
            job.names = Some(Arc::new(nodes.map(|node| ((*node).into(), created)).collect()));
            (job.created, job.empty) = (at(-1_000), Empty::Completes);
        }
        job.foreign_nodes = self.foreign;
        let tolerance = self.completion.checked_sub(4).filter(|_| !job.is_standing()).map(u32::from);
        job.tolerance = tolerance.map(|number| Tolerance { number, percent: false });
        (job.pull.timeout, job.pull.retries, job.pull.bandwidth) = (secs(self.timeout), self.retries, self.bandwidth);
        match self.copies {
            0 => job.pull.source = PullSource::PeersOnly,
            copies @ 1..=2 => job.pull.upstream_copies = Some(copies),
            3 => job.pull.source = PullSource::MirrorsOnly,
            _ => {}
        }
        if let Some(number) = self.replicas.filter(|_| !job.is_standing()) {
            // Three stand for all that are Ready.
            job = job.picking(Some(number).filter(|number| *number < 3), None);
        }
        if self.always {
            job.pull.policy = Policy::Always;
        }
        if self.give_up {
            job.unreachable = Unreachable::GiveUp;
        }
        job
    }
}

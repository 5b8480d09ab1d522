//! How much a node's object may hold. etcd refuses an object that is too large, and then nothing reaches the node any more. So every part of
//! the object has a bound, and all bounds together fit into what etcd accepts; and no namespace, and no few of them, may fill it.

use super::demand::answered;
use super::held::HeldOrder;
use super::orders::image_key;
use super::secrets::{MOST_LOGINS, pullable};
use super::{NodeSlot, World};
use crate::model::{Job, JobId, Key, Order, Sandbox};

/// The largest request that etcd accepts unless it is told otherwise.
const OBJECT: usize = 1536 * 1024;

/// What all orders of a node may take, in bytes as they are stored: each with the report on it, but for the report's message, and with the API
/// server's notes on who wrote which field of both.
pub const ROOM: usize = 1024 * 1024;

/// What the sealed logins of a node may take, with the API server's notes on them.
pub const ROOM_OF_LOGINS: usize = 256 * 1024;

/// What those of one namespace may take of that.
pub const ROOM_OF_LOGINS_OF_A_NAMESPACE: usize = ROOM_OF_LOGINS / 4;

/// What the messages of all reports of a node may take.
pub const ROOM_OF_MESSAGES: usize = 128 * 1024;

/// What reports may take whose orders are gone, with the API server's notes on them.
pub const ROOM_OF_ENDED: usize = 88 * 1024;

/// All else: metadata, what an agent says of itself, and the logins of other namespaces that come with the last order that finds room.
const REST: usize = 32 * 1024;

const _: () = assert!(ROOM + ROOM_OF_LOGINS + ROOM_OF_MESSAGES + ROOM_OF_ENDED + REST <= OBJECT);

/// What the jobs of one namespace may take of [`ROOM`].
pub const ROOM_OF_A_NAMESPACE: usize = ROOM / 8 * 5;

/// What is left of [`ROOM`] for namespaces that have no more than [`SHARE`]: whoever has several namespaces full of orders that never end
/// keeps nobody else out.
const RESERVE: usize = ROOM / 8;

/// What a namespace may take of a node that others have filled: the question about an image and its order, or a few orders that need no question.
const SHARE: usize = 8 * 1024;

/// How many jobs of one namespace an order names while it is under way. Each job that joins has the order made and written anew, with
/// all that it names. The jobs beyond these wait, and have the answer of the order if they began before it was asked for.
pub const JOBS_OF_A_NAMESPACE: usize = 64;

/// What a sealed login takes besides its box, with the API server's notes on it.
pub const LOGIN_WEIGHT: usize = 160;

/// What a report takes besides its texts, with the API server's notes on it.
pub const REPORT_WEIGHT: usize = 1_100;

/// What an order takes besides its texts, with the report on it and the API server's notes.
const BARE: usize = 1_760;

/// What the name of a login takes in an order.
const LOGIN: usize = 43;

/// What a peer takes in an order besides its name, which the report may repeat: its address, its key, and the names of the fields.
const PEER: usize = 160;

/// What an order with peers takes besides them: the ticket, and what else is said of its sources.
const TICKET: usize = 540;

/// Who has no room left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The jobs of the namespace.
    Namespace,
    /// All of them together.
    Node,
}

/// How many bytes a text takes as JSON, in the longer way of two: controllers write `<` as it is, and API servers as `\u003c`.
fn written(text: &str) -> usize {
    let one = |letter: char| match letter {
        '"' | '\\' | '\n' | '\r' | '\t' => 2,
        '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => 6,
        letter => letter.len_utf8(),
    };
    text.chars().map(one).sum()
}

/// How much of a node's object an order takes, with the report on it and the API server's notes on both. The message of the report is not counted.
pub fn weight(order: &Order) -> usize {
    let jobs: usize = order.jobs.iter().map(job_weight).sum();
    let needs: usize = order.needs.iter().map(|feature| written(feature) + 3).sum();
    let logins = LOGIN * order.terms.logins.len();
    let peers: usize = order.peers.iter().map(|peer| PEER + 2 * written(&peer.node)).sum();
    let ticket = if order.upstream { 0 } else { TICKET };
    let texts = written(&order.image) + jobs + needs + sandbox_weight(&order.terms.pull.sandbox);
    BARE + texts + logins + peers + ticket
}

/// What the name of a job takes, in an order and in the report on it; its part counts, too.
fn job_weight(id: &JobId) -> usize {
    2 * (written(id.as_str()) + 3)
}

fn sandbox_weight(sandbox: &Sandbox) -> usize {
    // As `key=value`, so that these letters are written as three.
    let escaped = |key: &str| 2 * key.bytes().filter(|letter| matches!(letter, b'%' | b'=')).count();
    let pairs = sandbox.labels.iter().chain(&sandbox.annotations);
    pairs.map(|(key, value)| written(key) + escaped(key) + written(value) + 4).sum()
}

/// What a job adds to an order, besides logins.
fn added(job: &Job) -> usize {
    job_weight(&job.id) + sandbox_weight(&job.pull.sandbox)
}

/// What the logins take that a job may have for an image.
fn lent(job: &Job, key: Key) -> usize {
    let lends = pullable(job).any(|(image, reference)| reference.key() == key && !image.secrets.is_empty());
    if lends { LOGIN * MOST_LOGINS } else { 0 }
}

impl World {
    /// What the orders of a node take.
    pub(super) fn taken(&self, at: usize) -> usize {
        self.slots.get(at).map_or(0, |slot| slot.orders.values().map(|order| order.weight).sum())
    }

    /// Whether somebody may be waiting for room there.
    pub(super) fn is_crowded(&self, at: usize) -> bool {
        self.taken(at) > ROOM_OF_A_NAMESPACE / 2
    }

    /// Whether the node has no room for an order of this image for the job, or for the job in the order that is there.
    pub(super) fn is_full(&self, job: &Job, at: usize, key: Key) -> Option<Full> {
        let slot = self.slots.get(at)?;
        let there = slot.orders.get(&key);
        let named = there.is_some_and(|order| order.jobs.contains(&job.id));
        let new = added(job) + lent(job, key) + if there.is_some() { 0 } else { BARE + key_text(job, key) };
        // Most nodes have few orders: then no namespace has many.
        let roomy = self.taken(at) + new <= ROOM_OF_A_NAMESPACE;
        if named && (roomy || there.is_none_or(|order| !self.grows(job, key, order))) {
            return None;
        }
        if there.is_some_and(|order| !named && Self::is_closed(order, slot, key, job)) {
            return Some(Full::Namespace);
        }
        if roomy {
            return None;
        }
        // What nobody wants any more is swept with the write that needs its room.
        let wanted = |(key, order): &(&Key, &HeldOrder)| {
            let wanted = self.wanted_by(at, image_key(**key, order)).any(|_| true);
            wanted || order.jobs.contains(&job.id) || self.is_kept(order)
        };
        let orders = || slot.orders.iter().filter(wanted);
        let own: usize = orders().map(|(key, order)| self.share(image_key(*key, order), order, job)).sum();
        let own = own + BARE + key_text(job, key) + added(job) + lent(job, key);
        if own > ROOM_OF_A_NAMESPACE {
            return Some(Full::Namespace);
        }
        let taken: usize = orders().map(|(_, order)| order.weight).sum();
        let room = if own <= SHARE { ROOM } else { ROOM - RESERVE };
        (taken + new > room).then_some(Full::Node)
    }

    /// An amended order that fits into the node's object, where others grow by so much at the same time: what a runtime is told stays as
    /// it was where there is no room for more, and so do logins where there is none at all.
    pub(super) fn fitting(&self, at: usize, old: &Order, mut amended: Order, grown: &mut usize) -> Order {
        let more = |amended: &Order| weight(amended).saturating_sub(weight(old));
        let taken = self.taken(at) + *grown;
        let [before, now] = [old, &amended].map(|order| sandbox_weight(&order.terms.pull.sandbox));
        if now > before && taken + more(&amended) > ROOM_OF_A_NAMESPACE {
            amended.terms.pull.sandbox = old.terms.pull.sandbox.clone();
        }
        if more(&amended) > 0 && taken + more(&amended) > ROOM {
            amended.terms.logins.retain(|login| old.terms.logins.contains(login));
        }
        *grown += more(&amended);
        amended
    }

    /// Whether an order that the job could only join names too many jobs of its namespace.
    fn is_closed(order: &HeldOrder, slot: &NodeSlot, key: Key, job: &Job) -> bool {
        // One that is answered or held is made anew for the job alone.
        is_crowd(order, job.id.namespace()) && !order.hold && !answered(order, slot.report(key))
    }

    /// Whether a job wants more room in the order that names it: its user has edited it, or one of its Secrets.
    fn grows(&self, job: &Job, key: Key, order: &HeldOrder) -> bool {
        let image = job.images.iter().position(|image| image.reference.as_ref().is_ok_and(|it| it.key() == key));
        sandbox_weight(&job.pull.sandbox) > sandbox_weight(&order.terms.pull.sandbox)
            || image.is_some_and(|image| self.secrets.untried(job, image, order))
    }

    /// What an order of this image takes for the jobs of the namespace of this job.
    fn share(&self, key: Key, order: &Order, job: &Job) -> usize {
        let (mut names, mut logins) = (0, 0);
        for id in order.jobs.iter().filter(|id| id.namespace() == job.id.namespace()) {
            let known = if *id == job.id { Some(job) } else { self.jobs.get(id).map(|state| &state.job) };
            names += known.map_or_else(|| job_weight(id), added);
            // Those of all jobs of a namespace together are no more than those of one may be.
            logins = known.map_or(0, |job| lent(job, key)).max(logins);
        }
        if names == 0 { 0 } else { BARE + written(&order.image) + names + logins }
    }
}

/// Whether an order names as many jobs of a namespace as it may.
pub(super) fn is_crowd(order: &Order, namespace: &str) -> bool {
    // Most orders name few jobs.
    let own = || order.jobs.iter().filter(|id| id.namespace() == namespace).count();
    order.jobs.len() >= JOBS_OF_A_NAMESPACE && own() >= JOBS_OF_A_NAMESPACE
}

fn key_text(job: &Job, key: Key) -> usize {
    let image = job.images.iter().filter_map(|image| image.reference.as_ref().ok()).find(|image| image.key() == key);
    image.map_or(0, |image| written(image.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_weighs_what_it_takes_in_json() {
        for (text, bytes) in [
            ("", 0),
            ("registry.example/web:v1", 23),
            ("\u{1}", r"\u0001".len()),
            ("\u{7}\u{8}\u{1f}", 3 * r"\u0008".len()),
            ("\n\t\r", 6),
            ("a\"\\", 5),
            ("<&>", r"\u003c\u0026\u003e".len()),
            ("\u{2028}\u{2029}", 12),
            ("ü\u{7f}", 3),
        ] {
            assert_eq!(written(text), bytes, "{text:?}");
        }
        let sandbox = |text: &str| Sandbox { annotations: [("k".into(), text.into())].into(), ..Sandbox::default() };
        assert_eq!(sandbox_weight(&sandbox(&"\u{1}".repeat(1_000))), 6_005);
        assert_eq!(sandbox_weight(&sandbox(&"a".repeat(1_000))), 1_005);
    }
}

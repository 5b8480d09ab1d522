//! How much a node's object may hold. The API server refuses an object that is too large, and then nothing reaches the node any more:
//! so no namespace may fill it, and all of them together stay well below that.

use super::World;
use super::held::HeldOrder;
use super::orders::image_key;
use crate::model::{Job, JobId, Key, Order, Sandbox};

/// What all orders of a node may take, in bytes as they are written. Reports take about as much again, and the API server's own notes
/// about both; it refuses what is larger than 1.5 MiB.
pub const ROOM: usize = 384 * 1024;

/// What the jobs of one namespace may take of that.
pub const ROOM_OF_A_NAMESPACE: usize = ROOM / 2;

/// What an order takes besides its texts.
const BARE: usize = 480;

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

/// How much an order takes, about.
pub(super) fn weight(order: &Order) -> usize {
    let jobs: usize = order.jobs.iter().map(|job| job_weight(job.namespace(), job.name())).sum();
    BARE + written(&order.image) + jobs + sandbox_weight(&order.terms.pull.sandbox) + 40 * order.terms.logins.len()
}

fn job_weight(namespace: &str, name: &str) -> usize {
    written(namespace) + written(name) + 40
}

fn sandbox_weight(sandbox: &Sandbox) -> usize {
    sandbox.labels.iter().chain(&sandbox.annotations).map(|(key, value)| written(key) + written(value) + 4).sum()
}

/// What a job adds to an order.
fn added(job: &Job) -> usize {
    job_weight(job.id.namespace(), job.id.name()) + sandbox_weight(&job.pull.sandbox)
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
        if there.is_some_and(|order| order.jobs.contains(&job.id)) {
            return None;
        }
        let new = added(job) + if there.is_some() { 0 } else { BARE + key_text(job, key) };
        // Most nodes have few orders: then no namespace has many.
        if self.taken(at) + new <= ROOM_OF_A_NAMESPACE {
            return None;
        }
        // What nobody wants any more is swept with the write that needs its room.
        let wanted = |(key, order): &(&Key, &HeldOrder)| {
            let wanted = self.wanted_by(at, image_key(**key, order)).any(|_| true);
            wanted || order.jobs.contains(&job.id) || self.is_kept(order)
        };
        let orders = || slot.orders.iter().filter(wanted).map(|(_, order)| order);
        let own: usize = orders().map(|order| self.share(order, job)).sum();
        if own + BARE + key_text(job, key) + added(job) > ROOM_OF_A_NAMESPACE {
            return Some(Full::Namespace);
        }
        let taken: usize = orders().map(|order| order.weight).sum();
        (taken + new > ROOM).then_some(Full::Node)
    }

    /// What an order takes for the jobs of the namespace of this job.
    fn share(&self, order: &Order, job: &Job) -> usize {
        let namespace = job.id.namespace();
        let added = |id: &JobId| match self.jobs.get(id) {
            _ if *id == job.id => added(job),
            Some(state) => added(&state.job),
            None => job_weight(namespace, id.name()),
        };
        let own: Vec<usize> = order.jobs.iter().filter(|id| id.namespace() == namespace).map(added).collect();
        if own.is_empty() { 0 } else { BARE + written(&order.image) + own.iter().sum::<usize>() }
    }
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

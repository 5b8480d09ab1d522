//! Which images this node serves: those that it was ordered to have, and has or will have, and for a while those that it was ordered to
//! have before; each under the name of its order. Orders and what came of them come in.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use stoker_core::model::{Key, Order, Phase};
use stoker_core::step::Task;
use stoker_transfer::peer::ticket_subject;
use stoker_transfer::{Digest, PlatformImage};
use tokio::time::Instant;

/// Where an image stands on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// An order is being done: what is missing will come.
    Open,
    /// An order was done.
    Done,
    /// Its orders are gone, or will not be done: what is there is served for a while.
    Left,
}

/// An image under the name by which it was ordered.
#[derive(Clone, Debug)]
pub(super) struct ServedRoot {
    /// The digest of the image.
    pub(super) root: Digest,
    pub(super) standing: Standing,
    /// Its documents, once an attempt at its order got them, or they were read from the image store.
    pub(super) image: Option<Arc<PlatformImage>>,
    /// Whether an order under this name was done, so that the image store had the image under this name.
    pub(super) done: bool,
    /// When it was last ordered or read.
    pub(super) last: Instant,
}

impl ServedRoot {
    pub(super) fn new(root: Digest, standing: Standing) -> Self {
        Self { root, standing, image: None, done: standing == Standing::Done, last: Instant::now() }
    }
}

/// The images that these orders are about, by what tickets for them name: the digest of each, and whether it is there or will come.
pub(super) fn wanted(
    orders: &BTreeMap<Key, Order>,
    tasks: &BTreeMap<Key, Task>,
) -> HashMap<Digest, (Digest, Standing)> {
    let mut wanted = HashMap::new();
    for (key, order) in orders {
        let report = tasks.get(key).map(|task| &task.report).filter(|report| report.asked == order.asked);
        let (digest, standing) = match report {
            Some(report) if report.phase == Phase::Succeeded => (report.digest.as_deref(), Standing::Done),
            Some(report) if report.ended() => continue,
            _ if order.hold || order.ask.is_question() => continue,
            report => {
                let learned = report.and_then(|report| report.pin.as_ref()).filter(|pin| pin.asked == order.asked);
                (order.pin().or(learned).map(|pin| pin.digest.as_str()), Standing::Open)
            }
        };
        if let Some(digest) = digest.and_then(|digest| digest.parse::<Digest>().ok()) {
            let subject = ticket_subject(&order.image, &digest);
            let known = wanted.entry(subject).or_insert((digest, standing));
            if standing == Standing::Done {
                known.1 = standing;
            }
        }
    }
    wanted
}

/// Brings the images up to date with what is wanted; gives those that are under way or have just ended.
pub(super) fn follow(
    roots: &mut HashMap<Digest, ServedRoot>,
    wanted: &HashMap<Digest, (Digest, Standing)>,
    linger: Duration,
) -> Vec<Arc<PlatformImage>> {
    let now = Instant::now();
    let mut moving = Vec::new();
    for (subject, (digest, standing)) in wanted {
        let root = roots.entry(subject.clone()).or_insert_with(|| ServedRoot::new(digest.clone(), *standing));
        if *standing == Standing::Open || root.standing == Standing::Open {
            moving.extend(root.image.clone());
        }
        root.done |= *standing == Standing::Done;
        (root.standing, root.last) = (*standing, now);
    }
    for (_, root) in roots.iter_mut().filter(|(digest, _)| !wanted.contains_key(digest)) {
        if matches!(root.standing, Standing::Open | Standing::Done) {
            (root.standing, root.last) = (Standing::Left, now);
        }
    }
    roots.retain(|digest, root| wanted.contains_key(digest) || now.duration_since(root.last) < linger);
    moving
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, order};
    use stoker_core::Reason;
    use stoker_core::model::{Ask, Bytes, Pin};
    use stoker_core::step::{Failure, begin, fail, succeed};

    #[test]
    fn what_was_ordered_is_served_once_its_digest_is_known() {
        let digest = |letter: &str| format!("sha256:{}", letter.repeat(64));
        let key = Key::of("r/i:1");
        let pinned = Order { ask: Ask::Fetch(Some(Pin::new(at(0), digest("a")))), ..order() };
        let begun = begin(&pinned, 1, None, at(0));
        let done = succeed(&pinned, &begun, digest("a"), Bytes::default(), at(1));
        let failure = Failure { reason: Reason::NotFound, message: String::new(), retryable: false, pause: None };
        let failed = fail(&pinned, &begun, failure, 0, at(1));
        let mut learned = begun.clone();
        learned.report.pin = Some(Pin::new(at(0), digest("b")));
        let look = Order { ask: Ask::Look, ..order() };
        let later = Order { asked: at(5), ..pinned.clone() };
        let held = Order { hold: true, ..pinned.clone() };
        for (what, order, task, expected) in [
            ("a tag", &order(), None, None),
            ("its answer", &order(), Some(&learned), Some(("b", Standing::Open))),
            ("a digest", &pinned, None, Some(("a", Standing::Open))),
            ("under way", &pinned, Some(&begun), Some(("a", Standing::Open))),
            ("held", &held, Some(&begun), None),
            ("done", &pinned, Some(&done), Some(("a", Standing::Done))),
            ("asked again", &later, Some(&done), Some(("a", Standing::Open))),
            ("failed", &pinned, Some(&failed), None),
            ("found", &look, Some(&done), Some(("a", Standing::Done))),
            ("looked for", &look, None, None),
        ] {
            let tasks = task.map(|task| (key, task.clone())).into_iter().collect();
            let wanted = wanted(&BTreeMap::from([(key, order.clone())]), &tasks);
            let expected = expected.map(|(letter, standing)| {
                let root: Digest = digest(letter).parse().unwrap();
                (ticket_subject(&order.image, &root), (root, standing))
            });
            let expected: HashMap<Digest, (Digest, Standing)> = expected.into_iter().collect();
            assert_eq!(wanted, expected, "{what}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_longer_ordered_stays_for_a_while() {
        let digest: Digest = format!("sha256:{}", "a".repeat(64)).parse().unwrap();
        let (mut roots, linger) = (HashMap::new(), Duration::from_secs(300));
        follow(&mut roots, &HashMap::from([(digest.clone(), (digest.clone(), Standing::Done))]), linger);
        tokio::time::sleep(Duration::from_secs(1000)).await;
        follow(&mut roots, &HashMap::new(), linger);
        assert_eq!((roots[&digest].standing, roots[&digest].done), (Standing::Left, true), "it is read from the store");
        tokio::time::sleep(Duration::from_secs(299)).await;
        follow(&mut roots, &HashMap::new(), linger);
        assert_eq!(roots.len(), 1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        follow(&mut roots, &HashMap::new(), linger);
        assert!(roots.is_empty());
    }
}

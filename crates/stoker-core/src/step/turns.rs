//! Whose turn it is on a node. Few orders pull at one time, and namespaces take fair turns: however many images one of them
//! wants, and however slowly they come, another gets a place.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::model::{Key, Order, after};

mod disk;

/// How long an order may pull before it gives its place to a namespace that has none.
pub const TURN: Duration = Duration::from_secs(60);

/// The same where a pull that is stopped has to begin anew.
pub const LONG_TURN: Duration = Duration::from_secs(600);

/// While orders wait, those that pull are looked at this often: one that stalls gives its place away.
const LOOK: Duration = Duration::from_secs(10);

/// An order that has a place, or waits for one.
#[derive(Clone)]
pub(super) struct Contender<'a> {
    pub(super) key: Key,
    /// The namespaces of its jobs, none twice.
    pub(super) namespaces: Vec<&'a str>,
    /// Since when it pulls, or waits.
    pub(super) since: Timestamp,
    /// Whether nothing comes.
    pub(super) stalls: bool,
    /// Whether it has a place, and waits for space on the disk.
    pub(super) wants_space: bool,
    /// The bytes of its image that have not come.
    pub(super) lacks: u64,
    /// Whether it waits because it gave its place away.
    pub(super) yielded: bool,
    /// Among the orders of the same namespaces those of higher priority come first.
    pub(super) priority: i32,
}

impl<'a> Contender<'a> {
    pub(super) fn new(key: Key, order: &'a Order, since: Timestamp) -> Self {
        // Jobs are sorted by kind first.
        let namespaces: BTreeSet<&str> = order.jobs.iter().map(|job| job.namespace()).collect();
        let namespaces = namespaces.into_iter().collect();
        let priority = order.terms.pull.priority;
        Self { key, namespaces, since, stalls: false, wants_space: false, lacks: 0, yielded: false, priority }
    }
}

/// How many places each namespace has.
#[derive(Default)]
struct Places<'a>(BTreeMap<&'a str, usize>);

impl<'a> Places<'a> {
    fn take(&mut self, contender: &Contender<'a>) {
        contender.namespaces.iter().for_each(|name| *self.0.entry(name).or_default() += 1);
    }

    fn give_back(&mut self, contender: &Contender<'a>) {
        for name in &contender.namespaces {
            self.0.entry(name).and_modify(|places| *places = places.saturating_sub(1));
        }
    }

    /// Those of the namespace that has the fewest, of all that want this image.
    fn of(&self, contender: &Contender<'_>) -> usize {
        let places = contender.namespaces.iter().map(|name| self.0.get(name).copied().unwrap_or_default());
        places.min().unwrap_or_default()
    }
}

/// What changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct TurnChanges {
    /// Those that give their places away.
    pub(super) yields: Vec<Key>,
    /// Those that begin.
    pub(super) starts: Vec<Key>,
    /// Those that wait, each with how many are before it.
    pub(super) waits: Vec<(Key, usize)>,
    /// When to look again.
    pub(super) wake: Option<Timestamp>,
}

/// Gives `places` to those that pull and those that wait.
pub(super) fn turns<'a>(
    mut pulling: Vec<Contender<'a>>,
    mut waiting: Vec<Contender<'a>>,
    places: usize,
    turn: Duration,
    now: Timestamp,
) -> TurnChanges {
    let mut turns = TurnChanges::default();
    let space = disk::space(&pulling, &waiting, turn, now);
    pulling.retain(|contender| !space.yields.contains(&contender.key));
    let kept_back: Vec<Contender<'a>> = waiting.extract_if(.., |contender| space.keeps_back(contender)).collect();
    by_priority(&mut waiting);
    let mut taken = Places::default();
    pulling.iter().for_each(|contender| taken.take(contender));
    // First come, first served, among those whose namespace has the fewest places.
    let rank = |contender: &Contender<'a>, taken: &Places<'a>| (taken.of(contender), contender.since, contender.key);
    while let Some((at, first)) = waiting.iter().enumerate().min_by_key(|(_, contender)| rank(contender, &taken)) {
        if pulling.len() >= places {
            let Some(victim) = gives_way(&pulling, first, &taken, turn, now) else { break };
            let victim = pulling.swap_remove(victim);
            taken.give_back(&victim);
            turns.yields.push(victim.key);
        }
        let first = Contender { since: now, ..waiting.swap_remove(at) };
        taken.take(&first);
        turns.starts.push(first.key);
        pulling.push(first);
    }
    turns.yields.extend(&space.yields);
    waiting.extend(kept_back);
    waiting.sort_by_cached_key(|contender| rank(contender, &taken));
    turns.wake = (!waiting.is_empty() || space.wanted).then(|| after(now, LOOK));
    turns.waits = (pulling.len()..).zip(waiting).map(|(before, contender)| (contender.key, before)).collect();
    turns
}

/// Gives the orders of each namespace the times at which they wait in the order of their priorities. The times themselves stay, so
/// that no priority moves an order of one namespace before one of another.
fn by_priority(waiting: &mut [Contender<'_>]) {
    if waiting.windows(2).all(|two| matches!(two, [one, other] if one.priority == other.priority)) {
        return;
    }
    let mut queues: BTreeMap<Vec<&str>, Vec<usize>> = BTreeMap::new();
    for (at, contender) in waiting.iter().enumerate() {
        queues.entry(contender.namespaces.clone()).or_default().push(at);
    }
    for queue in queues.into_values() {
        let of = |at: usize| waiting.get(at).map(|contender| (contender.priority, contender.since, contender.key));
        let mut times: Vec<Timestamp> = queue.iter().filter_map(|at| Some(of(*at)?.1)).collect();
        times.sort_unstable();
        let mut first: Vec<usize> = queue;
        first.sort_by_key(|at| of(*at).map(|(priority, since, key)| (std::cmp::Reverse(priority), since, key)));
        for (at, time) in first.into_iter().zip(times) {
            if let Some(contender) = waiting.get_mut(at) {
                contender.since = time;
            }
        }
    }
}

/// Which of those that pull gives its place to this one: one that stalls; or, where the namespace of the other has no place,
/// one that had its turn, of the namespace with the most.
fn gives_way(
    pulling: &[Contender<'_>],
    waits: &Contender<'_>,
    taken: &Places<'_>,
    turn: Duration,
    now: Timestamp,
) -> Option<usize> {
    let pulling = || pulling.iter().enumerate();
    let stalls = pulling().filter(|(_, contender)| contender.stalls && contender.since < now);
    if let Some((at, _)) = stalls.min_by_key(|(_, contender)| (contender.since, contender.key)) {
        return Some(at);
    }
    let had_its_turn = |contender: &Contender<'_>| after(contender.since, turn) <= now;
    let candidates = pulling().filter(|(_, contender)| taken.of(waits) == 0 && had_its_turn(contender));
    let most = |contender: &Contender<'_>| std::cmp::Reverse(taken.of(contender));
    candidates.min_by_key(|(_, contender)| (most(contender), contender.since, contender.key)).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::JobId;
    use crate::model::testing::{at, order};

    pub(super) fn key(n: u32) -> Key {
        Key::of(&n.to_string())
    }

    pub(super) fn orders() -> BTreeMap<&'static str, Order> {
        let of = |namespace: &'static str| {
            let jobs = namespace.split('+').map(|name| JobId::new(("stoker.dev", "Preheat"), name, "j")).collect();
            (namespace, Order { jobs, ..order(0) })
        };
        ["a", "b", "c", "d", "a+b"].into_iter().map(of).collect()
    }

    /// `(number, namespace, since, stalls)` of those that pull and those that wait, at second 100 with three places.
    fn table(pulling: &[(u32, &str, i64, bool)], waiting: &[(u32, &str, i64)]) -> TurnChanges {
        let orders = orders();
        let contender = |&(n, namespace, since, stalls): &(u32, &str, i64, bool)| Contender {
            stalls,
            ..Contender::new(key(n), &orders[namespace], at(since))
        };
        let pulling = pulling.iter().map(contender).collect();
        let waiting = waiting.iter().map(|&(n, namespace, since)| contender(&(n, namespace, since, false))).collect();
        turns(pulling, waiting, 3, TURN, at(100))
    }

    pub(super) fn keys(numbers: &[u32]) -> Vec<Key> {
        numbers.iter().map(|n| key(*n)).collect()
    }

    #[test]
    fn who_asked_first_begins_first_and_namespaces_take_turns() {
        let turns = table(&[], &[(1, "a", 1), (2, "a", 2), (3, "a", 3), (4, "b", 50), (5, "c", 60)]);
        assert_eq!((turns.starts, turns.yields), (keys(&[1, 4, 5]), vec![]));
        assert_eq!(turns.waits, [(key(2), 3), (key(3), 4)]);
        let alone = table(&[], &[(2, "a", 2), (1, "a", 1), (3, "a", 3), (4, "a", 4)]);
        assert_eq!(alone.starts, keys(&[1, 2, 3]), "places that nobody else wants");
        assert_eq!(table(&[], &[]), TurnChanges::default());
    }

    #[test]
    fn priority_counts_among_the_orders_of_a_namespace_and_moves_none_before_those_of_others() {
        let orders = orders();
        let waits = |&(n, namespace, since, priority): &(u32, &'static str, i64, i32)| Contender {
            priority,
            ..Contender::new(key(n), &orders[namespace], at(since))
        };
        let starts = |waiting: &[(u32, &'static str, i64, i32)], places: usize| {
            turns(Vec::new(), waiting.iter().map(waits).collect(), places, TURN, at(100)).starts
        };
        let own = [(1, "a", 1, 0), (2, "a", 2, -1), (3, "a", 3, 5), (4, "a", 4, 5)];
        assert_eq!(starts(&own, 4), keys(&[3, 4, 1, 2]));
        let two = [(1, "a", 1, 0), (2, "b", 2, 0), (3, "a", 3, 9), (4, "b", 4, 0)];
        assert_eq!(starts(&two, 2), keys(&[3, 2]), "in the place of the other one of its namespace");
        let late = [(1, "b", 1, 0), (2, "b", 2, 0), (3, "a", 3, 9)];
        assert_eq!(starts(&late, 1), keys(&[1]), "it came later than those of another namespace");
        assert_eq!(
            starts(&[(1, "a", 1, 0), (2, "a+b", 2, 9)], 1),
            keys(&[1]),
            "what two namespaces want is no matter of one"
        );
    }

    #[test]
    fn a_namespace_without_a_place_gets_one_from_who_had_its_turn() {
        let slow = [(1, "a", 10, false), (2, "a", 20, false), (3, "b", 5, false)];
        let turns = table(&slow, &[(4, "c", 90), (5, "a", 1)]);
        assert_eq!((turns.yields, turns.starts), (keys(&[1]), keys(&[4])), "of the namespace that has the most");
        assert_eq!((turns.waits, turns.wake), (vec![(key(5), 3)], Some(at(110))));
        let fresh = [(1, "a", 41, false), (2, "a", 50, false), (3, "a", 60, false)];
        assert_eq!(table(&fresh, &[(4, "b", 90)]).yields, [], "none had its turn");
        let own = [(1, "a", 1, false), (2, "a", 1, false), (3, "b", 1, false)];
        assert_eq!(table(&own, &[(4, "b", 50), (5, "a", 2)]).yields, [], "both have places");
        let many = [(1, "a", 3, false), (2, "b", 1, false), (3, "c", 2, false)];
        assert_eq!(table(&many, &[(4, "d", 90)]).yields, keys(&[2]), "where there are more namespaces than places");
    }

    #[test]
    fn what_stalls_makes_room_for_anybody() {
        let tarpit = [(1, "a", 95, true), (2, "a", 94, true), (3, "a", 93, true)];
        let turns = table(&tarpit, &[(4, "a", 96), (5, "b", 99)]);
        assert_eq!((turns.yields, turns.starts), (keys(&[3, 2]), keys(&[5, 4])));
        assert_eq!(table(&tarpit, &[]), TurnChanges::default(), "nobody needs the place");
    }

    #[test]
    fn an_image_for_two_namespaces_is_the_turn_of_both() {
        let turns = table(&[(1, "a", 90, false), (2, "a", 90, false)], &[(3, "a", 1), (4, "a+b", 50)]);
        assert_eq!(turns.starts, keys(&[4]), "b has no place");
        let turns = table(&[(1, "a+b", 90, false), (2, "a", 90, false)], &[(3, "b", 50), (4, "c", 60)]);
        assert_eq!(turns.starts, keys(&[4]), "b has one already");
    }
}

//! Who gives reserved disk space back. A pull that reserves space and then hardly comes would keep the images of all others away:
//! so reserved space is held for a turn, as a place is. Comes in: who pulls, who waits. Goes out: who yields, who may not begin yet.
//!
//! What a pull has fetched stays on the disk when it yields, and a pull waits only while it fits beside all that is on the disk. So each turn
//! brings an image nearer its end, and of two images that do not fit together one is done while the other fails for want of disk space.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::{Contender, LONG_TURN, LOOK, Places};
use crate::model::{Key, after};

/// For so many turns a pull that would have to begin anew keeps its space, where the image that waits is not smaller.
const TURNS_OF_A_SMALLER_IMAGE: u32 = 6;

/// What changes for the sake of a pull that waits for disk space.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SpaceChanges<'a> {
    /// Those that give what they reserved back, with their places.
    pub(super) yields: Vec<Key>,
    /// Whether somebody waits: the pulls are looked at again soon.
    pub(super) wanted: bool,
    /// Orders that do not begin before the one that waits has its space.
    behind: BTreeSet<Key>,
    /// Namespaces that begin nothing before that.
    namespaces: BTreeSet<&'a str>,
}

impl SpaceChanges<'_> {
    /// Whether this order would take the space from the one for which others gave it back.
    pub(super) fn keeps_back(&self, contender: &Contender<'_>) -> bool {
        self.behind.contains(&contender.key)
            || !contender.namespaces.is_empty()
                && contender.namespaces.iter().all(|name| self.namespaces.contains(name))
    }
}

/// Who yields to the pull that has waited longest for disk space: one that stalls; or, where no pull of its namespace has space, one
/// of another that had its turn. One pull at a time, the one that lacks most of its image, because that may be enough.
pub(super) fn space<'a>(
    pulling: &[Contender<'a>],
    waiting: &[Contender<'a>],
    turn: Duration,
    now: Timestamp,
) -> SpaceChanges<'a> {
    let mut holding = Places::default();
    pulling.iter().filter(|contender| !contender.wants_space).for_each(|contender| holding.take(contender));
    let want = pulling.iter().filter(|contender| contender.wants_space);
    let rank = |contender: &&Contender<'_>| (holding.of(contender), contender.since, contender.key);
    let Some(first) = want.min_by_key(rank) else { return SpaceChanges::default() };
    let mut changes = SpaceChanges { wanted: true, ..SpaceChanges::default() };
    // Those that have yielded while it waited.
    let yielded = || waiting.iter().filter(|contender| contender.yielded && contender.since >= first.since);
    changes.behind.extend(yielded().map(|contender| contender.key));
    changes.namespaces.extend(yielded().flat_map(|contender| contender.namespaces.iter().copied()));
    // A pull that has to begin anew loses what it has: it yields early to a smaller image only, so that two large ones do not stop
    // each other again and again.
    let patience = |contender: &Contender<'_>| match turn >= LONG_TURN && contender.lacks <= first.lacks {
        true => turn.saturating_mul(TURNS_OF_A_SMALLER_IMAGE),
        false => turn,
    };
    // Who starts pulls and takes them back before their turn ends would hold space for ever: two turns of waiting are enough.
    let had_its_turn = |contender: &Contender<'_>| {
        let patience = patience(contender);
        after(contender.since, patience) <= now || after(first.since, patience.saturating_mul(2)) <= now
    };
    let yields = |contender: &&Contender<'_>| {
        let stalls = contender.stalls && contender.since < now;
        let holds = !contender.wants_space && contender.lacks > 0;
        holds && (stalls || holding.of(first) == 0 && had_its_turn(contender))
    };
    // What the last one gave back may be enough: the pull that waits is given the time to take it.
    let just_now = yielded().any(|contender| now < after(contender.since, LOOK));
    let most = |contender: &&Contender<'_>| (contender.stalls, contender.lacks, contender.key);
    if let Some(victim) = pulling.iter().filter(yields).max_by_key(most).filter(|_| !just_now) {
        changes.namespaces.extend(&victim.namespaces);
        changes.yields.push(victim.key);
        // Pulls of the same namespaces that wait for space would take it at once.
        let heirs = pulling.iter().filter(|contender| contender.wants_space && contender.key != first.key);
        let heirs = heirs.filter(|contender| contender.namespaces.iter().all(|name| victim.namespaces.contains(name)));
        changes.yields.extend(heirs.map(|contender| contender.key));
    }
    // The namespaces of the one that waits keep nobody but themselves waiting.
    changes.namespaces.retain(|name| !first.namespaces.contains(name));
    changes
}

#[cfg(test)]
mod tests {
    use super::super::tests::{key, keys, orders};
    use super::super::{TURN, turns};
    use super::*;
    use crate::model::testing::at;

    /// What is known of an order in these tests.
    #[derive(Clone, Copy)]
    enum Is {
        /// It pulls and lacks so many bytes.
        Lacks(u64),
        /// The same, and nothing comes.
        Stalls(u64),
        /// It has a place and waits for space.
        Wants,
        /// It gave its place away.
        Yielded,
        /// It has never begun.
        New,
    }
    use Is::{Lacks, New, Stalls, Wants, Yielded};

    /// `(yields, starts)` with three places, from `(number, namespace, since)` of all orders.
    fn table(all: &[(u32, &str, i64, Is)], now: i64) -> (Vec<Key>, Vec<Key>) {
        table_with(TURN, all, now)
    }

    fn table_with(turn: Duration, all: &[(u32, &str, i64, Is)], now: i64) -> (Vec<Key>, Vec<Key>) {
        let orders = orders();
        let contender = |&(n, namespace, since, is): &(u32, &str, i64, Is)| {
            let plain = Contender::new(key(n), &orders[namespace], at(since));
            match is {
                Lacks(lacks) => Contender { lacks, ..plain },
                Stalls(lacks) => Contender { lacks, stalls: true, ..plain },
                Wants => Contender { wants_space: true, lacks: 5, ..plain },
                Yielded => Contender { yielded: true, ..plain },
                New => plain,
            }
        };
        let waits = |is: &Is| matches!(is, Yielded | New);
        let pulling = all.iter().filter(|row| !waits(&row.3)).map(contender).collect();
        let waiting = all.iter().filter(|row| waits(&row.3)).map(contender).collect();
        let turns = turns(pulling, waiting, 3, turn, at(now));
        (turns.yields, turns.starts)
    }

    #[test]
    fn who_reserves_and_hardly_comes_gives_space_back_after_a_turn() {
        let hog = [(1, "a", 0, Lacks(700)), (2, "b", 10, Wants)];
        assert_eq!(table(&hog, 59), (vec![], vec![]), "its turn is not over");
        assert_eq!(table(&hog, 60), (keys(&[1]), vec![]));
        let own = [(1, "a", 0, Lacks(700)), (2, "a", 10, Wants)];
        assert_eq!(table(&own, 999), (vec![], vec![]), "a namespace does that to nobody but itself");
        let busy = [(1, "a", 0, Lacks(700)), (2, "b", 10, Wants), (3, "b", 20, Lacks(1))];
        assert_eq!(table(&busy, 999), (vec![], vec![]), "the other has space, if not for this image");
        let alone = [(1, "a", 0, Lacks(700)), (2, "b", 0, Lacks(5))];
        assert_eq!(table(&alone, 999), (vec![], vec![]), "nobody needs it");
        let stalls = [(1, "a", 9, Stalls(700)), (2, "a", 9, Wants)];
        assert_eq!(table(&stalls, 10), (keys(&[1]), vec![]), "whoever waits");
    }

    #[test]
    fn one_gives_space_back_at_a_time_and_the_largest_first() {
        let two = [(1, "a", 0, Lacks(7)), (2, "c", 0, Lacks(700)), (3, "b", 10, Wants)];
        assert_eq!(table(&two, 100), (keys(&[2]), vec![]));
        let next = [(1, "a", 0, Lacks(7)), (2, "c", 100, Yielded), (3, "b", 10, Wants)];
        assert_eq!(table(&next, 105), (vec![], vec![]), "that may have been enough");
        assert_eq!(table(&next, 110), (keys(&[1]), vec![]), "it was not");
        let done = [(1, "a", 0, Lacks(0)), (3, "b", 10, Wants)];
        assert_eq!(table(&done, 100), (vec![], vec![]), "all of it has come");
    }

    #[test]
    fn what_was_given_back_is_not_taken_by_those_who_gave_it() {
        let free = [(1, "a", 60, Yielded), (2, "b", 10, Wants), (3, "a", 5, New), (4, "c", 70, New)];
        assert_eq!(table(&free, 71).1, keys(&[4]), "neither the same order nor another of its namespace begins");
        let has = [(1, "a", 60, Yielded), (2, "b", 71, Lacks(5)), (3, "a", 5, New)];
        assert_eq!(table(&has, 71).1, keys(&[3, 1]), "it has its space");
        let earlier = [(1, "a", 5, Yielded), (2, "b", 10, Wants)];
        assert_eq!(table(&earlier, 71).1, keys(&[1]), "it gave its place to somebody else");
        let heir = [(1, "a", 0, Lacks(700)), (2, "b", 10, Wants), (3, "a", 5, Wants)];
        assert_eq!(table(&heir, 60).0, keys(&[1, 3]));
        let third = [(1, "a", 0, Lacks(700)), (2, "b", 10, Wants), (3, "c", 20, Wants)];
        assert_eq!(table(&third, 60).0, keys(&[1]), "a third one keeps its place in the queue");
    }

    #[test]
    fn who_takes_orders_back_before_their_turn_ends_does_not_hold_space_for_ever() {
        let fresh =
            |now: i64| table(&[(1, "a", now - 20, Lacks(9)), (2, "b", 0, Wants), (3, "a", now - 5, Lacks(9))], now);
        assert_eq!(fresh(119).0, []);
        assert_eq!(fresh(120).0.len(), 1);
    }

    #[test]
    fn a_pull_that_would_begin_anew_gives_space_to_smaller_images_first() {
        // The image that waits lacks five bytes.
        let larger = [(1, "a", 0, Lacks(700)), (2, "b", 10, Wants)];
        assert_eq!(table_with(LONG_TURN, &larger, 600).0, keys(&[1]));
        let smaller = [(1, "a", 0, Lacks(5)), (2, "b", 10, Wants)];
        assert_eq!(table_with(LONG_TURN, &smaller, 3599).0, []);
        assert_eq!(table_with(LONG_TURN, &smaller, 3600).0, keys(&[1]), "but not for ever");
    }

    /// Two images of two namespaces, each of 60 % of a disk that may be filled to 80 %, at one percent a step of six seconds.
    #[test]
    fn of_two_images_that_do_not_fit_together_one_is_done() {
        const SIZE: u64 = 60;
        const LIMIT: u64 = 80;
        let orders = orders();
        // What each has on the disk; what it does, since when; whether it failed.
        let mut have = [0u64; 2];
        let mut is = [(Lacks(0), 0i64); 2];
        is[1].0 = Wants;
        let mut failed = [false; 2];
        for now in (0..100_000).step_by(6) {
            // As the room of a node does: who waits fits beside what is there, or fails and gives back what it fetched.
            for n in 0..2 {
                let (me, other) = (have[n], have[1 - n]);
                if matches!(is[n].0, Wants) && !failed[n] {
                    let reserved = if matches!(is[1 - n].0, Lacks(_)) && !failed[1 - n] { SIZE - other } else { 0 };
                    if me + other + (SIZE - me) > LIMIT {
                        (failed[n], have[n]) = (true, 0);
                    } else if other + reserved + SIZE <= LIMIT {
                        is[n] = (Lacks(0), now);
                    }
                }
                if matches!(is[n].0, Lacks(_)) && !failed[n] {
                    have[n] += 1;
                }
            }
            assert!(have[0] + have[1] <= LIMIT);
            if let Some(done) = (0..2).find(|n| have[*n] == SIZE) {
                assert!(failed[1 - done] || matches!(is[1 - done].0, Wants | Yielded), "and the other has a reason");
                return;
            }
            let contenders = (0..2).filter(|n| !failed[*n]).map(|n| {
                let plain = Contender::new(key(n as u32), &orders[["a", "b"][n]], at(is[n].1));
                let wants_space = matches!(is[n].0, Wants);
                Contender { lacks: SIZE - have[n], wants_space, yielded: matches!(is[n].0, Yielded), ..plain }
            });
            let (waiting, pulling) = contenders.partition(|contender| contender.yielded);
            let turns = turns(pulling, waiting, 3, TURN, at(now));
            for (n, is) in (0..).zip(&mut is) {
                if turns.yields.contains(&key(n)) {
                    *is = (Yielded, now);
                } else if turns.starts.contains(&key(n)) {
                    *is = (Wants, now);
                }
            }
        }
        panic!("neither is done: {have:?}");
    }
}

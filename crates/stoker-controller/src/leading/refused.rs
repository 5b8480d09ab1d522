//! Orders of a node that the API server refuses because of what is in them. The other orders of the node are written without them. They are tried
//! again with growing pauses, and at once when they become others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use stoker_core::{Key, Order};
use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_secs(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// The refused orders of one node.
#[derive(Default)]
pub(super) struct RefusedOrders {
    orders: BTreeMap<Key, (Order, String)>,
    /// When they are tried again, and how long that has been put off.
    next: Option<(Instant, Duration)>,
}

impl RefusedOrders {
    /// The API server has refused this order.
    pub(super) fn add(&mut self, key: Key, order: Order, why: String, now: Instant) {
        let again = self.orders.insert(key, (order, why)).is_some();
        self.next = match self.next {
            Some((_, pause)) if again => {
                let pause = (pause * 2).min(LONGEST_PAUSE);
                Some((now + pause, pause))
            }
            Some(next) => Some(next),
            None => Some((now + FIRST_PAUSE, FIRST_PAUSE)),
        };
    }

    /// The API server has these orders.
    pub(super) fn see(&mut self, there: &BTreeMap<Key, Order>) {
        self.orders.retain(|key, (order, _)| !there.get(key).is_some_and(|there| is_same(there, order)));
        self.settle();
    }

    /// Takes out of the orders that are to be written those that would be refused again. One that is another one by now may be taken.
    pub(super) fn hold_back(&mut self, keys: &mut BTreeSet<Key>, orders: &BTreeMap<Key, Order>, now: Instant) {
        self.orders.retain(|key, (refused, _)| orders.get(key).is_some_and(|order| is_same(order, refused)));
        self.settle();
        let Some((until, pause)) = self.next else { return };
        if now < until {
            keys.retain(|key| !self.orders.contains_key(key));
        } else if keys.iter().any(|key| self.orders.contains_key(key)) {
            self.next = Some((now + pause, pause));
        }
    }

    fn settle(&mut self) {
        if self.orders.is_empty() {
            self.next = None;
        }
    }

    /// When they are tried again; none where there are none.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next.map(|(at, _)| at)
    }

    /// Which they are.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.orders.keys().copied()
    }

    /// What the API server said of each.
    pub(super) fn words(&self) -> BTreeMap<Key, String> {
        self.orders.iter().map(|(key, (_, why))| (*key, why.clone())).collect()
    }
}

/// Whether two orders are the same but for their times and the pace of their reports, which depends on other jobs: an order that is not in the object
/// is planned anew again and again.
fn is_same(one: &Order, other: &Order) -> bool {
    let digest = |order: &Order| order.pin().map(|pin| (pin.digest.clone(), pin.alone));
    let kind = |order: &Order| std::mem::discriminant(&order.ask);
    (&one.image, &one.jobs, one.hold, &one.terms.pull, &one.terms.logins, &one.needs)
        == (&other.image, &other.jobs, other.hold, &other.terms.pull, &other.terms.logins, &other.needs)
        && (kind(one), digest(one)) == (kind(other), digest(other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use stoker_core::model::{Ask, Policy, Pull, Sandbox, Terms};

    fn order(image: &str, retries: u32, second: i64) -> Order {
        let pull = Pull {
            policy: Policy::IfNotPresent,
            timeout: Duration::from_secs(60),
            retries,
            bandwidth: None,
            priority: 0,
            sandbox: Sandbox::default(),
            source: Default::default(),
            upstream_copies: None,
        };
        let terms = Terms { pull, logins: Vec::new(), progress: Duration::from_secs(1) };
        Order::new(image, BTreeSet::new(), Timestamp::from_second(second).unwrap(), Ask::Fetch(None), terms)
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_is_tried_again_with_growing_pauses_and_at_once_when_it_changes() {
        let (bad, good) = (Key::of("bad"), Key::of("good"));
        let mut refused = RefusedOrders::default();
        refused.add(bad, order("bad", 1, 0), "too many labels".into(), Instant::now());
        let mut tries = 0;
        for second in 0..3_600 {
            let orders = BTreeMap::from([(bad, order("bad", 1, second)), (good, order("good", 1, second))]);
            let mut keys = BTreeSet::from([bad, good]);
            refused.hold_back(&mut keys, &orders, Instant::now());
            assert!(keys.contains(&good), "the others are written");
            if keys.contains(&bad) {
                tries += 1;
                refused.add(bad, order("bad", 1, second), "too many labels".into(), Instant::now());
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!((6..=12).contains(&tries), "{tries} times in an hour");
        assert_eq!(refused.words(), BTreeMap::from([(bad, "too many labels".into())]));
        let mut keys = BTreeSet::from([bad]);
        refused.hold_back(&mut keys, &BTreeMap::from([(bad, order("bad", 2, 0))]), Instant::now());
        assert!(keys.contains(&bad) && refused.words().is_empty() && refused.due().is_none(), "it was edited");
        refused.add(bad, order("bad", 2, 0), "too many labels".into(), Instant::now());
        refused.see(&BTreeMap::from([(bad, order("bad", 1, 0))]));
        assert_eq!(refused.keys().count(), 1, "what is there is an earlier one");
        refused.see(&BTreeMap::from([(bad, order("bad", 2, 9))]));
        assert_eq!(refused.keys().count(), 0);
    }
}

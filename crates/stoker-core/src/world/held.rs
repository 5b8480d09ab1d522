//! An order as the World keeps it. The orders of one image differ in little but their time: what is the same is kept
//! once for all nodes, which makes a large world less than half as large. An [`Order`] goes in and comes out unchanged.

use std::ops::Deref;
use std::sync::Arc;

use jiff::Timestamp;

use super::room::weight;
use crate::model::{Ask, Order, Pin};

/// How many kinds of orders of one image are looked through for those that nobody has any more.
const MANY: usize = 16;

/// An order: its own times, and what it shares with others. It derefs to the latter, in which the times are blank.
#[derive(Clone, Debug)]
pub(super) struct HeldOrder {
    /// [`Order::asked`].
    pub(super) asked: Timestamp,
    /// [`Pin::asked`] of its digest, if it has one.
    pub(super) pinned: Option<Timestamp>,
    /// How much room it takes.
    pub(super) weight: usize,
    shared: Arc<Order>,
}

impl Deref for HeldOrder {
    type Target = Order;
    fn deref(&self) -> &Order {
        &self.shared
    }
}

impl HeldOrder {
    /// The order as it came in.
    pub(super) fn order(&self) -> Order {
        let mut order = Order { asked: self.asked, ..(*self.shared).clone() };
        if let (Some(asked), Ask::Fetch(Some(pin))) = (self.pinned, &mut order.ask) {
            pin.asked = asked;
        }
        order
    }

    /// The digest to fetch, with its time.
    pub(super) fn pin(&self) -> Option<Pin> {
        Some(Pin { asked: self.pinned?, ..self.shared.ask.pin()?.clone() })
    }

    /// Whether it is this order.
    pub(super) fn is(&self, order: &Order) -> bool {
        let Order { image, jobs, asked, ask, hold, terms, needs } = order;
        // Compared for every order of every object that is heard of: nothing is copied.
        fn said(ask: &Ask) -> Option<(&str, bool)> {
            ask.pin().map(|pin| (pin.digest.as_str(), pin.alone))
        }
        let same_ask = std::mem::discriminant(&self.ask) == std::mem::discriminant(ask)
            && self.pinned == ask.pin().map(|pin| pin.asked)
            && said(&self.ask) == said(ask);
        (self.asked, self.hold) == (*asked, *hold)
            && same_ask
            && (&self.image, &self.jobs, &self.terms, &self.needs) == (image, jobs, terms, needs)
    }
}

/// What orders of one image share.
#[derive(Clone, Debug, Default)]
pub(super) struct Kinds(Vec<Arc<Order>>);

impl Kinds {
    /// Takes an order in.
    pub(super) fn hold(&mut self, mut order: Order) -> HeldOrder {
        let asked = std::mem::replace(&mut order.asked, Timestamp::UNIX_EPOCH);
        let pinned = match &mut order.ask {
            Ask::Fetch(Some(pin)) => Some(std::mem::replace(&mut pin.asked, Timestamp::UNIX_EPOCH)),
            _ => None,
        };
        if let Some(shared) = self.0.iter().find(|there| ***there == order) {
            return HeldOrder { asked, pinned, weight: weight(shared), shared: shared.clone() };
        }
        if self.0.len() >= MANY {
            self.0.retain(|there| Arc::strong_count(there) > 1);
        }
        // One that is not kept here is merely not shared.
        let shared = Arc::new(order);
        if self.0.len() < MANY {
            self.0.push(shared.clone());
        }
        HeldOrder { asked, pinned, weight: weight(&shared), shared }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LoginId;
    use crate::model::testing::{at, order};

    #[test]
    fn an_order_comes_out_as_it_went_in_and_equal_parts_are_kept_once() {
        let mut kinds = Kinds::default();
        let plain = order(1);
        let mut other = Order { asked: at(2), ..order(1) };
        other.terms.logins = vec![LoginId::new("1")];
        other.ask = Ask::Fetch(Some(Pin::new(at(0), "sha256:a")));
        let orders = [plain.clone(), Order { asked: at(7), ..plain }, other.clone(), Order { asked: at(9), ..other }];
        for order in &orders {
            let held = kinds.hold(order.clone());
            assert!(held.is(order) && held.order() == *order, "{order:?}");
            assert_eq!(orders.iter().filter(|other| held.is(other)).count(), 1);
        }
        assert_eq!(kinds.0.len(), 2);
    }

    #[test]
    fn kinds_that_nobody_has_are_forgotten() {
        let mut kinds = Kinds::default();
        let kept = kinds.hold(order(0));
        for retries in 100..200 {
            let mut order = order(0);
            order.terms.pull.retries = retries;
            assert!(kinds.hold(order.clone()).is(&order));
        }
        assert!(kinds.0.len() <= MANY && kinds.0.iter().any(|there| Arc::ptr_eq(there, &kept.shared)));
    }
}

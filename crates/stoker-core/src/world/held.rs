//! An order as the World keeps it. The orders of one image differ in little but their time: what is the same is kept
//! once for all nodes, which makes a large world less than half as large. An [`Order`] goes in and comes out unchanged.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::model::{CopyName, JobId, LOOK, Order, Pin, Policy, Sandbox};

/// How many kinds of orders of one image are looked through for those that nobody has any more.
const MANY: usize = 16;

/// An order: what is its own, and what it shares.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// [`Order::asked`].
    pub(super) asked: Timestamp,
    /// [`Pin::asked`] of its digest, if it has one.
    pub(super) pinned: Option<Timestamp>,
    shared: Arc<Shared>,
}

/// The other parts of an [`Order`], under the same names.
#[derive(Debug, PartialEq)]
pub(super) struct Shared {
    image: String,
    digest: Option<String>,
    pub(super) policy: Policy,
    pub(super) timeout: Duration,
    pub(super) retries: u32,
    pub(super) bandwidth: Option<u64>,
    pub(super) sandbox: Sandbox,
    progress: Duration,
    pub(super) jobs: BTreeSet<JobId>,
    pub(super) secrets: Vec<CopyName>,
    needs: BTreeSet<String>,
}

impl Deref for Held {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Held {
    /// The order as it came in.
    pub(super) fn order(&self) -> Order {
        let shared = &*self.shared;
        Order {
            image: shared.image.clone(),
            pin: self.pin(),
            policy: shared.policy,
            timeout: shared.timeout,
            retries: shared.retries,
            bandwidth: shared.bandwidth,
            sandbox: shared.sandbox.clone(),
            progress: shared.progress,
            jobs: shared.jobs.clone(),
            asked: self.asked,
            secrets: shared.secrets.clone(),
            needs: shared.needs.clone(),
        }
    }

    /// [`Order::looks`].
    pub(super) fn looks(&self) -> bool {
        self.needs.contains(LOOK)
    }

    /// [`Order::pin`].
    pub(super) fn pin(&self) -> Option<Pin> {
        Some(Pin { asked: self.pinned?, digest: self.digest.clone()? })
    }

    /// Whether it is this order.
    pub(super) fn is(&self, order: &Order) -> bool {
        let Order { image, pin, policy, timeout, retries, bandwidth, sandbox, progress, jobs, asked, secrets, needs } =
            order;
        let (pinned, digest) = (pin.as_ref().map(|pin| pin.asked), pin.as_ref().map(|pin| &pin.digest));
        let own = (self.asked, self.pinned) == (*asked, pinned) && self.digest.as_ref() == digest;
        let terms = (self.policy, self.timeout, self.retries, self.bandwidth, self.progress)
            == (*policy, *timeout, *retries, *bandwidth, *progress);
        own && terms
            && self.sandbox == *sandbox
            && (&self.image, &self.jobs, &self.secrets, &self.needs) == (image, jobs, secrets, needs)
    }
}

/// What orders of one image share.
#[derive(Clone, Debug, Default)]
pub(super) struct Kinds(Vec<Arc<Shared>>);

impl Kinds {
    /// Takes an order in.
    pub(super) fn hold(&mut self, order: Order) -> Held {
        let Order { image, pin, policy, timeout, retries, bandwidth, sandbox, progress, jobs, asked, secrets, needs } =
            order;
        let (pinned, digest) = pin.map(|pin| (pin.asked, pin.digest)).unzip();
        let shared =
            Shared { image, digest, policy, timeout, retries, bandwidth, sandbox, progress, jobs, secrets, needs };
        if let Some(shared) = self.0.iter().find(|there| ***there == shared) {
            return Held { asked, pinned, shared: shared.clone() };
        }
        if self.0.len() >= MANY {
            self.0.retain(|there| Arc::strong_count(there) > 1);
        }
        // One that is not kept here is merely not shared.
        let shared = Arc::new(shared);
        if self.0.len() < MANY {
            self.0.push(shared.clone());
        }
        Held { asked, pinned, shared }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::{at, order};

    #[test]
    fn an_order_comes_out_as_it_went_in_and_equal_parts_are_kept_once() {
        let mut kinds = Kinds::default();
        let plain = order(1);
        let mut other = Order { asked: at(2), secrets: vec![CopyName::new("pull-1")], ..order(1) };
        other.pin = Some(Pin { asked: at(0), digest: "sha256:a".into() });
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
            let order = Order { retries, ..order(0) };
            assert!(kinds.hold(order.clone()).is(&order));
        }
        assert!(kinds.0.len() <= MANY && kinds.0.iter().any(|there| Arc::ptr_eq(there, &kept.shared)));
    }
}

//! Orders under way whose sources change although nobody complains: their jobs allow no copy any more.

use crate::model::{Ask, Order};
use crate::world::World;
use crate::world::held::HeldOrder;

/// Whether its jobs let the image come from other nodes alone. The registry may still be asked what a tag means.
fn is_barred(order: &Order) -> bool {
    matches!(order.ask, Ask::Fetch(_)) && order.terms.pull.copies().0 == 0
}

/// Whether an order has nothing to read from, and may not go upstream. It gets a list as soon as somebody can serve it.
pub(super) fn lacks_list(order: &HeldOrder) -> bool {
    !order.upstream && is_barred(order) && order.peers().next().is_none()
}

impl World {
    /// An order under way, amended or not, that goes upstream only where its jobs still allow that; none where nothing of it has changed. Which nodes it
    /// reads from instead is decided when all orders are up to date: see [`lacks_list`].
    pub(in crate::world) fn revised(&self, order: &HeldOrder, amended: Option<Order>) -> Option<Order> {
        let now: &Order = amended.as_ref().unwrap_or(order);
        if !now.upstream || !is_barred(now) {
            return amended;
        }
        let mut order = amended.unwrap_or_else(|| order.order());
        give_registry_back(&mut order);
        Some(order)
    }
}

/// Takes an order that its jobs allow no copy from the registry. Its lists up to now were those of an order that could go upstream in the end.
pub(in crate::world) fn give_registry_back(order: &mut Order) {
    if order.upstream && is_barred(order) {
        (order.upstream, order.past.lists) = (false, 0);
    }
}

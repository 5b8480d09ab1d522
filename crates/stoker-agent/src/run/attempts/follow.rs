//! Attempts under way follow what changes in their orders: the limit, who wants them, and where their bytes come from.

use std::collections::BTreeMap;

use stoker_api::native::from_core::Tickets;
use stoker_core::model::{Key, Order, Report};
use stoker_core::step::{self, TaskState};

use super::Attempts;
use crate::ways;

impl Attempts {
    /// These are the orders now, with what this node shows to the nodes that they name.
    pub(in crate::run) fn follow(&mut self, orders: &BTreeMap<Key, Order>, tickets: &Tickets) {
        self.tickets.clone_from(tickets);
        let mut anew = Vec::new();
        for (key, running) in &self.running {
            let Some(order) = orders.get(key) else { continue };
            running.supply.pace.set(order.terms.pull.bandwidth);
            if let Some(task) = self.tasks.get(key).and_then(|task| step::rejoin(&running.began, order, task)) {
                self.tasks.insert(*key, task);
            }
            // Hosts that it may not ask any more have to hear nothing at once, and those that it may ask now keep it from failing without them.
            let hosts =
                |order: &Order| (order.terms.pull.source.is_from_mirrors_alone(), order.terms.pull.source.may_ask());
            if hosts(&running.began) != hosts(order) {
                anew.push((*key, "begins anew: its order lets it ask other hosts than before"));
                continue;
            }
            // An ask that this attempt does not answer may be about another digest.
            let answers = self.tasks.get(key).is_some_and(|task| task.report.asked == order.asked);
            match &running.supply.ways {
                // One that reads from nobody stops, too: the next attempt says why.
                _ if running.supply.is_upstream(&running.began) && !order.upstream => {
                    anew.push((*key, "reads from other nodes from now on, and no longer from the registry"));
                }
                Some(ways) if answers => ways.set(ways::list(order, tickets.get(key))),
                _ => {}
            }
        }
        if !anew.is_empty() {
            self.read_meters((self.tools.clock)());
        }
        anew.into_iter().for_each(|(key, why)| self.begin_anew(key, why));
    }

    /// An attempt goes on from other places than it began with, and may ask some of the earlier ones no more. The same attempt begins anew: what was
    /// fetched is kept, and the trouble that it had with a registry is no longer its trouble.
    fn begin_anew(&mut self, key: Key, why: &str) {
        let now = (self.tools.clock)();
        let Some(running) = self.stop(key) else { return };
        // What the stopped attempt has in hand may take a moment to go, and must not go on by the next list.
        if let Some(ways) = self.ways.get_mut(&key) {
            *ways = ways.renewed();
        }
        tracing::info!(node = self.node, image = running.began.image, "{why}");
        let Some(task) = self.tasks.get(&key) else { return };
        if let TaskState::Running { since } = task.state {
            *self.worked.entry(key).or_default() += now.duration_since(since).unsigned_abs();
        }
        let report = Report { reason: None, message: String::new(), stalled: None, ..task.report.clone() };
        self.tasks.insert(key, step::adopt(report, now));
    }
}

//! What holds in every history: one test for each law, over random ones.

mod allowed;
mod choosing;
mod ends;
mod foreign;
mod frozen;
mod logins;
mod pacing;
mod plans;
mod relay;
mod standing;
mod told;
mod trust;

use proptest::prelude::*;
use stoker_core::model::Order;
use stoker_core::{Ask, Key, Phase, Plan, Reason, pace};

use crate::history::Happening;
use crate::sim::{FOREIGN, NODES, Sim};

/// A few histories; PROPTEST_CASES asks for more, and PROPTEST_RNG_SEED for others.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    // Proptest's own number: nobody asked for another.
    if config.cases == 256 {
        config.cases = 64;
    }
    config
}

/// Lets a history happen; `check` sees what was before each plan, what came of it, and the plan.
fn each_plan(history: &[Happening], mut check: impl FnMut(&Sim, &Sim, &Plan)) -> Sim {
    let mut sim = Sim::new();
    for happening in history {
        match happening {
            Happening::Plan => {
                let before = sim.clone();
                let plan = sim.plan();
                check(&before, &sim, &plan);
            }
            other => {
                sim.happen(other);
            }
        }
    }
    sim
}

/// An order as the World assumes it, and what is to be known about it.
struct Ordered {
    node: &'static str,
    key: Key,
    order: Order,
    answered: bool,
    silent: bool,
    resolved: bool,
    /// It could not learn a digest.
    failed: bool,
    /// It takes long to learn one.
    slow: bool,
}

fn orders(sim: &Sim) -> Vec<Ordered> {
    let mut all = Vec::new();
    for node in NODES {
        for (key, order) in sim.world.orders(node).into_iter().flatten() {
            let report = sim.agents.get(node).and_then(|agent| agent.reports.get(&key));
            // A report of a later ask is about another order. It is no sign of life for this one.
            let report = report.filter(|report| report.asked <= order.asked);
            let seen = report.map_or(order.asked, |report| report.updated.max(order.asked)).max(sim.listening);
            // A foreign node that has begun need not repeat itself.
            let begun = node == FOREIGN && report.is_some_and(|report| report.asked == order.asked);
            all.push(Ordered {
                node,
                key,
                answered: report.is_some_and(|report| report.ended() && report.asked == order.asked),
                silent: seen + pace::SILENCE <= sim.now && !begun,
                slow: order.asked + pace::SLOW_ANSWER <= sim.now
                    || report.is_some_and(|report| report.reason.is_some())
                    || sim.nodes.get(node).is_none_or(|node| !node.ready),
                failed: matches!(order.ask, Ask::Resolve | Ask::Fetch(None))
                    && report.is_some_and(|report| {
                        report.phase == Phase::Failed
                            && report.asked == order.asked
                            && report.reason != Some(Reason::Unsupported)
                    }),
                resolved: report.and_then(|report| report.pin.as_ref()).is_some_and(|pin| pin.asked >= order.asked),
                order,
            });
        }
    }
    all
}

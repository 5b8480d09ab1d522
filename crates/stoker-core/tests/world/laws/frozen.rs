//! Kinds of jobs that cannot be listed.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use stoker_core::model::Order;
use stoker_core::{Event, JobId, Key, KindName};

use super::{Ordered, config, each_plan, orders};
use crate::build::{KINDS, kind};
use crate::history::{Happening, history};
use crate::sim::{Sim, changes};

proptest! {
    #![proptest_config(config())]

    /// What a job of a frozen kind was given it keeps, and it gets nothing more; and nothing is said of it.
    #[test]
    fn what_is_frozen_stands_still(history in history()) {
        each_plan(&history, |before, after, plan| {
            let frozen = |order: &Order| -> BTreeSet<JobId> {
                order.jobs.iter().filter(|id| before.stands_still(id)).cloned().collect()
            };
            let is: BTreeMap<(&str, Key), Order> =
                orders(after).into_iter().map(|ordered| ((ordered.node, ordered.key), ordered.order)).collect();
            let was: BTreeMap<(&str, Key), Ordered> =
                orders(before).into_iter().map(|ordered| ((ordered.node, ordered.key), ordered)).collect();
            for (place, old) in was.iter().filter(|(_, old)| !frozen(&old.order).is_empty()) {
                let new = is.get(place).unwrap_or_else(|| panic!("{place:?} is taken back: {:?}", old.order));
                // A new ask of another job takes the place of an answer, which is kept beside it.
                let replaced = old.answered && new.asked > old.order.asked;
                assert!(replaced || frozen(&old.order).is_subset(&frozen(new)), "{:?} became {new:?}", old.order);
                let alone = old.order.jobs.iter().all(|id| before.stands_still(id));
                let joined = new.jobs.iter().any(|id| !before.stands_still(id));
                assert!(!alone || joined || *new == old.order, "{:?} became {new:?}", old.order);
            }
            for (place, new) in &is {
                let had = was.get(place).map(|old| frozen(&old.order)).unwrap_or_default();
                assert!(frozen(new).is_subset(&had), "{place:?} is handed out: {new:?}");
            }
            let mut said = plan.outcomes.iter().map(|outcome| &outcome.job).chain(&plan.expired);
            assert_eq!(said.find(|id| before.stands_still(id)), None);
        });
    }

    /// As long as a job of a frozen kind has nothing to do, others do not notice.
    #[test]
    fn others_are_planned_as_ever(history in history(), n in 0..KINDS.len()) {
        each_plan(&history, |before, after, plan| {
            let mut world = before.world.clone();
            let still = |id: &JobId| kind(n).has(id) || before.stands_still(id);
            let concerned = |node: &str, key: &Key, order: &Option<Order>| {
                let old = before.world.orders(node).unwrap_or_default().remove(key);
                old.iter().chain(order).any(|order| order.jobs.iter().any(still))
            };
            let planned = changes(&after.world, plan);
            let idle = planned.iter().all(|(node, changes)| {
                changes.iter().all(|(key, order)| !concerned(node, key, order))
            });
            // One that has not begun yet begins.
            let begun = before.world.jobs().filter(|id| still(id)).all(|id| {
                before.world.job(id).map(|job| job.started) == after.world.job(id).map(|job| job.started)
            });
            world.apply(Event::Freeze(kind(n)));
            let frozen = world.plan(after.now);
            assert!(frozen.outcomes.iter().all(|outcome| !still(&outcome.job)));
            if idle && begun {
                assert_eq!(changes(&world, &frozen), planned);
                let others = plan.outcomes.iter().filter(|outcome| !still(&outcome.job));
                assert!(frozen.outcomes.iter().eq(others), "{:#?} {:#?}", frozen.outcomes, plan.outcomes);
            }
        });
    }

    /// While everything is frozen nothing is planned, and then as if nobody had tried.
    #[test]
    fn a_thawed_world_plans_as_if_it_had_not_been_frozen(history in history(), cut in 0..90usize) {
        let (before, during) = history.split_at(cut.min(history.len()));
        let mut frozen = each_plan(before, |_, _, _| {});
        frozen.thaw_all();
        let mut waiting = frozen.clone();
        let all = |sim: &mut Sim, event: fn(KindName) -> Event| {
            (0..KINDS.len()).for_each(|n| sim.world.apply(event(kind(n))));
        };
        all(&mut frozen, Event::Freeze);
        let quiet = |happening: &&Happening| !matches!(
            happening,
            Happening::Plan | Happening::Restart | Happening::RollBack | Happening::Freeze { .. } | Happening::Thaw { .. }
                | Happening::Blind | Happening::Sight
        );
        for happening in during.iter().filter(quiet) {
            frozen.happen(happening);
            waiting.happen(happening);
            let plan = frozen.world.plan(frozen.now);
            assert!(plan.is_empty() && plan.wake.is_none(), "{plan:#?}");
        }
        all(&mut frozen, Event::Thaw);
        // So that both say everything anew.
        all(&mut waiting, Event::Freeze);
        all(&mut waiting, Event::Thaw);
        // What nobody names is forgotten with each plan. A policy holds jobs, or lets them go, in a plan alone, and Secrets of held jobs are not read. So both
        // Worlds are told of the Secrets that the one names that has planned.
        let wanted = frozen.world.wanted_secrets();
        for sim in [&mut frozen, &mut waiting] {
            sim.read_these(&wanted);
        }
        assert_eq!(frozen.plan(), waiting.plan());
    }
}

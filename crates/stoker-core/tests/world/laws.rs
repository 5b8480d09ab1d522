//! What holds in every history: one test for each law, over random ones.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use stoker_core::model::after;
use stoker_core::model::{Found, Image, Job, LoginId, Order};
use stoker_core::pace::SIGN_OF_LIFE;
use stoker_core::select::selects;
use stoker_core::world::{MOST_LOGINS, NodeState, NodeView};
use stoker_core::{Ask, Completion, Event, JobId, Key, KindName, Phase, Plan, Reason, Stage, Waiting, World, pace};

use crate::build::{KINDS, kind, secs};
use crate::history::{Happening, found, history};
use crate::sim::{LIAR, LIE, NODES, Sim};

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
            let seen = report.map_or(order.asked, |report| report.updated.max(order.asked));
            all.push(Ordered {
                node,
                key,
                answered: report.is_some_and(|report| report.ended() && report.asked >= order.asked),
                silent: seen + pace::SILENCE <= sim.now,
                slow: order.asked + pace::SLOW_ANSWER <= sim.now
                    || report.is_some_and(|report| report.reason.is_some())
                    || sim.nodes.get(node).is_none_or(|node| !node.ready),
                failed: matches!(order.ask, Ask::Resolve | Ask::Fetch(None))
                    && report.is_some_and(|report| {
                        report.phase == Phase::Failed
                            && report.asked >= order.asked
                            && report.reason != Some(Reason::Unsupported)
                    }),
                resolved: report.and_then(|report| report.pin.as_ref()).is_some_and(|pin| pin.asked >= order.asked),
                order,
            });
        }
    }
    all
}

/// How long an order holds a place of a job.
fn keeps_place(order: &Order, job: &Job) -> Duration {
    pace::keeps_place(&order.terms.pull).min(pace::keeps_place(&job.pull))
}

/// The nodes of a job on which a pull for it is under way.
fn busy(sim: &Sim, job: &Job) -> BTreeSet<&'static str> {
    let wanted = |node: &str| sim.nodes.get(node).is_some_and(|node| selects(job, node));
    let keys: BTreeSet<Key> = job.keys().collect();
    let running = orders(sim).into_iter().filter(|ordered| {
        let counts = ordered.order.jobs.contains(&job.id) && keys.contains(&ordered.key);
        let pulls = !ordered.order.ask.is_question() && !ordered.order.hold;
        let late = ordered.order.asked + keeps_place(&ordered.order, job) <= sim.now;
        counts && pulls && wanted(ordered.node) && !ordered.answered && !ordered.silent && !late
    });
    running.map(|ordered| ordered.node).collect()
}

/// On how many nodes the API server's objects show a pull for this job that is under way.
fn shown(sim: &Sim, job: &Job) -> usize {
    let runs = |agent: &crate::sim::AgentObject| {
        agent.orders.iter().any(|(key, order)| {
            let report = agent.reports.get(key);
            let ended = report.is_some_and(|report| report.ended() && report.asked >= order.asked);
            let seen = report.map_or(order.asked, |report| report.updated.max(order.asked));
            let silent = seen + pace::SILENCE <= sim.now;
            let pulls = !order.ask.is_question() && !order.hold;
            pulls && order.jobs.contains(&job.id) && !ended && !silent
        })
    };
    sim.agents.values().filter(|agent| runs(agent)).count()
}

proptest! {
    #![proptest_config(config())]

    /// While a job is at its limit or (after it was lowered, or a silent or late node came back) over it, no node more is
    /// handed out.
    #[test]
    fn parallelism_is_never_exceeded(history in history()) {
        each_plan(&history, |before, after, _| {
            for job in after.jobs.values().filter(|job| !after.is_frozen(&job.id)) {
                let (was, mut is) = (busy(before, job), busy(after, job));
                // What goes on for others alone holds no place.
                let failed = |node: &NodeView<'_>| matches!(node.state, NodeState::Failed(..));
                for view in after.world.nodes(&job.id, after.now).iter().filter(|view| failed(view)) {
                    is.remove(&*view.node);
                }
                let more = is.difference(&was).count();
                let limit = usize::try_from(job.parallelism).unwrap();
                assert!(more == 0 || is.len() <= limit, "{}: {was:?} became {is:?}, limit {limit}", job.id);
            }
        });
    }

    /// The same as the API server shows it, at every moment: what is handed out there and what is not yet dropped.
    #[test]
    fn no_object_shows_more_pulls_than_parallelism_allows(history in history()) {
        let mut sim = Sim::new();
        let mut limits: BTreeMap<JobId, usize> = BTreeMap::new();
        // A node that is taken for silent gives its place away, and may come back.
        let silences = |happening: &&Happening| matches!(happening, Happening::Pass { seconds: 6.. });
        for happening in history.iter().filter(|happening| !silences(happening)) {
            let before: BTreeMap<JobId, usize> = sim.jobs.values().map(|job| (job.id.clone(), shown(&sim, job))).collect();
            sim.happen(happening);
            if sim.rolled_back {
                break;
            }
            for job in sim.jobs.values().filter(|job| !sim.is_frozen(&job.id)) {
                // Lowered while orders are on their way, a limit holds for the next ones.
                let limit = limits.entry(job.id.clone()).or_default();
                *limit = (*limit).max(usize::try_from(job.parallelism).unwrap());
                let (was, is) = (before.get(&job.id).copied().unwrap_or_default(), shown(&sim, job));
                assert!(is <= was || is <= *limit, "{}: {was} became {is}, limit {limit}: {happening:?}", job.id);
            }
        }
    }

    /// Nothing is handed out for a job that is gone, also when an answer about it comes late.
    #[test]
    fn a_job_that_is_gone_gets_no_order(history in history()) {
        each_plan(&history, |_, after, plan| {
            let jobs: BTreeSet<&JobId> = after.jobs.values().map(|job| &job.id).collect();
            for write in &plan.orders {
                for order in write.changes.values().flatten() {
                    let known = |id: &JobId| jobs.contains(id) || after.is_frozen(id);
                    assert!(order.jobs.iter().all(known), "{}: {order:?}", write.node);
                }
            }
        });
    }

    #[test]
    fn every_idle_node_has_a_reason(history in history()) {
        each_plan(&history, |_, after, _| {
            for job in after.jobs.values().filter(|job| job.ended.is_none() && !after.is_frozen(&job.id)) {
                let views = after.world.nodes(&job.id, after.now);
                for view in &views {
                    assert_ne!(view.state, NodeState::Waiting(Waiting::Pending), "{} on {}", job.id, view.node);
                    if let NodeState::Waiting(Waiting::Unresolved { by, .. }) = &view.state {
                        assert!(!by.is_empty(), "{} on {}: nobody is asking", job.id, view.node);
                    }
                }
                let wanted = after.nodes.values().filter(|node| selects(job, node));
                for node in wanted {
                    assert!(views.iter().any(|view| view.node == node.name), "{} on {}", job.id, node.name);
                }
            }
        });
    }

    /// What a look brought is no answer to a job.
    #[test]
    fn nobody_fails_because_it_looked_in_vain(history in history()) {
        each_plan(&history, |_, after, _| {
            for job in after.jobs.values() {
                for view in after.world.nodes(&job.id, after.now) {
                    assert!(!matches!(view.state, NodeState::Failed(Reason::Unresolved, _)), "{} on {}", job.id, view.node);
                }
            }
        });
    }

    #[test]
    fn the_plan_of_an_unchanged_world_is_empty(history in history(), part in 0..1000u64) {
        each_plan(&history, |_, after, plan| {
            let mut world = after.world.clone();
            let again = world.plan(after.now);
            assert!(again.is_empty(), "{again:#?}");
            assert_eq!(again.wake, plan.wake);
            // Any time before the wake-up.
            let left = plan.wake.map_or(100_000_000, |wake| (wake - after.now).total(jiff::Unit::Millisecond).unwrap() as u64);
            nothing_happens_until(&mut world, after.now + Duration::from_millis(left.saturating_sub(1) * part / 1000));
            // Nor is anything left that a look at everything would find.
            world.touch_everything();
            let naive = world.plan(after.now);
            assert!(naive.orders.is_empty() && naive.outcomes.is_empty(), "{naive:#?}");
        });
    }

    #[test]
    fn the_incremental_plan_is_the_naive_one(history in history()) {
        each_plan(&history, |before, after, plan| {
            let mut naive = before.world.clone();
            naive.touch_everything();
            let oracle = naive.plan(after.now);
            assert_eq!(&oracle.orders, &plan.orders);
            assert_eq!(&oracle.outcomes, &plan.outcomes);
            assert_eq!(oracle.wake, plan.wake);
            assert!(plan.expired.iter().all(|id| oracle.expired.contains(id)));
        });
    }

    #[test]
    fn a_restarted_controller_plans_the_same(history in history()) {
        let mut sim = each_plan(&history, |_, _, _| {});
        sim.thaw_all();
        // Who saw a list of everything counts silence from then on.
        if sim.rolled_back {
            return Ok(());
        }
        // With every write acknowledged, and then again and again while it goes on.
        sim.plan();
        for _ in 0..4 {
            sim.deliver_all();
            sim.read();
            let mut restarted = sim.restarted();
            let fresh = restarted.plan(sim.now);
            let plan = sim.plan();
            assert_eq!(fresh.orders, plan.orders);
            // It has said everything just now; the other may have bytes that it holds back for a moment.
            let moment = plan.wake.is_some_and(|wake| wake <= after(sim.now, SIGN_OF_LIFE));
            assert!(fresh.wake == plan.wake || moment, "{:?} {:?}", fresh.wake, plan.wake);
            for id in sim.world.jobs() {
                assert_eq!(states(&restarted, id, sim.now), states(&sim.world, id, sim.now), "{id}");
            }
            sim.deliver_all();
            sim.all_work();
        }
    }

    #[test]
    fn the_order_of_events_does_not_matter(history in history(), seed in any::<u64>()) {
        let sim = each_plan(&history, |_, _, _| {});
        let mut straight = World::new();
        sim.events.iter().cloned().for_each(|event| straight.apply(event));
        let mut shuffled = World::new();
        shuffle(&sim.events, seed).into_iter().for_each(|event| shuffled.apply(event));
        assert_eq!(shuffled.plan(sim.now), straight.plan(sim.now));
    }

    #[test]
    fn few_nodes_ask_the_registry_and_all_get_their_answer(history in history()) {
        each_plan(&history, |before, after, _| {
            let asks = |ordered: &Ordered| {
                let open = !ordered.answered && !ordered.silent && !ordered.resolved && !ordered.order.hold;
                matches!(ordered.order.ask, Ask::Resolve | Ask::Fetch(None)) && open
            };
            let told: BTreeSet<(Key, &'static str)> =
                orders(before).iter().filter(|ordered| asks(ordered)).map(|ordered| (ordered.key, ordered.node)).collect();
            let (was, is) = (orders(before), orders(after));
            for new in is.iter().filter(|ordered| asks(ordered) && !told.contains(&(ordered.key, ordered.node))) {
                // As many as failed or are slow, and two: for one of the jobs at least that want the image.
                let few = |id: &JobId| {
                    let Some(since) = after.world.job(id).map(|job| job.since(after.now)) else { return false };
                    let about = |other: &&Ordered| other.order.image == new.order.image && other.order.asked >= since;
                    let alike = |other: &&Ordered| other.order.ask.is_question() == new.order.ask.is_question();
                    let asking = || is.iter().filter(about).filter(alike).filter(|other| asks(other));
                    let slow = asking().filter(|other| other.slow).count();
                    // One that failed, or said something else than others, may be among those that are asked again.
                    let other = |ordered: &&Ordered| ordered.failed || ordered.resolved;
                    let failed = was.iter().filter(about).filter(other).count();
                    asking().count() - slow <= failed + slow + pace::WITNESSES
                };
                assert!(after.jobs.values().map(|job| &job.id).any(few), "{} was told to ask for {}", new.node, new.order.image);
            }
            let once = |id: &JobId| matches!(after.world.job(id).map(|job| &job.completion), Some(Completion::Once { .. }));
            let mut digests: BTreeMap<(Key, &BTreeSet<JobId>), &str> = BTreeMap::new();
            let orders = orders(after);
            for Ordered { key, order, node, .. } in &orders {
                let since = order.jobs.iter().filter_map(|id| after.world.job(id)).map(|job| job.since(after.now)).max();
                let counts = order.jobs.iter().all(once) && since.is_some_and(|since| order.asked >= since);
                // What one node alone said is given up when two others say something else.
                if let Some(pin) = order.pin().filter(|pin| counts && !pin.alone) {
                    let first = digests.entry((*key, &order.jobs)).or_insert(&pin.digest);
                    assert_eq!(*first, pin.digest, "{node}: {:?}", order.jobs);
                }
            }
        });
    }

    /// A node that was taken over says what it likes. No other pulls that, unless there was nobody else to ask.
    #[test]
    fn no_node_decides_for_another(history in history()) {
        each_plan(&history, |_, after, _| {
            for Ordered { node, order, .. } in orders(after) {
                let believed = order.pin().is_some_and(|pin| pin.digest == LIE && !pin.alone);
                assert!(!believed, "{node} is told to pull what {LIAR} says: {order:?}");
            }
        });
    }

    /// Whatever asks it says that it has answered, it is asked at the time of the controller.
    #[test]
    fn no_node_moves_the_time_of_an_ask(history in history()) {
        each_plan(&history, |_, after, _| {
            let latest = after.now + pace::CLOCK_SKEW;
            for Ordered { node, order, .. } in orders(after) {
                assert!(order.asked <= latest, "{node} is asked at {}: {order:?}", order.asked);
            }
        });
    }

    #[test]
    fn writes_are_few_and_never_go_back(history in history()) {
        each_plan(&history, |before, _, plan| {
            let orders = orders(before);
            let nodes: BTreeSet<&str> = plan.orders.iter().map(|write| &*write.node).collect();
            assert_eq!(nodes.len(), plan.orders.len(), "one write a node");
            for write in &plan.orders {
                let old = |key: &Key| orders.iter().find(|old| old.node == &*write.node && old.key == *key);
                let sweeps = |(key, change): (&Key, &Option<Order>)| {
                    change.is_none() && old(key).is_none_or(|old| old.answered)
                };
                assert!(!write.changes.iter().all(sweeps), "{} is written to only to be swept", write.node);
                for (key, change) in &write.changes {
                    let old = old(key).map(|old| &old.order);
                    assert_ne!(change.as_ref(), old, "{}: nothing changes", write.node);
                    if let (Some(new), Some(old)) = (change, old) {
                        assert!(new.asked >= old.asked, "{}: asked {} after {}", write.node, new.asked, old.asked);
                        let grew = new.terms.logins.iter().any(|login| !old.terms.logins.contains(login));
                        assert!(!grew || new.asked > old.asked || outdated(before, old, new), "{new:?} after {old:?}");
                    }
                }
            }
        });
    }

    /// A node is given up for want of a login only when every login that its job has was tried.
    #[test]
    fn every_login_is_tried(history in history()) {
        each_plan(&history, |_, after, _| {
            let mut sim = after.clone();
            sim.read();
            sim.plan();
            for job in sim.jobs.values().filter(|job| job.runs() && !sim.is_frozen(&job.id)) {
                assert_eq!(untried(&sim, job), None, "{}", job.id);
            }
        });
    }

    /// A login is lent by jobs that run and want the image on that node, to agents that can open it; and few are tried.
    #[test]
    fn logins_go_where_their_jobs_want_them_and_nowhere_else(history in history()) {
        each_plan(&history, |_, after, _| {
            let mut sim = after.clone();
            sim.read();
            sim.plan();
            let open = orders(&sim).into_iter().filter(|ordered| !ordered.answered && !ordered.silent && !ordered.order.hold);
            let open = open.filter(|ordered| !ordered.order.jobs.iter().any(|id| sim.is_frozen(id)));
            for Ordered { node, key, order, .. } in open {
                let image = if order.ask.is_question() { key.question() } else { key };
                // As the World knows them: that one has ended may be on its way.
                let jobs = sim.world.jobs().filter_map(|id| sim.world.job(id)).filter(|job| job.runs());
                let wanting = jobs.filter(|job| sim.nodes.get(node).is_some_and(|node| selects(job, node)));
                let lent: BTreeSet<LoginId> = wanting.flat_map(|job| logins_of(&sim, job, image)).collect();
                let logins: BTreeSet<LoginId> = order.terms.logins.iter().cloned().collect();
                let forbidden = sim.secrets.values().any(|content| found(Some(*content)) == Found::Forbidden);
                assert!(forbidden || logins.is_subset(&lent), "{node} has {logins:?} of {lent:?}");
                // Jobs are of two namespaces.
                assert!(forbidden || logins.len() <= 2 * MOST_LOGINS, "{node} has {logins:?}");
                let able = sim.agents.get(node).is_some_and(|agent| agent.features.contains("sealed"));
                assert!(able || logins.is_empty(), "{node} cannot open {logins:?}");
            }
        });
    }

    /// What a job of a frozen kind was given it keeps, and it gets nothing more; and nothing is said of it.
    #[test]
    fn what_is_frozen_stands_still(history in history()) {
        each_plan(&history, |before, after, plan| {
            let frozen = |order: &Order| -> BTreeSet<JobId> {
                order.jobs.iter().filter(|id| before.is_frozen(id)).cloned().collect()
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
                let alone = old.order.jobs.iter().all(|id| before.is_frozen(id));
                let joined = new.jobs.iter().any(|id| !before.is_frozen(id));
                assert!(!alone || joined || *new == old.order, "{:?} became {new:?}", old.order);
            }
            for (place, new) in &is {
                let had = was.get(place).map(|old| frozen(&old.order)).unwrap_or_default();
                assert!(frozen(new).is_subset(&had), "{place:?} is handed out: {new:?}");
            }
            let mut said = plan.outcomes.iter().map(|outcome| &outcome.job).chain(&plan.expired);
            assert_eq!(said.find(|id| before.is_frozen(id)), None);
        });
    }

    /// As long as a job of a frozen kind has nothing to do, others do not notice.
    #[test]
    fn others_are_planned_as_ever(history in history(), n in 0..KINDS.len()) {
        each_plan(&history, |before, after, plan| {
            let mut world = before.world.clone();
            let still = |id: &JobId| kind(n).has(id) || before.is_frozen(id);
            let concerned = |node: &str, key: &Key, order: &Option<Order>| {
                let old = before.world.orders(node).unwrap_or_default().remove(key);
                old.iter().chain(order).any(|order| order.jobs.iter().any(still))
            };
            let idle = plan.orders.iter().all(|write| {
                write.changes.iter().all(|(key, order)| !concerned(&write.node, key, order))
            });
            // One that has not begun yet begins.
            let begun = before.world.jobs().filter(|id| still(id)).all(|id| {
                before.world.job(id).map(|job| job.started) == after.world.job(id).map(|job| job.started)
            });
            world.apply(Event::Freeze(kind(n)));
            let frozen = world.plan(after.now);
            assert!(frozen.outcomes.iter().all(|outcome| !still(&outcome.job)));
            if idle && begun {
                assert_eq!(&frozen.orders, &plan.orders);
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
        // What nobody names is forgotten with each plan.
        for sim in [&mut frozen, &mut waiting] {
            sim.read();
        }
        assert_eq!(frozen.plan(), waiting.plan());
    }

    #[test]
    fn it_converges(history in history()) {
        let mut sim = each_plan(&history, |_, _, _| {});
        sim.thaw_all();
        for node in 0..NODES.len() {
            sim.happen(&Happening::Node { node, ready: true, main: true });
            sim.happen(&Happening::Agent { node });
            sim.happen(&Happening::Features { node, sealed: true });
        }
        for (name, mut job) in sim.jobs.clone() {
            (job.suspend, job.parallelism) = (false, job.parallelism.max(1));
            job.names = None;
            sim.jobs.insert(name, job.clone());
            sim.world.apply(Event::Job(Box::new(job)));
        }
        let settled = |sim: &Sim| sim.jobs.values().all(|job| match job.completion {
            Completion::Once { .. } => job.ended.is_some(),
            Completion::Continuous { .. } => sim.said(&job.id) == Some(Stage::Synced),
        });
        for _ in 0..40 {
            sim.read();
            sim.plan();
            sim.deliver_all();
            sim.all_work();
            sim.now += secs(1);
        }
        assert!(settled(&sim), "{:#?}", sim.jobs);
        let unfinished = orders(&sim).into_iter().filter(|ordered| !ordered.answered).count();
        assert_eq!(unfinished, 0, "an order is left that nobody wants");
    }
}

/// The logins that this job has for an image, as a controller that reads its Secrets now finds them.
fn logins_of(sim: &Sim, job: &Job, key: Key) -> BTreeSet<LoginId> {
    let is = |image: &&Image| image.reference.as_ref().is_ok_and(|reference| reference.key() == key);
    let secrets = job.images.iter().filter(is).flat_map(|image| &image.secrets);
    let found = secrets.map(|id| found(sim.secrets.get(id.name.as_str()).copied()));
    let offers = found.flat_map(|found| match found {
        Found::Logins(offers) => offers,
        _ => Vec::new(),
    });
    offers.into_iter().map(|offer| offer.id).collect()
}

/// A node that a job has given up as refused, with a login that was not tried there.
fn untried(sim: &Sim, job: &Job) -> Option<(String, LoginId)> {
    for view in sim.world.nodes(&job.id, sim.now) {
        let refusals = [Reason::Unauthorized, Reason::SecretMissing, Reason::SecretForbidden, Reason::SecretUnusable];
        if !matches!(view.state, NodeState::Failed(reason, _) if refusals.contains(&reason)) {
            continue;
        }
        let orders = sim.world.orders(&view.node).unwrap_or_default();
        for (image, (_, report)) in job.images.iter().zip(&view.images) {
            let refused = report.is_some_and(|report| report.reason == Some(Reason::Unauthorized));
            let Ok(key) = image.reference.as_ref().map(|reference| reference.key()) else { continue };
            let asked = report.map(|report| report.asked);
            let of_report = |key: &Key| orders.get(key).filter(|order| Some(order.asked) == asked);
            let order = of_report(&key).or_else(|| of_report(&key.question()));
            let Some(order) = order.filter(|_| refused) else { continue };
            // Where a namespace has more than are tried, nobody can say here which they are.
            let all: BTreeSet<LoginId> = sim.jobs.values().flat_map(|job| logins_of(sim, job, key)).collect();
            let mut logins = logins_of(sim, job, key).into_iter().filter(|_| all.len() <= MOST_LOGINS);
            if let Some(login) = logins.find(|login| !order.terms.logins.contains(login)) {
                return Some((view.node.to_string(), login));
            }
        }
    }
    None
}

/// Whether an order has an answer to come that is too old for one of its jobs, and is asked again for that.
fn outdated(sim: &Sim, old: &Order, new: &Order) -> bool {
    let mut since = new.jobs.iter().filter_map(|id| sim.world.job(id)).map(|job| job.since(sim.now));
    since.any(|since| old.asked < since || old.pin().is_some_and(|pin| pin.asked < since))
}

fn nothing_happens_until(world: &mut World, later: Timestamp) {
    let plan = world.plan(later);
    assert!(plan.is_empty(), "at {later}: {plan:#?}");
}

fn states(world: &World, id: &JobId, now: Timestamp) -> Vec<(String, NodeState)> {
    world.nodes(id, now).into_iter().map(|view| (view.node.to_string(), view.state)).collect()
}

/// Another order of the same events, in which those about one object keep theirs.
fn shuffle(events: &[Event], seed: u64) -> Vec<Event> {
    let mut queues: BTreeMap<String, Vec<Event>> = BTreeMap::new();
    for event in events.iter().rev() {
        let object = match event {
            Event::Job(job) => format!("job {}", job.id),
            Event::JobGone(id) => format!("job {id}"),
            Event::Node(node) => format!("node {}", node.name),
            Event::NodeGone(name) => format!("node {name}"),
            Event::Orders(name, _) | Event::Reports(name, _) | Event::Features(name, _) | Event::AgentGone(name) => {
                format!("agent {name}")
            }
            Event::Secret(id, ..) => format!("secret {id}"),
            Event::Freeze(kind) | Event::Thaw(kind) => format!("kind {kind}"),
        };
        queues.entry(object).or_default().push(event.clone());
    }
    let mut state = seed | 1;
    let mut shuffled = Vec::new();
    while !queues.is_empty() {
        // xorshift: any permutation will do, as long as the seed decides it.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let pick = usize::try_from(state % queues.len() as u64).unwrap();
        let object = queues.keys().nth(pick).unwrap().clone();
        let queue = queues.get_mut(&object).unwrap();
        shuffled.extend(queue.pop());
        if queue.is_empty() {
            queues.remove(&object);
        }
    }
    shuffled
}

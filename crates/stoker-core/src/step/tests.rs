//! What an agent does next, case by case.

use super::*;
use crate::model::testing::{at, order};

fn failure(retryable: bool) -> Failure {
    Failure { reason: Reason::Unreachable, message: "no route".into(), retryable, pause: None }
}

fn key(n: u32) -> Key {
    Key::of(&n.to_string())
}

fn next(orders: &BTreeMap<Key, Order>, tasks: &BTreeMap<Key, Task>, now: i64) -> Step {
    step(orders, tasks, &Able::default(), at(now))
}

#[test]
fn an_order_is_tried_retries_plus_one_times() {
    let orders = BTreeMap::from([(key(1), order(0))]);
    let mut tasks = BTreeMap::new();
    let mut attempts = 0;
    let mut now = at(0);
    loop {
        let step = step(&orders, &tasks, &Able::default(), now);
        match step.actions.as_slice() {
            [Action::Start { key, attempt }] => {
                attempts += 1;
                assert_eq!(*attempt, attempts);
                let task = begin(&orders[key], *attempt, tasks.get(key).map(|t: &Task| &t.report), now);
                tasks.insert(*key, fail(&orders[key], &task, failure(true), 7, now));
            }
            [] => match step.wake {
                Some(wake) => now = wake,
                None => break,
            },
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(attempts, 3);
    let report = &tasks[&key(1)].report;
    assert_eq!((report.phase, report.reason), (Phase::Failed, Some(Reason::Unreachable)));
}

#[test]
fn what_cannot_be_helped_is_not_tried_again() {
    let task = begin(&order(0), 1, None, at(0));
    assert_eq!(fail(&order(0), &task, failure(false), 0, at(1)).state, TaskState::Ended);
}

#[test]
fn a_new_ask_wants_a_new_answer() {
    let done = succeed(&order(0), &begin(&order(0), 1, None, at(0)), "sha256:a".into(), Bytes::default(), at(1));
    let tasks = BTreeMap::from([(key(1), done)]);
    assert_eq!(next(&BTreeMap::from([(key(1), order(0))]), &tasks, 2), Step::default());
    let again = next(&BTreeMap::from([(key(1), order(2))]), &tasks, 2);
    assert_eq!(again.actions, [Action::Start { key: key(1), attempt: 1 }]);
}

#[test]
fn an_answer_is_one_to_its_own_ask_and_to_no_earlier_one() {
    for ended in [
        succeed(&order(9), &begin(&order(9), 1, None, at(9)), "sha256:a".into(), Bytes::default(), at(9)),
        fail(&order(9), &begin(&order(9), 1, None, at(9)), failure(false), 0, at(9)),
    ] {
        let tasks = BTreeMap::from([(key(1), ended)]);
        assert_eq!(next(&BTreeMap::from([(key(1), order(9))]), &tasks, 9), Step::default());
        // The clock was set back, or the API server came back with an older state.
        let earlier = next(&BTreeMap::from([(key(1), order(5))]), &tasks, 5);
        assert_eq!(earlier.actions, [Action::Start { key: key(1), attempt: 1 }]);
    }
}

#[test]
fn an_ask_that_came_during_an_attempt_is_not_answered_by_it() {
    let task = begin(&order(0), 1, None, at(0));
    let newer = BTreeMap::from([(key(1), order(5))]);
    let done = succeed(&order(5), &task, "sha256:a".into(), Bytes::default(), at(6));
    let failed = fail(&order(5), &task, failure(false), 0, at(6));
    for ended in [done, failed] {
        assert_eq!(ended.report.asked, at(0));
        let step = next(&newer, &BTreeMap::from([(key(1), ended)]), 6);
        assert_eq!(step.actions, [Action::Start { key: key(1), attempt: 1 }]);
    }
}

#[test]
fn an_order_taken_back_is_forgotten_and_frees_its_place() {
    let orders: BTreeMap<Key, Order> = (1..=5).map(|n| (key(n), order(i64::from(n)))).collect();
    let first = next(&orders, &BTreeMap::new(), 9);
    let started: Vec<Key> = orders_started(&first);
    assert_eq!(started, [key(1), key(2), key(3)], "first asked, first served, three at once");
    assert_eq!(first.queued, [(key(4), 3), (key(5), 4)]);
    let queued = queue(&orders[&key(4)], 3, at(9));
    assert_eq!((queued.report.message.as_str(), queued.report.attempt), ("behind 3 other images on this node", 0));
    let tasks: BTreeMap<Key, Task> = started.iter().map(|k| (*k, begin(&orders[k], 1, None, at(9)))).collect();
    assert_eq!(next(&orders, &tasks, 9).actions, []);
    let mut fewer = orders.clone();
    fewer.remove(&key(2));
    let after = next(&fewer, &tasks, 9);
    assert_eq!(after.actions, [Action::Forget { key: key(2) }, Action::Start { key: key(4), attempt: 1 }]);
}

fn orders_started(step: &Step) -> Vec<Key> {
    let started = step.actions.iter().filter_map(|action| match action {
        Action::Start { key, .. } => Some(*key),
        _ => None,
    });
    started.collect()
}

#[test]
fn a_feature_that_is_not_there_is_refused_by_name() {
    let mut order = order(0);
    order.needs = BTreeSet::from(["peers".to_string()]);
    let step = next(&BTreeMap::from([(key(1), order.clone())]), &BTreeMap::new(), 0);
    assert_eq!(step.actions, [Action::Refuse { key: key(1), missing: vec!["peers".into()] }]);
    let task = refuse(&order, &["peers".into()], at(0));
    assert_eq!((task.state, task.report.reason), (TaskState::Ended, Some(Reason::Unsupported)));
    assert!(task.report.message.contains("--peer-port"), "it knows the word: {}", task.report.message);
    let message = refuse(&order, &["telepathy".into()], at(0)).report.message;
    assert!(message.contains("telepathy; update it"), "{message}");
}

#[test]
fn an_adopted_task_goes_on_where_it_was() {
    let mut report = begin(&order(0), 2, None, at(0)).report;
    report.pin = Some(crate::model::Pin::new(at(0), "sha256:a"));
    let tasks = BTreeMap::from([(key(1), adopt(report.clone(), at(9)))]);
    let step = next(&BTreeMap::from([(key(1), order(0))]), &tasks, 9);
    assert_eq!(step.actions, [Action::Start { key: key(1), attempt: 2 }]);
    let again = begin(&order(0), 2, Some(&tasks[&key(1)].report), at(9));
    assert_eq!(again.report.pin, report.pin, "the registry need not be asked again");
    let done = succeed(&order(0), &again, "sha256:a".into(), Bytes::default(), at(10));
    assert_eq!(adopt(done.report, at(11)).state, TaskState::Ended);
}

#[test]
fn what_was_taken_away_is_told_and_not_brought_back_unasked() {
    let done = succeed(&order(0), &begin(&order(0), 1, None, at(0)), "sha256:a".into(), Bytes::default(), at(1));
    let lost = lose(&done, "gone".into(), at(5));
    assert_eq!((lost.report.phase, lost.report.reason), (Phase::Failed, Some(Reason::Removed)));
    assert_eq!(lost.report.message, "gone");
    let orders = BTreeMap::from([(key(1), order(0))]);
    assert_eq!(next(&orders, &BTreeMap::from([(key(1), lost)]), 6), Step::default(), "not before it is asked");
}

#[test]
fn a_held_order_stops_and_goes_on_as_the_same_attempt() {
    let held = Order { hold: true, ..order(0) };
    let running = begin(&order(0), 2, None, at(0));
    let tasks = BTreeMap::from([(key(1), running.clone())]);
    let step = next(&BTreeMap::from([(key(1), held.clone())]), &tasks, 5);
    assert_eq!(step.actions, [Action::Hold { key: key(1) }]);
    let tasks = BTreeMap::from([(key(1), hold(&running, at(5)))]);
    assert_eq!(next(&BTreeMap::from([(key(1), held.clone())]), &tasks, 6), Step::default(), "nothing runs");
    assert_eq!(next(&BTreeMap::from([(key(2), held)]), &BTreeMap::new(), 6), Step::default(), "nor begins");
    let step = next(&BTreeMap::from([(key(1), order(0))]), &tasks, 7);
    assert_eq!(step.actions, [Action::Start { key: key(1), attempt: 2 }]);
}

#[test]
fn an_ask_for_what_is_on_its_way_is_answered_by_it() {
    let fetch = |asked: i64, digest: &str| {
        let pin = Pin::new(at(0), digest);
        Order { ask: crate::model::Ask::Fetch(Some(pin)), ..order(asked) }
    };
    let began = fetch(0, "sha256:a");
    let task = begin(&began, 1, None, at(0));
    let again = fetch(5, "sha256:a");
    let joined = rejoin(&began, &again, &task).unwrap();
    assert_eq!((joined.report.asked, joined.state), (at(5), task.state));
    let done = succeed(&again, &joined, "sha256:a".into(), Bytes::default(), at(6));
    let tasks = BTreeMap::from([(key(1), done)]);
    assert_eq!(next(&BTreeMap::from([(key(1), again.clone())]), &tasks, 7), Step::default(), "not done twice");
    assert_eq!(rejoin(&began, &fetch(5, "sha256:b"), &task), None, "the tag means something else by now");
    let mut strict = again.clone();
    strict.terms.pull.policy = crate::model::Policy::Always;
    assert_eq!(rejoin(&began, &strict, &task), None, "it may find another digest and be content with that");
    assert_eq!(rejoin(&order(0), &order(5), &begin(&order(0), 1, None, at(0))), None, "nobody knows what it brings");
    assert_eq!(rejoin(&began, &began, &task), None, "nothing is new");
}

#[test]
fn what_was_received_before_a_hold_is_not_forgotten() {
    let mut running = begin(&order(0), 1, None, at(0));
    running.report.bytes = Bytes { total: 9, done: 5, upstream: 5, ..Bytes::default() };
    let again = begin(&order(7), 1, Some(&hold(&running, at(5)).report), at(7));
    assert_eq!(again.report.bytes, running.report.bytes);
    let queued = queue(&order(0), 3, at(0));
    let begun = begin(&order(0), 1, Some(&queued.report), at(1)).report;
    assert_eq!((begun.message.as_str(), begun.started), ("", at(1)));
    assert!(waits_for_turn(&queued.report) && waits_for_turn(&give_way(&running, at(1)).report));
    assert!(!waits_for_turn(&begun));
}

#[test]
fn who_gave_its_place_away_goes_on_as_the_same_attempt_behind_those_that_waited() {
    let mut orders: BTreeMap<Key, Order> = (1..=5).map(|n| (key(n), order(i64::from(n)))).collect();
    orders.values_mut().for_each(|order| order.ask = crate::model::Ask::Fetch(Some(Pin::new(at(0), "sha256:a"))));
    let begun = (1..=3).map(|n| (key(n), begin(&orders[&key(n)], 2, None, at(9))));
    let mut tasks: BTreeMap<Key, Task> = begun.collect();
    let stalls = tasks.get_mut(&key(1)).unwrap();
    (stalls.report.stalled, stalls.report.message) = (Some(at(10)), "the registry sends nothing".into());
    let step = next(&orders, &tasks, 20);
    assert_eq!(step.actions, [Action::Yield { key: key(1) }, Action::Start { key: key(4), attempt: 1 }]);
    let waits = give_way(&tasks[&key(1)], at(20));
    assert_eq!(
        waits.report.message,
        "waits for its turn: it has given its place on this node to others; last: the registry sends nothing"
    );
    tasks.insert(key(1), waits);
    tasks.insert(key(4), begin(&orders[&key(4)], 1, None, at(20)));
    orders.remove(&key(4));
    let step = next(&orders, &tasks, 21);
    assert_eq!(step.actions, [Action::Forget { key: key(4) }, Action::Start { key: key(5), attempt: 1 }]);
    orders.remove(&key(5));
    let step = next(&orders, &tasks, 22);
    assert_eq!(step.actions.last(), Some(&Action::Start { key: key(1), attempt: 2 }));
    assert_eq!(begin(&orders[&key(1)], 2, Some(&tasks[&key(1)].report), at(22)).report.stalled, None);
}

#[test]
fn a_message_does_not_grow_with_every_turn() {
    let mut task = begin(&order(0), 1, None, at(0));
    (task.report.reason, task.report.message) = (Some(Reason::Unreachable), "no route".into());
    for turn in 1..100 {
        let waits = give_way(&task, at(turn));
        assert_eq!(waits.report.message, format!("{GAVE_WAY}; last: no route"));
        task = begin(&order(0), 1, Some(&waits.report), at(turn));
        assert_eq!(task.report.message, "no route", "what waits no more does not say so");
    }
}

#[test]
fn who_waited_for_room_does_not_say_so_when_it_begins_again() {
    let mut task = begin(&order(0), 1, None, at(0));
    (task.report.reason, task.report.message) = (Some(Reason::Disk), format!("{WAITING_FOR_ROOM}: 5 MiB"));
    assert!(waits_for_room(&task.report));
    for stopped in [give_way(&task, at(1)), hold(&task, at(1))] {
        let again = begin(&order(0), 1, Some(&stopped.report), at(2)).report;
        assert_eq!((again.reason, again.message.as_str()), (None, ""));
    }
    assert_eq!(give_way(&task, at(1)).report.reason, None, "nothing has failed");
}

#[test]
fn a_question_waits_for_no_pull() {
    let mut orders: BTreeMap<Key, Order> = (1..=3).map(|n| (key(n), order(0))).collect();
    let tasks: BTreeMap<Key, Task> = orders.keys().map(|k| (*k, begin(&order(0), 1, None, at(0)))).collect();
    orders.insert(key(4), order(0));
    orders.insert(key(5), Order { ask: crate::model::Ask::Resolve, ..order(1) });
    let step = next(&orders, &tasks, 2);
    assert_eq!(step.actions, [Action::Start { key: key(5), attempt: 1 }]);
    let running = begin(&orders[&key(5)], 1, None, at(2));
    let pin = Pin::new(at(1), "sha256:a");
    let done = resolve(&orders[&key(5)], &running, pin.clone(), at(3));
    assert_eq!((done.report.phase, done.report.pin, done.state), (Phase::Resolved, Some(pin), TaskState::Ended));
}

#[test]
fn a_source_may_ask_for_patience_but_not_for_ever() {
    let failure = Failure { pause: Some(Duration::MAX), ..failure(true) };
    let task = fail(&order(0), &begin(&order(0), 1, None, at(0)), failure, 0, at(0));
    assert_eq!(task.state, TaskState::Resting { until: at(3600) });
}

#[test]
fn the_longest_time_is_that_of_all_attempts_and_all_pauses() {
    for retries in [0, 1, 8, 9, 10, 30] {
        let mut order = order(0);
        order.terms.pull.retries = retries;
        let (mut now, mut earlier) = (at(0), None);
        for attempt in 1.. {
            let task = begin(&order, attempt, earlier.as_ref(), now);
            now = after(now, order.terms.pull.timeout);
            let failed = fail(&order, &task, failure(true), u64::MAX, now);
            let TaskState::Resting { until } = failed.state else { break };
            (now, earlier) = (until, Some(failed.report));
        }
        let longest = after(at(0), longest(order.terms.pull.timeout, retries));
        assert!(now <= longest, "{retries} retries: {now} {longest}");
        assert!(longest <= after(now, Duration::from_secs(1 + u64::from(retries))), "{retries} retries: {longest}");
    }
    assert_eq!(longest(Duration::MAX, u32::MAX), Duration::MAX);
}

#[test]
fn pauses_grow_and_never_overflow() {
    assert_eq!(pause(1, 0), Duration::from_secs(2));
    assert_eq!(pause(3, 0), Duration::from_secs(8));
    assert!(pause(u32::MAX, u64::MAX) <= LONGEST_PAUSE.mul_f64(1.25));
}

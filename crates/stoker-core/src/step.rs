//! What an agent does next: from its orders, its tasks and the time to actions. The agent performs them and tells
//! what came of it; retries, back-off and refusals are decided here.

mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use crate::human;
use crate::model::{Bytes, Key, LOOK, MIRRORS, Order, PEERS, Phase, Pin, Policy, RESOLVE, Report, SEALED, after};
use crate::reason::{Reason, WAITING_FOR_ROOM};
use turns::Contender;
pub use turns::{LONG_TURN, TURN};

/// The longest pause between two attempts.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(5 * 60);

/// The longest pause that a source may ask for.
pub const LONGEST_PAUSE_ASKED_FOR: Duration = Duration::from_secs(3600);

/// An order as the agent has it in hand.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// What it says about it.
    pub report: Report,
    /// What is happening.
    pub state: TaskState,
}

/// What is happening with a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// An attempt is under way.
    Running {
        /// Since when it has its place; where it had to wait for room on the disk, since when it has that.
        since: Timestamp,
    },
    /// The attempt that was under way gave its place to others, and goes on when it gets one again.
    Yielded {
        /// Since when it waits.
        since: Timestamp,
    },
    /// The last attempt failed; the next begins then.
    Resting {
        /// When.
        until: Timestamp,
    },
    /// It waits for its turn.
    Queued,
    /// The report is an end.
    Ended,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Begin this attempt of the order.
    Start {
        /// Which order.
        key: Key,
        /// Counted from 1.
        attempt: u32,
    },
    /// Report that this agent lacks a feature.
    Refuse {
        /// Which order.
        key: Key,
        /// What it needs and this agent has not.
        missing: Vec<String>,
    },
    /// Stop the attempt that is under way, so that another has its turn; what it fetched is kept.
    Yield {
        /// Which order.
        key: Key,
    },
    /// Stop the attempt that is under way; what it fetched is kept.
    Hold {
        /// Which order.
        key: Key,
    },
    /// Stop the attempt if one is under way, and say no more about it.
    Forget {
        /// Which order.
        key: Key,
    },
}

/// What an agent can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Able {
    /// How many orders it works on at one time; the others wait for their turn.
    pub orders_at_once: usize,
    /// How long an order may pull before it gives its place to a namespace that has none.
    pub turn: Duration,
    /// The features that orders may need.
    pub features: BTreeSet<String>,
}

impl Default for Able {
    fn default() -> Self {
        Self { orders_at_once: 3, turn: TURN, features: [LOOK, RESOLVE, SEALED, MIRRORS].map(String::from).into() }
    }
}

/// What to do now, and when to ask again even if nothing happens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// In this order.
    pub actions: Vec<Action>,
    /// Orders that wait for their turn, each with how many others are before it.
    pub queued: Vec<(Key, usize)>,
    /// The end of the earliest rest.
    pub wake: Option<Timestamp>,
}

/// The next actions.
pub fn step(orders: &BTreeMap<Key, Order>, tasks: &BTreeMap<Key, Task>, able: &Able, now: Timestamp) -> Step {
    let mut step = Step::default();
    let gone = tasks.keys().filter(|key| !orders.contains_key(key));
    step.actions.extend(gone.map(|&key| Action::Forget { key }));
    let runs = |key: &Key| tasks.get(key).is_some_and(|task| matches!(task.state, TaskState::Running { .. }));
    let held = orders.iter().filter(|(key, order)| order.hold && runs(key));
    step.actions.extend(held.map(|(&key, _)| Action::Hold { key }));
    let (mut pulling, mut waiting, mut attempts) = (Vec::new(), Vec::new(), BTreeMap::new());
    for (&key, order) in orders.iter().filter(|(_, order)| !order.hold) {
        let mut since = order.asked;
        let attempt = match tasks.get(&key).map(|task| (task.state, &task.report)) {
            Some((TaskState::Running { since }, report)) => {
                if !order.ask.is_question() {
                    pulling.push(Contender {
                        stalls: report.stalled.is_some(),
                        wants_space: waits_for_room(report),
                        lacks: report.bytes.total.saturating_sub(report.bytes.done),
                        ..Contender::new(key, order, since)
                    });
                }
                continue;
            }
            None | Some((TaskState::Queued, _)) => 1,
            // Another ask wants another answer, also one that is earlier: clocks are set back, and API servers lose orders.
            Some((TaskState::Ended, report)) if report.asked == order.asked => continue,
            Some((TaskState::Ended, _)) => 1,
            Some((TaskState::Yielded { since: yielded }, report)) => {
                since = yielded;
                report.attempt.max(1)
            }
            Some((TaskState::Resting { until }, report)) if until <= now => report.attempt.saturating_add(1),
            Some((TaskState::Resting { until }, _)) => {
                step.wake = Some(step.wake.map_or(until, |wake| wake.min(until)));
                continue;
            }
        };
        let missing: Vec<String> =
            order.features().filter(|feature| !able.features.contains(*feature)).map(str::to_string).collect();
        if !missing.is_empty() {
            step.actions.push(Action::Refuse { key, missing });
        } else if order.ask.is_question() {
            // Others wait for the answer, and nothing is fetched for it: it takes no place.
            step.actions.push(Action::Start { key, attempt });
        } else {
            attempts.insert(key, attempt);
            let yielded = tasks.get(&key).is_some_and(|task| matches!(task.state, TaskState::Yielded { .. }));
            waiting.push(Contender { yielded, ..Contender::new(key, order, since) });
        }
    }
    let turns = turns::turns(pulling, waiting, able.orders_at_once, able.turn, now);
    step.actions.extend(turns.yields.into_iter().map(|key| Action::Yield { key }));
    let attempt = |key: &Key| attempts.get(key).copied().unwrap_or(1);
    step.actions.extend(turns.starts.into_iter().map(|key| Action::Start { key, attempt: attempt(&key) }));
    // One that has begun says how far it was.
    let fresh = |key: &Key| {
        attempt(key) == 1 && !tasks.get(key).is_some_and(|task| matches!(task.state, TaskState::Yielded { .. }))
    };
    step.queued = turns.waits.into_iter().filter(|(key, _)| fresh(key)).collect();
    step.wake = [step.wake, turns.wake].into_iter().flatten().min();
    step
}

/// How an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The public word.
    pub reason: Reason,
    /// The sentence, with the next step.
    pub message: String,
    /// Whether trying again can help.
    pub retryable: bool,
    /// The least pause that the source asked for.
    pub pause: Option<Duration>,
}

/// Whether this report says that other pulls have reserved the space that this one needs.
pub fn waits_for_room(report: &Report) -> bool {
    report.reason == Some(Reason::Disk) && report.message.starts_with(WAITING_FOR_ROOM)
}

/// The task of an order that waits for its turn behind this many others.
pub fn queue(order: &Order, behind: usize, now: Timestamp) -> Task {
    let images = human::count(u32::try_from(behind).unwrap_or(u32::MAX), "other image");
    let report =
        Report { attempt: 0, message: format!("behind {images} on this node"), ..begin(order, 1, None, now).report };
    Task { report, state: TaskState::Queued }
}

/// The task at the beginning of an attempt. What earlier attempts learned stays.
pub fn begin(order: &Order, attempt: u32, earlier: Option<&Report>, now: Timestamp) -> Task {
    // It is looked for again; until then it is where it was.
    let was_there = earlier.is_some_and(|report| report.present || report.phase == Phase::Succeeded);
    let earlier = earlier.filter(|report| attempt > 1 || report.phase == Phase::Pulling);
    // What a report said while it waited for its turn, or for room, is no trouble.
    let waited = |report: &Report| without_turn(&report.message).starts_with(WAITING_FOR_ROOM);
    let trouble = earlier.filter(|report| report.reason.is_some() && report.stalled.is_none() && !waited(report));
    let report = Report {
        asked: order.asked,
        jobs: order.jobs.clone(),
        phase: Phase::Pulling,
        digest: order.pin().map(|pin| pin.digest.as_str().into()).or(earlier.and_then(|report| report.digest.clone())),
        pin: earlier.and_then(|report| report.pin.clone()),
        present: was_there && order.terms.pull.policy == Policy::Always,
        bytes: earlier.map(|report| report.bytes).unwrap_or_default(),
        from: earlier.and_then(|report| report.from.clone()),
        bad: earlier.filter(|report| report.asked == order.asked).map(|report| report.bad.clone()).unwrap_or_default(),
        attempt,
        reason: trouble.and_then(|report| report.reason),
        message: trouble.map(|report| without_turn(&report.message).to_string()).unwrap_or_default(),
        stalled: None,
        // The time for which it waited for its turn is not time at work.
        started: earlier.filter(|report| report.attempt > 0).map_or(now, |report| report.started),
        finished: None,
        updated: now,
    };
    Task { report, state: TaskState::Running { since: now } }
}

/// The task that an earlier life of this agent had reported on: done, or to be begun again as the same attempt.
pub fn adopt(mut report: Report, now: Timestamp) -> Task {
    if report.ended() {
        return Task { report, state: TaskState::Ended };
    }
    report.attempt = report.attempt.saturating_sub(1);
    Task { report, state: TaskState::Resting { until: now } }
}

/// The task after an attempt that brought the image, or found it there. It answers the ask that the attempt began
/// with: one that came meanwhile, from a later job or under a stricter policy, wants an attempt of its own.
pub fn succeed(order: &Order, task: &Task, digest: String, bytes: Bytes, now: Timestamp) -> Task {
    let report = Report {
        asked: task.report.asked.min(order.asked),
        phase: Phase::Succeeded,
        digest: Some(digest.into()),
        present: false,
        bytes,
        reason: None,
        message: String::new(),
        stalled: None,
        finished: Some(now),
        updated: now,
        ..task.report.clone()
    };
    Task { report, state: TaskState::Ended }
}

/// The task after the registry has said which digest the tag means, where nothing more was asked.
pub fn resolve(order: &Order, task: &Task, pin: Pin, now: Timestamp) -> Task {
    let digest = pin.digest.clone();
    let Task { report, state } = succeed(order, task, digest, Bytes::default(), now);
    Task { report: Report { phase: Phase::Resolved, pin: Some(pin), present: task.report.present, ..report }, state }
}

/// The task of an attempt under way whose order was asked for again, if what it brings answers that, too: the same digest, under
/// a policy that is no weaker. `began` is the order as the attempt began with it. Whoever joined sees how far it is, and nothing
/// is done twice.
pub fn rejoin(began: &Order, order: &Order, task: &Task) -> Option<Task> {
    let same = began.pin().zip(order.pin()).is_some_and(|(began, pin)| began.digest == pin.digest);
    let answers = same && began.terms.pull.policy >= order.terms.pull.policy || order.asked == task.report.asked;
    let newer =
        order.asked >= task.report.asked && (order.asked, &order.jobs) != (task.report.asked, &task.report.jobs);
    let joins = matches!(task.state, TaskState::Running { .. }) && answers && newer && !order.hold;
    let report = || Report { asked: order.asked, jobs: order.jobs.clone(), ..task.report.clone() };
    joins.then(|| Task { report: report(), state: task.state })
}

/// What is said of an order that gave its place away, before the trouble that it had.
const GAVE_WAY: &str = "waits for its turn: it has given its place on this node to others";
const LAST: &str = "; last: ";

/// The trouble in a message of an order that gave its place away. Without this the message would grow each time the order does so.
fn without_turn(message: &str) -> &str {
    match message.strip_prefix(GAVE_WAY) {
        Some(rest) => rest.strip_prefix(LAST).unwrap_or_default(),
        None => message,
    }
}

/// Whether an order that has not ended waits for its turn on its node: nothing is wrong with its pull.
pub fn waits_for_turn(report: &Report) -> bool {
    report.attempt == 0 || report.message.starts_with(GAVE_WAY)
}

/// The task whose attempt was stopped so that another has its turn.
pub fn give_way(task: &Task, now: Timestamp) -> Task {
    let trouble = match task.report.message.as_str() {
        "" => String::new(),
        trouble => format!("{LAST}{trouble}"),
    };
    let message = format!("{GAVE_WAY}{trouble}");
    let reason = task.report.reason.filter(|_| !waits_for_room(&task.report));
    Task {
        report: Report { reason, message, updated: now, ..task.report.clone() },
        state: TaskState::Yielded { since: now },
    }
}

/// The task whose attempt was stopped because its order is held: the same attempt begins again when it goes on.
pub fn hold(task: &Task, now: Timestamp) -> Task {
    adopt(task.report.clone(), now)
}

/// The task after an attempt that failed: a rest before the next one, or the end. `salt` differs from node to
/// node, so that a fleet does not come back to a broken registry all at once. The order is the present one, so that
/// an edit of its retries counts; the ask that is answered is the one that the attempt began with.
pub fn fail(order: &Order, task: &Task, failure: Failure, salt: u64, now: Timestamp) -> Task {
    let attempt = task.report.attempt;
    let report = Report {
        asked: task.report.asked.min(order.asked),
        reason: Some(failure.reason),
        message: failure.message,
        stalled: None,
        updated: now,
        ..task.report.clone()
    };
    if failure.retryable && attempt <= order.terms.pull.retries {
        let until =
            after(now, pause(attempt, salt).max(failure.pause.unwrap_or_default().min(LONGEST_PAUSE_ASKED_FOR)));
        return Task { report, state: TaskState::Resting { until } };
    }
    let report = Report { phase: Phase::Failed, finished: Some(now), ..report };
    Task { report, state: TaskState::Ended }
}

/// The task of an order whose image was there and is no more, with how that is told. Whether it is brought back, the
/// controller decides.
pub fn lose(task: &Task, message: String, now: Timestamp) -> Task {
    let report = Report {
        phase: Phase::Failed,
        digest: None,
        reason: Some(Reason::Removed),
        message,
        finished: Some(now),
        updated: now,
        ..task.report.clone()
    };
    Task { report, state: TaskState::Ended }
}

/// The task of an order that has not brought its image, if it is another one because some image of that name is there, or is there no
/// more.
pub fn notice(task: &Task, present: bool, now: Timestamp) -> Option<Task> {
    let report = || Report { present, updated: now, ..task.report.clone() };
    (task.report.present != present).then(|| Task { report: report(), state: task.state })
}

/// The task of an order that this agent cannot do right.
pub fn refuse(order: &Order, missing: &[String], now: Timestamp) -> Task {
    let task = begin(order, 1, None, now);
    let message = match missing {
        // It knows the word, so it is not too old.
        [only] if only == PEERS => "this agent does not read from other nodes: it was started with `--peer-port 0`, or something else uses its \
                                    port; look at its log"
            .to_owned(),
        _ => format!("this agent does not know {}; update it to the controller's version", missing.join(", ")),
    };
    let failure = Failure { reason: Reason::Unsupported, message, retryable: false, pause: None };
    fail(order, &task, failure, 0, now)
}

/// 2 s, 4 s, 8 s … up to [`LONGEST_PAUSE`], each lengthened by up to a quarter.
fn pause(attempt: u32, salt: u64) -> Duration {
    let base = Duration::from_secs(1).saturating_mul(2u32.saturating_pow(attempt.min(16))).min(LONGEST_PAUSE);
    base + base.mul_f64((salt % 256) as f64 / 1024.0)
}

/// The longest that all attempts of an order take that has this timeout and these retries, with the pauses between them as [`fail`] makes them. A source may ask for
/// longer pauses, and the order may wait for its turn on the node: neither is counted here. A plan asks this for each order that runs.
pub fn longest(timeout: Duration, retries: u32) -> Duration {
    // Those after the first eight attempts are the longest ones.
    let growing = retries.min(8);
    let seconds = 2u64.pow(growing + 1) - 2 + u64::from(retries - growing) * LONGEST_PAUSE.as_secs();
    let pauses = Duration::from_secs(seconds + seconds.div_ceil(4));
    timeout.saturating_mul(retries.saturating_add(1)).saturating_add(pauses)
}

#[cfg(test)]
mod tests;

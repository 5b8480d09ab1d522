//! Performs writes: one in flight an object with the newest state next, in fair turns (`turns`), never more than a rate of all
//! together. What fails waits with growing pauses, without holding up others. Orders are then sent again, until they succeed, their
//! object is gone or the API server does not take what they say (`split`); of any other write it is said that it failed, and whoever asked
//! for it computes it anew. Nothing is sent when the term of whoever leads is over.

mod merge;
mod perform;
mod split;
mod turns;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt as _};
use kube::Client;
use stoker_api::native::NodeObject;
use stoker_api::view::{Query, SeenRow};
use stoker_api::{AnyObject, Target, Write, served_kinds};
use tokio::sync::mpsc;
use tokio::time::Instant;

#[cfg(test)]
pub(crate) use self::merge::push;
use self::perform::{Failure, perform};
#[cfg(test)]
pub(crate) use self::perform::{Refusal, refusal};
use self::split::{Split, split};
pub(crate) use self::turns::{Id, id};
use self::turns::{Turns, holds_orders};
use crate::lease::Term;
use crate::metrics::Metrics;
use crate::moment::{Moment, Moments};
use crate::run::Settings;

/// How much the writer may ask of an API server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Writes in a second; saturating an API server is an incident.
    pub writes_per_second: u32,
    /// Writes at one time.
    pub at_once: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { writes_per_second: 100, at_once: 32 }
    }
}

/// No answer after this long is as good as a broken connection.
const PATIENCE: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const MOST_TROUBLES: usize = 4096;

/// The number of a part of a write after which another part comes: its end is not the end of the write.
const PART: u64 = 0;

/// A write with its number: they are numbered in the order in which they are handed out.
pub(crate) type Numbered = (u64, Write);

/// The end of a write.
#[derive(Debug)]
pub(crate) struct Done {
    /// The object.
    pub(crate) target: Target,
    /// The newest write that this is the end of.
    pub(crate) number: u64,
    /// What came of it.
    pub(crate) answer: Answer,
    /// When the answer came.
    pub(crate) at: Moment,
}

/// What came of a write.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The NodePreheat as it is now, without what nobody looks at.
    Node(Box<NodeObject>),
    /// The object of any other kind as it is now, for the query of all objects of its kind; none of a kind that is not served.
    Object(Option<(Query, SeenRow)>),
    /// The object is gone, another one has its name, or it was changed by somebody else where the write is for one state of it.
    Gone,
    /// It failed for this reason, and the pause after that is over. Orders do not end so: they are sent again.
    Failed(String),
    /// The API server does not take this order of a node; it took the others that were written with it, or is asked for them next.
    Refused {
        /// The key.
        order: String,
        /// What the API server said.
        why: String,
    },
}

impl Answer {
    fn node(object: NodeObject) -> Self {
        Self::Node(Box::new(object))
    }

    pub(crate) fn object(target: &Target, AnyObject(object): AnyObject) -> Self {
        let kind = served_kinds().find(|kind| kind.kind.name == target.resource.kind);
        Self::Object(kind.map(|kind| {
            let query = Query::all(&kind.kind);
            let row = SeenRow::of(&query, object);
            (query, row)
        }))
    }
}

/// A try, and what came of it.
type Flight = (Numbered, Result<Answer, Failure>, Moment);

struct Writer {
    client: Client,
    term: Term,
    moments: Moments,
    metrics: Metrics,
    turns: Turns,
    flights: FuturesUnordered<BoxFuture<'static, Flight>>,
    rests: FuturesUnordered<BoxFuture<'static, (Id, Option<Done>)>>,
    /// Of those whose last try failed: the next pause, and the problem that was said. Nobody tells when an object is gone that had
    /// failed, so what rests no more is forgotten when there are [`MOST_TROUBLES`].
    troubles: BTreeMap<Id, (Duration, String)>,
}

/// What is to be written.
pub(crate) struct Inbox {
    /// Orders, and what must not overtake them: thousands at a time, so they are taken only when they can go soon. Where they
    /// wait they are small. Other writes, however many, do not keep them from being taken.
    pub(crate) orders: mpsc::Receiver<Numbered>,
    /// Everything else, which never has to wait for more than a few of them.
    pub(crate) others: mpsc::UnboundedReceiver<Numbered>,
    /// How many nodes wait for orders that did not come in yet.
    pub(crate) owed: Arc<AtomicUsize>,
}

/// Performs what comes in until the channels close.
pub(crate) async fn run(
    settings: Settings,
    term: Term,
    moments: Moments,
    mut inbox: Inbox,
    done: mpsc::UnboundedSender<Done>,
) {
    let Settings { client, limits, metrics, .. } = settings;
    let mut writer = Writer {
        client,
        term,
        moments,
        metrics,
        turns: Turns::new(limits.at_once),
        flights: FuturesUnordered::new(),
        rests: FuturesUnordered::new(),
        troubles: BTreeMap::new(),
    };
    let pause = Duration::from_secs(1) / limits.writes_per_second.max(1);
    let mut next = Instant::now();
    loop {
        writer.metrics.writes_waiting(writer.turns.waiting() + inbox.owed.load(Ordering::Relaxed));
        let may_start = writer.turns.has_next();
        tokio::select! {
            write = inbox.others.recv() => {
                let Some(write) = write else { return };
                writer.turns.add(write);
            }
            Some(write) = inbox.orders.recv(), if writer.turns.wants_orders() => writer.turns.add(write),
            Some(flight) = writer.flights.next(), if !writer.flights.is_empty() => {
                if let Some(end) = writer.land(flight)
                    && done.send(end).is_err()
                {
                    return;
                }
            }
            Some((id, failed)) = writer.rests.next(), if !writer.rests.is_empty() => {
                writer.turns.go_on(id);
                if let Some(failed) = failed
                    && done.send(failed).is_err()
                {
                    return;
                }
            }
            () = tokio::time::sleep_until(next), if may_start => {
                // A second's worth may go at once after a quiet time; then the rate holds.
                let earliest = Instant::now().checked_sub(Duration::from_secs(1)).unwrap_or(next);
                next = next.max(earliest) + pause;
                writer.start();
            }
        }
    }
}

impl Writer {
    fn start(&mut self) {
        let Some(write) = self.turns.next() else { return };
        let (client, mut term, moments) = (self.client.clone(), self.term.clone(), self.moments.clone());
        let flight = async move {
            // The one place where anything is sent, so the one place to ask; the last thing before it.
            term.holds().await;
            let result = match tokio::time::timeout(PATIENCE, perform(client, &write.1)).await {
                Ok(result) => result,
                Err(_) => Err(Failure::Passing(format!("no answer after {} s", PATIENCE.as_secs()))),
            };
            (write, result, moments.now())
        };
        self.flights.push(flight.boxed());
    }

    fn land(&mut self, ((number, write), result, at): Flight) -> Option<Done> {
        let target = write.target().clone();
        let id = id(&target);
        self.turns.landed(&id);
        self.metrics.wrote(&target.resource.kind, result.is_ok());
        match result {
            Ok(answer) => {
                self.troubles.remove(&id);
                self.turns.go_on(id);
                Some(Done { target, number, answer, at })
            }
            Err(Failure::Refused(problem) | Failure::Passing(problem)) if !holds_orders(&target) => {
                let rest = self.complain(&target, &id, problem.clone());
                let failed = Done { target, number, answer: Answer::Failed(problem), at };
                self.rests.push(tokio::time::sleep(rest).map(move |()| (id, Some(failed))).boxed());
                None
            }
            Err(Failure::Refused(why)) => {
                let parts = if let Write::Patch(_, patch) = &write { split(patch) } else { Split::Whole };
                match parts {
                    Split::Two(first, second) => {
                        let [first, second] = [first, second].map(|patch| Write::Patch(target.clone(), patch));
                        self.turns.put_back_apart((PART, first), (number, second));
                        self.turns.go_on(id);
                        None
                    }
                    Split::Order(order) => {
                        self.turns.go_on(id);
                        Some(Done { target, number, answer: Answer::Refused { order, why }, at })
                    }
                    Split::Whole => self.try_again((number, write), id, why),
                }
            }
            Err(Failure::Passing(problem)) => self.try_again((number, write), id, problem),
        }
    }

    /// Orders are sent again after a pause.
    fn try_again(&mut self, write: Numbered, id: Id, problem: String) -> Option<Done> {
        let target = write.1.target().clone();
        self.turns.put_back(write);
        let rest = self.complain(&target, &id, problem);
        self.rests.push(tokio::time::sleep(rest).map(move |()| (id, None)).boxed());
        None
    }
}

impl Writer {
    /// Says what went wrong, once for as long as it stays the same; returns how long to wait before the next try.
    fn complain(&mut self, target: &Target, id: &Id, problem: String) -> Duration {
        let (kind, name) = (&target.resource.kind, &target.name);
        let (rest, said) = self.troubles.remove(id).unwrap_or((FIRST_PAUSE, String::new()));
        match problem == said {
            true => tracing::debug!(kind, name, "write failed, trying again: {problem}"),
            false => tracing::warn!(kind, name, "write failed, trying again: {problem}"),
        }
        if self.troubles.len() >= MOST_TROUBLES {
            self.troubles.retain(|id, _| self.turns.is_busy(id));
        }
        self.troubles.insert(id.clone(), ((rest * 2).min(LONGEST_PAUSE), problem));
        rest
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.metrics.writes_waiting(0);
    }
}

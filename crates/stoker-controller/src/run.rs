//! The one loop: facts in, plan, writes out. Everything it knows it can learn again from the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use stoker_api::HandOver;
use stoker_core::{Clock, World};
use stoker_transfer::peer::TicketSigner;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::apart;
use crate::hearing::{Hearing, Overtaken};
use crate::leading::Leading;
use crate::lease::{Candidate, HeldLease};
use crate::metrics::{BEAT_EVERY, LeaderMetrics, Metrics};
use crate::moment::Moments;
use crate::owed::Owed;
use crate::secrets::Secrets;
use crate::watch::Fact;
use crate::watches::{Input, Watches, watch_nodes};
use crate::writer::{self, Done, Limits, Numbered};
use crate::{peer_keys, reading};

/// What was heard and waits for the loop, at most; thousands of objects are larger than what is kept of them.
const INPUTS_AT_ONCE: usize = 128;

/// What one plan takes into account besides what it was made for, at most.
const INPUTS_A_PLAN: usize = 1024;

/// Orders that are on their way to the writer, at most.
const ORDERS_AT_ONCE: usize = 32;

/// The thread of the loop.
const LEADER: &str = "leader";

/// What the controller needs.
#[derive(Clone)]
pub struct Settings {
    /// The API server, embedded or real.
    pub client: Client,
    /// The time.
    pub clock: Clock,
    /// The namespace of its Lease.
    pub namespace: String,
    /// How much to ask of the API server.
    pub limits: Limits,
    /// Who this is among controllers of one cluster. One that comes back under the same name need not wait.
    pub identity: String,
    /// Whether what one node says a tag means is enough for all, instead of two that agree.
    pub trust_one_witness: bool,
    /// Whether nodes are told to read images from each other.
    pub peers: bool,
    /// How the kinds of dialects were handed over by their original controllers, where somebody has said so.
    pub handed_over: BTreeMap<&'static str, HandOver>,
    /// Dialects whose workloads are watched.
    pub serve: BTreeSet<&'static str>,
    /// What it counts; the same ones may be registered with a server.
    pub metrics: Metrics,
}

/// Why the controller ended unasked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One of its tasks did.
    #[error("the controller's {0} ended unasked; this is a bug, restart it and report the log")]
    Ended(&'static str),
}

/// Runs until it is cancelled: waits until it leads, leads until it does not, and waits again.
pub async fn run(settings: Settings, cancel: CancellationToken) -> Result<(), Error> {
    let candidate = Candidate::new(&settings);
    loop {
        let Some(held) = cancel.run_until_cancelled(candidate.acquire()).await else { return Ok(()) };
        tracing::info!(identity = settings.identity, "this controller leads");
        let held = Arc::new(held);
        // The Lease is renewed in a task of its own: a plan that takes long must not keep its leader from renewing.
        let mut renewing = JoinSet::new();
        renewing.spawn({
            let (candidate, held) = (candidate.clone(), held.clone());
            async move { candidate.keep(&held).await }
        });
        // The loop ends with this function, also where somebody drops it.
        let stop = cancel.child_token();
        let _stop = stop.clone().drop_guard();
        let mut leading = apart::spawn(LEADER, lead(settings.clone(), held, stop.clone()));
        let led = tokio::select! {
            // First whether the Lease is still held: a loop that always has something to do would never look.
            biased;
            ended = renewing.join_next() => {
                stop.cancel();
                // Between two plans.
                let led = (&mut leading).await.unwrap_or(Err(Error::Ended("loop")));
                if matches!(ended, Some(Err(_))) { Err(Error::Ended("renewal of the Lease")) } else { led }
            }
            led = &mut leading => led.unwrap_or(Err(Error::Ended("loop"))),
        };
        // All writes and renewals end before the Lease is given back or taken again: a controller that does not lead must not write.
        renewing.shutdown().await;
        led?;
        if cancel.is_cancelled() {
            candidate.release().await;
            return Ok(());
        }
    }
}

/// Leads until it is cancelled, or a controller with a higher epoch has written. Or until a list shows that the API server went
/// back to an older state: all that is known here, assumed and under way belongs to another history then, and a World made
/// anew from the objects plans rightly.
async fn lead(settings: Settings, held: Arc<HeldLease>, cancel: CancellationToken) -> Result<(), Error> {
    let mut tasks = JoinSet::new();
    let led = turns(&settings, &held, &mut tasks, &cancel).await;
    tasks.shutdown().await;
    led
}

/// The turns of the loop. Their synchronous work may take long, so that the loop has a thread of its own.
async fn turns(
    settings: &Settings,
    held: &HeldLease,
    tasks: &mut JoinSet<&'static str>,
    cancel: &CancellationToken,
) -> Result<(), Error> {
    let (input, mut inputs) = mpsc::channel(INPUTS_AT_ONCE);
    let (done, mut dones) = mpsc::unbounded_channel();
    // Orders wait here and not with the writer, see `owed`.
    let (orders, orders_out) = mpsc::channel(ORDERS_AT_ONCE);
    let moments = Moments::default();
    let mut watches = Watches::new(settings.client.clone(), moments.clone(), input.clone());
    let leading = start_tasks(settings, held, &moments, input, (orders_out, done), tasks);
    let mut world = World::new();
    world.trust_one_witness(settings.trust_one_witness);
    let metrics = LeaderMetrics::new(&settings.metrics);
    let mut shell = Shell { hearing: Hearing::new(settings.clock.clone(), world, metrics, held.transitions), leading };
    shell.hearing.view.hand_over(&settings.handed_over);
    shell.hearing.view.serve(&settings.serve);
    shell.hearing.view.live_in(&settings.namespace);
    let mut wake = None;
    let mut more = true;
    let mut pulse = tokio::time::interval(BEAT_EVERY);
    loop {
        // Who leads no more stops between two plans, also where there is always something to do.
        if cancel.is_cancelled() {
            return Ok(());
        }
        tokio::task::yield_now().await;
        let (mut input, mut done) = (None, None);
        tokio::select! {
            () = cancel.cancelled() => return Ok(()),
            Some(ended) = tasks.join_next() => match ended {
                Err(problem) if problem.is_cancelled() => continue,
                ended => return Err(Error::Ended(ended.unwrap_or("task"))),
            },
            Some(heard) = inputs.recv() => input = Some(heard),
            Some(ended) = dones.recv() => done = Some(ended),
            Ok(permit) = orders.reserve(), if shell.leading.owes() => {
                if let Some(write) = shell.leading.next_owed(&mut shell.hearing) {
                    permit.send(write);
                }
                // Nothing new is known; a plan that is due is made all the same.
                if wake.is_none_or(|wake| (settings.clock)() < wake) {
                    continue;
                }
            }
            () = std::future::ready(()), if more => {}
            () = sleep_until(wake, &settings.clock), if wake.is_some() => {}
            _ = pulse.tick() => {
                settings.metrics.beat();
                if !watches.looks_again() {
                    continue;
                }
            }
        }
        // Everything that is known by now goes into one plan; but where news never stop, plans are made all the same.
        let inputs = input.into_iter().chain(std::iter::from_fn(|| inputs.try_recv().ok()));
        let inputs = inputs.take(INPUTS_A_PLAN).filter(|input| watches.follows(input));
        inputs.for_each(|input| shell.hear(input));
        let dones = done.into_iter().chain(std::iter::from_fn(|| dones.try_recv().ok()));
        dones.for_each(|done| shell.acknowledge(done));
        match shell.hearing.overtaken() {
            Some(Overtaken::RolledBack) => {
                tracing::warn!(
                    "the API server has an older state than it had; forgetting everything and reading it anew"
                );
                return Ok(());
            }
            Some(Overtaken::Epoch(highest)) => {
                tracing::warn!(highest, "a controller with a higher epoch writes orders; stepping down");
                return Ok(());
            }
            None => {}
        }
        shell.hearing.settle();
        held.say(shell.hearing.view.left_alone(), shell.hearing.relays);
        for query in watches.follow(&shell.hearing.view.wanted(), tasks) {
            shell.hearing.forget(&query);
        }
        match shell.lead() {
            Some(led) => (wake, more) = (led.wake, led.more),
            // Not enough is known for a plan.
            None => more = false,
        }
    }
}

/// Starts what runs beside the loop: the watches of nodes, who reads Secrets, who deletes copies of them, who publishes the key for
/// tickets, and the writer. Returns what hands them their work.
fn start_tasks(
    settings: &Settings,
    held: &HeldLease,
    moments: &Moments,
    input: mpsc::Sender<Input>,
    (orders, done): (mpsc::Receiver<Numbered>, mpsc::UnboundedSender<Done>),
    tasks: &mut JoinSet<&'static str>,
) -> Leading {
    let (writes, others) = mpsc::unbounded_channel();
    let owed = Owed::default();
    watch_nodes(&settings.client, moments, &input, tasks);
    let signer = settings.peers.then(|| publish_key(settings, held, &input, tasks)).flatten();
    let (all, now) = (watch::Sender::new(Arc::default()), mpsc::unbounded_channel());
    tasks.spawn({
        let (client, clock, all) = (settings.client.clone(), settings.clock.clone(), all.subscribe());
        async move {
            reading::run(client, clock, all, now.1, input).await;
            "reader of Secrets"
        }
    });
    let no_copies = Arc::new(Notify::new());
    tasks.spawn({
        let (client, namespace, no_copies) = (settings.client.clone(), settings.namespace.clone(), no_copies.clone());
        async move {
            loop {
                no_copies.notified().await;
                reading::delete_copies(&client, &namespace).await;
            }
        }
    });
    tasks.spawn({
        let (settings, term, moments) = (settings.clone(), held.term(), moments.clone());
        let inbox = writer::Inbox { orders, others, owed: owed.count() };
        async move {
            writer::run(settings, term, moments, inbox, done).await;
            "writer"
        }
    });
    let mut leading = Leading::new(Secrets::new(all, now.0), no_copies, owed, writes);
    signer.into_iter().for_each(|signer| leading.sign_with(signer));
    leading
}

/// Makes the key with which this leader signs tickets, and has its public half published. It is nowhere but in this process.
fn publish_key(
    settings: &Settings,
    held: &HeldLease,
    input: &mpsc::Sender<Input>,
    tasks: &mut JoinSet<&'static str>,
) -> Option<TicketSigner> {
    let signer = match TicketSigner::generate() {
        Ok(signer) => signer,
        Err(problem) => {
            tracing::warn!("nodes are not told to read images from each other, because no key can be made: {problem}");
            return None;
        }
    };
    let Settings { client, clock, namespace, .. } = settings.clone();
    let (term, public, input) = (held.term(), signer.public(), input.clone());
    tasks.spawn(async move {
        peer_keys::run(client, clock, namespace, term, public, input).await;
        "publisher of the key for tickets"
    });
    Some(signer)
}

async fn sleep_until(wake: Option<Timestamp>, clock: &Clock) {
    let left = wake.map(|wake| wake.duration_since(clock())).unwrap_or_default();
    // At least a moment, so that a clock that lags behind the timer does not spin.
    tokio::time::sleep(Duration::try_from(left).unwrap_or_default().max(Duration::from_millis(1))).await;
}

/// What is known, and what is done about it. It holds no client: the loop brings facts to it and takes writes from it.
pub(crate) struct Shell {
    pub(crate) hearing: Hearing,
    pub(crate) leading: Leading,
}

/// What is left to be done after a plan.
pub(crate) struct Led {
    /// When to plan again even if nothing happens.
    pub(crate) wake: Option<Timestamp>,
    /// Whether there are more roots that are due.
    pub(crate) more: bool,
}

impl Shell {
    /// Plans and hands out writes, if enough is known for that.
    pub(crate) fn lead(&mut self) -> Option<Led> {
        let Self { hearing, leading } = self;
        if !hearing.is_complete() || !leading.knows_secrets(hearing) || !leading.knows_keys() {
            return None;
        }
        let wake = leading.plan(hearing);
        let more = leading.project(hearing);
        Some(Led { wake: wake.into_iter().chain(hearing.wake()).min(), more })
    }

    pub(crate) fn hear(&mut self, input: Input) {
        let Self { hearing, leading } = self;
        match input {
            Input::Node(fact) => hearing.node(fact),
            Input::NodePreheat(Fact::There(seen, source)) => leading.see_node(hearing, *seen, source),
            Input::NodePreheat(Fact::Gone((_, name))) => leading.forget_node(hearing, &name),
            Input::NodePreheat(Fact::Listed | Fact::Resumed | Fact::Refused) => hearing.node_preheats(true),
            Input::NodePreheat(Fact::Deaf) => hearing.node_preheats(false),
            Input::Row(query, fact) => hearing.row(&query, fact),
            Input::Secret(id, read, asked) => leading.see_secret(hearing, id, read, asked),
            Input::PeerKeys(published) => leading.see_keys(hearing, published),
        }
    }

    pub(crate) fn acknowledge(&mut self, done: Done) {
        self.leading.acknowledge(&mut self.hearing, done);
    }
}

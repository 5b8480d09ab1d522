//! One controller at a time: a Lease that its holder renews. Others watch it and take it when it was not renewed for its
//! duration, measured by their own clock, so that no two clocks are ever compared. Its holder counts its own time from before
//! it asked for it, and writes nothing when that is up.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::stream::{BoxStream, FuturesUnordered};
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::watcher::{self, watch_object};
use stoker_core::Clock;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::problem::{LastProblem, Problem};
use crate::run::Settings;

/// The name of the Lease, in Stoker's namespace.
pub(crate) const NAME: &str = crate::home::CONTROLLER;
/// The annotation in which its holder says which dialects it leaves to their original controllers: a JSON object with what it has seen
/// of these. Whoever explains a job reads it there: only the leader knows how it was started, and looks for long enough.
pub(crate) const LEFT_ALONE: &str = "stoker.dev/left-alone";
/// The annotation that its holder sets to `on` while it tells nodes to read images from each other: whoever explains a job must plan as it
/// does.
pub(crate) const PEERS: &str = "stoker.dev/peers";
/// The value of [`PEERS`].
pub(crate) const ON: &str = "on";
/// Other controllers take the lease when its holder has not renewed it for this long.
const DURATION: Duration = Duration::from_secs(20);
/// The time between the starts of two renewals.
const RENEW_EVERY: Duration = Duration::from_secs(2);
/// A holder that could not renew for this long stops by itself, 5 s before anybody may take its place. It is long enough for
/// an API server that answers nothing for 8 s, in the worst case: the silence begins just before the answer to a renewal
/// (2 s after the last one that worked), swallows every request that is sent in it (8 s), ends just after the start of
/// another renewal (2 s until the next), and leaves 3 s for the answer to that one.
const RENEW_DEADLINE: Duration = Duration::from_secs(15);
/// No answer to a candidate after this long is as good as a broken connection.
const PATIENCE: Duration = Duration::from_secs(4);
/// Between two tries of what was refused.
const PAUSE: Duration = Duration::from_secs(1);

/// The lease in the hands of this controller.
pub(crate) struct HeldLease {
    /// How often it has changed hands.
    pub(crate) transitions: i64,
    /// Until when it is certainly ours.
    until: watch::Sender<Instant>,
    /// What the next renewal says.
    words: watch::Sender<LeaderWords>,
}

/// What the holder of the Lease says in its annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LeaderWords {
    left_alone: LeftAlone,
    /// Whether nodes are told to read from each other.
    peers: bool,
}

/// What was seen of the original controllers of dialects, by dialect.
type LeftAlone = BTreeMap<&'static str, String>;

impl HeldLease {
    fn new(transitions: i64, asked: Instant) -> Self {
        let until = watch::Sender::new(asked + RENEW_DEADLINE);
        Self { transitions, until, words: watch::Sender::new(LeaderWords::default()) }
    }

    /// It was asked for at this moment, and given: whoever else wants it has seen that later, and counts from there. Answers
    /// may come in another order than they were asked for.
    fn renewed(&self, asked: Instant) {
        self.until.send_modify(|until| *until = (*until).max(asked + RENEW_DEADLINE));
    }

    fn lost(&self) {
        self.until.send_replace(Instant::now());
    }

    /// Has the Lease say which dialects are left alone, and whether nodes are told to read from each other.
    pub(crate) fn say(&self, left_alone: &LeftAlone, peers: bool) {
        let said = |words: &LeaderWords| words.left_alone == *left_alone && words.peers == peers;
        if !said(&self.words.borrow()) {
            self.words.send_replace(LeaderWords { left_alone: left_alone.clone(), peers });
        }
    }

    /// For whoever writes.
    pub(crate) fn term(&self) -> Term {
        Term(self.until.subscribe())
    }
}

/// How long the holder of the lease may write.
#[derive(Clone)]
pub(crate) struct Term(watch::Receiver<Instant>);

impl Term {
    /// Returns at once while the lease is certainly held. While it may be somebody else's this waits, and so for ever if it is:
    /// whoever leads ends then. It is asked before each write and not by a timer, because one who slept through his term must
    /// learn that first.
    pub(crate) async fn holds(&mut self) {
        if self.0.wait_for(|until| Instant::now() < *until).await.is_err() {
            std::future::pending().await
        }
    }
}

/// Somebody who wants to be the one.
#[derive(Clone)]
pub(crate) struct Candidate {
    leases: Api<Lease>,
    namespace: String,
    identity: String,
    clock: Clock,
    metrics: Metrics,
}

impl Candidate {
    pub(crate) fn new(settings: &Settings) -> Self {
        let Settings { client, clock, namespace, identity, metrics, .. } = settings.clone();
        Self { leases: Api::namespaced(client, &namespace), namespace, identity, clock, metrics }
    }

    /// Waits until it is the one.
    pub(crate) async fn acquire(&self) -> HeldLease {
        let (mut unseen, mut untaken) = (LastProblem::default(), LastProblem::default());
        let mut watch = self.watch();
        let mut seen: Option<Lease> = None;
        let mut known = false;
        let mut free_at = Instant::now() + DURATION;
        loop {
            self.metrics.beat();
            let free = known && (self.is_free(seen.as_ref()) || free_at <= Instant::now());
            if free {
                let asked = Instant::now();
                match tokio::time::timeout(PATIENCE, self.take(seen.as_ref())).await {
                    Ok(Ok(lease)) => return HeldLease::new(transitions(&lease), asked),
                    Ok(Err(kube::Error::Api(status))) if status.code == 409 => {
                        tracing::debug!("somebody else was faster: {}", status.message);
                        untaken.forget();
                    }
                    Ok(Err(problem)) => {
                        warn(&mut untaken, &not_taken(&self.namespace, Some(&problem)));
                        // A watch would say at once that nobody leads.
                        tokio::time::sleep(PAUSE).await;
                    }
                    Err(_) => warn(&mut untaken, &not_taken(&self.namespace, None)),
                }
                // Whoever was faster is seen by a watch; a new one, because the old one may never say anything again.
                // Otherwise it is tried again after a moment.
                watch = self.watch();
                free_at = Instant::now() + PATIENCE;
                seen = seen.filter(|lease| !self.is_free(Some(lease)));
                known = known && seen.is_some();
            }
            tokio::select! {
                next = watch.next() => match next {
                    Some(Ok(lease)) => {
                        unseen.forget();
                        let holder = lease.as_ref().and_then(holder).unwrap_or_default().to_string();
                        if !self.is_free(lease.as_ref()) {
                            self.metrics.standing_by();
                            if !known {
                                tracing::info!(holder, "another controller leads; standing by");
                            }
                        }
                        // A watch that begins anew says again what was seen: that is no renewal.
                        if !known || version(lease.as_ref()) != version(seen.as_ref()) {
                            free_at = Instant::now() + DURATION;
                        }
                        (seen, known) = (lease, true);
                    }
                    Some(Err(problem)) => {
                        let text = format!("cannot see who leads, trying again: {}", Problem::Watch(&problem));
                        warn(&mut unseen, &text);
                        tokio::time::sleep(PAUSE).await;
                    }
                    None => tokio::time::sleep(PAUSE).await,
                },
                () = tokio::time::sleep_until(free_at) => known = true,
            }
        }
    }

    fn watch(&self) -> BoxStream<'static, watcher::Result<Option<Lease>>> {
        watch_object(self.leases.clone(), NAME).boxed()
    }

    /// Renews for as long as that works; returns when the lease is lost, or may be. A renewal without an answer is not given
    /// up for the next one: an API server that was silent for a while may answer the old request first, or the new one only.
    pub(crate) async fn keep(&self, held: &HeldLease) {
        let mut renewals = FuturesUnordered::new();
        let mut next = Instant::now() + RENEW_EVERY;
        loop {
            let until = *held.until.borrow();
            tokio::select! {
                // The deadline comes first: after a sleep of the whole process everything is due at once.
                biased;
                () = tokio::time::sleep_until(until) => {
                    tracing::warn!("the lease was not renewed for {} s; stepping down", RENEW_DEADLINE.as_secs());
                    return;
                }
                Some((asked, answer)) = renewals.next(), if !renewals.is_empty() => match answer {
                    Ok(Ok(true)) => held.renewed(asked),
                    Ok(Ok(false)) => {
                        tracing::warn!("another controller has taken the lease; stepping down");
                        held.lost();
                        return;
                    }
                    Ok(Err(problem)) => tracing::warn!("cannot renew the lease: {}", Problem::Request(&problem)),
                    // Its answer would renew nothing any more, and later renewals were answered.
                    Err(_) => tracing::debug!("a renewal of the lease was never answered"),
                },
                () = tokio::time::sleep_until(next) => {
                    if renewals.len() == 1 {
                        tracing::warn!("no answer to a renewal of the lease for {} s, asking again", RENEW_EVERY.as_secs());
                    }
                    let asked = Instant::now();
                    next = asked + RENEW_EVERY;
                    let renewal = tokio::time::timeout_at(asked + RENEW_DEADLINE, self.renew(held));
                    renewals.push(renewal.map(move |answer| (asked, answer)));
                }
            }
        }
    }

    /// Gives the lease back, so that the next one need not wait.
    pub(crate) async fn release(&self) {
        let release = async {
            let lease = self.leases.get(NAME).await?;
            if holder(&lease) == Some(&self.identity) {
                self.leases.replace(NAME, &PostParams::default(), &self.lease(Some(&lease), "", None)).await?;
            }
            Ok::<(), kube::Error>(())
        };
        if !matches!(tokio::time::timeout(Duration::from_secs(2), release).await, Ok(Ok(()))) {
            tracing::debug!("the lease could not be given back; it lapses by itself");
        }
    }

    fn is_free(&self, lease: Option<&Lease>) -> bool {
        lease.and_then(holder).is_none_or(|holder| holder == self.identity)
    }

    async fn take(&self, seen: Option<&Lease>) -> Result<Lease, kube::Error> {
        let params = PostParams::default();
        match seen {
            None => self.leases.create(&params, &self.lease(None, &self.identity, None)).await,
            // With the version that was seen: if anybody else wrote it since, this is refused.
            Some(seen) => self.leases.replace(NAME, &params, &self.lease(Some(seen), &self.identity, None)).await,
        }
    }

    /// Writes the lease with the version that it has now; false where somebody else holds it.
    async fn renew(&self, held: &HeldLease) -> Result<bool, kube::Error> {
        loop {
            let lease = self.leases.get(NAME).await?;
            if holder(&lease) != Some(&self.identity) {
                return Ok(false);
            }
            let renewed = self.lease(Some(&lease), &self.identity, Some(&held.words.borrow()));
            match self.leases.replace(NAME, &PostParams::default(), &renewed).await {
                // Somebody wrote it in between: most likely another renewal of ours. Only who holds it now can tell.
                Err(kube::Error::Api(status)) if status.code == 409 => continue,
                answer => return answer.map(|_| true),
            }
        }
    }

    fn lease(&self, old: Option<&Lease>, identity: &str, words: Option<&LeaderWords>) -> Lease {
        let now = Some(MicroTime((self.clock)()));
        let spec = old.and_then(|old| old.spec.clone()).unwrap_or_default();
        let mut metadata = old
            .map(|old| old.metadata.clone())
            .unwrap_or_else(|| ObjectMeta { name: Some(NAME.into()), ..ObjectMeta::default() });
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.remove(LEFT_ALONE);
        annotations.extend(words.and_then(|words| said(&words.left_alone)).map(|text| (LEFT_ALONE.into(), text)));
        // Whoever takes the Lease does not know yet: what the last holder said is more likely than the opposite.
        match words.map(|words| words.peers) {
            Some(true) => annotations.insert(PEERS.into(), ON.into()),
            Some(false) => annotations.remove(PEERS),
            None => None,
        };
        let changes_hands = spec.holder_identity.as_deref() != Some(identity) && !identity.is_empty();
        Lease {
            metadata,
            spec: Some(LeaseSpec {
                holder_identity: Some(identity.into()),
                lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
                acquire_time: if changes_hands { now.clone() } else { spec.acquire_time },
                renew_time: now,
                lease_transitions: Some(
                    spec.lease_transitions.unwrap_or(0) + i32::from(changes_hands && old.is_some()),
                ),
                ..LeaseSpec::default()
            }),
        }
    }
}

/// The text of the annotation; none where there is nothing to say.
fn said(left_alone: &LeftAlone) -> Option<String> {
    (!left_alone.is_empty()).then(|| serde_json::json!(left_alone).to_string())
}

/// Why the lease cannot be taken, and what to do about it.
fn not_taken(namespace: &str, problem: Option<&kube::Error>) -> String {
    let code = problem.and_then(|problem| match problem {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    });
    let install = format!("`stoker install --namespace {namespace}`");
    let advice = match code {
        Some(404) => format!("; is there a namespace {namespace}? {install} prints it with all that belongs in it"),
        Some(403) => format!("; {install} prints the role that allows it"),
        _ => String::new(),
    };
    let problem = match problem {
        Some(problem) => Problem::Request(problem).to_string(),
        None => "the API server does not answer".into(),
    };
    format!("cannot take the lease {namespace}/{NAME} and does nothing without it; trying again: {problem}{advice}")
}

/// Says a problem aloud when it is another one than before.
fn warn(said: &mut LastProblem, text: &str) {
    match said.is_new(text) {
        true => tracing::warn!("{text}"),
        false => tracing::debug!("{text}"),
    }
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

fn version(lease: Option<&Lease>) -> Option<&str> {
    lease?.metadata.resource_version.as_deref()
}

fn transitions(lease: &Lease) -> i64 {
    lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[tokio::test(start_paused = true)]
    async fn a_term_is_counted_from_the_request_and_ends_with_the_lease() {
        let asked = Instant::now();
        tokio::time::advance(Duration::from_secs(3)).await;
        let held = HeldLease::new(0, asked);
        let mut term = held.term();
        tokio::time::advance(RENEW_DEADLINE - Duration::from_secs(4)).await;
        assert!(term.holds().now_or_never().is_some(), "1 s before the deadline");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(term.holds().now_or_never().is_none(), "the deadline counts from the request and not from its answer");
        held.renewed(Instant::now());
        assert!(term.holds().now_or_never().is_some());
        held.renewed(asked);
        assert!(term.holds().now_or_never().is_some(), "a late answer to an earlier request shortens nothing");
        held.lost();
        assert!(term.holds().now_or_never().is_none());
        drop(held);
        assert!(term.holds().now_or_never().is_none());
    }

    #[test]
    fn a_lease_that_cannot_be_taken_is_told_with_what_to_do() {
        let refused = |code, message: &str| kube::Error::Api(Status::failure(message, "No").with_code(code).boxed());
        let missing = refused(404, "namespaces \"east\" not found");
        assert_eq!(
            not_taken("east", Some(&missing)),
            "cannot take the lease east/stoker-controller and does nothing without it; trying again: No: namespaces \"east\" \
             not found; is there a namespace east? `stoker install --namespace east` prints it with all that belongs in it"
        );
        let forbidden = not_taken("east", Some(&refused(403, "you may not")));
        assert!(forbidden.ends_with("you may not; `stoker install --namespace east` prints the role that allows it"));
        let other = not_taken("east", Some(&refused(500, "broken")));
        assert!(other.ends_with("trying again: No: broken"), "{other}");
        assert!(not_taken("east", None).ends_with("the API server does not answer"));
    }
}

//! One controller at a time: a Lease that its holder renews. Others watch it and take it when it was not renewed for its
//! duration, measured by their own clock, so that no two clocks are ever compared.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::runtime::watcher::{self, watch_object};
use stoker_core::Clock;
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::run::Settings;

/// The name of the Lease, in Stoker's namespace.
const NAME: &str = "stoker-controller";
/// Who does not renew for this long has lost it.
const DURATION: Duration = Duration::from_secs(15);
const RENEW_EVERY: Duration = Duration::from_secs(4);
/// No answer to a request after this long is as good as a broken connection: it leaves time for another before anybody
/// would take the lease.
const PATIENCE: Duration = RENEW_EVERY;
/// A holder that could not renew for this long stops by itself, well before anybody may take its place.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// Somebody who wants to be the one.
#[derive(Clone)]
pub(crate) struct Candidate {
    leases: Api<Lease>,
    identity: String,
    clock: Clock,
    metrics: Metrics,
}

impl Candidate {
    pub(crate) fn new(settings: &Settings) -> Self {
        let Settings { client, clock, namespace, identity, metrics, .. } = settings.clone();
        Self { leases: Api::namespaced(client, &namespace), identity, clock, metrics }
    }

    /// Waits until it is the one; returns how often the Lease has changed hands.
    pub(crate) async fn acquire(&self) -> i64 {
        let mut watch = self.watch();
        let mut seen: Option<Lease> = None;
        let mut known = false;
        let mut free_at = Instant::now() + DURATION;
        loop {
            self.metrics.beat();
            let free = known && (self.is_free(seen.as_ref()) || free_at <= Instant::now());
            if free {
                match tokio::time::timeout(PATIENCE, self.take(seen.as_ref())).await {
                    Ok(Ok(lease)) => return transitions(&lease),
                    Ok(Err(problem)) => tracing::debug!(
                        "somebody else was faster, or the API server is away: {}",
                        Problem::Request(&problem)
                    ),
                    Err(_) => tracing::warn!("cannot take the lease, trying again: the API server does not answer"),
                }
                // Whoever was faster is seen by a watch; a new one, because the old one may never say anything again.
                // Otherwise it is tried again after a moment.
                watch = self.watch();
                free_at = Instant::now() + RENEW_EVERY;
                seen = seen.filter(|lease| !self.is_free(Some(lease)));
                known = known && seen.is_some();
            }
            tokio::select! {
                next = watch.next() => match next {
                    Some(Ok(lease)) => {
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
                        tracing::warn!("cannot see who leads, trying again: {}", Problem::Watch(&problem));
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                    None => tokio::time::sleep(Duration::from_secs(1)).await,
                },
                () = tokio::time::sleep_until(free_at) => known = true,
            }
        }
    }

    fn watch(&self) -> BoxStream<'static, watcher::Result<Option<Lease>>> {
        watch_object(self.leases.clone(), NAME).boxed()
    }

    /// Renews for as long as that works; returns when the lease is lost, or may be.
    pub(crate) async fn keep(&self) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(RENEW_EVERY.min(RENEW_DEADLINE.saturating_sub(renewed.elapsed()))).await;
            let left = RENEW_DEADLINE.saturating_sub(renewed.elapsed());
            match tokio::time::timeout(left, self.renew()).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => {
                    tracing::warn!("another controller has taken the lease; stepping down");
                    return;
                }
                Ok(Err(problem)) => tracing::warn!("cannot renew the lease: {}", Problem::Request(&problem)),
                Err(_) => tracing::warn!("cannot renew the lease: no answer"),
            }
            if renewed.elapsed() >= RENEW_DEADLINE {
                tracing::warn!("the lease was not renewed for {} s; stepping down", RENEW_DEADLINE.as_secs());
                return;
            }
        }
    }

    /// Gives the lease back, so that the next one need not wait.
    pub(crate) async fn release(&self) {
        let release = async {
            let lease = self.leases.get(NAME).await?;
            if holder(&lease) == Some(&self.identity) {
                self.leases.replace(NAME, &PostParams::default(), &self.lease(Some(&lease), "")).await?;
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
            None => self.leases.create(&params, &self.lease(None, &self.identity)).await,
            // With the version that was seen: if anybody else wrote it since, this is refused.
            Some(seen) => self.leases.replace(NAME, &params, &self.lease(Some(seen), &self.identity)).await,
        }
    }

    async fn renew(&self) -> Result<bool, kube::Error> {
        let lease = self.leases.get(NAME).await?;
        if holder(&lease) != Some(&self.identity) {
            return Ok(false);
        }
        self.leases.replace(NAME, &PostParams::default(), &self.lease(Some(&lease), &self.identity)).await.map(|_| true)
    }

    fn lease(&self, old: Option<&Lease>, identity: &str) -> Lease {
        let now = Some(MicroTime((self.clock)()));
        let spec = old.and_then(|old| old.spec.clone()).unwrap_or_default();
        let changes_hands = spec.holder_identity.as_deref() != Some(identity) && !identity.is_empty();
        Lease {
            metadata: old
                .map(|old| old.metadata.clone())
                .unwrap_or_else(|| ObjectMeta { name: Some(NAME.into()), ..ObjectMeta::default() }),
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

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

fn version(lease: Option<&Lease>) -> Option<&str> {
    lease?.metadata.resource_version.as_deref()
}

fn transitions(lease: &Lease) -> i64 {
    lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0).into()
}

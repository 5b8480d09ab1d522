//! Leases: what keeps containerd's garbage collector away from an image that is not recorded yet.
//!
//! One a pull, found again by its label after a restart of the agent. Its expiry cannot be extended, so one that is past
//! half of its life is not taken up again: the session puts what it relies on into a new one, and the old one goes.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tonic::metadata::AsciiMetadataValue;

use super::{Containerd, ContainerdInner, ObjectLabels};
use crate::grpc::{Error, RuntimeErrorKind};
use crate::wire::containerd::services::leases::v1 as wire;
use wire::leases_client::LeasesClient;

/// The label that says which pull a lease is for.
const PULL: &str = "stoker.dev/pull";
/// containerd's label for the time after which it ignores a lease.
const EXPIRES: &str = "containerd.io/gc.expire";
/// How long containerd may take to collect garbage.
const COLLECT: Duration = Duration::from_secs(300);
const LIFE: SignedDuration = SignedDuration::from_hours(24);

/// A lease of ours.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    pub(crate) id: String,
    /// The same, to send along.
    pub(crate) header: AsciiMetadataValue,
}

/// The pulls that have a lease in hand, so that none is swept away under one that goes on with it.
#[derive(Debug, Default)]
pub(super) struct LeasedPulls {
    /// Held while leases are looked up or swept.
    turn: tokio::sync::Mutex<()>,
    active: Arc<Mutex<BTreeSet<String>>>,
}

/// The lease of a pull, taken in hand.
pub(super) struct Taken {
    pub(super) lease: Lease,
    /// Whether an earlier session had it.
    pub(super) resumed: bool,
    /// Those of the same pull that are too old to rely on.
    pub(super) old: Vec<String>,
    pub(super) active: Active,
}

/// One pull's hand on its lease.
#[derive(Debug)]
pub(super) struct Active {
    pull: String,
    active: Arc<Mutex<BTreeSet<String>>>,
}

impl LeasedPulls {
    fn take(&self, pull: &str) -> Active {
        self.active.lock().unwrap_or_else(PoisonError::into_inner).insert(pull.into());
        Active { pull: pull.into(), active: self.active.clone() }
    }

    fn is_active(&self, pull: &str) -> bool {
        self.active.lock().unwrap_or_else(PoisonError::into_inner).contains(pull)
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.active.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.pull);
    }
}

impl ContainerdInner {
    /// Takes the lease of a pull in hand, or makes it.
    pub(super) async fn take_lease(&self, pull: &str, now: Timestamp) -> Result<Taken, Error> {
        let _turn = self.pulls.turn.lock().await;
        let active = self.pulls.take(pull);
        let mine = self.leases(&format!("labels.\"{PULL}\"==\"{pull}\"")).await?;
        let fresh = |lease: &&wire::Lease| {
            let expires = lease.labels.get(EXPIRES).and_then(|text| text.parse::<Timestamp>().ok());
            expires.is_some_and(|expires| expires > now + LIFE / 2)
        };
        let kept = mine.iter().find(fresh).map(|lease| lease.id.clone());
        let old = mine.iter().map(|lease| lease.id.clone()).filter(|id| Some(id) != kept.as_ref()).collect();
        let resumed = !mine.is_empty();
        let id = match kept {
            Some(id) => id,
            None => self.new_lease(pull, now).await?,
        };
        let header = AsciiMetadataValue::try_from(&id);
        let header =
            header.map_err(|_| self.broken("make a lease", "its name cannot be sent", RuntimeErrorKind::Other))?;
        Ok(Taken { lease: Lease { id, header }, resumed, old, active })
    }

    async fn new_lease(&self, pull: &str, now: Timestamp) -> Result<String, Error> {
        let id = format!("stoker-{pull}-{}", now.as_millisecond());
        let expires = Timestamp::from_second((now + LIFE).as_second()).unwrap_or(now);
        let labels = ObjectLabels::from([(PULL.into(), pull.into()), (EXPIRES.into(), expires.to_string())]);
        let request = self.ask(wire::CreateRequest { id: id.clone(), labels });
        match LeasesClient::new(self.channel.clone()).create(request).await {
            Ok(_) => Ok(id),
            Err(status) if RuntimeErrorKind::of(&status) == RuntimeErrorKind::Exists => Ok(id),
            Err(status) => Err(self.failed("make a lease", &status)),
        }
    }

    async fn leases(&self, filter: &str) -> Result<Vec<wire::Lease>, Error> {
        let request = self.ask(wire::ListRequest { filters: vec![filter.into()] });
        let answer = LeasesClient::new(self.channel.clone()).list(request).await;
        Ok(answer.map_err(|status| self.failed("list its leases", &status))?.into_inner().leases)
    }

    /// Holds a thing that is there already; says whether it was.
    pub(super) async fn hold(&self, lease: &Lease, sort: &str, id: &str) -> Result<bool, Error> {
        let resource = Some(wire::Resource { id: id.into(), r#type: sort.into() });
        let request = self.ask(wire::AddResourceRequest { id: lease.id.clone(), resource });
        match LeasesClient::new(self.channel.clone()).add_resource(request).await {
            Ok(_) => Ok(true),
            Err(status) if matches!(RuntimeErrorKind::of(&status), RuntimeErrorKind::Exists) => Ok(true),
            Err(status) if RuntimeErrorKind::of(&status) == RuntimeErrorKind::NotFound => Ok(false),
            Err(status) => Err(self.failed("hold what it has", &status)),
        }
    }

    /// Lets go. What nothing else needs is collected when containerd next does so.
    pub(super) async fn end_lease(&self, id: &str) -> Result<(), Error> {
        self.delete_lease(self.ask(wire::DeleteRequest { id: id.into(), sync: false })).await
    }

    /// Lets go, and has all that nothing else needs collected at once: otherwise that could take days.
    async fn clear_lease(&self, id: &str) -> Result<(), Error> {
        self.delete_lease(self.ask_within(wire::DeleteRequest { id: id.into(), sync: true }, COLLECT)).await
    }

    async fn delete_lease(&self, request: tonic::Request<wire::DeleteRequest>) -> Result<(), Error> {
        match LeasesClient::new(self.channel.clone()).delete(request).await {
            Err(status) if RuntimeErrorKind::of(&status) != RuntimeErrorKind::NotFound => {
                Err(self.failed("end a lease", &status))
            }
            _ => Ok(()),
        }
    }
}

impl Containerd {
    /// Ends the leases of pulls that are no longer wanted; half of their images goes with them. One that is under way
    /// keeps its lease.
    pub async fn sweep(&self, wanted: impl Fn(&str) -> bool) -> Result<(), Error> {
        let _turn = self.inner.pulls.turn.lock().await;
        for lease in self.inner.leases(&format!("labels.\"{PULL}\"")).await? {
            let kept = lease.labels.get(PULL).is_some_and(|pull| wanted(pull) || self.inner.pulls.is_active(pull));
            if !kept {
                self.inner.clear_lease(&lease.id).await?;
            }
        }
        Ok(())
    }
}

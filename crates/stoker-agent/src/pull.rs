//! One attempt at one order: ask, compare with what is there, fetch what is missing, record. Dropping it stops it;
//! what was fetched stays in the spool for the next attempt.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use futures::{StreamExt as _, TryStreamExt as _};
use stoker_core::step::Failure;
use stoker_core::{Order, Pin, Policy, Reason};
use stoker_runtime::{Found, Layout};
use stoker_transfer::{Descriptor, Digest, Kind, Logins, Platform, Reference, Registry, Source, Spool};

use crate::meter::Meter;
use crate::secrets::{self, Secrets};

/// Blobs of one image at one time; the spool bounds all images together.
const BLOBS_AT_ONCE: usize = 4;

/// What attempts share.
#[derive(Clone)]
pub(crate) struct Tools {
    pub(crate) registry: Registry,
    pub(crate) spool: Spool,
    pub(crate) store: Layout,
    pub(crate) platform: Platform,
    pub(crate) secrets: Secrets,
    /// Blobs whose bytes over the wire some attempt counts: two images that share a layer share its fetch.
    pub(crate) counted: Arc<Mutex<BTreeSet<String>>>,
}

/// Where an image is had from: its registry, and who we are to it.
struct Origin {
    reference: Reference,
    logins: Logins,
}

impl Tools {
    /// Brings the image of this order into the store, or finds it there. Returns its digest.
    pub(crate) async fn attempt(&self, order: &Order, meter: &Meter) -> Result<String, Failure> {
        let reference: Reference = order.image.parse().map_err(|problem| Failure {
            reason: Reason::InvalidReference,
            message: format!("{problem}"),
            retryable: false,
            pause: None,
        })?;
        let there = self.store.find(&order.image).await.map_err(store_failure)?;
        if let (Policy::IfNotPresent, Some(there)) = (order.policy, &there) {
            meter.sized(there.size, there.size);
            return Ok(there.root.digest().to_string());
        }
        let (keyring, troubles) = self.secrets.keyring(&order.secrets).await;
        let from = Origin { logins: keyring.logins(&reference), reference };
        let brought = self.bring(order, &from, there, meter).await;
        brought.map_err(|failure| secrets::explain(failure, &troubles))
    }

    async fn bring(
        &self,
        order: &Order,
        from: &Origin,
        there: Option<Found>,
        meter: &Meter,
    ) -> Result<String, Failure> {
        let digest = self.digest(order, from, meter).await?;
        if let Some(there) = there.filter(|there| *there.root.digest() == digest) {
            meter.sized(there.size, there.size);
            return Ok(digest.to_string());
        }
        let Origin { reference, logins } = from;
        let image = self.registry.image_with(reference, &digest, &self.platform, logins).await;
        let image = image.map_err(transfer_failure)?;
        let mut missing: Vec<Descriptor> = Vec::new();
        let mut present = 0;
        for blob in image.blobs() {
            match self.store.has(blob.digest(), blob.size()).await {
                true => present += blob.size(),
                false => missing.push(blob.clone()),
            }
        }
        meter.sized(image.total_size(), present);
        let fetches = missing.into_iter().map(|blob| self.fetch(from, blob, meter));
        futures::stream::iter(fetches).buffer_unordered(BLOBS_AT_ONCE).try_collect::<()>().await?;
        for document in &image.documents {
            let put = self.store.put(document.descriptor.digest(), document.bytes.clone());
            put.await.map_err(store_failure)?;
        }
        self.store.record(&order.image, image.root.clone()).await.map_err(store_failure)?;
        Ok(digest.to_string())
    }

    /// The digest to fetch: the one that the order carries, or the registry's answer, which is told at once.
    async fn digest(&self, order: &Order, from: &Origin, meter: &Meter) -> Result<Digest, Failure> {
        if let Some(pin) = &order.pin {
            let digest = pin.digest.parse().map_err(|_| Failure {
                reason: Reason::InvalidContent,
                message: format!("the order's digest {} is not a digest; delete the job and make it anew", pin.digest),
                retryable: false,
                pause: None,
            })?;
            meter.digest(pin.digest.clone());
            return Ok(digest);
        }
        let root = self.registry.resolve_with(&from.reference, &from.logins).await.map_err(transfer_failure)?;
        meter.resolved(Pin { asked: order.asked, digest: root.digest().to_string() });
        Ok(root.digest().clone())
    }

    async fn fetch(&self, from: &Origin, blob: Descriptor, meter: &Meter) -> Result<(), Failure> {
        let growing =
            self.spool.blob(Source::new(from.reference.clone(), from.logins.current().cloned()), blob.clone());
        let claim = Claim::of(&self.counted, blob.digest());
        meter.blob(growing.progress(), claim.is_some());
        let file = growing.complete().await.map_err(transfer_failure)?;
        // Another image with the same layer may have brought it in first; that is as good.
        self.store.adopt(blob.digest(), &file).await.map_err(store_failure)?;
        self.spool.release(blob.digest()).await.map_err(transfer_failure)
    }
}

/// Held by the attempt that counts a blob's bytes over the wire.
struct Claim(Arc<Mutex<BTreeSet<String>>>, String);

impl Claim {
    fn of(counted: &Arc<Mutex<BTreeSet<String>>>, digest: &Digest) -> Option<Self> {
        let digest = digest.to_string();
        let new = counted.lock().unwrap_or_else(PoisonError::into_inner).insert(digest.clone());
        new.then(|| Self(counted.clone(), digest))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

fn store_failure(problem: stoker_runtime::Error) -> Failure {
    let reason = if problem.is_full() { Reason::NoSpace } else { Reason::StoreError };
    Failure { reason, message: problem.to_string(), retryable: true, pause: None }
}

fn transfer_failure(problem: stoker_transfer::Error) -> Failure {
    let reason = match problem.kind() {
        Kind::InvalidReference => Reason::InvalidReference,
        Kind::NotFound => Reason::NotFound,
        Kind::Unauthorized => Reason::Unauthorized,
        Kind::RateLimited => Reason::RateLimited,
        Kind::Unreachable => Reason::Unreachable,
        Kind::Stalled => Reason::Stalled,
        Kind::DigestMismatch => Reason::DigestMismatch,
        Kind::TooLarge => Reason::TooLarge,
        Kind::InvalidContent => Reason::InvalidContent,
        Kind::PlatformMissing => Reason::PlatformMissing,
        Kind::Server => Reason::RegistryError,
        Kind::NoSpace => Reason::NoSpace,
        Kind::Disk => Reason::StoreError,
    };
    let (retryable, pause) = (problem.is_retryable(), problem.retry_after());
    Failure { reason, message: problem.to_string(), retryable, pause }
}

//! One attempt at one order: ask, compare with what is there, fetch what is missing, record. Dropping it stops it;
//! what was fetched stays in the spool for the next attempt.

use std::sync::Arc;
use std::time::Duration;

use stoker_core::step::Failure;
use stoker_core::{Ask, Clock, Order, Pin, PullSource, Reason};
use stoker_runtime::{Care, Runtime, There};
use stoker_transfer::credentials::Providers;
use stoker_transfer::limit::Pace;
use stoker_transfer::peer::PeerWays;
use stoker_transfer::{BlobSource, Descriptor, Digest, Growing, Logins, Platform, Reference, Registry, Spool};

use crate::guard::DiskGuard;
use crate::logins::{self, LoginOpener, LoginTrouble};
use crate::meter::Meter;
use crate::ways::PeerSide;

mod arrival;
mod containerd;
mod cri;
mod documents;
mod enough;
mod failure;
mod layout;
mod uses;

pub(crate) use self::enough::{enough, pinned};
pub(crate) use self::failure::transfer_reason;
use self::failure::{runtime_failure, transfer_failure};
pub(crate) use self::uses::Uses;

/// How often to look whether a runtime that went away is back.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How often a blob is begun anew whose bytes turned out wrong after they were in the spool.
const ANEW: u32 = 3;

/// What attempts share.
#[derive(Clone)]
pub(crate) struct PullTools {
    pub(crate) clock: Clock,
    pub(crate) registry: Registry,
    pub(crate) spool: Spool,
    pub(crate) runtime: Runtime,
    pub(crate) platform: Platform,
    pub(crate) logins: LoginOpener,
    pub(crate) providers: Providers,
    pub(crate) guard: DiskGuard,
    /// Layers of one image that are worked on at one time; the spool bounds all images together.
    pub(crate) layers: usize,
    /// Blobs that attempts have in hand: two images that share a layer share its fetch.
    pub(crate) uses: Arc<Uses>,
    /// Where this node reads from others.
    pub(crate) peers: Option<PeerSide>,
}

/// How the bytes of an attempt come: both may change while it runs.
#[derive(Clone)]
pub(crate) struct Supply {
    /// The limit of the order, beneath that of the node.
    pub(crate) pace: Arc<Pace>,
    /// The nodes that it reads from, or that it asks the registry; none where this node reads from nobody.
    pub(crate) ways: Option<PeerWays>,
}

impl Supply {
    /// Whether this order may ask the registry now.
    pub(crate) fn is_upstream(&self, order: &Order) -> bool {
        self.ways.as_ref().map_or(order.upstream, PeerWays::is_upstream)
    }

    /// Nothing comes for this order any more, also where somebody else still follows its blobs.
    pub(crate) fn close(&self) {
        if let Some(ways) = &self.ways {
            ways.close();
        }
    }
}

/// How an attempt went well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Success {
    pub(crate) digest: String,
    /// Only the registry's answer was asked for: the image is not there.
    pub(crate) answer: Option<Pin>,
    /// What a person should know about it.
    pub(crate) note: Option<String>,
}

impl Success {
    /// The same, with one more thing that a person should know.
    fn and_note(mut self, more: Option<String>) -> Self {
        self.note = match (self.note, more) {
            (Some(note), Some(more)) => Some(format!("{note}; {more}")),
            (note, more) => note.or(more),
        };
        self
    }
}

impl From<String> for Success {
    fn from(digest: String) -> Self {
        Self { digest, answer: None, note: None }
    }
}

impl From<Pin> for Success {
    fn from(pin: Pin) -> Self {
        Self { digest: pin.digest.clone(), answer: Some(pin), note: None }
    }
}

/// Where an image is had from: its registry and who we are to it, or other nodes.
struct Origin {
    reference: Reference,
    logins: Logins,
    supply: Supply,
    /// From where the order lets it come.
    allowed: PullSource,
}

impl Origin {
    fn source(&self) -> BlobSource {
        let source = BlobSource::new(self.reference.clone(), self.logins.current().cloned());
        let source = source.paced(self.supply.pace.clone()).from_mirrors(self.allowed.is_from_mirrors_alone());
        match &self.supply.ways {
            Some(ways) => source.by(ways.clone()),
            None => source,
        }
    }

    /// The client that asks what a tag means, and whether this node may have the image.
    fn asking(&self, registry: &Registry) -> Registry {
        registry.mirrors_only(!self.allowed.may_ask())
    }

    /// The client that fetches.
    fn fetching(&self, registry: &Registry) -> Registry {
        registry.mirrors_only(self.allowed.is_from_mirrors_alone())
    }
}

impl PullTools {
    /// Brings the image of this order into the store, or finds it there. A runtime that goes away in the middle is
    /// waited for.
    pub(crate) async fn attempt(&self, order: &Order, meter: &Meter, supply: &Supply) -> Result<Success, Failure> {
        let reference: Reference = order.image.parse().map_err(|problem| Failure {
            reason: Reason::InvalidReference,
            message: format!("{problem}"),
            retryable: false,
            pause: None,
        })?;
        let tools = Self { registry: self.registry.watched(&meter.pulse()), ..self.clone() };
        loop {
            match tools.try_once(order, &reference, meter, supply).await {
                Err(failure) if failure.reason == Reason::RuntimeUnavailable => {
                    tracing::warn!(image = order.image, "{}; going on when it is back", failure.message);
                    meter.waits(failure);
                    // One that answers and fails all the same is not asked without a pause.
                    loop {
                        tokio::time::sleep(LOOK_AGAIN).await;
                        if self.runtime.answers().await {
                            break;
                        }
                    }
                    meter.goes_on();
                }
                ended => {
                    // The next attempt, of whatever order, has the room that nobody needs.
                    if ended.as_ref().is_err_and(|failure| failure.reason == Reason::NoSpace) {
                        self.guard.leftovers.clear().await;
                    }
                    return ended;
                }
            }
        }
    }

    async fn try_once(
        &self,
        order: &Order,
        reference: &Reference,
        meter: &Meter,
        supply: &Supply,
    ) -> Result<Success, Failure> {
        let there = self.runtime.find(&name_in_store(reference), Care::Hashed).await.map_err(runtime_failure)?.whole();
        if let Some(there) = &there
            && let Some(done) = enough(order, pinned(order), there)
        {
            meter.sized(there.size, there.size);
            return Ok(done);
        }
        meter.found(there.is_some());
        if order.ask == Ask::Look {
            let message = format!("{} is not on this node; it comes when the controller orders it", order.image);
            return Err(Failure { reason: Reason::Unresolved, message, retryable: false, pause: None });
        }
        let allowed = order.terms.pull.source;
        let without_peers = !supply.is_upstream(order) && self.peers.is_none();
        if without_peers || self.pulls_by_itself() && !may_pull_by_itself(order, supply) {
            return Err(documents::not_enforceable(&order.image));
        }
        let (mut keyring, mut troubles) = self.logins.keyring(&order.terms.logins, meter).await;
        // Plugins ask registries for their logins, so none is run where the registry is to hear nothing.
        if allowed.may_ask() {
            let (provided, silent) = self.providers.logins(reference).await;
            keyring.provide(provided);
            troubles.extend(silent.into_iter().map(|sentence| {
                tracing::warn!(image = order.image, "{sentence}");
                LoginTrouble { sentence, passing: true }
            }));
        }
        let from =
            Origin { logins: keyring.logins(reference), reference: reference.clone(), supply: supply.clone(), allowed };
        if order.ask == Ask::Resolve {
            let answer = self.resolve(order, &from).await.map(Success::from);
            return answer.map_err(|failure| logins::explain(failure, &troubles));
        }
        let brought = match &self.runtime {
            Runtime::Cri(cri) => self.by_cri(cri, order, &from, there, meter).await,
            Runtime::Containerd(containerd, cri) => match containerd.node().ineligible() {
                None => self.bring(order, &from, there, meter).await,
                Some(why) => {
                    let done = self.by_cri(cri, order, &from, there, meter).await;
                    done.map(|done| done.and_note(Some(format!("pulled by containerd itself: {why}"))))
                }
            },
            Runtime::Layout(_) => self.bring(order, &from, there, meter).await,
        };
        brought.map_err(|failure| logins::explain(failure, &troubles))
    }

    /// Fetches what is missing ourselves.
    async fn bring(
        &self,
        order: &Order,
        from: &Origin,
        there: Option<There>,
        meter: &Meter,
    ) -> Result<Success, Failure> {
        let digest = self.digest(order, from, meter).await?;
        if let Some(there) = there
            && let Some(done) = enough(order, Some(digest.as_ref()), &there)
        {
            meter.sized(there.size, there.size);
            return Ok(done);
        }
        loop {
            let (image, by) = self.documents(order, from, &digest).await?;
            if let Some(peers) = &self.peers {
                (peers.seen)(&order.image, &image);
            }
            let put = match &self.runtime {
                Runtime::Layout(store) => self.put_in_layout(store, order, from, &image, meter).await,
                Runtime::Containerd(containerd, _) => {
                    self.put_in_containerd(containerd, from, &image, meter).await.map(|()| None)
                }
                Runtime::Cri(_) => Ok(None),
            };
            match put {
                // It was told to ask the registry in the middle, and which login that takes nobody has tried yet: documents are asked for
                // with each of them.
                Err(failure)
                    if failure.reason == Reason::Unauthorized
                        && by == documents::GivenBy::Nodes
                        && from.supply.is_upstream(order) => {}
                put => return Ok(Success { note: put?, ..digest.to_string().into() }),
            }
        }
    }

    /// The fetch that comes after one whose bytes turned out wrong; the same one where the spool itself has begun it again.
    fn begin_anew(&self, old: &Growing, from: &Origin, blob: &Descriptor, counts: bool, meter: &Meter) -> Growing {
        let next = self.spool.blob(from.source(), blob.clone());
        if !next.is_same_fetch(old) {
            meter.blob(next.progress(), counts);
        }
        next
    }

    /// The digest to fetch: the one that the order carries, or the registry's answer, which is told at once.
    async fn digest(&self, order: &Order, from: &Origin, meter: &Meter) -> Result<Digest, Failure> {
        if let Some(pin) = order.pin() {
            let digest = pin.digest.parse().map_err(|_| Failure {
                reason: Reason::InvalidContent,
                message: format!("the order's digest {} is not a digest; delete the job and make it anew", pin.digest),
                retryable: false,
                pause: None,
            })?;
            meter.digest(pin.digest.clone());
            return Ok(digest);
        }
        self.may_ask(order, from)?;
        let root =
            from.asking(&self.registry).resolve_with(&from.reference, &from.logins).await.map_err(transfer_failure)?;
        meter.resolved(Pin::new(order.asked, root.digest().to_string()));
        Ok(root.digest().clone())
    }

    /// What the registry says that the tag means. A runtime that pulls by itself may reach the registry where this agent
    /// cannot, by mirrors of its own: then the question is refused, and the controller has the runtime pull.
    async fn resolve(&self, order: &Order, from: &Origin) -> Result<Pin, Failure> {
        self.may_ask(order, from)?;
        let root = from.asking(&self.registry).resolve_with(&from.reference, &from.logins).await;
        let root = root.map_err(transfer_failure).map_err(|failure| match self.pulls_by_itself() {
            true => Failure { reason: Reason::Unsupported, retryable: false, ..failure },
            false => failure,
        })?;
        Ok(Pin::new(order.asked, root.digest().to_string()))
    }

    /// Whether images come by the runtime's own pull.
    pub(crate) fn pulls_by_itself(&self) -> bool {
        match &self.runtime {
            Runtime::Cri(_) => true,
            Runtime::Containerd(containerd, _) => containerd.node().ineligible().is_some(),
            Runtime::Layout(_) => false,
        }
    }
}

/// Whether a runtime may pull for this order: it goes to the registry and to whichever mirrors it knows. To answer a question it is not needed.
fn may_pull_by_itself(order: &Order, supply: &Supply) -> bool {
    let source = order.terms.pull.source;
    supply.is_upstream(order)
        && if order.ask.is_question() { source.may_ask() } else { !source.is_from_mirrors_alone() }
}

/// The name under which image stores know a reference: where it has a digest, a tag says nothing.
pub(crate) fn name_in_store(reference: &Reference) -> String {
    match reference.digest() {
        Some(digest) => by_digest(reference, digest),
        None => reference.name().to_owned(),
    }
}

fn by_digest(reference: &Reference, digest: &str) -> String {
    format!("{}/{}@{digest}", reference.registry(), reference.repository())
}

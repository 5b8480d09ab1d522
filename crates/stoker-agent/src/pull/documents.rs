//! The documents of an image, from the registry or from other nodes, and when neither may be asked.

use stoker_core::step::Failure;
use stoker_core::{Order, Reason};
use stoker_transfer::{Digest, Permission, PlatformImage, Reference};

use super::failure::transfer_failure;
use super::{Origin, PullTools, by_digest};

/// Who gave the documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivenBy {
    Registry,
    Nodes,
}

impl PullTools {
    /// The documents of the image. Where only other nodes may be asked and none of them gives them, it waits until one does, or until the
    /// order names others or allows the registry.
    pub(super) async fn documents(
        &self,
        order: &Order,
        from: &Origin,
        digest: &Digest,
    ) -> Result<(PlatformImage, GivenBy), Failure> {
        if let Some(ways) = from.supply.ways.as_ref().filter(|_| !from.supply.is_upstream(order)) {
            if from.allowed.needs_permission() {
                self.may_have(from, digest).await?;
            }
            let image = ways.image(&from.reference, digest, &self.platform).await.map_err(transfer_failure)?;
            if let Some(image) = image {
                return Ok((image, GivenBy::Nodes));
            }
        }
        let registry = from.fetching(&self.registry);
        let image = registry.image_with(&from.reference, digest, &self.platform, &from.logins).await;
        Ok((image.map_err(transfer_failure)?, GivenBy::Registry))
    }

    /// Whether the registry lets this order have the image: other nodes would give it to anybody who was ordered to have it, and whoever
    /// may make jobs could name a private image of somebody else (docs/decisions/0038). Nothing is fetched. A registry that cannot be reached,
    /// or is broken, refuses nothing.
    async fn may_have(&self, from: &Origin, digest: &Digest) -> Result<(), Failure> {
        let pinned = by_digest(&from.reference, digest.as_ref()).parse::<Reference>();
        let pinned = pinned.map_err(|problem| transfer_failure(problem.into()))?;
        match from.asking(&self.registry).permission(&pinned, &from.logins).await {
            Permission::Granted => Ok(()),
            Permission::Refused(why) => Err(transfer_failure(why)),
            Permission::Undecided(why) => {
                let failure = transfer_failure(why);
                let asked =
                    "this node asked by HEAD whether it may have the image, before it reads it from other nodes";
                Err(Failure { message: format!("{}; {asked}", failure.message), retryable: true, ..failure })
            }
            Permission::Unavailable(why) => {
                tracing::debug!(image = %from.reference, "cannot ask the registry whether this node may have the image: {why}");
                Ok(())
            }
        }
    }

    /// An order that may not ask the registry must name its digest.
    pub(super) fn may_ask(&self, order: &Order, from: &Origin) -> Result<(), Failure> {
        if from.supply.is_upstream(order) {
            return Ok(());
        }
        let message = format!(
            "{}: the order names no digest and does not allow this node to ask the registry for it; delete the job and make it anew",
            order.image
        );
        Err(Failure { reason: Reason::InvalidContent, message, retryable: false, pause: None })
    }
}

/// The runtime would ask the registry by itself.
pub(super) fn not_enforceable(image: &str) -> Failure {
    let message = format!(
        "{image}: this node may not fetch the image from the registry, and here the container runtime pulls by itself, also from there; \
         let the agent fetch images (`stoker agent --runtime containerd`), or allow the registry in the job"
    );
    Failure { reason: Reason::SourceNotEnforceable, message, retryable: false, pause: None }
}

//! By the runtime's own pull: it is asked by tag, so that pods which name the tag find it, and what it brought is compared
//! with the digest that the job means.

use std::time::Duration;

use stoker_core::step::Failure;
use stoker_core::{Order, Reason};
use stoker_runtime::cri::{PodSandbox, RegistryAuth};
use stoker_runtime::grpc::RuntimeErrorKind;
use stoker_runtime::room::{DiskAmount, Unwritten};
use stoker_runtime::{Cri, ImageIdentity, There};
use stoker_transfer::{Digest, Login};

use super::documents::not_enforceable;
use super::failure::{runtime_failure, transfer_failure};
use super::{Origin, PullTools, Success, enough, may_pull_by_itself, name_in_store};
use crate::guard::{DiskNeed, unpacked};
use crate::meter::Meter;

/// How much longer than an attempt the runtime may take, should nobody stop it.
const LONGER: Duration = Duration::from_secs(10);

impl PullTools {
    pub(super) async fn by_cri(
        &self,
        cri: &Cri,
        order: &Order,
        from: &Origin,
        there: Option<There>,
        meter: &Meter,
    ) -> Result<Success, Failure> {
        // Whether the runtime pulls by itself may have changed while logins were awaited.
        if !may_pull_by_itself(order, &from.supply) {
            return Err(not_enforceable(&order.image));
        }
        // A registry that only the runtime can reach (by a mirror of its own) is no reason not to try.
        let wanted = match self.digest(order, from, meter).await {
            Ok(digest) => Some(digest),
            Err(failure) => {
                tracing::info!(
                    image = order.image,
                    "{}; the runtime is asked to pull it all the same",
                    failure.message
                );
                None
            }
        };
        if let (Some(wanted), Some(there)) = (&wanted, &there)
            && let Some(done) = enough(order, Some(wanted.as_ref()), there)
        {
            meter.sized(there.size, there.size);
            return Ok(done);
        }
        let image = match &wanted {
            Some(wanted) => {
                match from
                    .fetching(&self.registry)
                    .image_with(&from.reference, wanted, &self.platform, &from.logins)
                    .await
                {
                    // The runtime would believe the sizes.
                    Err(problem) if problem.kind() == stoker_transfer::TransferErrorKind::TooLarge => {
                        return Err(transfer_failure(problem));
                    }
                    image => image.ok(),
                }
            }
            None => None,
        };
        let mut reserved = None;
        if let Some(image) = image {
            meter.sized(image.total_size(), 0);
            // Which of its layers are there already, CRI does not say: they all count.
            let needs = || {
                let unpacked = image.layers.iter().map(|layer| unpacked(layer.media_type().as_ref(), layer.size()));
                let packed = Unwritten::Amount(DiskAmount { bytes: image.total_size(), inodes: 0 });
                unpacked.map(DiskNeed::Unpacked).chain([DiskNeed::Images(packed)]).collect()
            };
            while reserved.is_none() {
                reserved = self.guard.admit(from.reference.name(), needs, meter).await?;
            }
        }
        let name = name_in_store(&from.reference);
        // The runtime knows no limit. A pull that is dropped is one that it stops.
        tokio::select! {
            pulled = self.pull_as_anyone(cri, order, from, &name) => pulled?,
            full = self.guard.overflows(from.reference.name()) => return Err(full),
        }
        // A quick disk fills between two looks, so there is a last one.
        let overfull = self.guard.overflowed(from.reference.name()).await;
        drop(reserved);
        let listed = cri.find(&name).await.map_err(runtime_failure)?;
        let listed = listed.ok_or_else(|| Failure {
            reason: Reason::StoreError,
            message: format!("the runtime says that it pulled {name}, and does not list it; look at its log"),
            retryable: true,
            pause: None,
        })?;
        let has = |digest: &Digest| listed.digests.iter().any(|name| name.ends_with(&format!("@{digest}")));
        let done: Success = match &wanted {
            Some(wanted) if has(wanted) => wanted.to_string().into(),
            Some(wanted) => {
                let brought = listed.digests.join(", ");
                return Err(Failure {
                    reason: Reason::DigestMismatch,
                    message: format!(
                        "the runtime pulled {brought} for {name}, and the job means {wanted}: the tag has moved; make \
                         the job anew, or name the digest in it"
                    ),
                    retryable: true,
                    pause: None,
                });
            }
            None => match There::listed(&name, &listed).identity {
                ImageIdentity::Digest(digest) => {
                    meter.learned(stoker_core::Pin::new(order.asked, digest.clone()));
                    digest.into()
                }
                // No other node could pull by it.
                ImageIdentity::ImageId(id) => Success::without_digest(&order.image, id),
            },
        };
        meter.whole(listed.size);
        Ok(done.and_note(overfull))
    }

    /// Each login in turn, nobody at the end; the first refusal is the one that is told.
    async fn pull_as_anyone(&self, cri: &Cri, order: &Order, from: &Origin, name: &str) -> Result<(), Failure> {
        let told = &order.terms.pull.sandbox;
        let sandbox = (*told != Default::default())
            .then(|| PodSandbox { labels: told.labels.clone(), annotations: told.annotations.clone() });
        // The attempt as a whole ends before that, and says more about it.
        let limit = order.terms.pull.timeout.saturating_add(LONGER);
        let mut refusal = None;
        for login in from.logins.candidates() {
            let auth = login.map(auth);
            match cri.pull(name, auth.as_ref(), sandbox.as_ref(), limit).await {
                Ok(_) => return Ok(()),
                Err(problem) if matches!(problem.kind, RuntimeErrorKind::Unauthorized | RuntimeErrorKind::NotFound) => {
                    refusal.get_or_insert(problem);
                }
                Err(problem) => return Err(runtime_failure(problem)),
            }
        }
        refusal.map_or(Ok(()), |problem| Err(runtime_failure(problem)))
    }
}

fn auth(login: &Login) -> RegistryAuth {
    RegistryAuth {
        username: login.username.clone(),
        password: login.password.expose().to_owned(),
        ..Default::default()
    }
}

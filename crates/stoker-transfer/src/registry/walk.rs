//! From host to host.
//!
//! The hosts of a registry come in, and what went wrong at each; the one to ask now goes out, or that it is enough. A
//! mirror that fails is passed over at once, whatever failed; only when the last has failed is there a wait, and then all
//! are asked again. It asks nobody itself.

use super::{Backoff, Error, Registry};
use crate::error::TransferErrorKind;
use crate::hosts::{Host, HostNeed};
use crate::pulse::Pulse;
use crate::reference::Reference;

/// One question on its way through the hosts of a registry.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    /// Never empty.
    hosts: Vec<Host>,
    at: usize,
    backoff: Backoff<'a>,
    /// Whether the host asked now has brought something new.
    fruitful: bool,
    /// What mirrors said in this round, for the one who reads the error in the end.
    refused: Vec<String>,
    /// Whether the last host was asked again for bytes that were not those of their digest.
    again: bool,
    pulse: &'a Pulse,
}

impl Registry {
    /// The hosts to ask for this, as the node's settings say now.
    pub(crate) async fn walk(&self, image: &Reference, need: HostNeed) -> Result<Walk<'_>, Error> {
        let hosts = match self.mirrors_only {
            true => self.inner.hosts.mirrors_of(image, need).await,
            false => self.inner.hosts.of(image, need).await,
        };
        let hosts = hosts.map_err(|problem| Error::Hosts { what: format!("image {image}"), problem })?;
        let backoff = Backoff::new(&self.inner.settings.retry);
        Ok(Walk { hosts, at: 0, backoff, fruitful: false, refused: Vec::new(), again: false, pulse: &self.pulse })
    }
}

impl Walk<'_> {
    /// The one to ask now.
    pub(crate) fn host(&self) -> &Host {
        &self.hosts[self.at]
    }

    /// The host to ask now; the pulse waits for its answer from here on.
    pub(crate) fn asked(&self) -> &Host {
        self.pulse.awaits(&self.host().authority);
        self.host()
    }

    /// Whether there is nobody behind it.
    pub(crate) fn is_last(&self) -> bool {
        self.at + 1 >= self.hosts.len()
    }

    /// The question is answered.
    pub(crate) fn answered(&self) {
        self.pulse.ended();
    }

    /// An error of the last host, with the errors of the hosts before it.
    pub(crate) fn last(&self, error: Error) -> Error {
        error.besides(&self.refused)
    }

    /// Something new came from it: patience starts over.
    pub(crate) fn progressed(&mut self) {
        self.fruitful = true;
        self.backoff.reset();
    }

    /// Never asks this one again, because its copy is not the real thing; `false` where there is nobody behind it.
    pub(crate) fn discard(&mut self) -> bool {
        if self.is_last() {
            return false;
        }
        self.hosts.remove(self.at);
        self.fruitful = false;
        true
    }

    /// Goes on after a failure: to the same host after a wait where it had brought something, else to the next one, or
    /// after a wait to the first again. Gives the error back when it is final.
    pub(crate) async fn after(&mut self, error: Error) -> Result<(), Error> {
        self.pulse.failed(&error);
        let fruitful = std::mem::take(&mut self.fruitful);
        if fruitful && let Some(wait) = self.backoff.after(&error) {
            tokio::time::sleep(wait).await;
            return Ok(());
        }
        if !self.is_last() {
            tracing::debug!(%error, "asking the next host");
            self.refused.push(error.brief());
            self.at += 1;
            return Ok(());
        }
        // A proxy or a bad line may have damaged the bytes on their way; bytes that are wrong twice are so at the host.
        if error.kind() == TransferErrorKind::DigestMismatch && !std::mem::replace(&mut self.again, true) {
            tracing::debug!(%error, "asking again");
            return Ok(());
        }
        match self.backoff.after(&error) {
            Some(wait) => {
                tokio::time::sleep(wait).await;
                (self.at, self.refused) = (0, Vec::new());
                Ok(())
            }
            None => {
                self.pulse.ended();
                Err(self.last(error))
            }
        }
    }
}

//! Whether a registry lets one login have an image, without fetching anything.
//!
//! A reference, a login and a time limit come in; yes, or the error that says why not, goes out. It sends HEAD alone: at registries that
//! limit pulls a GET of a manifest counts as one.

use std::time::Duration;

use ::http::Method;
use tokio::time::timeout;

use super::manifest::question;
use super::{Error, Registry, RegistryQuestion, RequestProblem};
use crate::hosts::{Host, HostNeed};
use crate::login::Login;
use crate::reference::{Address as _, Reference};

impl Registry {
    /// Whether this login may have the manifest. A registry that is away or broken is asked again within this time; then that is the error.
    pub(crate) async fn permits(
        &self,
        image: &Reference,
        login: Option<&Login>,
        within: Duration,
    ) -> Result<(), Error> {
        let mut walk = self.walk(image, HostNeed::Pull).await?;
        let question = question(image, image.manifest_name(), login, Method::HEAD);
        let mut outage = None;
        let asked = async {
            loop {
                let Err(error) = self.permits_at(walk.asked(), &question).await else { return Ok(()) };
                // What a mirror says is no word of the registry.
                if walk.is_last() {
                    // Whoever has answered is not asked again: it may limit its rate, or count wrong passwords.
                    if !error.is_outage() {
                        return Err(walk.last(error));
                    }
                    outage = Some(walk.last(error.clone()));
                }
                walk.after(error).await?;
            }
        };
        let answer = timeout(within, asked).await;
        self.pulse.ended();
        answer.unwrap_or_else(|_| {
            let silent = || question.error(question.who(walk.host()), RequestProblem::Stalled { after: within });
            Err(outage.unwrap_or_else(silent))
        })
    }

    /// Any success is a yes, whatever it says of the manifest.
    async fn permits_at(&self, host: &Host, question: &RegistryQuestion<'_>) -> Result<(), Error> {
        match self.ask(question, host).await {
            Err(error) if error.status().is_some_and(|status| (200..300).contains(&status)) => Ok(()),
            answer => answer.map(drop),
        }
    }
}

//! The logins of an order: names in, a keyring out. The logins come with the orders, sealed to the key of this node; what is
//! opened stays in memory and goes to the registry that it is for, nowhere else.

use std::collections::BTreeMap;
use std::sync::Arc;

use stoker_api::native::SealedLogin;
use stoker_core::step::Failure;
use stoker_core::{LoginId, Reason};
use stoker_transfer::credentials::NotOpened;
use stoker_transfer::{Keyring, LoginEntry, NodeKey};
use tokio::sync::watch;

use crate::meter::Meter;

/// The sealed logins of this node, as its object has them.
pub(crate) type Sealed = Arc<BTreeMap<LoginId, SealedLogin>>;

/// Opens the logins of this node.
#[derive(Clone)]
pub(crate) struct LoginOpener {
    key: NodeKey,
    sealed: watch::Receiver<Sealed>,
}

/// Why a login could not be used, in words that do not show it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LoginTrouble {
    pub(crate) sentence: String,
    /// Another try may help.
    pub(crate) passing: bool,
}

impl LoginOpener {
    pub(crate) fn new(key: NodeKey, sealed: watch::Receiver<Sealed>) -> Self {
        Self { key, sealed }
    }

    /// The logins of these names; one that cannot be used stops no other. Logins that were sealed to a key which this node no longer
    /// has are waited for: the controller seals them to the new one.
    pub(crate) async fn keyring(&self, ids: &[LoginId], meter: &Meter) -> (Keyring, Vec<LoginTrouble>) {
        let mut sealed = self.sealed.clone();
        let mut waited = false;
        loop {
            let now = sealed.borrow_and_update().clone();
            let opened: Vec<(&LoginId, Option<Result<LoginEntry, NotOpened>>)> =
                ids.iter().map(|id| (id, now.get(id).map(|login| self.key.open(&login.sealed)))).collect();
            let lost = |opened: &&(&LoginId, Option<Result<LoginEntry, NotOpened>>)| {
                matches!(opened.1, Some(Err(NotOpened::OtherKey)))
            };
            let Some((id, _)) = opened.iter().find(lost) else {
                if waited {
                    meter.goes_on();
                }
                return collect(opened);
            };
            tracing::info!(login = %id, "sealed to a key that this node does not have; waiting for the controller");
            meter.waits(Failure {
                reason: Reason::SecretUnread,
                message: format!(
                    "the login {id} was sealed to a key that this node no longer has; the pull goes on when the \
                     controller has sealed it again"
                ),
                retryable: true,
                pause: None,
            });
            waited = true;
            if sealed.changed().await.is_err() {
                // The agent ends, and with it this attempt.
                std::future::pending::<()>().await;
            }
        }
    }
}

fn collect(opened: Vec<(&LoginId, Option<Result<LoginEntry, NotOpened>>)>) -> (Keyring, Vec<LoginTrouble>) {
    let mut ring = Keyring::new();
    let mut troubles = Vec::new();
    for (id, entry) in opened {
        let trouble = match entry {
            Some(Ok(entry)) => {
                ring.name(entry);
                continue;
            }
            Some(Err(problem)) => {
                LoginTrouble { sentence: format!("the login {id} cannot be used: {problem}"), passing: false }
            }
            None => LoginTrouble {
                sentence: format!(
                    "the login {id} is not among those of this node; look at the controller's log, which says why"
                ),
                passing: true,
            },
        };
        tracing::warn!("{}", trouble.sentence);
        troubles.push(trouble);
    }
    (ring, troubles)
}

/// A failure with what was wrong with the logins, where it is for want of one.
pub(crate) fn explain(failure: Failure, troubles: &[LoginTrouble]) -> Failure {
    if failure.reason != Reason::Unauthorized || troubles.is_empty() {
        return failure;
    }
    let sentences: Vec<&str> = troubles.iter().map(|trouble| trouble.sentence.as_str()).collect();
    Failure {
        message: format!("{}; {}", failure.message, sentences.join("; ")),
        retryable: failure.retryable || troubles.iter().any(|trouble| trouble.passing),
        ..failure
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_transfer::SecretKind;
    use tokio::sync::Notify;

    fn entry(user: &str) -> LoginEntry {
        let text = format!(r#"{{"reg.io": {{"username": "{user}", "password": "hunter2"}}}}"#);
        LoginEntry::read(SecretKind::DockerCfg, text.as_bytes()).unwrap().remove(0)
    }

    fn sealed(logins: &[(&str, &NodeKey)]) -> Sealed {
        let logins = logins.iter().map(|(name, key)| {
            let key = key.public();
            let login = SealedLogin { key: key.name(), sealed: entry(name).seal(&key).unwrap() };
            (LoginId::new(name), login)
        });
        Arc::new(logins.collect())
    }

    fn users(ring: &Keyring) -> Vec<String> {
        let logins = ring.logins(&"reg.io/app".parse().unwrap());
        logins.candidates().flatten().map(|login| login.username.clone()).collect()
    }

    #[tokio::test]
    async fn what_is_sealed_to_another_node_is_not_opened_and_what_is_not_there_is_said() {
        let (key, meter) = (NodeKey::generate(), Meter::new(Arc::new(Notify::new())));
        let (_sender, receiver) = watch::channel(sealed(&[("b", &key), ("a", &key)]));
        let logins = LoginOpener::new(key, receiver);
        let names = ["b", "gone", "a"].map(LoginId::new);
        let (ring, troubles) = logins.keyring(&names, &meter).await;
        assert_eq!(users(&ring), ["b", "a"], "in the order of the order");
        assert_eq!(troubles.len(), 1);
        assert!(
            troubles[0].passing && troubles[0].sentence.contains("gone") && !troubles[0].sentence.contains("hunter2")
        );
    }

    #[tokio::test]
    async fn a_login_that_was_sealed_to_a_lost_key_is_waited_for() {
        let (key, lost) = (NodeKey::generate(), NodeKey::generate());
        let meter = Meter::new(Arc::new(Notify::new()));
        let (sender, receiver) = watch::channel(sealed(&[("a", &lost)]));
        let logins = LoginOpener::new(key.clone(), receiver);
        let names = [LoginId::new("a")];
        let mut ring = std::pin::pin!(logins.keyring(&names, &meter));
        assert!(futures::poll!(&mut ring).is_pending());
        sender.send_replace(sealed(&[("a", &lost), ("b", &key)]));
        assert!(futures::poll!(&mut ring).is_pending(), "that was another one");
        sender.send_replace(sealed(&[("a", &key)]));
        assert_eq!(users(&ring.await.0), ["a"]);
    }
}

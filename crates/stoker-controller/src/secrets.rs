//! Pull secrets of the cluster: seen by a watch of their types alone, told to the World by name, copied and removed as
//! its plan says. Contents stay here until they are copied; nothing logs them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::Api;
use kube::runtime::watcher;
use stoker_api::Write;
use stoker_api::secret::{self, PullSecret};
use stoker_core::world::CopyChange;
use stoker_core::{SecretId, World};
use tokio::sync::mpsc;

use crate::watch::{Fact, ObjectName, watch_some};

/// Watches the Secrets of one type; others are not even listed.
pub(crate) async fn watch_type<F>(
    client: Client,
    kind: &'static str,
    facts: mpsc::Sender<F>,
    wrap: impl Fn(Fact<Option<PullSecret>>) -> F,
) {
    let config = watcher::Config::default().fields(&format!("type={kind}"));
    let read = |fact: Fact<Secret>| wrap(fact.map(|secret| PullSecret::read(&secret)));
    watch_some(Api::all(client), kind, config, facts, read).await;
}

/// The Secrets that are there, copies among them.
#[derive(Default)]
pub(crate) struct Secrets(BTreeMap<SecretId, PullSecret>);

impl Secrets {
    /// One is there, or has changed.
    pub(crate) fn see(&mut self, secret: Option<PullSecret>, world: &mut World) {
        let Some(secret) = secret else { return };
        world.apply(secret.to_core());
        self.0.insert(secret.id.clone(), secret);
    }

    /// None of this type and name is there any more. One of the other type may be: their watches do not wait for one
    /// another.
    pub(crate) fn forget(&mut self, kind: &'static str, (namespace, name): ObjectName, world: &mut World) {
        let id = SecretId::new(namespace, name);
        if self.0.get(&id).is_some_and(|secret| secret.kind == kind)
            && let Some(secret) = self.0.remove(&id)
        {
            world.apply(secret.gone());
        }
    }

    /// The write for a change that the plan wants.
    pub(crate) fn write(&self, change: &CopyChange) -> Option<Write> {
        match change {
            CopyChange::Make { copy, from } => {
                tracing::info!(secret = %from, %copy, "copying a Secret");
                self.0.get(from).map(PullSecret::make_copy)
            }
            CopyChange::Remove(copy) => {
                tracing::info!(%copy, "removing a copy that no job needs");
                Some(secret::remove_copy(copy))
            }
        }
    }
}

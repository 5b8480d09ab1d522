//! Pull secrets of the cluster: seen by a watch of their types alone, told to the World by name, copied and removed as
//! its plan says. Contents stay here until they are copied; nothing logs them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams};
use stoker_api::Write;
use stoker_api::secret::{self, PullSecret};
use stoker_core::world::CopyChange;
use stoker_core::{SecretId, World};

use crate::facts;
use crate::moment::Moments;
use crate::problem::Problem;
use crate::watch::{ObjectName, Watch};

/// The watch of the Secrets of one type; others are not even listed.
pub(crate) fn watch(client: &Client, kind: &'static str, moments: &Moments) -> Watch<Secret> {
    Watch::new(Api::all(client.clone()), kind, moments).fields(&format!("type={kind}"))
}

/// Whether what is there in the place of a copy that was to be made is the copy; else what to do about it. Listed and
/// not got: that is what a controller may do.
pub(crate) async fn check_copy(api: &Api<DynamicObject>, home: &str, name: &str) -> Result<(), String> {
    let there = api.list(&ListParams::default().fields(&format!("metadata.name={name}"))).await;
    let there = there.map_err(|problem| Problem::Request(&problem).to_string())?;
    let Some(object) = there.items.into_iter().next() else {
        return Err(format!("Secret {home}/{name} was there and is gone"));
    };
    let read = object.try_parse::<Secret>().ok().and_then(|secret| PullSecret::read(&secret, home));
    match read.is_some_and(|secret| facts::is_copy(&secret)) {
        true => Ok(()),
        false => Err(format!(
            "Secret {home}/{name} has the name of a copy of a pull secret and is not Stoker's, so the copy cannot be \
             made and jobs wait for it; delete it (kubectl -n {home} delete secret {name}), and they go on"
        )),
    }
}

/// The Secrets that are there, copies among them.
pub(crate) struct Secrets {
    there: BTreeMap<SecretId, PullSecret>,
    /// The namespace of copies.
    home: String,
}

impl Secrets {
    pub(crate) fn new(home: &str) -> Self {
        Self { there: BTreeMap::new(), home: home.into() }
    }

    /// One is there, or has changed.
    pub(crate) fn see(&mut self, secret: Option<PullSecret>, world: &mut World) {
        let Some(secret) = secret else { return };
        // A watch that was interrupted tells only the last of a removal and a new object of the same name: a stranger
        // in the place of a copy must not pass for it.
        let old = self.there.insert(secret.id.clone(), secret.clone());
        if let Some(old) = old.filter(|old| facts::is_copy(old) != facts::is_copy(&secret)) {
            facts::secret_gone(&old).for_each(|event| world.apply(event));
        }
        facts::secret(&secret).for_each(|event| world.apply(event));
    }

    /// None of this type and name is there any more. One of the other type may be: their watches do not wait for one
    /// another.
    pub(crate) fn forget(&mut self, kind: &'static str, (namespace, name): ObjectName, world: &mut World) {
        let id = SecretId::new(namespace, name);
        if self.there.get(&id).is_some_and(|secret| secret.kind == kind)
            && let Some(secret) = self.there.remove(&id)
        {
            facts::secret_gone(&secret).for_each(|event| world.apply(event));
        }
    }

    /// The write for a change that the plan wants.
    pub(crate) fn write(&self, change: &CopyChange) -> Option<Write> {
        match change {
            CopyChange::Make { copy, from } => {
                tracing::info!(secret = %from, %copy, "copying a Secret");
                self.there.get(from).map(PullSecret::make_copy)
            }
            CopyChange::Remove(copy) => {
                tracing::info!(%copy, "removing a copy that no job needs");
                Some(secret::remove_copy(copy, &self.home))
            }
        }
    }
}

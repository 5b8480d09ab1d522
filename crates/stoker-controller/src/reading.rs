//! Reads the Secrets that running jobs name: one by one and by name, at once when a job begins to name one and again and again
//! while it runs. Nothing is listed or watched: the right to read a Secret can be given by namespace.

mod fitting;
mod rota;

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use stoker_api::secret::{self, PullSecret, SecretObject};
use stoker_core::world::WantedSecrets;
use stoker_core::{Clock, Key, Reference, SecretId};
use stoker_transfer::{LoginEntry, SecretKind};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub(crate) use self::fitting::Fitting;
use self::rota::Rota;
use crate::problem::Problem;
use crate::watches::Input;

/// No answer after this long is none.
const PATIENCE: Duration = Duration::from_secs(10);

/// What came of reading a Secret.
#[derive(Debug)]
pub(crate) enum Read {
    /// Its logins for the images that it was named for when it came.
    There(Fitting),
    /// It is not there, or of a type that holds no logins of registries.
    Missing,
    /// This controller may not read it.
    Forbidden,
    /// It makes no sense, and why.
    Unusable(String),
    /// There was no answer, and why.
    Failed(String),
}

impl Read {
    /// Whether it is worth looking for it again soon.
    fn is_found(&self) -> bool {
        !matches!(self, Self::Missing | Self::Forbidden)
    }
}

/// Reads until nobody asks any more.
pub(crate) async fn run(
    client: Client,
    clock: Clock,
    mut all: watch::Receiver<WantedSecrets>,
    mut now: mpsc::UnboundedReceiver<SecretId>,
    to: mpsc::Sender<Input>,
) {
    let mut rota = Rota::new(Instant::now());
    let mut reading = JoinSet::new();
    loop {
        while let Some(id) = rota.next(Instant::now()) {
            reading.spawn(read(client.clone(), id, clock(), all.clone()));
        }
        let wake = rota.wake();
        tokio::select! {
            id = now.recv() => {
                let Some(id) = id else { return };
                rota.ask(id);
            }
            changed = all.changed() => {
                if changed.is_err() {
                    return;
                }
                let wanted = all.borrow_and_update().clone();
                rota.want(wanted.keys().cloned().collect(), Instant::now());
            }
            Some(answer) = reading.join_next(), if !reading.is_empty() => {
                // Nobody cancels such a task, so it has panicked.
                let Ok((id, read, asked)) = answer else { return };
                rota.read(&id, read.is_found(), Instant::now());
                if to.send(Input::Secret(id, read, asked)).await.is_err() {
                    return;
                }
            }
            () = tokio::time::sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
        }
    }
}

/// Reads one Secret, and looks for its logins. Each read is a task of its own: a large Secret holds up no other one.
async fn read(
    client: Client,
    id: SecretId,
    asked: Timestamp,
    all: watch::Receiver<WantedSecrets>,
) -> (SecretId, Read, Timestamp) {
    let answer = if secret::is_name(&id.namespace) && secret::is_name(&id.name) {
        let api: Api<SecretObject> = Api::namespaced(client, &id.namespace);
        match tokio::time::timeout(PATIENCE, api.get_opt(&id.name)).await {
            Ok(Ok(Some(secret))) => Ok(secret),
            Ok(Ok(None)) => Err(Read::Missing),
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => Err(Read::Forbidden),
            Ok(Err(problem)) => Err(Read::Failed(Problem::Request(&problem).to_string())),
            Err(_) => Err(Read::Failed(format!("no answer after {} s", PATIENCE.as_secs()))),
        }
    } else {
        Err(Read::Missing)
    };
    let read = match answer {
        Ok(secret) => {
            // The images as they are now: whoever names another one has had the Secret asked for again.
            let wanted = all.borrow().get(&id).cloned().unwrap_or_default();
            let read = tokio::task::spawn_blocking(move || logins(secret, &wanted.images)).await;
            read.unwrap_or_else(|problem| Read::Unusable(problem.to_string()))
        }
        Err(read) => read,
    };
    (id, read, asked)
}

fn logins(secret: SecretObject, images: &BTreeMap<Key, Reference>) -> Read {
    let Some(PullSecret { kind, content, uid }) = secret.into_logins() else { return Read::Missing };
    let Some(kind) = SecretKind::of_type(kind) else { return Read::Missing };
    match LoginEntry::read(kind, &content) {
        Ok(entries) => Read::There(Fitting::new(entries, &uid, images)),
        Err(problem) => Read::Unusable(problem.to_string()),
    }
}

/// Deletes the copies of Secrets that earlier versions made in Stoker's own namespace. To be removed with the next release, together with
/// the rights for it.
pub(crate) async fn delete_copies(client: &Client, namespace: &str) {
    let api: Api<SecretObject> = Api::namespaced(client.clone(), namespace);
    let copies = match api.list_metadata(&ListParams::default().labels(secret::COPIES)).await {
        Ok(copies) => copies,
        Err(problem) => {
            let problem = Problem::Request(&problem);
            return tracing::warn!("cannot look for copies of Secrets that an earlier version made: {problem}");
        }
    };
    for copy in copies {
        let Some(name) = copy.metadata.name.filter(|name| name.starts_with(secret::COPY_PREFIX)) else { continue };
        let preconditions = Some(Preconditions { uid: copy.metadata.uid, resource_version: None });
        match api.delete(&name, &DeleteParams { preconditions, ..DeleteParams::default() }).await {
            Ok(_) => tracing::info!(name, "deleted the copy of a Secret that an earlier version made"),
            Err(problem) => {
                tracing::warn!(name, "cannot delete the copy of a Secret: {}", Problem::Request(&problem));
            }
        }
    }
}

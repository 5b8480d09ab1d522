//! Reads the Secrets that running jobs name: one by one and by name, at once when a job begins to name one and again and again
//! while it runs. Nothing is listed or watched: the right to read a Secret can be given by namespace.

mod rota;

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use stoker_api::secret::{self, PullSecret, SecretObject};
use stoker_core::{Clock, SecretId};
use stoker_transfer::{LoginEntry, SecretKind};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use self::rota::Rota;
use crate::problem::Problem;
use crate::watches::Input;

/// No answer after this long is none.
const PATIENCE: Duration = Duration::from_secs(10);

/// What came of reading a Secret.
#[derive(Debug)]
pub(crate) enum Read {
    /// Its logins, and what salts their names.
    There { entries: Vec<LoginEntry>, salt: String },
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
    mut all: watch::Receiver<BTreeSet<SecretId>>,
    mut now: mpsc::UnboundedReceiver<SecretId>,
    to: mpsc::Sender<Input>,
) {
    let mut rota = Rota::new(Instant::now());
    let mut reading = FuturesUnordered::new();
    loop {
        while let Some(id) = rota.next(Instant::now()) {
            reading.push(read(client.clone(), id, clock()));
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
                rota.want(all.borrow_and_update().clone(), Instant::now());
            }
            Some((id, read, asked)) = reading.next(), if !reading.is_empty() => {
                rota.read(&id, read.is_found(), Instant::now());
                if to.send(Input::Secret(id, read, asked)).await.is_err() {
                    return;
                }
            }
            () = tokio::time::sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
        }
    }
}

async fn read(client: Client, id: SecretId, asked: Timestamp) -> (SecretId, Read, Timestamp) {
    let read = if secret::is_name(&id.namespace) && secret::is_name(&id.name) {
        let api: Api<SecretObject> = Api::namespaced(client, &id.namespace);
        match tokio::time::timeout(PATIENCE, api.get_opt(&id.name)).await {
            Ok(Ok(Some(secret))) => logins(secret),
            Ok(Ok(None)) => Read::Missing,
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => Read::Forbidden,
            Ok(Err(problem)) => Read::Failed(Problem::Request(&problem).to_string()),
            Err(_) => Read::Failed(format!("no answer after {} s", PATIENCE.as_secs())),
        }
    } else {
        Read::Missing
    };
    (id, read, asked)
}

fn logins(secret: SecretObject) -> Read {
    let Some(PullSecret { kind, content, uid }) = secret.into_logins() else { return Read::Missing };
    let Some(kind) = SecretKind::of_type(kind) else { return Read::Missing };
    match LoginEntry::read(kind, &content) {
        Ok(entries) => Read::There { entries, salt: uid },
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

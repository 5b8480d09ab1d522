//! Reads the Secrets that running jobs name: one by one and by name, at once when a job begins to name one and again and again
//! while it runs. Nothing is listed or watched: the right to read a Secret can be given by namespace.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Preconditions};
use stoker_api::secret::{self, PullSecret};
use stoker_core::{Clock, SecretId};
use stoker_transfer::{LoginEntry, SecretKind};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::problem::Problem;
use crate::watches::Input;

/// A Secret that has changed is used within ten seconds.
const AGAIN: Duration = Duration::from_secs(8);

/// Of many Secrets this many are read in a second; they are read again less often then.
const A_SECOND: u32 = 50;

/// Requests at one time.
const AT_ONCE: usize = 8;

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

/// Reads until nobody asks any more.
pub(crate) async fn run(
    client: Client,
    clock: Clock,
    all: watch::Receiver<BTreeSet<SecretId>>,
    mut now: mpsc::UnboundedReceiver<SecretId>,
    to: mpsc::Sender<Input>,
) {
    let mut queue: VecDeque<SecretId> = VecDeque::new();
    let mut queued: BTreeSet<SecretId> = BTreeSet::new();
    let mut reading = FuturesUnordered::new();
    let mut due = Instant::now() + AGAIN;
    loop {
        while reading.len() < AT_ONCE
            && let Some(id) = queue.pop_front()
        {
            queued.remove(&id);
            reading.push(read(client.clone(), id, clock()));
        }
        tokio::select! {
            id = now.recv() => {
                let Some(id) = id else { return };
                if queued.insert(id.clone()) {
                    queue.push_front(id);
                }
            }
            Some(read) = reading.next(), if !reading.is_empty() => {
                if to.send(read).await.is_err() {
                    return;
                }
            }
            () = tokio::time::sleep_until(due) => {
                let all = all.borrow().clone();
                let many = Duration::from_secs(1) / A_SECOND * u32::try_from(all.len()).unwrap_or(u32::MAX);
                due = Instant::now() + AGAIN.max(many);
                queue.extend(all.into_iter().filter(|id| queued.insert(id.clone())));
            }
        }
    }
}

async fn read(client: Client, id: SecretId, asked: Timestamp) -> Input {
    let read = if secret::is_name(&id.namespace) && secret::is_name(&id.name) {
        let api: Api<Secret> = Api::namespaced(client, &id.namespace);
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
    Input::Secret(id, read, asked)
}

fn logins(secret: Secret) -> Read {
    let Some(PullSecret { kind, content, uid }) = PullSecret::read(secret) else { return Read::Missing };
    let Some(kind) = SecretKind::of_type(kind) else { return Read::Missing };
    match LoginEntry::read(kind, &content) {
        Ok(entries) => Read::There { entries, salt: uid },
        Err(problem) => Read::Unusable(problem.to_string()),
    }
}

/// Deletes the copies of Secrets that earlier versions made in Stoker's own namespace. To be removed with the next release, together with
/// the rights for it.
pub(crate) async fn delete_copies(client: &Client, namespace: &str) {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
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

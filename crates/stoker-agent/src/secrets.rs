//! The logins of an order: copies of Secrets by name in, from Stoker's own namespace alone; a keyring out. What is read
//! stays in memory and goes to the registry that it is for, nowhere else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::Api;
use stoker_core::step::Failure;
use stoker_core::{CopyName, Reason};
use stoker_transfer::{Keyring, SecretKind};

/// No answer after this long is as good as none; the pull is tried without.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many copies are remembered. A copy never changes, so that what is remembered is never wrong, and an order can be
/// done while the API server is away.
const MOST_KEPT: usize = 64;

type Content = Arc<(SecretKind, Vec<u8>)>;

/// Reads copies, and remembers them.
#[derive(Clone)]
pub(crate) struct Secrets {
    api: Api<Secret>,
    kept: Arc<Mutex<BTreeMap<CopyName, Content>>>,
}

/// Why a copy could not be used, in words that do not show it.
pub(crate) struct Trouble {
    pub(crate) sentence: String,
    /// Another try may help.
    pub(crate) passing: bool,
}

impl Secrets {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace), kept: Arc::default() }
    }

    /// The logins of these copies; one that cannot be used stops no other.
    pub(crate) async fn keyring(&self, copies: &[CopyName]) -> (Keyring, Vec<Trouble>) {
        let mut ring = Keyring::new();
        let mut troubles = Vec::new();
        for copy in copies {
            let added = match self.content(copy).await {
                Ok(content) => ring.add(content.0, &content.1).map_err(|problem| Trouble {
                    sentence: format!("Secret {copy} cannot be used: {problem}; make it anew"),
                    passing: false,
                }),
                Err(trouble) => Err(trouble),
            };
            if let Err(trouble) = added {
                tracing::warn!("{}", trouble.sentence);
                troubles.push(trouble);
            }
        }
        (ring, troubles)
    }

    async fn content(&self, copy: &CopyName) -> Result<Content, Trouble> {
        if let Some(content) = self.kept.lock().unwrap_or_else(PoisonError::into_inner).get(copy) {
            return Ok(content.clone());
        }
        let passing = |why: String| Trouble { sentence: format!("Secret {copy} cannot be read: {why}"), passing: true };
        let secret = match tokio::time::timeout(PATIENCE, self.api.get_opt(copy.as_str())).await {
            Ok(Ok(Some(secret))) => secret,
            Ok(Ok(None)) => return Err(passing("its copy is not there".into())),
            Ok(Err(problem)) => return Err(passing(problem.to_string())),
            Err(_) => return Err(passing(format!("no answer after {} s", PATIENCE.as_secs()))),
        };
        let kind = secret.type_.as_deref().and_then(SecretKind::of_type);
        let kind = kind.ok_or_else(|| passing("its copy is of another type".into()))?;
        let bytes = secret.data.and_then(|mut data| data.remove(kind.data_key())).unwrap_or_default().0;
        let content = Arc::new((kind, bytes));
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        kept.insert(copy.clone(), content.clone());
        Ok(content)
    }
}

/// A failure with what was wrong with the Secrets, where it is for want of a login.
pub(crate) fn explain(failure: Failure, troubles: &[Trouble]) -> Failure {
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

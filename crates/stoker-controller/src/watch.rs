//! Watches: from the API server's lists and streams to facts in one channel. Survives an API server that goes away,
//! says what vanished in between, and takes a foreign kind that is not installed for one without objects.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use kube::Api;
use kube::api::ObjectMeta;
use kube::runtime::watcher::{self, Event, watcher};
use serde::de::DeserializeOwned;
use stoker_api::DIALECTS;
use tokio::sync::mpsc;

use crate::problem::Problem;
use crate::snapshot;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Objects that are listed with one request; all of them are in memory at one time.
const PAGE: u32 = 100;

/// What a watch says of its kind.
#[derive(Debug)]
pub(crate) enum Fact<K> {
    /// The object is there, or has changed.
    There(K),
    /// No object of this namespace and name is there any more.
    Gone(ObjectName),
    /// Everything that is there has been said.
    Listed,
    /// Nothing can be heard until everything is listed again.
    Deaf,
}

impl<K> Fact<K> {
    pub(crate) fn map<T>(self, change: impl FnOnce(K) -> T) -> Fact<T> {
        match self {
            Fact::There(object) => Fact::There(change(object)),
            Fact::Gone(name) => Fact::Gone(name),
            Fact::Listed => Fact::Listed,
            Fact::Deaf => Fact::Deaf,
        }
    }
}

/// Namespace (empty for cluster-scoped kinds) and name.
pub(crate) type ObjectName = (String, String);

/// Namespace and name of an object.
pub(crate) fn name_of(meta: &ObjectMeta) -> ObjectName {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

/// Watches one kind for as long as anybody listens; `wrap` says where its facts come from. After any interruption
/// everything is listed anew: what a watch missed while it could not hear must not be guessed.
pub(crate) async fn watch<K, F>(api: Api<K>, kind: &'static str, facts: mpsc::Sender<F>, wrap: impl Fn(Fact<K>) -> F)
where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watch_some(api, kind, watcher::Config::default().page_size(PAGE), facts, wrap).await;
}

/// The same for those objects of the kind that the configuration selects.
pub(crate) async fn watch_some<K, F>(
    api: Api<K>,
    kind: &'static str,
    config: watcher::Config,
    facts: mpsc::Sender<F>,
    wrap: impl Fn(Fact<K>) -> F,
) where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut known: BTreeSet<ObjectName> = BTreeSet::new();
    let mut pause = FIRST_PAUSE;
    let mut said_missing = false;
    loop {
        let mut listing: BTreeSet<ObjectName> = BTreeSet::new();
        let mut stream = watcher(api.clone(), config.clone()).boxed();
        let problem = loop {
            let batch: Vec<Fact<K>> = match stream.try_next().await {
                Ok(None) => break None,
                Err(problem) => break Some(problem),
                Ok(Some(Event::Init)) => {
                    listing.clear();
                    continue;
                }
                Ok(Some(Event::InitApply(object))) => {
                    listing.insert(name_of(object.meta()));
                    vec![Fact::There(object)]
                }
                Ok(Some(Event::InitDone)) => {
                    (pause, said_missing) = (FIRST_PAUSE, false);
                    let gone: Vec<_> = known.difference(&listing).cloned().map(Fact::Gone).collect();
                    known = std::mem::take(&mut listing);
                    gone.into_iter().chain([Fact::Listed]).collect()
                }
                Ok(Some(Event::Apply(object))) => {
                    known.insert(name_of(object.meta()));
                    vec![Fact::There(object)]
                }
                Ok(Some(Event::Delete(object))) => {
                    let name = name_of(object.meta());
                    known.remove(&name);
                    vec![Fact::Gone(name)]
                }
            };
            for fact in batch {
                if facts.send(wrap(fact)).await.is_err() {
                    return;
                }
            }
        };
        let batch: Vec<Fact<K>> = match problem {
            Some(problem) if is_not_served(&problem) => {
                if !std::mem::replace(&mut said_missing, true) {
                    let problem = Problem::Watch(&problem);
                    match is_foreign(kind) {
                        true => tracing::info!(kind, "jobs of this kind are not served here: {problem}"),
                        false => {
                            tracing::warn!(
                                kind,
                                "not there or not ours to see; taken for empty, looked for again: {problem}"
                            );
                        }
                    }
                }
                std::mem::take(&mut known).into_iter().map(Fact::Gone).chain([Fact::Listed]).collect()
            }
            Some(problem) => {
                tracing::warn!(kind, "watch interrupted, trying again: {}", Problem::Watch(&problem));
                vec![Fact::Deaf]
            }
            None => vec![Fact::Deaf],
        };
        for fact in batch {
            if facts.send(wrap(fact)).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn is_foreign(kind: &str) -> bool {
    DIALECTS.iter().any(|dialect| dialect.kind == kind && snapshot::is_foreign(dialect))
}

/// The kind is not installed, or we may not see it: its list was refused, not merely its watch.
fn is_not_served(problem: &watcher::Error) -> bool {
    match problem {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => matches!(status.code, 403 | 404),
        _ => false,
    }
}

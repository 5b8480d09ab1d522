//! Watches: from the API server's lists and streams to facts in one channel. Survives an API server that goes away,
//! says what vanished in between, and takes a foreign kind that is not installed for one without objects.

use std::collections::BTreeSet;
use std::fmt::Debug;

use futures::{StreamExt as _, TryStreamExt as _};
use kube::Api;
use kube::api::ObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

/// What a watch says of its kind.
#[derive(Debug)]
pub(crate) enum Fact<K> {
    /// The object is there, or has changed.
    There(K),
    /// No object of this namespace and name is there any more.
    Gone(ObjectName),
    /// Everything that was there at the beginning has been said.
    Listed,
}

impl<K> Fact<K> {
    pub(crate) fn map<T>(self, change: impl FnOnce(K) -> T) -> Fact<T> {
        match self {
            Fact::There(object) => Fact::There(change(object)),
            Fact::Gone(name) => Fact::Gone(name),
            Fact::Listed => Fact::Listed,
        }
    }
}

/// Namespace (empty for cluster-scoped kinds) and name.
pub(crate) type ObjectName = (String, String);

/// Namespace and name of an object.
pub(crate) fn name_of(meta: &ObjectMeta) -> ObjectName {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

/// Watches one kind for as long as anybody listens; `wrap` says where its facts come from.
pub(crate) async fn watch<K, F>(api: Api<K>, kind: &'static str, facts: mpsc::Sender<F>, wrap: impl Fn(Fact<K>) -> F)
where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut known: BTreeSet<ObjectName> = BTreeSet::new();
    let mut listing: BTreeSet<ObjectName> = BTreeSet::new();
    let mut missing = false;
    let mut stream = watcher(api, watcher::Config::default()).default_backoff().into_stream().boxed();
    loop {
        let batch: Vec<Fact<K>> = match stream.try_next().await {
            Ok(None) => return,
            Err(problem) if is_not_installed(&problem) => {
                if missing {
                    continue;
                }
                missing = true;
                tracing::info!(kind, "not installed on this API server; looked for again from time to time");
                let gone = std::mem::take(&mut known).into_iter().map(Fact::Gone);
                gone.chain([Fact::Listed]).collect()
            }
            Err(problem) => {
                tracing::warn!(kind, "watch interrupted, trying again: {problem}");
                continue;
            }
            Ok(Some(event)) => {
                missing = false;
                match event {
                    Event::Init => {
                        listing.clear();
                        continue;
                    }
                    Event::InitApply(object) => {
                        listing.insert(name_of(object.meta()));
                        vec![Fact::There(object)]
                    }
                    Event::InitDone => {
                        let gone: Vec<_> = known.difference(&listing).cloned().map(Fact::Gone).collect();
                        known = std::mem::take(&mut listing);
                        gone.into_iter().chain([Fact::Listed]).collect()
                    }
                    Event::Apply(object) => {
                        known.insert(name_of(object.meta()));
                        vec![Fact::There(object)]
                    }
                    Event::Delete(object) => {
                        let name = name_of(object.meta());
                        known.remove(&name);
                        vec![Fact::Gone(name)]
                    }
                }
            }
        };
        for fact in batch {
            if facts.send(wrap(fact)).await.is_err() {
                return;
            }
        }
    }
}

fn is_not_installed(problem: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchStartFailed};
    match problem {
        InitialListFailed(kube::Error::Api(status)) | WatchStartFailed(kube::Error::Api(status)) => status.code == 404,
        _ => false,
    }
}

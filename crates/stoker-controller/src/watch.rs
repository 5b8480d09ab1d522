//! Watches: from the API server's lists and streams to facts in one channel. Survives an API server that goes away,
//! says what vanished in between, and takes a foreign kind that is not installed for one without objects. Of any other kind
//! a list that is refused says nothing: an API server that has just started refuses everybody, and what it hides is there.

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
use tokio::time::Instant;

use crate::problem::{Problem, Said};
use crate::snapshot;

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A foreign kind that could be seen and is refused for this long is not ours to see any more.
const REFUSED_FOR_GOOD: Duration = Duration::from_secs(60);

/// Objects that are listed with one request; all of them are in memory at one time, and a NodePreheat of 20 images takes a few
/// hundred KiB there, until what is kept of it is taken out.
const PAGE: u32 = 20;

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
    let mut lists = Lists::new(kind);
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
                    pause = FIRST_PAUSE;
                    lists.worked();
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
            Some(problem) if lists.failed(&problem) => {
                std::mem::take(&mut known).into_iter().map(Fact::Gone).chain([Fact::Listed]).collect()
            }
            Some(_) | None => vec![Fact::Deaf],
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

/// How the lists of one kind went so far.
struct Lists {
    kind: &'static str,
    /// One did, and its kind was not taken for empty since.
    worked: bool,
    /// Since when they are refused.
    refused: Option<Instant>,
    said: Said,
}

impl Lists {
    fn new(kind: &'static str) -> Self {
        Self { kind, worked: false, refused: None, said: Said::default() }
    }

    fn worked(&mut self) {
        (self.worked, self.refused) = (true, None);
        self.said.forget();
    }

    /// A watch broke off. Says why, and whether that is as good as a list of nothing: only of another project's kind, which
    /// is not installed or not ours to see. Who has no right to a kind hears that first, kind or no kind; but one that could be
    /// seen a moment ago is still there.
    fn failed(&mut self, problem: &watcher::Error) -> bool {
        let (kind, code) = (self.kind, refusal(problem));
        self.refused = (code == Some(403)).then(|| self.refused.unwrap_or_else(Instant::now));
        let for_good = self.refused.is_some_and(|since| since.elapsed() >= REFUSED_FOR_GOOD);
        let nothing = is_foreign(kind) && (code == Some(404) || code == Some(403) && (!self.worked || for_good));
        self.worked &= !nothing;
        let text = match code {
            _ if nothing => "jobs of this kind are not served here",
            Some(403) => "nothing is planned until this may be listed; `stoker install` prints the roles that allow it",
            Some(404) => {
                "nothing is planned until this is served; `stoker install` prints the definitions of our kinds"
            }
            _ => "watch interrupted, trying again",
        };
        let text = format!("{text}: {}", Problem::Watch(problem));
        match (self.said.is_new(&text), nothing) {
            (true, false) => tracing::warn!(kind, "{text}"),
            (true, true) => tracing::info!(kind, "{text}"),
            (false, _) => tracing::debug!(kind, "{text}"),
        }
        nothing
    }
}

fn is_foreign(kind: &str) -> bool {
    DIALECTS.iter().any(|dialect| dialect.kind == kind && snapshot::is_foreign(dialect))
}

/// What a list was refused with; that of a watch alone is another matter.
fn refusal(problem: &watcher::Error) -> Option<u16> {
    match problem {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn refused(code: u16) -> watcher::Error {
        watcher::Error::InitialListFailed(kube::Error::Api(Status::failure("no", "Refused").with_code(code).boxed()))
    }

    fn foreign() -> &'static str {
        DIALECTS.iter().map(|dialect| dialect.kind).find(|kind| is_foreign(kind)).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_foreign_kind_that_is_refused_or_missing_has_no_objects() {
        for kind in ["Node", "NodePreheat", "Preheat", "kubernetes.io/dockerconfigjson", "Lease"] {
            for code in [403, 404, 500] {
                assert!(!Lists::new(kind).failed(&refused(code)), "{kind} {code}");
            }
        }
        for (code, nothing) in [(403, true), (404, true), (500, false), (429, false)] {
            assert_eq!(Lists::new(foreign()).failed(&refused(code)), nothing, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_foreign_kind_that_could_be_seen_is_not_forgotten_at_the_first_refusal() {
        let mut lists = Lists::new(foreign());
        lists.worked();
        assert!(!lists.failed(&refused(403)));
        tokio::time::advance(REFUSED_FOR_GOOD).await;
        assert!(!lists.failed(&refused(500)), "another trouble begins the count anew");
        assert!(!lists.failed(&refused(403)));
        tokio::time::advance(REFUSED_FOR_GOOD).await;
        assert!(lists.failed(&refused(403)), "the right was taken away");
        assert!(lists.failed(&refused(403)));
        lists.worked();
        assert!(!lists.failed(&refused(403)), "it was given again");
        assert!(lists.failed(&refused(404)), "the kind was uninstalled");
    }
}

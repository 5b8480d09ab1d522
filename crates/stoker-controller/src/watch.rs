//! Watches: from the API server's lists and streams to facts in one channel. Survives an API server that goes away,
//! says what vanished in between, and which kinds are not installed or not ours to see where that is no fault. Of any other kind
//! a list that is refused says nothing: an API server that has just started refuses everybody, and what it hides is there.
//!
//! A connection that breaks costs no list: the next watch goes on after the last version that was heard. From the break until
//! that watch has told what was missed, its listener knows that it is deaf (docs/decisions/0016).

mod lists;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::Api;
use kube::api::{ApiResource, ListParams, ObjectMeta, WatchEvent, WatchParams};
use kube::core::Status;
use kube::runtime::watcher::Error;
use serde::de::DeserializeOwned;
use stoker_api::view::ObjectName;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use self::lists::Lists;
use crate::moment::{Moments, Source};

const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// A kind whose CRD was installed is noticed after this long at the latest, and served within 30 s.
const LONGEST_PAUSE: Duration = Duration::from_secs(25);

/// A watch that could not be begun again for this long is not resumed: whoever answers by then may be an API server with an
/// older state, and a real one takes a version that it has not reached yet for one to wait for, in silence.
const RESUMED_WITHIN: Duration = Duration::from_secs(5);

/// A watch that is not begun after this long is an interruption.
const BEGUN_WITHIN: Duration = Duration::from_secs(1);
/// No answer after this long is as good as a broken connection.
const PATIENCE: Duration = Duration::from_secs(30);
/// A watch asks for an end after 290 s. One without any word for longer is on a connection that died unnoticed.
const DEAD_AFTER: Duration = Duration::from_secs(295);

/// What was missed comes at once when a watch is resumed. After so long a pause in it, it has come.
const CAUGHT_UP_AFTER: Duration = Duration::from_secs(1);
/// Where there is no pause because everything changes all the time, what was missed has come by then.
const CAUGHT_UP_WITHIN: Duration = Duration::from_secs(10);

/// Objects that are listed with one request, unless the kind says another number.
const PAGE: u32 = 500;

/// What a watch says of its kind.
#[derive(Debug)]
pub(crate) enum Fact<K> {
    /// The object is there, or has changed.
    There(K, Source),
    /// No object of this namespace and name is there any more.
    Gone(ObjectName),
    /// Everything that is there has been said.
    Listed,
    /// Nothing can be heard, until everything is listed again or the watch is resumed.
    Deaf,
    /// Everything that happened since it became deaf has been said.
    Resumed,
    /// There is no such kind here, or it is not ours to see, and that is no fault; nothing is there any more.
    Refused,
}

impl<K> Fact<K> {
    pub(crate) fn map<T>(self, change: impl FnOnce(K) -> T) -> Fact<T> {
        match self {
            Fact::There(object, source) => Fact::There(change(object), source),
            Fact::Gone(name) => Fact::Gone(name),
            Fact::Listed => Fact::Listed,
            Fact::Deaf => Fact::Deaf,
            Fact::Resumed => Fact::Resumed,
            Fact::Refused => Fact::Refused,
        }
    }
}

/// Namespace and name of an object.
fn name_of(meta: &ObjectMeta) -> ObjectName {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

/// What to watch.
pub(crate) struct Watch<K> {
    /// The same objects in versions of their API, the newest first.
    apis: Vec<Api<K>>,
    kind: &'static str,
    moments: Moments,
    page: u32,
    labels: Option<String>,
    fields: Option<String>,
    /// Whether it is no fault if there is no such kind, or if it is not ours to see.
    may_be_refused: bool,
    /// The kind, where it is no fault if there is none. That it is not ours to see is one.
    may_be_absent: Option<ApiResource>,
}

/// Why a list or a watch is over.
enum End {
    /// Nobody listens any more.
    Unheard,
    /// Everything must be listed anew.
    Broken(Error),
}

/// Where facts go, each as `wrap` makes it of the fact and the version that was read.
struct Voice<F, W> {
    facts: mpsc::Sender<F>,
    wrap: W,
    /// The version that is served.
    version: usize,
    /// It was said that nothing can be heard.
    deaf: bool,
}

impl<F, W> Voice<F, W> {
    async fn say<K>(&mut self, fact: Fact<K>) -> Result<(), End>
    where
        W: Fn(Fact<K>, usize) -> F,
    {
        match fact {
            Fact::Deaf if self.deaf => return Ok(()),
            Fact::Resumed if !self.deaf => return Ok(()),
            Fact::Deaf => self.deaf = true,
            Fact::Listed | Fact::Resumed | Fact::Refused => self.deaf = false,
            Fact::There(..) | Fact::Gone(_) => {}
        }
        let fact = (self.wrap)(fact, self.version);
        self.facts.send(fact).await.map_err(|_| End::Unheard)
    }
}

impl<K> Watch<K>
where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    pub(crate) fn new(apis: Vec<Api<K>>, kind: &'static str, moments: &Moments) -> Self {
        let (moments, page) = (moments.clone(), PAGE);
        Self { apis, kind, moments, page, labels: None, fields: None, may_be_refused: false, may_be_absent: None }
    }

    /// Only objects with these labels, and with these fields where any are named.
    pub(crate) fn selecting(self, labels: &str, fields: Option<&str>) -> Self {
        let labels = Some(labels).filter(|labels| !labels.is_empty()).map(str::to_owned);
        Self { labels, fields: fields.map(str::to_owned), ..self }
    }

    /// Nobody need install this kind, or let us see it.
    pub(crate) fn may_be_refused(self) -> Self {
        Self { may_be_refused: true, ..self }
    }

    /// Nobody need install this kind; but where it is installed nothing goes on unless it can be seen.
    pub(crate) fn may_be_absent(self, kind: ApiResource) -> Self {
        Self { may_be_absent: Some(kind), ..self }
    }

    /// So many objects are listed with one request; all of them are in memory at one time.
    pub(crate) fn page(self, page: u32) -> Self {
        Self { page, ..self }
    }

    /// Watches for as long as anybody listens; `wrap` says where its facts come from.
    pub(crate) async fn run<F, W: Fn(Fact<K>, usize) -> F>(self, facts: mpsc::Sender<F>, wrap: W) {
        let mut voice = Voice { facts, wrap, version: 0, deaf: false };
        let mut known: BTreeSet<ObjectName> = BTreeSet::new();
        let mut pause = FIRST_PAUSE;
        let mut lists = Lists::new(self.kind, self.may_be_refused, self.may_be_absent.is_some());
        loop {
            let end = match self.list(&mut known, &mut voice).await {
                Ok(version) => {
                    pause = FIRST_PAUSE;
                    lists.worked();
                    self.follow(version, &mut known, &mut lists, &mut voice).await
                }
                Err(end) => end,
            };
            let End::Broken(problem) = end else { return };
            let batch: Vec<Fact<K>> = match lists.failed(&problem) {
                // First that it is refused: objects that can be seen no more, one after the other, are not objects that are gone.
                true => {
                    [Fact::Refused].into_iter().chain(std::mem::take(&mut known).into_iter().map(Fact::Gone)).collect()
                }
                false => vec![Fact::Deaf],
            };
            for fact in batch {
                if voice.say(fact).await.is_err() {
                    return;
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn api(&self, version: usize) -> Result<&Api<K>, End> {
        self.apis.get(version).ok_or(End::Unheard)
    }

    /// The same problem; or that there is no such kind, where that is no fault and the API server says it. Who has no right to a kind hears
    /// that first, kind or no kind. That a list is not found says less than that no such kind is served: an API server that has just started may serve the kind in
    /// a moment.
    async fn as_absent(&self, problem: kube::Error) -> kube::Error {
        let refused = matches!(code(&problem), Some(403 | 404));
        let (Some(kind), Some(api)) = (self.may_be_absent.as_ref().filter(|_| refused), self.apis.first()) else {
            return problem;
        };
        // Everybody may ask which kinds there are.
        let served = api.clone().into_client().list_api_group_resources(&kind.api_version).await;
        let is_there = match &served {
            Ok(served) => served.resources.iter().any(|resource| resource.name == kind.plural),
            Err(problem) => code(problem) != Some(404),
        };
        match is_there {
            true if code(&problem) == Some(404) => nothing("the kind is served, and its objects are not found"),
            true => problem,
            false => kube::Error::Api(Status::failure("there is no such kind", "NotFound").with_code(404).boxed()),
        }
    }

    /// Whether objects can be listed in this version.
    async fn serves(&self, version: usize) -> bool {
        let one = ListParams::default().limit(1);
        match self.apis.get(version) {
            Some(api) => api.list(&one).await.is_ok(),
            None => false,
        }
    }

    /// Says everything that is there, and what is there no more. Returns the version after which a watch begins.
    async fn list<F, W: Fn(Fact<K>, usize) -> F>(
        &self,
        known: &mut BTreeSet<ObjectName>,
        voice: &mut Voice<F, W>,
    ) -> Result<String, End> {
        let mut params = ListParams::default().limit(self.page);
        (params.label_selector, params.field_selector) = (self.labels.clone(), self.fields.clone());
        let mut listing: BTreeSet<ObjectName> = BTreeSet::new();
        // Before it is sent: what was known by now, the answer knows too.
        let asked = self.moments.now();
        let version = loop {
            let page = match self.api(voice.version)?.list(&params).await {
                // Not served in this version. Where it is in none, the newest is tried first the next time.
                Err(problem) if code(&problem) == Some(404) && voice.version + 1 < self.apis.len() => {
                    voice.version += 1;
                    params.continue_token = None;
                    continue;
                }
                Err(problem) => {
                    voice.version = 0;
                    let problem = self.as_absent(problem).await;
                    return Err(End::Broken(Error::InitialListFailed(problem)));
                }
                Ok(page) => page,
            };
            // A kind that was installed between the two requests is served in the newer version, too. Whoever looks for Events of an object
            // finds those that name the version that the API server prefers.
            if params.continue_token.is_none() && voice.version > 0 && self.serves(voice.version - 1).await {
                voice.version -= 1;
                continue;
            }
            for object in page.items {
                listing.insert(name_of(object.meta()));
                voice.say(Fact::There(object, Source::List(asked))).await?;
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                break page.metadata.resource_version;
            }
        };
        let version = version.filter(|version| !version.is_empty()).ok_or(End::Broken(Error::NoResourceVersion))?;
        for name in known.difference(&listing) {
            voice.say(Fact::Gone(name.clone())).await?;
        }
        *known = listing;
        voice.say(Fact::Listed).await?;
        Ok(version)
    }

    /// Says what happens after this version, over as many connections as that takes. Returns why it can go on no more.
    async fn follow<F, W: Fn(Fact<K>, usize) -> F>(
        &self,
        mut version: String,
        known: &mut BTreeSet<ObjectName>,
        lists: &mut Lists,
        voice: &mut Voice<F, W>,
    ) -> End {
        let mut pause = FIRST_PAUSE;
        // When an API server was last known to be there.
        let mut alive = Instant::now();
        loop {
            let problem = match self.begin(&version, voice).await {
                Err(end) => return end,
                Ok(Ok(stream)) => {
                    let begun = Instant::now();
                    let cut = match self.hear(stream, &mut version, known, voice).await {
                        Ok(cut) => cut,
                        Err(end) => return end,
                    };
                    alive = Instant::now();
                    let lasted = begun.elapsed();
                    if lasted > LONGEST_PAUSE {
                        pause = FIRST_PAUSE;
                        lists.resumed();
                    }
                    match cut {
                        Some(problem) => Error::WatchFailed(problem),
                        // API servers end watches after some minutes: that is no trouble.
                        None if lasted > FIRST_PAUSE => continue,
                        None => Error::WatchFailed(nothing("the connection ended at once")),
                    }
                }
                Ok(Err(problem)) => {
                    match code(&problem) {
                        // It has too much to do, and a list would be more.
                        Some(429) => alive = Instant::now(),
                        // The list says what this means.
                        Some(code) if code < 500 => return End::Broken(Error::WatchStartFailed(problem)),
                        _ if alive.elapsed() + pause > RESUMED_WITHIN => {
                            return End::Broken(Error::WatchStartFailed(problem));
                        }
                        _ => {}
                    }
                    Error::WatchStartFailed(problem)
                }
            };
            lists.interrupted(&problem);
            if let Err(end) = voice.say(Fact::Deaf).await {
                return end;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Begins a watch after this version. While that takes longer than usual, nothing is heard.
    async fn begin<F, W: Fn(Fact<K>, usize) -> F>(
        &self,
        version: &str,
        voice: &mut Voice<F, W>,
    ) -> Result<kube::Result<BoxStream<'static, kube::Result<WatchEvent<K>>>>, End> {
        let params = WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            ..WatchParams::default()
        };
        let mut begun = pin!(self.api(voice.version)?.watch(&params, version));
        let answer = match timeout(BEGUN_WITHIN, &mut begun).await {
            Ok(answer) => answer,
            Err(_) => {
                voice.say(Fact::Deaf).await?;
                let late = timeout(PATIENCE, begun).await;
                late.unwrap_or_else(|_| Err(nothing(&format!("no answer after {} s", PATIENCE.as_secs()))))
            }
        };
        Ok(answer.map(|stream| stream.boxed()))
    }

    /// Says what one connection tells, and moves the version along. Returns when it has ended, with the problem where it was
    /// cut off.
    async fn hear<F, W: Fn(Fact<K>, usize) -> F>(
        &self,
        mut stream: BoxStream<'static, kube::Result<WatchEvent<K>>>,
        version: &mut String,
        known: &mut BTreeSet<ObjectName>,
        voice: &mut Voice<F, W>,
    ) -> Result<Option<kube::Error>, End> {
        let begun = Instant::now();
        let mut heard = begun;
        loop {
            let caught_up = (heard + CAUGHT_UP_AFTER).min(begun + CAUGHT_UP_WITHIN);
            let event = tokio::select! {
                // What is there to be heard comes before any time that has passed: it may have passed in telling.
                biased;
                event = stream.next() => event,
                () = sleep_until(caught_up), if voice.deaf => {
                    voice.say(Fact::Resumed).await?;
                    continue;
                }
                () = sleep_until(heard + DEAD_AFTER) => {
                    let problem = nothing(&format!("no word for {} s", DEAD_AFTER.as_secs()));
                    return Err(End::Broken(Error::WatchFailed(problem)));
                }
            };
            heard = Instant::now();
            let (fact, newest) = match event {
                None => return Ok(None),
                Some(Err(problem)) => return Ok(Some(problem)),
                // The version is too old; or something that may be the same with the same version again.
                Some(Ok(WatchEvent::Error(status))) => return Err(End::Broken(Error::WatchError(status))),
                Some(Ok(WatchEvent::Bookmark(bookmark))) => (Fact::Resumed, Some(bookmark.metadata.resource_version)),
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    let newest = object.meta().resource_version.clone();
                    known.insert(name_of(object.meta()));
                    (Fact::There(object, Source::Watch), newest)
                }
                Some(Ok(WatchEvent::Deleted(object))) => {
                    let name = name_of(object.meta());
                    known.remove(&name);
                    (Fact::Gone(name), object.meta().resource_version.clone())
                }
            };
            *version = newest.filter(|version| !version.is_empty()).ok_or(End::Broken(Error::NoResourceVersion))?;
            voice.say(fact).await?;
        }
    }
}

/// No answer, or none that makes sense.
fn nothing(problem: &str) -> kube::Error {
    kube::Error::Service(problem.into())
}

/// What a request was refused with.
fn code(problem: &kube::Error) -> Option<u16> {
    match problem {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

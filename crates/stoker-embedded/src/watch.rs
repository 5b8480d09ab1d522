//! Watches. In: a subscription. Out: a stream of JSON lines, each event serialised once for all who watch it in its stored
//! form, and parsed only for those who select by content or want another form. A watcher that is too slow, a cancelled server and
//! the client's time-out end the stream; no task runs behind it.

use crate::encode::Encoder;
use crate::object::Object;
use crate::read::{Filter, refuse};
use crate::refusal::{Cause, Refusal};
use crate::request::Query;
use crate::store::{Event, Scope, Start, Store, Subscription};
use crate::write::Target;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{Stream, stream};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often an idle watch says where it is.
const BOOKMARK: Duration = Duration::from_secs(60);
/// The longest watch; a client that asked for no end comes again.
const LONGEST: Duration = Duration::from_secs(60 * 60);
/// Marks the end of the initial state.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// One running watch.
pub(crate) struct Watch {
    store: Arc<Store>,
    subscription: Subscription,
    filter: Filter,
    encoder: Encoder,
    bookmarks: bool,
    ready: VecDeque<Bytes>,
    deadline: Instant,
    next_bookmark: Instant,
    until: CancellationToken,
    ended: bool,
}

/// Begins a watch. What a real server says in the stream (a version too old) is said in the stream.
pub(crate) fn begin(
    store: &Arc<Store>,
    target: &Target,
    query: &Query,
    encoder: Encoder,
    until: CancellationToken,
) -> Result<Watch, Refusal> {
    let filter = Filter::new(query, &target.served)?;
    check(query, target)?;
    let initial = query.initial_events;
    let start = match query.resource_version {
        None | Some(0) if initial != Some(false) => Start::State,
        Some(_) if initial == Some(true) => Start::State,
        None | Some(0) => Start::After(store.revision()),
        Some(revision) => Start::After(revision),
    };
    let name = (!target.name.is_empty()).then_some(target.name.as_str()).or(query.pinned("metadata.name"));
    let namespace = Some(target.namespace.as_str()).filter(|n| !n.is_empty());
    let scope = Scope {
        namespace: namespace.or(query.pinned("metadata.namespace")).map(str::to_owned),
        name: name.map(str::to_owned),
    };
    let wanted = query.resource_version.unwrap_or(0);
    let too_old = |unknown| match refuse(unknown, wanted, false) {
        // Later than everything: the client knows another life of this server and must list again.
        refusal if refusal.code == 504 => Refusal::expired(refusal.message),
        refusal => refusal,
    };
    let table = &target.served.kind.table;
    let subscription = store.subscribe(table, scope, start).map_err(too_old)?;
    let now = Instant::now();
    let mut watch = Watch {
        store: store.clone(),
        subscription,
        filter,
        encoder,
        bookmarks: query.bookmarks,
        ready: VecDeque::new(),
        deadline: now + query.timeout.unwrap_or(LONGEST).min(LONGEST),
        next_bookmark: now + BOOKMARK,
        until,
        ended: false,
    };
    // A client that takes bookmarks is told where the state ends, whether it asked for that or not.
    watch.replay(initial == Some(true) || matches!(start, Start::State) && query.bookmarks);
    Ok(watch)
}

fn check(query: &Query, target: &Target) -> Result<(), Refusal> {
    let wrong = match query.initial_events {
        Some(_) if !query.not_older => "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        Some(true) if !query.bookmarks => "sendInitialEvents requires allowWatchBookmarks to be true",
        None if query.not_older || query.exact => {
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        }
        _ => return Ok(()),
    };
    let mut about = target.about();
    (about.group, about.kind) = ("meta.k8s.io", "ListOptions");
    let cause = Cause::forbidden("resourceVersionMatch", wrong);
    Err(Refusal::invalid(about, &[cause]))
}

/// The one event of a watch that begins too early.
pub(crate) fn error_line(refusal: &Refusal) -> Bytes {
    line("ERROR", refusal.status().to_string().as_bytes())
}

impl Watch {
    fn replay(&mut self, mark_end: bool) {
        let state = std::mem::take(&mut self.subscription.state);
        for object in state.iter().filter(|object| self.filter.matches(object)) {
            self.ready.push_back(line("ADDED", &self.encoder.event(object)));
        }
        if mark_end {
            self.bookmark(self.subscription.revision, json!({ INITIAL_END: "true" }));
        }
        for event in std::mem::take(&mut self.subscription.missed) {
            self.tell(&event);
        }
    }

    /// An object that begins to match appears, one that ceases to match disappears.
    fn tell(&mut self, event: &Event) {
        let (before, was, is) = match self.filter.of_names_alone() {
            true => {
                let fits = self.filter.fits_key(&event.key);
                (None, fits && event.existed(), fits && !event.removed)
            }
            false => {
                let fits = |object: &Arc<Object>| self.filter.matches(object);
                let before = event.before();
                let was = before.as_ref().is_some_and(fits);
                let is = !event.removed && event.after().as_ref().is_some_and(fits);
                (before, was, is)
            }
        };
        let kind = match (was, is) {
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
            (false, false) => return,
        };
        let encoded = match before {
            // It left the selection: the client gets the last state it may see, with this event's version.
            Some(before) if !event.removed && !is => {
                Some(self.encoder.event(&Arc::new(Object::seal(before.value.clone(), event.revision))))
            }
            _ if self.encoder.takes_stored_form() => Some(event.json()),
            _ => event.after().map(|after| self.encoder.event(&after)),
        };
        self.ready.extend(encoded.map(|encoded| line(kind, &encoded)));
    }

    fn bookmark(&mut self, revision: u64, annotations: Value) {
        let mut object = self.encoder.empty();
        object["metadata"] = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if !annotations.is_null() {
            object["metadata"]["annotations"] = annotations;
        }
        let line = line("BOOKMARK", self.encoder.bookmark(object).to_string().as_bytes());
        self.ready.push_back(line);
    }

    /// A bookmark may only name a revision when everything up to it was sent.
    fn catch_up_and_mark(&mut self) {
        let revision = self.store.revision();
        while let Some(event) = self.subscription.queue.try_recv() {
            self.tell(&event);
        }
        if self.bookmarks {
            self.bookmark(revision, Value::Null);
        }
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(first) = self.ready.pop_front() {
                return Some(self.joined(first));
            }
            if self.ended {
                return None;
            }
            let wake = if self.bookmarks { self.deadline.min(self.next_bookmark) } else { self.deadline };
            tokio::select! {
                biased;
                () = self.until.cancelled() => self.ended = true,
                event = self.subscription.queue.recv() => match event {
                    Some(event) => self.tell(&event),
                    None => {
                        // Too slow, or the kind is gone: either way the client must list again.
                        let refusal = Refusal::expired("the watch fell behind; list again");
                        self.ready.push_back(error_line(&refusal));
                        self.ended = true;
                    }
                },
                () = tokio::time::sleep_until(wake) => {
                    self.catch_up_and_mark();
                    self.next_bookmark = Instant::now() + BOOKMARK;
                    self.ended = wake >= self.deadline;
                }
            }
        }
    }

    /// Lines that are ready together go together, up to a sensible size.
    fn joined(&mut self, first: Bytes) -> Bytes {
        const ENOUGH: usize = 64 * 1024;
        while let Some(event) = self.subscription.queue.try_recv() {
            self.tell(&event);
            if self.ready.len() >= 64 {
                break;
            }
        }
        if self.ready.is_empty() || first.len() >= ENOUGH {
            return first;
        }
        let mut joined = BytesMut::from(first.as_ref());
        while joined.len() < ENOUGH {
            let Some(line) = self.ready.pop_front() else { break };
            joined.put(line);
        }
        joined.freeze()
    }

    /// The body of the response.
    pub(crate) fn into_stream(self) -> impl Stream<Item = Bytes> + Send {
        stream::unfold(self, |mut watch| async move { watch.next().await.map(|line| (line, watch)) })
    }
}

fn line(kind: &str, object: &[u8]) -> Bytes {
    let mut line = BytesMut::with_capacity(object.len() + 32);
    line.put_slice(b"{\"type\":\"");
    line.put_slice(kind.as_bytes());
    line.put_slice(b"\",\"object\":");
    line.put_slice(object);
    line.put_slice(b"}\n");
    line.freeze()
}

//! Blobs into containerd's content store, while they grow.
//!
//! They are written under containerd's own names for unfinished ones, so that a pull of the kubelet's waits for ours, and ours goes on
//! where its did. A source that says nothing for a while, or hardly anything, does not hold that name: others may want it. A part whose
//! digest nobody could check goes first. A blob of which all bytes are here does not wait for a name that others hold: it has one of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use oci_spec::image::{Descriptor, MediaType};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::lease::Lease;
use super::session::LayerTrouble;
use super::{ContainerdInner, ObjectLabels};
use crate::grpc::{Error, RuntimeErrorKind};
use crate::wire::containerd::services::content::v1 as wire;
use wire::WriteAction;
use wire::content_client::ContentClient;

/// A source that is silent for this long lets go of containerd's writer, and so does one that sends fewer bytes than [`LEAST`] a second.
const SILENCE: Duration = Duration::from_secs(5);
/// To wait until all bytes are here costs little at this rate: they are copied in a hundredth of the time in which they came.
const LEAST: i64 = 1 << 20;
/// How soon to look again whether another writer has let go.
const HELD: Duration = Duration::from_millis(300);

/// How a blob is read from an offset on.
pub(crate) type Open<'a, E> = dyn Fn(u64) -> BoxStream<'static, Result<Bytes, E>> + Send + Sync + 'a;

/// Whether a source is held back now.
pub(crate) type HeldBack<'a> = dyn Fn() -> bool + Send + Sync + 'a;

/// Where the bytes of a blob come from.
pub(super) struct Feed<'a, E> {
    pub(super) open: &'a Open<'a, E>,
    /// Whether somebody holds the bytes back now.
    pub(super) slow: &'a HeldBack<'a>,
    /// Ends when all of them are there; gone once it was waited for.
    pub(super) complete: Option<BoxFuture<'a, Result<(), E>>>,
    /// How many of them containerd has.
    pub(super) taken: &'a AtomicU64,
}

/// How a write ended without an error.
enum IngestEnd {
    Committed,
    /// The content is there, or is being written by somebody else.
    Exists,
    Held,
    /// The source was silent after this many bytes.
    Silent(u64),
    /// Somebody began to hold the source back, or it sends too little.
    Slow,
}

/// A blob on its way into the store.
struct Ingest<'a> {
    lease: &'a Lease,
    blob: &'a Descriptor,
    labels: &'a ObjectLabels,
    /// What containerd calls it until it is there.
    name: String,
}

/// Whether a source sends enough.
struct Flow {
    since: Instant,
    from: i64,
}

impl Flow {
    /// Looks once in a while, when all bytes up to this one have come.
    fn is_slow(&mut self, at: i64, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since);
        if passed < SILENCE {
            return false;
        }
        let enough = LEAST.saturating_mul(i64::try_from(passed.as_secs()).unwrap_or(i64::MAX));
        let slow = at.saturating_sub(self.from) < enough;
        *self = Self { since: now, from: at };
        slow
    }
}

type WriteStream = (mpsc::Sender<wire::WriteContentRequest>, tonic::Streaming<wire::WriteContentResponse>);

/// A writer of containerd's. Its name is free when this is dropped.
///
/// The bytes of a blob are checked when all of them are here. Whoever went on with a part that is wrong would fail at the end, and
/// each time again. So the part is removed before the name is free.
struct Writer {
    stream: Option<WriteStream>,
    /// Whether a part was written that may be wrong.
    unchecked: bool,
    /// What removes it.
    abort: Option<(ContentClient<tonic::transport::Channel>, tonic::Request<wire::AbortRequest>)>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        let (stream, abort) = (self.stream.take(), self.abort.take().filter(|_| self.unchecked));
        // A pull that is stopped cannot wait. This ends when containerd has answered, or not in time.
        if let (Some((mut content, request)), Ok(runtime)) = (abort, tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move {
                let _ = content.abort(request).await;
                drop(stream);
            });
        }
    }
}

impl<E> Feed<'_, E> {
    /// Whether all bytes are here.
    fn is_complete(&mut self) -> Result<bool, E> {
        if let Some(complete) = &mut self.complete
            && let Some(ended) = complete.now_or_never()
        {
            self.complete = None;
            ended?;
        }
        Ok(self.complete.is_none())
    }
}

impl ContainerdInner {
    /// How much of a blob is there that nobody has finished.
    pub(super) async fn begun(&self, blob: &Descriptor) -> Result<u64, Error> {
        match self.content().status(self.ask(wire::StatusRequest { r#ref: unfinished(blob) })).await {
            Ok(answer) => {
                let offset = answer.into_inner().status.map_or(0, |status| status.offset);
                Ok(u64::try_from(offset).unwrap_or(0))
            }
            Err(status) if RuntimeErrorKind::of(&status) == RuntimeErrorKind::NotFound => Ok(0),
            Err(status) => Err(self.failed(format!("look how far {} is", blob.digest()), &status)),
        }
    }

    /// Brings a blob in, from wherever containerd has got to with it. One that is held back, or hardly comes, is waited for first: a
    /// slow writer would make others wait.
    pub(super) async fn import<E>(
        &self,
        lease: &Lease,
        blob: &Descriptor,
        labels: &ObjectLabels,
        feed: &mut Feed<'_, E>,
    ) -> Result<(), LayerTrouble<E>> {
        let mut ingest = Ingest { lease, blob, labels, name: unfinished(blob) };
        let own = || format!("{}-{}", unfinished(blob), lease.id);
        let (mut begun_anew, mut held) = (false, None);
        let (mut silent, mut slow) = (false, false);
        loop {
            if (slow || (feed.slow)())
                && let Some(complete) = feed.complete.take()
            {
                complete.await.map_err(LayerTrouble::Source)?;
            }
            if self.keep(lease, blob, labels).await? {
                feed.taken.store(blob.size(), Ordering::Relaxed);
                return Ok(());
            }
            match self.write(&ingest, feed).await {
                Ok(IngestEnd::Committed) => return Ok(()),
                Ok(IngestEnd::Exists) => {}
                // Nothing is held while we wait for the source to say more: its turn to be fetched may not have come yet.
                Ok(IngestEnd::Silent(at)) if !silent => {
                    silent = true;
                    if let Some(Err(problem)) = (feed.open)(at).next().await {
                        return Err(LayerTrouble::Source(problem));
                    }
                }
                Ok(IngestEnd::Silent(_) | IngestEnd::Slow) => slow = true,
                Ok(IngestEnd::Held) => {
                    let complete = feed.is_complete().map_err(LayerTrouble::Source)?;
                    if complete && held.get_or_insert_with(Instant::now).elapsed() >= SILENCE {
                        ingest.name = own();
                    }
                    tokio::time::sleep(HELD).await;
                }
                // What was there before our bytes was wrong: everything once more, where nobody else writes.
                Err(LayerTrouble::Runtime(error)) if error.kind == RuntimeErrorKind::Corrupt && !begun_anew => {
                    begun_anew = true;
                    self.abort(&ingest).await?;
                    ingest.name = own();
                }
                Err(trouble) => return Err(trouble),
            }
        }
    }

    async fn abort(&self, ingest: &Ingest<'_>) -> Result<(), Error> {
        let request = self.ask(wire::AbortRequest { r#ref: ingest.name.clone() });
        match self.content().abort(request).await {
            Err(status) if RuntimeErrorKind::of(&status) != RuntimeErrorKind::NotFound => {
                Err(self.failed(format!("forget its half of {}", ingest.blob.digest()), &status))
            }
            _ => Ok(()),
        }
    }

    /// One write stream, to its end.
    async fn write<E>(&self, ingest: &Ingest<'_>, feed: &mut Feed<'_, E>) -> Result<IngestEnd, LayerTrouble<E>> {
        let Ingest { lease, blob, labels, name } = ingest;
        // One that is complete is as fast as it can be.
        let (open, slow, taken, waits) = (feed.open, feed.slow, feed.taken, feed.complete.is_some());
        let total = i64::try_from(blob.size()).unwrap_or(i64::MAX);
        let message = |action: WriteAction, offset: i64, data: Bytes| wire::WriteContentRequest {
            action: action.into(),
            r#ref: name.clone(),
            total,
            expected: blob.digest().to_string(),
            offset,
            data,
            labels: if action == WriteAction::Commit { (*labels).clone() } else { ObjectLabels::new() },
        };
        let ended = |status: tonic::Status| match RuntimeErrorKind::of(&status) {
            RuntimeErrorKind::Exists => Ok(IngestEnd::Exists),
            RuntimeErrorKind::Held => Ok(IngestEnd::Held),
            _ => Err(LayerTrouble::Runtime(self.failed(format!("take {} in", blob.digest()), &status))),
        };
        let (to, messages) = mpsc::channel(2);
        let _ = to.send(message(WriteAction::Stat, 0, Bytes::new())).await;
        let messages = futures::stream::unfold(messages, |mut messages| async move {
            messages.recv().await.map(|message| (message, messages))
        });
        let mut answers = match self.content().write(self.leased(messages, &lease.header)).await {
            Ok(answers) => answers.into_inner(),
            Err(status) => return ended(status),
        };
        let mut at = match answers.message().await {
            Ok(Some(stat)) => stat.offset,
            Ok(None) => return Ok(IngestEnd::Held),
            Err(status) => return ended(status),
        };
        let count = |at: i64| taken.store(u64::try_from(at).unwrap_or(0), Ordering::Relaxed);
        count(at);
        let mut chunks = open(u64::try_from(at).unwrap_or(0));
        let abort = (self.content(), self.ask(wire::AbortRequest { r#ref: name.clone() }));
        let mut writer = Writer { stream: Some((to, answers)), unchecked: false, abort: Some(abort) };
        let Writer { stream: Some((to, answers)), unchecked, .. } = &mut writer else { return Ok(IngestEnd::Held) };
        let mut flow = Flow { since: Instant::now(), from: at };
        let feed = async {
            while at < total {
                if waits && (slow() || flow.is_slow(at, Instant::now())) {
                    return Ok(Some(IngestEnd::Slow));
                }
                match tokio::time::timeout(SILENCE, chunks.next()).await {
                    Err(_) => return Ok(Some(IngestEnd::Silent(u64::try_from(at).unwrap_or(0)))),
                    Ok(Some(Err(problem))) => return Err(problem),
                    Ok(None) => break,
                    Ok(Some(Ok(data))) => {
                        let offset = at;
                        at += data.len() as i64;
                        *unchecked = waits;
                        if to.send(message(WriteAction::Write, offset, data)).await.is_err() {
                            // containerd ended it; the answers say why.
                            return Ok(None);
                        }
                        count(offset);
                    }
                }
            }
            // The last byte comes when the digest was checked.
            *unchecked = false;
            let _ = to.send(message(WriteAction::Commit, at, Bytes::new())).await;
            Ok(None)
        };
        let answered = async {
            while let Some(answer) = answers.message().await? {
                if answer.action() == WriteAction::Commit {
                    count(total);
                    return Ok(IngestEnd::Committed);
                }
            }
            Ok(IngestEnd::Held)
        };
        tokio::pin!(feed, answered);
        let fed = tokio::select! {
            end = &mut answered => return end.or_else(ended),
            fed = &mut feed => fed,
        };
        match fed {
            Ok(None) => answered.await.or_else(ended),
            Ok(Some(end)) => {
                count(0);
                Ok(end)
            }
            Err(problem) => Err(LayerTrouble::Source(problem)),
        }
    }
}

/// containerd's name for a content that is being written.
fn unfinished(blob: &Descriptor) -> String {
    let sort = match blob.media_type() {
        MediaType::ImageManifest => "manifest",
        MediaType::ImageIndex => "index",
        MediaType::ImageConfig => "config",
        MediaType::Other(other) => match other.as_str() {
            "application/vnd.docker.distribution.manifest.v2+json" => "manifest",
            "application/vnd.docker.distribution.manifest.list.v2+json" => "index",
            "application/vnd.docker.container.image.v1+json" => "config",
            _ => "layer",
        },
        _ => "layer",
    };
    format!("{sort}-{}", blob.digest())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_slow_where_less_than_a_mebibyte_a_second_comes() {
        let begin = Instant::now();
        let mut flow = Flow { since: begin, from: 0 };
        let mut slow = |seconds: u64, at: i64| flow.is_slow(at, begin + Duration::from_secs(seconds));
        assert!(!slow(4, 1), "too early to tell");
        assert!(slow(8, 2));
        assert!(!slow(13, 2 + 5 * LEAST));
        assert!(slow(18, 1 + 10 * LEAST), "one byte less");
    }

    #[test]
    fn unfinished_contents_have_containerds_names() {
        let digest: oci_spec::image::Digest = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
        for (media_type, sort) in [
            ("application/vnd.oci.image.layer.v1.tar+gzip", "layer"),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", "layer"),
            ("application/vnd.oci.image.config.v1+json", "config"),
            ("application/vnd.docker.container.image.v1+json", "config"),
            ("application/vnd.oci.image.index.v1+json", "index"),
            ("application/vnd.docker.distribution.manifest.v2+json", "manifest"),
        ] {
            let blob = Descriptor::new(MediaType::from(media_type), 1, digest.clone());
            assert_eq!(unfinished(&blob), format!("{sort}-{digest}"));
        }
    }
}

//! containerd's content store: documents in and out, blobs in while they grow.
//!
//! Blobs are written under containerd's own names for unfinished ones, so that a pull of the kubelet's goes on where ours
//! stopped, and ours where its did. A source that says nothing for a while does not hold that name: others may want it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use oci_spec::image::{Descriptor, MediaType};
use tokio::sync::mpsc;

use super::lease::Lease;
use super::session::LayerTrouble;
use super::{ContainerdInner, ObjectLabels, source};
use crate::grpc::{Error, RuntimeErrorKind};
use crate::wire::containerd::services::content::v1 as wire;
use wire::WriteAction;
use wire::content_client::ContentClient;

/// A source that is silent for this long lets go of containerd's writer.
const SILENCE: Duration = Duration::from_secs(5);
/// How soon to look again whether another writer has let go.
const HELD: Duration = Duration::from_millis(300);
/// The most that a document may have.
const MOST: i64 = 8 * 1024 * 1024;

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
    /// Somebody began to hold the source back.
    Slow,
}

impl ContainerdInner {
    fn content(&self) -> ContentClient<tonic::transport::Channel> {
        ContentClient::new(self.channel.clone())
    }

    pub(super) async fn info(&self, digest: &str) -> Result<Option<wire::Info>, Error> {
        match self.content().info(self.ask(wire::InfoRequest { digest: digest.into() })).await {
            Ok(answer) => Ok(answer.into_inner().info),
            Err(status) if RuntimeErrorKind::of(&status) == RuntimeErrorKind::NotFound => Ok(None),
            Err(status) => Err(self.failed(format!("look for {digest}"), &status)),
        }
    }

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

    /// A document of the store; `None` where it is not there, or too large to be one.
    pub(super) async fn read(&self, digest: &str) -> Result<Option<Bytes>, Error> {
        match self.info(digest).await? {
            Some(info) if info.size <= MOST => {}
            _ => return Ok(None),
        }
        let action = || format!("read {digest}");
        let request = self.ask(wire::ReadContentRequest { digest: digest.into(), offset: 0, size: 0 });
        let mut parts = match self.content().read(request).await {
            Ok(parts) => parts.into_inner(),
            Err(status) if RuntimeErrorKind::of(&status) == RuntimeErrorKind::NotFound => return Ok(None),
            Err(status) => return Err(self.failed(action(), &status)),
        };
        let mut bytes = BytesMut::new();
        while let Some(part) = parts.message().await.map_err(|status| self.failed(action(), &status))? {
            bytes.extend_from_slice(&part.data);
            if bytes.len() as i64 > MOST {
                return Ok(None);
            }
        }
        Ok(Some(bytes.freeze()))
    }

    /// Adds labels to a content that is there.
    pub(super) async fn label(&self, digest: &str, labels: ObjectLabels) -> Result<(), Error> {
        let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
        let info = Some(wire::Info { digest: digest.into(), size: 0, labels });
        let request = self.ask(wire::UpdateRequest { info, update_mask: Some(wire::FieldMask { paths }) });
        let answer = self.content().update(request).await;
        answer.map(|_| ()).map_err(|status| self.failed(format!("label {digest}"), &status))
    }

    /// Says of a layer what it unpacks to, where its blob is still there.
    pub(super) async fn label_unpacked(&self, digest: &str, diff_id: &str) -> Result<(), Error> {
        let labels = ObjectLabels::from([("containerd.io/uncompressed".into(), diff_id.into())]);
        match self.label(digest, labels).await {
            Err(error) if error.kind == RuntimeErrorKind::NotFound => Ok(()),
            labelled => labelled,
        }
    }

    /// Holds a content that is there already, with these labels added; says whether it is there.
    pub(super) async fn keep(&self, lease: &Lease, blob: &Descriptor, labels: &ObjectLabels) -> Result<bool, Error> {
        let digest = blob.digest().to_string();
        if !self.hold(lease, "content", &digest).await? {
            return Ok(false);
        }
        let Some(info) = self.info(&digest).await? else { return Ok(false) };
        let news = source::news(&info.labels, labels);
        if !news.is_empty() {
            self.label(&digest, news).await?;
        }
        Ok(true)
    }

    /// Writes a document.
    pub(super) async fn put(
        &self,
        lease: &Lease,
        document: &Descriptor,
        bytes: &Bytes,
        labels: &ObjectLabels,
    ) -> Result<(), Error> {
        let open = |from: u64| -> BoxStream<'static, Result<Bytes, std::convert::Infallible>> {
            let rest = bytes.slice(usize::try_from(from).unwrap_or(0).min(bytes.len())..);
            futures::stream::iter(Some(Ok(rest))).boxed()
        };
        let taken = AtomicU64::new(0);
        let mut feed = Feed { open: &open, slow: &|| false, complete: None, taken: &taken };
        match self.import(lease, document, labels, &mut feed).await {
            Ok(()) => Ok(()),
            Err(LayerTrouble::Runtime(error)) => Err(error),
            Err(LayerTrouble::Source(never)) => match never {},
        }
    }

    /// Brings a blob in, from wherever containerd has got to with it. One that is held back is waited for first: a slow
    /// writer would make others wait.
    pub(super) async fn import<E>(
        &self,
        lease: &Lease,
        blob: &Descriptor,
        labels: &ObjectLabels,
        feed: &mut Feed<'_, E>,
    ) -> Result<(), LayerTrouble<E>> {
        let mut begun_anew = false;
        loop {
            if (feed.slow)()
                && let Some(complete) = feed.complete.take()
            {
                complete.await.map_err(LayerTrouble::Source)?;
            }
            if self.keep(lease, blob, labels).await? {
                feed.taken.store(blob.size(), Ordering::Relaxed);
                return Ok(());
            }
            // One that is complete is as fast as it can be.
            let slow = if feed.complete.is_some() { feed.slow } else { &|| false };
            match self.write(lease, blob, labels, (feed.open, feed.taken), slow).await {
                Ok(IngestEnd::Committed) => return Ok(()),
                Ok(IngestEnd::Exists | IngestEnd::Slow) => {}
                // Nothing is held while we wait for the source to say more.
                Ok(IngestEnd::Silent(at)) => {
                    if let Some(Err(problem)) = (feed.open)(at).next().await {
                        return Err(LayerTrouble::Source(problem));
                    }
                }
                Ok(IngestEnd::Held) => tokio::time::sleep(HELD).await,
                // What was there before our bytes was wrong: everything once more.
                Err(LayerTrouble::Runtime(error)) if error.kind == RuntimeErrorKind::Corrupt && !begun_anew => {
                    begun_anew = true;
                    self.abort(blob).await?;
                }
                Err(trouble) => return Err(trouble),
            }
        }
    }

    async fn abort(&self, blob: &Descriptor) -> Result<(), Error> {
        let request = self.ask(wire::AbortRequest { r#ref: unfinished(blob) });
        match self.content().abort(request).await {
            Err(status) if RuntimeErrorKind::of(&status) != RuntimeErrorKind::NotFound => {
                Err(self.failed(format!("forget its half of {}", blob.digest()), &status))
            }
            _ => Ok(()),
        }
    }

    /// One write stream, to its end.
    async fn write<E>(
        &self,
        lease: &Lease,
        blob: &Descriptor,
        labels: &ObjectLabels,
        (open, taken): (&Open<'_, E>, &AtomicU64),
        slow: &HeldBack<'_>,
    ) -> Result<IngestEnd, LayerTrouble<E>> {
        let total = i64::try_from(blob.size()).unwrap_or(i64::MAX);
        let message = |action: WriteAction, offset: i64, data: Bytes| wire::WriteContentRequest {
            action: action.into(),
            r#ref: unfinished(blob),
            total,
            expected: blob.digest().to_string(),
            offset,
            data,
            labels: if action == WriteAction::Commit { labels.clone() } else { ObjectLabels::new() },
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
        let feed = async {
            while at < total {
                if slow() {
                    return Ok(Some(IngestEnd::Slow));
                }
                match tokio::time::timeout(SILENCE, chunks.next()).await {
                    Err(_) => return Ok(Some(IngestEnd::Silent(u64::try_from(at).unwrap_or(0)))),
                    Ok(Some(Err(problem))) => return Err(problem),
                    Ok(None) => break,
                    Ok(Some(Ok(data))) => {
                        let offset = at;
                        at += data.len() as i64;
                        if to.send(message(WriteAction::Write, offset, data)).await.is_err() {
                            // containerd ended it; the answers say why.
                            return Ok(None);
                        }
                        count(offset);
                    }
                }
            }
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
            // Dropping the stream lets go of the name.
            Ok(Some(end)) => Ok(end),
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

//! containerd's content store: documents in and out.

use std::sync::atomic::AtomicU64;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use oci_spec::image::Descriptor;

use super::ingest::Feed;
use super::lease::Lease;
use super::session::LayerTrouble;
use super::{ContainerdInner, ObjectLabels, source};
use crate::grpc::{Error, RuntimeErrorKind};
use crate::wire::containerd::services::content::v1 as wire;
use wire::content_client::ContentClient;

/// The most that a document may have.
const MOST: i64 = 8 * 1024 * 1024;

impl ContainerdInner {
    pub(super) fn content(&self) -> ContentClient<tonic::transport::Channel> {
        ContentClient::new(self.channel.clone())
    }

    pub(super) async fn info(&self, digest: &str) -> Result<Option<wire::Info>, Error> {
        match self.content().info(self.ask(wire::InfoRequest { digest: digest.into() })).await {
            Ok(answer) => Ok(answer.into_inner().info),
            Err(status) if RuntimeErrorKind::of(&status) == RuntimeErrorKind::NotFound => Ok(None),
            Err(status) => Err(self.failed(format!("look for {digest}"), &status)),
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
}

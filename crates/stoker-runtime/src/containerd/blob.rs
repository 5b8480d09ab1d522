//! Blobs out of containerd's content store, for whoever hands them on to other nodes. A digest comes in; a file goes out where the store
//! is in sight, else a stream. containerd vouches for what it has: nothing is hashed here.

use std::fs::File;
use std::io;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt as _};
use oci_spec::image::{Digest, DigestAlgorithm};

use super::{Containerd, ContainerdInner};
use crate::grpc::{Error, RuntimeErrorKind};
use crate::wire::containerd::services::content::v1 as wire;

/// A whole blob of containerd's.
#[derive(Debug)]
pub enum ContentBlob {
    /// In this file, which can be read to its end also when containerd removes the blob.
    File(File),
    /// Only containerd can read it: [`Containerd::read_blob`].
    Unseen,
}

impl Containerd {
    /// A blob of this length; `None` where it is not there.
    pub async fn blob(&self, digest: &Digest, size: u64) -> Result<Option<ContentBlob>, Error> {
        if let Some(file) = self.inner.blob_file(digest, size).await {
            return Ok(Some(ContentBlob::File(file)));
        }
        let info = self.inner.info(digest.as_ref()).await?;
        Ok(info.filter(|info| u64::try_from(info.size) == Ok(size)).map(|_| ContentBlob::Unseen))
    }

    /// The bytes of a blob from an offset on, by containerd's own service.
    pub fn read_blob(&self, digest: &Digest, from: u64) -> BoxStream<'static, io::Result<Bytes>> {
        let (inner, digest) = (self.inner.clone(), digest.to_string());
        let opened = async move {
            let offset = i64::try_from(from).map_err(io::Error::other)?;
            let mut request = tonic::Request::new(wire::ReadContentRequest { digest: digest.clone(), offset, size: 0 });
            // Without a time limit: the reader may be slow.
            request.metadata_mut().insert("containerd-namespace", inner.namespace.clone());
            let parts = inner.content().read(request).await.map_err(|status| failed(&inner, &digest, &status))?;
            Ok::<_, io::Error>(parts.into_inner().map(move |part| match part {
                Ok(part) => Ok(part.data),
                Err(status) => Err(failed(&inner, &digest, &status)),
            }))
        };
        futures::stream::once(opened)
            .flat_map(|opened| match opened {
                Ok(parts) => parts.boxed(),
                Err(problem) => futures::stream::iter([Err(problem)]).boxed(),
            })
            .boxed()
    }
}

fn failed(inner: &ContainerdInner, digest: &str, status: &tonic::Status) -> io::Error {
    let kind = match RuntimeErrorKind::of(status) {
        RuntimeErrorKind::NotFound => io::ErrorKind::NotFound,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, inner.failed(format!("read {digest}"), status))
}

impl ContainerdInner {
    /// The file of a blob, where the store is in sight. A file of another store at the same path would have to have the same name
    /// and length; whoever reads from us hashes.
    async fn blob_file(&self, digest: &Digest, size: u64) -> Option<File> {
        if *digest.algorithm() != DigestAlgorithm::Sha256 {
            return None;
        }
        let path = self.node.content.as_ref()?.join("blobs/sha256").join(digest.digest());
        let opened = tokio::task::spawn_blocking(move || {
            let file = File::open(path).ok()?;
            file.metadata().is_ok_and(|meta| meta.is_file() && meta.len() == size).then_some(file)
        });
        opened.await.ok().flatten()
    }
}

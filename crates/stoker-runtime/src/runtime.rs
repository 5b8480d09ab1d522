//! The image store of a node, whatever it is: what an agent asks of all of them alike.

use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;

use crate::cri::Listed;
use crate::space::Space;
use crate::{Care, Containerd, Cri, Layout, Stored, grpc, layout, space};

/// How often a store that tells nothing is looked at again.
const LOOK: Duration = Duration::from_secs(60);

/// Where a node's images are.
#[derive(Debug, Clone)]
pub enum Runtime {
    /// An OCI image layout in a directory.
    Layout(Layout),
    /// containerd by its own services; by CRI for what those cannot do.
    Containerd(Containerd, Cri),
    /// Any runtime that speaks CRI.
    Cri(Cri),
}

/// An image that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct There {
    /// By what the runtime knows it.
    pub identity: ImageIdentity,
    /// Its bytes.
    pub size: u64,
}

/// By what a runtime knows an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageIdentity {
    /// What its name stands for: the digest of an index or a manifest.
    Digest(String),
    /// The runtime's id of it, the digest of its configuration as a rule: an image that was loaded from a file was never
    /// in a registry, and CRI tells no digest of it.
    ImageId(String),
}

impl There {
    /// The digest of its index or manifest, where the runtime knows it.
    pub fn digest(&self) -> Option<&str> {
        match &self.identity {
            ImageIdentity::Digest(digest) => Some(digest),
            ImageIdentity::ImageId(_) => None,
        }
    }

    /// An image as CRI lists it, under this full reference.
    pub fn listed(name: &str, image: &Listed) -> Self {
        let identity = match image.digest_in(repository(name)) {
            Some(digest) => ImageIdentity::Digest(digest.to_owned()),
            None => ImageIdentity::ImageId(image.id.clone()),
        };
        Self { identity, size: image.size }
    }
}

/// What went wrong with an image store.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// With a layout.
    #[error(transparent)]
    Layout(#[from] layout::Error),
    /// With a runtime behind a socket.
    #[error(transparent)]
    Runtime(#[from] grpc::Error),
}

impl Error {
    /// What it means.
    pub fn kind(&self) -> grpc::RuntimeErrorKind {
        match self {
            Self::Layout(error) if error.is_full() => grpc::RuntimeErrorKind::NoSpace,
            Self::Layout(_) => grpc::RuntimeErrorKind::Other,
            Self::Runtime(error) => error.kind,
        }
    }
}

impl Runtime {
    /// What it is, in a few words for status and tables.
    pub fn describe(&self) -> String {
        match self {
            Self::Layout(_) => "layout".into(),
            Self::Containerd(containerd, _) => {
                let node = containerd.node();
                match node.ineligible() {
                    None => format!("containerd {} ({})", node.version, node.snapshotter),
                    Some(_) => format!("containerd {} ({}, by CRI)", node.version, node.snapshotter),
                }
            }
            Self::Cri(cri) => format!("cri: {} {}", cri.name(), cri.version()),
        }
    }

    /// The image of this full reference, if a container could start from it. (A CRI runtime does not say whether it is
    /// unpacked.) A layout hashes what it has as `care` says; the others vouch for what they have.
    pub async fn find(&self, name: &str, care: Care) -> Result<Stored<There>, Error> {
        let found = match self {
            Self::Layout(layout) => layout.find(name, care).await?,
            Self::Containerd(containerd, _) => containerd.find(name).await?.map_or(Stored::Missing, Stored::Whole),
            Self::Cri(cri) => {
                let listed = cri.find(name).await?;
                return Ok(listed.map_or(Stored::Missing, |image| Stored::Whole(There::listed(name, &image))));
            }
        };
        Ok(found
            .map(|found| There { identity: ImageIdentity::Digest(found.root.digest().to_string()), size: found.size }))
    }

    /// Whether it answers.
    pub async fn answers(&self) -> bool {
        match self {
            Self::Layout(_) => true,
            Self::Containerd(containerd, _) => containerd.answers().await,
            Self::Cri(cri) => cri.answers().await,
        }
    }

    /// One item whenever images may have changed, the first at once. It never ends.
    pub fn changes(&self) -> BoxStream<'static, ()> {
        match self {
            Self::Containerd(containerd, _) => containerd.changes(),
            Self::Layout(_) | Self::Cri(_) => {
                let looks = futures::stream::unfold(Duration::ZERO, |wait| async move {
                    tokio::time::sleep(wait).await;
                    Some(((), LOOK))
                });
                looks.boxed()
            }
        }
    }

    /// Where its images are on this machine's disks, where it says so.
    pub async fn place(&self) -> Result<Option<PathBuf>, Error> {
        Ok(match self {
            Self::Layout(layout) => Some(layout.dir().to_owned()),
            Self::Containerd(containerd, _) => containerd.node().root.clone(),
            Self::Cri(cri) => cri.filesystem().await?,
        })
    }

    /// The filesystem that images are on, where it can be seen from here.
    pub async fn space(&self) -> Result<Option<Space>, Error> {
        Ok(match self.place().await? {
            Some(place) => space::of(place).await,
            None => None,
        })
    }
}

/// The repository of a full reference.
pub(crate) fn repository(name: &str) -> &str {
    let name = name.split('@').next().unwrap_or(name);
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_without_a_digest_has_its_id() {
        let image = |digests: &[&str]| Listed {
            id: "sha256:c".into(),
            tags: vec!["h/r:t".into()],
            digests: digests.iter().map(|digest| digest.to_string()).collect(),
            size: 1,
            pinned: false,
        };
        let pulled = There::listed("h/r:t", &image(&["h/other@sha256:b", "h/r@sha256:a"]));
        assert_eq!(pulled.digest(), Some("sha256:a"));
        for digests in [&[][..], &["h/other@sha256:b"]] {
            let loaded = There::listed("h/r:t", &image(digests));
            assert_eq!(loaded.digest(), None);
            assert_eq!(loaded.identity, ImageIdentity::ImageId("sha256:c".into()));
        }
    }

    #[test]
    fn a_repository_has_neither_tag_nor_digest() {
        for (name, expected) in [
            ("h/r:t", "h/r"),
            ("h:5000/r:t", "h:5000/r"),
            ("h:5000/r", "h:5000/r"),
            ("h/r@sha256:0", "h/r"),
            ("h/r:t@sha256:0", "h/r"),
        ] {
            assert_eq!(repository(name), expected);
        }
    }
}

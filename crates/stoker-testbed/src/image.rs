//! Images made here: layers with every kind of entry, in every compression, as OCI or Docker documents.
//!
//! Files come in; blobs and documents with right digests and diff ids go out, into a registry or an archive. Everything is the
//! same on every run. It never verifies anything.

mod content;
mod layer;
mod push;
mod runnable;
mod tree;

use std::io;

use bytes::Bytes;
use serde_json::{Value, json};

pub use self::layer::{Compression, Layer, LayerBuilder};
pub use self::push::{PushError, Pusher};
pub use self::runnable::{NoBusybox, busybox};
pub use self::tree::{Node, tree};
use crate::registry::{Registry, digest};

/// Whose media types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Flavor {
    /// `application/vnd.oci.image.…`.
    #[default]
    Oci,
    /// `application/vnd.docker.…`.
    Docker,
}

impl Flavor {
    fn manifest(self) -> &'static str {
        match self {
            Self::Oci => "application/vnd.oci.image.manifest.v1+json",
            Self::Docker => "application/vnd.docker.distribution.manifest.v2+json",
        }
    }

    fn index(self) -> &'static str {
        match self {
            Self::Oci => "application/vnd.oci.image.index.v1+json",
            Self::Docker => "application/vnd.docker.distribution.manifest.list.v2+json",
        }
    }

    fn config(self) -> &'static str {
        match self {
            Self::Oci => "application/vnd.oci.image.config.v1+json",
            Self::Docker => "application/vnd.docker.container.image.v1+json",
        }
    }

    fn layer(self, compression: Compression) -> &'static str {
        match (self, compression) {
            (Self::Oci, Compression::None) => "application/vnd.oci.image.layer.v1.tar",
            (Self::Oci, Compression::Gzip) => "application/vnd.oci.image.layer.v1.tar+gzip",
            (Self::Oci, Compression::Zstd | Compression::ZstdWide) => "application/vnd.oci.image.layer.v1.tar+zstd",
            (Self::Docker, Compression::None) => "application/vnd.docker.image.rootfs.diff.tar",
            (Self::Docker, Compression::Gzip) => "application/vnd.docker.image.rootfs.diff.tar.gzip",
            (Self::Docker, Compression::Zstd | Compression::ZstdWide) => {
                "application/vnd.docker.image.rootfs.diff.tar.zstd"
            }
        }
    }
}

/// Bytes with their digest and what they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blob {
    /// As a descriptor tells it.
    pub media_type: &'static str,
    /// `sha256:…` of the bytes.
    pub digest: String,
    /// The content.
    pub bytes: Bytes,
}

impl Blob {
    fn new(media_type: &'static str, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self { media_type, digest: digest(&bytes), bytes }
    }

    fn descriptor(&self) -> Value {
        json!({"mediaType": self.media_type, "digest": self.digest, "size": self.bytes.len()})
    }
}

/// A whole image: what its name stands for, and all that this refers to.
#[derive(Debug, Clone)]
pub struct Image {
    /// The manifest, or the index.
    pub root: Blob,
    /// The manifests of an index; of one platform's image none but the root.
    pub manifests: Vec<Blob>,
    /// One for each platform.
    pub configs: Vec<Blob>,
    /// The layers, the base first, of one platform after the other.
    pub layers: Vec<Blob>,
    platform: (String, String),
}

/// One platform's image in the making.
#[derive(Debug, Clone)]
pub struct ImageBuilder {
    flavor: Flavor,
    platform: (String, String),
    layers: Vec<Layer>,
    config: Value,
}

impl Default for ImageBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl ImageBuilder {
    /// No layers yet; OCI, `linux` on the architecture of this machine.
    pub fn new() -> Self {
        let platform = ("linux".to_owned(), architecture().to_owned());
        Self { flavor: Flavor::Oci, platform, layers: Vec::new(), config: json!({"Env": ["PATH=/bin"]}) }
    }

    /// Puts a layer on top. The same one in two images is the same blob.
    pub fn layer(mut self, layer: &Layer) -> Self {
        self.layers.push(layer.clone());
        self
    }

    /// Whose media types it has.
    pub fn flavor(mut self, flavor: Flavor) -> Self {
        self.flavor = flavor;
        self
    }

    /// Another architecture, as `arm64`.
    pub fn architecture(mut self, architecture: &str) -> Self {
        self.platform.1 = architecture.to_owned();
        self
    }

    /// What a container of it runs.
    pub fn entrypoint(mut self, command: &[&str]) -> Self {
        self.config["Entrypoint"] = json!(command);
        self
    }

    /// Makes the documents.
    pub fn build(self) -> Image {
        let flavor = self.flavor;
        let layers: Vec<Blob> = self.layers.iter().map(|layer| layer.blob(flavor.layer(layer.compression))).collect();
        let config = json!({
            "created": "2026-01-01T00:00:00Z", "os": self.platform.0, "architecture": self.platform.1,
            "config": self.config,
            "rootfs": {"type": "layers", "diff_ids": self.layers.iter().map(|layer| &layer.diff_id).collect::<Vec<_>>()},
        });
        let config = Blob::new(flavor.config(), config.to_string());
        let manifest = json!({
            "schemaVersion": 2, "mediaType": flavor.manifest(), "config": config.descriptor(),
            "layers": layers.iter().map(Blob::descriptor).collect::<Vec<_>>(),
        });
        let root = Blob::new(flavor.manifest(), manifest.to_string());
        Image { root, manifests: Vec::new(), configs: vec![config], layers, platform: self.platform }
    }
}

impl Image {
    /// Several platforms' images under one name.
    pub fn index(flavor: Flavor, images: &[Image]) -> Self {
        let entry = |image: &Image| {
            let mut descriptor = image.root.descriptor();
            descriptor["platform"] = json!({"os": image.platform.0, "architecture": image.platform.1});
            descriptor
        };
        let entries: Vec<Value> = images.iter().map(entry).collect();
        let index = json!({"schemaVersion": 2, "mediaType": flavor.index(), "manifests": entries});
        Self {
            root: Blob::new(flavor.index(), index.to_string()),
            manifests: images.iter().map(|image| image.root.clone()).collect(),
            configs: images.iter().flat_map(|image| image.configs.clone()).collect(),
            layers: images.iter().flat_map(|image| image.layers.clone()).collect(),
            platform: images.first().map(|image| image.platform.clone()).unwrap_or_default(),
        }
    }

    /// The digest of the manifest, or of the index.
    pub fn digest(&self) -> &str {
        &self.root.digest
    }

    /// The bytes of all layers: what a first pull must fetch, but for the documents.
    pub fn layer_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.bytes.len() as u64).sum()
    }

    /// Puts it into a registry of the testbed; returns its reference by tag.
    pub fn put(&self, registry: &Registry, repository: &str, tag: &str) -> String {
        for blob in self.layers.iter().chain(&self.configs) {
            registry.put_blob(blob.bytes.clone());
        }
        for manifest in &self.manifests {
            registry.put_manifest(repository, None, manifest.media_type, manifest.bytes.clone());
        }
        registry.put_manifest(repository, Some(tag), self.root.media_type, self.root.bytes.clone());
        format!("{}/{repository}:{tag}", registry.host())
    }

    /// An archive as `ctr images import` takes it, under this name.
    pub fn archive(&self, name: &str) -> io::Result<Vec<u8>> {
        let mut root = self.root.descriptor();
        root["annotations"] = json!({"io.containerd.image.name": name});
        let index = json!({"schemaVersion": 2, "manifests": [root]}).to_string();
        let mut tar = tar::Builder::new(Vec::new());
        let mut add = |name: &str, bytes: &[u8]| {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, name, bytes)
        };
        add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        add("index.json", index.as_bytes())?;
        for blob in [&self.root].into_iter().chain(&self.manifests).chain(&self.configs).chain(&self.layers) {
            add(&format!("blobs/{}", blob.digest.replace(':', "/")), &blob.bytes)?;
        }
        tar.into_inner()
    }
}

/// This machine's architecture, as images name it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests;

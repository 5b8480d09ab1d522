//! Images as containerd has them: whether one is ready, and its records.

use oci_spec::image::{Descriptor, Digest, ImageConfiguration, ImageIndex, ImageManifest, MediaType};

use super::chain::chain_ids;
use super::{Containerd, ContainerdInner, ObjectLabels};
use crate::StoredImage;
use crate::grpc::{Error, RuntimeErrorKind};
use crate::wire::containerd::services::images::v1 as wire;
use crate::wire::containerd::types;
use wire::images_client::ImagesClient;

/// The most entries of an index that are looked at.
const MOST_ENTRIES: usize = 1000;

impl Containerd {
    /// The image recorded under this full reference, if a container could start from it at once: manifest and
    /// configuration are there, and the last layer is unpacked. One that is recorded and not unpacked is not there.
    pub async fn find(&self, name: &str) -> Result<Option<StoredImage>, Error> {
        let Some(target) = self.inner.record(name).await? else { return Ok(None) };
        let Ok(digest) = target.digest.parse::<Digest>() else { return Ok(None) };
        let root = Descriptor::new(
            MediaType::from(target.media_type.as_str()),
            u64::try_from(target.size).unwrap_or(0),
            digest,
        );
        let size = self.inner.ready(&root).await?;
        Ok(size.map(|size| StoredImage { root, size }))
    }

    /// The names of all records.
    pub async fn names(&self) -> Result<Vec<String>, Error> {
        let request = self.inner.ask(wire::ListImagesRequest { filters: Vec::new() });
        let answer = ImagesClient::new(self.inner.channel.clone()).list(request).await;
        let answer = answer.map_err(|status| self.inner.failed("list its images", &status))?;
        Ok(answer.into_inner().images.into_iter().map(|image| image.name).collect())
    }
}

impl ContainerdInner {
    async fn record(&self, name: &str) -> Result<Option<types::Descriptor>, Error> {
        let request = self.ask(wire::GetImageRequest { name: name.into() });
        match ImagesClient::new(self.channel.clone()).get(request).await {
            Ok(answer) => Ok(answer.into_inner().image.and_then(|image| image.target)),
            Err(status) if RuntimeErrorKind::of(&status) == RuntimeErrorKind::NotFound => Ok(None),
            Err(status) => Err(self.failed(format!("look for {name}"), &status)),
        }
    }

    /// The bytes of the image if it is all there. Of an index one platform is enough: containerd unpacks no other.
    async fn ready(&self, root: &Descriptor) -> Result<Option<u64>, Error> {
        let Some(bytes) = self.read(root.digest().as_ref()).await? else { return Ok(None) };
        if let Ok(index) = serde_json::from_slice::<ImageIndex>(&bytes) {
            for entry in index.manifests().iter().take(MOST_ENTRIES) {
                let Some(bytes) = self.read(entry.digest().as_ref()).await? else { continue };
                if let Some(size) = self.manifest_ready(&bytes).await? {
                    return Ok(Some(size));
                }
            }
            return Ok(None);
        }
        self.manifest_ready(&bytes).await
    }

    async fn manifest_ready(&self, bytes: &[u8]) -> Result<Option<u64>, Error> {
        let Ok(manifest) = serde_json::from_slice::<ImageManifest>(bytes) else { return Ok(None) };
        let Some(config) = self.read(manifest.config().digest().as_ref()).await? else { return Ok(None) };
        let Ok(config) = serde_json::from_slice::<ImageConfiguration>(&config) else { return Ok(None) };
        let chain = chain_ids(config.rootfs().diff_ids());
        let unpacked = match chain.last() {
            Some(top) => self.committed(top).await?,
            None => manifest.layers().is_empty(),
        };
        let sizes = manifest.layers().iter().chain([manifest.config()]).map(Descriptor::size);
        Ok(unpacked.then(|| sizes.fold(0, u64::saturating_add)))
    }

    /// Says that this name is this image, whatever it was before.
    pub(super) async fn set_record(&self, name: &str, root: &Descriptor) -> Result<(), Error> {
        let target = types::Descriptor {
            media_type: root.media_type().to_string(),
            digest: root.digest().to_string(),
            size: i64::try_from(root.size()).unwrap_or(i64::MAX),
            annotations: ObjectLabels::new(),
        };
        // With this label CRI takes it as one of its own.
        let labels = ObjectLabels::from([("io.cri-containerd.image".into(), "managed".into())]);
        let image = Some(wire::Image { name: name.into(), labels, target: Some(target) });
        let mut client = ImagesClient::new(self.channel.clone());
        match client.create(self.ask(wire::CreateImageRequest { image: image.clone() })).await {
            Ok(_) => return Ok(()),
            Err(status) if RuntimeErrorKind::of(&status) == RuntimeErrorKind::Exists => {}
            Err(status) => return Err(self.failed(format!("record {name}"), &status)),
        }
        // Other labels are other people's.
        let paths = vec!["target".into(), "labels.io.cri-containerd.image".into()];
        let request = wire::UpdateImageRequest { image, update_mask: Some(wire::FieldMask { paths }) };
        let answer = client.update(self.ask(request)).await;
        answer.map(|_| ()).map_err(|status| self.failed(format!("record {name}"), &status))
    }
}

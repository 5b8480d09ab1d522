//! Three sample images, made here: several layers, one for two platforms, one layer shared by two of them. The
//! content is pseudo-random, so nothing compresses it away, and the same everywhere.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use oci_spec::image::{
    Arch, ConfigBuilder, Descriptor, DescriptorBuilder, Digest, ImageConfigurationBuilder, ImageIndexBuilder,
    ImageManifestBuilder, MediaType, Os, PlatformBuilder, RootFsBuilder,
};
use sha2::{Digest as _, Sha256};
use stoker_runtime::Layout;

/// The architectures of the image that has an index.
pub(super) const PLATFORMS: [&str; 2] = ["amd64", "arm64"];

const MIB: u64 = 1 << 20;

/// Makes the images in a layout; returns their names as `repository:tag`.
pub(super) async fn make(library: &Layout, scratch: &Path) -> anyhow::Result<Vec<String>> {
    let maker = Maker { library, scratch };
    let base = maker.layer("base", 8 * MIB).await?;
    let web = [base.clone(), maker.layer("web", 3 * MIB).await?, maker.layer("web-static", MIB).await?];
    let cart = [base, maker.layer("cart", 12 * MIB).await?];
    let model = [maker.layer("model-weights", 48 * MIB).await?, maker.layer("model-code", 12 * MIB).await?];
    let cart = maker.image(&cart, "amd64").await?;
    let model = maker.image(&model, "amd64").await?;
    let mut manifests = Vec::new();
    for architecture in PLATFORMS {
        let own = maker.layer(&format!("web-{architecture}"), 2 * MIB).await?;
        let layers: Vec<Descriptor> = web.iter().cloned().chain([own]).collect();
        let mut manifest = maker.image(&layers, architecture).await?;
        let platform = PlatformBuilder::default().architecture(Arch::from(architecture)).os(Os::Linux).build()?;
        manifest.set_platform(Some(platform));
        manifests.push(manifest);
    }
    let index = ImageIndexBuilder::default()
        .schema_version(2u32)
        .media_type(MediaType::ImageIndex)
        .manifests(manifests)
        .build()?;
    let index = maker.document(serde_json::to_vec(&index)?, MediaType::ImageIndex).await?;
    let mut names = Vec::new();
    for (name, root) in [("demo/web:v1", index), ("demo/cart:v1", cart), ("demo/model:v1", model)] {
        library.record(name, root).await?;
        names.push(name.to_string());
    }
    Ok(names)
}

struct Maker<'a> {
    library: &'a Layout,
    scratch: &'a Path,
}

impl Maker<'_> {
    /// A tar with one file of this size.
    async fn layer(&self, name: &str, size: u64) -> anyhow::Result<Descriptor> {
        let file = self.scratch.join(format!("{name}.tar"));
        let (to, entry) = (file.clone(), format!("opt/{name}.bin"));
        let seed = name.bytes().fold(0x5eed_u64, |seed, byte| seed.wrapping_mul(131).wrapping_add(byte.into()));
        let (digest, length) = tokio::task::spawn_blocking(move || write_tar(&to, &entry, seed, size)).await??;
        let digest: Digest = digest.parse()?;
        self.library.adopt(&digest, &file).await?;
        Ok(DescriptorBuilder::default().media_type(MediaType::ImageLayer).digest(digest).size(length).build()?)
    }

    /// A manifest with its configuration.
    async fn image(&self, layers: &[Descriptor], architecture: &str) -> anyhow::Result<Descriptor> {
        // The layers are not compressed, so each is its own diff.
        let diffs: Vec<String> = layers.iter().map(|layer| layer.digest().to_string()).collect();
        let config = ImageConfigurationBuilder::default()
            .architecture(Arch::from(architecture))
            .os(Os::Linux)
            .rootfs(RootFsBuilder::default().typ("layers").diff_ids(diffs).build()?)
            .config(ConfigBuilder::default().build()?)
            .build()?;
        let config = self.document(serde_json::to_vec(&config)?, MediaType::ImageConfig).await?;
        let manifest = ImageManifestBuilder::default()
            .schema_version(2u32)
            .media_type(MediaType::ImageManifest)
            .config(config)
            .layers(layers.to_vec())
            .build()?;
        self.document(serde_json::to_vec(&manifest)?, MediaType::ImageManifest).await
    }

    async fn document(&self, bytes: Vec<u8>, media_type: MediaType) -> anyhow::Result<Descriptor> {
        let digest: Digest = format!("sha256:{}", hex(&Sha256::digest(&bytes))).parse()?;
        let size = u64::try_from(bytes.len())?;
        self.library.put(&digest, bytes).await?;
        Ok(DescriptorBuilder::default().media_type(media_type).digest(digest).size(size).build()?)
    }
}

fn write_tar(file: &Path, entry: &str, seed: u64, size: u64) -> io::Result<(String, u64)> {
    let mut out = HashingWriter { out: io::BufWriter::new(File::create(file)?), hash: Sha256::new(), length: 0 };
    let mut tar = tar::Builder::new(&mut out);
    let mut header = tar::Header::new_ustar();
    header.set_size(size);
    header.set_mode(0o644);
    header.set_mtime(0);
    tar.append_data(&mut header, entry, Noise(seed).take(size))?;
    tar.finish()?;
    drop(tar);
    out.flush()?;
    Ok((format!("sha256:{}", hex(&out.hash.finalize())), out.length))
}

/// Hashes what it passes on.
struct HashingWriter<W> {
    out: W,
    hash: Sha256,
    length: u64,
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write_all(bytes)?;
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Endless pseudo-random bytes (splitmix64).
struct Noise(u64);

impl Read for Noise {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        for chunk in bytes.chunks_mut(8) {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            for (to, from) in chunk.iter_mut().zip(z.to_le_bytes()) {
                *to = from;
            }
        }
        Ok(bytes.len())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

//! Layers: entries come in, a tar in one of three compressions with its diff id goes out.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use super::Blob;
use super::content::Content;
use crate::registry::digest;

/// As small as tools make it, within a tenth, and twice as quick.
const GZIP_LEVEL: u32 = 3;

/// How the tar is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// As it is: the blob is the diff.
    None,
    /// What nearly all images have.
    #[default]
    Gzip,
    /// What newer ones have.
    Zstd,
    /// With a window of 128 MiB, as `zstd --long` makes it.
    ZstdWide,
}

/// A layer, ready for any number of images.
#[derive(Debug, Clone)]
pub struct Layer {
    pub(super) compression: Compression,
    /// The digest of the tar.
    pub diff_id: String,
    /// The digest of the blob.
    pub digest: String,
    /// The blob.
    pub bytes: Bytes,
}

impl Layer {
    pub(super) fn blob(&self, media_type: &'static str) -> Blob {
        Blob { media_type, digest: self.digest.clone(), bytes: self.bytes.clone() }
    }
}

#[derive(Debug, Clone)]
enum Kind {
    File(Content),
    Directory,
    Symlink(String),
    HardLink(String),
}

#[derive(Debug, Clone)]
struct TarEntry {
    path: String,
    kind: Kind,
    mode: u32,
    owner: (u64, u64),
    mtime: u64,
    xattrs: Vec<(String, Vec<u8>)>,
}

/// A layer in the making. Each entry is root's, 0644 or 0755 and of 2026-01-01, unless [`mode`](Self::mode),
/// [`owner`](Self::owner), [`mtime`](Self::mtime) or [`xattr`](Self::xattr) right after it say otherwise.
#[derive(Debug, Clone, Default)]
pub struct LayerBuilder {
    entries: Vec<TarEntry>,
}

impl LayerBuilder {
    /// Without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// A file with this content.
    pub fn file(self, path: &str, content: impl Into<Bytes>) -> Self {
        self.add(path, Kind::File(Content::Bytes(content.into())), 0o644)
    }

    /// A file of bytes that nothing compresses; another seed gives others.
    pub fn noise(self, path: &str, length: u64, seed: u64) -> Self {
        self.add(path, Kind::File(Content::Noise { length, seed }), 0o644)
    }

    /// A file of words, which compresses as programs and texts do.
    pub fn text(self, path: &str, length: u64, seed: u64) -> Self {
        self.add(path, Kind::File(Content::Text { length, seed }), 0o644)
    }

    /// A directory. Those that hold other entries need none, but have the runtime's default mode then.
    pub fn dir(self, path: &str) -> Self {
        self.add(path, Kind::Directory, 0o755)
    }

    /// A symbolic link.
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.add(path, Kind::Symlink(target.to_owned()), 0o777)
    }

    /// Another name of a file of this layer; the target begins at the root and comes first.
    pub fn hard_link(self, path: &str, target: &str) -> Self {
        self.add(path, Kind::HardLink(target.to_owned()), 0o644)
    }

    /// Removes what the layers below have at this path.
    pub fn whiteout(self, path: &str) -> Self {
        let path = match path.rsplit_once('/') {
            Some((dir, name)) => format!("{dir}/.wh.{name}"),
            None => format!(".wh.{path}"),
        };
        self.file(&path, "")
    }

    /// Removes all that the layers below have in this directory.
    pub fn opaque(self, dir: &str) -> Self {
        self.file(&format!("{dir}/.wh..wh..opq"), "")
    }

    /// The mode of the last entry, setuid and sticky bits too.
    pub fn mode(self, mode: u32) -> Self {
        self.change(|entry| entry.mode = mode)
    }

    /// User and group of the last entry.
    pub fn owner(self, user: u64, group: u64) -> Self {
        self.change(|entry| entry.owner = (user, group))
    }

    /// When the last entry was changed, in seconds since 1970.
    pub fn mtime(self, seconds: u64) -> Self {
        self.change(|entry| entry.mtime = seconds)
    }

    /// An extended attribute of the last entry, as `user.note` or `security.capability`.
    pub fn xattr(self, name: &str, value: &[u8]) -> Self {
        self.change(|entry| entry.xattrs.push((name.to_owned(), value.to_owned())))
    }

    fn add(mut self, path: &str, kind: Kind, mode: u32) -> Self {
        let path = path.trim_start_matches('/').to_owned();
        self.entries.push(TarEntry { path, kind, mode, owner: (0, 0), mtime: 1_767_225_600, xattrs: Vec::new() });
        self
    }

    fn change(mut self, change: impl FnOnce(&mut TarEntry)) -> Self {
        if let Some(entry) = self.entries.last_mut() {
            change(entry);
        }
        self
    }

    /// Packs it.
    pub fn build(&self, compression: Compression) -> io::Result<Layer> {
        let packer = match compression {
            Compression::None => Packer::None(Vec::new()),
            Compression::Gzip => Packer::Gzip(GzEncoder::new(Vec::new(), flate2::Compression::new(GZIP_LEVEL))),
            Compression::Zstd => Packer::Zstd(zstd::Encoder::new(Vec::new(), 1)?),
            Compression::ZstdWide => {
                let mut encoder = zstd::Encoder::new(Vec::new(), 1)?;
                encoder.window_log(27)?;
                Packer::Zstd(encoder)
            }
        };
        let mut tar = tar::Builder::new(Hashing { hash: Sha256::new(), packer });
        for entry in &self.entries {
            entry.append(&mut tar)?;
        }
        let Hashing { hash, packer } = tar.into_inner()?;
        let bytes = Bytes::from(packer.finish()?);
        let diff_id = format!("sha256:{:x}", Bytes::copy_from_slice(&hash.finalize()));
        Ok(Layer { compression, diff_id, digest: digest(&bytes), bytes })
    }
}

impl TarEntry {
    fn append<W: Write>(&self, tar: &mut tar::Builder<W>) -> io::Result<()> {
        let keys: Vec<String> = self.xattrs.iter().map(|(name, _)| format!("SCHILY.xattr.{name}")).collect();
        let pairs = keys.iter().map(String::as_str).zip(self.xattrs.iter().map(|(_, value)| value.as_slice()));
        tar.append_pax_extensions(pairs)?;
        let mut header = Header::new_gnu();
        header.set_mode(self.mode);
        header.set_uid(self.owner.0);
        header.set_gid(self.owner.1);
        header.set_mtime(self.mtime);
        header.set_size(0);
        match &self.kind {
            Kind::File(content) => {
                header.set_size(content.length());
                tar.append_data(&mut header, &self.path, content.read())
            }
            Kind::Directory => {
                header.set_entry_type(EntryType::Directory);
                tar.append_data(&mut header, &self.path, io::empty())
            }
            Kind::Symlink(target) => {
                header.set_entry_type(EntryType::Symlink);
                tar.append_link(&mut header, &self.path, target)
            }
            Kind::HardLink(target) => {
                header.set_entry_type(EntryType::Link);
                tar.append_link(&mut header, &self.path, target.trim_start_matches('/'))
            }
        }
    }
}

/// Hashes what goes into the packer.
struct Hashing {
    hash: Sha256,
    packer: Packer,
}

enum Packer {
    None(Vec<u8>),
    Gzip(GzEncoder<Vec<u8>>),
    Zstd(zstd::Encoder<'static, Vec<u8>>),
}

impl Packer {
    fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Self::None(bytes) => Ok(bytes),
            Self::Gzip(encoder) => encoder.finish(),
            Self::Zstd(encoder) => encoder.finish(),
        }
    }
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.packer {
            Packer::None(all) => all.write(bytes),
            Packer::Gzip(encoder) => encoder.write(bytes),
            Packer::Zstd(encoder) => encoder.write(bytes),
        }?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    /// The packers' own ends come with `finish`.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

//! How a layer is compressed. A media type comes in, and whether we can unpack it goes out; a stream of compressed
//! bytes comes in, plain ones go out.
//!
//! The rule is containerd's: the media type only says whether a layer may be compressed, and the first bytes say how.
//! An OCI layer of type `tar` is taken as it is, without a look.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

/// How the media type says that a layer is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerCompression {
    /// Plain tar, whatever its first bytes look like.
    None,
    /// Gzip, zstd or plain tar: the first bytes tell.
    Detect,
}

/// The bytes that are asked from the source at once.
const INPUT: usize = 64 * 1024;
/// Frames of zstd with a window of more than 8 MiB (2^23 bytes) are for containerd: a window is memory of the agent. 8 MiB is
/// what the format wants every decoder to take.
const WINDOW_LOG: u32 = 23;
/// What libzstd says of such a frame.
const WINDOW_TOO_LARGE: &str = "Frame requires too much memory for decoding";

impl LayerCompression {
    /// What a media type says, or nothing where it is not a layer that we can unpack (an encrypted one, another kind of
    /// archive): such layers are for containerd.
    pub fn of(media_type: &str) -> Option<Self> {
        match media_type {
            "application/vnd.oci.image.layer.v1.tar" | "application/vnd.oci.image.layer.nondistributable.v1.tar" => {
                Some(Self::None)
            }
            "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.oci.image.layer.v1.tar+zstd"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
            | "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd"
            | "application/vnd.docker.image.rootfs.diff.tar"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.zstd"
            | "application/vnd.docker.image.rootfs.foreign.diff.tar"
            | "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip" => Some(Self::Detect),
            _ => None,
        }
    }

    /// The plain bytes of a stream. Errors of the source come out as [`SourceFailed`] inside the io error.
    pub(super) fn plain<R: Read>(self, source: R) -> io::Result<Plain<R>> {
        let mut source = BufReader::with_capacity(INPUT, MarkedSource(source));
        if self == Self::None {
            return Ok(Plain::As(source));
        }
        let start = first_bytes(&mut source)?;
        if start.starts_with(&[0x1f, 0x8b, 0x08]) {
            return Ok(Plain::Gzip(Box::new(MultiGzDecoder::new(Started::new(start, source)))));
        }
        if is_zstd(&start) {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(Started::new(start, source))?;
            decoder.window_log_max(WINDOW_LOG)?;
            return Ok(Plain::Zstd(decoder));
        }
        Ok(Plain::Started(Started::new(start, source)))
    }
}

/// Whether a decoder gave up because it would need too much memory.
pub(super) fn is_too_much_memory(problem: &io::Error) -> bool {
    problem.to_string().contains(WINDOW_TOO_LARGE)
}

/// At most ten bytes, fewer only where the stream is shorter.
fn first_bytes(source: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut start = Vec::with_capacity(10);
    source.take(10).read_to_end(&mut start)?;
    Ok(start)
}

/// A frame of zstd, or one to be skipped: such may come first.
fn is_zstd(start: &[u8]) -> bool {
    let skippable = start.len() >= 8 && start[0] & 0xf0 == 0x50 && start[1..4] == [0x2a, 0x4d, 0x18];
    start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) || skippable
}

/// A stream without its compression.
pub(super) enum Plain<R: Read> {
    As(BufReader<MarkedSource<R>>),
    Started(Started<R>),
    Gzip(Box<MultiGzDecoder<Started<R>>>),
    Zstd(zstd::stream::read::Decoder<'static, Started<R>>),
}

impl<R: Read> Read for Plain<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::As(plain) => plain.read(buf),
            Self::Started(plain) => plain.read(buf),
            Self::Gzip(plain) => plain.read(buf),
            Self::Zstd(plain) => plain.read(buf),
        }
    }
}

/// A stream whose first bytes were looked at already.
pub(super) struct Started<R: Read> {
    start: io::Cursor<Vec<u8>>,
    rest: BufReader<MarkedSource<R>>,
}

impl<R: Read> Started<R> {
    fn new(start: Vec<u8>, rest: BufReader<MarkedSource<R>>) -> Self {
        Self { start: io::Cursor::new(start), rest }
    }

    fn at_start(&self) -> bool {
        self.start.position() < self.start.get_ref().len() as u64
    }
}

impl<R: Read> Read for Started<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at_start() { self.start.read(buf) } else { self.rest.read(buf) }
    }
}

impl<R: Read> BufRead for Started<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at_start() { self.start.fill_buf() } else { self.rest.fill_buf() }
    }

    fn consume(&mut self, amount: usize) {
        if self.at_start() { self.start.consume(amount) } else { self.rest.consume(amount) }
    }
}

/// Marks the source's own errors, so that they are not taken for damage.
pub(super) struct MarkedSource<R>(R);

impl<R: Read> Read for MarkedSource<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(buf) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => return other.map_err(|e| io::Error::other(SourceFailed(e))),
            }
        }
    }
}

/// The error of a source, on its way through a decoder.
#[derive(Debug)]
pub(super) struct SourceFailed(pub(super) io::Error);

impl fmt::Display for SourceFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for SourceFailed {}

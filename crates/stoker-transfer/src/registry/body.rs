//! The body of an answer, without its `Content-Encoding`.
//!
//! We ask for `identity`, but some proxies compress all the same. Pieces of the body go out in order, decompressed if the
//! answer is gzip. The memory for one piece is bounded, however well it was compressed; the length of the whole is bounded
//! by the caller. A connection whose body did not end as promised is not used again.

use std::error::Error as _;
use std::io::{self, Write as _};

use bytes::{Buf as _, Bytes, BytesMut};
use flate2::write::MultiGzDecoder;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper_util::client::legacy::connect::CaptureConnection;

use super::http::causes;

/// The compressed bytes of one step. Gzip compresses 1000:1 at most, so one step gives about 4 MiB at most.
const STEP: usize = 4 * 1024;
/// The first bytes of every gzip file.
const MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Some bytes of the body.
#[derive(Debug)]
pub(crate) struct BodyPiece {
    pub(crate) bytes: Bytes,
    /// The bytes on the wire; 0 for what was decompressed from bytes that an earlier piece counted.
    pub(crate) wire: usize,
}

/// Why no more comes.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The connection ended or failed.
    Cut(String),
    /// The bytes cannot be decompressed.
    Packed(String),
}

/// A body still to come.
#[derive(Debug)]
pub(crate) struct AnswerBody {
    incoming: Incoming,
    packing: Packing,
    /// Of a pool, to which it would go back.
    connection: Option<CaptureConnection>,
    /// Whether the last byte was read.
    ended: bool,
}

/// How the bytes are compressed.
#[derive(Debug)]
enum Packing {
    Plain,
    Gzip(Box<Gunzip>),
    /// A `Content-Encoding` that we do not know.
    Unknown(String),
}

/// Whether the answer has a `Content-Encoding`, so that its length is not that of the content.
pub(crate) fn is_packed(headers: &HeaderMap) -> bool {
    !matches!(packing(headers), Packing::Plain)
}

fn packing(headers: &HeaderMap) -> Packing {
    let all = headers.get_all(CONTENT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let names = all.flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase());
    // S3 keeps `aws-chunked` from the upload of an object. It says nothing about the answer.
    let mut names = names.filter(|name| !matches!(name.as_str(), "" | "identity" | "aws-chunked"));
    match (names.next().as_deref(), names.next()) {
        (None, _) => Packing::Plain,
        (Some("gzip" | "x-gzip"), None) => Packing::Gzip(Box::default()),
        (Some(name), _) => Packing::Unknown(name.chars().filter(|c| !c.is_control()).take(40).collect()),
    }
}

impl AnswerBody {
    pub(crate) fn new(headers: &HeaderMap, incoming: Incoming, connection: CaptureConnection) -> Self {
        Self { ended: incoming.is_end_stream(), packing: packing(headers), incoming, connection: Some(connection) }
    }

    /// The body of a connection that nobody else uses.
    pub(crate) fn alone(incoming: Incoming) -> Self {
        Self { ended: incoming.is_end_stream(), packing: Packing::Plain, incoming, connection: None }
    }

    /// The same body, not decompressed.
    pub(crate) fn plain(mut self) -> Self {
        self.packing = Packing::Plain;
        self
    }

    /// The next bytes; `None` at the end. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Result<BodyPiece, Broken>> {
        loop {
            match &mut self.packing {
                Packing::Plain => {}
                Packing::Unknown(name) => {
                    return Some(Err(Broken::Packed(format!("it is compressed as {name}, which we did not ask for"))));
                }
                Packing::Gzip(gunzip) => match gunzip.step().transpose() {
                    Some(Ok(bytes)) => return Some(Ok(BodyPiece { bytes, wire: 0 })),
                    Some(Err(why)) => return Some(Err(Broken::Packed(why))),
                    None => {}
                },
            }
            let data = match self.incoming.frame().await {
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Some(Err(Broken::Cut(cut(&error)))),
                None => return self.end(),
            };
            let wire = data.len();
            match &mut self.packing {
                Packing::Gzip(gunzip) => {
                    gunzip.packed.extend_from_slice(&data);
                    if wire > 0 {
                        return Some(Ok(BodyPiece { bytes: Bytes::new(), wire }));
                    }
                }
                _ if wire > 0 => return Some(Ok(BodyPiece { bytes: data, wire })),
                _ => {}
            }
        }
    }

    /// After the last byte from the wire: what the decompressor still holds.
    fn end(&mut self) -> Option<Result<BodyPiece, Broken>> {
        self.ended = true;
        let Packing::Gzip(gunzip) = &mut self.packing else { return None };
        match gunzip.finish() {
            Ok(bytes) if bytes.is_empty() => None,
            Ok(bytes) => Some(Ok(BodyPiece { bytes, wire: 0 })),
            Err(why) => Some(Err(Broken::Packed(why))),
        }
    }

    /// The body was not what it should be, so the rest of it may still come: the connection is not used again.
    pub(crate) fn spoiled(&self) {
        let Some(connection) = &self.connection else { return };
        if let Some(connected) = connection.connection_metadata().as_ref() {
            connected.poison();
        }
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        if !self.ended {
            self.spoiled();
        }
    }
}

/// A gzip stream that is decompressed step by step.
#[derive(Debug, Default)]
struct Gunzip {
    packed: BytesMut,
    /// Whether the bytes are gzip: some servers label plain bytes so. Unknown before the second byte.
    honest: Option<bool>,
    unpacking: Option<MultiGzDecoder<Vec<u8>>>,
}

impl Gunzip {
    /// Decompresses one step; `None` if it needs more bytes first.
    fn step(&mut self) -> Result<Option<Bytes>, String> {
        while !self.packed.is_empty() {
            if self.honest.is_none() && self.packed.len() >= MAGIC.len() {
                self.honest = Some(self.packed.starts_with(&MAGIC));
            }
            match self.honest {
                None => return Ok(None),
                Some(false) => return Ok(Some(self.packed.split().freeze())),
                Some(true) => {}
            }
            let decoder = self.unpacking.get_or_insert_with(|| MultiGzDecoder::new(Vec::new()));
            let step = self.packed.len().min(STEP);
            decoder.write_all(&self.packed[..step]).map_err(broken)?;
            self.packed.advance(step);
            let bytes = std::mem::take(decoder.get_mut());
            if !bytes.is_empty() {
                return Ok(Some(bytes.into()));
            }
        }
        Ok(None)
    }

    /// The rest, after the last byte.
    fn finish(&mut self) -> Result<Bytes, String> {
        match self.unpacking.take() {
            // One byte alone, or none.
            None => Ok(self.packed.split().freeze()),
            Some(decoder) => decoder.finish().map(Bytes::from).map_err(broken),
        }
    }
}

/// Why the body broke off.
fn cut(error: &hyper::Error) -> String {
    let io = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    match io.map(io::Error::kind) {
        Some(io::ErrorKind::UnexpectedEof) => "the connection ended in the middle of the answer".to_owned(),
        _ => causes(error),
    }
}

fn broken(problem: io::Error) -> String {
    format!("it is labelled gzip and cannot be decompressed ({problem})")
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// What comes out of pieces of this length, and the most of it in one step.
    fn unpack(packed: &[u8], piece: usize) -> Result<(Vec<u8>, usize), String> {
        let (mut gunzip, mut out, mut most) = (Gunzip::default(), Vec::new(), 0);
        for piece in packed.chunks(piece) {
            gunzip.packed.extend_from_slice(piece);
            while let Some(bytes) = gunzip.step()? {
                most = most.max(bytes.len());
                out.extend_from_slice(&bytes);
            }
        }
        out.extend_from_slice(&gunzip.finish()?);
        Ok((out, most))
    }

    #[test]
    fn gzip_is_decompressed_whatever_the_pieces() {
        let text: Vec<u8> = (0..100_000u32).flat_map(|n| (n % 1000).to_le_bytes()).collect();
        for piece in [1, 7, 4096, 1 << 20] {
            assert_eq!(unpack(&gzip(&text), piece).unwrap().0, text, "{piece}");
        }
        let two = [gzip(b"one"), gzip(b"two")].concat();
        assert_eq!(unpack(&two, 5).unwrap().0, b"onetwo");
    }

    #[test]
    fn a_decompression_bomb_comes_in_small_steps() {
        let (out, most) = unpack(&gzip(&vec![0; 64 << 20]), 1 << 20).unwrap();
        assert_eq!(out.len(), 64 << 20);
        assert!(most <= 1100 * STEP, "{most}");
    }

    #[test]
    fn plain_bytes_that_are_labelled_gzip_stay_as_they_are() {
        for text in [&b""[..], b"{", b"{\"a\":1}"] {
            assert_eq!(unpack(text, 1).unwrap().0, text);
        }
    }

    #[test]
    fn a_gzip_that_is_cut_or_damaged_is_an_error() {
        let mut packed = gzip(&[7; 10_000]);
        assert!(unpack(&packed[..packed.len() - 4], 10).is_err());
        let middle = packed.len() / 2;
        packed[middle] ^= 0xff;
        assert!(unpack(&packed, 10).is_err());
    }

    #[test]
    fn names_of_encodings() {
        let packed = |values: &[&str]| {
            let headers = values.iter().map(|value| (CONTENT_ENCODING, value.parse().unwrap())).collect::<HeaderMap>();
            format!("{:?}", packing(&headers)).split(['(', ' ']).next().unwrap().to_owned()
        };
        for (values, expected) in [
            (&[][..], "Plain"),
            (&["identity"], "Plain"),
            (&["aws-chunked"], "Plain"),
            (&["gzip"], "Gzip"),
            (&["aws-chunked, X-GZIP"], "Gzip"),
            (&["gzip", "gzip"], "Unknown"),
            (&["br"], "Unknown"),
        ] {
            assert_eq!(packed(values), expected, "{values:?}");
        }
    }
}

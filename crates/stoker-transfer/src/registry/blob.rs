//! The body of a blob from an offset on.
//!
//! A descriptor and an offset come in; a stream that is known to start where it says goes out. It asks once: whoever
//! writes the bytes down knows best whether another try is worth it.

use ::http::header::CONTENT_RANGE;
use ::http::{Method, StatusCode};
use hyper::body::Incoming;
use oci_spec::image::Descriptor;

use super::body::{AnswerBody, is_packed};
use super::http::{HttpAnswer, content_length};
use super::{Error, Party, Registry, RegistryQuestion, RequestProblem};
use crate::hosts::Host;
use crate::spool::BlobSource;

/// Bytes to come, and the place of the first of them in the blob.
#[derive(Debug)]
pub(crate) struct BlobBody {
    pub(crate) bytes: AnswerBody,
    /// The offset that was asked for, or 0 where the server does not do ranges.
    pub(crate) start: u64,
    /// Whether a proxy compressed them, so that a range of them is no range of the blob.
    pub(crate) packed: bool,
    /// Who sends them.
    pub(crate) who: Box<Party>,
    /// From where they come.
    pub(crate) origin: ByteOrigin,
}

/// From where bytes come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ByteOrigin {
    /// The registry itself.
    Registry,
    /// Another host that the node's settings name for the registry.
    Mirror,
    /// Another node.
    Peer,
}

impl BlobBody {
    /// What another node gives.
    pub(crate) fn of_peer(body: Incoming, start: u64, who: Box<Party>) -> Self {
        Self { bytes: AnswerBody::alone(body), start, packed: false, who, origin: ByteOrigin::Peer }
    }
}

impl Registry {
    /// Asks a host for a blob from this offset on; `small` where its bytes are counted by a limit.
    pub(crate) async fn open_blob(
        &self,
        host: &Host,
        source: &BlobSource,
        blob: &Descriptor,
        from: u64,
        small: bool,
    ) -> Result<BlobBody, Error> {
        let image = &source.image;
        let mut question = RegistryQuestion {
            image,
            login: source.login.as_ref(),
            method: Method::GET,
            path: format!("blobs/{}", blob.digest()),
            accept: None,
            from,
            small,
            what: format!("blob {} of {image}", blob.digest()),
        };
        let mut answer = self.ask(&question, host).await?;
        let mut part = BlobPart::of(&answer, from, blob.size());
        if part.packed && answer.status == StatusCode::PARTIAL_CONTENT {
            // A range of the compressed bytes is no range of the blob: ask for all of it.
            question.from = 0;
            answer = self.ask(&question, host).await?;
            part = BlobPart::of(&answer, 0, blob.size());
        }
        let who = question.who(host).redirected(answer.elsewhere);
        let start = match part.start {
            Ok(start) => start,
            Err(why) => return Err(question.error(who, RequestProblem::InvalidContent { why })),
        };
        let bytes = if part.packed { answer.body } else { answer.body.plain() };
        let origin = if host.mirror_of.is_some() { ByteOrigin::Mirror } else { ByteOrigin::Registry };
        Ok(BlobBody { bytes, start, packed: part.packed, who, origin })
    }
}

/// Which part of a blob an answer has.
struct BlobPart {
    /// The offset of its first byte, or why it is no part of the blob.
    start: Result<u64, String>,
    /// Whether a proxy compressed the bytes. `Content-Encoding` alone does not say so: some object stores set it for layers
    /// that are compressed themselves, and give the layer as it is. Then the length is that of the blob.
    packed: bool,
}

impl BlobPart {
    fn of(answer: &HttpAnswer, from: u64, size: u64) -> Self {
        let labelled = is_packed(&answer.headers);
        let length = content_length(&answer.headers);
        if answer.status == StatusCode::PARTIAL_CONTENT {
            let given = answer.headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
            let start = check_range(given.unwrap_or(""), from, size).map(|()| from);
            let packed = labelled && start.is_err();
            return Self { start: start.and_then(|start| fits(start, length, size)), packed };
        }
        let packed = labelled && length != Some(size);
        // The length of the compressed bytes says nothing about the blob.
        Self { start: fits(0, length.filter(|_| !packed), size), packed }
    }
}

/// A longer body cannot be this blob. A shorter one is treated as a cut connection, when it ends.
fn fits(start: u64, length: Option<u64>, size: u64) -> Result<u64, String> {
    match length {
        Some(length) if length > size.saturating_sub(start) => {
            Err(format!("it is longer than the {size} bytes that its manifest says"))
        }
        _ => Ok(start),
    }
}

/// Whether `bytes FIRST-LAST/TOTAL` is a part of the blob that starts where we asked.
fn check_range(text: &str, from: u64, size: u64) -> Result<(), String> {
    let wrong = || format!("it was asked for the bytes from {from} of {size} and gives {text:?}");
    let (range, total) = text.strip_prefix("bytes ").and_then(|rest| rest.split_once('/')).ok_or_else(wrong)?;
    let (first, last) = range.split_once('-').ok_or_else(wrong)?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
    let total_fits = total.trim() == "*" || number(total)? == size;
    if number(first)? == from && (from..size).contains(&number(last)?) && total_fits { Ok(()) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_range_that_was_asked_for() {
        assert!(check_range("bytes 10-99/100", 10, 100).is_ok());
        assert!(check_range("bytes 10-49/*", 10, 100).is_ok());
        for wrong in [
            "",
            "bytes",
            "bytes 0-99/100",
            "bytes 11-99/100",
            "bytes 10-100/100",
            "bytes 10-99/101",
            "bytes 10-9/100",
            "bytes */100",
        ] {
            assert!(check_range(wrong, 10, 100).is_err(), "{wrong}");
        }
    }
}

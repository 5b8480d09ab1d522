//! The body of a blob from an offset on.
//!
//! A descriptor and an offset come in; a stream that is known to start where it says goes out. It asks once: whoever
//! writes the bytes down knows best whether another try is worth it.

use ::http::Method;
use ::http::header::CONTENT_RANGE;
use hyper::body::Incoming;
use oci_spec::image::Descriptor;

use super::http::content_length;
use super::{Error, Party, Problem, Question, Registry};
use crate::hosts::Host;
use crate::spool::Source;

/// Bytes to come, and the place of the first of them in the blob.
#[derive(Debug)]
pub(crate) struct BlobBody {
    pub(crate) bytes: Incoming,
    /// The offset that was asked for, or 0 where the server does not do ranges.
    pub(crate) start: u64,
    /// Who sends them.
    pub(crate) who: Box<Party>,
    /// Whether they come from another host than the registry itself.
    pub(crate) mirror: bool,
}

impl Registry {
    /// Asks a host for a blob from this offset on; `small` where its bytes are counted by a limit.
    pub(crate) async fn open_blob(
        &self,
        host: &Host,
        source: &Source,
        blob: &Descriptor,
        from: u64,
        small: bool,
    ) -> Result<BlobBody, Error> {
        let image = &source.image;
        let question = Question {
            image,
            login: source.login.as_ref(),
            method: Method::GET,
            path: format!("blobs/{}", blob.digest()),
            accept: None,
            from,
            small,
            what: format!("blob {} of {image}", blob.digest()),
        };
        let answer = self.ask(&question, host).await?;
        let who = question.who(host).redirected(answer.elsewhere.clone());
        let invalid = |why| question.error(who.clone(), Problem::InvalidContent { why });
        let start = match answer.status().as_u16() {
            206 => {
                let given = answer.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
                check_range(given.unwrap_or(""), from, blob.size()).map_err(invalid)?;
                from
            }
            _ => 0,
        };
        // A longer body cannot be this blob. A shorter one is treated as a cut connection, when it ends.
        if content_length(answer.headers()).is_some_and(|length| length > blob.size().saturating_sub(start)) {
            return Err(invalid(format!("it is longer than the {} bytes that its manifest says", blob.size())));
        }
        let mirror = host.mirror_of.is_some();
        Ok(BlobBody { bytes: answer.response.into_body(), start, who, mirror })
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

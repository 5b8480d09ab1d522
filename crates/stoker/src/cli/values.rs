//! Values on the command line. In: what somebody typed. Out: what it means, or why it means nothing. Nothing here asks the
//! machine or a cluster: whatever can be known to be wrong from the text alone is refused here, before anything is done.

use std::net::SocketAddr;

use stoker_api::Span;
use stoker_api::secret::is_name;
use stoker_core::Reference;
use tracing_subscriber::EnvFilter;

use crate::jobs;

/// What somebody said that cannot be meant, found only after the command line was read. The exit code is 2, as for what the
/// parser refuses.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WrongInput(pub(crate) String);

/// A reference, as it was written.
pub(super) fn image(text: &str) -> Result<String, String> {
    text.parse::<Reference>().map(|_| text.to_string()).map_err(|problem| problem.to_string())
}

/// A job, or the NodeImage of a node.
pub(super) fn job_or_node_image(text: &str) -> Result<String, String> {
    match jobs::node_image(text) {
        Some(node) => name(node).map(|_| text.to_owned()),
        None => job(text),
    }
}

/// A job: the name of a Preheat, or kind/name.
pub(super) fn job(text: &str) -> Result<String, String> {
    let (_, name) = jobs::parse(text).map_err(|problem| problem.to_string())?;
    self::name(name).map(|_| text.to_string())
}

/// Where to listen.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "give an address and a port, such as 127.0.0.1:7480 or [::1]:7480".to_string())
}

/// The name of an object.
pub(crate) fn name(text: &str) -> Result<String, String> {
    match is_name(text) {
        true => Ok(text.to_string()),
        false => Err("a name has lower-case letters, digits, dashes and dots, 253 at most, and begins and ends with a letter or \
                      a digit"
            .to_string()),
    }
}

/// The name of a namespace. `stoker install` also puts it into expressions of the admission policy.
pub(crate) fn namespace(text: &str) -> Result<String, String> {
    match is_label(text) {
        true => Ok(text.to_string()),
        false => {
            Err("a namespace has up to 63 lower-case letters, digits and dashes, and begins and ends with a letter \
                      or a digit"
                .to_string())
        }
    }
}

fn is_label(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(plain) && !text.starts_with('-') && !text.ends_with('-')
}

/// A length of time in which something can happen.
pub(super) fn time(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|problem: stoker_api::NotASpan| problem.to_string())?;
    match span.0.as_secs() {
        0 => Err("the shortest is 1s".to_string()),
        _ if span.to_string().parse() != Ok(span) => Err("the longest is 999999999h".to_string()),
        _ => Ok(span),
    }
}

/// What is logged.
pub(super) fn log(text: &str) -> Result<String, String> {
    let advice = "write error, warn, info, debug, or a tracing filter such as info,stoker_agent=debug";
    EnvFilter::try_new(text).map(|_| text.to_string()).map_err(|problem| format!("{problem}; {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for good in ["1s", "1500ms", "30m", "24h"] {
            assert!(time(good).is_ok(), "{good}");
        }
        for bad in ["", "0s", "0h0m", "999ms", "10", "-1s"] {
            assert!(time(bad).is_err(), "{bad}");
        }
        for (text, of_object, of_namespace) in [
            ("web", true, true),
            ("web-1.example", true, false),
            ("", false, false),
            ("Web", false, false),
            ("-web", false, false),
            ("a b", false, false),
            ("a/b", false, false),
            ("a'b", false, false),
            (&"x".repeat(64), true, false),
            (&"x".repeat(254), false, false),
        ] {
            assert_eq!((name(text).is_ok(), namespace(text).is_ok()), (of_object, of_namespace), "{text}");
        }
        for (text, good) in [("web", true), ("ph/web", true), ("pod/web", false), ("preheat/", false), ("A B", false)] {
            assert_eq!(job(text).is_ok(), good, "{text}");
        }
        assert!(log("info,stoker_agent=debug").is_ok());
        assert!(log("stoker=loud").unwrap_err().contains("write error, warn"));
    }
}

//! The target of a redirect.
//!
//! The address of the request and the `Location` header come in; the address to ask next goes out, resolved as in RFC 3986,
//! section 5.2. Any text is accepted; the result is `None` unless it is an http or https address. Whether a redirect to it
//! may be followed is decided elsewhere.

use http::{HeaderValue, Uri};

const LONGEST: usize = 16 * 1024;

/// The parts of a reference (RFC 3986, appendix B), without the fragment, which is never sent.
#[derive(Debug, Clone, Copy)]
struct Parts<'a> {
    scheme: Option<&'a str>,
    authority: Option<&'a str>,
    path: &'a str,
    query: Option<&'a str>,
}

/// The target address of a Location header in an answer from `base`.
pub(crate) fn resolve(base: &Uri, location: &HeaderValue) -> Option<Uri> {
    let text = location.to_str().ok().filter(|text| !text.is_empty() && text.len() <= LONGEST)?;
    let uri: Uri = target(base, text)?.parse().ok()?;
    // A user in an address would be somebody else's choice of credentials.
    let plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    (plain && uri.host().is_some_and(|host| !host.is_empty())).then_some(uri)
}

/// The target as text; `None` if it is not http or https, or has no host.
fn target(base: &Uri, reference: &str) -> Option<String> {
    let given = split(reference);
    let scheme = given.scheme.or(base.scheme_str()).filter(|scheme| is_http(scheme))?;
    let own = base.authority()?.as_str();
    // Parts left of the first one that the reference gives come from the base.
    let (authority, path, query) = match given {
        Parts { scheme: None, authority: None, path: "", query, .. } => {
            (own, base.path().to_owned(), query.or(base.query()))
        }
        Parts { scheme: None, authority: None, path, query } if path.starts_with('/') => {
            (own, remove_dots(path), query)
        }
        Parts { scheme: None, authority: None, path, query } => (own, remove_dots(&merge(base.path(), path)), query),
        Parts { authority, path, query, .. } => (authority?, remove_dots(path), query),
    };
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    Some(format!("{scheme}://{authority}{path}{query}"))
}

fn is_http(scheme: &str) -> bool {
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}

fn split(text: &str) -> Parts<'_> {
    let text = text.split('#').next().unwrap_or("");
    let (text, query) = text.split_once('?').map_or((text, None), |(text, query)| (text, Some(query)));
    let (scheme, text) = match text.split_once(':').filter(|(scheme, _)| !scheme.is_empty() && !scheme.contains('/')) {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, text),
    };
    let (authority, path) = match text.strip_prefix("//") {
        Some(rest) => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            (Some(authority), path)
        }
        None => (None, text),
    };
    Parts { scheme, authority, path, query }
}

/// Replaces the last segment of the base's path by a relative path.
fn merge(base: &str, path: &str) -> String {
    let folder = base.rsplit_once('/').map_or("", |(folder, _)| folder);
    format!("{folder}/{path}")
}

/// Removes `.` and `..` segments; `..` at the root is dropped.
fn remove_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.strip_prefix('/').unwrap_or(path).split('/').peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            segment => kept.push(segment),
        }
    }
    if path.is_empty() { String::new() } else { format!("/{}", kept.join("/")) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seen_from(base: &str, location: &str) -> Option<String> {
        let uri = resolve(&base.parse().unwrap(), &HeaderValue::from_str(location).unwrap());
        uri.map(|uri| uri.to_string())
    }

    /// RFC 3986, sections 5.4.1 and 5.4.2, without fragments; schemes other than http are `None`.
    #[test]
    fn the_examples_of_the_rfc() {
        for (location, expected) in [
            ("g:h", None),
            ("g", Some("http://a/b/c/g")),
            ("./g", Some("http://a/b/c/g")),
            ("g/", Some("http://a/b/c/g/")),
            ("/g", Some("http://a/g")),
            ("//g", Some("http://g/")),
            ("?y", Some("http://a/b/c/d;p?y")),
            ("g?y", Some("http://a/b/c/g?y")),
            ("#s", Some("http://a/b/c/d;p?q")),
            ("g#s", Some("http://a/b/c/g")),
            ("g?y#s", Some("http://a/b/c/g?y")),
            (";x", Some("http://a/b/c/;x")),
            ("g;x", Some("http://a/b/c/g;x")),
            ("g;x?y#s", Some("http://a/b/c/g;x?y")),
            (".", Some("http://a/b/c/")),
            ("./", Some("http://a/b/c/")),
            ("..", Some("http://a/b/")),
            ("../", Some("http://a/b/")),
            ("../g", Some("http://a/b/g")),
            ("../..", Some("http://a/")),
            ("../../", Some("http://a/")),
            ("../../g", Some("http://a/g")),
            ("../../../g", Some("http://a/g")),
            ("../../../../g", Some("http://a/g")),
            ("/./g", Some("http://a/g")),
            ("/../g", Some("http://a/g")),
            ("g.", Some("http://a/b/c/g.")),
            (".g", Some("http://a/b/c/.g")),
            ("g..", Some("http://a/b/c/g..")),
            ("..g", Some("http://a/b/c/..g")),
            ("./../g", Some("http://a/b/g")),
            ("./g/.", Some("http://a/b/c/g/")),
            ("g/./h", Some("http://a/b/c/g/h")),
            ("g/../h", Some("http://a/b/c/h")),
            ("g;x=1/./y", Some("http://a/b/c/g;x=1/y")),
            ("g;x=1/../y", Some("http://a/b/c/y")),
            ("g?y/./x", Some("http://a/b/c/g?y/./x")),
            ("g?y/../x", Some("http://a/b/c/g?y/../x")),
            ("g#s/./x", Some("http://a/b/c/g")),
            ("g#s/../x", Some("http://a/b/c/g")),
            ("http:g", None),
        ] {
            assert_eq!(seen_from("http://a/b/c/d;p?q", location).as_deref(), expected, "{location}");
        }
    }

    #[test]
    fn what_registries_send_and_what_nobody_should() {
        for (location, expected) in [
            ("https://cdn.io/b?sig=1%2F..%2F2", Some("https://cdn.io/b?sig=1%2F..%2F2")),
            ("HTTPS://cdn.io", Some("https://cdn.io/")),
            ("//cdn.io/b", Some("https://cdn.io/b")),
            ("/b#frag", Some("https://reg.io:5000/b")),
            ("../../c/blobs/x", Some("https://reg.io:5000/v2/c/blobs/x")),
            ("sha256:12", None),
            ("./sha256:12", Some("https://reg.io:5000/v2/a/blobs/sha256:12")),
            ("//cdn.io//b///c", Some("https://cdn.io//b///c")),
            ("file:///etc/passwd", None),
            ("https://user:pass@cdn.io/b", None),
            ("https://", None),
            ("https:///b", None),
            ("", None),
        ] {
            assert_eq!(seen_from("https://reg.io:5000/v2/a/blobs/x?y=1", location).as_deref(), expected, "{location}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn any_text_is_read_without_panic(text in "[ -~]{0,60}") {
            seen_from("https://reg.io/v2/a/blobs/x", &text);
        }

        #[test]
        fn no_relative_way_leads_to_another_host_or_keeps_a_dot(text in "(\\.|\\.\\.|a|/){0,12}") {
            prop_assume!(!text.starts_with("//") && !text.is_empty());
            let uri = seen_from("https://reg.io/v2/a/blobs/x", &text).unwrap();
            prop_assert!(uri.starts_with("https://reg.io/"), "{}", uri);
            prop_assert!(!uri.trim_start_matches("https://").split('/').any(|s| s == "." || s == ".."), "{}", uri);
        }
    }
}

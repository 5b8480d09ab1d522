//! What a registry asks for with a 401.
//!
//! The text of `WWW-Authenticate` headers comes in; schemes and their parameters go out. It takes any text: what
//! makes no sense is left out.

use http::HeaderMap;
use http::header::WWW_AUTHENTICATE;

/// More text than this in one header is no challenge but an attack.
const LONGEST: usize = 8 * 1024;
/// Nobody offers more ways than this.
const MOST: usize = 8;

/// One way to prove who we are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// User name and password with each request.
    Basic,
    /// A token from somewhere else.
    Bearer(Bearer),
}

/// Where and for what to get a token.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Bearer {
    pub(crate) realm: String,
    pub(crate) service: Option<String>,
    pub(crate) scope: Option<String>,
}

/// All the challenges of an answer that we know how to meet.
pub(crate) fn challenges(headers: &HeaderMap) -> Vec<Challenge> {
    headers
        .get_all(WWW_AUTHENTICATE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .filter(|text| text.len() <= LONGEST)
        .flat_map(parse)
        .take(MOST)
        .collect()
}

/// Reads one header, which may hold several challenges.
pub(crate) fn parse(text: &str) -> Vec<Challenge> {
    let mut found: Vec<(String, Bearer)> = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
        if rest.is_empty() {
            break;
        }
        let (word, after) = split_word(rest);
        if word.is_empty() {
            // Not the start of anything: step over one character, so that we always end.
            rest = rest.get(rest.chars().next().map_or(1, char::len_utf8)..).unwrap_or("");
            continue;
        }
        match after.trim_start().strip_prefix('=') {
            Some(value) => {
                let (value, after) = split_value(value.trim_start());
                if let Some((_, bearer)) = found.last_mut() {
                    set(bearer, word, value);
                }
                rest = after;
            }
            None => {
                found.push((word.to_ascii_lowercase(), Bearer::default()));
                rest = after;
            }
        }
    }
    found
        .into_iter()
        .filter_map(|(scheme, bearer)| match scheme.as_str() {
            "basic" => Some(Challenge::Basic),
            "bearer" if !bearer.realm.is_empty() => Some(Challenge::Bearer(bearer)),
            _ => None,
        })
        .collect()
}

fn set(bearer: &mut Bearer, name: &str, value: String) {
    match name.to_ascii_lowercase().as_str() {
        "realm" => bearer.realm = value,
        "service" => bearer.service = Some(value),
        "scope" => bearer.scope = Some(value),
        _ => {}
    }
}

fn split_word(text: &str) -> (&str, &str) {
    let end =
        text.find(|c: char| !(c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~:/".contains(c))).unwrap_or(text.len());
    text.split_at(end)
}

/// A word, or a quoted text with backslashes.
fn split_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let (word, rest) = split_word(text);
        return (word.to_owned(), rest);
    };
    let mut value = String::new();
    let mut escaped = false;
    for (at, c) in quoted.char_indices() {
        match c {
            _ if escaped => {
                value.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return (value, quoted.get(at + 1..).unwrap_or("")),
            c => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Challenge {
        Challenge::Bearer(Bearer {
            realm: realm.into(),
            service: service.map(Into::into),
            scope: scope.map(Into::into),
        })
    }

    #[test]
    fn what_registries_send() {
        let hub = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/nginx:pull""#;
        let all = Some("repository:library/nginx:pull");
        for (text, expected) in [
            (hub, vec![bearer("https://auth.docker.io/token", Some("registry.docker.io"), all)]),
            (r#"basic realm="a, \"b\"""#, vec![Challenge::Basic]),
            (
                r#"Negotiate, Basic realm=x, BEARER Realm = "https://t" , scope="a,b c""#,
                vec![Challenge::Basic, bearer("https://t", None, Some("a,b c"))],
            ),
            (r#"Bearer service="s""#, vec![]),
            (r#"Bearer realm="https://t"#, vec![bearer("https://t", None, None)]),
            ("", vec![]),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn any_text_is_read_without_panic(text in ".{0,200}") {
            parse(&text);
        }

        #[test]
        fn near_challenges_are_read_without_panic(text in r#"(Bearer|Basic|[a-z]|=|"|\\|,| |realm|é){0,40}"#) {
            parse(&text);
        }

        #[test]
        fn what_was_quoted_comes_back(realm in "[ -~]{1,40}", scope in "[ -~]{0,40}") {
            let quote = |text: &str| text.replace('\\', r"\\").replace('"', "\\\"");
            let header = format!(r#"Bearer realm="{}",scope="{}""#, quote(&realm), quote(&scope));
            prop_assert_eq!(parse(&header), vec![bearer(&realm, None, Some(&scope))]);
        }
    }
}

//! The explanation in an answer that is an error.
//!
//! The body of an answer comes in; one short line for an error message goes out. Registries explain themselves by
//! `{"errors": [{"code", "message", "detail"}]}`, token servers by OAuth's fields or `{"details"}`, storage servers by XML,
//! proxies by a line of text. Control characters, signed addresses and our own secrets are removed.

use serde::Deserialize;
use serde_json::Value;

/// Characters that are shown.
const LONGEST: usize = 300;
const MOST_ERRORS: usize = 3;

#[derive(Deserialize)]
struct Explained {
    #[serde(default)]
    errors: Vec<Value>,
    error: Option<Value>,
    error_description: Option<Value>,
    details: Option<Value>,
    message: Option<Value>,
}

/// The explanation in the body, if there is one. `secrets` are replaced by stars.
pub(crate) fn explanation(body: &[u8], secrets: &[&str]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?.trim_start_matches('\u{feff}').trim();
    let said = match text.chars().next()? {
        '{' => json(text)?,
        '<' => xml(text)?,
        '[' | '"' => return None,
        _ => text.to_owned(),
    };
    // Hidden again in what is shown: without the characters and queries that are left out, a text may read as a secret.
    let hide = |text: String| {
        secrets.iter().filter(|secret| !secret.is_empty()).fold(text, |text, secret| text.replace(secret, "***"))
    };
    Some(cut(hide(line(&hide(said))))).filter(|line| !line.is_empty())
}

fn json(text: &str) -> Option<String> {
    let explained: Explained = serde_json::from_str(text).ok()?;
    let errors: Vec<String> = explained.errors.iter().take(MOST_ERRORS).map(error).filter(|e| !e.is_empty()).collect();
    if !errors.is_empty() {
        return Some(errors.join("; "));
    }
    let error = explained.error.as_ref().map(|value| match value {
        Value::Object(_) => error(value),
        other => words(other),
    });
    let more = [&explained.error_description, &explained.details, &explained.message];
    let more = more.into_iter().flatten().map(words);
    let all: Vec<String> = error.into_iter().chain(more).filter(|text| !text.is_empty()).collect();
    Some(all.join(": "))
}

/// `CODE: message (detail)`, without the parts that are missing.
fn error(value: &Value) -> String {
    let part = |name: &str| value.get(name).map(words).unwrap_or_default();
    let (code, message, detail) = (part("code"), part("message"), part("detail"));
    let named: Vec<String> = [code, message].into_iter().filter(|text| !text.is_empty()).collect();
    match (named.is_empty(), detail.is_empty()) {
        (_, true) => named.join(": "),
        (true, false) => detail,
        (false, false) => format!("{} ({detail})", named.join(": ")),
    }
}

fn words(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(list) if list.is_empty() => String::new(),
        Value::Object(map) if map.is_empty() => String::new(),
        other => other.to_string(),
    }
}

/// The code and message of S3's, Google's and Azure's errors. Other elements may hold the request's signature.
fn xml(text: &str) -> Option<String> {
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once(&format!("</{name}>")).map(|(inner, _)| inner.trim()).filter(|inner| !inner.is_empty())
    };
    let parts: Vec<&str> = ["Code", "Message"].into_iter().filter_map(element).collect();
    (!parts.is_empty()).then(|| parts.join(": "))
}

/// The text in one line of printable characters.
fn line(text: &str) -> String {
    let plain: String =
        text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).filter(|c| is_shown(*c)).collect();
    let words: Vec<&str> = plain.split(' ').filter(|word| !word.is_empty()).map(unsigned).collect();
    words.join(" ")
}

/// As much of a line as fits into an error message.
fn cut(line: String) -> String {
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// False for characters that move the cursor or change the direction of text.
fn is_shown(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The word without its query, which may hold the signature of an address.
fn unsigned(word: &str) -> &str {
    match word.split_once('?') {
        Some((before, query)) if query.contains('=') => before,
        _ => word,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_servers_say() {
        for (body, said) in [
            (
                r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown","detail":{"Tag":"v9"}}]}"#,
                Some(r#"MANIFEST_UNKNOWN: manifest unknown ({"Tag":"v9"})"#),
            ),
            (
                r#"{"errors":[{"code":"DENIED","message":"requested access is denied","detail":null}]}"#,
                Some("DENIED: requested access is denied"),
            ),
            (
                r#"{"errors":[{"code":"A","message":"a"},{"code":"B"},{"message":"c"},{"code":"D"}]}"#,
                Some("A: a; B; c"),
            ),
            (r#"{"errors":[{"detail":"only this"}]}"#, Some("only this")),
            (r#"{"errors":[]}"#, None),
            (r#"{"details":"incorrect username or password"}"#, Some("incorrect username or password")),
            (r#"{"error":"invalid_grant","error_description":"bad login"}"#, Some("invalid_grant: bad login")),
            (r#"{"error":{"code":503,"message":"down"}}"#, Some("503: down")),
            (r#"{"message":"no such project"}"#, Some("no such project")),
            (
                "<?xml version=\"1.0\"?>\n<Error><Code>AccessDenied</Code><Message>Request has expired</Message>\
              <StringToSign>secret</StringToSign></Error>",
                Some("AccessDenied: Request has expired"),
            ),
            ("<html><h1>502 Bad Gateway</h1></html>", None),
            ("upstream connect error\r\n or disconnect\n", Some("upstream connect error or disconnect")),
            ("", None),
            ("{", None),
            ("[]", None),
            ("\u{feff}no", Some("no")),
        ] {
            assert_eq!(explanation(body.as_bytes(), &[]).as_deref(), said, "{body}");
        }
        assert_eq!(explanation(&[0xff, 0xfe], &[]), None);
    }

    #[test]
    fn secrets_and_signatures_are_left_out() {
        let body =
            r#"{"errors":[{"code":"X","message":"Basic YWRh of hunter2, see https://cdn.test/b?X-Sig=abc now"}]}"#;
        let said = explanation(body.as_bytes(), &["YWRh", "hunter2", ""]).unwrap();
        assert_eq!(said, "X: Basic *** of ***, see https://cdn.test/b now");
        for body in ["no hun\0ter2", "no hunter\u{200b}2", "no \x1bhunter2"] {
            assert_eq!(explanation(body.as_bytes(), &["hunter2"]).unwrap(), "no ***", "{body:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn it_is_one_short_line(message in ".{0,600}", plain in any::<bool>()) {
            let body = if plain { message } else { serde_json::json!({"errors": [{"message": message}]}).to_string() };
            if let Some(said) = explanation(body.as_bytes(), &[]) {
                prop_assert!(said.chars().count() <= LONGEST + 1);
                prop_assert!(said.chars().all(is_shown));
            }
        }
    }
}

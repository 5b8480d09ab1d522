//! Label and field selectors. In: the text of a query and an object's labels or fields. Out: whether it matches. It never
//! fails on an object; a text that does not parse is refused with its place.

use serde_json::Value;
use thiserror::Error;

/// Selectors longer than this are refused: no real one comes near.
const MAX_LENGTH: usize = 64 * 1024;

/// Why a selector was not understood.
#[derive(Debug, Error, PartialEq)]
pub(crate) enum SelectError {
    #[error("unable to parse requirement: {0}")]
    Requirement(String),
    #[error("invalid selector: {0:?}; write key=value, key==value or key!=value")]
    FieldTerm(String),
    #[error("the selector is longer than {MAX_LENGTH} bytes; select less at once")]
    TooLong,
}

/// A parsed label selector; empty matches everything.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Labels(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Above(i64),
    Below(i64),
}

impl Labels {
    pub(crate) fn parse(text: &str) -> Result<Self, SelectError> {
        if text.len() > MAX_LENGTH {
            return Err(SelectError::TooLong);
        }
        split_outside_parentheses(text).into_iter().map(requirement).collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `labels` is the `metadata.labels` of an object, if it has any.
    pub(crate) fn matches(&self, labels: Option<&Value>) -> bool {
        self.0.iter().all(|requirement| {
            let value = labels.and_then(|l| l.get(&requirement.key)).and_then(Value::as_str);
            let number = || value.and_then(|v| v.parse::<i64>().ok());
            match &requirement.test {
                Test::In(values) => value.is_some_and(|v| values.iter().any(|x| x == v)),
                Test::NotIn(values) => value.is_none_or(|v| values.iter().all(|x| x != v)),
                Test::Exists => value.is_some(),
                Test::Absent => value.is_none(),
                Test::Above(limit) => number().is_some_and(|n| n > *limit),
                Test::Below(limit) => number().is_some_and(|n| n < *limit),
            }
        })
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_u32);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(text.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(text.get(start..).unwrap_or_default());
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn requirement(text: &str) -> Result<Requirement, SelectError> {
    let wrong = |why: &str| SelectError::Requirement(format!("{text:?}: {why}"));
    let made = |key: &str, test: Test| {
        let key = key.trim();
        if is_label_key(key) {
            Ok(Requirement { key: key.to_owned(), test })
        } else {
            Err(wrong("the key must be a label name such as example.com/tier"))
        }
    };
    let value = |v: &str| {
        let v = v.trim();
        if is_label_value(v) {
            Ok(v.to_owned())
        } else {
            Err(wrong("a value must be at most 63 letters, digits, '-', '_' or '.'"))
        }
    };
    if let Some(key) = text.strip_prefix('!') {
        return made(key, Test::Absent);
    }
    if let Some((left, right)) = text.split_once('(') {
        let inner = right.strip_suffix(')').ok_or_else(|| wrong("')' is missing"))?;
        let values = inner.split(',').map(value).collect::<Result<Vec<_>, _>>()?;
        let mut words = left.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(key), Some("in"), None) => made(key, Test::In(values)),
            (Some(key), Some("notin"), None) => made(key, Test::NotIn(values)),
            _ => Err(wrong("write `key in (a,b)` or `key notin (a,b)`")),
        };
    }
    for (operator, negated) in [("!=", true), ("==", false), ("=", false)] {
        if let Some((key, wanted)) = text.split_once(operator) {
            let values = vec![value(wanted)?];
            return made(key, if negated { Test::NotIn(values) } else { Test::In(values) });
        }
    }
    for (operator, above) in [(">", true), ("<", false)] {
        if let Some((key, limit)) = text.split_once(operator) {
            let limit = limit.trim().parse().map_err(|_| wrong("the limit must be a whole number"))?;
            return made(key, if above { Test::Above(limit) } else { Test::Below(limit) });
        }
    }
    made(text, Test::Exists)
}

/// `name` or `prefix/name` as Kubernetes allows it for labels, annotations and finalizers.
pub(crate) fn is_label_key(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(p, n)| (Some(p), n));
    !name.is_empty()
        && is_label_value(name)
        && prefix.is_none_or(|p| !p.is_empty() && p.len() <= 253 && crate::object::is_subdomain(p))
}

/// At most 63 characters of `[A-Za-z0-9_.-]`, a letter or digit at both ends; may be empty.
pub(crate) fn is_label_value(value: &str) -> bool {
    let plain = |b: &u8| b.is_ascii_alphanumeric();
    let bytes = value.as_bytes();
    value.len() <= 63
        && bytes.iter().all(|b| plain(b) || b"-_.".contains(b))
        && bytes.first().is_none_or(plain)
        && bytes.last().is_none_or(plain)
}

/// A parsed field selector, not yet checked against the fields of a kind.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Fields(pub(crate) Vec<FieldTerm>);

/// `field=value` or `field!=value`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FieldTerm {
    pub(crate) field: String,
    pub(crate) value: String,
    pub(crate) equal: bool,
}

impl Fields {
    pub(crate) fn parse(text: &str) -> Result<Self, SelectError> {
        if text.len() > MAX_LENGTH {
            return Err(SelectError::TooLong);
        }
        split_unescaped(text).into_iter().filter(|t| !t.is_empty()).map(field_term).collect::<Result<_, _>>().map(Self)
    }
}

fn field_term(text: String) -> Result<FieldTerm, SelectError> {
    for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some((field, value)) = text.split_once(operator) {
            let field = field.trim().to_owned();
            if field.is_empty() {
                break;
            }
            return Ok(FieldTerm { field, value: unescape(value), equal });
        }
    }
    Err(SelectError::FieldTerm(text))
}

/// Commas part the terms; a backslash keeps the next character as it is.
fn split_unescaped(text: &str) -> Vec<String> {
    let (mut parts, mut current, mut escaped) = (Vec::new(), String::new(), false);
    for c in text.chars() {
        if c == ',' && !escaped {
            parts.push(std::mem::take(&mut current));
            continue;
        }
        escaped = c == '\\' && !escaped;
        current.push(c);
    }
    parts.push(current);
    parts
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => out.extend(characters.next()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn label_selectors_match_as_documented() {
        let labels = json!({"app": "web", "tier": "front", "n": "7", "example.com/x": ""});
        for (selector, matches) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier=front", true),
            ("app!=web", false),
            ("missing!=web", true),
            ("app in (api, web)", true),
            ("app notin (api,web)", false),
            ("missing notin (a)", true),
            ("app", true),
            ("!app", false),
            ("!missing", true),
            ("n>6,n<8", true),
            ("n>7", false),
            ("example.com/x=", true),
            ("app in (api),tier=front", false),
        ] {
            assert_eq!(Labels::parse(selector).unwrap().matches(Some(&labels)), matches, "{selector}");
        }
        assert!(Labels::parse("!a").unwrap().matches(None));
    }

    #[test]
    fn wrong_label_selectors_are_refused() {
        for text in ["a in (b", "a within (b)", "=b", "-a=b", "a=b c", "a>x", "a=(b)"] {
            assert!(Labels::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn field_selectors_split_and_unescape() {
        let fields = Fields::parse(r"metadata.name=a\,b,status.phase!=Failed,").unwrap();
        let terms: Vec<_> = fields.0.iter().map(|t| (t.field.as_str(), t.value.as_str(), t.equal)).collect();
        assert_eq!(terms, [("metadata.name", "a,b", true), ("status.phase", "Failed", false)]);
        assert!(Fields::parse("metadata.name").is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-z!=(),<>\\\\ ./ä-]{0,40}") {
            let labels = json!({"a": "b"});
            if let Ok(selector) = Labels::parse(&text) {
                selector.matches(Some(&labels));
            }
            let _ = Fields::parse(&text);
        }
    }
}

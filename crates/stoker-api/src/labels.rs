//! Label selectors as Kubernetes writes them, in objects and on command lines.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use stoker_core::select::{self, Operator, Requirement};

/// The longest key of a label: a prefix of 253 characters, a slash and a name of 63.
const LONGEST_KEY: usize = 317;
/// The longest value of a label.
const LONGEST_VALUE: usize = 63;
/// A key of a label, as API servers accept it. No pattern can say that a prefix has at most 253 characters.
const KEY: &str = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$";
/// A value of a label.
const VALUE: &str = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";

/// A selector on labels. An empty one takes everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels that must have exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend(
        "maxProperties" = 64,
        "additionalProperties" = json!({ "type": "string", "maxLength": LONGEST_VALUE, "pattern": VALUE })
    ))]
    pub match_labels: BTreeMap<String, String>,
    /// Conditions that must all hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<Expression>,
}

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
    "message": "values go with the operators In and NotIn, and only with those",
}]))]
pub struct Expression {
    /// The label.
    #[schemars(length(min = 1, max = LONGEST_KEY), regex(pattern = KEY))]
    pub key: String,
    /// How the label is compared.
    pub operator: Comparison,
    /// With what, for In and NotIn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 256),
        inner(length(max = LONGEST_VALUE), regex(pattern = VALUE)),
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub values: Vec<String>,
}

/// How a condition compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Comparison {
    /// One of the values.
    In,
    /// None of the values, or no such label.
    NotIn,
    /// Any value.
    Exists,
    /// No such label.
    DoesNotExist,
}

/// The core's selector.
pub fn to_core(selector: &LabelSelector) -> select::Selector {
    let exact = selector.match_labels.iter().map(|(key, value)| Requirement {
        key: key.clone(),
        operator: Operator::In,
        values: [value.clone()].into(),
    });
    let conditions = selector.match_expressions.iter().map(|expression| Requirement {
        key: expression.key.clone(),
        operator: match expression.operator {
            Comparison::In => Operator::In,
            Comparison::NotIn => Operator::NotIn,
            Comparison::Exists => Operator::Exists,
            Comparison::DoesNotExist => Operator::DoesNotExist,
        },
        values: expression.values.iter().cloned().collect(),
    });
    select::Selector(exact.chain(conditions).collect())
}

/// Why an API server would refuse this selector, where it would: a text in it is not a key or not a value of a label. The schema refuses
/// such values, and such keys in `matchExpressions`. It cannot refuse keys of `matchLabels`: structural schemas have no `propertyNames`, and
/// an API server refuses a CEL rule that matches keys, because it takes each key to be as long as a request. Objects may also be older
/// than the schema.
pub(crate) fn problem(selector: &LabelSelector) -> Option<String> {
    let expressions = &selector.match_expressions;
    let mut keys = selector.match_labels.keys().chain(expressions.iter().map(|expression| &expression.key));
    let mut values = selector.match_labels.values().chain(expressions.iter().flat_map(|expression| &expression.values));
    let say = |text: &String, what: &str| {
        let start: String = text.chars().take(80).collect();
        format!("`{start}` is not {what} of a label: use letters, digits, `-`, `_` and `.`, as in app=web")
    };
    let bad_key = keys.find(|key| !is_key(key)).map(|key| say(key, "a key"));
    bad_key.or_else(|| values.find(|value| !is_value(value)).map(|value| say(value, "a value")))
}

/// Whether this is a key of a label.
fn is_key(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let in_part = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let ends = |text: &str| text.starts_with(char::is_alphanumeric) && text.ends_with(char::is_alphanumeric);
    let is_part = |text: &str| text.bytes().all(in_part) && ends(text);
    let is_domain = |text: &str| text.len() <= 253 && text.split('.').all(is_part);
    prefix.is_none_or(is_domain) && !name.is_empty() && is_value(name)
}

/// Whether this is a value of a label.
fn is_value(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let ends = |byte: Option<u8>| byte.is_none_or(|byte| byte.is_ascii_alphanumeric());
    text.len() <= LONGEST_VALUE && text.bytes().all(legal) && ends(text.bytes().next()) && ends(text.bytes().last())
}

/// The selector as a request writes it; empty where it takes everything.
pub(crate) fn to_text(selector: &LabelSelector) -> String {
    let exact = selector.match_labels.iter().map(|(key, value)| format!("{key}={value}"));
    let conditions = selector.match_expressions.iter().map(|Expression { key, operator, values }| match operator {
        Comparison::In => format!("{key} in ({})", values.join(",")),
        Comparison::NotIn => format!("{key} notin ({})", values.join(",")),
        Comparison::Exists => key.clone(),
        Comparison::DoesNotExist => format!("!{key}"),
    });
    exact.chain(conditions).collect::<Vec<_>>().join(",")
}

/// Text that is not a selector.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "`{0}` is not a label selector: write conditions like zone=a, zone!=a, zone in (a,b), gpu, !gpu, joined by commas"
)]
pub struct NotASelector(String);

/// Reads the form of command lines: `zone=a,pool in (x,y),!gpu`.
pub fn parse(text: &str) -> Result<LabelSelector, NotASelector> {
    let bad = || NotASelector(text.chars().take(80).collect());
    let match_expressions =
        split(text).into_iter().map(|part| expression(part).ok_or_else(bad)).collect::<Result<_, _>>()?;
    Ok(LabelSelector { match_labels: BTreeMap::new(), match_expressions })
}

/// Splits at commas that are not inside parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0usize;
    let parts = text.split(move |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).collect()
}

fn expression(part: &str) -> Option<Expression> {
    let (key, operator, values) = if let Some((key, values)) = part.split_once(" notin ") {
        (key, Comparison::NotIn, list(values)?)
    } else if let Some((key, values)) = part.split_once(" in ") {
        (key, Comparison::In, list(values)?)
    } else if let Some((key, value)) = part.split_once("!=") {
        (key, Comparison::NotIn, vec![word(value)?])
    } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        (key, Comparison::In, vec![word(value)?])
    } else if let Some(key) = part.strip_prefix('!') {
        (key, Comparison::DoesNotExist, Vec::new())
    } else {
        (part, Comparison::Exists, Vec::new())
    };
    let key = word(key).filter(|key| !key.is_empty())?;
    Some(Expression { key, operator, values })
}

fn list(text: &str) -> Option<Vec<String>> {
    text.trim().strip_prefix('(')?.strip_suffix(')')?.split(',').map(word).collect()
}

/// A label's key or value; an empty value is legal.
fn word(text: &str) -> Option<String> {
    let text = text.trim();
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    text.chars().all(legal).then(|| text.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_selectors() {
        let labels: BTreeMap<String, String> =
            [("zone", "a"), ("gpu", "")].map(|(k, v)| (k.to_string(), v.to_string())).into();
        let cases = [
            ("zone=a", true),
            ("zone==b", false),
            ("zone!=b,gpu", true),
            ("zone in (b, a),!cpu", true),
            ("zone notin (a,b)", false),
            ("!gpu", false),
        ];
        for (text, expected) in cases {
            let selector = parse(text).unwrap();
            assert_eq!(to_core(&selector).matches(&labels), expected, "{text}");
            assert_eq!(parse(&to_text(&selector)).unwrap(), selector, "{text}");
        }
        for text in ["", "a b", "zone in a", "=x", "zone=a,,gpu", "zone in (a", "ключ=a"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_an_api_server_would_refuse_is_found_before_it_is_asked() {
        let selector = |key: &str, value: &str| {
            let exact = LabelSelector { match_labels: [(key.into(), value.into())].into(), ..LabelSelector::default() };
            let values = vec![value.to_string()];
            let expression = Expression { key: key.into(), operator: Comparison::In, values };
            [exact, LabelSelector { match_expressions: vec![expression], ..LabelSelector::default() }]
        };
        let (long_name, long_domain) = ("n".repeat(64), format!("{}/n", "d".repeat(254)));
        for (key, value) in [("app", "web"), ("app", ""), ("a.b-c/App_1.x", "V-1_x.y"), ("A", "0")] {
            for selector in selector(key, value) {
                assert_eq!(problem(&selector), None, "{selector:?}");
                assert_eq!(to_core(&parse(&to_text(&selector)).unwrap()), to_core(&selector), "{selector:?}");
            }
        }
        for (key, value) in [
            ("app", "a b"),
            ("app", "a,b"),
            ("app", "-a"),
            ("app", "a."),
            ("app", "ü"),
            ("app", &long_name),
            ("", "a"),
            ("a b", "a"),
            ("a,b", "a"),
            ("/a", "a"),
            ("x/", "a"),
            ("X/a", "a"),
            ("a..b/x", "a"),
            ("a.-b/x", "a"),
            (".a/x", "a"),
            ("a/b/c", "a"),
            (&long_name, "a"),
            (&long_domain, "a"),
            ("a=b", "a"),
        ] {
            for selector in selector(key, value) {
                assert!(problem(&selector).is_some(), "{selector:?}");
            }
        }
        assert_eq!(problem(&LabelSelector::default()), None);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}") {
            let _ = parse(&text);
        }
    }
}

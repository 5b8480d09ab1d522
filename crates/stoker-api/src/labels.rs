//! Label selectors as Kubernetes writes them, in objects and on command lines.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use stoker_core::select::{self, Operator, Requirement};

/// A selector on labels. An empty one takes everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Labels that must have exactly these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
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
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// How the label is compared.
    pub operator: Comparison,
    /// With what, for In and NotIn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(max = 63)), extend("x-kubernetes-list-type" = "atomic"))]
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

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}") {
            let _ = parse(&text);
        }
    }
}

//! The part of JSONPath that printer columns and selectable fields use. In: a path such as
//! `.status.conditions[?(@.type=="Ready")].status` and a value. Out: the values it finds. No scripts, no recursive descent.

use serde_json::Value;
use thiserror::Error;

/// Why a path was not understood.
#[derive(Debug, Error, PartialEq)]
#[error(
    "the JSONPath {path:?} is not understood at {at:?}; use .field, ['field'], [0], [*] or [?(@.field==\"value\")]"
)]
pub(crate) struct PathError {
    path: String,
    at: String,
}

/// A parsed path.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JsonPath(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    Where(Vec<String>, bool, Value),
}

impl JsonPath {
    pub(crate) fn parse(path: &str) -> Result<Self, PathError> {
        let trimmed = path.trim();
        let inner = trimmed.strip_prefix('{').and_then(|p| p.strip_suffix('}')).unwrap_or(trimmed);
        let mut rest = inner.strip_prefix('$').unwrap_or(inner);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let wrong = || PathError { path: path.to_owned(), at: rest.to_owned() };
            let (step, after) = step(rest).ok_or_else(wrong)?;
            steps.extend(step);
            rest = after;
        }
        Ok(Self(steps))
    }

    /// All values the path leads to, in order.
    pub(crate) fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        self.0.iter().fold(vec![value], |found, step| found.into_iter().flat_map(|value| follow(step, value)).collect())
    }
}

fn follow<'a>(step: &Step, value: &'a Value) -> Vec<&'a Value> {
    match step {
        Step::Field(name) => value.get(name).into_iter().collect(),
        Step::Index(at) => {
            let Some(list) = value.as_array() else { return Vec::new() };
            let at = if *at < 0 { at + list.len() as i64 } else { *at };
            usize::try_from(at).ok().and_then(|at| list.get(at)).into_iter().collect()
        }
        Step::All => children(value),
        Step::Where(path, equal, wanted) => children(value)
            .into_iter()
            .filter(|child| {
                let found = path.iter().try_fold(*child, |value, field| value.get(field));
                (found == Some(wanted)) == *equal
            })
            .collect(),
    }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(list) => list.iter().collect(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    }
}

/// The first step of a path and what is left; `None` inside for a lone dot.
fn step(path: &str) -> Option<(Option<Step>, &str)> {
    if let Some(rest) = path.strip_prefix('.') {
        if rest.is_empty() || rest.starts_with('[') {
            return Some((None, rest));
        }
        let (name, rest) = name(rest);
        let step = if name == "*" { Step::All } else { Step::Field(name) };
        return (!matches!(&step, Step::Field(name) if name.is_empty())).then_some((Some(step), rest));
    }
    if let Some(rest) = path.strip_prefix("[?(") {
        let (filter, rest) = rest.split_once(")]")?;
        return Some((Some(condition(filter)?), rest));
    }
    if let Some(rest) = path.strip_prefix('[') {
        let (inside, rest) = rest.split_once(']')?;
        let quoted = |q: char| inside.strip_prefix(q).and_then(|i| i.strip_suffix(q));
        let step = match quoted('\'').or_else(|| quoted('"')) {
            Some(name) => Step::Field(name.to_owned()),
            None if inside == "*" => Step::All,
            None => Step::Index(inside.trim().parse().ok()?),
        };
        return Some((Some(step), rest));
    }
    // A path may start without its dot, as in `status.phase`.
    let (name, rest) = name(path);
    (!name.is_empty()).then_some((Some(Step::Field(name)), rest))
}

/// A field name up to the next `.` or `[`; `\.` is a dot of the name.
fn name(path: &str) -> (String, &str) {
    let (mut name, mut escaped) = (String::new(), false);
    for (at, c) in path.char_indices() {
        match c {
            _ if escaped => {
                name.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '.' | '[' => return (name, path.get(at..).unwrap_or_default()),
            c => name.push(c),
        }
    }
    (name, "")
}

fn condition(filter: &str) -> Option<Step> {
    let (path, equal, wanted) = match filter.split_once("==") {
        Some((path, wanted)) => (path, true, wanted),
        None => filter.split_once("!=").map(|(path, wanted)| (path, false, wanted))?,
    };
    let path = path.trim().strip_prefix("@.")?.split('.').map(str::to_owned).collect();
    let wanted = wanted.trim();
    let single = wanted.strip_prefix('\'').and_then(|w| w.strip_suffix('\''));
    let wanted = match single {
        Some(text) => Value::String(text.to_owned()),
        None => serde_json::from_str(wanted).ok()?,
    };
    Some(Step::Where(path, equal, wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn finds_what_columns_need() {
        let value = json!({
            "metadata": {"labels": {"a.b/c": "x"}},
            "spec": {"list": [1, 2, 3]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}]},
        });
        for (path, found) in [
            (".spec.list[0]", vec![json!(1)]),
            (".spec.list[-1]", vec![json!(3)]),
            (".spec.list[*]", vec![json!(1), json!(2), json!(3)]),
            (r".metadata.labels.a\.b/c", vec![json!("x")]),
            (".metadata.labels['a.b/c']", vec![json!("x")]),
            (r#".status.conditions[?(@.type=="Ready")].status"#, vec![json!("True")]),
            (".status.conditions[?(@.type=='Other')].status", vec![json!("False")]),
            ("{.spec.list[9]}", vec![]),
            ("status.missing.field", vec![]),
        ] {
            let found_now: Vec<_> = JsonPath::parse(path).unwrap().find(&value).into_iter().cloned().collect();
            assert_eq!(found_now, found, "{path}");
        }
    }

    #[test]
    fn wrong_paths_say_where() {
        for path in [".a[", ".a[?(@.b)]", ".a[x]", "..a"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }

    proptest! {
        #[test]
        fn no_path_panics(path in "[.\\[\\]?@()='\"a0*\\\\ä-]{0,30}") {
            if let Ok(path) = JsonPath::parse(&path) {
                path.find(&json!({"a": [{"a": 0}]}));
            }
        }
    }
}

//! Table output, as `kubectl get` prints it. In: a version's columns and objects. Out: `meta.k8s.io/v1` Tables. Times become
//! ages with the clock that was handed in.

pub(crate) mod jsonpath;

use crate::kind::{Column, Version};
use crate::object::text;
use jiff::Timestamp;
use serde_json::{Value, json};

/// A table with its head.
pub(crate) fn table(version: &Version, rows: Vec<Value>, meta: Value, columns: bool) -> Value {
    let mut definitions = Vec::new();
    if columns {
        definitions.push(json!({
            "name": "Name", "type": "string", "format": "name", "priority": 0,
            "description": "Name must be unique within a namespace.",
        }));
        definitions.extend(version.columns.iter().map(definition));
    }
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": definitions,
        "rows": rows,
    })
}

fn definition(column: &Column) -> Value {
    json!({
        "name": column.name,
        // An age is text by the time it is in a cell.
        "type": if column.kind == "date" { "string" } else { &column.kind },
        "format": column.format,
        "description": column.description,
        "priority": column.priority,
    })
}

/// The row of one object.
pub(crate) fn row(version: &Version, object: &Value, attached: Option<Value>, now: Timestamp) -> Value {
    let mut cells = vec![json!(text(object, "name"))];
    cells.extend(version.columns.iter().map(|column| cell(column, object, now)));
    let mut row = json!({ "cells": cells });
    if let Some(attached) = attached {
        row["object"] = attached;
    }
    row
}

fn cell(column: &Column, object: &Value, now: Timestamp) -> Value {
    let found = column.path.find(object);
    let Some(first) = found.first() else { return Value::Null };
    match (column.kind.as_str(), first) {
        (_, Value::Null) => Value::Null,
        ("date", Value::String(text)) => match text.parse::<Timestamp>() {
            Ok(time) => json!(age(now.duration_since(time).as_secs())),
            Err(_) => json!("<unknown>"),
        },
        ("date", _) => json!("<unknown>"),
        ("integer", value) => value.as_i64().map_or(Value::Null, |n| json!(n)),
        ("number", value) => value.as_f64().map_or(Value::Null, |n| json!(n)),
        ("boolean", value) => value.as_bool().map_or(Value::Null, |b| json!(b)),
        (_, Value::String(_)) if found.len() == 1 => (*first).clone(),
        (_, value) if found.len() == 1 => json!(value.to_string()),
        _ => json!(Value::Array(found.into_iter().cloned().collect()).to_string()),
    }
}

/// A duration the way kubectl writes it: two units while it is short, one when it is long.
pub(crate) fn age(seconds: i64) -> String {
    let pair = |big: i64, big_unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{big}{big_unit}"),
        small => format!("{big}{big_unit}{small}{small_unit}"),
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        ..-2 => "<invalid>".to_owned(),
        -2..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => pair(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::age;

    #[test]
    fn ages_as_kubectl_writes_them() {
        for (seconds, text) in [
            (-60, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (3600, "60m"),
            (3 * 3600 + 60, "3h1m"),
            (30 * 3600, "30h"),
            (2 * 86_400 + 3600, "2d1h"),
            (30 * 86_400, "30d"),
            (3 * 365 * 86_400, "3y"),
        ] {
            assert_eq!(age(seconds), text, "{seconds}");
        }
    }
}

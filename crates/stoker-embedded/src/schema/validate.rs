//! Validation. In: an object (pruned, with defaults) and the object before. Out: one cause for each wrong field, worded as a
//! real server words it, at most [`MAX_CAUSES`] of them.

use super::fill::join;
use super::{ListType, Node, Shape, Type};
use crate::refusal::Cause;
use serde_json::{Value, json};

/// Wrong in a way that a rule may stumble over.
const BLOCKING: [&str; 5] =
    ["FieldValueNotSupported", "FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany", "FieldValueTypeInvalid"];
const UNCHECKED: &str = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";

/// More causes than this help nobody.
const MAX_CAUSES: usize = 64;

impl Shape {
    /// Checks structure first; rules run only on an object whose structure is right, as they may rely on it.
    /// `before` is what was found wrong with the metadata.
    pub(crate) fn validate(&self, value: &Value, old: Option<&Value>, before: &[Cause]) -> Vec<Cause> {
        let mut causes = Vec::new();
        check(&self.root, value, "", &mut causes);
        causes.truncate(MAX_CAUSES);
        let Some(rules) = &self.rules else { return causes };
        if causes.iter().chain(before).any(|cause| BLOCKING.contains(&cause.reason)) {
            causes.push(Cause::invalid("<nil>", &Value::Null, UNCHECKED));
            return causes;
        }
        rules.broken(value, old, &mut causes);
        causes.truncate(MAX_CAUSES);
        causes
    }
}

fn check(node: &Node, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    if causes.len() >= MAX_CAUSES {
        return;
    }
    if value.is_null() && node.nullable {
        return;
    }
    if !is_of(node.kind, value) {
        causes.push(wrong_type(node.kind, value, path));
        return;
    }
    if !node.limits.variants.is_empty() && !node.limits.variants.contains(value) {
        causes.push(Cause::unsupported(path, value, &node.limits.variants));
    }
    match value {
        Value::Object(map) => {
            for name in node.limits.required.iter().filter(|name| !map.contains_key(*name)) {
                causes.push(Cause::required(join(path, name), ""));
            }
            count(node.limits.min_properties, node.limits.max_properties, map.len(), path, "properties", causes);
            for (name, child) in map {
                if let Some(schema) = node.properties.get(name).or(node.additional.as_deref()) {
                    // Metadata has rules of its own, the same for every kind.
                    if path.is_empty() && name == "metadata" {
                        continue;
                    }
                    check(schema, child, &join(path, name), causes);
                }
            }
        }
        Value::Array(list) => check_list(node, list, path, causes),
        Value::String(text) => check_text(node, text, path, causes),
        Value::Number(_) => check_number(node, value, path, causes),
        _ => {}
    }
    check_junctors(node, value, path, causes);
}

fn is_of(kind: Type, value: &Value) -> bool {
    let whole = |value: &Value| value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0);
    match kind {
        Type::Object => value.is_object(),
        Type::Array => value.is_array(),
        Type::String => value.is_string(),
        Type::Integer => whole(value),
        Type::Number => value.is_number(),
        Type::Boolean => value.is_boolean(),
        Type::IntOrString => value.is_string() || whole(value),
        Type::Any => true,
    }
}

fn wrong_type(kind: Type, value: &Value, path: &str) -> Cause {
    let found = json!(match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    });
    let wanted = if kind == Type::IntOrString { "integer,string" } else { kind.name() };
    let detail = format!("{path} in body must be of type {wanted}: {found}");
    Cause::new("FieldValueTypeInvalid", path, format!("Invalid value: {found}: {detail}"))
}

fn check_list(node: &Node, list: &[Value], path: &str, causes: &mut Vec<Cause>) {
    count(node.limits.min_items, node.limits.max_items, list.len(), path, "items", causes);
    if let Some(items) = &node.items {
        for (at, item) in list.iter().enumerate() {
            check(items, item, &format!("{path}[{at}]"), causes);
        }
    }
    let identity = |item: &Value| match &node.list_type {
        ListType::Atomic => None,
        ListType::Set => Some(item.clone()),
        ListType::Map(keys) => Some(keys.iter().filter_map(|k| Some((k.clone(), item.get(k)?.clone()))).collect()),
    };
    let mut seen = std::collections::BTreeSet::new();
    for (at, item) in list.iter().enumerate() {
        if let Some(identity) = identity(item)
            && !seen.insert(identity.to_string())
        {
            causes.push(Cause::duplicate(format!("{path}[{at}]"), &identity));
        }
    }
}

fn count(min: Option<u64>, max: Option<u64>, found: usize, path: &str, what: &str, causes: &mut Vec<Cause>) {
    let found = found as u64;
    if let Some(max) = max.filter(|max| found > *max) {
        let message = format!("Too many: {found}: must have at most {max} items");
        causes.push(Cause::new("FieldValueTooMany", path, message));
    }
    if let Some(min) = min.filter(|min| found < *min) {
        causes.push(Cause::invalid(path, &json!(found), format!("{path} in body should have at least {min} {what}")));
    }
}

fn check_text(node: &Node, text: &str, path: &str, causes: &mut Vec<Cause>) {
    let limits = &node.limits;
    let length = text.chars().count() as u64;
    if let Some(max) = limits.max_length.filter(|max| length > *max) {
        let message = format!("Too long: may not be more than {max} bytes");
        causes.push(Cause::new("FieldValueTooLong", path, message));
    }
    if let Some(min) = limits.min_length.filter(|min| length < *min) {
        let detail = format!("{path} in body should be at least {min} chars long");
        causes.push(Cause::invalid(path, &json!(text), detail));
    }
    if let Some(pattern) = limits.pattern.as_ref().filter(|p| !p.is_match(text)) {
        let detail = format!("{path} in body should match '{pattern}'");
        causes.push(Cause::invalid(path, &json!(text), detail));
    }
    if let Some(format) = limits.format.as_deref().filter(|f| !has_format(f, text)) {
        let detail = format!("{path} in body must be of type {format}: {}", json!(text));
        causes.push(Cause::invalid(path, &json!(text), detail));
    }
}

/// Formats a real server checks; others are only documentation, there as here.
fn has_format(format: &str, text: &str) -> bool {
    match format {
        "date-time" => text.parse::<jiff::Timestamp>().is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok(),
        "byte" => {
            use base64::Engine as _;
            base64::engine::general_purpose::STANDARD.decode(text).is_ok()
        }
        "ipv4" => text.parse::<std::net::Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<std::net::Ipv6Addr>().is_ok(),
        _ => true,
    }
}

fn check_number(node: &Node, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    let limits = &node.limits;
    let Some(number) = value.as_f64() else { return };
    let mut say = |detail: String| causes.push(Cause::invalid(path, value, format!("{path} in body {detail}")));
    if let Some((min, exclusive)) = limits.minimum {
        if exclusive && number <= min {
            say(format!("should be greater than {min}"));
        } else if !exclusive && number < min {
            say(format!("should be greater than or equal to {min}"));
        }
    }
    if let Some((max, exclusive)) = limits.maximum {
        if exclusive && number >= max {
            say(format!("should be less than {max}"));
        } else if !exclusive && number > max {
            say(format!("should be less than or equal to {max}"));
        }
    }
    if let Some(step) = limits.multiple_of.filter(|step| (number / step).fract() != 0.0) {
        say(format!("should be a multiple of {step}"));
    }
    let fits = match limits.format.as_deref() {
        Some("int32") => value.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) || value.is_f64(),
        Some("int64") => value.is_i64() || value.is_f64(),
        _ => true,
    };
    if !fits {
        let format = limits.format.as_deref().unwrap_or_default();
        say(format!("must be of type {format}: {value}"));
    }
}

fn check_junctors(node: &Node, value: &Value, path: &str, causes: &mut Vec<Cause>) {
    let fits = |schema: &Node| {
        let mut inner = Vec::new();
        check(schema, value, path, &mut inner);
        inner.is_empty()
    };
    for schema in &node.all_of {
        check(schema, value, path, causes);
    }
    let mut say = |detail: &str| {
        let detail = format!("{path} in body {detail}");
        causes.push(Cause::invalid(path, &json!(node.kind.name()), detail));
    };
    if !node.any_of.is_empty() && !node.any_of.iter().any(&fits) {
        say("must validate at least one schema (anyOf)");
    }
    if !node.one_of.is_empty() && node.one_of.iter().filter(|s| fits(s)).count() != 1 {
        say("must validate one and only one schema (oneOf)");
    }
    if node.not.as_deref().is_some_and(fits) {
        say("must not validate the schema (not)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn causes(schema: Value, value: Value) -> Vec<String> {
        let schema = json!({"type": "object", "properties": {"f": schema}});
        let shape = Shape::compile(&schema, "schema").unwrap();
        shape.validate(&json!({"f": value}), None, &[]).iter().map(Cause::to_string).collect()
    }

    #[test]
    fn each_rule_says_what_a_real_server_says() {
        let list = |list_type: &str| json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": list_type});
        let map_list = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "properties": {"name": {"type": "string"}}}});
        for (schema, value, wanted) in [
            (
                json!({"type": "integer"}),
                json!("x"),
                r#"f: Invalid value: "string": f in body must be of type integer: "string""#,
            ),
            (
                json!({"type": "string"}),
                Value::Null,
                r#"f: Invalid value: "null": f in body must be of type string: "null""#,
            ),
            (
                json!({"type": "integer", "minimum": 0}),
                json!(-1),
                "f: Invalid value: -1: f in body should be greater than or equal to 0",
            ),
            (
                json!({"type": "integer", "maximum": 3}),
                json!(4),
                "f: Invalid value: 4: f in body should be less than or equal to 3",
            ),
            (
                json!({"type": "number", "maximum": 3, "exclusiveMaximum": true}),
                json!(3),
                "f: Invalid value: 3: f in body should be less than 3",
            ),
            (
                json!({"type": "integer", "multipleOf": 5}),
                json!(7),
                "f: Invalid value: 7: f in body should be a multiple of 5",
            ),
            (
                json!({"type": "string", "enum": ["A", "B"]}),
                json!("C"),
                r#"f: Unsupported value: "C": supported values: "A", "B""#,
            ),
            (
                json!({"type": "object", "required": ["x"], "properties": {"x": {"type": "string"}}}),
                json!({}),
                "f.x: Required value",
            ),
            (json!({"type": "string", "maxLength": 2}), json!("abc"), "f: Too long: may not be more than 2 bytes"),
            (
                json!({"type": "string", "minLength": 1}),
                json!(""),
                r#"f: Invalid value: "": f in body should be at least 1 chars long"#,
            ),
            (
                json!({"type": "string", "pattern": "^a$"}),
                json!("b"),
                r#"f: Invalid value: "b": f in body should match '^a$'"#,
            ),
            (
                json!({"type": "string", "format": "date-time"}),
                json!("now"),
                r#"f: Invalid value: "now": f in body must be of type date-time: "now""#,
            ),
            (
                json!({"type": "integer", "format": "int32"}),
                json!(1_i64 << 40),
                "f: Invalid value: 1099511627776: f in body must be of type int32: 1099511627776",
            ),
            (
                json!({"type": "array", "maxItems": 1, "items": {"type": "string"}}),
                json!(["a", "b"]),
                "f: Too many: 2: must have at most 1 items",
            ),
            (list("set"), json!(["a", "a"]), r#"f[1]: Duplicate value: "a""#),
            (map_list, json!([{"name": "a"}, {"name": "a"}]), r#"f[1]: Duplicate value: {"name":"a"}"#),
            (
                json!({"x-kubernetes-int-or-string": true}),
                json!(true),
                r#"f: Invalid value: "boolean": f in body must be of type integer,string: "boolean""#,
            ),
            (
                json!({"type": "object", "additionalProperties": {"type": "integer"}}),
                json!({"k": "v"}),
                r#"f.k: Invalid value: "string": f.k in body must be of type integer: "string""#,
            ),
        ] {
            assert_eq!(causes(schema.clone(), value), [wanted], "{schema}");
        }
    }

    #[test]
    fn what_is_allowed_passes() {
        let any_of = json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}], "pattern": "^[0-9]+%?$"});
        for (schema, value) in [
            (json!({"type": "integer"}), json!(1.0)),
            (json!({"type": "string", "nullable": true}), Value::Null),
            (any_of.clone(), json!(10)),
            (any_of, json!("10%")),
            (json!({"type": "string", "format": "date-time"}), json!("2026-11-15T10:00:00.123456Z")),
            (json!({"type": "string", "format": "duration-of-no-meaning"}), json!("x")),
        ] {
            assert_eq!(causes(schema.clone(), value), Vec::<String>::new(), "{schema}");
        }
    }

    #[test]
    fn rules_see_the_object_before() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"epoch": {"type": "integer"}, "min": {"type": "integer"}},
        "x-kubernetes-validations": [
            {"rule": "!has(oldSelf.epoch) || (has(self.epoch) && self.epoch >= oldSelf.epoch)", "message": "epoch may not fall"},
            {"rule": "!has(self.min) || self.min > 0", "message": "min must be positive"},
        ]}}});
        let shape = Shape::compile(&schema, "schema").unwrap();
        let run = |new: Value, old: Option<Value>| -> Vec<String> {
            let wrap = |spec: Value| json!({"spec": spec});
            shape.validate(&wrap(new), old.map(wrap).as_ref(), &[]).iter().map(Cause::to_string).collect()
        };
        assert_eq!(run(json!({"epoch": 1}), None), Vec::<String>::new());
        assert_eq!(run(json!({"epoch": 2}), Some(json!({"epoch": 1}))), Vec::<String>::new());
        assert_eq!(run(json!({}), Some(json!({"epoch": 1}))), [r#"spec: Invalid value: "object": epoch may not fall"#]);
        assert_eq!(run(json!({"min": 0}), None), [r#"spec: Invalid value: "object": min must be positive"#]);
    }
}

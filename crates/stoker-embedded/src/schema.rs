//! A structural schema, read once. In: the `openAPIV3Schema` of a definition. Out: a [`Shape`] that prunes, fills in defaults
//! and validates. A schema that is not structural, or a rule that does not compile, is refused with its path.

pub(crate) mod fill;
mod rules;
pub(crate) mod validate;

use regex::Regex;
use rules::Rules;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use thiserror::Error;

/// Nesting beyond this is refused; real schemas stay far below.
const MAX_DEPTH: usize = 64;
/// Bound on the size of a compiled pattern.
const MAX_PATTERN: usize = 1 << 20;

/// What is wrong with a schema, and where.
#[derive(Debug, Error)]
#[error("{path}: {what}")]
pub(crate) struct SchemaError {
    pub(crate) path: String,
    pub(crate) what: String,
}

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Type {
    Object,
    Array,
    String,
    Integer,
    Number,
    Boolean,
    IntOrString,
    /// Anything, where unknown fields are preserved.
    Any,
}

impl Type {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Type::Object => "object",
            Type::Array => "array",
            Type::String => "string",
            Type::Integer => "integer",
            Type::Number => "number",
            Type::Boolean => "boolean",
            Type::IntOrString | Type::Any => "",
        }
    }
}

/// How the items of a list are told apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListType {
    Atomic,
    Set,
    Map(Vec<String>),
}

/// One node of the schema.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) kind: Type,
    pub(crate) nullable: bool,
    pub(crate) preserve_unknown: bool,
    pub(crate) embedded: bool,
    pub(crate) properties: BTreeMap<String, Node>,
    pub(crate) additional: Option<Box<Node>>,
    pub(crate) items: Option<Box<Node>>,
    pub(crate) list_type: ListType,
    pub(crate) default: Option<Value>,
    pub(crate) limits: Limits,
    pub(crate) all_of: Vec<Node>,
    pub(crate) any_of: Vec<Node>,
    pub(crate) one_of: Vec<Node>,
    pub(crate) not: Option<Box<Node>>,
}

/// The value validations of a node.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    pub(crate) required: Vec<String>,
    pub(crate) variants: Vec<Value>,
    pub(crate) minimum: Option<(f64, bool)>,
    pub(crate) maximum: Option<(f64, bool)>,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) min_length: Option<u64>,
    pub(crate) max_length: Option<u64>,
    pub(crate) pattern: Option<Regex>,
    pub(crate) format: Option<String>,
    pub(crate) min_items: Option<u64>,
    pub(crate) max_items: Option<u64>,
    pub(crate) min_properties: Option<u64>,
    pub(crate) max_properties: Option<u64>,
}

/// A whole schema with its rules.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) root: Node,
    rules: Option<Rules>,
}

impl Shape {
    /// Reads a schema; `path` is where it stands in the definition.
    pub(crate) fn compile(schema: &Value, path: &str) -> Result<Self, SchemaError> {
        let root = Reader { junctor: false }.node(schema, path, 0)?;
        if root.kind != Type::Object {
            return Err(wrong(&format!("{path}.type"), "the root of a schema must be of type object"));
        }
        let rules = Rules::compile(schema, path)?;
        Ok(Self { root, rules })
    }
}

fn wrong(path: &str, what: impl Into<String>) -> SchemaError {
    SchemaError { path: path.to_owned(), what: what.into() }
}

/// Reads nodes. Inside anyOf and its kin only value validations may stand, so a type is not needed there.
struct Reader {
    junctor: bool,
}

impl Reader {
    fn node(&self, schema: &Value, path: &str, depth: usize) -> Result<Node, SchemaError> {
        if depth > MAX_DEPTH {
            return Err(wrong(path, format!("nested deeper than {MAX_DEPTH}; flatten the schema")));
        }
        let map = schema.as_object().ok_or_else(|| wrong(path, "must be an object"))?;
        let flag = |key: &str| map.get(key).and_then(Value::as_bool).unwrap_or(false);
        let preserve_unknown = flag("x-kubernetes-preserve-unknown-fields");
        let kind = self.kind(map, path, preserve_unknown)?;
        let child = |key: &str| -> Result<Option<Box<Node>>, SchemaError> {
            let Some(schema) = map.get(key).filter(|s| s.is_object()) else { return Ok(None) };
            self.node(schema, &format!("{path}.{key}"), depth + 1).map(|n| Some(Box::new(n)))
        };
        let mut properties = BTreeMap::new();
        if let Some(Value::Object(found)) = map.get("properties") {
            for (name, schema) in found {
                let at = format!("{path}.properties.{name}");
                properties.insert(name.clone(), self.node(schema, &at, depth + 1)?);
            }
        }
        let additional = child("additionalProperties")?;
        let open = map.get("additionalProperties") == Some(&Value::Bool(true));
        if !properties.is_empty() && additional.is_some() {
            return Err(wrong(path, "properties and additionalProperties exclude each other"));
        }
        let items = child("items")?;
        if kind == Type::Array && items.is_none() && !self.junctor {
            return Err(wrong(&format!("{path}.items"), "an array needs a schema of its items"));
        }
        let inside = Reader { junctor: true };
        let several = |key: &str| -> Result<Vec<Node>, SchemaError> {
            let Some(Value::Array(list)) = map.get(key) else { return Ok(Vec::new()) };
            let one = |(at, s)| inside.node(s, &format!("{path}.{key}[{at}]"), depth + 1);
            list.iter().enumerate().map(one).collect()
        };
        Ok(Node {
            kind,
            nullable: flag("nullable"),
            preserve_unknown: preserve_unknown || open,
            embedded: flag("x-kubernetes-embedded-resource"),
            additional,
            items,
            list_type: list_type(map, path)?,
            default: map.get("default").cloned(),
            limits: limits(map, path)?,
            all_of: several("allOf")?,
            any_of: several("anyOf")?,
            one_of: several("oneOf")?,
            not: match map.get("not") {
                Some(schema) => Some(Box::new(inside.node(schema, &format!("{path}.not"), depth + 1)?)),
                None => None,
            },
            properties,
        })
    }

    fn kind(&self, map: &Map<String, Value>, path: &str, preserve: bool) -> Result<Type, SchemaError> {
        if map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true)) {
            return Ok(Type::IntOrString);
        }
        let at = format!("{path}.type");
        match map.get("type").and_then(Value::as_str) {
            Some("object") => Ok(Type::Object),
            Some("array") => Ok(Type::Array),
            Some("string") => Ok(Type::String),
            Some("integer") => Ok(Type::Integer),
            Some("number") => Ok(Type::Number),
            Some("boolean") => Ok(Type::Boolean),
            None | Some("") if preserve || self.junctor => Ok(Type::Any),
            None | Some("") => Err(wrong(&at, "a structural schema needs a type here")),
            Some(other) => {
                let known = "object, array, string, integer, number or boolean";
                Err(wrong(&at, format!("{other:?} is not a type; use {known}")))
            }
        }
    }
}

fn list_type(map: &Map<String, Value>, path: &str) -> Result<ListType, SchemaError> {
    match map.get("x-kubernetes-list-type").and_then(Value::as_str) {
        None | Some("atomic") => Ok(ListType::Atomic),
        Some("set") => Ok(ListType::Set),
        Some("map") => {
            let keys = map.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
            let keys: Vec<String> = keys.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
            if keys.is_empty() {
                return Err(wrong(&format!("{path}.x-kubernetes-list-map-keys"), "a list of type map needs keys"));
            }
            Ok(ListType::Map(keys))
        }
        Some(other) => {
            let at = format!("{path}.x-kubernetes-list-type");
            Err(wrong(&at, format!("{other:?} is not one of atomic, set, map")))
        }
    }
}

fn limits(map: &Map<String, Value>, path: &str) -> Result<Limits, SchemaError> {
    let count = |key: &str| map.get(key).and_then(Value::as_u64);
    let number = |key: &str| map.get(key).and_then(Value::as_f64);
    let exclusive = |key: &str| map.get(key).and_then(Value::as_bool).unwrap_or(false);
    let pattern = match map.get("pattern").and_then(Value::as_str) {
        Some(text) => {
            let built = regex::RegexBuilder::new(text).size_limit(MAX_PATTERN).build();
            Some(built.map_err(|e| wrong(&format!("{path}.pattern"), e.to_string()))?)
        }
        None => None,
    };
    let required = map.get("required").and_then(Value::as_array);
    Ok(Limits {
        required: required.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect(),
        variants: map.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
        minimum: number("minimum").map(|n| (n, exclusive("exclusiveMinimum"))),
        maximum: number("maximum").map(|n| (n, exclusive("exclusiveMaximum"))),
        multiple_of: number("multipleOf").filter(|n| *n > 0.0),
        min_length: count("minLength"),
        max_length: count("maxLength"),
        pattern,
        format: map.get("format").and_then(Value::as_str).map(str::to_owned),
        min_items: count("minItems"),
        max_items: count("maxItems"),
        min_properties: count("minProperties"),
        max_properties: count("maxProperties"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    proptest! {
        #[test]
        fn no_rule_panics(rule in "(self|oldSelf|has|size|all|x|[0-9]{1,20}|'[^']{0,3}'|[-+*/%<>=!&|?:.,()\\[\\]{} \"\\\\é]){0,14}") {
            let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}},
                "x-kubernetes-validations": [{"rule": rule, "message": "no"}]});
            if let Ok(shape) = Shape::compile(&schema, "s") {
                shape.validate(&json!({"a": i64::MAX}), Some(&json!({"a": i64::MIN})), &[]);
            }
        }
    }

    #[test]
    fn a_bad_schema_is_refused_with_its_path() {
        for (schema, path) in [
            (json!({"type": "string"}), "s.type"),
            (json!({"type": "object", "properties": {"a": {}}}), "s.properties.a.type"),
            (json!({"type": "object", "properties": {"a": {"type": "text"}}}), "s.properties.a.type"),
            (json!({"type": "object", "properties": {"a": {"type": "array"}}}), "s.properties.a.items"),
            (
                json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}),
                "s.properties.a.pattern",
            ),
            (
                json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "map"}}}),
                "s.properties.a.x-kubernetes-list-map-keys",
            ),
            (
                json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.("}]}),
                "s.x-kubernetes-validations[0].rule",
            ),
        ] {
            assert_eq!(Shape::compile(&schema, "s").unwrap_err().path, path, "{schema}");
        }
    }
}

//! The CEL rules of a schema. In: the schema, an object, and the object before. Out: a cause for each rule that is not kept.
//! A rule that cannot be evaluated refuses the object: it is never skipped in silence.

use super::{SchemaError, wrong};
use crate::refusal::Cause;
use kube_cel::{CompiledSchema, Validator, compile_schema};
use serde_json::{Value, json};

thread_local! {
    // Building one registers some hundred functions, and it cannot be shared between threads.
    static VALIDATOR: Validator = Validator::new();
}

/// The compiled rules of one schema.
#[derive(Debug)]
pub(super) struct Rules {
    compiled: CompiledSchema,
    schema: Value,
}

impl Rules {
    /// `None` where the schema has no rule at all.
    pub(super) fn compile(schema: &Value, path: &str) -> Result<Option<Self>, SchemaError> {
        if !has_rules(schema) {
            return Ok(None);
        }
        check(schema, path)?;
        Ok(Some(Self { compiled: compile_schema(schema), schema: schema.clone() }))
    }

    pub(super) fn broken(&self, value: &Value, old: Option<&Value>, causes: &mut Vec<Cause>) {
        let result = VALIDATOR.with(|v| v.validate_compiled(&self.compiled, value, old));
        let Err(errors) = result else { return };
        for error in errors {
            let reason = match error.reason.as_deref() {
                Some("FieldValueRequired") => "FieldValueRequired",
                Some("FieldValueForbidden") => "FieldValueForbidden",
                Some("FieldValueDuplicate") => "FieldValueDuplicate",
                _ => "FieldValueInvalid",
            };
            // A real server names the type instead of repeating the whole value.
            let shown = type_at(&self.schema, &error.field_path).unwrap_or("object");
            let message = match reason {
                "FieldValueRequired" => format!("Required value: {}", error.message),
                "FieldValueForbidden" => format!("Forbidden: {}", error.message),
                "FieldValueDuplicate" => format!("Duplicate value: {}", json!(shown)),
                _ => format!("Invalid value: {}: {}", json!(shown), error.message),
            };
            causes.push(Cause::new(reason, error.field_path, message));
        }
    }
}

fn has_rules(schema: &Value) -> bool {
    match schema {
        Value::Object(map) => {
            map.get("x-kubernetes-validations").is_some_and(|r| r.as_array().is_some_and(|r| !r.is_empty()))
                || map.values().any(has_rules)
        }
        Value::Array(list) => list.iter().any(has_rules),
        _ => false,
    }
}

/// Compiles node by node, so that the error can name the rule.
fn check(schema: &Value, path: &str) -> Result<(), SchemaError> {
    let Some(map) = schema.as_object() else { return Ok(()) };
    if let Some(Value::Array(rules)) = map.get("x-kubernetes-validations") {
        for (at, rule) in rules.iter().enumerate() {
            let alone = json!({"type": "object", "x-kubernetes-validations": [rule]});
            if let Some(error) = compile_schema(&alone).compilation_errors().first() {
                return Err(wrong(&format!("{path}.x-kubernetes-validations[{at}].rule"), error.to_string()));
            }
        }
    }
    for (key, child) in map {
        match (key.as_str(), child) {
            ("properties", Value::Object(properties)) => {
                for (name, property) in properties {
                    check(property, &format!("{path}.properties.{name}"))?;
                }
            }
            ("items" | "additionalProperties" | "not", child) => check(child, &format!("{path}.{key}"))?,
            ("allOf" | "anyOf" | "oneOf", Value::Array(list)) => {
                for (at, child) in list.iter().enumerate() {
                    check(child, &format!("{path}.{key}[{at}]"))?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The declared type of the field that a path such as `spec.items[0].name` names.
fn type_at<'a>(schema: &'a Value, path: &str) -> Option<&'a str> {
    let mut node = schema;
    for part in path.split(['.', '[']).filter(|part| !part.is_empty()) {
        node = if part.ends_with(']') {
            node.get("items").or_else(|| node.get("additionalProperties"))?
        } else {
            node.get("properties").and_then(|p| p.get(part)).or_else(|| node.get("additionalProperties"))?
        };
    }
    node.get("type").and_then(Value::as_str)
}

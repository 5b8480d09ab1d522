//! Pruning and defaults. In: an object. Out: the object without the fields that its schema does not know, with the defaults it
//! left out, and the paths of what was dropped (for strict clients). It never refuses; that is `validate`'s.

use super::{Node, Shape, Type};
use serde_json::{Map, Value};

/// Names that an embedded object has besides its schema.
const OBJECT_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

impl Shape {
    /// Drops unknown fields and returns their paths, in order.
    pub(crate) fn prune(&self, value: &mut Value) -> Vec<String> {
        let mut dropped = Vec::new();
        prune(&self.root, value, "", true, &mut dropped);
        dropped
    }

    /// Fills in what the schema has a default for.
    pub(crate) fn fill(&self, value: &mut Value) {
        fill(&self.root, value);
    }
}

fn prune(node: &Node, value: &mut Value, path: &str, object: bool, dropped: &mut Vec<String>) {
    match value {
        Value::Object(map) => prune_map(node, map, path, object || node.embedded, dropped),
        Value::Array(list) => {
            let Some(items) = &node.items else { return };
            for (at, item) in list.iter_mut().enumerate() {
                prune(items, item, &format!("{path}[{at}]"), false, dropped);
            }
        }
        _ => {}
    }
}

fn prune_map(node: &Node, map: &mut Map<String, Value>, path: &str, object: bool, dropped: &mut Vec<String>) {
    let own = |name: &str| object && OBJECT_FIELDS.contains(&name);
    if !node.preserve_unknown && node.additional.is_none() {
        map.retain(|name, _| {
            let known = node.properties.contains_key(name) || own(name);
            if !known {
                dropped.push(join(path, name));
            }
            known
        });
    }
    for (name, child) in map.iter_mut() {
        if own(name) {
            continue;
        }
        match (node.properties.get(name), &node.additional) {
            (Some(schema), _) => prune(schema, child, &join(path, name), false, dropped),
            (None, Some(schema)) => prune(schema, child, &join(path, name), false, dropped),
            (None, None) => {}
        }
    }
}

fn fill(node: &Node, value: &mut Value) {
    match value {
        Value::Object(map) => {
            // A null that may not be null counts as left out.
            map.retain(|name, child| {
                let schema = node.properties.get(name).or(node.additional.as_deref());
                !child.is_null() || schema.is_none_or(|schema| schema.nullable || schema.kind == Type::Any)
            });
            for (name, schema) in &node.properties {
                if let Some(default) = schema.default.as_ref().filter(|_| !map.contains_key(name)) {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (name, child) in map.iter_mut() {
                if let Some(schema) = node.properties.get(name).or(node.additional.as_deref()) {
                    fill(schema, child);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = &node.items {
                list.iter_mut().for_each(|item| fill(items, item));
            }
        }
        _ => {}
    }
}

pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shape() -> Shape {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
            "mode": {"type": "string", "default": "Once"},
            "pace": {"type": "object", "default": {}, "properties": {"parallelism": {"type": "integer", "default": 10}}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string", "default": "x"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"b": {"type": "integer"}}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "maybe": {"type": "string", "nullable": true, "default": "y"},
        }}}});
        Shape::compile(&schema, "schema").unwrap()
    }

    #[test]
    fn prunes_what_is_unknown() {
        let mut value = json!({"apiVersion": "v", "kind": "K", "metadata": {"name": "n"}, "extra": 1, "spec": {
            "mode": "Once", "typo": 1, "list": [{"a": "q", "z": 1}], "map": {"k": {"b": 1, "c": 2}}, "free": {"any": {"thing": 1}},
        }});
        assert_eq!(shape().prune(&mut value), ["extra", "spec.typo", "spec.list[0].z", "spec.map.k.c"]);
        assert_eq!(value["spec"]["free"], json!({"any": {"thing": 1}}));
        assert_eq!(value["spec"]["list"], json!([{"a": "q"}]));
    }

    #[test]
    fn fills_defaults_at_every_depth() {
        let mut value = json!({"spec": {"list": [{}], "mode": null, "maybe": null}});
        shape().fill(&mut value);
        assert_eq!(
            value["spec"],
            json!({"mode": "Once", "pace": {"parallelism": 10}, "list": [{"a": "x"}], "maybe": null})
        );
    }
}

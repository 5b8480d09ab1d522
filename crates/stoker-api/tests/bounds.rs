//! That everything that people and agents write has a bound in the schema. What a map is keyed by cannot have one there; the size of a request
//! bounds it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::Value;

/// The fields below this schema that may be of any length.
fn boundless(path: &str, schema: &Value, found: &mut Vec<String>) {
    let has = |field: &str| !schema[field].is_null();
    let is_bounded = match schema["type"].as_str() {
        Some("string") => has("maxLength") || has("enum") || schema["format"] == "date-time",
        Some("array") => has("maxItems"),
        Some("object") if has("additionalProperties") => has("maxProperties"),
        Some("object") => has("properties"),
        Some("integer" | "number" | "boolean") => true,
        // An integer or a string.
        _ => has("maxLength"),
    };
    if !is_bounded {
        found.push(path.to_owned());
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        boundless(&format!("{path}.{name}"), field, found);
    }
    for (name, field) in [("[]", &schema["items"]), (".*", &schema["additionalProperties"])] {
        if field.is_object() {
            boundless(&format!("{path}{name}"), field, found);
        }
    }
}

fn of(kind: &str, part: &str) -> Vec<String> {
    let crds = stoker_api::crds().into_iter().map(|(_, crd)| serde_json::to_value(crd).unwrap());
    let crd = crds.into_iter().find(|crd| crd["spec"]["names"]["kind"] == kind).unwrap();
    let mut found = Vec::new();
    for version in crd["spec"]["versions"].as_array().unwrap() {
        let schema = &version["schema"]["openAPIV3Schema"]["properties"][part];
        assert!(schema.is_object(), "{kind} has no {part}");
        boundless(part, schema, &mut found);
    }
    found
}

#[test]
fn everything_that_people_and_agents_write_has_a_bound() {
    // Orders are the controller's, which counts what they take (`size.rs`).
    for (kind, part) in [("Preheat", "spec"), ("NodePreheat", "status"), ("PreheatPolicy", "spec")] {
        assert_eq!(of(kind, part), Vec::<String>::new(), "{kind}");
    }
}

#[test]
fn what_has_no_bound_is_found() {
    let schema = serde_json::json!({ "type": "object", "properties": {
        "text": { "type": "string" }, "list": { "type": "array", "items": { "type": "string", "maxLength": 1 } },
        "map": { "type": "object", "maxProperties": 1, "additionalProperties": { "type": "string" } },
        "any": { "type": "object", "x-kubernetes-preserve-unknown-fields": true }, "number": { "type": "integer" },
    } });
    let mut found = Vec::new();
    boundless("spec", &schema, &mut found);
    assert_eq!(found, ["spec.any", "spec.list", "spec.map.*", "spec.text"]);
}

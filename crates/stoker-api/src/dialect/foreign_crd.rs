//! CRDs of other projects' kinds, as far as they differ from those of our own: objects that upstream's schema takes must be taken here.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

/// Makes the schemas of a CRD like upstream's. `without_spec` is what upstream says of an object without a spec, where it refuses one, and
/// `without_status` the status of an object that has none.
pub(crate) fn as_upstream(
    definition: &mut CustomResourceDefinition,
    without_spec: Option<&str>,
    without_status: Option<Value>,
) {
    for version in &mut definition.spec.versions {
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        if let Some(schema) = schema
            && let Ok(theirs) = serde_json::to_value(&*schema)
                .and_then(|value| serde_json::from_value(like_upstream(value, without_spec, without_status.as_ref())))
        {
            *schema = theirs;
        }
    }
}

/// Upstream's schema does not require a spec. Its webhook or its policy may, and says so in these words.
fn like_upstream(schema: Value, without_spec: Option<&str>, without_status: Option<&Value>) -> Value {
    let mut schema = not_nullable(schema);
    if let (Some(default), Some(status)) = (without_status, schema.pointer_mut("/properties/status")) {
        status["default"] = default.clone();
    }
    if let Some(map) = schema.as_object_mut() {
        map.remove("required");
        if let Some(message) = without_spec {
            let rule = json!([{ "rule": "has(self.spec)", "message": message }]);
            map.insert("x-kubernetes-validations".into(), rule);
        }
    }
    schema
}

/// No field of upstream's is nullable: an API server then takes a null for a field that was left out.
fn not_nullable(mut schema: Value) -> Value {
    if let Some(map) = schema.as_object_mut() {
        if map.get("nullable").is_some_and(Value::is_boolean) {
            map.remove("nullable");
        }
        for child in map.values_mut() {
            *child = not_nullable(child.take());
        }
    }
    schema
}

//! CustomResourceDefinitions. In: the object, as data. Out: a [`Kind`], or what is wrong with the definition and where. It
//! stores nothing.

use crate::kind::{Column, Field, Kind, Role, StatusUse, Version};
use crate::object::{NameRule, is_dns_label, is_subdomain, text};
use crate::refusal::Cause;
use crate::rows;
use crate::schema::{SchemaError, Shape};
use crate::table::jsonpath::{JsonPath, PathError};
use jiff::Timestamp;
use serde_json::{Value, json};
use thiserror::Error;

/// What is wrong with a definition.
#[derive(Debug, Error)]
pub(crate) enum CrdError {
    #[error("{path}: {what}")]
    Field { path: String, what: String },
    #[error(transparent)]
    Schema(#[from] SchemaError),
    #[error("{at}: {source}")]
    Path { at: String, source: PathError },
}

impl CrdError {
    /// The same as a wrong field of a 422.
    pub(crate) fn cause(&self) -> Cause {
        let (path, what) = match self {
            CrdError::Field { path, what } => (path.clone(), what.clone()),
            CrdError::Schema(error) => (error.path.clone(), error.what.clone()),
            CrdError::Path { at, source } => (at.clone(), source.to_string()),
        };
        Cause::new("FieldValueInvalid", path, format!("Invalid value: {what}"))
    }
}

fn wrong(path: impl Into<String>, what: impl Into<String>) -> CrdError {
    CrdError::Field { path: path.into(), what: what.into() }
}

fn required<'a>(value: &'a Value, path: &str, pointer: &str) -> Result<&'a str, CrdError> {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
        .ok_or_else(|| wrong(path, "is required"))
}

/// Reads a definition.
pub(crate) fn kind(definition: &Value) -> Result<Kind, CrdError> {
    let get = |path: &str| required(definition, path, &format!("/{}", path.replace('.', "/")));
    let (group, plural, kind) = (get("spec.group")?, get("spec.names.plural")?, get("spec.names.kind")?);
    let wanted = format!("{plural}.{group}");
    if text(definition, "name") != wanted {
        return Err(wrong("metadata.name", format!("must be spec.names.plural+\".\"+spec.group, which is {wanted:?}")));
    }
    if !is_subdomain(group) || !is_dns_label(plural) {
        return Err(wrong("spec.names.plural", "the group must be a domain name and the plural a lowercase label"));
    }
    let namespaced = match get("spec.scope")? {
        "Namespaced" => true,
        "Cluster" => false,
        other => return Err(wrong("spec.scope", format!("{other:?} is not one of Cluster, Namespaced"))),
    };
    let strategy = definition.pointer("/spec/conversion/strategy").and_then(Value::as_str);
    if strategy.is_some_and(|s| s != "None") {
        return Err(wrong("spec.conversion.strategy", "only None is supported by this server"));
    }
    let list = definition.pointer("/spec/versions").and_then(Value::as_array);
    let list = list.filter(|l| !l.is_empty()).ok_or_else(|| wrong("spec.versions", "needs at least one version"))?;
    let versions = list.iter().enumerate().map(|(at, v)| version(v, &format!("spec.versions[{at}]")));
    let versions = versions.collect::<Result<Vec<_>, _>>()?;
    let storage: Vec<&Version> = versions.iter().filter(|v| v.storage).collect();
    let [storage] = storage.as_slice() else {
        return Err(wrong("spec.versions", "exactly one version must be marked as storage version"));
    };
    let stored_api_version = format!("{group}/{}", storage.name);
    let name = |field: &str| definition.pointer(&format!("/spec/names/{field}")).and_then(Value::as_str);
    Ok(Kind {
        group: group.to_owned(),
        kind: kind.to_owned(),
        list_kind: name("listKind").map_or_else(|| format!("{kind}List"), str::to_owned),
        plural: plural.to_owned(),
        singular: name("singular").map_or_else(|| kind.to_ascii_lowercase(), str::to_owned),
        short_names: texts(definition, "/spec/names/shortNames"),
        categories: texts(definition, "/spec/names/categories"),
        namespaced,
        generation: true,
        blind_update: false,
        strategic_merge: false,
        name_rule: NameRule::Subdomain,
        role: Role::Plain,
        born_with: None,
        encoded: None,
        typed: None,
        fixed: &[],
        fixed_on_wish: &[],
        content: &[],
        about: None,
        keep: None,
        stored_only: false,
        review: None,
        permanent: &[],
        wire: &[],
        table: wanted,
        stored_api_version,
        versions,
        custom: true,
    })
}

fn texts(value: &Value, pointer: &str) -> Vec<String> {
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn version(value: &Value, path: &str) -> Result<Version, CrdError> {
    let name = required(value, &format!("{path}.name"), "/name")?;
    let flag = |field: &str| value.get(field).and_then(Value::as_bool).unwrap_or(false);
    let at = format!("{path}.schema.openAPIV3Schema");
    let schema = value.pointer("/schema/openAPIV3Schema").ok_or_else(|| wrong(&at, "a schema is required"))?;
    let status = value.pointer("/subresources/status").is_some();
    Ok(Version {
        name: name.to_owned(),
        served: flag("served"),
        storage: flag("storage"),
        status: if status { StatusUse::Dropped } else { StatusUse::Plain },
        columns: columns(value, path)?,
        fields: fields(value, path)?,
        renames: &[],
        shape: Some(Shape::compile(schema, &at)?),
        document: Some(schema.clone()),
    })
}

fn columns(version: &Value, path: &str) -> Result<Vec<Column>, CrdError> {
    let bad = |at: String| move |source| CrdError::Path { at, source };
    let list = version.get("additionalPrinterColumns").and_then(Value::as_array);
    let mut columns = Vec::new();
    for (at, column) in list.into_iter().flatten().enumerate() {
        let path = format!("{path}.additionalPrinterColumns[{at}]");
        let text = |field: &str| column.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let json_path = required(column, &format!("{path}.jsonPath"), "/jsonPath")?;
        columns.push(Column {
            name: required(column, &format!("{path}.name"), "/name")?.to_owned(),
            kind: required(column, &format!("{path}.type"), "/type")?.to_owned(),
            format: text("format"),
            description: text("description"),
            priority: column.get("priority").and_then(Value::as_i64).unwrap_or(0),
            path: JsonPath::parse(json_path).map_err(bad(format!("{path}.jsonPath")))?,
        });
    }
    if columns.is_empty() {
        columns.push(rows::age().map_err(bad(path.to_owned()))?);
    }
    Ok(columns)
}

fn fields(version: &Value, path: &str) -> Result<Vec<Field>, CrdError> {
    let list = version.get("selectableFields").and_then(Value::as_array);
    let field = |(at, field): (usize, &Value)| {
        let at = format!("{path}.selectableFields[{at}].jsonPath");
        let json_path = required(field, &at, "/jsonPath")?;
        let path = JsonPath::parse(json_path).map_err(|source| CrdError::Path { at, source })?;
        Ok(Field { label: json_path.trim_start_matches('.').to_owned(), path })
    };
    list.into_iter().flatten().enumerate().map(field).collect()
}

/// The status of a definition that this server accepted.
pub(crate) fn accepted(definition: &Value, now: Timestamp) -> Value {
    let condition = |kind: &str, reason: &str, message: &str| {
        json!({"type": kind, "status": "True", "reason": reason, "message": message,
            "lastTransitionTime": crate::write::timestamp(now)})
    };
    let mut names = definition.pointer("/spec/names").cloned().unwrap_or_else(|| json!({}));
    if let (Some(kind), Some(names)) = (names["kind"].as_str().map(str::to_owned), names.as_object_mut()) {
        names.entry("listKind").or_insert_with(|| json!(format!("{kind}List")));
        names.entry("singular").or_insert_with(|| json!(kind.to_ascii_lowercase()));
    }
    json!({
        "acceptedNames": names,
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
    })
}

/// The versions in which objects may be stored: those that the definition's status names, and the present one. A real server
/// refuses a definition that drops one of them. Here objects are in the present version as soon as it changes, so a version that
/// is gone from the definition is gone from this list too.
pub(crate) fn stored_versions(definition: &Value) -> Value {
    let list = |pointer: &str| definition.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let defined = |name: &Value| list("/spec/versions").any(|version| version["name"] == *name);
    let mut stored: Vec<&Value> = list("/status/storedVersions").filter(|name| defined(name)).collect();
    let present =
        list("/spec/versions").filter(|version| version["storage"] == json!(true)).map(|version| &version["name"]);
    for name in present {
        if !stored.contains(&name) {
            stored.push(name);
        }
    }
    json!(stored)
}

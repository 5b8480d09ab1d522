//! Every file below `tests/compat/` says what users of another project's kind rely on, a line each: versions, columns, subresources, and the
//! fields of the schema with their types. Our CRD of that kind must have all of it, and must require no field that is optional there. The
//! first line is the name of the CRD, its kind and its scope; `[]` is an item of a list, `{}` a value of a map.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

/// What a line may say of a version, `field PATH TYPE [required]` apart.
type Lines = BTreeSet<String>;

/// All fields of a schema, by path: the type of each, and whether an object must say it.
type Fields = BTreeMap<String, (String, bool)>;

fn walk(path: &str, schema: &Value, required: bool, fields: &mut Fields) {
    let kind = match schema["x-kubernetes-int-or-string"] == true {
        true => "int-or-string",
        false => schema["type"].as_str().unwrap_or("any"),
    };
    if !path.is_empty() {
        fields.insert(path.into(), (kind.into(), required));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let required = schema["required"].as_array().is_some_and(|names| names.contains(&json!(name)));
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        // What has a default need not be written.
        walk(&path, field, required && field.get("default").is_none(), fields);
    }
    for (key, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if schema[key].is_object() {
            walk(&format!("{path}{mark}"), &schema[key], false, fields);
        }
    }
}

/// What our CRD says of one version.
fn ours(version: &Value) -> (Lines, Fields) {
    let columns = version["additionalPrinterColumns"].as_array().into_iter().flatten();
    let mut lines: Lines = columns.map(|column| format!("column {}", column["name"].as_str().unwrap())).collect();
    lines.extend(
        version["subresources"].as_object().into_iter().flatten().map(|(name, _)| format!("subresource {name}")),
    );
    lines.extend((version["storage"] == true).then(|| "stored".to_owned()));
    let mut fields = Fields::new();
    walk("", &version["schema"]["openAPIV3Schema"], false, &mut fields);
    (lines, fields)
}

/// Where our CRD would surprise somebody who relies on these lines.
fn surprises(text: &str, crds: &[Value]) -> Vec<String> {
    let (header, lines) = text.split_once('\n').unwrap();
    let is_of = |crd: &&Value| {
        let spec = &crd["spec"];
        let said =
            [&crd["metadata"]["name"], &spec["names"]["kind"], &spec["scope"]].map(|value| value.as_str().unwrap());
        said.join(" ") == header
    };
    let Some(crd) = crds.iter().find(is_of) else { return vec![format!("no CRD is {header}")] };
    let versions = crd["spec"]["versions"].as_array().unwrap();
    let versions: BTreeMap<&str, (Lines, Fields)> =
        versions.iter().map(|version| (version["name"].as_str().unwrap(), ours(version))).collect();
    let wrong = lines.lines().filter(|line| {
        let (version, said) = line.split_once(' ').unwrap();
        let Some((lines, fields)) = versions.get(version) else { return true };
        match said.split(' ').collect::<Vec<_>>()[..] {
            ["field", path, kind] => fields.get(path) != Some(&(kind.to_owned(), false)),
            ["field", path, kind, "required"] => fields.get(path).is_none_or(|(ours, _)| ours != kind),
            _ => !lines.contains(said),
        }
    });
    wrong.map(str::to_owned).collect()
}

fn crds() -> Vec<Value> {
    stoker_api::crds().into_iter().map(|(_, crd)| serde_json::to_value(crd).unwrap()).collect()
}

#[test]
fn our_crds_have_all_that_users_of_other_projects_rely_on() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compat");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 5, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(surprises(&text, &crds()), [""; 0], "{file:?}");
    }
}

#[test]
fn what_is_missing_or_otherwise_or_required_is_found() {
    let all = "imagepulljobs.apps.kruise.io ImagePullJob Namespaced\n";
    for (line, found) in [
        ("v1alpha1 column MESSAGE", false),
        ("v1beta1 column MESSAGE", true),
        ("v1beta1 stored", false),
        ("v1alpha1 stored", true),
        ("v1 stored", true),
        ("v1beta1 subresource status", false),
        ("v1beta1 subresource scale", true),
        ("v1beta1 field spec.parallelism int-or-string", false),
        ("v1beta1 field spec.parallelism integer", true),
        ("v1beta1 field spec.image string required", false),
        ("v1beta1 field spec.image string", true),
        ("v1beta1 field spec.images array", true),
        ("v1beta1 field spec.selector.names[] string", false),
    ] {
        assert_eq!(!surprises(&format!("{all}{line}\n"), &crds()).is_empty(), found, "{line}");
    }
    assert!(!surprises(&all.replace("Namespaced", "Cluster"), &crds()).is_empty());
}

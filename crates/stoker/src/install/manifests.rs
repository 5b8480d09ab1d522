//! Every object of an installation, in the order in which a cluster wants them. Settings in, objects and their YAML out;
//! the same settings give the same text, byte for byte.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};
use stoker_api::{DIALECTS, native};

use super::{ServedDialect, access, policy, preheat_policy, workloads};
use crate::cli::InstallArgs;

/// By this label what is ours is found again.
pub(super) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "stoker");
/// The same, for people who look at everything that belongs together.
pub(super) const PART_OF: (&str, &str) = ("app.kubernetes.io/part-of", "stoker");
/// Which part an object belongs to: an upgrade applies them one after the other.
pub(super) const COMPONENT: &str = "app.kubernetes.io/component";
/// The label of a namespace that lets agents in, and what it must say.
pub(super) const POD_SECURITY: (&str, &str) = ("pod-security.kubernetes.io/enforce", "privileged");
/// The prefix of the files of our own CRDs; others have that of their dialect.
const OWN: &str = "stoker";

/// An object, and what it is for.
pub(super) struct InstallDocument {
    pub(super) about: &'static str,
    pub(super) object: Value,
}

impl InstallDocument {
    pub(super) fn new(about: &'static str, object: Value) -> Self {
        Self { about, object }
    }
}

/// Metadata of an object of ours; cluster-scoped where there is no namespace.
pub(super) fn metadata(name: &str, namespace: Option<&str>, component: &str) -> Value {
    let mut metadata = json!({ "name": name, "labels": labels(component) });
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    metadata
}

/// The labels of everything that is installed.
pub(super) fn labels(component: &str) -> Value {
    json!({
        "app.kubernetes.io/name": "stoker",
        COMPONENT: component,
        PART_OF.0: PART_OF.1,
        MANAGED_BY.0: MANAGED_BY.1,
    })
}

/// For lists: whatever is installed, of any version.
pub(super) fn installed() -> ListParams {
    ListParams::default().labels(&format!("{}={},{}={}", PART_OF.0, PART_OF.1, MANAGED_BY.0, MANAGED_BY.1))
}

/// Everything.
pub(super) fn all(namespace: &str, args: &InstallArgs) -> anyhow::Result<Vec<InstallDocument>> {
    let definitions = definitions(&args.dialects);
    let mut documents = vec![InstallDocument::new(
        "Where Stoker's own objects are, and nothing else: `stoker uninstall` deletes it with all that is in it. Where there is \
         one of somebody else, leave this document out. Agents need what the Pod Security levels below `privileged` forbid.",
        json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": namespace,
                "labels": merged(labels("namespace"), json!({ POD_SECURITY.0: POD_SECURITY.1 })),
            },
        }),
    )];
    for definition in &definitions {
        let object = serde_json::to_value(definition).context("a CRD cannot be written as JSON")?;
        documents.push(InstallDocument::new("A kind of object that Stoker serves.", object));
    }
    documents.extend(access::all(namespace, args, &definitions));
    documents.extend(policy::all(namespace));
    documents.extend(preheat_policy::all(namespace, &args.dialects));
    documents.extend(workloads::all(namespace, args));
    Ok(documents)
}

/// Our own CRDs and those of the dialects, labelled.
pub(super) fn definitions(dialects: &[ServedDialect]) -> Vec<CustomResourceDefinition> {
    files(dialects).map(|(_, definition)| definition).collect()
}

/// The same, each with the name of its file.
pub(super) fn files(dialects: &[ServedDialect]) -> impl Iterator<Item = (&'static str, CustomResourceDefinition)> {
    let wanted =
        |file: &str| dialect_of(file) == OWN || dialects.iter().any(|dialect| dialect.name == dialect_of(file));
    stoker_api::crds().into_iter().filter(move |(file, _)| wanted(file)).map(|(file, mut definition)| {
        definition.labels_mut().extend(api_labels());
        (file, definition)
    })
}

/// The labels of a CRD that is installed.
pub(super) fn api_labels() -> BTreeMap<String, String> {
    let labels = labels("api");
    let labels = labels.as_object().into_iter().flatten();
    labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_string()))).collect()
}

/// The names of all dialects of other projects.
pub(super) fn dialects() -> BTreeSet<&'static str> {
    DIALECTS.iter().map(|dialect| dialect.name).filter(|name| *name != native::DIALECT).collect()
}

fn dialect_of(file: &str) -> &str {
    file.split_once('-').map_or(file, |(dialect, _)| dialect)
}

/// Both maps in one.
pub(super) fn merged(mut one: Value, more: Value) -> Value {
    if let (Some(one), Value::Object(more)) = (one.as_object_mut(), more) {
        one.extend(more);
    }
    one
}

/// All documents as one text.
pub(super) fn yaml(documents: &[InstallDocument]) -> anyhow::Result<String> {
    let mut text = String::new();
    for InstallDocument { about, object } in documents {
        text += &format!("---\n{}{}\n", comment(about), serde_saphyr::to_string(object)?.trim_end());
    }
    Ok(text)
}

/// Lines that people can read.
fn comment(text: &str) -> String {
    const WIDTH: usize = 100;
    let mut lines = String::from("#");
    let mut used = 1;
    for word in text.split_whitespace() {
        if used + 1 + word.len() > WIDTH {
            lines += "\n#";
            used = 1;
        }
        lines = lines + " " + word;
        used += 1 + word.len();
    }
    lines + "\n"
}

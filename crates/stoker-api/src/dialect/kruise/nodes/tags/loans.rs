//! What whoever plays the agent of a NodeImage without a Node needs beside the tags of jobs: which Secrets have logins for the registry, and what
//! the pod is that the image is for. Both go into the repository of the tag, as upstream writes them there, and go with the last tag. What
//! others have written there stays. NodeImages with a Node get neither: their agents have both in their orders.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use stoker_core::model::Job;

use super::room::TagName;
use super::{Wanted, name_and_tag};
use crate::dialect::kruise::node_image::SecretReference;
use crate::dialect::kruise::nodes::row::NodeImageRow;
use crate::dialect::kruise::to_core::PULLED_BY;
use crate::native::SandboxSpec;

/// Secrets that a repository may have before jobs add none. Thousands of them would make the NodeImage too large to be written.
const MOST_SECRETS: usize = 4;
/// The longest description of a pod that is shown, in bytes.
const LONGEST_SANDBOX: usize = 1024;

/// What repositories are given besides their tags, by their names.
#[derive(Default)]
pub(super) struct Loans(BTreeMap<String, Loan>);

struct Loan {
    secrets: Vec<SecretReference>,
    /// The description of the pod; one that is there already is not written again.
    sandbox: Option<Value>,
    has_sandbox: bool,
    adds_secrets: bool,
}

impl Loan {
    fn of(row: &NodeImageRow, image: &str) -> Self {
        let spec = row.of_image(image).next().map(|tag| &tag.spec);
        Self {
            secrets: spec.map(|spec| spec.secrets.clone()).unwrap_or_default(),
            sandbox: None,
            has_sandbox: spec.is_some_and(|spec| spec.has_sandbox()),
            adds_secrets: false,
        }
    }
}

impl Loans {
    /// Adds what a job wants for its tag. A job that has ended wants nothing more.
    pub(super) fn add(&mut self, wanted: &Wanted<'_>) {
        let (row, job) = (wanted.row, wanted.job);
        if row.fake.is_none() || job.ended.is_some() {
            return;
        }
        let image = &wanted.name.0;
        // The row does not say what a repository without tags has. It is given more when its tag is there.
        if row.bare > 0 && row.of_image(image).next().is_none() {
            return;
        }
        let loan = self.0.entry(image.clone()).or_insert_with(|| Loan::of(row, image));
        for secret in secrets(job, &wanted.name) {
            let is_there =
                loan.secrets.iter().any(|own| (&own.namespace, &own.name) == (&secret.namespace, &secret.name));
            if !is_there && loan.secrets.len() < MOST_SECRETS {
                loan.secrets.push(secret);
                loan.adds_secrets = true;
            }
        }
        if !loan.has_sandbox && loan.sandbox.is_none() {
            loan.sandbox = sandbox(job);
        }
    }

    /// The repositories that are given something.
    pub(super) fn images(&self) -> impl Iterator<Item = &String> {
        self.0.iter().filter(|(_, loan)| loan.adds_secrets || loan.sandbox.is_some()).map(|(image, _)| image)
    }

    /// Writes what a repository is given into its patch.
    pub(super) fn write(&self, image: &str, patch: &mut Value) {
        let Some(loan) = self.0.get(image) else { return };
        if loan.adds_secrets {
            patch["pullSecrets"] = json!(loan.secrets);
        }
        if let Some(sandbox) = &loan.sandbox {
            patch["sandboxConfig"] = sandbox.clone();
        }
    }
}

/// The Secrets that a job names for an image.
fn secrets(job: &Job, name: &TagName) -> Vec<SecretReference> {
    let is_own =
        |image: &&stoker_core::Image| image.reference.as_ref().is_ok_and(|reference| name_and_tag(reference) == *name);
    let ids = job.images.iter().filter(is_own).flat_map(|image| &image.secrets);
    let reference = |id: &stoker_core::SecretId| SecretReference {
        namespace: id.namespace.to_string(),
        name: id.name.to_string(),
        mode: String::new(),
    };
    ids.map(reference).collect()
}

/// What a job says about the pod; none where it says nothing but who pulls, which is said for every job.
fn sandbox(job: &Job) -> Option<Value> {
    let sandbox = &job.pull.sandbox;
    let says_more = !sandbox.labels.is_empty() || sandbox.annotations.keys().any(|key| key != PULLED_BY.0);
    let spec = SandboxSpec { labels: sandbox.labels.clone(), annotations: sandbox.annotations.clone() };
    let spec = serde_json::to_value(spec).ok().filter(|_| says_more)?;
    (spec.to_string().len() <= LONGEST_SANDBOX).then_some(spec)
}

/// The patch of a repository whose last tag goes: what jobs have added to it goes, too, and what people wrote there stays. Null where nothing
/// stays. Secrets of jobs are in the namespaces of the jobs that own tags, and only they say who pulls in the description of a pod.
pub(super) fn without_tags(row: &NodeImageRow, image: &str) -> Value {
    let Some(spec) = row.of_image(image).next().map(|tag| &tag.spec) else { return Value::Null };
    let jobs = row.of_image(image).flat_map(|tag| &tag.spec.jobs).filter(|_| row.fake.is_some());
    let lenders: BTreeSet<&str> = jobs.map(|(namespace, _)| namespace.as_str()).collect();
    let (lent, own): (Vec<&SecretReference>, Vec<&SecretReference>) =
        spec.secrets.iter().partition(|secret| lenders.contains(secret.namespace.as_str()));
    let says_who_pulls = spec.sandbox().is_some_and(|sandbox| sandbox.annotations.contains_key(PULLED_BY.0));
    let lent_sandbox = row.fake.is_some() && says_who_pulls;
    if own.is_empty() && (lent_sandbox || !spec.has_sandbox()) {
        return Value::Null;
    }
    let mut patch = json!({ "tags": [] });
    if !lent.is_empty() {
        patch["pullSecrets"] = if own.is_empty() { Value::Null } else { json!(own) };
    }
    if lent_sandbox {
        patch["sandboxConfig"] = Value::Null;
    }
    patch
}

//! From the object of a NodeImage to its row.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube_core::dynamic::DynamicObject;
use serde_json::Value;
use stoker_core::model::Key;

use super::{
    COUNTS, NodeImageRow, OtherStatus, PHASES, Said, TagPhase, TagRow, TagSpec, hash, is_job, rendered, seconds,
};
use crate::dialect::kruise::node_image::{ImageTagSpec, ImageTagStatus, SecretReference, TagOwner};
use crate::dialect::kruise::nodes::FAKE;
use crate::dialect::kruise::versions::version_of;
use crate::dialect::kruise::{NodeImage, versions};
use crate::view::Row;

/// Keeps a NodeImage.
pub(in super::super) fn keep(object: DynamicObject) -> Row {
    let meta = &object.metadata;
    let labels = meta.labels.clone().unwrap_or_default();
    let keys: String = labels.keys().map(|key| format!("{key}\n")).collect();
    let mut statuses = said(&object);
    let mut tags: Vec<TagRow> = Vec::new();
    let images = object.data.pointer("/spec/images").and_then(Value::as_object);
    let mut bare = 0;
    for (name, image) in images.into_iter().flatten() {
        let secrets: Vec<SecretReference> = read(image.get("pullSecrets")).unwrap_or_default();
        let sandbox = image.get("sandboxConfig").filter(|sandbox| !sandbox.is_null()).map(Value::to_string);
        let entries = image.get("tags").and_then(Value::as_array).into_iter().flatten();
        let before = tags.len();
        tags.extend(entries.map(|entry| tag_row(name, entry, &secrets, sandbox.as_deref(), &mut statuses)));
        bare += u32::from(tags.len() == before);
    }
    tags.sort_by(|a, b| (&a.spec.image, &a.spec.tag).cmp(&(&b.spec.image, &b.spec.tag)));
    let mut by_group: Vec<u32> = (0..).take(tags.len()).collect();
    let group = |at: &u32| usize::try_from(*at).ok().and_then(|at| tags.get(at)).map(|tag| &tag.spec.group);
    by_group.sort_by(|a, b| group(a).cmp(&group(b)));
    // In the order of their names, as the tags are.
    let others = statuses.into_iter().flat_map(|((image, tag), entries)| {
        entries.into_iter().map(move |entry| OtherStatus {
            image: image.as_str().into(),
            tag: tag.as_str().into(),
            text: entry.to_string().into(),
        })
    });
    let [_, older] = versions::<NodeImage>();
    let made = meta.creation_timestamp.as_ref().and_then(|time| u32::try_from(time.0.as_second()).ok());
    let status = object.data.get("status").filter(|status| !status.is_null());
    let count = |status: &Value| {
        COUNTS.map(|field| status.get(field).and_then(Value::as_i64).and_then(|n| n.try_into().ok()).unwrap_or(0))
    };
    Row::NodeImage(Box::new(NodeImageRow {
        uid: meta.uid.as_deref().unwrap_or_default().into(),
        version: meta.resource_version.as_deref().unwrap_or_default().into(),
        made: made.unwrap_or_default(),
        going: meta.deletion_timestamp.is_some(),
        is_older: version_of::<NodeImage>(&object) == older,
        label_keys: keys.into(),
        labels: hash(&labels),
        fake: labels.contains_key(FAKE).then_some(labels),
        by_group: by_group.into(),
        tags: tags.into(),
        bare,
        others: others.collect(),
        counts: status.map(count),
    }))
}

fn read<T: serde::de::DeserializeOwned>(value: Option<&Value>) -> Option<T> {
    T::deserialize(value?).ok()
}

/// The entries of a status, by repository and tag.
type Statuses = BTreeMap<(String, String), Vec<Value>>;

fn said(object: &DynamicObject) -> Statuses {
    let images = object.data.pointer("/status/imageStatuses").and_then(Value::as_object);
    let mut all = Statuses::new();
    for (name, image) in images.into_iter().flatten() {
        for entry in image.get("tags").and_then(Value::as_array).into_iter().flatten() {
            let tag = entry.get("tag").and_then(Value::as_str).unwrap_or_default();
            all.entry((name.clone(), tag.to_owned())).or_default().push(entry.clone());
        }
    }
    all
}

/// Keeps a tag, and takes what the status says of its version.
fn tag_row(
    image: &str,
    entry: &Value,
    secrets: &[SecretReference],
    sandbox: Option<&str>,
    statuses: &mut Statuses,
) -> TagRow {
    let parsed: ImageTagSpec = read(Some(entry)).unwrap_or_else(|| ImageTagSpec {
        tag: entry.get("tag").and_then(Value::as_str).unwrap_or_default().into(),
        ..ImageTagSpec::default()
    });
    let (version, created) = (parsed.version.unwrap_or_default(), seconds(parsed.created_at.as_deref()));
    let shared = ImageTagSpec { version: None, created_at: None, ..parsed };
    let odd = (rendered(shared.clone(), version, created) != *entry).then(|| entry.to_string());
    let tag = shared.tag.clone();
    let job = |owner: &TagOwner| {
        let name = (owner.namespace.clone().unwrap_or_default(), owner.name.clone().unwrap_or_default());
        is_job(owner).then_some(name)
    };
    let spec = TagSpec {
        jobs: shared.owner_references.iter().filter_map(job).collect(),
        is_marked: shared.owner_references.iter().any(|owner| owner.kind.as_deref() == Some("NodeImage")),
        image: image.into(),
        group: group(image, &shared, secrets, sandbox),
        text: serde_json::to_string(&shared).unwrap_or_default(),
        tag: tag.clone(),
        odd,
        secrets: secrets.to_vec(),
        sandbox: sandbox.map(str::to_owned),
    };
    let mut row = TagRow {
        spec: Arc::new(spec),
        said: None,
        version,
        created,
        started: 0,
        completed: 0,
        phase: TagPhase::Unsaid,
        progress: u8::MAX,
    };
    let own = |entry: &Value| entry.get("version").and_then(Value::as_i64).unwrap_or_default() == version;
    if let Some(entries) = statuses.get_mut(&(image.to_owned(), tag))
        && let Some(at) = entries.iter().position(own)
        && let Some(kept) = entries.get(at).and_then(|entry| row.saying(entry))
    {
        entries.remove(at);
        row = kept;
    }
    row
}

impl TagRow {
    /// The row with what an entry of the status says, if that can be kept shorter than as text.
    fn saying(&self, entry: &Value) -> Option<Self> {
        let status: ImageTagStatus = read(Some(entry))?;
        let (phase, _) = PHASES.iter().find(|(_, word)| *word == status.phase)?;
        let said = Said { image_id: status.image_id.clone(), message: status.message.clone() };
        let row = Self {
            said: (said != Said::default()).then(|| Arc::new(said)),
            started: seconds(status.start_time.as_deref()),
            completed: seconds(status.completion_time.as_deref()),
            phase: *phase,
            progress: status.progress.map_or(Some(u8::MAX), |percent| u8::try_from(percent).ok())?,
            ..self.clone()
        };
        (serde_json::to_value(row.status()).ok()? == *entry).then_some(row)
    }
}

/// Names what is pulled and how: nodes with the same wish are one job.
fn group(image: &str, tag: &ImageTagSpec, secrets: &[SecretReference], sandbox: Option<&str>) -> String {
    let policy = tag.pull_policy.clone().unwrap_or_default();
    let secrets = serde_json::to_string(secrets).unwrap_or_default();
    let terms = format!(
        "{image}\n{}\n{:?}\n{:?}\n{:?}\n{secrets}\n{}",
        tag.tag,
        policy.timeout_seconds,
        policy.backoff_limit,
        tag.image_pull_policy,
        sandbox.unwrap_or_default()
    );
    Key::of(&terms).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(spec: Value, status: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "apps.kruise.io/v1beta1", "kind": "NodeImage",
            "metadata": { "name": "n1", "uid": "u", "resourceVersion": "7" }, "spec": spec, "status": status,
        }))
        .unwrap()
    }

    fn row(spec: Value, status: Value) -> NodeImageRow {
        let Row::NodeImage(row) = keep(object(spec, status)) else { panic!("no row") };
        *row
    }

    /// 5,000 nodes with 20 tags each take at most 5 MiB.
    #[test]
    fn a_tag_takes_few_bytes() {
        let (uid, version) = (16 + 36, 8);
        let node = size_of::<NodeImageRow>() + uid + version + 20 * size_of::<TagRow>();
        assert!(node <= 5 * 1024 * 1024 / 5_000, "{node} bytes a node, {} a tag", size_of::<TagRow>());
    }

    /// Whatever people and other controllers have written: a patch that adds a tag writes the whole list again.
    #[test]
    fn what_is_kept_is_rendered_as_it_was_written() {
        let tags = json!([
            { "tag": "a", "pullPolicy": { "ttlSecondsAfterFinished": 5 } },
            { "tag": "b", "version": 0, "createdAt": "2026-01-02T03:04:05Z" },
            { "tag": "c", "version": 7, "createdAt": "2026-01-02T03:04:05.5Z", "imagePullPolicy": "" },
            { "tag": "d", "createdAt": "2026-01-02T03:04:05+01:00", "ownerReferences": [{ "kind": "Robot", "name": "r", "x": 1 }] },
            { "tag": "e", "createdAt": "1960-01-02T03:04:05Z", "pullPolicy": { "unknown": [1, 2] } },
        ]);
        let entries = json!([
            { "tag": "a", "phase": "Succeeded", "progress": 100, "completionTime": "2026-01-02T03:04:05Z", "imageID": "x@y" },
            { "tag": "b", "phase": "Exploded", "startTime": "2026-01-02T03:04:05.25Z" },
            { "tag": "c", "phase": "Failed", "version": 6, "message": "" },
            { "tag": "d", "phase": "Pulling", "progress": 700 },
            { "tag": "z", "phase": "Succeeded" },
        ]);
        let status = json!({ "desired": 5, "imageStatuses": { "nginx": { "tags": entries } } });
        let row = row(json!({ "images": { "nginx": { "tags": tags } } }), status);
        let kept: Vec<Value> = row.of_image("nginx").map(TagRow::json).collect();
        assert_eq!(json!(kept), tags);
        let own = row.tags.iter().filter(|tag| tag.phase != TagPhase::Unsaid);
        let own = own.map(|tag| serde_json::to_value(tag.status()).unwrap());
        let mut all: Vec<Value> = own.chain(row.others.iter().map(OtherStatus::json)).collect();
        all.sort_by_key(|entry| entry["tag"].to_string());
        assert_eq!(json!(all), entries);
        let phases: Vec<_> = row.tags.iter().map(|tag| row.status(tag).map(|status| status.phase)).collect();
        assert_eq!(
            phases,
            [Some("Succeeded".into()), Some("Exploded".into()), None, Some("Pulling".into()), None],
            "a status of another version says nothing"
        );
        assert_eq!(row.stale("nginx", "c", Some(7)).unwrap().version, Some(6));
    }
}

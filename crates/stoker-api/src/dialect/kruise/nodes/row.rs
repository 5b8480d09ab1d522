//! What is kept of a NodeImage. There is one for each node, with dozens of tags, and thousands of nodes have the same tags: what is the same
//! on many nodes is kept once ([`Interned`]), and a tag of a node takes about 40 bytes. Whatever is kept is rendered again exactly as it was
//! read, because a patch replaces the whole list of the tags of a repository: an entry that would come out otherwise is kept as text.

mod interned;
mod keep;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use stoker_core::model::Key;

use super::people::has_ended;
use crate::dialect::kruise::node_image::{ImageTagSpec, ImageTagStatus, SecretReference, TagOwner};
use crate::dialect::kruise::types::GROUP;
use crate::native::SandboxSpec;
use crate::view::ObjectName;
pub use interned::Interned;
pub(super) use keep::keep;

/// What is kept of a NodeImage.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeImageRow {
    pub(super) uid: Arc<str>,
    /// Its resourceVersion: writes are for this one.
    pub(super) version: Box<str>,
    /// When it was made, in seconds.
    pub(super) made: u32,
    /// It is being deleted.
    pub(super) going: bool,
    /// It was read in the older version of the API.
    pub(super) is_older: bool,
    /// The keys of its labels, one in a line.
    pub(super) label_keys: Arc<str>,
    /// A hash of its labels with their values.
    pub(super) labels: Key,
    /// The labels of one that has no Node; of others the Node's labels are known.
    pub(super) fake: Option<BTreeMap<String, String>>,
    /// By repository and tag.
    pub(super) tags: Box<[TagRow]>,
    /// The positions of the tags, in the order of their groups: a group finds its tags without a look at all of them.
    pub(super) by_group: Box<[u32]>,
    /// Repositories that have no tags.
    pub(super) bare: u32,
    /// What its status says of other tags or versions, and what could not be kept shorter.
    pub(super) others: Box<[OtherStatus]>,
    /// The counts of its status; none where it has no status.
    pub(super) counts: Option<Counts>,
}

impl Default for NodeImageRow {
    fn default() -> Self {
        Self {
            uid: "".into(),
            version: "".into(),
            made: 0,
            going: false,
            is_older: false,
            label_keys: "".into(),
            labels: Key::of(""),
            fake: None,
            tags: Box::default(),
            by_group: Box::default(),
            bare: 0,
            others: Box::default(),
            counts: None,
        }
    }
}

/// The counts of a status: desired, succeeded, failed, pulling, waiting.
pub(super) type Counts = [i32; 5];

/// The fields of [`Counts`].
pub(super) const COUNTS: [&str; 5] = ["desired", "succeeded", "failed", "pulling", "waiting"];

/// What many nodes have in common of a tag: everything but its version, its time and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TagSpec {
    /// The repository, as the NodeImage names it.
    pub(super) image: String,
    /// The tag or digest.
    pub(super) tag: String,
    /// The tag without its version and its time, as JSON.
    text: String,
    /// The tag exactly as it was written, where it cannot be rendered from the rest.
    odd: Option<String>,
    /// Secrets of the repository.
    pub(super) secrets: Vec<SecretReference>,
    /// The `sandboxConfig` of the repository, as JSON.
    sandbox: Option<String>,
    /// Names what all nodes with the same wish share.
    pub(super) group: String,
    /// Namespace and name of the ImagePullJobs that want it.
    pub(super) jobs: Vec<ObjectName>,
    /// Whether somebody wrote it by hand before an ImagePullJob wanted it too: see [`super::tags`].
    pub(super) is_marked: bool,
}

impl TagSpec {
    /// The tag without its version and its time.
    pub(super) fn parsed(&self) -> ImageTagSpec {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    /// What a runtime is told about the pod that the image is for.
    pub(super) fn sandbox(&self) -> Option<SandboxSpec> {
        serde_json::from_str(self.sandbox.as_deref()?).ok()
    }

    /// Whether something is said about the pod that the image is for.
    pub(super) fn has_sandbox(&self) -> bool {
        self.sandbox.is_some()
    }

    /// Whether somebody wrote it by hand. Where upstream's manager serves ImagePullJobs, its tags count as such, too.
    pub(super) fn is_peoples(&self, half: bool) -> bool {
        half || self.jobs.is_empty() || self.is_marked
    }

    /// The image, as jobs write it.
    pub(super) fn written(&self) -> String {
        let joint = if self.tag.contains(':') { '@' } else { ':' };
        format!("{}{joint}{}", self.image, self.tag)
    }
}

/// What a status says beyond phase, progress and times.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Said {
    image_id: Option<String>,
    message: Option<String>,
}

/// A tag of a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TagRow {
    pub(super) spec: Arc<TagSpec>,
    said: Option<Arc<Said>>,
    pub(super) version: i64,
    /// In seconds; 0 where it is not given.
    pub(super) created: u32,
    started: u32,
    completed: u32,
    phase: TagPhase,
    /// In percent; more where none is given.
    progress: u8,
}

/// How far a tag is, as its status says for its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TagPhase {
    /// Nothing is said, or it is kept among the others.
    Unsaid,
    Waiting,
    Pulling,
    Succeeded,
    Failed,
}

const PHASES: [(TagPhase, &str); 4] = [
    (TagPhase::Waiting, "Waiting"),
    (TagPhase::Pulling, "Pulling"),
    (TagPhase::Succeeded, "Succeeded"),
    (TagPhase::Failed, "Failed"),
];

/// An entry of a status that is kept as text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OtherStatus {
    pub(super) image: Box<str>,
    pub(super) tag: Box<str>,
    text: Box<str>,
}

impl OtherStatus {
    /// The entry; one that cannot be read has only its tag.
    pub(super) fn parsed(&self) -> ImageTagStatus {
        let unreadable = || ImageTagStatus { tag: self.tag.to_string(), ..ImageTagStatus::default() };
        serde_json::from_str(&self.text).unwrap_or_else(|_| unreadable())
    }

    /// The entry as it was written.
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }
}

impl NodeImageRow {
    /// The rows of a repository.
    pub(super) fn of_image<'a>(&'a self, image: &'a str) -> impl Iterator<Item = &'a TagRow> {
        run_of(&self.tags, |row| row.spec.image.as_str().cmp(image)).iter()
    }

    /// The tags of a group.
    pub(super) fn of_group<'a>(&'a self, group: &'a str) -> impl Iterator<Item = &'a TagRow> {
        let tag = |at: &u32| self.tags.get(usize::try_from(*at).ok()?);
        let own = run_of(&self.by_group, move |at| tag(at).map_or("", |tag| tag.spec.group.as_str()).cmp(group));
        own.iter().filter_map(tag)
    }

    /// The tag of this name.
    pub(super) fn tag(&self, image: &str, tag: &str) -> Option<&TagRow> {
        self.tags_of(image, tag).first()
    }

    fn tags_of(&self, image: &str, tag: &str) -> &[TagRow] {
        run_of(&self.tags, |row| (row.spec.image.as_str(), row.spec.tag.as_str()).cmp(&(image, tag)))
    }

    /// What the status says of a tag of this name beside what its row has.
    fn others_of(&self, image: &str, tag: &str) -> &[OtherStatus] {
        run_of(&self.others, |other| (&*other.image, &*other.tag).cmp(&(image, tag)))
    }

    /// What the status says of a tag in the version that the spec has.
    pub(super) fn status(&self, row: &TagRow) -> Option<ImageTagStatus> {
        if row.phase != TagPhase::Unsaid {
            return Some(row.status());
        }
        let mut entries = self.others_of(&row.spec.image, &row.spec.tag).iter().map(OtherStatus::parsed);
        entries.find(|entry| entry.version.unwrap_or_default() == row.version && !entry.phase.is_empty())
    }

    /// Whether the status says that this version of a tag has ended.
    pub(super) fn has_ended(&self, row: &TagRow) -> bool {
        match row.phase {
            TagPhase::Succeeded | TagPhase::Failed => true,
            TagPhase::Waiting | TagPhase::Pulling => false,
            TagPhase::Unsaid => self.status(row).as_ref().is_some_and(has_ended),
        }
    }

    /// When the status says that the pull of this version of a tag began, in seconds; 0 where it does not.
    pub(super) fn began(&self, row: &TagRow) -> u32 {
        match row.phase {
            TagPhase::Unsaid => self.status(row).map_or(0, |status| seconds(status.start_time.as_deref())),
            _ => row.started,
        }
    }

    /// What the status says of another version of a tag.
    pub(super) fn stale(&self, image: &str, tag: &str, version: Option<i64>) -> Option<ImageTagStatus> {
        let mut entries = self.others_of(image, tag).iter().map(OtherStatus::parsed);
        entries.find(|entry| version != Some(entry.version.unwrap_or_default()))
    }

    /// Every version of a tag that the status says something of, or that is in the spec.
    pub(super) fn versions(&self, image: &str, tag: &str) -> impl Iterator<Item = i64> {
        let own = self.tags_of(image, tag).iter().filter(|row| row.said_here()).map(|row| row.version);
        self.others_of(image, tag).iter().map(|other| other.parsed().version.unwrap_or_default()).chain(own)
    }

    /// Whether one of these ImagePullJobs owns a tag.
    pub(crate) fn names_any(&self, jobs: &BTreeSet<ObjectName>) -> bool {
        self.tags.iter().any(|tag| tag.spec.jobs.iter().any(|job| jobs.contains(job)))
    }
}

impl TagRow {
    fn status(&self) -> ImageTagStatus {
        let said = self.said.as_deref().cloned().unwrap_or_default();
        let phase = PHASES.iter().find(|(phase, _)| *phase == self.phase).map_or("", |(_, word)| word);
        ImageTagStatus {
            tag: self.spec.tag.clone(),
            phase: phase.into(),
            progress: (self.progress <= 100).then(|| i32::from(self.progress)),
            start_time: text(self.started),
            completion_time: text(self.completed),
            version: Some(self.version).filter(|version| *version != 0),
            image_id: said.image_id,
            message: said.message,
        }
    }

    /// Whether what the status says of its version is kept with it.
    pub(super) fn said_here(&self) -> bool {
        self.phase != TagPhase::Unsaid
    }

    /// Whether nobody has given it a time.
    pub(super) fn lacks_time(&self) -> bool {
        self.created == 0 && self.json().get("createdAt").is_none_or(Value::is_null)
    }

    /// The tag as it is written.
    pub(super) fn json(&self) -> Value {
        if let Some(odd) = &self.spec.odd {
            return serde_json::from_str(odd).unwrap_or_default();
        }
        rendered(self.spec.parsed(), self.version, self.created)
    }
}

/// The entries of a sorted slice that are equal to what is looked for.
fn run_of<T>(sorted: &[T], compare: impl Fn(&T) -> Ordering) -> &[T] {
    let begin = sorted.partition_point(|entry| compare(entry).is_lt());
    let rest = sorted.get(begin..).unwrap_or_default();
    rest.get(..rest.partition_point(|entry| compare(entry).is_eq())).unwrap_or_default()
}

/// A tag with its version and its time.
pub(super) fn rendered(tag: ImageTagSpec, version: i64, created: u32) -> Value {
    let version = Some(version).filter(|version| *version != 0);
    serde_json::to_value(ImageTagSpec { created_at: text(created), version, ..tag }).unwrap_or_default()
}

/// A time in seconds as upstream writes it; none for 0.
pub(super) fn text(seconds: u32) -> Option<String> {
    let time = Timestamp::from_second(i64::from(seconds)).ok().filter(|_| seconds != 0)?;
    Some(time.to_string())
}

/// A time in whole seconds; 0 where it is none that is kept.
pub(super) fn seconds(text: Option<&str>) -> u32 {
    let time = text.and_then(|text| text.parse::<Timestamp>().ok());
    time.and_then(|time| u32::try_from(time.as_second()).ok()).unwrap_or_default()
}

/// Whether an owner of a tag is an ImagePullJob.
pub(super) fn is_job(owner: &TagOwner) -> bool {
    let group = owner.api_version.as_deref().and_then(|version| version.split('/').next());
    owner.kind.as_deref() == Some("ImagePullJob") && group.is_none_or(|group| group == GROUP)
}

/// A hash of labels.
pub(super) fn hash(labels: &BTreeMap<String, String>) -> Key {
    let lines: String = labels.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
    Key::of(&lines)
}

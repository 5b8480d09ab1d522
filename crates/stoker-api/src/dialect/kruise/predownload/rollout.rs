//! How far the rollout of a workload is, from its status and its revisions. Each kind says it in other words.

use std::collections::{BTreeMap, BTreeSet};

use kube_core::dynamic::DynamicObject;
use serde::Deserialize as _;
use serde_json::Value;

use super::row::{RevisionRow, images, number};
use super::{CONTROLLER_REVISIONS, REPLICA_SETS, is_kruise, text};
use crate::dialect::JobKind;
use crate::share::Share;
use crate::view::Kind;

/// How a kind of workload tells of its rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Its revisions are ReplicaSets, and each of these says how many pods it has.
    Deployment,
    /// Its status names the newest ControllerRevision and the one before.
    Named,
    /// Its ControllerRevisions have numbers, and its status counts pods.
    DaemonSet,
}

impl Shape {
    pub(super) fn of(kind: &JobKind) -> Self {
        match kind.kind.name {
            "Deployment" => Self::Deployment,
            "DaemonSet" | "AdvancedDaemonSet" => Self::DaemonSet,
            _ => Self::Named,
        }
    }

    /// The kind of its revisions.
    pub(super) fn revisions(self) -> &'static Kind {
        match self {
            Self::Deployment => &REPLICA_SETS,
            Self::Named | Self::DaemonSet => &CONTROLLER_REVISIONS,
        }
    }

    /// The label of pods that names their revision.
    fn label(self) -> &'static str {
        match self {
            Self::Deployment => "pod-template-hash",
            Self::Named | Self::DaemonSet => "controller-revision-hash",
        }
    }
}

/// What the status of a workload says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its controller has not looked at the newest template yet.
    Unknown,
    /// No pod of an older revision is left, or all are replaced at one time: nothing can be pulled ahead.
    Over,
    /// Pods of older revisions are there.
    Underway,
}

/// A rollout that is under way.
#[derive(Debug)]
pub(super) struct Underway<'a> {
    /// The name of the revision that pods get.
    pub(super) revision: &'a str,
    /// Its hash.
    pub(super) hash: &'a str,
    /// The label of pods that names their revision.
    pub(super) label: &'static str,
    /// Images by container, of the revision that pods get.
    images: &'a BTreeMap<String, String>,
    /// The same of each older revision that pods may still have.
    older: Vec<&'a BTreeMap<String, String>>,
    /// How many pods there should be.
    pub(super) pods: u64,
    /// How many pods of the new revision are ready, at least.
    pub(super) ready: u64,
    /// OpenKruise's own controller has taken care of this revision.
    pub(super) is_marked: bool,
}

impl Underway<'_> {
    /// The containers whose image some older revision does not have, with that image.
    pub(super) fn changed(&self) -> impl Iterator<Item = (&str, &str)> {
        let had = |name: &String, image: &String| {
            !self.older.is_empty() && self.older.iter().all(|older| older.get(name) == Some(image))
        };
        let changed = self.images.iter().filter(move |pair| !had(pair.0, pair.1));
        changed.map(|(name, image)| (name.as_str(), image.as_str()))
    }

    /// What the label of updated pods may say: some kinds put the name of the revision there, others its hash. A label is not longer
    /// than this.
    pub(super) fn values(&self) -> BTreeSet<&str> {
        [self.revision, self.hash].into_iter().filter(|value| !value.is_empty() && value.len() <= 63).collect()
    }
}

/// What the status of a workload says.
pub(super) fn stage(shape: Shape, workload: &DynamicObject) -> Stage {
    let count = |field: &str| number(workload, &format!("/status/{field}"));
    let generation = u64::try_from(workload.metadata.generation.unwrap_or_default()).unwrap_or_default();
    if count("observedGeneration") < generation {
        return Stage::Unknown;
    }
    let over = match shape {
        Shape::Deployment => count("replicas") <= count("updatedReplicas"),
        Shape::Named => {
            // With the strategy OnDelete the current revision of a StatefulSet stays what it was.
            let all = count("updatedReplicas") >= pods(shape, workload);
            all || text(workload, "/status/currentRevision") == text(workload, "/status/updateRevision")
        }
        Shape::DaemonSet => count("currentNumberScheduled") <= count("updatedNumberScheduled"),
    };
    match over || is_one_batch(workload, pods(shape, workload)) {
        true => Stage::Over,
        false => Stage::Underway,
    }
}

/// How many pods there should be.
fn pods(shape: Shape, workload: &DynamicObject) -> u64 {
    match shape {
        Shape::DaemonSet => number(workload, "/status/desiredNumberScheduled"),
        Shape::Deployment | Shape::Named => {
            workload.data.pointer("/spec/replicas").and_then(Value::as_u64).unwrap_or(1)
        }
    }
}

/// A rollout that is under way; none where the revision of the newest template was not heard of yet.
pub(super) fn underway<'a>(
    shape: Shape,
    workload: &DynamicObject,
    revisions: &[(&'a str, &'a RevisionRow)],
) -> Option<Underway<'a>> {
    let ((revision, newest), older) = in_use(shape, workload, revisions)?;
    // Workloads and revisions are heard of by different watches.
    if newest.images != images(workload, "/spec/template/spec/containers") {
        return None;
    }
    let count = |field: &str| number(workload, &format!("/status/{field}"));
    // Of so many pods so many are updated and so many ready: at least these are both.
    let both =
        |ready: &str, updated: &str, all: &str| count(ready).saturating_add(count(updated)).saturating_sub(count(all));
    let ready = match shape {
        Shape::Deployment => newest.ready,
        Shape::Named if workload.data.pointer("/status/updatedReadyReplicas").is_some() => {
            count("updatedReadyReplicas")
        }
        Shape::Named => both("readyReplicas", "updatedReplicas", "replicas"),
        Shape::DaemonSet => both("numberReady", "updatedNumberScheduled", "currentNumberScheduled"),
    };
    Some(Underway {
        revision,
        hash: newest.hash.as_deref().unwrap_or(revision),
        label: shape.label(),
        images: &newest.images,
        older: older.into_iter().map(|row| &row.images).collect(),
        pods: pods(shape, workload),
        ready,
        is_marked: newest.is_marked,
    })
}

/// The newest revision with its name, and older ones that pods may still have.
fn in_use<'a>(
    shape: Shape,
    workload: &DynamicObject,
    revisions: &[(&'a str, &'a RevisionRow)],
) -> Option<((&'a str, &'a RevisionRow), Vec<&'a RevisionRow>)> {
    let all = revisions.iter().copied();
    if shape == Shape::Named {
        let named = |field: &str| all.clone().find(|(name, _)| text(workload, field) == Some(*name));
        let older = named("/status/currentRevision").map(|(_, row)| row);
        return Some((named("/status/updateRevision")?, older.into_iter().collect()));
    }
    let newest = all.clone().max_by_key(|(_, row)| row.number)?;
    let others = all.filter(|(name, _)| *name != newest.0).map(|(_, row)| row);
    let older = match shape {
        Shape::Deployment => others.filter(|row| row.pods > 0).collect(),
        // How many pods an older one has is written nowhere; most have the one before.
        Shape::Named | Shape::DaemonSet => others.max_by_key(|row| row.number).into_iter().collect(),
    };
    Some((newest, older))
}

/// Whether all pods are replaced at one time, so that no node can pull ahead.
fn is_one_batch(workload: &DynamicObject, pods: u64) -> bool {
    let of_deployment = text(workload, "/spec/strategy/type");
    let strategy = of_deployment.or_else(|| text(workload, "/spec/updateStrategy/type"));
    match strategy {
        Some("Recreate") => return true,
        // As OpenKruise has it. Of Kubernetes' own, pods that somebody deletes later find their image there.
        Some("OnDelete") => return is_kruise(workload),
        _ => {}
    }
    let places = ["/spec/strategy/rollingUpdate", "/spec/updateStrategy/rollingUpdate", "/spec/updateStrategy"];
    let field = |name: &str| places.iter().find_map(|at| workload.data.pointer(&format!("{at}/{name}")));
    let batch = match field("maxUnavailable") {
        Some(value) => share(value, pods),
        None if of_deployment.is_some() => pods.div_ceil(4),
        None => 1,
    };
    let held_back = field("partition").map_or(0, |value| share(value, pods));
    held_back == 0 && batch >= pods
}

/// A number of pods, or a percentage of them; none where neither is written.
fn share(value: &Value, pods: u64) -> u64 {
    Share::deserialize(value).map_or(0, |share| share.of(pods))
}

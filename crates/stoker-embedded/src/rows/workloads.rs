//! Kinds that describe containers, and what finds them. Stoker reads some of them; nothing of this server runs or serves them,
//! and whoever makes one is warned of that. See docs/decisions/0015.

use super::{ROW, Row, readable};
use crate::kind::StatusUse;
use k8s_openapi::api::{apps, core};

const APP: Row =
    Row { group: "apps", generation: true, status: StatusUse::Dropped, categories: &["all"], stored_only: true, ..ROW };

pub(super) const WORKLOADS: &[Row] = &[
    Row {
        kind: "Pod",
        typed: readable::<core::v1::Pod>,
        plural: "pods",
        stored_only: true,
        short: &["po"],
        categories: &["all"],
        status: StatusUse::KeptOnCreate,
        fields: &[
            ("spec.nodeName", ".spec.nodeName"),
            ("spec.restartPolicy", ".spec.restartPolicy"),
            ("spec.schedulerName", ".spec.schedulerName"),
            ("spec.serviceAccountName", ".spec.serviceAccountName"),
            ("spec.hostNetwork", ".spec.hostNetwork"),
            ("status.phase", ".status.phase"),
            ("status.podIP", ".status.podIP"),
            ("status.nominatedNodeName", ".status.nominatedNodeName"),
        ],
        columns: &[
            ("Ready", "string", 0, r#".status.conditions[?(@.type=="Ready")].status"#),
            ("Status", "string", 0, ".status.phase"),
            ("IP", "string", 1, ".status.podIP"),
            ("Node", "string", 1, ".spec.nodeName"),
        ],
        ..ROW
    },
    Row {
        kind: "DaemonSet",
        typed: readable::<apps::v1::DaemonSet>,
        plural: "daemonsets",
        short: &["ds"],
        columns: &[
            ("Desired", "integer", 0, ".status.desiredNumberScheduled"),
            ("Current", "integer", 0, ".status.currentNumberScheduled"),
            ("Ready", "integer", 0, ".status.numberReady"),
            ("Up-to-date", "integer", 0, ".status.updatedNumberScheduled"),
            ("Available", "integer", 0, ".status.numberAvailable"),
        ],
        ..APP
    },
    Row {
        kind: "Deployment",
        typed: readable::<apps::v1::Deployment>,
        plural: "deployments",
        short: &["deploy"],
        columns: &[
            ("Ready", "integer", 0, ".status.readyReplicas"),
            ("Up-to-date", "integer", 0, ".status.updatedReplicas"),
            ("Available", "integer", 0, ".status.availableReplicas"),
        ],
        ..APP
    },
    Row {
        kind: "StatefulSet",
        typed: readable::<apps::v1::StatefulSet>,
        plural: "statefulsets",
        short: &["sts"],
        columns: &[("Ready", "integer", 0, ".status.readyReplicas")],
        ..APP
    },
    Row {
        kind: "ReplicaSet",
        typed: readable::<apps::v1::ReplicaSet>,
        plural: "replicasets",
        short: &["rs"],
        columns: &[
            ("Desired", "integer", 0, ".spec.replicas"),
            ("Current", "integer", 0, ".status.replicas"),
            ("Ready", "integer", 0, ".status.readyReplicas"),
        ],
        ..APP
    },
    Row {
        kind: "ControllerRevision",
        typed: readable::<apps::v1::ControllerRevision>,
        plural: "controllerrevisions",
        generation: false,
        status: StatusUse::Plain,
        categories: &[],
        stored_only: false,
        columns: &[
            ("Controller", "string", 0, ".metadata.ownerReferences[0].name"),
            ("Revision", "integer", 0, ".revision"),
        ],
        ..APP
    },
    Row {
        kind: "Service",
        typed: readable::<core::v1::Service>,
        plural: "services",
        short: &["svc"],
        categories: &["all"],
        status: StatusUse::Dropped,
        stored_only: true,
        columns: &[
            ("Type", "string", 0, ".spec.type"),
            ("Cluster-IP", "string", 0, ".spec.clusterIP"),
            ("Port", "integer", 0, ".spec.ports[0].port"),
        ],
        ..ROW
    },
];

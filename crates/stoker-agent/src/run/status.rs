//! The status of the node's NodePreheat as the API server has it: one write of it, and who this agent is.

use std::collections::BTreeSet;

use kube::api::{Api, Patch, PatchParams};
use stoker_api::Write;
use stoker_api::native::from_core::{self, Saying};
use stoker_api::native::{AgentInfo, Disk, NodeObject, PeerInfo};
use stoker_runtime::Runtime;

use super::PATIENCE;
use crate::refused::{self, WriteOutcome, WriteTrouble};
use crate::settings::Settings;

#[derive(Clone)]
pub(super) struct StatusWriter {
    api: Api<NodeObject>,
    node: String,
    runtime: Runtime,
    why_runtime: String,
    platform: String,
    features: BTreeSet<String>,
    /// The key to which logins are sealed.
    pub(super) key: String,
}

impl StatusWriter {
    pub(super) fn new(settings: &Settings, features: BTreeSet<String>, key: String) -> Self {
        Self {
            api: Api::all(settings.client.clone()),
            node: settings.node.clone(),
            runtime: settings.runtime.clone(),
            why_runtime: settings.why_runtime.clone(),
            platform: settings.platform.to_string(),
            features,
            key,
        }
    }

    /// What agent this is.
    pub(super) fn introduction(&self, peer: Option<PeerInfo>) -> AgentInfo {
        AgentInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            runtime: self.runtime.describe(),
            chosen: Some(self.why_runtime.clone()),
            platform: self.platform.clone(),
            features: self.features.iter().cloned().collect(),
            key: Some(self.key.clone()),
            peer,
        }
    }

    /// Writes what is to be said, and how full the disk is.
    pub(super) async fn write(self, mut saying: Saying) -> WriteOutcome {
        let space = self.runtime.space().await.ok().flatten();
        saying.disk = space.map(|space| Disk::new(space.total, space.free));
        refused::tell(saying, |part| self.patch(part)).await
    }

    async fn patch(&self, saying: Saying) -> Result<(), WriteTrouble> {
        let Write::Status(_, patch) = from_core::saying(&self.node, &saying) else {
            return std::future::pending().await;
        };
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        match tokio::time::timeout(PATIENCE, self.api.patch_status(&self.node, &params, &patch)).await {
            Ok(result) => result.map(|_| ()).map_err(|problem| WriteTrouble::of(&problem)),
            Err(_) => Err(WriteTrouble::Passing(format!("no answer after {} s", PATIENCE.as_secs()))),
        }
    }
}

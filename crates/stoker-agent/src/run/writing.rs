//! Writes of the status: when one is due, what it says, and what its end means. One is under way at a time.

use std::time::Duration;

use jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use stoker_api::Write;
use stoker_api::native::from_core::{self, Saying};
use stoker_api::native::{AgentInfo, Disk, NodeObject};
use stoker_core::model::after;
use tokio::task::JoinSet;

use super::{Agent, PATIENCE};
use crate::refused::{self, Told, Trouble};

impl Agent {
    pub(super) fn write_due(&self, now: Timestamp) -> Option<Timestamp> {
        let due = match (self.adopted, self.introduced) {
            (false, _) => None,
            (true, false) => Some(now),
            (true, true) => self.said.due(&self.tasks, &self.orders, now),
        };
        due.map(|due| self.quiet_until.map_or(due, |quiet| quiet.max(due)))
    }

    /// Begins the write that is due now, if one is and none is under way.
    pub(super) fn write(&self, api: &Api<NodeObject>, writing: &mut JoinSet<Told>) {
        let now = (self.settings.clock)();
        if !writing.is_empty() || self.write_due(now).is_none_or(|due| due > now) {
            return;
        }
        let mut saying = self.said.saying(&self.tasks, &self.kept);
        if !self.introduced {
            saying.agent = Some(AgentInfo {
                version: env!("CARGO_PKG_VERSION").into(),
                runtime: self.settings.runtime.describe(),
                chosen: Some(self.settings.why_runtime.clone()),
                platform: self.settings.platform.to_string(),
                features: self.features.iter().cloned().collect(),
                key: Some(self.key.to_string()),
            });
        }
        let (api, node, runtime) = (api.clone(), self.settings.node.clone(), self.settings.runtime.clone());
        let write = async move {
            let space = runtime.space().await.ok().flatten();
            saying.disk = space.map(|space| Disk::new(space.total, space.free));
            refused::tell(saying, |part| patch(&api, &node, part)).await
        };
        writing.spawn(write);
    }

    pub(super) fn written(&mut self, Told { said, problem }: Told) {
        self.share.wrote(problem.is_none());
        self.said.acknowledge(&said);
        self.introduced |= said.agent.is_some();
        match problem {
            None => (self.quiet_until, self.pause) = (None, Duration::ZERO),
            Some(problem) => {
                tracing::warn!(node = self.settings.node, "cannot report, trying again: {problem}");
                self.pause = (self.pause * 2).clamp(Duration::from_millis(200), Duration::from_secs(30));
                self.quiet_until = Some(after((self.settings.clock)(), self.pause));
            }
        }
    }
}

/// One write.
async fn patch(api: &Api<NodeObject>, node: &str, saying: Saying) -> Result<(), Trouble> {
    let Write::Status(_, patch) = from_core::saying(node, &saying) else {
        return std::future::pending().await;
    };
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    match tokio::time::timeout(PATIENCE, api.patch_status(node, &params, &patch)).await {
        Ok(result) => result.map(|_| ()).map_err(|problem| Trouble::of(&problem)),
        Err(_) => Err(Trouble::Passing(format!("no answer after {} s", PATIENCE.as_secs()))),
    }
}

//! containerd's snapshots: which layers are unpacked, and how one more becomes so.

use std::path::PathBuf;
use std::time::Duration;

use oci_spec::image::Descriptor;

use super::lease::Lease;
use super::{ContainerdInner, ObjectLabels};
use crate::grpc::{Error, RuntimeErrorKind};
use crate::wire::containerd::services::diff::v1 as diff;
use crate::wire::containerd::services::snapshots::v1 as wire;
use crate::wire::containerd::types::{self, Mount};
use diff::diff_client::DiffClient;
use wire::snapshots_client::SnapshotsClient;

/// How long containerd may take to unpack one layer. The attempt as a whole has its own limit.
const APPLY: Duration = Duration::from_secs(3600);

impl ContainerdInner {
    fn snapshots(&self) -> SnapshotsClient<tonic::transport::Channel> {
        SnapshotsClient::new(self.channel.clone())
    }

    /// Whether this chain of layers is unpacked.
    pub(super) async fn committed(&self, chain: &str) -> Result<bool, Error> {
        let request =
            self.ask(wire::StatSnapshotRequest { snapshotter: self.node.snapshotter.clone(), key: chain.into() });
        match self.snapshots().stat(request).await {
            Ok(answer) => Ok(answer.into_inner().info.is_some_and(|info| info.kind() == wire::Kind::Committed)),
            Err(status) if RuntimeErrorKind::of(&status) == RuntimeErrorKind::NotFound => Ok(false),
            Err(status) => Err(self.failed(format!("look for the unpacked layer {chain}"), &status)),
        }
    }

    /// A new snapshot to fill. One of the same name that an earlier life left behind goes.
    pub(super) async fn prepare(
        &self,
        lease: &Lease,
        key: &str,
        parent: &str,
        labels: ObjectLabels,
    ) -> Result<Vec<Mount>, Error> {
        let message = wire::PrepareSnapshotRequest {
            snapshotter: self.node.snapshotter.clone(),
            key: key.into(),
            parent: parent.into(),
            labels,
        };
        let mut answer = self.snapshots().prepare(self.leased(message.clone(), &lease.header)).await;
        if answer.as_ref().is_err_and(|status| RuntimeErrorKind::of(status) == RuntimeErrorKind::Exists) {
            self.remove(key).await?;
            answer = self.snapshots().prepare(self.leased(message, &lease.header)).await;
        }
        let answer = answer.map_err(|status| self.failed(format!("prepare the snapshot {key}"), &status))?;
        Ok(answer.into_inner().mounts)
    }

    pub(super) async fn remove(&self, key: &str) -> Result<(), Error> {
        let request =
            self.ask(wire::RemoveSnapshotRequest { snapshotter: self.node.snapshotter.clone(), key: key.into() });
        match self.snapshots().remove(request).await {
            Err(status) if RuntimeErrorKind::of(&status) != RuntimeErrorKind::NotFound => {
                Err(self.failed(format!("remove the snapshot {key}"), &status))
            }
            _ => Ok(()),
        }
    }

    /// Makes a filled snapshot the unpacked chain. Somebody who was faster made the same.
    pub(super) async fn commit(&self, lease: &Lease, key: &str, chain: &str) -> Result<(), Error> {
        let message = wire::CommitSnapshotRequest {
            snapshotter: self.node.snapshotter.clone(),
            name: chain.into(),
            key: key.into(),
            labels: named(chain),
        };
        match self.snapshots().commit(self.leased(message, &lease.header)).await {
            Ok(_) => Ok(()),
            Err(status) if RuntimeErrorKind::of(&status) == RuntimeErrorKind::Exists => {
                self.hold(lease, &format!("snapshots/{}", self.node.snapshotter), chain).await?;
                self.remove(key).await
            }
            Err(status) => Err(self.failed(format!("keep the unpacked layer {chain}"), &status)),
        }
    }

    /// Lets containerd unpack a layer of its content store; returns the digest of what it read.
    pub(super) async fn apply(&self, lease: &Lease, layer: &Descriptor, mounts: Vec<Mount>) -> Result<String, Error> {
        let descriptor = types::Descriptor {
            media_type: layer.media_type().to_string(),
            digest: layer.digest().to_string(),
            size: i64::try_from(layer.size()).unwrap_or(i64::MAX),
            annotations: ObjectLabels::new(),
        };
        let mut request = self.leased(diff::ApplyRequest { diff: Some(descriptor), mounts }, &lease.header);
        request.set_timeout(APPLY);
        let answer = DiffClient::new(self.channel.clone()).apply(request).await;
        let answer = answer.map_err(|status| self.failed(format!("unpack layer {}", layer.digest()), &status))?;
        Ok(answer.into_inner().applied.map(|applied| applied.digest).unwrap_or_default())
    }
}

/// The label that containerd gives to the snapshot of a chain.
pub(super) fn named(chain: &str) -> ObjectLabels {
    ObjectLabels::from([("containerd.io/snapshot.ref".into(), chain.into())])
}

/// Where the files of a snapshot go on this machine's disk, if they can be put there as containerd itself does it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SnapshotPlace {
    pub(super) upper: PathBuf,
    /// The layers below, the topmost first.
    pub(super) lowers: Vec<PathBuf>,
}

impl SnapshotPlace {
    /// `None` for any mount but overlayfs' own two shapes.
    pub(super) fn of(mounts: &[Mount]) -> Option<Self> {
        let [mount] = mounts else { return None };
        let place = match mount.r#type.as_str() {
            "bind" => Self { upper: mount.source.clone().into(), lowers: Vec::new() },
            "overlay" => {
                let option = |name: &str| mount.options.iter().find_map(|option| option.strip_prefix(name));
                // Other attribute names: not what we write.
                if mount.options.iter().any(|option| option == "userxattr") {
                    return None;
                }
                let lowers = option("lowerdir=")?.split(':').map(PathBuf::from).collect();
                Self { upper: option("upperdir=")?.into(), lowers }
            }
            _ => return None,
        };
        let usable = |path: &PathBuf| path.is_absolute() && path.is_dir();
        (usable(&place.upper) && place.lowers.iter().all(usable)).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_we_know_how_to_write_is_a_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().display().to_string();
        let mount = |sort: &str, source: &str, options: &[&str]| Mount {
            r#type: sort.into(),
            source: source.into(),
            target: String::new(),
            options: options.iter().map(|option| option.to_string()).collect(),
        };
        let place = SnapshotPlace::of(&[mount("bind", &path, &["rw", "rbind"])]).unwrap();
        assert_eq!((place.upper, place.lowers), (dir.path().into(), Vec::new()));
        let (upper, lower) = (format!("upperdir={path}"), format!("lowerdir={path}:{path}"));
        let place = SnapshotPlace::of(&[mount("overlay", "overlay", &[&upper, &lower])]).unwrap();
        assert_eq!(place.lowers.len(), 2);
        assert_eq!(SnapshotPlace::of(&[mount("overlay", "overlay", &[&upper, &lower, "userxattr"])]), None);
        assert_eq!(SnapshotPlace::of(&[mount("btrfs", &path, &[])]), None);
        assert_eq!(SnapshotPlace::of(&[mount("bind", "/not/there", &[])]), None);
        assert_eq!(SnapshotPlace::of(&[]), None);
    }
}

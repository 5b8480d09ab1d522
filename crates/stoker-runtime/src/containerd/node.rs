//! What this containerd is: its version, the snapshotter that the kubelet's images use, and whether we may write to it
//! ourselves or must leave the pull to it.

use std::path::{Path, PathBuf};

use super::verifiers::Verifiers;
use super::{ContainerdInner, settings};
use crate::grpc::Error;
use crate::wire::containerd::services::introspection::v1 as introspection;
use crate::wire::containerd::services::version::v1 as versions;
use crate::wire::cri;
use introspection::introspection_client::IntrospectionClient;

/// Snapshotters whose unpacked layers are plain directories, as we and containerd's own applier make them.
const KNOWN: &[&str] = &["overlayfs", "native"];
/// What the directory of a snapshotter is called, where it does not say where it is.
const SNAPSHOTTER: &str = "io.containerd.snapshotter.v1";
/// Its own store of blobs; others keep them elsewhere and export nothing.
const CONTENT: &str = "io.containerd.content.v1";
const VERIFIER: &str = "io.containerd.image-verifier.v1";

/// A containerd as it was found.
#[derive(Debug, Clone, Default)]
pub struct ContainerdNode {
    /// Its version, e.g. 1.6.20.
    pub version: String,
    /// The snapshotter of the kubelet's images.
    pub snapshotter: String,
    /// Whether it throws the blobs of unpacked layers away.
    pub discards: bool,
    /// Where that snapshotter keeps its files.
    pub root: Option<PathBuf>,
    /// Where it keeps blobs, as it sees that place itself; it may be out of sight here.
    pub(super) content: Option<PathBuf>,
    /// Why images must go by its own pull, where its setup says so.
    unfit: Option<String>,
    /// Where it looks, at each pull, for programs that judge images.
    verifiers: Option<Verifiers>,
    /// Whether layers are unpacked by us.
    pub direct: bool,
    /// The directories of hosts.toml files that it is told to use, the first one first.
    pub hosts: Vec<PathBuf>,
}

/// Asks containerd.
pub(super) async fn look(inner: &ContainerdInner) -> Result<ContainerdNode, Error> {
    let version = version(inner).await?;
    let plugins = plugins(inner).await?;
    let told = settings::look(inner, &version).await?;
    let place = place(inner).await;
    let by_place = || place.as_deref().and_then(|place| snapshotter(place, &plugins));
    let snapshotter = told.snapshotter.or_else(by_place).unwrap_or_else(|| "overlayfs".into());
    // Not every snapshotter says where it is.
    let root = plugin(&plugins, &snapshotter).and_then(root_of).or(place);
    let direct = inner.settings.direct && snapshotter == "overlayfs";
    Ok(ContainerdNode {
        version: version.trim_start_matches('v').into(),
        discards: told.discards,
        root,
        content: plugins.iter().find(|plugin| plugin.r#type == CONTENT).and_then(root_of),
        unfit: unfit(&snapshotter, &plugins),
        verifiers: Some(Verifiers { plugins: judges(&plugins), places: told.verifiers, sight: told.sight }),
        hosts: told.hosts,
        direct,
        snapshotter,
    })
}

/// Where CRI says that the images are.
async fn place(inner: &ContainerdInner) -> Option<PathBuf> {
    let mut client = cri::image_service_client::ImageServiceClient::new(inner.channel.clone());
    let answer = client.image_fs_info(inner.ask(cri::ImageFsInfoRequest {})).await.ok()?.into_inner();
    // The first is the one that pods have unless they ask for another.
    Some(answer.image_filesystems.into_iter().next()?.fs_id?.mountpoint.into())
}

/// The snapshotter whose directory this is.
fn snapshotter(place: &Path, plugins: &[introspection::Plugin]) -> Option<String> {
    let at = |found: &&introspection::Plugin| {
        found.r#type == SNAPSHOTTER && root_of(found).is_some_and(|root| root == place)
    };
    let known = plugins.iter().find(at).map(|found| found.id.clone());
    known.or_else(|| place.file_name()?.to_str()?.strip_prefix(SNAPSHOTTER)?.strip_prefix('.').map(str::to_owned))
}

fn plugin<'a>(plugins: &'a [introspection::Plugin], snapshotter: &str) -> Option<&'a introspection::Plugin> {
    plugins.iter().find(|plugin| plugin.r#type == SNAPSHOTTER && plugin.id == snapshotter)
}

fn root_of(plugin: &introspection::Plugin) -> Option<PathBuf> {
    plugin.exports.get("root").map(PathBuf::from)
}

impl ContainerdNode {
    /// Why images must go by its own pull, if they must. Programs that judge images may come at any time, so they are
    /// looked for each time.
    pub fn ineligible(&self) -> Option<String> {
        self.unfit.clone().or_else(|| self.verifiers.as_ref()?.why())
    }
}

/// The plugins that verify images. One that failed to start counts as well: containerd may refuse pulls for it.
fn judges(plugins: &[introspection::Plugin]) -> Vec<String> {
    plugins.iter().filter(|plugin| plugin.r#type == VERIFIER).map(|plugin| plugin.id.clone()).collect()
}

fn unfit(snapshotter: &str, plugins: &[introspection::Plugin]) -> Option<String> {
    if plugin(plugins, snapshotter).is_none_or(|plugin| plugin.init_err.is_some()) {
        Some(format!("its snapshotter {snapshotter} is not there"))
    } else if !KNOWN.contains(&snapshotter) {
        Some(format!("its snapshotter {snapshotter} wants to pull by itself"))
    } else {
        None
    }
}

pub(super) async fn version(inner: &ContainerdInner) -> Result<String, Error> {
    let mut client = versions::version_client::VersionClient::new(inner.channel.clone());
    let answer = client.version(inner.ask(versions::Empty {})).await;
    Ok(answer.map_err(|status| inner.failed("say its version", &status))?.into_inner().version)
}

async fn plugins(inner: &ContainerdInner) -> Result<Vec<introspection::Plugin>, Error> {
    let mut client = IntrospectionClient::new(inner.channel.clone());
    let answer = client.plugins(inner.ask(introspection::PluginsRequest { filters: Vec::new() })).await;
    Ok(answer.map_err(|status| inner.failed("list its plugins", &status))?.into_inner().plugins)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin(kind: &str, id: &str) -> introspection::Plugin {
        introspection::Plugin { r#type: kind.into(), id: id.into(), ..Default::default() }
    }

    #[test]
    fn only_what_we_know_is_written_to_by_us() {
        let all = ["overlayfs", "native", "stargz"].map(|id| plugin(SNAPSHOTTER, id));
        assert_eq!(unfit("overlayfs", &all), None);
        assert_eq!(unfit("native", &all), None);
        assert!(unfit("stargz", &all).unwrap().contains("snapshotter stargz wants to pull by itself"));
        assert!(unfit("nydus", &all).unwrap().contains("snapshotter nydus is not there"));
    }
}

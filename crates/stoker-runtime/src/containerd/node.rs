//! What this containerd is: its version, the snapshotter that the kubelet's images use, and whether we may write to it
//! ourselves or must leave the pull to it.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::Inner;
use crate::grpc::{Error, Kind};
use crate::wire::containerd::services::introspection::v1 as introspection;
use crate::wire::containerd::services::version::v1 as versions;
use crate::wire::cri;
use introspection::introspection_client::IntrospectionClient;

/// Snapshotters whose unpacked layers are plain directories, as we and containerd's own applier make them.
const KNOWN: &[&str] = &["overlayfs", "native"];
/// Where containerd looks for programs that judge images, unless told otherwise.
const VERIFIERS: &str = "/opt/containerd/image-verifier/bin";

/// A containerd as it was found.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Its version, e.g. 1.6.20.
    pub version: String,
    /// The snapshotter of the kubelet's images.
    pub snapshotter: String,
    /// Whether it throws the blobs of unpacked layers away.
    pub discards: bool,
    /// Where that snapshotter keeps its files.
    pub root: Option<PathBuf>,
    /// Why images must go by its own pull, if they must.
    pub ineligible: Option<String>,
    /// Whether layers are unpacked by us.
    pub direct: Direct,
    /// The directory of hosts.toml files that it is told to use.
    pub hosts: Option<PathBuf>,
}

/// Who unpacks layers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Direct {
    /// We do, while they come.
    Yes,
    /// containerd does, for this reason.
    #[default]
    No,
}

/// The part of the CRI plugin's settings that concerns us. containerd 1 has it in one place, 2 in another.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CriSettings {
    snapshotter: Option<String>,
    discard_unpacked_layers: Option<bool>,
    containerd: Option<Inside>,
    registry: Option<Registry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Inside {
    snapshotter: Option<String>,
    discard_unpacked_layers: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Registry {
    config_path: Option<String>,
}

/// Asks containerd.
pub(super) async fn look(inner: &Inner) -> Result<Node, Error> {
    let version = version(inner).await?;
    let plugins = plugins(inner).await?;
    let settings = cri_settings(inner).await?;
    let inside = settings.containerd.unwrap_or_default();
    let snapshotter = settings.snapshotter.or(inside.snapshotter).filter(|name| !name.is_empty());
    let snapshotter = snapshotter.unwrap_or_else(|| "overlayfs".into());
    let plugin =
        plugins.iter().find(|plugin| plugin.r#type == "io.containerd.snapshotter.v1" && plugin.id == snapshotter);
    let usable = plugin.is_some_and(|plugin| plugin.init_err.is_none());
    let ineligible = if !usable {
        Some(format!("its snapshotter {snapshotter} is not there"))
    } else if !KNOWN.contains(&snapshotter.as_str()) {
        Some(format!("its snapshotter {snapshotter} wants to pull by itself"))
    } else if has_verifiers(&plugins, Path::new(VERIFIERS)) {
        Some(format!("programs in {VERIFIERS} judge images, and only its own pull asks them"))
    } else {
        None
    };
    let direct = inner.settings.direct && snapshotter == "overlayfs";
    Ok(Node {
        version: version.trim_start_matches('v').into(),
        discards: settings.discard_unpacked_layers.or(inside.discard_unpacked_layers).unwrap_or(false),
        root: plugin.and_then(|plugin| plugin.exports.get("root")).map(PathBuf::from),
        hosts: settings
            .registry
            .and_then(|registry| registry.config_path)
            .filter(|path| !path.is_empty())
            .map(Into::into),
        direct: if direct { Direct::Yes } else { Direct::No },
        snapshotter,
        ineligible,
    })
}

pub(super) async fn version(inner: &Inner) -> Result<String, Error> {
    let mut client = versions::version_client::VersionClient::new(inner.channel.clone());
    let answer = client.version(inner.ask(versions::Empty {})).await;
    Ok(answer.map_err(|status| inner.failed("say its version", &status))?.into_inner().version)
}

async fn plugins(inner: &Inner) -> Result<Vec<introspection::Plugin>, Error> {
    let mut client = IntrospectionClient::new(inner.channel.clone());
    let answer = client.plugins(inner.ask(introspection::PluginsRequest { filters: Vec::new() })).await;
    Ok(answer.map_err(|status| inner.failed("list its plugins", &status))?.into_inner().plugins)
}

/// What its CRI plugin is told. A containerd without one, or with one that is not ready yet, has the usual settings.
async fn cri_settings(inner: &Inner) -> Result<CriSettings, Error> {
    let mut client = cri::runtime_service_client::RuntimeServiceClient::new(inner.channel.clone());
    match client.status(inner.ask(cri::StatusRequest { verbose: true })).await {
        Ok(answer) => {
            let info = answer.into_inner().info;
            let config = info.get("config").map(String::as_str).unwrap_or("{}");
            Ok(serde_json::from_str(config).unwrap_or_default())
        }
        Err(status) if status.code() == tonic::Code::Unimplemented => Ok(CriSettings::default()),
        Err(status) if Kind::of(&status) == Kind::Unavailable => Err(inner.failed("say its settings", &status)),
        Err(_) => Ok(CriSettings::default()),
    }
}

fn has_verifiers(plugins: &[introspection::Plugin], folder: &Path) -> bool {
    let there = plugins.iter().any(|plugin| plugin.r#type == "io.containerd.image-verifier.v1");
    there && std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}

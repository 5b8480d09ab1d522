//! What an agent's pod sees of its node: directories in, volumes and their mounts out, each at the same path as on the
//! node, because containerd names its snapshots by the node's paths.
//!
//! A path may hold `$(NODE_NAME)`, which Kubernetes fills in in arguments but not in volumes: the directory above is
//! mounted then. Never mounts the whole root of a node.

use std::path::{Component, Path};

use serde_json::{Value, json};

use crate::cli::HostArgs;

const LONGEST: usize = 1024;
/// Where containerd listens, unless it is told otherwise.
const SOCKETS: &str = "/run/containerd";
/// Where containerd looks for programs that judge images; an agent that did not see them would go past them.
const PLUGINS: &str = "/opt/containerd";

/// An absolute path of a node, from the command line.
pub(crate) fn directory(text: &str) -> Result<String, String> {
    let path = Path::new(text);
    let plain = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    if !path.is_absolute() || !plain || text.len() > LONGEST || text.chars().any(char::is_control) {
        return Err("give an absolute path of the nodes without `..`, such as /var/lib/stoker".into());
    }
    // Volumes are compared by their text.
    let path = path.components().collect::<std::path::PathBuf>().to_string_lossy().into_owned();
    match mountable(&path) {
        "/" => Err("the whole root of a node is not mounted; give a directory below it".into()),
        _ => Ok(path),
    }
}

/// A socket of a node, from the command line.
pub(crate) fn socket(text: &str) -> Result<String, String> {
    let path = text.strip_prefix("unix://").unwrap_or(text);
    if path.contains("://") {
        return Err("agents use a socket on the node, such as unix:///run/containerd/containerd.sock".into());
    }
    let path = directory(path)?;
    match mountable(above(&path)) {
        "/" => Err("the whole root of a node is not mounted; the socket must be in a directory".into()),
        _ => Ok(format!("unix://{path}")),
    }
}

/// A directory of the node in the agent's pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    name: String,
    path: String,
    writable: bool,
    /// Whether the runtime mounts and unmounts below it: what it unmounts must go from the pod as well, else the memory
    /// of a dead pod's /dev/shm would be held for as long as the agent lives.
    moving: bool,
    /// Whether a node without it is one that was wrongly told of: the kubelet says so then, and makes none.
    expected: bool,
}

/// The volumes of the pod, and their mounts in its container.
pub(super) fn volumes(host: &HostArgs) -> (Vec<Value>, Vec<Value>) {
    let mounts = mounts(host);
    let volumes = mounts.iter().map(|mount| {
        let kind = if mount.expected { "Directory" } else { "DirectoryOrCreate" };
        json!({ "name": mount.name, "hostPath": { "path": mount.path, "type": kind } })
    });
    let inside = mounts.iter().map(|mount| {
        let mut inside = json!({ "name": mount.name, "mountPath": mount.path });
        if !mount.writable {
            inside["readOnly"] = true.into();
        }
        if mount.moving {
            inside["mountPropagation"] = "HostToContainer".into();
        }
        inside
    });
    (volumes.collect(), inside.collect())
}

fn mounts(host: &HostArgs) -> Vec<Mount> {
    let socket = host.runtime_endpoint.as_deref().map_or(SOCKETS, |socket| above(socket.trim_start_matches("unix://")));
    let mount = |name: &str, path: &str, writable, moving| Mount {
        name: name.into(),
        path: mountable(path).into(),
        writable,
        moving,
        expected: false,
    };
    let mut wanted = vec![
        // The first: whatever else is at its place is not made either.
        Mount { expected: true, ..mount("runtime-socket", socket, true, true) },
        mount("runtime-root", &host.runtime_root, true, true),
        mount("data", &host.data, true, false),
        mount("runtime-config", &host.runtime_config, false, false),
        // What is mounted there later is seen as well.
        mount("runtime-plugins", PLUGINS, false, true),
    ];
    if let (Some(config), Some(programs)) = (&host.credential_provider_config, &host.credential_provider_bin_dir) {
        wanted.push(mount("credential-provider-config", above(config), false, false));
        wanted.push(mount("credential-provider-programs", programs, false, false));
    }
    let more = host.host_dirs.iter().enumerate();
    wanted.extend(more.map(|(index, path)| mount(&format!("host-dir-{}", index + 1), path, false, false)));
    // Two volumes at one place are refused, and one below another says nothing new.
    let mut mounts: Vec<Mount> = Vec::new();
    for new in wanted {
        match mounts.iter_mut().find(|old| Path::new(&new.path).starts_with(&old.path)) {
            Some(old) if old.writable >= new.writable => old.moving |= new.moving,
            Some(old) if old.path == new.path => (old.writable, old.moving) = (true, old.moving | new.moving),
            _ => mounts.push(new),
        }
    }
    mounts
}

/// The part of a path that a volume can name.
fn mountable(path: &str) -> &str {
    let Some((before, _)) = path.split_once("$(") else { return path };
    match before.rfind('/') {
        Some(end) if end > 0 => &before[..end],
        _ => "/",
    }
}

fn above(path: &str) -> &str {
    path.rfind('/').filter(|end| *end > 0).map_or("/", |end| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_cannot_be_mounted_are_refused() {
        for good in ["/var/lib/stoker", "/a/$(NODE_NAME)/b", "/a/"] {
            assert!(directory(good).is_ok(), "{good}");
        }
        assert_eq!(directory("/a//b/").unwrap(), "/a/b");
        for bad in ["", "/", "a/b", "/a/../b", "/$(NODE_NAME)/a", "/a\nb"] {
            assert!(directory(bad).is_err(), "{bad}");
        }
        assert_eq!(socket("/run/x/y.sock").unwrap(), "unix:///run/x/y.sock");
        for bad in ["unix:///y.sock", "tcp://host:1", "unix:///$(NODE_NAME)/y.sock"] {
            assert!(socket(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_differs_from_node_to_node_is_mounted_from_above_and_once() {
        let host = HostArgs {
            runtime_endpoint: Some("unix:///lab/$(NODE_NAME)/containerd.sock".into()),
            runtime_root: "/lab/$(NODE_NAME)/root".into(),
            runtime_config: "/lab/$(NODE_NAME)".into(),
            data: "/lab/$(NODE_NAME)/stoker".into(),
            host_dirs: vec!["/etc/ssl".into(), "/etc/ssl/certs".into(), "/opt/containerd".into()],
            agent_metrics: ([127, 0, 0, 1], 1).into(),
            agent_probes: ([127, 0, 0, 1], 2).into(),
            max_disk: None,
            max_pulls: None,
            bandwidth: None,
            upload: None,
            credential_provider_config: None,
            credential_provider_bin_dir: None,
        };
        let paths = mounts(&host).into_iter().map(|mount| (mount.path, mount.writable, mount.moving, mount.expected));
        let paths: Vec<_> = paths.collect();
        let wanted =
            [("/lab", true, true, true), ("/opt/containerd", false, true, false), ("/etc/ssl", false, false, false)];
        let wanted = wanted.map(|(path, writable, moving, expected)| (path.to_string(), writable, moving, expected));
        assert_eq!(paths, wanted);
    }
}

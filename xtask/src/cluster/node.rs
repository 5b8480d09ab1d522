//! A node's programs: a containerd and a kubelet, with their configuration where every node has it (/etc/containerd,
//! /etc/cni, /run/containerd, /var/lib/kubelet): a node has these folders as its own, so manifests need no paths of ours.

use std::path::Path;

use serde_json::json;

use super::images::PAUSE;
use super::place::{Node, Place, REGISTRY};
use super::site::{PATH, Site, write};
use super::up::WAIT;
use super::wait::{self, Look};

/// Starts both, in the node's machine; the folders are where Kubernetes' programs are, and containerd 2's.
pub(crate) fn start(site: &mut Site, node: Node, kubernetes: &Path, containerd_2: &Path) -> anyhow::Result<()> {
    let name = node.name();
    let path = match node.has_containerd_2() {
        // Its own shim comes first.
        true => format!("{}:{PATH}", containerd_2.display()),
        false => PATH.to_string(),
    };
    let words = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
    let containerd = words(&["containerd", "--config", "/etc/containerd/config.toml"]);
    site.start(&name, "containerd", &path, &containerd)?;
    // A kubelet that finds no runtime ends.
    let (part, socket) =
        (format!("{name}/containerd"), site.place.machine(&name).join("run/containerd/containerd.sock"));
    let process = site.journal.part(&part)?.process;
    wait::until(&format!("{part} did not come up"), WAIT, &site.place.log(&part), || {
        Ok(match (socket.exists(), process.lives()) {
            (true, true) => Look::Ready,
            (_, false) => Look::Failed("it ended".to_string()),
            (false, true) => Look::NotYet("it does not listen".to_string()),
        })
    })?;
    let kubelet = vec![
        kubernetes.join("kubelet").display().to_string(),
        "--config=/etc/kubernetes/kubelet.json".to_string(),
        format!("--kubeconfig={}", site.place.key(&format!("{name}.kubeconfig")).display()),
        format!("--hostname-override={name}"),
        format!("--node-ip={}", node.address()),
    ];
    site.start(&name, "kubelet", &path, &kubelet)
}

/// Writes the configuration, before the node's machine starts: what lies below a mounted overlay must not be changed.
pub(crate) fn configure(place: &Place, node: Node, cgroup: &str) -> anyhow::Result<()> {
    let etc = place.machine(&node.name()).join("etc");
    write(&etc.join("containerd/config.toml"), &containerd())?;
    let plain = format!("[host.\"http://{REGISTRY}\"]\n  capabilities = [\"pull\", \"resolve\"]\n");
    write(&etc.join("containerd/certs.d").join(REGISTRY).join("hosts.toml"), &plain)?;
    write(&etc.join("cni/stoker.d/pods.conflist"), &network(node))?;
    write(&etc.join("kubernetes/kubelet.json"), &kubelet(place, node, cgroup))
}

/// A version 2 file is read by containerd 1.6 and by 2.2.
fn containerd() -> String {
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  # A node shares /opt with this machine.
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # Where CAP_SYS_RESOURCE is missing runc fails without it.
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  # Not net.d: what this machine has there shows through in a node.
  conf_dir = "/etc/cni/stoker.d"
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "/etc/containerd/certs.d"
"#
    )
}

fn network(node: Node) -> String {
    let bridge = json!({
        "type": "bridge", "bridge": "pods", "isGateway": true, "isDefaultGateway": true, "hairpinMode": true,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": node.pods()}]]},
    });
    let list = json!({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]});
    format!("{list:#}\n")
}

fn kubelet(place: &Place, node: Node, cgroup: &str) -> String {
    let settings = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false}, "webhook": {"enabled": true},
            "x509": {"clientCAFile": place.key("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        // Containers below one cgroup of ours, and no other: `down` finds it by its name.
        "cgroupDriver": "cgroupfs", "cgroupRoot": format!("/{cgroup}/{}", node.name()), "cgroupsPerQOS": true,
        "enforceNodeAllocatable": [], "failCgroupV1": false, "failSwapOn": false,
        // The disk is the developer's: how full it is says nothing about the test.
        "localStorageCapacityIsolation": false, "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "imagefs.available": "0%", "imagefs.inodesFree": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
        },
        // Not below /usr, which a node shares with this machine.
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "makeIPTablesUtilChains": false, "readOnlyPort": 0, "resolvConf": "",
        // A node that goes is noticed, and one that comes is used, in seconds.
        "nodeStatusUpdateFrequency": "2s",
    });
    format!("{settings:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_in_a_cgroup_that_names_cluster_and_node() {
        let place = Place::new("/tmp/x".into()).unwrap();
        let settings: serde_json::Value = serde_json::from_str(&kubelet(&place, Node { number: 3 }, "c")).unwrap();
        assert_eq!(settings["cgroupRoot"], "/c/n3");
    }
}

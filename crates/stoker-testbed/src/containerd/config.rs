//! The configuration of a containerd that shares nothing with others on the machine.

use std::fmt::Debug;
use std::path::Path;

use super::{Options, SANDBOX_IMAGE};
use crate::image::architecture;

pub(super) const SOCKET: &str = "containerd.sock";

/// The whole file. containerd 2 gets the newest form: in older ones it overlooks `discard_unpacked_layers`.
pub(super) fn text(dir: &Path, major: u32, options: &Options) -> String {
    let certs = options.certs.clone().unwrap_or_else(|| dir.join("certs.d"));
    let cni = dir.join("cni");
    let Options { snapshotter, discard_unpacked_layers, .. } = options;
    let base = format!(
        r#"
root = {root:?}
state = {state:?}
[grpc]
  address = {socket:?}
[plugins."io.containerd.internal.v1.opt"]
  path = {opt:?}
"#,
        root = dir.join("root"),
        state = dir.join("state"),
        socket = dir.join(SOCKET),
        opt = dir.join("opt"),
    );
    // Without restrict_oom_score_adj runc fails where CAP_SYS_RESOURCE is missing. Network namespaces below the state are found and
    // unmounted with all else.
    let cri = match major {
        ..2 => one(&certs, &cni, snapshotter, *discard_unpacked_layers),
        _ => {
            let verifiers = options.verifiers.clone().unwrap_or_else(|| dir.join("verifiers"));
            let two = two(&certs, &cni, snapshotter, *discard_unpacked_layers);
            format!("{two}[plugins.\"io.containerd.image-verifier.v1.bindir\"]\n  bin_dir = {verifiers:?}\n")
        }
    };
    format!("version = {}\n{base}{cri}", if major < 2 { 2 } else { 3 })
}

fn one(certs: &Path, cni: &Path, snapshotter: &dyn Debug, discard: bool) -> String {
    format!(
        r#"[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{SANDBOX_IMAGE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = {snapshotter:?}
  discard_unpacked_layers = {discard}
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = {cni:?}
[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = {certs:?}
"#
    )
}

fn two(certs: &Path, cni: &Path, snapshotter: &dyn Debug, discard: bool) -> String {
    // NRI listens on a path that all containerds of a machine share. The transfer service unpacks for overlayfs alone unless told.
    let architecture = architecture();
    format!(
        r#"[plugins."io.containerd.cri.v1.images"]
  snapshotter = {snapshotter:?}
  discard_unpacked_layers = {discard}
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{SANDBOX_IMAGE}"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = {certs:?}
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = {cni:?}
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[[plugins."io.containerd.transfer.v1.local".unpack_config]]
  platform = "linux/{architecture}"
  snapshotter = {snapshotter:?}
"#
    )
}

//! Kubernetes' programs, built with Go from its module; `xtask/kubernetes` has the go.mod and go.sum that pin all of it.
//! Nothing comes in; the folder with the programs goes out.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::built::Built;
use crate::shell;

/// 1.34: later kubelets want containerd 2 and cgroup v2, and users have both.
const KUBERNETES: Built = Built {
    name: "kubernetes",
    version: "1.34.4",
    programs: &["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet"],
};

/// The folder with its programs, built now if it never was: some minutes.
pub(crate) fn find_or_build() -> anyhow::Result<PathBuf> {
    KUBERNETES.find_or_build(build)
}

/// What is missing for that, if something is.
pub(crate) fn lack() -> anyhow::Result<Option<String>> {
    KUBERNETES.lack()
}

/// The folder, whether or not it was built.
pub(crate) fn folder() -> anyhow::Result<PathBuf> {
    KUBERNETES.folder()
}

fn build(into: &Path) -> anyhow::Result<()> {
    let version = "k8s.io/component-base/version";
    let mut numbers = KUBERNETES.version.split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let flags = format!(
        "-s -w -X {version}.gitVersion=v{} -X {version}.gitMajor={major} -X {version}.gitMinor={minor}",
        KUBERNETES.version
    );
    let mut command = Command::new("go");
    // Two at a time: a compilation of Kubernetes' larger packages takes a gigabyte.
    command.args(["build", "-p", "2", "-trimpath", "-ldflags", &flags, "-o"]).arg(into);
    command.args(KUBERNETES.programs.iter().map(|program| format!("k8s.io/kubernetes/cmd/{program}")));
    // As go.mod says and not as the environment does; without C, so that no compiler for it is needed.
    command.env("GOFLAGS", "-mod=readonly -buildvcs=false").env("GOWORK", "off").env("CGO_ENABLED", "0");
    command.env_remove("GOOS").env_remove("GOARCH").current_dir(shell::root().join("xtask/kubernetes"));
    match command.status().context("cannot run go")?.success() {
        true => Ok(()),
        false => bail!("`go build` of Kubernetes failed"),
    }
}

//! The cluster's authority, and what it signs: the API server's certificate, and a kubeconfig for everyone who talks to it.
//! Made with openssl, in the cluster's folder, for root's eyes only. Gone with the folder.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use super::place::{API_ADDRESS, CONTROL_ADDRESS, Node, Place};
use super::site::write;
use crate::shell::output;

/// A test cluster lives for hours; a forgotten one for a while.
const DAYS: &str = "365";

/// Makes all of them.
pub(crate) fn make(place: &Place, nodes: usize) -> anyhow::Result<()> {
    let folder = place.key("");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    authority(place)?;
    let names = "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,\
                 DNS:kubernetes.default.svc.cluster.local,DNS:localhost";
    let names = format!("{names},IP:{API_ADDRESS},IP:{CONTROL_ADDRESS},IP:127.0.0.1");
    signed(place, "apiserver", "/CN=kube-apiserver", &format!("serverAuth\nsubjectAltName={names}"))?;
    signed(place, "apiserver-to-kubelet", "/O=system:masters/CN=kube-apiserver", "clientAuth")?;
    // Tokens of service accounts are signed with a key of their own.
    private_key(place, "tokens")?;
    output(
        openssl(&["pkey", "-pubout"]).arg("-in").arg(place.key("tokens.key")).arg("-out").arg(place.key("tokens.pub")),
    )?;

    user(place, "admin", "/O=system:masters/CN=admin", &place.kubeconfig())?;
    for part in ["kube-controller-manager", "kube-scheduler"] {
        user(place, part, &format!("/CN=system:{part}"), &place.key(&format!("{part}.kubeconfig")))?;
    }
    for node in Node::all(nodes).map(Node::name) {
        let subject = format!("/O=system:nodes/CN=system:node:{node}");
        user(place, &node, &subject, &place.key(&format!("{node}.kubeconfig")))?;
    }
    Ok(())
}

fn openssl(args: &[&str]) -> Command {
    let mut command = Command::new("openssl");
    command.args(args);
    command
}

fn private_key(place: &Place, name: &str) -> anyhow::Result<()> {
    let curve = ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out"];
    output(openssl(&curve).arg(place.key(&format!("{name}.key")))).map(drop)
}

fn authority(place: &Place) -> anyhow::Result<()> {
    private_key(place, "ca")?;
    let mut command = openssl(&["req", "-x509", "-new", "-sha256", "-days", DAYS, "-subj", "/CN=stoker-test-cluster"]);
    output(command.arg("-key").arg(place.key("ca.key")).arg("-out").arg(place.key("ca.crt"))).map(drop)
}

/// A key and its certificate. `purpose` is the extended usage, and what else stands in the certificate.
fn signed(place: &Place, name: &str, subject: &str, purpose: &str) -> anyhow::Result<()> {
    private_key(place, name)?;
    let file = |ending: &str| place.key(&format!("{name}.{ending}"));
    write(&file("ext"), &format!("basicConstraints=critical,CA:FALSE\nextendedKeyUsage={purpose}\n"))?;
    output(openssl(&["req", "-new", "-subj", subject, "-key"]).arg(file("key")).arg("-out").arg(file("csr")))?;
    let mut command = openssl(&["x509", "-req", "-sha256", "-days", DAYS, "-CAcreateserial"]);
    command.arg("-CA").arg(place.key("ca.crt")).arg("-CAkey").arg(place.key("ca.key"));
    command.arg("-in").arg(file("csr")).arg("-extfile").arg(file("ext")).arg("-out").arg(file("crt"));
    output(&mut command).map(drop)
}

/// A kubeconfig with a certificate of its own. It names files, so no secret is in it.
fn user(place: &Place, name: &str, subject: &str, kubeconfig: &Path) -> anyhow::Result<()> {
    signed(place, name, subject, "clientAuth")?;
    let file = |name: String| place.key(&name).display().to_string();
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "stoker",
        "contexts": [{"name": "stoker", "context": {"cluster": "stoker", "user": name}}],
        "clusters": [{"name": "stoker", "cluster": {
            "server": format!("https://{API_ADDRESS}:443"), "certificate-authority": file("ca.crt".to_string()),
        }}],
        "users": [{"name": name, "user": {
            "client-certificate": file(format!("{name}.crt")), "client-key": file(format!("{name}.key")),
        }}],
    });
    write(kubeconfig, &format!("{config:#}\n"))?;
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(kubeconfig, private).with_context(|| format!("cannot guard {}", kubeconfig.display()))
}

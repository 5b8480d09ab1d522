//! The cluster's authority, and what it signs: the API server's certificate, and a kubeconfig for everyone who talks to it.
//! Made with openssl, a program of the cluster's as all others, in the cluster's folder, for root's eyes only. Gone with it.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use super::place::{API_ADDRESS, CONTROL_ADDRESS, Node};
use super::site::{Site, write};
use crate::shell::output;

/// A test cluster lives for hours; a forgotten one for a while.
const DAYS: &str = "365";

/// Makes all of them.
pub(crate) fn make(site: &Site, nodes: usize) -> anyhow::Result<()> {
    let folder = site.place.key("");
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    authority(site)?;
    let names = "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,\
                 DNS:kubernetes.default.svc.cluster.local,DNS:localhost";
    let names = format!("{names},IP:{API_ADDRESS},IP:{CONTROL_ADDRESS},IP:127.0.0.1");
    signed(site, "apiserver", "/CN=kube-apiserver", &format!("serverAuth\nsubjectAltName={names}"))?;
    signed(site, "apiserver-to-kubelet", "/O=system:masters/CN=kube-apiserver", "clientAuth")?;
    // Tokens of service accounts are signed with a key of their own.
    private_key(site, "tokens")?;
    output(
        openssl(site, &["pkey", "-pubout"])?
            .arg("-in")
            .arg(site.place.key("tokens.key"))
            .arg("-out")
            .arg(site.place.key("tokens.pub")),
    )?;

    user(site, "admin", "/O=system:masters/CN=admin", &site.place.kubeconfig())?;
    for part in ["kube-controller-manager", "kube-scheduler"] {
        user(site, part, &format!("/CN=system:{part}"), &site.place.key(&format!("{part}.kubeconfig")))?;
    }
    for node in Node::all(nodes).map(Node::name) {
        let subject = format!("/O=system:nodes/CN=system:node:{node}");
        user(site, &node, &subject, &site.place.key(&format!("{node}.kubeconfig")))?;
    }
    Ok(())
}

fn openssl(site: &Site, args: &[&str]) -> anyhow::Result<Command> {
    let mut command = Command::new("openssl");
    site.mark(command.args(args))?;
    Ok(command)
}

fn private_key(site: &Site, name: &str) -> anyhow::Result<()> {
    let curve = ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out"];
    output(openssl(site, &curve)?.arg(site.place.key(&format!("{name}.key")))).map(drop)
}

fn authority(site: &Site) -> anyhow::Result<()> {
    private_key(site, "ca")?;
    let mut command =
        openssl(site, &["req", "-x509", "-new", "-sha256", "-days", DAYS, "-subj", "/CN=stoker-test-cluster"])?;
    output(command.arg("-key").arg(site.place.key("ca.key")).arg("-out").arg(site.place.key("ca.crt"))).map(drop)
}

/// A key and its certificate. `purpose` is the extended usage, and what else stands in the certificate.
fn signed(site: &Site, name: &str, subject: &str, purpose: &str) -> anyhow::Result<()> {
    private_key(site, name)?;
    let file = |ending: &str| site.place.key(&format!("{name}.{ending}"));
    write(&file("ext"), &format!("basicConstraints=critical,CA:FALSE\nextendedKeyUsage={purpose}\n"))?;
    output(openssl(site, &["req", "-new", "-subj", subject, "-key"])?.arg(file("key")).arg("-out").arg(file("csr")))?;
    let mut command = openssl(site, &["x509", "-req", "-sha256", "-days", DAYS, "-CAcreateserial"])?;
    command.arg("-CA").arg(site.place.key("ca.crt")).arg("-CAkey").arg(site.place.key("ca.key"));
    command.arg("-in").arg(file("csr")).arg("-extfile").arg(file("ext")).arg("-out").arg(file("crt"));
    output(&mut command).map(drop)
}

/// A kubeconfig with a certificate of its own. It names files, so no secret is in it.
fn user(site: &Site, name: &str, subject: &str, kubeconfig: &Path) -> anyhow::Result<()> {
    signed(site, name, subject, "clientAuth")?;
    let file = |name: String| site.place.key(&name).display().to_string();
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

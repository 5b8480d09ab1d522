//! Registries as nodes have them: private, mirrored, with a CA of their own, behind a proxy, with a program that knows the
//! login. The agent goes by what its containerd is told, on both versions.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;
use stoker_testbed::containerd::Version;
use stoker_testbed::docker_registry::Options;

use crate::bed::{Node, Registry, on_both};
use crate::up::every_object;
use crate::wishes::{node, noise};

const PASSWORDS: [&str; 3] = ["hunter2-first", "hunter2-rotated", "hunter2-wrong"];

fn private() -> Options {
    Options { accounts: vec![account(0)], tls: false }
}

fn account(password: usize) -> (String, String) {
    ("ada".to_owned(), PASSWORDS[password].to_owned())
}

/// Nobody has seen a password: neither in the log, nor in an object, nor in a list of processes.
async fn nothing_shows(node: &Node, log: &str) {
    let process = |file: &str| fs::read(format!("/proc/{}/{file}", node.up.id())).unwrap();
    let process = [process("cmdline"), process("environ")].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(log.contains("pulling"), "the log says what happens: {log}");
    let objects = every_object(&node.up.client().await).await;
    for text in [log, &objects, &process[0], &process[1]] {
        for password in PASSWORDS {
            let encoded = serde_json::to_value(k8s_openapi::ByteString(format!("ada:{password}").into())).unwrap();
            let shown = text.contains(password) || text.contains(encoded.as_str().unwrap());
            assert!(!shown, "a password is in:\n{text}");
        }
    }
}

async fn logins_right_wrong_and_two(version: Version) {
    let Some(registry) = Registry::start(private()).await else { return };
    let Some((node, log)) = node(version, Default::default(), &["--runtime", "containerd"], &[]).await else { return };
    let host = registry.link.host();
    let image = registry.push("shop/web", "v1", &noise(1, 100_000, 1)).await;
    node.login("right", &host, "ada", PASSWORDS[0]).await;
    node.login("wrong", &host, "ada", PASSWORDS[2]).await;
    node.pull_with(&image, &[]).await.exits(1).says("node-1: Unauthorized").says("there is none").says(&host);
    node.pull_with(&image, &["wrong"]).await.exits(1).says("node-1: Unauthorized").says("refuses the login (401)");
    node.pull_with(&image, &["wrong", "right"]).await.exits(0).says("on all 1 nodes");
    nothing_shows(&node, &fs::read_to_string(log.path()).unwrap()).await;
}
on_both!(quick logins_right_wrong_and_two);

/// The password changes while layers come, one after the other.
async fn a_login_expires_in_the_middle(version: Version) {
    let Some(mut registry) = Registry::start(private()).await else { return };
    let args = ["--runtime", "containerd", "--max-layers", "1"];
    let Some((node, log)) = node(version, Default::default(), &args, &[]).await else { return };
    let host = registry.link.host();
    let image = noise(3, 6_000_000, 10);
    let name = registry.push("shop/web", "v1", &image).await;
    node.login("login", &host, "ada", PASSWORDS[0]).await;
    registry.link.stall_after(2_000_000);
    node.wish("old", &name, &["login"], json!({})).await;
    registry.link.wait_for_bytes(2_000_000).await.unwrap();
    registry.real.set_accounts(&[account(1)]).unwrap();
    registry.link.let_go();
    let (reason, message) = node.failure("old").await;
    assert_eq!(reason, "Unauthorized", "{message}");
    assert!(message.contains(&host) && message.contains("401"), "{message}");

    // With the new password in the Secret only what is missing comes.
    node.change_login("login", &host, "ada", PASSWORDS[1]).await;
    node.pull_with(&name, &["login"]).await.exits(0);
    registry.sent_at_most(&image, 1);
    nothing_shows(&node, &fs::read_to_string(log.path()).unwrap()).await;
}
on_both!(a_login_expires_in_the_middle);

async fn mirrors_of_the_nodes_own_settings(version: Version) {
    let Some(registry) = Registry::start(Default::default()).await else { return };
    let Some(mirror) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let images = [1, 2, 3].map(|seed| noise(1, 300_000, 100 * seed));
    for (at, image) in images.iter().enumerate() {
        registry.push(&format!("shop/web{at}"), "v1", image).await;
        mirror.push(&format!("shop/web{at}"), "v1", image).await;
    }
    let host = registry.link.host();
    let hosts = |capabilities: &str| {
        let toml = format!("[host.\"http://{}\"]\n  capabilities = [{capabilities}]\n", mirror.link.host());
        node.containerd.set_hosts(&host, &toml).unwrap();
    };
    hosts("\"pull\", \"resolve\"");
    node.pull(&format!("{host}/shop/web0:v1")).await.exits(0);
    assert_eq!(registry.link.received(), 0);
    assert!(mirror.link.received() > 300_000);

    // It may not say what a tag is.
    hosts("\"pull\"");
    let before = mirror.link.received();
    node.pull(&format!("{host}/shop/web1:v1")).await.exits(0);
    let asked = registry.link.received();
    assert!((1..2_000).contains(&asked), "the registry was asked for the tag alone: {asked}");
    assert!(mirror.link.received() - before > 300_000);

    // Down: as if it were not there.
    hosts("\"pull\", \"resolve\"");
    mirror.link.down().await;
    node.pull(&format!("{host}/shop/web2:v1")).await.exits(0);
    assert!(registry.link.received() > 300_000);
}
on_both!(quick mirrors_of_the_nodes_own_settings);

/// A name that nobody can resolve, a registry without TLS, and one with a CA of its own.
async fn registries_by_hosts_toml(version: Version) {
    let Some(plain) = Registry::start(Default::default()).await else { return };
    let Some(tls) = Registry::start(Options { tls: true, ..Default::default() }).await else { return };
    let Some(node) = Node::start(version).await else { return };
    let image = noise(1, 50_000, 7);
    plain.push("shop/web", "v1", &image).await;
    let secured = tls.push("shop/web", "v1", &image).await;
    node.containerd.set_hosts("shop.example", &format!("[host.\"http://{}\"]", plain.link.host())).unwrap();
    node.pull("shop.example/shop/web:v1").await.exits(0);
    assert!(plain.link.received() > 50_000);
    assert!(node.names().await.contains(&"shop.example/shop/web:v1".to_owned()));

    let host = tls.link.host();
    let server = format!("server = \"https://{host}\"\n");
    node.containerd.set_hosts(&host, &server).unwrap();
    node.wish("untrusted", &secured, &[], json!({"retries": 0})).await;
    let (reason, message) = node.failure("untrusted").await;
    assert_eq!(reason, "Unreachable", "{message}");
    assert!(message.contains(&host) && message.contains("certificate"), "{message}");
    let ca = node.containerd.certs().join(&host).join("ca.pem");
    fs::write(&ca, tls.real.ca().unwrap()).unwrap();
    node.containerd.set_hosts(&host, &format!("{server}[host.\"https://{host}\"]\n  ca = {ca:?}")).unwrap();
    node.pull(&secured).await.exits(0);
    assert!(node.names().await.contains(&secured));
}
on_both!(registries_by_hosts_toml);

/// A program of the node knows the login; the job has no Secret.
async fn a_credential_provider_knows_the_login(version: Version) {
    let Some(registry) = Registry::start(private()).await else { return };
    let dir = tempfile::tempdir().unwrap();
    let host = registry.link.host();
    // The program is a shell; what it says is in a file, which must not be one that a test writes and runs.
    let answer = json!({
        "kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "cacheKeyType": "Registry",
        "auth": {&host: {"username": "ada", "password": PASSWORDS[0]}},
    });
    let script = dir.path().join("script");
    fs::write(&script, format!("cat > {:?}\necho '{answer}'", dir.path().join("asked"))).unwrap();
    symlink("/bin/sh", dir.path().join("clouds-login")).unwrap();
    let config = dir.path().join("config.json");
    let provider = json!({
        "name": "clouds-login", "matchImages": [&host], "defaultCacheDuration": "1h", "args": [&script],
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
    });
    let all =
        json!({"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [provider]});
    fs::write(&config, all.to_string()).unwrap();
    let (config, programs) = (config.to_str().unwrap(), dir.path().to_str().unwrap());
    let args =
        ["--runtime", "containerd", "--credential-provider-config", config, "--credential-provider-bin-dir", programs];
    let Some((node, log)) = node(version, Default::default(), &args, &[]).await else { return };
    let name = registry.push("shop/web", "v1", &noise(1, 50_000, 8)).await;
    node.pull(&name).await.exits(0);
    let asked = fs::read_to_string(dir.path().join("asked")).unwrap();
    assert!(asked.contains("CredentialProviderRequest") && asked.contains(&format!("{host}/shop/web")), "{asked}");
    nothing_shows(&node, &fs::read_to_string(log.path()).unwrap()).await;
}
on_both!(a_credential_provider_knows_the_login);

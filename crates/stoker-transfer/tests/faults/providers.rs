//! Credential provider plugins: real programs, for a registry that wants a login.

use std::os::unix::fs::symlink;

use stoker_testbed::registry::Auth;
use stoker_transfer::{Keyring, Platform, Providers};
use tokio::io::AsyncReadExt;

use super::*;

/// A directory of plugins. Each is a shell under the plugin's name with a script as its argument, so that no program is
/// written that another test's fork may still hold open.
struct Plugins {
    dir: TempDir,
    entries: Vec<String>,
}

impl Plugins {
    fn new() -> Self {
        Self { dir: TempDir::new().unwrap(), entries: Vec::new() }
    }

    fn add(mut self, name: &str, images: &str, script: &str) -> Self {
        let file = self.dir.path().join(format!("{name}.sh"));
        std::fs::write(&file, script).unwrap();
        symlink("/bin/sh", self.dir.path().join(name)).unwrap();
        self.entries.push(format!(
            r#"{{name: {name}, matchImages: ["{images}"], defaultCacheDuration: 1h, args: [{file:?}],
                 apiVersion: credentialprovider.kubelet.k8s.io/v1, env: [{{name: DIR, value: {dir:?}}}]}}"#,
            dir = self.dir.path(),
        ));
        self
    }

    fn load(&self) -> Providers {
        let head = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders: [";
        let file = self.dir.path().join("config.yaml");
        std::fs::write(&file, format!("{head}{}]", self.entries.join(",\n"))).unwrap();
        Providers::load(&file, self.dir.path()).unwrap()
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }
}

/// A script that answers with one login.
fn answers(reach: &str, place: &str, user: &str) -> String {
    format!(
        r#"cat >> "$DIR/requests"; echo >> "$DIR/requests"
           echo '{{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
                   "cacheKeyType": "{reach}", "auth": {{"{place}": {{"username": "{user}", "password": "hunter2"}}}}}}'"#
    )
}

#[tokio::test]
async fn a_plugin_lets_us_into_a_registry_and_is_asked_once_for_all_its_images() {
    let bench = Bench::new().await;
    bench.registry.protect(Auth::Basic { login: "ada:hunter2".into() });
    let host = bench.registry.host();
    let plugins = Plugins::new().add("ecr", &host, &answers("Registry", &host, "ada"));
    let providers = plugins.load();
    for image in [bench.image(), format!("{host}/team/app:v1@{}", bench.pushed.manifest).parse().unwrap()] {
        let mut ring = Keyring::new();
        let (provided, troubles) = providers.logins(&image).await;
        assert_eq!(troubles, Vec::<String>::new());
        assert!(!format!("{provided:?} {providers:?}").contains("hunter2"));
        ring.provide(provided);
        let logins = ring.logins(&image);
        let root = bench.client.resolve_with(&image, &logins).await.unwrap();
        bench.client.image_with(&image, root.digest(), &Platform::host(), &logins).await.unwrap();
    }
    let other: Reference = format!("{host}/other/app:v1").parse().unwrap();
    assert_eq!(providers.logins(&other).await.0.len(), 1);
    let requests = plugins.file("requests");
    let request: serde_json::Value = serde_json::from_str(requests.trim()).unwrap();
    assert_eq!(request["image"], format!("{host}/team/app"), "asked once, without the tag, as the kubelet does");
    assert_eq!(request["apiVersion"], "credentialprovider.kubelet.k8s.io/v1");
    assert_eq!(request["kind"], "CredentialProviderRequest");
}

#[tokio::test]
async fn all_plugins_that_fit_are_asked_and_those_that_fail_stop_no_other() {
    let plugins = Plugins::new()
        .add("wide", "*.io", &answers("Image", "*.io", "wide"))
        .add("broken", "reg.io", "echo 'no role for this node' >&2; echo more >&2; exit 3")
        .add("silent", "reg.io", "exit 1")
        .add("chatty", "reg.io", "yes | head -c 2000000")
        .add("mumbling", "reg.io", "echo hunter2")
        .add("narrow", "reg.io/team", &answers("Global", "reg.io/team", "narrow"))
        .add("other", "other.io", "echo never > \"$DIR/never\"");
    std::fs::remove_file(plugins.dir.path().join("silent")).unwrap();
    let image: Reference = "reg.io/team/app:v1".parse().unwrap();
    let (provided, troubles) = plugins.load().logins(&image).await;
    let mut ring = Keyring::new();
    ring.provide(provided);
    let logins = ring.logins(&image);
    let users: Vec<_> = logins.candidates().map(|login| login.map(|login| login.username.clone())).collect();
    assert_eq!(users, [Some("narrow".into()), Some("wide".into()), None], "the longest pattern first");
    for (trouble, says) in troubles.iter().zip([
        "credential provider broken failed with exit code 3: no role for this node; the pull goes on without it",
        "credential provider silent cannot be run",
        "credential provider chatty wrote more than 1 MiB",
        "credential provider mumbling gave an answer that cannot be used",
    ]) {
        assert!(trouble.starts_with(says), "{trouble}");
        assert!(!trouble.contains("hunter2"), "{trouble}");
    }
    assert_eq!((troubles.len(), plugins.file("never").as_str()), (4, ""));
}

#[tokio::test]
async fn a_plugin_dies_with_the_pull_that_asked_for_it() {
    let plugins = Plugins::new().add("stuck", "reg.io", "exec 3> \"$DIR/pipe\"; echo up >&3; exec sleep 1000");
    let made = std::process::Command::new("mkfifo").arg(plugins.dir.path().join("pipe")).status().unwrap();
    assert!(made.success());
    let providers = plugins.load();
    let asking = tokio::spawn(async move { providers.logins(&"reg.io/a".parse().unwrap()).await });
    // Opens when the plugin opens its end, and ends when the plugin does.
    let mut pipe = tokio::fs::File::open(plugins.dir.path().join("pipe")).await.unwrap();
    let mut word = [0; 3];
    pipe.read_exact(&mut word).await.unwrap();
    asking.abort();
    assert_eq!(pipe.read(&mut word).await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_does_not_answer_is_given_up() {
    let plugins = Plugins::new().add("slow", "reg.io", "exec sleep 1000");
    let (provided, troubles) = plugins.load().logins(&"reg.io/a".parse().unwrap()).await;
    assert_eq!((provided.len(), troubles.len()), (0, 1));
    assert!(troubles[0].contains("slow did not answer within 60 s"), "{troubles:?}");
}

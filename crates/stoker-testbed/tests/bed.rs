//! The real things do what the other tests rely on: containerd, docker-registry and the proxy between them.

// Helpers of tests may unwrap as the tests themselves do; clippy's exception sees only the latter.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};

use stoker_testbed::containerd::{Containerd, Options, SANDBOX_IMAGE, Version};
use stoker_testbed::docker_registry::{self, DockerRegistry};
use stoker_testbed::image::{Compression, Flavor, Image, ImageBuilder, LayerBuilder, Pusher, busybox, tree};
use stoker_testbed::proxy::Proxy;
use stoker_testbed::registry::{Registry, digest};

/// An image that runs, and one layer that changes what is below in every way. It shares nothing with those of other kinds.
fn image(flavor: Flavor, compression: Compression) -> Image {
    let base = busybox()
        .unwrap()
        .file("etc/kind", format!("{flavor:?} {compression:?}"))
        .file("etc/gone", "gone")
        .file("var/lib/old", "old")
        .dir("srv")
        .mode(0o1777)
        .owner(7, 8)
        .file("srv/secret", "hush")
        .mode(0o4640)
        .owner(1000, 1001)
        .mtime(1_000_000_000)
        .xattr("user.note", b"hi");
    let top = LayerBuilder::new()
        .file("usr/share/kind", format!("{flavor:?} {compression:?}"))
        .whiteout("etc/gone")
        .opaque("var/lib")
        .file("var/lib/new", "new")
        .symlink("srv/link", "secret")
        .hard_link("srv/hard", "var/lib/new")
        .text("usr/share/text", 100_000, 1)
        .noise("usr/share/noise", 3_000_000, 1);
    let layers = [base, top].map(|layer| layer.build(compression).unwrap());
    layers.iter().fold(ImageBuilder::new().flavor(flavor), ImageBuilder::layer).build()
}

#[track_caller]
fn said(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Pulled through the proxy, run with the registry off, and its files compared.
async fn pull_and_run(version: Version) {
    let Some(mut registry) = DockerRegistry::start(docker_registry::Options::default()).await.unwrap() else { return };
    let Some(containerd) = Containerd::start(version, Options::default()).await.unwrap() else { return };
    let proxy = Proxy::start(registry.addr()).await.unwrap();
    let kinds = [
        (Flavor::Oci, Compression::Gzip),
        (Flavor::Docker, Compression::Gzip),
        (Flavor::Oci, Compression::None),
        (Flavor::Oci, Compression::Zstd),
    ];
    let mut names = Vec::new();
    for (at, (flavor, compression)) in kinds.into_iter().enumerate() {
        let image = image(flavor, compression);
        let repository = format!("shop/web{at}");
        registry.push(&repository, "v1", &image).await.unwrap();
        let name = format!("{}/{repository}:v1", proxy.host());
        let before = proxy.received();
        containerd.ctr_ok(&["images", "pull", "--plain-http", &name]).await.unwrap();
        let fetched = proxy.received() - before;
        let bytes = image.layer_bytes();
        assert!((bytes..bytes + 100_000).contains(&fetched), "{fetched} of {bytes}");
        names.push(name);
    }
    registry.stop();
    for name in &names {
        let script =
            "cat /srv/link /var/lib/*; stat -c '%a %u %g %Y' /srv/secret; sha256sum < /usr/share/noise; ls /etc";
        let got = said(containerd.run(name, &["/bin/sh", "-c", script]).await.unwrap());
        let mut noise = Vec::new();
        let layer = LayerBuilder::new().noise("n", 3_000_000, 1).build(Compression::None).unwrap();
        noise.extend_from_slice(&layer.bytes[512..512 + 3_000_000]);
        let digest = digest(&noise).replace("sha256:", "");
        let (head, rest) = got.split_once("  -\n").unwrap();
        assert_eq!(head, format!("hushnew4640 1000 1001 1000000000\n{digest}"));
        assert!(!rest.contains("gone"), "{rest}");
        check_files(&containerd.mount(name).await.unwrap());
    }
}

fn check_files(root: &Path) {
    let nodes = tree(root).unwrap();
    let node = |path: &str| nodes.get(Path::new(path));
    assert_eq!(node("srv").unwrap().mode, 0o041777);
    assert_eq!(node("srv").unwrap().owner, (7, 8));
    let secret = node("srv/secret").unwrap();
    assert_eq!((secret.mode, secret.owner, secret.mtime), (0o104640, (1000, 1001), Some(1_000_000_000)));
    assert_eq!(secret.xattrs.get("user.note").map(Vec::as_slice), Some(&b"hi"[..]));
    assert_eq!(node("srv/link").unwrap().content, "secret");
    let (hard, new) = (node("srv/hard").unwrap(), node("var/lib/new").unwrap());
    assert_eq!(hard.content, digest(b"new"));
    assert_eq!((&hard.same_as, new.same_as.as_deref()), (&None, Some(Path::new("srv/hard"))));
    for gone in ["etc/gone", "var/lib/old"] {
        assert_eq!(node(gone), None, "{gone}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_pulled_and_runs_on_debians_containerd() {
    pull_and_run(Version::Debian).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs containerd 2.2"]
async fn an_image_is_pulled_and_runs_on_containerd_2() {
    pull_and_run(Version::Two).await;
}

/// kill -9 and a new start keep what is there; a full disk is full; dropped, nothing is left.
async fn live_and_die(version: Version) {
    let options = Options { disk: Some(24 << 20), snapshotter: "native", ..Options::default() };
    let Some(mut containerd) = Containerd::start(version, options).await.unwrap() else { return };
    let dir = containerd.root().parent().unwrap().to_owned();
    assert!(containerd.ctr_ok(&["images", "ls", "-q"]).await.unwrap().contains(SANDBOX_IMAGE));
    // runc knows containers by their names on the whole machine.
    let id = dir.file_name().unwrap().to_str().unwrap();
    let sleep = ["run", "--detach", "--snapshotter", "native", SANDBOX_IMAGE, id, "/bin/sleep", "1000"];
    containerd.ctr_ok(&sleep).await.unwrap();
    containerd.kill();
    assert!(!containerd.ctr(&["--connect-timeout", "1s", "version"]).await.unwrap().status.success());
    containerd.restart().await.unwrap();
    assert!(containerd.ctr_ok(&["tasks", "ls"]).await.unwrap().contains("RUNNING"), "a container outlives the daemon");
    assert!(containerd.ctr_ok(&["images", "ls", "-q"]).await.unwrap().contains(SANDBOX_IMAGE));
    said(containerd.run(SANDBOX_IMAGE, &["/bin/true"]).await.unwrap());

    let large = LayerBuilder::new().noise("large", 30 << 20, 1).build(Compression::None).unwrap();
    let large = ImageBuilder::new().layer(&large).build();
    let refused = containerd.import("testbed.local/large:1", &large).await.unwrap_err().to_string();
    assert!(refused.contains("no space left"), "{refused}");
    assert!(named(&dir) > 0);
    drop(containerd);
    assert!(!dir.exists());
    assert_eq!(named(&dir), 0, "daemon and shim are gone");
    assert!(!fs::exists(format!("/run/containerd/runc/k8s.io/{id}")).unwrap());
}

/// How many processes name this directory.
fn named(dir: &Path) -> usize {
    let lines = fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read(entry.unwrap().path().join("cmdline")).ok());
    let dir = dir.to_str().unwrap();
    lines.filter(|line| String::from_utf8_lossy(line).contains(dir)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn debians_containerd_lives_and_dies() {
    live_and_die(Version::Debian).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs containerd 2.2"]
async fn containerd_2_lives_and_dies() {
    live_and_die(Version::Two).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_pull_feels_a_bad_link() {
    let Some(registry) = DockerRegistry::start(docker_registry::Options::default()).await.unwrap() else { return };
    let Some(mut containerd) = Containerd::start(Version::Debian, Options::default()).await.unwrap() else { return };
    let proxy = Proxy::start(registry.addr()).await.unwrap();
    registry.push("shop/web", "v1", &image(Flavor::Oci, Compression::Gzip)).await.unwrap();
    registry.push("shop/web", "v2", &image(Flavor::Docker, Compression::Gzip)).await.unwrap();
    let names = ["v1", "v2"].map(|tag| format!("{}/shop/web:{tag}", proxy.host()));
    let [pull, other] = [&names[0], &names[1]].map(|name| ["images", "pull", "--plain-http", name]);

    // containerd keeps the wrong bytes and refuses them at each further pull: what follows is done with another image.
    proxy.flip_after(2_000_000);
    let refused = containerd.ctr_ok(&pull).await.unwrap_err().to_string();
    assert!(refused.contains("unexpected commit digest"), "{refused}");
    proxy.down().await;
    let refused = containerd.ctr_ok(&other).await.unwrap_err().to_string();
    assert!(refused.contains("connection refused"), "{refused}");
    proxy.up().await;

    let before = proxy.received();
    proxy.stall_after(100_000);
    let mut child = containerd.ctr_command(&other).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    proxy.wait_for_bytes(before + 100_000).await.unwrap();
    assert_eq!(proxy.received(), before + 100_000);
    containerd.kill();
    // ctr fetches by itself, and notices only when it has something to write.
    proxy.let_go();
    assert!(!child.wait().unwrap().success());
    containerd.restart().await.unwrap();
    proxy.pace(Some(20 << 20));
    containerd.ctr_ok(&other).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_registry_with_tls_wants_the_right_login_and_comes_back() {
    let login = |password: &str| vec![("ada".to_owned(), password.to_owned())];
    let options = docker_registry::Options { accounts: login("first"), tls: true };
    let Some(mut registry) = DockerRegistry::start(options).await.unwrap() else { return };
    let layer = LayerBuilder::new().file("a", "a").build(Compression::Gzip).unwrap();
    let platform = |name: &str| ImageBuilder::new().layer(&layer).architecture(name).build();
    let image = Image::index(Flavor::Docker, &[platform("amd64"), platform("arm64")]);
    registry.push("shop/both", "v1", &image).await.unwrap();

    let push = async |registry: &DockerRegistry, password: &str| {
        let pusher = Pusher::new(&registry.url(), registry.ca()).unwrap().login("ada", password);
        pusher.push("shop/both", "v2", &image).await
    };
    assert!(push(&registry, "wrong").await.unwrap_err().to_string().contains("401"));
    registry.set_accounts(&login("second")).unwrap();
    assert!(push(&registry, "first").await.unwrap_err().to_string().contains("401"));
    push(&registry, "second").await.unwrap();

    let host = registry.host();
    registry.stop();
    assert!(push(&registry, "second").await.unwrap_err().to_string().contains("no answer"));
    registry.restart().await.unwrap();
    assert_eq!(registry.host(), host);
    push(&registry, "second").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_of_the_testbed_serves_the_same_images() {
    let Some(containerd) = Containerd::start(Version::Debian, Options::default()).await.unwrap() else { return };
    let registry = Registry::start().await.unwrap();
    let own = image(Flavor::Docker, Compression::Gzip);
    let other = ImageBuilder::new().architecture("s390x").build();
    let name = Image::index(Flavor::Oci, &[other, own]).put(&registry, "shop/web", "v1");
    containerd.ctr_ok(&["images", "pull", "--plain-http", &name]).await.unwrap();
    assert_eq!(said(containerd.run(&name, &["/bin/cat", "/var/lib/new"]).await.unwrap()), "new");
}

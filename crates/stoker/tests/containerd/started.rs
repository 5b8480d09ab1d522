//! A container really starts from what was brought, with the registry gone, and finds the files that containerd's own pull
//! would have given it.

use stoker_testbed::containerd::{Options, Version};
use stoker_testbed::image::{Compression, Image, ImageBuilder, LayerBuilder, busybox, tree};

use crate::bed::{Node, Registry, on_both};
use crate::kubelet::Kubelet;

/// Three layers that do to each other what layers can do.
fn image(compression: Compression) -> Image {
    let long = "long/".to_owned() + &"n".repeat(200) + "/" + &"m".repeat(200);
    let base = busybox()
        .unwrap()
        .file("etc/gone", "gone")
        .file("var/lib/old/a", "old")
        .file("var/lib/b", "old")
        .dir("srv")
        .mode(0o1777)
        .owner(7, 8)
        .file("srv/secret", "hush")
        .mode(0o4640)
        .owner(1000, 1001)
        .mtime(1_000_000_000)
        .xattr("user.note", b"hi")
        .file("srv/able", "x")
        .mode(0o755)
        .xattr("security.capability", &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
        .file("swap/file", "becomes a directory")
        .dir("swap/dir")
        .file("swap/dir/in", "goes")
        .file("links/one", "same")
        .hard_link("links/two", "links/one")
        .symlink("links/far", "/etc/news")
        .symlink("links/up", "../srv/secret")
        .symlink("links/nowhere", "/not/there")
        .dir("owned")
        .mode(0o2750)
        .owner(5, 6)
        .file(&long, "long");
    let middle = LayerBuilder::new()
        .whiteout("etc/gone")
        .opaque("var/lib")
        .file("var/lib/new", "new")
        .dir("swap/file")
        .file("swap/file/now", "in a directory")
        .file("swap/dir", "is a file")
        // Its parents are named by no entry of this layer.
        .file("owned/deep/er/file", "x")
        .owner(9, 9)
        .whiteout("links/one");
    let top = LayerBuilder::new()
        .file("etc/news", "good")
        .file("etc/gone", "back")
        .hard_link("etc/old-news", "etc/news")
        .whiteout("var/lib/new")
        .file("srv/secret", "other")
        .mode(0o600)
        .text("usr/share/text", 300_000, 1)
        .noise("usr/share/noise", 300_000, 1);
    let layers = [base, middle, top].map(|layer| layer.build(compression).unwrap());
    layers.iter().fold(ImageBuilder::new(), ImageBuilder::layer).build()
}

async fn compare(version: Version, options: Options, compression: Compression) {
    let snapshotter = options.snapshotter;
    let Some(mut registry) = Registry::start(Default::default()).await else { return };
    let Some(node) = Node::start_with(version, options.clone(), &[]).await else { return };
    let Some(kubelet) = Kubelet::start(version, options).await else { return };
    let name = registry.push("started/all", "v1", &image(compression)).await;
    node.pull(&name).await.exits(0);
    kubelet.pull(&name).await;
    registry.link.down().await;
    registry.real.stop();
    let script = "cat /etc/news /links/up /swap/file/now; ls -a /var/lib /etc; stat -c '%a %u %g' /owned/deep /srv";
    let run = async |containerd: &stoker_testbed::containerd::Containerd| {
        let ran = containerd.run(&name, &["/bin/sh", "-c", script]).await.unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    };
    // Each unpacked by the snapshotter that CRI uses, and by no other.
    let snapshots = ["snapshots", "--snapshotter", snapshotter, "ls"];
    let (ours, theirs) = (node.containerd.ctr_ok(&snapshots).await, kubelet.containerd.ctr_ok(&snapshots).await);
    let chains = |list: String| list.lines().filter(|line| line.starts_with("sha256:")).map(str::to_owned).collect();
    let (ours, theirs): (Vec<String>, Vec<String>) = (chains(ours.unwrap()), chains(theirs.unwrap()));
    assert_eq!(ours, theirs);
    let ours = run(&node.containerd).await;
    assert!(ours.starts_with("goodotherin a directory"), "{ours}");
    assert_eq!(ours, run(&kubelet.containerd).await);
    let ours = tree(&node.containerd.mount(&name).await.unwrap()).unwrap();
    let theirs = tree(&kubelet.containerd.mount(&name).await.unwrap()).unwrap();
    for (path, node) in &theirs {
        assert_eq!(ours.get(path), Some(node), "{}", path.display());
    }
    assert_eq!(ours.len(), theirs.len());
    assert!(ours.contains_key(std::path::Path::new("owned/deep/er/file")) && ours.len() > 30, "{}", ours.len());
}

async fn a_container_finds_the_files_of_containerds_own_pull(version: Version) {
    compare(version, Options::default(), Compression::Gzip).await;
}
on_both!(quick a_container_finds_the_files_of_containerds_own_pull);

async fn so_it_does_with_zstd(version: Version) {
    compare(version, Options::default(), Compression::Zstd).await;
}
on_both!(so_it_does_with_zstd);

/// Layers that we cannot unpack in place are left to containerd.
async fn so_it_does_with_the_native_snapshotter(version: Version) {
    compare(version, Options { snapshotter: "native", ..Options::default() }, Compression::Gzip).await;
}
on_both!(so_it_does_with_the_native_snapshotter);

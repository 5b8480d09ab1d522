//! Images whose layers have all that is hard. Each is unpacked by us and by containerd.

use std::io::Write as _;

use crate::archive::{Item, archive, dir, file, hardlink, of_kind, open_ended, symlink};

pub(crate) const TAR: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(crate) const ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
pub(crate) const DOCKER: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
pub(crate) const DOCKER_PLAIN: &str = "application/vnd.docker.image.rootfs.diff.tar";

/// One layer.
pub(crate) struct Layer {
    pub(crate) media_type: &'static str,
    /// Before and after compression.
    pub(crate) plain: Vec<u8>,
    pub(crate) stored: Vec<u8>,
}

/// One image, lowest layer first.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) layers: Vec<Layer>,
    /// Whether containerd takes it.
    pub(crate) good: bool,
}

pub(crate) fn gzip(plain: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(plain: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(plain, 3).unwrap()
}

/// Plain bytes, compressed as the type says.
pub(crate) fn layer(media_type: &'static str, plain: Vec<u8>) -> Layer {
    let stored = match media_type {
        TAR => plain.clone(),
        ZSTD => zstd(&plain),
        _ => gzip(&plain),
    };
    Layer { media_type, plain, stored }
}

fn good(name: &'static str, layers: Vec<Vec<Item>>) -> Case {
    let layers = layers.iter().map(|items| layer(GZIP, archive(items))).collect();
    Case { name, layers, good: true }
}

fn bad(name: &'static str, layers: Vec<Vec<Item>>) -> Case {
    Case { good: false, ..good(name, layers) }
}

fn bad_bytes(name: &'static str, plain: Vec<u8>) -> Case {
    Case { name, layers: vec![layer(GZIP, plain)], good: false }
}

/// A lowest layer for those that say something about what is above it.
fn below() -> Vec<Item> {
    vec![
        dir("etc/").mode(0o750).owner(1, 2).xattr("user.dir", "of etc"),
        file("etc/passwd", "root"),
        dir("shared/").mode(0o2775).owner(1000, 50),
        dir("shared/inner/").mode(0o711).owner(3, 4).time(1_400_000_000),
        file("shared/inner/file", "inner"),
        dir("var/").owner(9, 9),
        dir("var/log/").mode(0o1777),
        file("var/log/a", "a"),
        symlink("way", "var/log"),
        symlink("abs", "/shared/inner"),
        file("plain", "plain"),
        dir("opaque/").mode(0o700).owner(5, 5).time(1_450_000_000),
        file("opaque/old", "old"),
    ]
}

/// What one layer can hold by itself.
fn kinds() -> Vec<Item> {
    let long = ["deep"; 60].join("/");
    vec![
        dir("./").mode(0o700).owner(5, 5),
        dir("d/").mode(0o2775).owner(1000, 1001).xattr("user.note", "a directory"),
        dir("sticky").mode(0o1777),
        file("d/setuid", "#!").mode(0o4755).owner(12, 34),
        file("d/both", "x").mode(0o6711),
        file("/leading/slash", "slash"),
        file("./dot/./file", "dot"),
        file("a/../up", "up"),
        file("../../escape", "escape"),
        file("empty", ""),
        file("big", vec![7; 700_000]),
        file("cap", "cap").mode(0o755).xattr("security.capability", b"\x01\0\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        file("attr", "attr").xattr("user.one", "1").xattr("user.empty", "").xattr("trusted.overlay.opaque", "y"),
        file("nanos", "n").pax("mtime", "1600000000.123456789").pax("atime", "1600000001.5"),
        file("nanos-long", "n").pax("mtime", "1600000000.1234567899999"),
        file("before", "n").pax("mtime", "-5.5"),
        file("far", "n").pax("mtime", "99999999999999"),
        file("owned", "o").pax("uid", "3000000").pax("gid", "4000000000"),
        file("base256", "o").gnu().owner(0x0fff_ffff, 0x0eee_eeee),
        file("gnu-atime", "o").gnu().raw(|header| header.as_gnu_mut().unwrap().atime = *b"13000000000\0"),
        file(&long, "long by pax"),
        file(format!("{long}-gnu"), "long by gnu").gnu(),
        symlink("longlink", &long).gnu(),
        symlink("longlink-pax", &long),
        file("pax-name", "n").pax("path", "named/by/pax"),
        file("prefix", "p").raw(|header| header.as_ustar_mut().unwrap().prefix[..3].copy_from_slice(b"pre")),
        file(b"not-utf8-\xff\xfe", "bytes"),
        file("v7", "old").raw(|header| header.as_old_mut().linkflag = [0]),
        dir("v7dir/").raw(|header| header.as_old_mut().linkflag = [0]),
        file("slash-on-a-file/", "file"),
        symlink("rel", "d/setuid").owner(7, 8).xattr("user.ignored", "x"),
        symlink("dangling", "no/where"),
        hardlink("hard", "d/setuid").mode(0o4755).owner(12, 34),
        hardlink("hard-other-attributes", "/big").mode(0o600).owner(1, 1).time(1_450_000_000),
        hardlink("hard-to-link", "./rel"),
        hardlink("hard-dots", "d/../d/both").mode(0o6711),
        of_kind(b'6', "fifo").mode(0o622).owner(3, 3),
        of_kind(b'3', "null").device(1, 3).mode(0o666),
        of_kind(b'4', "loop").device(7, 300).mode(0o660).owner(0, 6),
        of_kind(b'3', "whiteout-like").mode(0o600),
        file("global", "stays").time(1_400_000_000),
        of_kind(b'g', "pax_global_header").pax("comment", "x"),
    ]
}

fn links() -> Vec<Item> {
    vec![
        dir("real/"),
        symlink("way", "real"),
        file("way/in", "through a link"),
        symlink("abs", "/real/deeper"),
        file("abs/in", "through an absolute link"),
        symlink("out", "../../../../../tmp"),
        file("out/evil", "stays inside"),
        symlink("host", "/etc"),
        file("host/passwd", "not the host's"),
        symlink("dang", "not/yet/there"),
        file("dang/ling", "made on the way"),
        symlink("one", "two"),
        symlink("two", "./real/../three"),
        file("one/x", "x"),
        symlink("self", "."),
        file("self/self/y", "y"),
        symlink("root", "/"),
        file("root/z", "z"),
        dir("way/made/").mode(0o711),
        hardlink("linked", "way/in"),
        hardlink("host/linked", "/one/x"),
    ]
}

fn replaced() -> Vec<Item> {
    vec![
        file("f-to-d", "1"),
        dir("f-to-d/").mode(0o700),
        file("f-to-d/in", "2"),
        dir("d-to-f/"),
        file("d-to-f/deep/er", "1"),
        file("d-to-f", "2"),
        dir("d-to-l/").time(1_400_000_000),
        file("d-to-l/x", "1"),
        symlink("d-to-l", "target"),
        dir("target/").time(1_410_000_000),
        symlink("l-to-d", "target"),
        dir("l-to-d/"),
        file("twice", "1").mode(0o600),
        file("twice", "22").mode(0o644),
        dir("again/").mode(0o700).xattr("user.a", "1"),
        file("again/kept", "kept"),
        dir("again/").mode(0o755).xattr("user.b", "2").time(1_420_000_000),
        symlink("l-to-f", "/etc/passwd"),
        file("l-to-f", "file now"),
        file("n-to-h", "1"),
        hardlink("n-to-h", "twice"),
        of_kind(b'6', "p-to-f"),
        file("p-to-f", "no longer a fifo"),
        file("implied/by/this", "x"),
        dir("implied/").mode(0o700).time(1_430_000_000),
        file("gone-by-global", "x"),
        of_kind(b'g', "gone-by-global").pax("comment", "x"),
    ]
}

fn sparse() -> Vec<Item> {
    let map = |text: &str, data: &[u8]| {
        let mut all = text.as_bytes().to_vec();
        all.resize(512, 0);
        all.extend_from_slice(data);
        all
    };
    vec![
        file("GNUSparseFile.0/one", map("2\n4096\n5\n10000\n3\n", b"helloend"))
            .pax("GNU.sparse.major", "1")
            .pax("GNU.sparse.minor", "0")
            .pax("GNU.sparse.name", "one")
            .pax("GNU.sparse.realsize", "20000"),
        file("zero-one", "helloend")
            .pax("GNU.sparse.size", "8200")
            .pax("GNU.sparse.numblocks", "2")
            .pax("GNU.sparse.map", "0,5,8197,3"),
        file("zero-zero", "hello")
            .pax("GNU.sparse.size", "100")
            .pax("GNU.sparse.numblocks", "1")
            .pax("GNU.sparse.offset", "10")
            .pax("GNU.sparse.numbytes", "5"),
        file("nothing", "").pax("GNU.sparse.major", "0").pax("GNU.sparse.minor", "1").pax("GNU.sparse.numblocks", "0"),
        file("unknown", "data").pax("GNU.sparse.major", "7").pax("GNU.sparse.minor", "0"),
    ]
}

fn upper() -> Vec<Item> {
    vec![
        file("etc/.wh.passwd", "").owner(77, 78),
        file("etc/.wh.shadow", "data of a whiteout"),
        file(".wh.plain", ""),
        file("plain", "again"),
        file("var/log/b", "b"),
        file("shared/inner/more/here", "x"),
        file("shared/new/here", "x"),
        dir("opaque/").mode(0o711),
        file("opaque/.wh..wh..opq", ""),
        file("opaque/new", "new"),
        file("way/in", "the link is below and is not followed"),
        file("abs/in", "x"),
        file("unknown/dir/file", "x"),
        file(".wh..wh.plnk", ""),
        file(".wh..wh.aufs/in", "x"),
    ]
}

fn more() -> Vec<Item> {
    vec![
        file("opaque/.wh..wh..opq", ""),
        file("shared/inner/.wh..wh..opq", ""),
        file("etc/new", "x"),
        dir("etc/").mode(0o701).owner(4, 4).xattr("user.dir", "of the third layer"),
        file("unknown/dir/other", "x"),
        file(".wh.var", ""),
        file("planner/now/a/dir", "x"),
        dir("way/").mode(0o711),
        file(".wh.abs", ""),
        file(".wh..wh..opq", ""),
    ]
}

fn lowest() -> Vec<Item> {
    vec![
        file(".wh.nothing", ""),
        file("gone", "x"),
        file(".wh.gone", ""),
        dir("kept/").mode(0o700),
        file("tree/of/files", "x"),
        file(".wh.tree", ""),
        file("tree/again", "x"),
        file(".wh..wh.plnk", ""),
        dir("opaque/"),
        file("opaque/kept", "named"),
        file("opaque/implied/lost", "its directory has no entry"),
        dir("opaque/named/"),
        file("opaque/named/kept", "x"),
        file("opaque/.wh..wh..opq", ""),
        file("opaque/later/kept", "x"),
    ]
}

/// All images.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = vec![
        good("kinds", vec![kinds(), kinds()]),
        good("links", vec![links(), links()]),
        good("replaced", vec![below(), replaced()]),
        good("sparse", vec![sparse(), below()]),
        good("whiteouts", vec![below(), upper(), more()]),
        good("lowest", vec![lowest(), below()]),
        good("replaced in the lowest", vec![replaced(), below()]),
        bad("whiteout of its own file", vec![below(), vec![file("x", ""), file(".wh.x", "")]]),
        bad("two whiteouts of one name", vec![below(), vec![file(".wh.x", ""), file(".wh.x", "")]]),
        bad("below its own whiteout", vec![below(), vec![file(".wh.x", ""), file("x/y", "")]]),
        bad("below a file of a layer below", vec![below(), vec![file("plain/a/b", "")]]),
        bad("below a device of a layer below", vec![vec![of_kind(b'3', "b")], vec![symlink("b/canary/a", "x")]]),
        bad(
            "below a file of a layer below, and replaced",
            vec![below(), vec![file("plain/a/b", ""), file("plain", "")]],
        ),
        bad("hard link to a layer below", vec![below(), vec![hardlink("x", "plain")]]),
        bad("hard link to nothing", vec![vec![hardlink("x", "nothing")]]),
        bad("hard link to itself", vec![vec![file("x", ""), hardlink("x", "x")]]),
        bad("hard link to a directory", vec![vec![dir("d"), hardlink("x", "d")]]),
        bad("hard link to the root", vec![vec![hardlink("x", "..")]]),
        bad("below a file", vec![vec![file("x", ""), file("x/y", "")]]),
        bad("far below a file", vec![vec![file("x", ""), file("x/y/z", "")]]),
        bad("links in a circle", vec![vec![symlink("a", "b"), symlink("b", "a"), file("a/x", "")]]),
        bad("whiteout of nothing", vec![vec![file(".wh.", "")]]),
        bad("whiteout of the parent", vec![below(), vec![file("etc/.wh...", "")]]),
        bad("directory removed before its time", vec![vec![dir("d"), file(".wh.d", "")]]),
        bad("contiguous file", vec![vec![of_kind(b'7', "x")]]),
        bad("unknown type", vec![vec![of_kind(b'Z', "x")]]),
        bad("old sparse file", vec![vec![of_kind(b'S', "x").gnu()]]),
        bad("bad records", vec![vec![of_kind(b'x', "x").size(0), file("y", "").pax("uid", "many")]]),
        bad("NUL in a path", vec![vec![file("y", "").pax("path", "a\0b")]]),
        bad(
            "sparse beyond its end",
            vec![vec![
                file("y", "12345")
                    .pax("GNU.sparse.size", "3")
                    .pax("GNU.sparse.numblocks", "1")
                    .pax("GNU.sparse.map", "0,5"),
            ]],
        ),
        bad("name too long", vec![vec![file("x".repeat(256), "")]]),
        bad("path too long", vec![vec![file(["x"; 3000].join("/"), "")]]),
        bad_bytes("data cut off", archive(&[file("x", vec![1; 3000])])[..1024].to_vec()),
        bad_bytes("header cut off", archive(&[file("x", vec![1; 600]), file("y", "")])[..1600].to_vec()),
        bad_bytes("zeros between", [vec![0; 512], archive(&[file("x", "")])].concat()),
        bad_bytes("bad checksum", {
            let mut bytes = archive(&[file("x", "")]);
            bytes[0] = b'y';
            bytes
        }),
    ];
    cases.extend(streams());
    cases
}

/// What can be odd about the stream around the entries. Each has a file of its own: containerd does not unpack the same
/// archive twice.
fn streams() -> Vec<Case> {
    let one = |name: &str| archive(&[file("x", "content of x"), dir("d"), file("case", name)]);
    let two = |name: &str| open_ended(&[file("a", vec![3; 200_000]), file("b", name)]);
    let stored = |name, media_type, plain: Vec<u8>, stored: Vec<u8>| Case {
        name,
        layers: vec![Layer { media_type, plain, stored }, layer(ZSTD, archive(&below()))],
        good: true,
    };
    let whole = |name, media_type, plain: Vec<u8>, store: &dyn Fn(&[u8]) -> Vec<u8>| {
        let bytes = store(&plain);
        stored(name, media_type, plain, bytes)
    };
    let broken = |name, media_type, store: &dyn Fn(&[u8]) -> Vec<u8>| Case {
        good: false,
        ..whole(name, media_type, one(name), store)
    };
    let garbage = |mut plain: Vec<u8>| {
        plain.extend_from_slice(b"garbage behind the end");
        plain
    };
    let padded = |mut plain: Vec<u8>| {
        plain.resize(plain.len() + 9000, 0);
        plain
    };
    let unpadded = |mut plain: Vec<u8>| {
        plain.truncate(plain.len() - 400);
        plain
    };
    let as_is = |plain: &[u8]| plain.to_vec();
    let skipping = |plain: &[u8]| [b"\x53\x2a\x4d\x18\x05\0\0\0hello".as_slice(), &zstd(plain)].concat();
    let cut = |mut stored: Vec<u8>| {
        stored.truncate(60);
        stored
    };
    vec![
        whole("plain", TAR, one("plain"), &as_is),
        whole("no end", GZIP, two("no end"), &gzip),
        whole("no padding", GZIP, unpadded(two("no padding")), &gzip),
        whole("trailing garbage", GZIP, garbage(one("trailing garbage")), &gzip),
        whole("trailing zeros", TAR, padded(one("trailing zeros")), &as_is),
        whole("two members", GZIP, two("members"), &|plain| [gzip(&plain[..1000]), gzip(&plain[1000..])].concat()),
        whole("two frames", ZSTD, two("frames"), &|plain| [zstd(&plain[..1000]), zstd(&plain[1000..])].concat()),
        whole("a frame to skip", ZSTD, one("a frame to skip"), &skipping),
        whole("zstd called gzip", GZIP, one("zstd called gzip"), &zstd),
        whole("gzip called zstd", ZSTD, one("gzip called zstd"), &gzip),
        whole("plain called gzip", GZIP, one("plain called gzip"), &as_is),
        whole("docker", DOCKER, one("docker"), &gzip),
        whole("docker without a word", DOCKER_PLAIN, one("docker without a word"), &gzip),
        whole("docker plain", DOCKER_PLAIN, one("docker plain"), &as_is),
        whole("empty", GZIP, Vec::new(), &gzip),
        broken("gzip and garbage", GZIP, &|plain| [gzip(plain), b"garbage".to_vec()].concat()),
        broken("gzip and zeros", GZIP, &|plain| padded(gzip(plain))),
        broken("zstd and garbage", ZSTD, &|plain| [zstd(plain), b"garbage".to_vec()].concat()),
        broken("gzip cut off", GZIP, &|plain| cut(gzip(plain))),
        broken("zstd cut off", ZSTD, &|plain| cut(zstd(plain))),
        broken("gzip called tar", TAR, &gzip),
    ]
}

//! The rules one by one, for machines without a containerd to compare with.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use stoker_runtime::unpack::{Error, LayerCompression, settle};

use crate::archive::{Item, TIME, archive, dir, file, hardlink, of_kind, symlink};
use crate::listing::listing;
use crate::{plain, root, scratch};

/// The listing of one layer that lies on others, without the root's line.
fn applied(items: &[Item]) -> Vec<String> {
    let dir = scratch();
    plain(&archive(items), false, dir.path()).unwrap();
    let lines = listing(dir.path()).into_iter().filter(|(path, _)| path != ".");
    lines.map(|(path, line)| format!("{path}: {line}")).collect()
}

fn refused(items: &[Item]) -> String {
    plain(&archive(items), false, scratch().path()).unwrap_err().to_string()
}

#[test]
fn a_whiteout_is_a_device_and_an_opaque_directory_has_an_attribute() {
    if !root() {
        return;
    }
    let lines = applied(&[dir("d/"), file("d/.wh.gone", "").owner(7, 8), file("d/.wh..wh..opq", "")]);
    assert_eq!(
        lines,
        [
            format!("./d: dir 755 0:0 {TIME}.000000000 trusted.overlay.opaque=y"),
            "./d/gone: char 0x0 0 7:8 now 1x ./d/gone".to_string(),
        ]
    );
}

#[test]
fn an_entry_after_its_whiteout_counts_and_the_reverse_is_refused() {
    if !root() {
        return;
    }
    let lines = applied(&[file(".wh.x", ""), symlink("x", "y")]);
    assert_eq!(lines, [format!("./x: link \"y\" 777 0:0 {TIME}.000000000 1x ./x")]);
    assert!(refused(&[file("x", ""), file(".wh.x", "")]).contains("deletes what the same layer has"));
}

#[test]
fn the_lowest_layer_keeps_no_whiteouts() {
    if !root() {
        return;
    }
    let dir = scratch();
    plain(&archive(&[file("a", ""), file(".wh.a", ""), file(".wh.b", "")]), true, dir.path()).unwrap();
    assert_eq!(listing(dir.path()).len(), 1);
}

#[test]
fn where_versions_of_containerd_differ_it_is_left_to_them() {
    if !root() {
        return;
    }
    let opaque = || file("d/.wh..wh..opq", "");
    let twice = [opaque(), dir("d/named"), opaque()];
    plain(&archive(&twice), true, scratch().path()).unwrap();
    let between = [opaque(), file("d/implied/f", ""), opaque()];
    let left = plain(&archive(&between), true, scratch().path()).unwrap_err();
    assert!(matches!(left, Error::Unsupported { .. }), "{left}");
}

#[test]
fn times_have_nanoseconds_and_directories_keep_theirs() {
    if !root() {
        return;
    }
    let dir_ = scratch();
    let items = [dir("d/"), file("d/f", "x").pax("mtime", "1600000000.123456789").pax("atime", "1600000009.5")];
    plain(&archive(&items), false, dir_.path()).unwrap();
    assert_eq!(fs::metadata(dir_.path().join("d")).unwrap().mtime(), TIME as i64);
    let file = fs::metadata(dir_.path().join("d/f")).unwrap();
    assert_eq!((file.mtime(), file.mtime_nsec()), (1_600_000_000, 123_456_789));
    assert_eq!((file.atime(), file.atime_nsec()), (1_600_000_009, 500_000_000));
}

#[test]
fn hard_links_stay_in_the_layer() {
    if !root() {
        return;
    }
    let lines = applied(&[file("a", "x"), hardlink("b", "/a").mode(0o600)]);
    assert!(lines.iter().all(|line| line.contains(" 600 ") && line.ends_with("2x ./a")), "{lines:?}");
    assert!(refused(&[hardlink("b", "of-a-layer-below")]).contains("does not have"));
}

#[test]
fn names_and_links_lead_nowhere_else() {
    if !root() {
        return;
    }
    let around = scratch();
    let inside = around.path().join("inside");
    let outside = around.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("canary"), "alive").unwrap();
    let before = listing(&outside);
    let absolute = outside.to_str().unwrap();
    let items = [
        file("../outside/canary", "1"),
        file(format!("{absolute}/canary"), "2"),
        symlink("out", absolute),
        file("out/canary", "3"),
        symlink("up", "../outside"),
        file("up/canary", "4"),
        dir("up/"),
        hardlink("stolen", "../outside/canary"),
        file("up/.wh.canary", ""),
        file("out/.wh..wh..opq", ""),
    ];
    plain(&archive(&items), true, &inside).unwrap();
    assert_eq!(listing(&outside), before);
    assert_eq!(fs::read(inside.join("stolen")).unwrap(), fs::read(inside.join("outside/canary")).unwrap());
}

#[test]
fn links_that_lead_up_and_down_forever_are_not_followed() {
    if !root() {
        return;
    }
    let deep = ["d"; 400].join("/");
    let items = [dir(&deep), symlink(format!("{deep}/l"), "x/../".repeat(600)), file(format!("{deep}/l/f"), "")];
    let left = plain(&archive(&items), false, scratch().path()).unwrap_err();
    assert!(matches!(left, Error::Unsupported { .. }), "{left}");
}

#[test]
fn kinds_that_nobody_knows_are_named() {
    if !root() {
        return;
    }
    let refused = refused(&[of_kind(b'7', "contiguous")]);
    assert!(refused.contains("\"contiguous\"") && refused.contains("'7'"), "{refused}");
}

/// Settles a layer with these entries onto one lower directory.
fn settled(lower: &Path, items: &[Item], dir: &Path) -> Result<PathBuf, Error> {
    let (stage, upper) = (dir.join("stage"), dir.join("upper"));
    fs::create_dir(&upper).unwrap();
    let unpacked = plain(&archive(items), false, &stage).unwrap();
    settle(&stage, &upper, &[lower.to_owned()], &unpacked).map(|()| upper)
}

#[test]
fn implied_directories_look_as_they_do_below() {
    if !root() {
        return;
    }
    let dir_ = scratch();
    let lower = dir_.path().join("lower");
    let items = [dir("a/").mode(0o2750).owner(5, 6).xattr("user.k", "v"), dir("a/b/").mode(0o700).owner(7, 8)];
    plain(&archive(&items), true, &lower).unwrap();
    let upper = settled(&lower, &[file("a/b/new/f", ""), file("a/other/f", ""), file("z/f", "")], dir_.path()).unwrap();
    let lines = listing(&upper);
    assert_eq!(lines["./a"], "dir 2750 5:6 now user.k=v");
    assert_eq!(lines["./a/b"], "dir 700 7:8 now");
    assert_eq!(lines["./a/b/new"], "dir 755 0:0 now");
    assert_eq!(lines["./a/other"], "dir 755 0:6 now", "the group comes from its parent's setgid bit");
    assert_eq!(lines["./z"], "dir 755 0:0 now");
    assert_eq!(fs::read_dir(dir_.path().join("stage")).unwrap().count(), 0);
}

#[test]
fn default_rules_of_access_below_are_left_to_containerd() {
    if !root() {
        return;
    }
    let dir_ = scratch();
    let lower = dir_.path().join("lower");
    // Version 2; user, group, other: rwx, r-x, r-x.
    let acl = b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x04\0\x05\0\xff\xff\xff\xff\x20\0\x05\0\xff\xff\xff\xff";
    plain(&archive(&[dir("a/").xattr("system.posix_acl_default", acl)]), true, &lower).unwrap();
    if !listing(&lower)["./a"].contains("posix_acl_default") {
        println!("SKIPPED: this filesystem has no rules of access");
        return;
    }
    let refused = settled(&lower, &[file("a/f", "")], dir_.path()).unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
}

#[test]
fn only_new_directories_are_filled() {
    if !root() {
        return;
    }
    let dir = scratch();
    fs::write(dir.path().join("there"), "").unwrap();
    let refused = plain(&archive(&[file("x", "")]), true, dir.path()).unwrap_err();
    assert!(matches!(refused, Error::NotEmpty(_)), "{refused}");
    let (stage, upper) = (dir.path().join("stage"), dir.path());
    let unpacked = plain(&archive(&[file("x", "")]), true, &stage).unwrap();
    assert!(matches!(settle(&stage, upper, &[], &unpacked), Err(Error::NotEmpty(_))));
}

#[test]
fn media_types_are_containerds() {
    for (media_type, expected) in [
        ("application/vnd.oci.image.layer.v1.tar", Some(LayerCompression::None)),
        ("application/vnd.oci.image.layer.v1.tar+gzip", Some(LayerCompression::Detect)),
        ("application/vnd.oci.image.layer.v1.tar+zstd", Some(LayerCompression::Detect)),
        ("application/vnd.oci.image.layer.nondistributable.v1.tar", Some(LayerCompression::None)),
        ("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", Some(LayerCompression::Detect)),
        ("application/vnd.docker.image.rootfs.diff.tar", Some(LayerCompression::Detect)),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", Some(LayerCompression::Detect)),
        ("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", Some(LayerCompression::Detect)),
        ("application/vnd.oci.image.layer.v1.tar+gzip+encrypted", None),
        ("application/vnd.oci.image.layer.v1.tar+encrypted", None),
        ("application/vnd.in-toto+json", None),
        ("", None),
    ] {
        assert_eq!(LayerCompression::of(media_type), expected, "{media_type}");
    }
}

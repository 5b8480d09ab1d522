//! Bytes of strangers: nothing panics, and nothing outside the directory is touched.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use stoker_runtime::unpack::{LayerCompression, LayerToUnpack, settle, unpack};

use crate::archive::{Item, archive, dir, file, hardlink, of_kind, symlink};
use crate::cases::{gzip, zstd};
use crate::listing::listing;
use crate::{root, scratch};

/// Unpacks and settles next to a canary, and looks whether it lives.
fn survive(bytes: &[u8], lowest: bool) {
    let around = scratch();
    let [stage, upper, lower, canary] = ["stage", "upper", "lower", "canary"].map(|name| around.path().join(name));
    for made in [&stage, &upper, &lower, &canary] {
        fs::create_dir(made).unwrap();
    }
    fs::write(canary.join("a"), "alive").unwrap();
    fs::write(around.path().join("a"), "alive").unwrap();
    std::os::unix::fs::symlink("../canary", lower.join("b")).unwrap();
    let layer = LayerToUnpack { compression: LayerCompression::Detect, lowest, most: 1 << 20 };
    let before = (listing(&canary), listing(&lower));
    if let Ok(unpacked) = unpack(bytes, layer, &stage) {
        let _ = settle(&stage, &upper, std::slice::from_ref(&lower), &unpacked);
    }
    assert_eq!((listing(&canary), listing(&lower)), before);
    let mut names: Vec<_> = fs::read_dir(around.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a", "canary", "lower", "stage", "upper"]);
    assert_eq!(fs::read(around.path().join("a")).unwrap(), b"alive");
    assert!(!Path::new("/a-file-of-a-hostile-archive").exists());
}

/// Names that want to go somewhere.
fn name() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => prop::sample::select(vec!["a", "b", "c", "canary"]),
        2 => prop::sample::select(vec!["..", ".", "", ".wh.a", ".wh.b", ".wh..wh..opq"]),
        1 => Just("a-file-of-a-hostile-archive"),
    ];
    prop::collection::vec(part, 1..5).prop_map(|parts| parts.join("/"))
}

fn item() -> impl Strategy<Value = Item> {
    prop_oneof![
        name().prop_map(|name| dir(name).mode(0o711)),
        (name(), 0..1500usize).prop_map(|(name, size)| file(name, vec![b'x'; size])),
        (name(), name()).prop_map(|(name, to)| symlink(name, to)),
        (name(), name()).prop_map(|(name, to)| symlink(name, format!("/{to}"))),
        (name(), name()).prop_map(|(name, to)| hardlink(name, to)),
        (name(), name()).prop_map(|(name, to)| file("short", "x").pax("path", name).pax("linkpath", to)),
        (name(), prop::sample::select(b"346gxLKS7\0".to_vec())).prop_map(|(name, kind)| of_kind(kind, name)),
        (name(), any::<Vec<u8>>()).prop_map(|(name, value)| file(name, "x").xattr("user.x", value)),
        (name(), "[0-9,]{0,12}").prop_map(|(name, map)| {
            file(name, "123").pax("GNU.sparse.map", map).pax("GNU.sparse.numblocks", "1").pax("GNU.sparse.size", "99")
        }),
    ]
}

fn items() -> impl Strategy<Value = Vec<Item>> {
    prop::collection::vec(item(), 1..12)
}

/// Archives that are odd and mostly legal.
pub(crate) fn odd() -> impl Strategy<Value = Vec<Item>> {
    let item = prop_oneof![
        3 => (name(), 0o700..0o7777u32).prop_map(|(name, mode)| dir(name).mode(mode).owner(3, 4)),
        3 => name().prop_map(|name| file(name, "x")),
        2 => (name(), name()).prop_map(|(name, to)| symlink(name, to)),
        1 => (name(), name()).prop_map(|(name, to)| symlink(name, format!("/{to}"))),
        1 => (name(), name()).prop_map(|(name, to)| hardlink(name, to)),
        1 => (name(), prop::sample::select(b"346g\0".to_vec())).prop_map(|(name, kind)| of_kind(kind, name)),
        1 => name().prop_map(|name| dir(name).xattr("user.x", "y").time(1_400_000_000)),
    ];
    prop::collection::vec(item, 1..7)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..3000), start in 0..4usize, lowest: bool) {
        let start: &[u8] = [b"".as_slice(), b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18"][start];
        if root() {
            survive(&[start, &bytes].concat(), lowest);
        }
    }

    #[test]
    fn whole_archives(items in items(), lowest: bool) {
        if root() {
            survive(&archive(&items), lowest);
        }
    }

    #[test]
    fn changed_archives(items in items(), at: prop::sample::Index, with: u8, cut: prop::sample::Index, how in 0..3) {
        if root() {
            let mut plain = archive(&items);
            // Only where the checksum is changed with it does a change of a header get any further.
            let at = at.index(plain.len());
            let block = at / 512 * 512;
            let sum = |block: &[u8]| block.iter().enumerate().map(|(i, byte)| match i {
                148..156 => 32,
                _ => u32::from(*byte),
            }).sum::<u32>();
            plain[at] = with;
            let checksum = format!("{:06o}\0 ", sum(&plain[block..block + 512]));
            plain[block + 148..block + 156].copy_from_slice(checksum.as_bytes());
            match how {
                0 => plain.truncate(cut.index(plain.len())),
                1 => plain = gzip(&plain),
                _ => {
                    plain = zstd(&plain);
                    let at = cut.index(plain.len());
                    plain[at] = with;
                }
            }
            survive(&plain, with % 2 == 0);
        }
    }
}

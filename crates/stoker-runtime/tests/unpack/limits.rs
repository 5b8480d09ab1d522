//! What ends a layer before its time: the caller's limit, a full disk, a source that fails, damage.

use std::io::{self, Read};
use std::path::Path;
use std::process::Command;

use stoker_runtime::room::{DiskAmount, Short, Unit};
use stoker_runtime::unpack::{Error, LayerCompression, LayerToUnpack, unpack, unpack_within};

use crate::archive::{archive, dir, file};
use crate::cases::{gzip, zstd};
use crate::containerd::digest;
use crate::{root, scratch};

fn detect(stream: impl Read + Send, most: u64, into: &Path) -> Result<(String, u64), Error> {
    let layer = LayerToUnpack { compression: LayerCompression::Detect, lowest: false, most };
    unpack(stream, layer, into).map(|done| (done.diff_id(), done.size()))
}

#[test]
fn the_digest_is_of_the_whole_stream() {
    if !root() {
        return;
    }
    let mut plain = archive(&[file("x", vec![1; 300_000])]);
    plain.extend_from_slice(&[9; 200_000]);
    for stored in [plain.clone(), gzip(&plain), zstd(&plain)] {
        let done = detect(stored.as_slice(), 1 << 20, scratch().path()).unwrap();
        assert_eq!(done, (digest(&plain), plain.len() as u64));
    }
}

#[test]
fn a_bomb_stops_at_the_limit() {
    if !root() {
        return;
    }
    let dir_ = scratch();
    let bomb = gzip(&archive(&[file("small", "x"), file("bomb", vec![0; 50 << 20])]));
    let stopped = detect(bomb.as_slice(), 1 << 20, dir_.path()).unwrap_err();
    assert!(stopped.is_too_big() && !stopped.is_full(), "{stopped}");
    assert!(!dir_.path().join("bomb").exists());
    let many: Vec<_> = (0..1000).map(|i| file(format!("f{i}"), "")).collect();
    let stopped = detect(archive(&many).as_slice(), 100 * 512, scratch().path()).unwrap_err();
    assert!(stopped.is_too_big(), "{stopped}");
    // A directory named again and again takes no memory.
    let same: Vec<_> = (0..1000).map(|_| dir("same")).collect();
    detect(archive(&same).as_slice(), 1 << 20, scratch().path()).unwrap();
}

/// A window is memory of whoever decodes: a large one is left to containerd, wherever in the stream it comes.
#[test]
fn large_windows_of_zstd_are_not_decoded_here() {
    if !root() {
        return;
    }
    let plain = archive(&[file("x", vec![7; 300_000])]);
    let packed = |log: u32| {
        let mut encoder = ::zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
        encoder.window_log(log).unwrap();
        io::Write::write_all(&mut encoder, &plain).unwrap();
        encoder.finish().unwrap()
    };
    for log in [10, 20, 23] {
        assert!(detect(packed(log).as_slice(), 1 << 20, scratch().path()).is_ok(), "2^{log}");
    }
    let mut second = zstd(&plain);
    second.extend(packed(24));
    for large in [packed(24), packed(27), packed(30), second] {
        let left = detect(large.as_slice(), 1 << 20, scratch().path()).unwrap_err();
        assert!(matches!(left, Error::Unsupported { .. }) && left.to_string().contains("8 MiB"), "{left}");
    }
}

/// What a layer takes from a purse that gives this much at a time, and no more than that in all.
fn taken(tar: &[u8], step: u64, most: u64) -> Result<DiskAmount, Error> {
    let layer = LayerToUnpack { compression: LayerCompression::Detect, lowest: false, most: u64::MAX };
    let mut sum = DiskAmount::default();
    let into = scratch();
    let unpacked = unpack_within(tar, layer, into.path(), &mut |need| {
        let bytes = if need.bytes == 0 { 0 } else { need.bytes.max(step) };
        let given = DiskAmount { bytes, inodes: need.inodes };
        (sum.bytes, sum.inodes) = (sum.bytes + given.bytes, sum.inodes + given.inodes);
        let short =
            Short { of: Unit::Bytes, need: 1, free: 2, reserved: 0, full: 81, limit: 80, later: false, device: 0 };
        if sum.bytes > most { Err(short) } else { Ok(given) }
    });
    let written: u64 =
        std::fs::read_dir(into.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(written <= most, "{written} bytes were written");
    unpacked.map(|_| sum)
}

#[test]
fn what_is_written_is_paid_for_in_steps() {
    if !root() {
        return;
    }
    // One file that never ends, or many: neither writes more than it was given.
    let one = gzip(&archive(&[file("bomb", vec![0; 50 << 20])]));
    let files: Vec<_> = (0..500).map(|i| file(format!("f{i}"), vec![0; 100_000])).collect();
    let many = gzip(&archive(&files));
    for bomb in [one, many] {
        let stopped = taken(&bomb, 1 << 20, 8 << 20).unwrap_err();
        assert!(matches!(stopped, Error::NoRoom(_)), "{stopped}");
        assert!(taken(&bomb, 1 << 20, 60 << 20).is_ok());
    }
    // Bytes come in blocks; names, inodes and extended attributes cost too.
    let long = |name: &str| file(name, "x").xattr("user.long", vec![b'x'; 3_000]);
    for (what, entries, bytes, inodes) in [
        ("an empty file", vec![file("a", "")], 512, 1),
        ("one byte", vec![file("a", "x")], 512 + 4096, 1),
        ("two directories", vec![dir("a"), dir("a/b")], 2 * (512 + 4096), 2),
        ("implied directories", vec![file("a/b/c", "")], 2 * 4096 + 512, 3),
        ("an attribute", vec![long("a")], 512 + 2 * 4096, 1),
    ] {
        let sum = taken(&archive(&entries), 0, 1 << 30).unwrap();
        assert_eq!((sum.bytes, sum.inodes), (bytes, inodes), "{what}");
    }
}

/// A small filesystem, gone with the test.
struct Small(tempfile::TempDir);

impl Small {
    fn mount() -> Option<Self> {
        let dir = scratch();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "small"]).arg(dir.path()).status();
        if !mounted.is_ok_and(|status| status.success()) {
            println!("SKIPPED: cannot mount a small filesystem here");
            return None;
        }
        Some(Self(dir))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_can_be_told_apart() {
    if !root() {
        return;
    }
    let Some(small) = Small::mount() else { return };
    let stored = gzip(&archive(&[file("big", vec![5; 3 << 20])]));
    let failed = detect(stored.as_slice(), 1 << 30, small.0.path()).unwrap_err();
    assert!(failed.is_full() && !failed.is_transfer(), "{failed}");
    assert!(failed.to_string().contains("write big"), "{failed}");
}

/// Gives some bytes, then fails.
struct Failing<'a>(&'a [u8]);

impl Read for Failing<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Err(io::Error::new(io::ErrorKind::ConnectionReset, "the peer is gone"));
        }
        self.0.read(buf)
    }
}

#[test]
fn a_source_that_fails_is_not_damage() {
    if !root() {
        return;
    }
    let plain = archive(&[file("x", vec![1; 300_000]), file("y", "2")]);
    for stored in [plain.clone(), gzip(&plain), zstd(&plain)] {
        for cut in [0, 5, stored.len() / 2, stored.len() - 1] {
            let failed = detect(Failing(&stored[..cut]), 1 << 20, scratch().path()).unwrap_err();
            assert!(matches!(&failed, Error::Read(e) if e.kind() == io::ErrorKind::ConnectionReset), "{failed}");
            assert!(failed.is_transfer());
        }
    }
}

#[test]
fn damage_is_told() {
    if !root() {
        return;
    }
    let plain = archive(&[file("x", (0..300_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect::<Vec<u8>>())]);
    for mut stored in [gzip(&plain), zstd(&plain)] {
        let middle = stored.len() / 2;
        let cut = detect(&stored[..middle], 1 << 20, scratch().path()).unwrap_err();
        assert!(matches!(cut, Error::Compressed(_)), "{cut}");
        stored[middle] ^= 0xff;
        // Either the decoder sees it, or the digest differs.
        match detect(stored.as_slice(), 1 << 20, scratch().path()) {
            Ok((found, _)) => assert_ne!(found, digest(&plain)),
            Err(failed) => assert!(matches!(failed, Error::Compressed(_)), "{failed}"),
        }
    }
}

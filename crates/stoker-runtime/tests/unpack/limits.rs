//! What ends a layer before its time: the caller's limit, a full disk, a source that fails, damage.

use std::io::{self, Read};
use std::path::Path;
use std::process::Command;

use stoker_runtime::unpack::{Compression, Error, Layer, unpack};

use crate::archive::{archive, dir, file};
use crate::cases::{gzip, zstd};
use crate::containerd::digest;
use crate::{root, scratch};

fn detect(stream: impl Read + Send, most: u64, into: &Path) -> Result<(String, u64), Error> {
    let layer = Layer { compression: Compression::Detect, lowest: false, most };
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

//! Layers of images: archives from strangers that are unpacked as root.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use stoker_runtime::unpack::{self, LayerCompression, LayerToUnpack};

use crate::scratch;

const BLOCK: usize = 512;

/// The input as an archive whose checksums are right, unless its first byte says that it stays as it is. libFuzzer does not guess
/// checksums, and every change of a header would end at one.
pub fn sealed(bytes: &[u8]) -> Vec<u8> {
    let Some((first, archive)) = bytes.split_first() else { return Vec::new() };
    let mut archive = archive.to_vec();
    if *first == b'=' {
        return archive;
    }
    let mut at = 0;
    while let Some(block) = archive.get_mut(at..at + BLOCK) {
        at += BLOCK;
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let digits: String = block[124..136].iter().map(|byte| char::from(*byte)).collect();
        let size = usize::from_str_radix(digits.trim_matches(['\0', ' ']), 8).unwrap_or(0);
        let bodyless = (b'1'..=b'6').contains(&block[156]);
        at = at.saturating_add(if bodyless { 0 } else { size.div_ceil(BLOCK).saturating_mul(BLOCK) });
    }
    archive
}

/// An absolute link leads here if it leads out. The corpus has such links.
const ABSOLUTE: &str = "/stoker-fuzz-outside";

/// A layer that is unpacked and settled: whatever it holds, nothing outside of its directory is made or changed, and the digest
/// is that of the stream.
pub fn unpack(bytes: &[u8]) {
    let Some((flags, rest)) = bytes.split_first() else { return };
    let (lowest, plain) = (flags & 1 == 0, flags & 2 == 0);
    let stream = if plain { sealed(rest) } else { rest.to_vec() };
    let compression = if plain { LayerCompression::None } else { LayerCompression::Detect };
    scratch::with_dir(|dir| {
        let [stage, upper, lower, outside] = ["stage", "upper", "lower", "outside"].map(|name| dir.join(name));
        for folder in [&stage, &upper, &lower, &outside] {
            fs::create_dir(folder)?;
        }
        for folder in [&lower, &outside] {
            fs::create_dir(folder.join("d"))?;
            fs::write(folder.join("d/f"), "untouched")?;
            std::os::unix::fs::symlink("../../outside", folder.join("d/l"))?;
        }
        let before = (look(&lower)?, look(&outside)?, names(dir)?);
        let layer = LayerToUnpack { compression, lowest, most: 1 << 20 };
        if let Ok(unpacked) = unpack::unpack(stream.as_slice(), layer, &stage) {
            if plain {
                let sum: String = Sha256::digest(&stream).iter().map(|byte| format!("{byte:02x}")).collect();
                assert_eq!(unpacked.diff_id(), format!("sha256:{sum}"));
                assert_eq!(unpacked.size(), stream.len() as u64);
            }
            let lowers = if lowest { Vec::new() } else { vec![lower.clone()] };
            let _ = unpack::settle(&stage, &upper, &lowers, &unpacked);
        }
        assert_eq!((look(&lower)?, look(&outside)?, names(dir)?), before, "a layer changed what is outside of it");
        assert!(!Path::new(ABSOLUTE).exists(), "a layer wrote {ABSOLUTE}");
        Ok(())
    });
}

fn names(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut names: Vec<PathBuf> =
        fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    names.sort();
    Ok(names)
}

type Seen = BTreeMap<PathBuf, (u32, u32, u64, i64, Option<Vec<u8>>)>;

/// Everything below a directory: mode, owner, links, change of the inode and content.
fn look(dir: &Path) -> io::Result<Seen> {
    let mut seen = Seen::new();
    let mut ahead = vec![dir.to_owned()];
    while let Some(path) = ahead.pop() {
        let meta = fs::symlink_metadata(&path)?;
        let content = if meta.is_file() { Some(fs::read(&path)?) } else { None };
        if meta.is_dir() {
            ahead.extend(names(&path)?);
        }
        let changed = meta.ctime().wrapping_mul(1_000_000_000).wrapping_add(meta.ctime_nsec());
        seen.insert(path, (meta.mode(), meta.uid(), meta.nlink(), changed, content));
    }
    Ok(seen)
}

//! How long a layer of real files takes, beside containerd on the same machine. A measurement, run by hand: `cargo test
//! --profile dist -p stoker-runtime --test unpack -- --ignored --nocapture speed`. Set `STOKER_SPEED_TREE` to take the
//! files from another directory than `/usr/lib`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use stoker_runtime::unpack::{Compression, unpack};

use crate::cases::{GZIP, Layer, ZSTD, layer};
use crate::containerd::Daemon;
use crate::scratch;

/// The bytes of files in all layers together.
const BYTES: u64 = 400 << 20;
const ROUNDS: usize = 3;

/// Archives of the files below a directory, in parts of about the same size.
fn trees(root: &Path, parts: usize) -> Vec<Vec<u8>> {
    let mut queue = vec![root.to_owned()];
    let mut done = Vec::new();
    let mut out = tar::Builder::new(Vec::new());
    out.follow_symlinks(false);
    while let Some(path) = queue.pop() {
        let name = path.strip_prefix("/").unwrap().to_owned();
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            out.append_dir(&name, &path).unwrap();
            let inner = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
            queue.extend(inner);
        } else if meta.is_file() || meta.is_symlink() {
            out.append_path_with_name(&path, &name).unwrap();
        }
        if out.get_ref().len() as u64 >= BYTES / parts as u64 {
            done.push(std::mem::replace(&mut out, tar::Builder::new(Vec::new())).into_inner().unwrap());
            out.follow_symlinks(false);
            if done.len() == parts {
                return done;
            }
        }
    }
    done.push(out.into_inner().unwrap());
    done
}

/// All layers at once, each from a file as they would come from the spool.
fn ours(layers: &[Layer], dir: &Path) -> Duration {
    let mut files: Vec<PathBuf> = Vec::new();
    for (i, layer) in layers.iter().enumerate() {
        let (file, into) = (dir.join(format!("layer-{i}")), dir.join(format!("fs-{i}")));
        fs::write(&file, &layer.stored).unwrap();
        fs::create_dir(into).unwrap();
        files.push(file);
    }
    let start = Instant::now();
    thread::scope(|scope| {
        for (i, file) in files.iter().enumerate() {
            let into = dir.join(format!("fs-{i}"));
            scope.spawn(move || {
                let layer =
                    stoker_runtime::unpack::Layer { compression: Compression::Detect, lowest: i == 0, most: 4 << 30 };
                unpack(File::open(file).unwrap(), layer, &into).unwrap();
            });
        }
    });
    start.elapsed()
}

#[test]
#[ignore = "a measurement of a minute or more"]
fn speed_beside_containerd() {
    let tree = std::env::var_os("STOKER_SPEED_TREE").map_or_else(|| PathBuf::from("/usr/lib"), PathBuf::from);
    for (parts, media_type) in [(1, GZIP), (4, GZIP), (1, ZSTD), (4, ZSTD)] {
        let layers: Vec<Layer> = trees(&tree, parts).into_iter().map(|plain| layer(media_type, plain)).collect();
        let sum = |bytes: fn(&Layer) -> usize| layers.iter().map(bytes).sum::<usize>() >> 20;
        let what = format!(
            "{} layers, {} MiB, {} MiB stored as {media_type}",
            layers.len(),
            sum(|l| l.plain.len()),
            sum(|l| l.stored.len())
        );
        for round in 1..=ROUNDS {
            let dir = scratch();
            let ours = ours(&layers, dir.path());
            let dir = scratch();
            let Some(daemon) = Daemon::start(dir.path()) else { return };
            let theirs = daemon.time_unpack(&layers);
            println!("{what}, round {round}: ours {ours:.2?}, containerd {theirs:.2?}");
        }
    }
}

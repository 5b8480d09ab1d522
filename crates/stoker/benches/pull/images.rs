//! The images: files of this machine, about 400 MB of them, in one or in eight layers.

use std::fs;
use std::path::{Path, PathBuf};

use stoker_testbed::image::{Compression, Image, ImageBuilder, Layer, LayerBuilder, busybox};

use crate::Outcome;

const SIZE: u64 = 400_000_000;

/// Files below these folders, in a fixed order.
const FOLDERS: &[&str] = &["/usr/lib", "/usr/bin", "/usr/share", "/usr/local"];

pub(crate) struct Images {
    pub(crate) one: Image,
    pub(crate) eight: Image,
    /// The same as `eight` but for its last layer.
    pub(crate) eight_later: Image,
}

pub(crate) fn make() -> Outcome<Images> {
    let mut files = Vec::new();
    let mut left = SIZE;
    for folder in FOLDERS {
        gather(Path::new(folder), &mut files, &mut left)?;
    }
    let one = layers(&files, 1)?;
    let mut eight = layers(&files, 8)?;
    let image = |layers: &[Layer]| layers.iter().fold(ImageBuilder::new(), ImageBuilder::layer).build();
    let (one, all) = (image(&one), image(&eight));
    eight.pop();
    eight.push(LayerBuilder::new().noise("opt/later", 40_000_000, 2).build(Compression::Gzip)?);
    Ok(Images { one, eight: all, eight_later: image(&eight) })
}

fn gather(folder: &Path, files: &mut Vec<(PathBuf, u64)>, left: &mut u64) -> Outcome<()> {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    entries.sort();
    for path in entries {
        if *left == 0 {
            return Ok(());
        }
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        if meta.is_dir() {
            gather(&path, files, left)?;
        } else if meta.is_file() && meta.len() < 50_000_000 {
            *left = left.saturating_sub(meta.len());
            files.push((path, meta.len()));
        }
    }
    Ok(())
}

/// About equally large layers; the base can run.
fn layers(files: &[(PathBuf, u64)], count: u64) -> Outcome<Vec<Layer>> {
    let each = files.iter().map(|(_, size)| size).sum::<u64>() / count + 1;
    let mut made = Vec::new();
    let mut layer = busybox()?;
    let mut size = 0;
    for (path, length) in files {
        let name = path.to_str().ok_or("a file name is no text")?.trim_start_matches('/');
        layer = layer.file(&format!("data/{name}"), fs::read(path)?);
        size += length;
        if size >= each && made.len() as u64 + 1 < count {
            made.push(layer.build(Compression::Gzip)?);
            (layer, size) = (LayerBuilder::new(), 0);
        }
    }
    made.push(layer.build(Compression::Gzip)?);
    Ok(made)
}

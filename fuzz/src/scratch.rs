//! Room on disk for one input. An error of the disk ends the run: it would hide what is looked for.

use std::fs::File;
use std::io;
use std::path::Path;

/// An empty file.
pub fn with_file(oracle: impl FnOnce(&File) -> io::Result<()>) {
    let file = tempfile::tempfile().expect("cannot make a file in TMPDIR");
    oracle(&file).expect("the disk failed");
}

/// An empty directory.
pub fn with_dir(oracle: impl FnOnce(&Path) -> io::Result<()>) {
    let dir = tempfile::tempdir().expect("cannot make a directory in TMPDIR");
    oracle(dir.path()).expect("the disk failed");
}

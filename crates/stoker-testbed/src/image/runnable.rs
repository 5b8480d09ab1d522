//! A layer that can run: busybox-static of this machine, with its applets as symbolic links.

use std::fs;

use super::layer::LayerBuilder;

const APPLETS: &[&str] = &[
    "cat",
    "echo",
    "find",
    "id",
    "ls",
    "md5sum",
    "readlink",
    "sh",
    "sha256sum",
    "sleep",
    "sort",
    "stat",
    "true",
    "wc",
];
const PLACES: [&str; 2] = ["/bin/busybox", "/usr/bin/busybox"];

/// There is no busybox that runs alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no statically linked busybox on this machine; install busybox-static")]
pub struct NoBusybox;

/// A layer with /bin/busybox and links to it in /bin.
pub fn busybox() -> Result<LayerBuilder, NoBusybox> {
    let program = PLACES.iter().find_map(|place| fs::read(place).ok()).filter(|program| runs_alone(program));
    let layer = LayerBuilder::new().dir("bin").file("bin/busybox", program.ok_or(NoBusybox)?).mode(0o755);
    Ok(APPLETS.iter().fold(layer, |layer, applet| layer.symlink(&format!("bin/{applet}"), "busybox")))
}

/// A program that needs a loader names it near its beginning.
fn runs_alone(program: &[u8]) -> bool {
    let start = &program[..program.len().min(4096)];
    !start.windows(8).any(|window| window == b"ld-linux" || window == b"/ld-musl")
}

//! `stoker verify`: every blob of image layouts hashed again, on demand. It changes nothing, and needs no cluster.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use stoker_core::human;
use stoker_runtime::Layout;
use stoker_runtime::layout::Verified;

use crate::cli::VerifyArgs;
use crate::out::{errln, out};

/// The exit code of clap for arguments that make no sense.
const WRONG_USAGE: u8 = 2;

/// A layout, and whose it is.
struct NodeLayout {
    layout: Layout,
    /// The node of `stoker up` whose images these are.
    node: Option<String>,
}

impl NodeLayout {
    fn label(&self) -> String {
        self.node.clone().unwrap_or_else(|| self.layout.dir().display().to_string())
    }
}

/// Exit code 0 if everything is right, 1 if not, 2 if there is nothing to look at.
pub(crate) async fn run(args: VerifyArgs) -> anyhow::Result<ExitCode> {
    let stores = find(&args.data)?;
    if stores.is_empty() {
        errln!(
            "error: there is no image layout in {0}; give the --data directory of `stoker up` or `stoker agent`, or a layout \
             itself (it has a file oci-layout). Images that went into containerd are not below --data",
            args.data.display()
        );
        return Ok(WRONG_USAGE.into());
    }
    let mut good = true;
    for store in &stores {
        let bar = bar(&store.label());
        let verified = store.layout.verify(|done, total| {
            bar.set_length(total);
            bar.set_position(done);
        });
        let verified = verified.await;
        bar.finish_and_clear();
        match verified {
            Ok(verified) => {
                good &= verified.is_good();
                out!("{}", told(store, &verified));
            }
            // The other stores are looked at all the same.
            Err(problem) => {
                good = false;
                out!("{}: {problem}\n", store.label());
            }
        }
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The layouts of a directory: itself, that of an agent, or those of all nodes of `stoker up`.
fn find(data: &Path) -> anyhow::Result<Vec<NodeLayout>> {
    let layout = |dir: PathBuf| Layout::existing(dir).ok();
    if let Some(layout) = layout(data.to_owned()).or_else(|| layout(data.join("images"))) {
        return Ok(vec![NodeLayout { layout, node: None }]);
    }
    let mut names: Vec<String> = match std::fs::read_dir(data.join("nodes")) {
        Ok(nodes) => nodes
            .map(|node| node.map(|node| node.file_name().to_string_lossy().into_owned()))
            .collect::<Result<_, _>>()?,
        Err(_) => Vec::new(),
    };
    // node-2 before node-10.
    names.sort_by_key(|name| (name.len(), name.clone()));
    let store = |name: String| {
        let layout = layout(data.join("nodes").join(&name).join("images"))?;
        Some(NodeLayout { layout, node: Some(name) })
    };
    Ok(names.into_iter().filter_map(store).collect())
}

/// How far it is, on a terminal.
fn bar(label: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{prefix} {bar:24.green} {binary_bytes:>11} of {binary_total_bytes:<11} {binary_bytes_per_sec}";
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(0).with_style(style.progress_chars("━━ ")).with_prefix(label.to_owned())
}

/// What was found, and what to do about it.
fn told(store: &NodeLayout, verified: &Verified) -> String {
    let Verified { blobs, bytes, images, damaged, missing } = verified;
    let mut text = format!("{}: {images} images, {blobs} blobs, {}: ", store.label(), human::bytes(*bytes));
    if verified.is_good() {
        return text + "every sha256 is right\n";
    }
    // Writing to a String does not fail.
    let _ = writeln!(text, "{} damaged, {} missing", damaged.len(), missing.len());
    let mut mend = BTreeSet::new();
    for blob in damaged {
        let _ = writeln!(text, "  damaged: {} ({}): {}", blob.digest, human::bytes(blob.size), blob.why);
        let _ = writeln!(text, "    file: {}", blob.path.display());
        let _ = match blob.images.is_empty() {
            true => writeln!(text, "    needed by no image: delete the file"),
            false => writeln!(text, "    needed by: {}", blob.images.join(", ")),
        };
        mend.extend(&blob.images);
    }
    for lack in missing {
        let _ = writeln!(text, "  missing: {} of {}", lack.what, lack.image);
        mend.insert(&lack.image);
    }
    let mend: Vec<&str> = mend.into_iter().map(String::as_str).collect();
    let _ = match (mend.is_empty(), &store.node) {
        (true, _) => Ok(()),
        (false, Some(node)) => {
            writeln!(text, "  to fetch them again: stoker pull {} --node {node}", mend.join(" "))
        }
        (false, None) => writeln!(text, "  to fetch them again: preheat {} on this node", mend.join(" ")),
    };
    text
}

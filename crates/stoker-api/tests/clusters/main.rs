//! Every file below `tests/fixtures/kruise-nodes/`, `kruise-jobs/` and `ofen/` is a small cluster, taken through a View and a World with agents
//! that answer at once: drop a file in and you have a test. What stands below a line `# Then:` is added to it or takes the place of what was there
//! before; `# Then, 1h later:` lets time pass; `# Then gone:` takes objects away; `# Then removed from n1:` takes all images away from that node.
//! `# Half:` at the top means that upstream's manager goes on, `# Peers:` that nodes read from each other. An
//! image with `slow`, `broken` or `mute` in its name is pulled for ever, fails, or is never heard of; one with `broken-on-n2` fails on that
//! node. The snapshots say what is written to NodeImages, to jobs or to objects of ofen, and their Events, stage by stage. After each stage a
//! controller that starts anew has nothing to write.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bed;
mod mended;

use std::path::Path;

use bed::{Bed, shown, shown_of_jobs, shown_of_ofen};
use jiff::SignedDuration;
use stoker_api::Write;

fn walk(text: &str, shows: fn(&Write) -> String) -> String {
    let mut bed = Bed::new(text.starts_with("# Half:"), shows);
    if text.starts_with("# Peers:") {
        bed.relay();
    }
    let mut stage = String::new();
    let mut header = String::new();
    for line in text.lines().chain(["# Then:"]) {
        if !line.starts_with("# Then") {
            stage += &format!("{line}\n");
            continue;
        }
        if let Some((_, later)) = header.split_once(", ") {
            let later: SignedDuration = later.trim_end_matches(" later:").parse().unwrap();
            bed.now += later;
        }
        bed.said += &format!("=== {} {}\n", header.trim_start_matches("# "), bed.now);
        if let Some((_, node)) = header.split_once(" removed from ") {
            bed.remove_images(node.trim_end_matches(':'));
        }
        bed.put(&std::mem::take(&mut stage), !header.contains("gone"));
        bed.rest();
        header = line.to_owned();
    }
    bed.said
}

#[test]
fn nodes() {
    files("kruise-nodes", shown);
}

#[test]
fn jobs() {
    files("kruise-jobs", shown_of_jobs);
}

#[test]
fn ofen() {
    files("ofen", shown_of_ofen);
}

fn files(folder: &str, shows: fn(&Write) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(folder);
    let mut files: Vec<_> = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        insta::assert_snapshot!(format!("{folder}-{name}"), walk(&std::fs::read_to_string(&file).unwrap(), shows));
    }
}

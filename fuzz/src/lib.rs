//! The fuzz targets: a name and a function that takes any bytes and panics where a property is broken.
//!
//! `fuzz_targets/` gives each to libFuzzer, `tests/corpus.rs` gives them the committed corpora and the inputs that once broke one.
//! Oracles of what is private stand in the `fuzzing` module of its crate; here are those that need public items alone. See
//! docs/fuzzing.md.

#![forbid(unsafe_code)]

mod layer;
mod objects;
mod request;
mod scratch;

use std::fs::File;

/// A property that holds for any bytes.
pub type Oracle = fn(&[u8]);

/// All targets. Each has a file in `fuzz_targets/` and a folder in `corpus/`.
pub const TARGETS: &[(&str, Oracle)] = &[
    ("archive", |bytes| stoker_runtime::unpack::fuzzing::archive(&layer::sealed(bytes))),
    ("body", stoker_embedded::fuzzing::body),
    ("challenge", stoker_transfer::fuzzing::challenge),
    ("compression", stoker_runtime::unpack::fuzzing::compression),
    ("explanation", stoker_transfer::fuzzing::explanation),
    ("hosts", stoker_transfer::fuzzing::hosts),
    ("job", objects::job),
    ("journal", |bytes| scratch::with_file(|file: &File| stoker_embedded::fuzzing::journal(bytes, file))),
    ("ledger", |bytes| scratch::with_dir(|dir| stoker_agent::fuzzing::ledger(bytes, dir))),
    ("location", stoker_transfer::fuzzing::location),
    ("manifest", stoker_transfer::fuzzing::manifest),
    ("node_object", objects::node_object),
    ("patch", stoker_embedded::fuzzing::patch),
    ("protobuf", stoker_embedded::fuzzing::protobuf),
    ("pull_secret", stoker_transfer::fuzzing::pull_secret),
    ("quantity", objects::quantity),
    ("query", stoker_embedded::fuzzing::query),
    ("reference", stoker_transfer::fuzzing::reference),
    ("request", request::request),
    ("schema", stoker_embedded::fuzzing::schema),
    ("unpack", layer::unpack),
];

/// Gives bytes to a target.
pub fn run(target: &str, bytes: &[u8]) {
    let found = TARGETS.iter().find(|(name, _)| *name == target);
    let (_, oracle) = found.unwrap_or_else(|| panic!("there is no target {target:?}"));
    oracle(bytes);
}

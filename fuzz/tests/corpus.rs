//! Gives every target its committed inputs: `corpus/`, which libFuzzer found and minimised, and `regressions/`, which broke a
//! property once. A panic names the file.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use stoker_fuzz::TARGETS;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_target_has_a_program_and_a_corpus() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|(name, _)| name.to_string()).collect();
    let programs = names(&folder("fuzz_targets"));
    assert_eq!(programs, targets.iter().map(|name| format!("{name}.rs")).collect());
    assert_eq!(names(&folder("corpus")), targets);
    assert!(names(&folder("regressions")).is_subset(&targets));
}

#[test]
fn every_input_keeps_the_properties() {
    let mut broken = Vec::new();
    for (target, oracle) in TARGETS {
        for kind in ["corpus", "regressions"] {
            for name in names(&folder(kind).join(target)) {
                let bytes = fs::read(folder(kind).join(target).join(&name)).unwrap();
                if catch_unwind(AssertUnwindSafe(|| oracle(&bytes))).is_err() {
                    broken.push(format!("fuzz/{kind}/{target}/{name}"));
                }
            }
        }
        assert!(!names(&folder("corpus").join(target)).is_empty(), "{target} has no corpus");
    }
    assert!(broken.is_empty(), "inputs break a property, see above: {broken:#?}");
}

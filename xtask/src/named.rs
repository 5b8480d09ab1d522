//! Tests that documents name: each must exist in the crate and the module that the document says, so that no line promises what nothing
//! holds. In: the tables of a document and the sources of all crates. Out: the names that no test has.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::shell;

/// The documents with tables that name a test on each line, in a last column of this name.
const DOCUMENTS: [&str; 3] = ["docs/security.md", "docs/migrate-from-openkruise.md", "docs/migrate-from-ofen.md"];
const COLUMN: &str = "test";

/// Says which tests are named and not there.
pub(crate) fn check() -> anyhow::Result<()> {
    let root = shell::root();
    let mut sources = Sources::default();
    sources.read(&root.join("crates"))?;
    for document in DOCUMENTS {
        let text = fs::read_to_string(root.join(document)).context(document)?;
        let missing = missing(&text, &sources);
        if !missing.is_empty() {
            bail!("{document} names tests that are not there: {}", missing.join(", "));
        }
    }
    Ok(())
}

/// The sources of all crates.
#[derive(Default)]
struct Sources(Vec<SourceFile>);

/// What one file defines, and where it is.
struct SourceFile {
    /// Folders and file below `crates`, without the ending: `stoker`, `tests`, `it`, `pull`.
    path: Vec<String>,
    functions: BTreeSet<String>,
    modules: BTreeSet<String>,
}

impl Sources {
    fn read(&mut self, folder: &Path) -> anyhow::Result<()> {
        self.read_below(folder, &[])
    }

    fn read_below(&mut self, folder: &Path, above: &[String]) -> anyhow::Result<()> {
        for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let below = [above, &[name]].concat();
            if path.is_dir() {
                self.read_below(&path, &below)?;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                self.add(below, &text);
            }
        }
        Ok(())
    }

    fn add(&mut self, path: Vec<String>, text: &str) {
        let named = |word: &str| -> BTreeSet<String> {
            let ends = |rest: &str| rest.find(|c: char| !is_of_a_name(c)).unwrap_or(rest.len());
            text.split(word).skip(1).filter_map(|rest| rest.get(..ends(rest))).map(str::to_owned).collect()
        };
        self.0.push(SourceFile { path, functions: named("fn "), modules: named("mod ") });
    }

    /// Whether there is such a test, or with `*` such a module, in this crate and this folder of tests, where they are given.
    fn have(&self, place: &TestPlace, name: &str) -> bool {
        let mut modules: Vec<&str> = name.split("::").collect();
        let Some(test) = modules.pop() else { return false };
        self.0.iter().filter(|file| file.is_in(place)).any(|file| match test {
            "*" => file.is_module(&modules),
            // A file of tests, or a module, may stand for all tests in it.
            _ if modules.is_empty() && file.is_module(&[test]) => true,
            _ => file.functions.contains(test) && file.is_module(&modules),
        })
    }
}

impl SourceFile {
    fn is_in(&self, TestPlace { of_crate, tests }: &TestPlace) -> bool {
        let is_crate = |name: &String| {
            let own = self.path.first().map(String::as_str).unwrap_or_default();
            own == name || own.strip_prefix("stoker-") == Some(name)
        };
        of_crate.as_ref().is_none_or(is_crate)
            && tests.as_ref().is_none_or(|tests| self.path.get(1..3) == Some(&["tests".to_owned(), tests.clone()]))
    }

    /// Whether these modules lead to this file or into it: each is a folder, the file, or a module in the file, one below the other.
    fn is_module(&self, modules: &[&str]) -> bool {
        let mut path = self.path.iter().skip(1);
        modules.iter().all(|module| path.any(|part| part == module) || self.modules.contains(*module))
    }
}

/// Where a test is: `stoker, cluster` is the crate `stoker` and its tests in `cluster`.
#[derive(Clone, Default)]
struct TestPlace {
    of_crate: Option<String>,
    tests: Option<String>,
}

impl TestPlace {
    /// What the words before a name say, if they say a place.
    fn said(words: &str) -> Option<Self> {
        let words = words.strip_suffix(": ")?.rsplit("; ").next()?.trim();
        let (of_crate, tests) = words.split_once(", ").map_or((words, None), |(one, other)| (one, Some(other)));
        let is_name = |word: &str| !word.is_empty() && word.chars().all(is_of_a_name);
        let tests = tests.map(str::to_owned).filter(|tests| is_name(tests));
        is_name(of_crate).then(|| Self { of_crate: Some(of_crate.to_owned()), tests })
    }
}

fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The tests in the last column of the document's tables that are not there.
fn missing(document: &str, sources: &Sources) -> Vec<String> {
    let rows = document.lines().map(|line| line.strip_prefix('|')?.strip_suffix('|')?.rsplit('|').next());
    // A line that is in no table ends the table before it.
    let of_tests = rows.scan(None, |table, cell| {
        *table = cell.map(|cell| table.unwrap_or(cell.trim() == COLUMN));
        Some(cell.filter(|_| *table == Some(true)))
    });
    of_tests.flatten().flat_map(|cell| missing_in(cell, sources)).collect()
}

fn missing_in(cell: &str, sources: &Sources) -> Vec<String> {
    let (mut place, mut missing) = (TestPlace::default(), Vec::new());
    let mut parts = cell.split('`');
    while let (Some(words), Some(name)) = (parts.next(), parts.next()) {
        // Fuzz targets and fixtures are no tests.
        if words.contains("fuzz target") || words.contains("fixture") {
            continue;
        }
        place = TestPlace::said(words).unwrap_or(place);
        // `unpack: hostile::*` says in which folder of tests.
        let (place, name) = match name.split_once(": ") {
            Some((tests, name)) => (TestPlace { tests: Some(tests.to_owned()), ..place.clone() }, name),
            None => (place.clone(), name),
        };
        let is_path = name.chars().all(|c| is_of_a_name(c) || c == ':' || c == '*');
        if is_path && !sources.have(&place, name) {
            missing.push(name.to_owned());
        }
    }
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources() -> Sources {
        let mut sources = Sources::default();
        let path = |path: &str| path.split('/').map(str::to_owned).collect();
        let text = "mod sealed { #[test]\n fn a_login_is_sealed() {} }\nasync fn nobody_waits() {}";
        sources.add(path("stoker-core/src/late"), text);
        sources.add(path("stoker/tests/it/late"), "fn nobody_waits() {}\nfn it_ends() {}");
        sources.add(path("stoker/tests/cluster/nodes"), "fn a_node_comes() {}");
        sources
    }

    #[test]
    fn a_test_that_is_gone_is_named() {
        let table = "| it cannot | test |\n|---|---|\n| read `secrets` | core: `sealed::*`, `sealed::a_login_is_sealed` |\n\
                     | wait | `nobody_waits`; stoker: `it: late::nobody_waits`; the fuzz target `sealed`; core: `late` |\n\
                     | hide | `hidden::*`, `sealed::nobody_hides` |\n`elsewhere::*`\n| flag | default |\n|---|---|\n| a | `none` |";
        assert_eq!(missing(table, &sources()), ["hidden::*", "sealed::nobody_hides"]);
    }

    #[test]
    fn a_test_that_is_elsewhere_is_named() {
        for (cell, gone) in [
            ("stoker, it: `late::it_ends`", None),
            ("stoker, it: `late::nobody_waits`; core: `late::nobody_waits`", None),
            ("stoker: `late::it_ends`, `nodes::a_node_comes`", None),
            // Another module, another folder of tests, another crate.
            ("stoker, it: `early::it_ends`", Some("early::it_ends")),
            ("stoker, cluster: `late::it_ends`", Some("late::it_ends")),
            ("stoker, it: `late::it_ends`, `nodes::a_node_comes`", Some("nodes::a_node_comes")),
            ("core: `late::it_ends`", Some("late::it_ends")),
            ("core: `sealed::it_ends`; stoker, it: `it_ends`", Some("sealed::it_ends")),
        ] {
            assert_eq!(missing_in(cell, &sources()), Vec::from_iter(gone.map(str::to_owned)), "{cell}");
        }
    }
}

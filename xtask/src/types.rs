//! Names of types: a name that two types of one crate share is read wrongly sooner or later, and so is one that two public types of the
//! product share. In: the sources of all crates. Out: the names that are there twice. Only types at the top level of a file count: those
//! in a `mod tests` or in a function are seen by nobody else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};

use crate::shell;

/// What is shipped. Public types of these crates meet each other.
const PRODUCT: [&str; 7] =
    ["stoker", "stoker-agent", "stoker-api", "stoker-controller", "stoker-core", "stoker-runtime", "stoker-transfer"];

/// Names that every module may have, and that are written with its path where another one is near.
const OF_MODULES: [&str; 5] = ["Error", "Limits", "Metrics", "Options", "Settings"];

/// Types on the wire that two APIs call the same.
const OF_TWO_APIS: [&str; 2] = ["ImageSpec", "PullPolicy"];

/// Says which names are there twice.
pub(crate) fn check() -> anyhow::Result<()> {
    let root = shell::root();
    let mut types = Types::default();
    for entry in fs::read_dir(root.join("crates")).context("crates")? {
        let path = entry?.path();
        types.read(&path.file_name().unwrap_or_default().to_string_lossy(), &path.join("src"))?;
    }
    for name in ["fuzz", "xtask"] {
        types.read(name, &root.join(name).join("src"))?;
    }
    let twice = types.twice();
    if !twice.is_empty() {
        bail!("types that share a name (ARCHITECTURE.md, Glossary, says which may):\n{}", twice.join("\n"));
    }
    Ok(())
}

/// Types by name, each with its crate and file.
#[derive(Default)]
struct Types {
    all: BTreeMap<(String, String), Vec<String>>,
    public: BTreeMap<String, BTreeSet<String>>,
}

impl Types {
    fn read(&mut self, of: &str, folder: &Path) -> anyhow::Result<()> {
        for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            // What protoc made is named as its messages are.
            if path.is_dir() && !path.ends_with("wire") {
                self.read(of, &path)?;
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                self.add(of, &path.display().to_string(), &text);
            }
        }
        Ok(())
    }

    fn add(&mut self, of: &str, file: &str, text: &str) {
        for (name, public) in text.lines().filter_map(type_of) {
            self.all.entry((of.into(), name.into())).or_default().push(file.into());
            if public && PRODUCT.contains(&of) {
                self.public.entry(name.into()).or_default().insert(of.into());
            }
        }
    }

    /// A line for each name that is there twice and may not be.
    fn twice(&self) -> Vec<String> {
        let may = |name: &str| OF_MODULES.contains(&name) || OF_TWO_APIS.contains(&name);
        let within = self.all.iter().filter(|((_, name), files)| files.len() > 1 && !may(name));
        let within = within.map(|((of, name), files)| format!("{name} in {of}: {}", files.join(", ")));
        let between = self.public.iter().filter(|(name, crates)| crates.len() > 1 && !may(name));
        let between = between.map(|(name, crates)| {
            let crates: Vec<&str> = crates.iter().map(String::as_str).collect();
            format!("{name}, public in {}", crates.join(" and "))
        });
        within.chain(between).collect()
    }
}

/// The name of the type that a line at the top level defines, and whether everybody sees it.
fn type_of(line: &str) -> Option<(&str, bool)> {
    let mut rest = line;
    let public = line.starts_with("pub ");
    if let Some(after) = line.strip_prefix("pub") {
        let after =
            after.strip_prefix('(').map_or(Some(after), |scope| scope.split_once(')').map(|(_, after)| after))?;
        rest = after.strip_prefix(' ')?;
    }
    let words = ["struct ", "enum ", "union ", "trait ", "type "];
    let name = words.iter().find_map(|word| rest.strip_prefix(word))?;
    let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(name.len());
    Some((name.get(..end)?, public))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_define_types_are_known() {
        for (line, found) in [
            ("struct Seat {", Some(("Seat", false))),
            ("pub struct Seat<'a>(u8);", Some(("Seat", true))),
            ("pub(crate) enum Seat {", Some(("Seat", false))),
            ("pub(in crate::a) type Seat = u8;", Some(("Seat", false))),
            ("pub trait Seat: Sized {", Some(("Seat", true))),
            ("    struct Seat;", None),
            ("pub fn struct_of() {}", None),
            ("// struct Seat", None),
            ("public struct Seat", None),
        ] {
            assert_eq!(type_of(line), found, "{line}");
        }
    }

    #[test]
    fn names_that_are_there_twice_are_said() {
        let mut types = Types::default();
        types.add("stoker-core", "a.rs", "pub struct Seat;\nstruct Lane;\npub enum Error {}\n");
        types.add("stoker-core", "b.rs", "enum Lane {}\npub enum Error {}\nmod tests {\n    struct Seat;\n}\n");
        types.add("stoker-api", "c.rs", "pub(crate) struct Seat;\nstruct Lane;\n");
        assert_eq!(types.twice(), ["Lane in stoker-core: a.rs, b.rs"]);
        types.add("stoker-testbed", "d.rs", "pub struct Seat;\n");
        assert_eq!(types.twice().len(), 1, "nothing of it is shipped");
        types.add("stoker-agent", "e.rs", "pub struct Seat;\n");
        assert_eq!(types.twice()[1], "Seat, public in stoker-agent and stoker-core");
    }
}

//! Whether programs judge images on this node. In: where containerd looks for such programs. Out: why images must go by
//! containerd's own pull, which is the only one that asks these programs.
//!
//! What cannot be seen counts as a program: an agent that went past a verifier would bring an image that the node refuses.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use super::sight::VisibleFiles;

/// The plugin of containerd 2 that runs programs of a directory.
const KNOWN: &str = "bindir";

/// Where containerd looks, at each pull, for programs that judge images.
#[derive(Debug, Clone)]
pub(super) struct Verifiers {
    /// The ids of containerd's plugins for image verification.
    pub(super) plugins: Vec<String>,
    /// The directories; `None` where containerd's settings could not be read completely.
    pub(super) places: Option<Vec<PathBuf>>,
    pub(super) sight: VisibleFiles,
}

impl Verifiers {
    /// Why images must go by containerd's own pull, if they must. Programs may come at any time, so this looks each time.
    pub(super) fn why(&self) -> Option<String> {
        if let Some(other) = self.plugins.iter().find(|id| *id != KNOWN) {
            return Some(format!("its plugin {other} judges images, and only its own pull asks it"));
        }
        if self.plugins.is_empty() {
            return None;
        }
        let Some(places) = &self.places else {
            return Some(
                "this agent cannot read all of its settings, which may name programs that judge images; `stoker install \
                 --runtime-config DIR` and `--host-dir DIR` show directories of the nodes to agents"
                    .into(),
            );
        };
        places.iter().find_map(|place| {
            let shown = place.display();
            if !self.sight.covers(place) {
                return Some(format!(
                    "programs in {shown} may judge images, and this agent cannot see that directory of the node; `stoker \
                     install --host-dir {shown}` shows it to agents"
                ));
            }
            match fs::read_dir(place).map(|mut entries| entries.next().is_some()) {
                Ok(false) => None,
                Ok(true) => Some(format!("programs in {shown} judge images, and only its own pull asks them")),
                Err(problem) if problem.kind() == ErrorKind::NotFound => None,
                Err(problem) => Some(format!("programs in {shown} may judge images, and it cannot be read: {problem}")),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn verifiers(places: Option<Vec<PathBuf>>, sight: VisibleFiles) -> Verifiers {
        Verifiers { plugins: vec![KNOWN.into()], places, sight }
    }

    #[test]
    fn programs_that_judge_images_are_seen_when_they_come() {
        let dir = tempfile::tempdir().unwrap();
        let judges = dir.path().join("bin");
        let found = verifiers(Some(vec![dir.path().join("none"), judges.clone()]), VisibleFiles::whole());
        assert_eq!(found.why(), None, "there is no such directory");
        fs::create_dir(&judges).unwrap();
        assert_eq!(found.why(), None, "nobody judges");
        fs::write(judges.join("judge"), "").unwrap();
        assert!(found.why().unwrap().contains(&format!("programs in {} judge images", judges.display())));
        assert_eq!(Verifiers { plugins: Vec::new(), ..found }.why(), None, "this containerd asks nobody");
    }

    #[test]
    fn what_cannot_be_seen_counts_as_a_program() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let (mount, unseen) = (dir.join("mount"), dir.join("unseen"));
        fs::create_dir(&mount).unwrap();
        let sight = VisibleFiles::through(&[&mount]);
        assert_eq!(verifiers(Some(vec![mount.join("bin")]), sight.clone()).why(), None, "it would be seen");
        // Missing here, and maybe not for containerd; the same where this pod has an empty directory of that name.
        for _ in 0..2 {
            let why = verifiers(Some(vec![mount.join("bin"), unseen.clone()]), sight.clone()).why().unwrap();
            assert!(why.contains(&format!("--host-dir {}", unseen.display())), "{why}");
            fs::create_dir_all(&unseen).unwrap();
        }
        fs::write(mount.join("bin"), "this is no directory").unwrap();
        assert!(verifiers(Some(vec![mount.join("bin")]), sight).why().unwrap().contains("cannot be read"));
        assert!(verifiers(Some(vec!["judges".into()]), VisibleFiles::whole()).why().is_some(), "from whose directory?");
        assert!(verifiers(None, VisibleFiles::whole()).why().unwrap().contains("--runtime-config"));
    }

    #[test]
    fn a_plugin_that_is_not_known_is_asked_too() {
        let plugins = vec![KNOWN.into(), "notary".into()];
        let found = Verifiers { plugins, places: Some(vec![Path::new("/none").into()]), sight: VisibleFiles::whole() };
        assert!(found.why().unwrap().contains("notary"));
    }
}

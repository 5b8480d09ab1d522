//! Writes of roots that are under way. A root is projected again only when all its writes have ended: so each projection sees what
//! the one before has done, and one that failed is made anew instead of being sent again.

use std::collections::BTreeMap;

use stoker_api::view::Root;

/// Writes under way, by number, and how many a root has.
#[derive(Debug, Default)]
pub(crate) struct Due {
    writes: BTreeMap<u64, Root>,
    busy: BTreeMap<Root, usize>,
}

impl Due {
    /// Whether a write of this root is under way.
    pub(crate) fn is_busy(&self, root: &Root) -> bool {
        self.busy.contains_key(root)
    }

    /// A write of this root was handed out.
    pub(crate) fn hand_out(&mut self, root: &Root, number: u64) {
        self.writes.insert(number, root.clone());
        *self.busy.entry(root.clone()).or_default() += 1;
    }

    /// A write has ended. Returns whose it was.
    pub(crate) fn end(&mut self, number: u64) -> Option<Root> {
        let root = self.writes.remove(&number)?;
        if let Some(left) = self.busy.get_mut(&root) {
            *left -= 1;
            if *left == 0 {
                self.busy.remove(&root);
            }
        }
        Some(root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_busy_until_its_last_write_has_ended() {
        let root =
            |name: &str| Root { kind: &stoker_api::native::PREHEATS, namespace: "shop".into(), name: name.into() };
        let mut due = Due::default();
        due.hand_out(&root("web"), 1);
        due.hand_out(&root("web"), 2);
        due.hand_out(&root("db"), 3);
        assert_eq!(due.end(1), Some(root("web")));
        assert!(due.is_busy(&root("web")) && due.is_busy(&root("db")));
        assert_eq!(due.end(2), Some(root("web")));
        assert!(!due.is_busy(&root("web")) && due.is_busy(&root("db")));
        assert_eq!(due.end(2), None);
    }
}

//! What many rows have in common, each once.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{NodeImageRow, Said, TagSpec};

/// What many rows have in common, each once.
#[derive(Clone, Debug, Default)]
pub struct Interned {
    specs: BTreeSet<Arc<TagSpec>>,
    said: BTreeSet<Arc<Said>>,
    keys: BTreeSet<Arc<str>>,
    /// Entries that were left the last time that unused ones were dropped.
    left: usize,
}

impl Interned {
    /// Replaces what a row holds by what others hold already, where that is the same.
    pub(crate) fn intern(&mut self, row: &mut NodeImageRow) {
        once(&mut self.keys, &mut row.label_keys);
        for tag in &mut row.tags {
            once(&mut self.specs, &mut tag.spec);
            if let Some(said) = &mut tag.said {
                once(&mut self.said, said);
            }
        }
        let all = self.specs.len() + self.said.len() + self.keys.len();
        if all > 1024 + 2 * self.left {
            self.specs.retain(|one| Arc::strong_count(one) > 1);
            self.said.retain(|one| Arc::strong_count(one) > 1);
            self.keys.retain(|one| Arc::strong_count(one) > 1);
            self.left = self.specs.len() + self.said.len() + self.keys.len();
        }
    }
}

fn once<T: Ord + ?Sized>(all: &mut BTreeSet<Arc<T>>, one: &mut Arc<T>) {
    match all.get(&**one) {
        Some(known) => *one = known.clone(),
        None => {
            all.insert(one.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::keep;
    use super::*;
    use crate::view::Row;
    use serde_json::json;

    #[test]
    fn what_many_nodes_share_is_kept_once() {
        let object = serde_json::from_value(json!({
            "apiVersion": "apps.kruise.io/v1beta1", "kind": "NodeImage", "metadata": { "name": "n1", "uid": "u", "resourceVersion": "7" },
            "spec": { "images": { "nginx": { "tags": [{ "tag": "a", "version": 3 }] } } },
            "status": { "desired": 1, "imageStatuses": { "nginx": { "tags": [
                { "tag": "a", "version": 3, "phase": "Succeeded", "imageID": "x@y" },
            ] } } },
        }));
        let object: kube_core::dynamic::DynamicObject = object.unwrap();
        let mut interned = Interned::default();
        let rows = [0, 1].map(|_| {
            let Row::NodeImage(mut row) = keep(object.clone()) else { panic!("no row") };
            interned.intern(&mut row);
            row
        });
        assert!(Arc::ptr_eq(&rows[0].tags[0].spec, &rows[1].tags[0].spec));
        assert!(Arc::ptr_eq(rows[0].tags[0].said.as_ref().unwrap(), rows[1].tags[0].said.as_ref().unwrap()));
    }
}

//! Where in the file each object's newest JSON stands. In: the changes of each record. Out: those places, and how many bytes of
//! the file are still of use. It never reads the file.

use super::frame::IndexChange;
use crate::store::Place;
use std::collections::BTreeMap;
use std::ops::Range;

/// What a row costs beside names and JSON: quotes, commas, its length, two line ends.
const ROW: u64 = 16;

/// The objects of a journal, by place.
#[derive(Debug, Default, Clone)]
pub(super) struct Index {
    spans: BTreeMap<Place, Range<u64>>,
    live: u64,
}

impl Index {
    /// Takes the changes of the record that begins at `at`.
    pub(super) fn apply(&mut self, at: u64, changes: Vec<IndexChange>) {
        for (place, span) in changes {
            match span {
                Some(span) => self.put(place, at + span.start..at + span.end),
                None => {
                    if let Some(old) = self.spans.remove(&place) {
                        self.live -= weight(&place, &old);
                    }
                }
            }
        }
    }

    fn put(&mut self, place: Place, span: Range<u64>) {
        self.live += weight(&place, &span);
        // The weight of a place is the same with both, so only the spans' lengths matter.
        if let Some(old) = self.spans.get(&place) {
            self.live -= weight(&place, old);
        }
        self.spans.insert(place, span);
    }

    /// Bytes that a file with nothing but these objects would have, nearly.
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// Everything, in the order of the file, so that reading it is one way forward.
    pub(super) fn in_file_order(&self) -> Vec<(Place, Range<u64>)> {
        let mut all: Vec<_> = self.spans.iter().map(|(place, span)| (place.clone(), span.clone())).collect();
        all.sort_unstable_by_key(|(_, span)| span.start);
        all
    }

    /// The same objects in a new file: what stood before `from` is where `snapshot` says, the rest moved from `from` to `to`.
    /// `None` where the snapshot lacks one, which only a defect can cause.
    pub(super) fn moved(&self, snapshot: &Index, from: u64, to: u64) -> Option<Index> {
        let mut moved = Index::default();
        for (place, span) in &self.spans {
            let span = match span.start >= from {
                true => span.start - from + to..span.end - from + to,
                false => snapshot.spans.get(place)?.clone(),
            };
            moved.put(place.clone(), span);
        }
        Some(moved)
    }
}

fn weight(place: &Place, span: &Range<u64>) -> u64 {
    let names = place.table.len() + place.key.namespace.len() + place.key.name.len();
    names as u64 + (span.end - span.start) + ROW
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Key;

    fn place(name: &str) -> Place {
        Place { table: "t".to_owned(), key: Key::new("", name) }
    }

    #[test]
    fn it_weighs_what_is_there_and_moves_it() {
        let mut index = Index::default();
        index.apply(100, vec![(place("a"), Some(10..20)), (place("b"), Some(30..40))]);
        let two = index.live();
        index.apply(200, vec![(place("a"), Some(10..20)), (place("gone"), None)]);
        assert_eq!(index.live(), two, "an object that was replaced weighs once");
        let order: Vec<_> = index.in_file_order().into_iter().map(|(place, span)| (place.key.name, span)).collect();
        assert_eq!(order, [("b".to_owned(), 130..140), ("a".to_owned(), 210..220)]);

        let mut snapshot = Index::default();
        snapshot.apply(0, vec![(place("a"), Some(1..11)), (place("b"), Some(12..22))]);
        let moved = index.moved(&snapshot, 200, 50).unwrap().in_file_order();
        assert_eq!(moved, [(place("b"), 12..22), (place("a"), 60..70)]);
        assert!(index.moved(&Index::default(), 200, 50).is_none());

        index.apply(300, vec![(place("a"), None), (place("b"), None)]);
        assert_eq!(index.live(), 0);
    }
}

//! The sources of one fetch: from where those who want the blob let it come.
//!
//! Sources join, fail, and go when nobody wants the blob from them any more; the one to use now goes out. What was allowed for one image is used for its
//! sake alone: when its pull ends, a fetch that others follow goes on from their sources.

use std::sync::{Arc, Weak};

use tokio_util::sync::{CancellationToken, DropGuard};

use super::BlobSource;

/// Somebody wants the blob from a source, as long as this or a clone of it is held.
#[derive(Debug, Clone)]
pub(crate) struct SourceHold {
    _guard: Arc<DropGuard>,
}

/// The source to use now.
#[derive(Debug, Clone)]
pub(crate) struct CurrentSource {
    pub(crate) id: u64,
    pub(crate) source: BlobSource,
    gone: CancellationToken,
}

impl CurrentSource {
    /// Whether nobody wants the blob from it any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.is_cancelled()
    }

    /// Ends when nobody wants the blob from it any more.
    pub(crate) async fn goes(&self) {
        self.gone.cancelled().await;
    }

    /// Ends when its registry may not be asked any more, or not for its sake.
    pub(crate) async fn leaves_upstream(&self) {
        tokio::select! {
            () = self.goes() => {}
            () = self.source.leaves_upstream() => {}
        }
    }
}

/// One of the sources.
#[derive(Debug)]
struct JoinedSource {
    /// In the order in which they joined.
    id: u64,
    source: BlobSource,
    held: Weak<DropGuard>,
    gone: CancellationToken,
    failed: bool,
}

impl JoinedSource {
    fn is_usable(&self) -> bool {
        !self.failed && !self.gone.is_cancelled()
    }
}

/// All sources of a fetch that are held, and which of them is in use.
#[derive(Debug, Default)]
pub(crate) struct BlobSources {
    all: Vec<JoinedSource>,
    next: u64,
    /// The source in use, or the one after which the next is looked for.
    at: u64,
}

impl BlobSources {
    /// One more who wants the blob. Whether it brings a source that was not there.
    pub(crate) fn join(&mut self, source: &BlobSource) -> (SourceHold, bool) {
        self.all.retain(|joined| !joined.gone.is_cancelled());
        let same = self.all.iter().find(|joined| joined.source.is_same_way(source));
        if let Some(guard) = same.and_then(|joined| joined.held.upgrade()) {
            return (SourceHold { _guard: guard }, false);
        }
        let gone = CancellationToken::new();
        let guard = Arc::new(gone.clone().drop_guard());
        let held = Arc::downgrade(&guard);
        self.all.push(JoinedSource { id: self.next, source: source.clone(), held, gone, failed: false });
        self.next += 1;
        (SourceHold { _guard: guard }, true)
    }

    /// Those that are held.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &BlobSource> {
        self.all.iter().filter(|joined| !joined.gone.is_cancelled()).map(|joined| &joined.source)
    }

    /// The one to try now; none where all have failed.
    pub(crate) fn current(&self) -> Option<CurrentSource> {
        let mut usable = self.all.iter().filter(|joined| joined.is_usable());
        let first = usable.clone().next();
        let joined = usable.find(|joined| joined.id >= self.at).or(first)?;
        Some(CurrentSource { id: joined.id, source: joined.source.clone(), gone: joined.gone.clone() })
    }

    /// Gives this one up.
    pub(crate) fn fails(&mut self, id: u64) {
        self.all.iter_mut().filter(|joined| joined.id == id).for_each(|joined| joined.failed = true);
        self.at = id;
    }

    /// Tries the others first, and this one again after them.
    pub(crate) fn passes(&mut self, id: u64) {
        self.at = id + 1;
    }

    /// Whether there is another one to try than this.
    pub(crate) fn has_other(&self, id: u64) -> bool {
        self.all.iter().any(|joined| joined.id != id && joined.is_usable())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(image: &str) -> BlobSource {
        BlobSource::new(image.parse().unwrap(), None)
    }

    fn now(sources: &BlobSources) -> Option<String> {
        sources.current().map(|now| now.source.image.repository().to_owned())
    }

    #[test]
    fn sources_take_turns_and_failed_ones_have_none() {
        let mut sources = BlobSources::default();
        assert_eq!(now(&sources), None);
        let holds: Vec<SourceHold> = ["r.io/a", "r.io/b", "r.io/c"].map(|image| sources.join(&source(image)).0).into();
        for expected in ["a", "b", "c", "a", "b"] {
            let current = sources.current().unwrap();
            assert_eq!(now(&sources).as_deref(), Some(expected));
            assert!(sources.has_other(current.id));
            sources.passes(current.id);
        }
        sources.fails(2);
        assert_eq!(now(&sources).as_deref(), Some("a"), "c has failed");
        sources.fails(0);
        assert_eq!(now(&sources).as_deref(), Some("b"));
        assert!(!sources.has_other(1));
        sources.fails(1);
        assert_eq!(now(&sources), None);
        drop(holds);
    }

    #[test]
    fn a_source_is_there_as_long_as_somebody_holds_it() {
        let mut sources = BlobSources::default();
        let (first, new) = sources.join(&source("r.io/a"));
        assert!(new);
        let (again, new) = sources.join(&source("r.io/a"));
        assert!(!new, "the same place, as the same account");
        let (other, new) = sources.join(&source("r.io/a").from_mirrors(true));
        assert!(new);
        let current = sources.current().unwrap();
        assert!(!current.source.mirrors_only);
        drop(first);
        assert!(!current.is_gone());
        drop(again.clone());
        assert!(!current.is_gone());
        drop(again);
        assert!(current.is_gone());
        assert!(sources.current().unwrap().source.mirrors_only);
        assert_eq!(sources.iter().count(), 1);
        sources.fails(sources.current().unwrap().id);
        assert_eq!(now(&sources), None);
        drop(other);
        let (_hold, new) = sources.join(&source("r.io/a").from_mirrors(true));
        assert!(new && now(&sources).is_some(), "who asks again does not inherit the failure");
        assert_eq!(sources.all.len(), 1, "those that are gone take no room");
    }
}

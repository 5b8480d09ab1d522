//! Which state of an object is the newest. Lists, watches and answers to writes come over different connections, and an API
//! server can come back with an older state than it had.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use crate::moment::{Moment, Source};

/// What a state of an object is, compared with what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// The newest.
    New,
    /// Older than what is known, or of an object that is gone.
    Old,
    /// Older than what was known before it was asked for: the API server has lost what came after it.
    RolledBack,
}

/// The newest state of an object that was seen.
#[derive(Clone, Debug, Default)]
struct Newest {
    uid: String,
    version: u64,
    /// When it came, if it was the answer to a write.
    answered: Option<Moment>,
}

/// The newest states of the objects of one watch, by name. Watches of the same objects by other selectors have their own: which of
/// two of them tells first says nothing.
#[derive(Debug)]
pub(crate) struct Sights<K>(BTreeMap<K, Newest>);

impl<K> Default for Sights<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Sights<K> {
    /// Notes a state of an object. The answer to a write of one that is not known is of one that is gone.
    pub(crate) fn see(&mut self, id: K, uid: &str, version: u64, source: Source) -> Sight {
        let known = self.0.get(&id).filter(|newest| newest.uid == uid);
        if known.is_none() && matches!(source, Source::Answer(_)) {
            return Sight::Old;
        }
        let (before, answered) = known.map(|newest| (newest.version, newest.answered)).unwrap_or_default();
        if version >= before {
            let answered = if let Source::Answer(at) = source { Some(at) } else { None };
            self.0.insert(id, Newest { uid: uid.to_owned(), version, answered });
            return Sight::New;
        }
        match source {
            // Lists and watches tell one after the other, so what they told before was known when this was asked for.
            Source::List(asked) if answered.is_none_or(|at| at < asked) => Sight::RolledBack,
            _ => Sight::Old,
        }
    }

    /// The object is gone.
    pub(crate) fn forget<Q: Ord + ?Sized>(&mut self, id: &Q)
    where
        K: Borrow<Q>,
    {
        self.0.remove(id);
    }

    /// The newest version of an object.
    pub(crate) fn version<Q: Ord + ?Sized>(&self, id: &Q) -> Option<u64>
    where
        K: Borrow<Q>,
    {
        self.0.get(id).map(|newest| newest.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moment::Moments;

    #[test]
    fn an_older_version_is_old_unless_the_newer_one_was_known_when_it_was_asked_for() {
        let moments = Moments::default();
        let id = || "web".to_owned();
        let mut sights = Sights::default();
        let mut see = |version, source| sights.see(id(), "u1", version, source);
        assert_eq!(see(4, Source::Answer(moments.now())), Sight::Old, "of one that is gone");
        assert_eq!(see(5, Source::List(moments.now())), Sight::New);
        assert_eq!(see(7, Source::Watch), Sight::New);
        let asked = moments.now();
        assert_eq!(see(9, Source::Answer(moments.now())), Sight::New);
        assert_eq!(see(8, Source::List(asked)), Sight::Old, "the answer came while the list was under way");
        assert_eq!(see(8, Source::Watch), Sight::Old);
        assert_eq!(see(8, Source::Answer(moments.now())), Sight::Old);
        assert_eq!(see(9, Source::Watch), Sight::New, "the same again");
        assert_eq!(see(8, Source::List(moments.now())), Sight::RolledBack);
        assert_eq!(sights.see(id(), "u2", 3, Source::Watch), Sight::New, "another object of the same name");
        assert_eq!(sights.see(id(), "u1", 9, Source::Answer(moments.now())), Sight::Old);
        assert_eq!(sights.version(&id()), Some(3));
        sights.forget(&id());
        assert_eq!(sights.version(&id()), None);
    }
}

//! Which state of an object is the newest. Lists, watches and answers to writes come over different connections, and an API
//! server can come back with an older state than it had.

use std::collections::BTreeMap;

use stoker_api::view::{ObjectName, Query};

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

/// Which watch tells of an object. One object may be told of by several, and what one of them told says nothing about when another
/// asked for its list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Seen {
    /// That of NodePreheats.
    NodePreheat,
    /// That of a query.
    By(Query),
}

/// The newest states of all objects, by watch and name.
#[derive(Debug, Default)]
pub(crate) struct Sights(BTreeMap<Seen, BTreeMap<ObjectName, Newest>>);

impl Sights {
    /// Notes a state of an object. The answer to a write of one that is not known is of one that is gone.
    pub(crate) fn see(&mut self, id: (Seen, ObjectName), uid: &str, version: u64, source: Source) -> Sight {
        let (seen, name) = id;
        let told = self.0.entry(seen).or_default();
        let known = told.get(&name).filter(|newest| newest.uid == uid);
        if known.is_none() && matches!(source, Source::Answer(_)) {
            return Sight::Old;
        }
        let (before, answered) = known.map(|newest| (newest.version, newest.answered)).unwrap_or_default();
        if version >= before {
            let answered = if let Source::Answer(at) = source { Some(at) } else { None };
            told.insert(name, Newest { uid: uid.to_owned(), version, answered });
            return Sight::New;
        }
        match source {
            // Lists and watches tell one after the other, so what they told before was known when this was asked for.
            Source::List(asked) if answered.is_none_or(|at| at < asked) => Sight::RolledBack,
            _ => Sight::Old,
        }
    }

    /// The object is gone.
    pub(crate) fn forget(&mut self, id: &(Seen, ObjectName)) {
        if let Some(told) = self.0.get_mut(&id.0) {
            told.remove(&id.1);
        }
    }

    /// Nothing is known of what this query gave.
    pub(crate) fn forget_query(&mut self, query: &Query) {
        self.0.remove(&Seen::By(query.clone()));
    }

    /// The newest version of an object.
    pub(crate) fn version(&self, id: &(Seen, ObjectName)) -> Option<u64> {
        self.0.get(&id.0)?.get(&id.1).map(|newest| newest.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moment::Moments;

    #[test]
    fn an_older_version_is_old_unless_the_newer_one_was_known_when_it_was_asked_for() {
        let moments = Moments::default();
        let id = || (Seen::NodePreheat, (String::new(), "n1".to_owned()));
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

    #[test]
    fn a_list_of_one_query_is_not_older_than_what_another_query_told() {
        let moments = Moments::default();
        let by = |labels: &str| {
            let kind = &stoker_api::pods::PODS;
            Seen::By(Query { kind, namespace: Some("shop".into()), labels: labels.into() })
        };
        let id = |labels: &str| (by(labels), ("shop".to_owned(), "web-1".to_owned()));
        let mut sights = Sights::default();
        let asked = moments.now();
        assert_eq!(sights.see(id("app=web"), "u1", 7, Source::Watch), Sight::New);
        assert_eq!(sights.see(id("app"), "u1", 6, Source::List(asked)), Sight::New, "its watch tells of 7 soon");
        let Seen::By(query) = by("app") else { unreachable!() };
        sights.forget_query(&query);
        assert_eq!((sights.version(&id("app")), sights.version(&id("app=web"))), (None, Some(7)));
    }
}

//! Which watches serve the queries that somebody reads, so that a user who writes many selectors does not make as many connections.
//!
//! A few selectors of a namespace are watched one by one: the API server selects, and only what is selected is kept. Of more than that,
//! or of a selector that takes everything, one watch of the whole namespace serves all, and the labels of its objects are kept to select
//! here. Where that is still too many watches, one of all namespaces serves them. What a query gives does not depend on what serves it.

use std::collections::{BTreeMap, BTreeSet};

use stoker_core::select::Selector;

use super::rows::{Kind, Query};
use crate::labels;

/// Selectors of one namespace that are watched one by one, at most.
const SELECTORS: usize = 8;

/// Watches of one kind, at most.
const WATCHES: usize = 256;

/// Watches that serve other queries than their own.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cover {
    /// By the query of the watch: the queries that it serves, with what they select. A query that cannot be read is not among them.
    whole: BTreeMap<Query, BTreeMap<Query, Selector>>,
}

impl Cover {
    /// Of the queries that are read, after what served them before. A wide watch stays until half of what it was made for is gone: a
    /// user who makes and deletes one job again and again must not have hundreds of watches listed anew each time.
    pub(super) fn of<'a>(read: impl Iterator<Item = &'a Query>, before: &Self) -> Self {
        let mut kinds: BTreeMap<&'static Kind, BTreeMap<Query, BTreeSet<&Query>>> = BTreeMap::new();
        for query in read.filter(|query| query.namespace.is_some()) {
            let namespaces = kinds.entry(query.kind).or_default();
            namespaces.entry(Query { labels: String::new(), ..query.clone() }).or_default().insert(query);
        }
        let mut cover = Self::default();
        for (kind, namespaces) in kinds {
            let most = |most: usize, whole: &Query| if before.whole.contains_key(whole) { most / 2 } else { most };
            let is_whole = |(whole, queries): &(&Query, &BTreeSet<&Query>)| {
                queries.len() > most(SELECTORS, whole) || queries.iter().any(|query| query.labels.is_empty())
            };
            let watches = namespaces.iter().map(|each| if is_whole(&each) { 1 } else { each.1.len() });
            if watches.sum::<usize>() > most(WATCHES, &Query::all(kind)) {
                cover.serve(Query::all(kind), namespaces.values().flatten().copied());
                continue;
            }
            for (whole, queries) in namespaces.iter().filter(is_whole) {
                cover.serve(whole.clone(), queries.iter().copied());
            }
        }
        cover
    }

    fn serve<'a>(&mut self, whole: Query, queries: impl Iterator<Item = &'a Query>) {
        let readable = queries.filter_map(|query| Some((query.clone(), selector(query)?)));
        self.whole.insert(whole, readable.collect());
    }

    /// The query whose watch serves this one.
    pub(super) fn serving(&self, query: &Query) -> Query {
        let namespace = Query { labels: String::new(), ..query.clone() };
        let wider = [Query::all(query.kind), namespace].into_iter().filter(|_| query.namespace.is_some());
        wider.into_iter().find(|whole| self.whole.contains_key(whole)).unwrap_or_else(|| query.clone())
    }

    /// The queries that the watch of this one serves, with what they select, if it serves others.
    pub(super) fn served(&self, query: &Query) -> Option<&BTreeMap<Query, Selector>> {
        self.whole.get(query)
    }
}

/// What a query selects. The text of ours can be read; the API server refuses any other.
pub(super) fn selector(query: &Query) -> Option<Selector> {
    match query.labels.as_str() {
        "" => Some(Selector::default()),
        text => labels::parse(text).ok().map(|selector| labels::to_core(&selector)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::PODS;

    fn query(namespace: usize, labels: &str) -> Query {
        Query { kind: &PODS, namespace: Some(format!("ns{namespace}")), labels: labels.into() }
    }

    fn watches(read: &[Query]) -> BTreeSet<Query> {
        let cover = Cover::of(read.iter(), &Cover::default());
        read.iter().map(|query| cover.serving(query)).collect()
    }

    #[test]
    fn a_few_selectors_are_watched_one_by_one_and_more_as_a_whole() {
        let few: Vec<Query> = (0..SELECTORS).map(|n| query(0, &format!("app=a{n}"))).collect();
        assert_eq!(watches(&few), few.iter().cloned().collect());
        let many: Vec<Query> = (0..=SELECTORS).map(|n| query(0, &format!("app=a{n}"))).collect();
        assert_eq!(watches(&many), [query(0, "")].into());
        let both = [few, vec![query(0, "")]].concat();
        assert_eq!(watches(&both), [query(0, "")].into(), "everything is watched anyway");
        let two = [many, vec![query(1, "app=a0")]].concat();
        assert_eq!(watches(&two), [query(0, ""), query(1, "app=a0")].into(), "each namespace by itself");
    }

    #[test]
    fn wide_watches_stay_until_half_of_what_they_serve_is_gone() {
        let selectors = |count: usize| -> Vec<Query> { (0..count).map(|n| query(0, &format!("app=a{n}"))).collect() };
        let namespaces = |count: usize| -> Vec<Query> { (0..count).map(|n| query(n, "app=web")).collect() };
        type Queries<'a> = &'a dyn Fn(usize) -> Vec<Query>;
        for (queries, most, wide) in
            [(&selectors as Queries<'_>, SELECTORS, query(0, "")), (&namespaces, WATCHES, Query::all(&PODS))]
        {
            let mut cover = Cover::default();
            for (count, is_wide) in
                [(most, false), (most + 1, true), (most, true), (most / 2 + 1, true), (most / 2, false), (most, false)]
            {
                cover = Cover::of(queries(count).iter(), &cover);
                assert_eq!(cover.serving(&query(0, "app=web")) == wide, is_wide, "{count} of {most}");
            }
        }
    }

    #[test]
    fn the_number_of_watches_has_a_bound() {
        let each = |namespaces: usize| -> Vec<Query> { (0..namespaces).map(|n| query(n, "app=web")).collect() };
        assert_eq!(watches(&each(WATCHES)).len(), WATCHES);
        assert_eq!(watches(&each(WATCHES + 1)), [Query::all(&PODS)].into());
        let crowd: Vec<Query> = (0..1_000).flat_map(|n| [query(n % 30, &format!("app=a{n}")), query(n, "x")]).collect();
        assert!(watches(&crowd).len() <= WATCHES);
    }
}

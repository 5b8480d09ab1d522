//! Watches: each lists what it is about, follows the history of the API server from there, is late, and breaks off. It says what the
//! controller's own watches say.

use std::collections::BTreeSet;

use kube::api::DynamicObject;
use stoker_api::native::NAMESPACES;
use stoker_api::view::{ObjectName, Query, SeenRow};
use stoker_api::{job_kinds, node};
use stoker_testbed::paper::{self, Paper};

use super::wire;
use crate::moment::{Moment, Moments, Source};
use crate::watch::Fact;
use crate::watches::Input;

/// What a watch is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Feed {
    Nodes,
    NodePreheats,
    Query(Query),
}

impl Feed {
    /// Whether it is no fault if it is refused.
    pub(super) fn may_be_refused(&self) -> bool {
        let ours = |query: &Query| job_kinds().any(|kind| kind.kind == *query.kind && !kind.is_foreign());
        // Without the labels of namespaces nobody knows whom a policy concerns.
        matches!(self, Feed::Query(query) if !ours(query) && *query.kind != NAMESPACES)
    }

    fn selects(&self, object: &DynamicObject) -> bool {
        let kind = object.types.as_ref().map(|types| types.kind.as_str()).unwrap_or_default();
        match self {
            Feed::Nodes => kind == "Node",
            Feed::NodePreheats => kind == "NodePreheat",
            Feed::Query(query) => kind == query.kind.name && paper::selects(query, object),
        }
    }

    fn input(&self, fact: Fact<DynamicObject>) -> Input {
        match self {
            Feed::Nodes => Input::Node(fact.map(|object| wire::read::<node::PlainNode>(&object).into())),
            Feed::NodePreheats => Input::NodePreheat(fact.map(|object| Box::new(wire::read(&object)))),
            Feed::Query(query) => {
                let newest = query.kind.newest().api_version;
                let row = |object| SeenRow::of(query, paper::in_version(object, &newest));
                Input::Row(query.clone(), fact.map(row))
            }
        }
    }
}

#[derive(Clone, Debug)]
enum State {
    /// Everything is to be listed.
    Asks,
    /// A list was asked for, and its answer is on its way.
    Lists {
        asked: Moment,
        answer: Vec<DynamicObject>,
        version: u64,
    },
    /// What happened after this version is to be said.
    Follows(u64),
    /// Nothing is heard of what happened after this version.
    Deaf(u64),
    Refused,
}

#[derive(Clone, Debug)]
pub(super) struct Ear {
    feed: Feed,
    known: BTreeSet<ObjectName>,
    state: State,
}

fn name_of(object: &DynamicObject) -> ObjectName {
    (object.metadata.namespace.clone().unwrap_or_default(), object.metadata.name.clone().unwrap_or_default())
}

impl Ear {
    pub(super) fn new(feed: Feed) -> Self {
        Self { feed, known: BTreeSet::new(), state: State::Asks }
    }

    /// Whether everything was said that there is to say.
    pub(super) fn is_up_to_date(&self, paper: &Paper) -> bool {
        matches!(self.state, State::Follows(version) if version == paper.version())
    }

    /// Whether it goes on by itself.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.state, State::Deaf(_) | State::Refused)
    }

    /// Says what comes next.
    pub(super) fn hear(&mut self, paper: &Paper, moments: &Moments) -> Vec<Input> {
        let facts = match std::mem::replace(&mut self.state, State::Asks) {
            State::Asks | State::Refused => {
                let answer = paper.all().map(|(_, object)| object).filter(|object| self.feed.selects(object)).cloned();
                let (asked, answer) = (moments.now(), answer.collect());
                self.state = State::Lists { asked, answer, version: paper.version() };
                Vec::new()
            }
            State::Lists { asked, answer, version } => {
                self.state = State::Follows(version);
                let listed: BTreeSet<ObjectName> = answer.iter().map(name_of).collect();
                let gone: Vec<ObjectName> = self.known.difference(&listed).cloned().collect();
                self.known = listed;
                let there = answer.into_iter().map(|object| Fact::There(object, Source::List(asked)));
                there.chain(gone.into_iter().map(Fact::Gone)).chain([Fact::Listed]).collect()
            }
            State::Follows(version) => {
                let (facts, version) = self.next(paper, version);
                self.state = State::Follows(version);
                facts
            }
            // What was missed is said, and then that nothing is missed any more.
            State::Deaf(mut version) => {
                let mut facts = Vec::new();
                while version < paper.version() {
                    let (more, next) = self.next(paper, version);
                    facts.extend(more);
                    version = next;
                }
                self.state = State::Follows(version);
                facts.push(Fact::Resumed);
                facts
            }
        };
        facts.into_iter().map(|fact| self.feed.input(fact)).collect()
    }

    /// The next change after this version that is of interest, and the version up to which all was said then.
    fn next(&mut self, paper: &Paper, version: u64) -> (Vec<Fact<DynamicObject>>, u64) {
        for entry in paper.since(version) {
            let after = entry.after.as_ref().filter(|object| self.feed.selects(object));
            let before = entry.before.as_ref().filter(|object| self.feed.selects(object));
            match (after, before) {
                (Some(object), _) => {
                    self.known.insert(name_of(object));
                    return (vec![Fact::There(object.clone(), Source::Watch)], entry.version);
                }
                (None, Some(object)) if self.known.remove(&name_of(object)) => {
                    return (vec![Fact::Gone(name_of(object))], entry.version);
                }
                _ => {}
            }
        }
        (Vec::new(), paper.version())
    }

    /// It is interrupted; then it is resumed, or everything is listed anew.
    pub(super) fn deafen(&mut self, lists: bool) -> Vec<Input> {
        self.state = match std::mem::replace(&mut self.state, State::Asks) {
            State::Follows(version) | State::Deaf(version) if !lists => State::Deaf(version),
            _ => State::Asks,
        };
        vec![self.feed.input(Fact::Deaf)]
    }

    /// It is not ours to see any more.
    pub(super) fn refuse(&mut self) -> Vec<Input> {
        self.state = State::Refused;
        let gone = std::mem::take(&mut self.known).into_iter().map(Fact::Gone);
        let facts: Vec<Fact<DynamicObject>> = [Fact::Refused].into_iter().chain(gone).collect();
        facts.into_iter().map(|fact| self.feed.input(fact)).collect()
    }
}

//! All objects that dialects look at, and what follows from them: jobs for the World, and writes from what the World made of them.
//!
//! A *root* is an object that a dialect answers for. Two pure functions say what it means: `derive` makes jobs of objects, and
//! `project` makes writes of objects and of the outcomes of its jobs. Both see objects through a [`Reader`] that notes what they
//! read. So nobody keeps an index of what depends on what: a change makes those roots dirty that have read it, and a query is
//! watched while somebody reads it. What follows does not depend on the order in which objects were heard of.

mod cover;
mod foreign;
mod nodes;
mod parts;
mod policies;
mod reader;
mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use kube_core::dynamic::DynamicObject;
use stoker_core::select::Selector;
use stoker_core::{Event, Job, JobId, World};

use crate::dialect::kruise::IMAGE_PULL_JOBS;
use crate::dialect::{self, Dialect, JobKind, NotReadable, RootsOf};
use crate::sign::HandOver;
use crate::write::{Target, Write};
use cover::Cover;
use foreign::Foreign;
pub use reader::{Answer, Reader};
use reader::{FailedWrites, Read};
pub use rows::{Heard, Kind, ObjectName, Query, Row, SeenRow, controller_of, controls};
use rows::{Kept, Rows};

/// A kind of jobs that is refused has no objects only after this time: rights that were given a moment ago take a while to arrive
/// everywhere, and orders for the jobs that are hidden until then must stay.
const BELIEVED_AFTER: Duration = Duration::from_secs(60);

/// An object that a dialect answers for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Root {
    /// Its kind.
    pub kind: &'static JobKind,
    /// Its namespace; empty where the kind has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Root {
    /// The root that a job was derived from, where it is of a kind that is known here.
    pub fn of(job: &JobId) -> Option<Self> {
        let kind =
            dialect::job_kinds().find(|kind| kind.kind.name == job.kind() && kind.kind.group() == job.group())?;
        Some(Self { kind, namespace: job.namespace().to_owned(), name: job.name().to_owned() })
    }

    /// The job of an object that means one.
    pub fn job(&self) -> JobId {
        self.kind.job_id(&self.namespace, &self.name)
    }
}

/// Why a root has no jobs that could be told.
#[derive(Debug, thiserror::Error)]
pub enum Unready {
    /// Its object cannot be read.
    #[error(transparent)]
    NotReadable(#[from] NotReadable),
    /// Something that its jobs depend on was not listed yet. What was derived before holds until then.
    #[error("not everything that it depends on is known yet")]
    Unlisted,
}

/// The jobs of a root, or why they cannot be told.
pub type Derived = Result<Vec<Job>, Unready>;

/// What a root asks to be written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Projected {
    /// The writes, in no order.
    pub writes: Vec<Write>,
    /// When time alone asks for another.
    pub wake: Option<Timestamp>,
}

impl From<Vec<Write>> for Projected {
    fn from(writes: Vec<Write>) -> Self {
        Self { writes, wake: None }
    }
}

/// What is known of a root besides its object.
#[derive(Clone, Debug, Default)]
struct RootState {
    /// Its jobs, as the World knows them.
    jobs: BTreeSet<JobId>,
    /// What deriving them has read.
    derived: BTreeSet<Read>,
    /// What projecting them has read.
    projected: BTreeSet<Read>,
    /// When it is to be projected although nothing has changed.
    wake: Option<Timestamp>,
    /// Writes that have failed since it was last projected.
    failed: FailedWrites,
    /// Why its object cannot be read.
    problem: Option<String>,
}

/// What a change of the jobs was, for whoever counts and logs.
#[derive(Debug, Default)]
pub struct Settled {
    /// Jobs that are there no more.
    pub gone: Vec<JobId>,
    /// Objects that cannot be read, and why.
    pub problems: Vec<String>,
}

/// All objects and roots.
#[derive(Clone, Debug, Default)]
pub struct View {
    rows: Rows,
    roots: BTreeMap<Root, RootState>,
    readers: BTreeMap<Read, BTreeSet<Root>>,
    /// What serves the queries that are read.
    cover: Cover,
    /// Other queries are read than those that the cover was made for.
    uncovered: bool,
    /// To be derived.
    dirty: BTreeSet<Root>,
    /// To be projected.
    due: BTreeSet<Root>,
    /// To be projected then.
    wakes: BTreeSet<(Timestamp, Root)>,
    /// What is known of the original controllers of dialects.
    foreign: Foreign,
    /// Dialects whose original controller is at work, and how that is known.
    left_alone: BTreeMap<&'static str, String>,
    /// Kinds of which the World was told that they cannot be heard.
    frozen: BTreeSet<&'static str>,
    /// How long this view had been in use when somebody last looked.
    age: Duration,
    /// Kinds of jobs that are refused, and how old this view was when that began.
    refused: BTreeMap<&'static str, Duration>,
    /// Dialects whose workloads are watched.
    served: BTreeSet<&'static str>,
    /// What the World was told of policies.
    policies: policies::Told,
    /// ImagePullJobs that are gone, or have ended, since nodes were last looked at for them.
    over: BTreeSet<ObjectName>,
    /// The namespace of Stoker itself, where it is another one than usual.
    home: Option<String>,
}

impl View {
    /// A view that looks at no signs of original controllers. What it leaves alone it is told.
    pub fn without_signs() -> Self {
        Self { foreign: Foreign::told(), ..Self::default() }
    }

    /// Notes how the kinds of dialects were handed over by their original controllers.
    pub fn hand_over(&mut self, handed_over: &BTreeMap<&'static str, HandOver>) {
        self.foreign.handed_over = handed_over.clone();
    }

    /// Has the workloads of these dialects watched. Without that none are: not everybody wants to let them be seen.
    pub fn serve(&mut self, dialects: &BTreeSet<&'static str>) {
        self.served = dialects.clone();
    }

    /// Notes the namespace in which Stoker is installed.
    pub fn live_in(&mut self, namespace: &str) {
        self.home = Some(namespace.to_owned());
    }

    /// The namespace in which Stoker is installed.
    fn home(&self) -> &str {
        self.home.as_deref().unwrap_or(crate::NAMESPACE)
    }

    /// Every query that must be watched: all objects of every kind that means jobs, workloads that are served, what is read besides,
    /// and signs of original controllers of kinds that an API server has.
    pub fn wanted(&self) -> BTreeSet<Query> {
        let new = self.uncovered.then(|| Cover::of(self.queries(), &self.cover));
        let cover = new.as_ref().unwrap_or(&self.cover);
        let read = self.queries().map(|query| cover.serving(query));
        let jobs = dialect::served_kinds().filter(|kind| kind.in_half || !self.is_half(kind));
        let jobs = jobs.map(|kind| Query::all(&kind.kind));
        let served = self.served.iter().filter_map(|name| Dialect::named(name));
        let workloads = served.flat_map(|dialect| dialect.workloads).map(|kind| Query::all(&kind.kind));
        let others = self.foreign.wanted(&self.rows).chain(self.policy_queries());
        jobs.chain(workloads).chain(read).chain(others).collect()
    }

    /// The queries that are read.
    fn queries(&self) -> impl Iterator<Item = &Query> {
        self.readers.keys().map_while(|read| match read {
            Read::Query(query) => Some(query),
            Read::Object(..) | Read::Owned(_) | Read::Heard(_) => None,
        })
    }

    /// Whether every wanted query was answered, if only by a refusal. What is wanted is known when everything is settled.
    pub fn is_known(&self) -> bool {
        self.dirty.is_empty() && self.wanted().iter().all(|query| self.rows.heard(query) != Heard::Unlisted)
    }

    /// How far a query is known.
    pub fn heard(&self, query: &Query) -> Heard {
        self.rows.heard(query)
    }

    /// An object of a query is there, or has changed.
    pub fn see(&mut self, query: &Query, object: DynamicObject) {
        self.see_row(query, SeenRow::of(query, object));
    }

    /// The same for an object that was cut down already, for this query.
    pub fn see_row(&mut self, query: &Query, row: SeenRow) {
        self.set(query, &row.name, row.kept);
    }

    /// An object of a query is there no more.
    pub fn gone(&mut self, query: &Query, name: &ObjectName) {
        self.set(query, name, None);
    }

    fn set(&mut self, query: &Query, name: &ObjectName, row: Option<Kept>) {
        self.note_end(query, name, row.as_ref());
        let groups = self.groups(query, name);
        let belonging = self.belonging(query, name);
        let labels = self.rows.labels(query, name).cloned();
        let labels = [labels, row.as_ref().and_then(|kept| kept.labels.clone())];
        let Some(owners) = self.rows.set(query, name, row) else { return };
        owners.into_iter().for_each(|uid| self.touch_readers(&Read::Owned(uid)));
        self.touch_policies(query, Some(name));
        // Until everything is known nobody reads a part of it.
        if matches!(self.rows.heard(query), Heard::Listed | Heard::Deaf { listed: true }) {
            self.touch_served(query, |selector| labels.iter().flatten().any(|labels| labels.are(selector)));
        }
        if *query == Query::all(query.kind) {
            self.touch_readers(&Read::Object(query.kind, name.clone()));
            let mut kinds = dialect::served_kinds().chain(dialect::workload_kinds());
            if let Some(kind) = kinds.find(|kind| kind.kind == *query.kind) {
                let root = Root { kind, namespace: name.0.clone(), name: name.1.clone() };
                self.dirty.insert(root);
            }
            self.regroup(query, name, &groups);
            self.regard(query, name, belonging);
        }
    }

    /// How far a query is known has changed.
    pub fn hear(&mut self, query: &Query, heard: Heard) {
        if self.rows.hear(query, heard) {
            self.touch_policies(query, None);
            self.touch_served(query, |_| true);
            if *query == Query::all(query.kind) {
                self.touch_readers(&Read::Heard(query.kind));
            }
            // What objects of nodes owe to jobs that are gone is done only while jobs are heard.
            if heard == Heard::Listed && *query == Query::all(&IMAGE_PULL_JOBS.kind) {
                let of_nodes = |root: &&Root| matches!(root.kind.roots, RootsOf::Nodes { .. });
                let roots: Vec<Root> = self.roots.keys().filter(of_nodes).cloned().collect();
                self.due.extend(roots);
            }
            if heard == Heard::Listed {
                self.touch_kin(query);
            }
        }
    }

    /// A query that nobody wants is not watched any more.
    pub fn forget(&mut self, query: &Query) {
        self.forget_policies(query);
        self.rows.forget(query);
    }

    /// Looks for signs of original controllers, and leaves the objects of those that are at work alone. Time is how long the view has
    /// been in use. Returns the dialects of which something else is known than before.
    pub fn look(&mut self, now: Duration) -> Vec<&'static str> {
        self.age = now;
        let unknown = self.foreign.unknown.clone();
        let mut changed = Vec::new();
        for (dialect, seen) in self.foreign.look(&self.rows, now) {
            if self.left_alone.get(dialect) != seen.as_ref() {
                changed.push(dialect);
            }
            self.leave_alone(dialect, seen);
        }
        for dialect in unknown.symmetric_difference(&self.foreign.unknown.clone()) {
            self.touch_dialect(dialect);
        }
        changed
    }

    /// When a sign of an original controller is over, or a refusal is believed, if nothing happens until then.
    pub fn next_look(&self) -> Option<Duration> {
        let believed = self.refused.values().map(|since| *since + BELIEVED_AFTER).filter(|at| *at > self.age);
        self.foreign.wake().into_iter().chain(believed).min()
    }

    /// Leaves all objects of a dialect to their original controller, of which this was seen, or takes them over.
    pub fn leave_alone(&mut self, dialect: &'static str, why: Option<String>) {
        let before = self.left_alone.get(dialect).cloned();
        if before == why {
            return;
        }
        match why {
            Some(why) => self.left_alone.insert(dialect, why),
            None => self.left_alone.remove(dialect),
        };
        if before.is_none() || !self.left_alone.contains_key(dialect) {
            self.touch_dialect(dialect);
        }
    }

    fn touch_dialect(&mut self, dialect: &str) {
        self.dirty.extend(self.roots.keys().filter(|root| root.kind.dialect == dialect).cloned());
        self.dirty.extend(self.all_groups(dialect));
    }

    /// Dialects that are left to their original controllers, and what was seen of these.
    pub fn left_alone(&self) -> &BTreeMap<&'static str, String> {
        &self.left_alone
    }

    /// Touches the readers of a query, or of those queries that its watch serves and whose selectors are such.
    fn touch_served(&mut self, query: &Query, is_such: impl Fn(&Selector) -> bool) {
        let Some(served) = self.cover.served(query) else { return self.touch_readers(&Read::Query(query.clone())) };
        let touched = served.iter().filter(|(_, selector)| is_such(selector));
        let touched = touched.filter_map(|(query, _)| self.readers.get(&Read::Query(query.clone()))).flatten();
        self.dirty.extend(touched.cloned());
    }

    fn touch_readers(&mut self, read: &Read) {
        let roots = self.readers.get(read).into_iter().flatten();
        self.dirty.extend(roots.cloned());
    }

    /// Derives what has changed, and tells the World.
    pub fn settle(&mut self, world: &mut World) -> Settled {
        let mut settled = Settled::default();
        self.freeze(world);
        self.tell_policies(world);
        world.tell_nodes(dialect::kinds_of_nodes().any(|kind| self.is_listed(kind)));
        self.look_at_ends();
        while let Some(root) = self.next_dirty() {
            let half = self.is_half(root.kind);
            self.tell_of_foreign(&root, world);
            let mut reader = Reader::new(&self.rows, &self.cover, self.home()).in_half(half);
            let there = match root.kind.roots {
                RootsOf::Objects | RootsOf::ObjectsOnNodes { .. } => reader.own(&root).is_some(),
                RootsOf::Nodes { .. } => reader.node_image(&root.name).is_some() || world.has_node(&root.name),
                RootsOf::Groups => true,
            };
            let dialect = root.kind.dialect;
            let derived = match there {
                true if self.left_alone.contains_key(dialect) => Ok(Vec::new()),
                true if half && !root.kind.in_half => Ok(Vec::new()),
                // Nobody knows yet whose it is.
                true if self.foreign.unknown.contains(dialect) => Err(Unready::Unlisted),
                _ => (root.kind.derive)(&root, &mut reader),
            };
            let reads = reader.noted();
            let (jobs, problem) = match derived {
                Ok(jobs) => (jobs, None),
                Err(Unready::Unlisted) => {
                    self.note(&root, |state| std::mem::replace(&mut state.derived, reads));
                    continue;
                }
                Err(Unready::NotReadable(problem)) => {
                    settled.problems.push(problem.to_string());
                    (Vec::new(), Some(problem.problem))
                }
            };
            let there = there && !(matches!(root.kind.roots, RootsOf::Groups) && jobs.is_empty());
            let now: BTreeSet<JobId> = jobs.iter().map(|job| job.id.clone()).collect();
            let before = self.roots.get(&root).map(|state| state.jobs.clone()).unwrap_or_default();
            for id in before.difference(&now) {
                world.apply(Event::JobGone(id.clone()));
                settled.gone.push(id.clone());
            }
            jobs.into_iter().for_each(|job| world.apply(Event::Job(Box::new(job))));
            self.note(&root, |state| {
                (state.jobs, state.problem) = (now, problem);
                std::mem::replace(&mut state.derived, reads)
            });
            match there {
                true => {
                    self.due.insert(root);
                }
                false => self.drop_root(&root),
            }
        }
        settled
    }

    /// The next root to be derived. When all are, other queries may be read than before: then what serves them is chosen again, and those
    /// are derived once more that are served by another watch.
    fn next_dirty(&mut self) -> Option<Root> {
        if self.dirty.is_empty() && std::mem::take(&mut self.uncovered) {
            let cover = Cover::of(self.queries(), &self.cover);
            let moved = self.queries().filter(|query| cover.serving(query) != self.cover.serving(query));
            let moved: Vec<Query> = moved.cloned().collect();
            self.cover = cover;
            moved.into_iter().for_each(|query| self.touch_readers(&Read::Query(query)));
        }
        self.dirty.pop_first()
    }

    /// Changes what was read for a root, of which the closure returns what it was before.
    fn note(&mut self, root: &Root, change: impl FnOnce(&mut RootState) -> BTreeSet<Read>) {
        let state = self.roots.entry(root.clone()).or_default();
        let before = change(state);
        let now: BTreeSet<Read> = state.derived.union(&state.projected).cloned().collect();
        for read in before.difference(&now) {
            if let Some(readers) = self.readers.get_mut(read) {
                readers.remove(root);
                if readers.is_empty() {
                    self.readers.remove(read);
                    self.uncovered |= matches!(read, Read::Query(_));
                }
            }
        }
        for read in now {
            self.uncovered |= matches!(read, Read::Query(_)) && !self.readers.contains_key(&read);
            self.readers.entry(read).or_default().insert(root.clone());
        }
    }

    fn set_wake(&mut self, root: &Root, wake: Option<Timestamp>) {
        let Some(state) = self.roots.get_mut(root) else { return };
        if let Some(before) = std::mem::replace(&mut state.wake, wake) {
            self.wakes.remove(&(before, root.clone()));
        }
        self.wakes.extend(wake.map(|wake| (wake, root.clone())));
    }

    fn drop_root(&mut self, root: &Root) {
        self.set_wake(root, None);
        self.note(root, |state| {
            let mut reads = std::mem::take(&mut state.derived);
            reads.append(&mut state.projected);
            reads
        });
        self.roots.remove(root);
        self.due.remove(root);
    }

    /// Tells the World of which kinds of jobs nothing can be heard.
    fn freeze(&mut self, world: &mut World) {
        for kind in dialect::served_kinds() {
            let heard = self.rows.heard(&Query::all(&kind.kind));
            if heard != Heard::Refused {
                self.refused.remove(kind.kind.name);
            }
            let deaf = match heard {
                Heard::Deaf { .. } => true,
                // Orders for jobs of which nobody knows yet whether they are ours stay as they are.
                Heard::Listed => self.foreign.unknown.contains(kind.dialect),
                Heard::Refused => self.age < *self.refused.entry(kind.kind.name).or_insert(self.age) + BELIEVED_AFTER,
                Heard::Unlisted => false,
            };
            if deaf == self.frozen.contains(kind.kind.name) {
                continue;
            }
            let name = stoker_core::KindName::new((&kind.kind.group(), kind.kind.name));
            match deaf {
                true => {
                    self.frozen.insert(kind.kind.name);
                    world.apply(Event::Freeze(name));
                }
                false => {
                    self.frozen.remove(kind.kind.name);
                    world.apply(Event::Thaw(name));
                }
            }
        }
    }

    /// The outcome of a job has changed, or its time to live is over.
    pub fn touch(&mut self, job: &JobId) {
        self.due.extend(Root::of(job).filter(|root| self.roots.contains_key(root)));
    }

    /// A write of this root has failed, and why.
    pub fn failed(&mut self, root: Root, target: &Target, why: &str) {
        if let Some(state) = self.roots.get_mut(&root) {
            state.failed.insert((target.resource.kind.clone(), target.name.clone()), why.to_owned());
        }
        self.touch_root(root);
    }

    /// This root is to be projected again.
    pub fn touch_root(&mut self, root: Root) {
        if self.roots.contains_key(&root) {
            self.due.insert(root);
        }
    }

    /// Roots that may have something to be written.
    pub fn due(&mut self, now: Timestamp) -> impl Iterator<Item = &Root> {
        while let Some((at, root)) = self.wakes.pop_first() {
            if at > now {
                self.wakes.insert((at, root));
                break;
            }
            self.due.insert(root);
        }
        self.due.iter()
    }

    /// When a root is due although nothing happens.
    pub fn wake(&self) -> Option<Timestamp> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// What a root asks to be written. It is not due any more.
    pub fn project(&mut self, root: &Root, world: &World, now: Timestamp) -> Vec<Write> {
        self.due.remove(root);
        let dialect = root.kind.dialect;
        let half = self.is_half(root.kind);
        let theirs = self.left_alone.contains_key(dialect)
            || self.foreign.unknown.contains(dialect)
            || half && !root.kind.in_half;
        if !self.roots.contains_key(root) {
            return Vec::new();
        }
        if theirs {
            // Nobody has read for it what was read before.
            self.note(root, |state| std::mem::take(&mut state.projected));
            return Vec::new();
        }
        let failed = self.roots.get_mut(root).map(|state| std::mem::take(&mut state.failed)).unwrap_or_default();
        let problem = self.roots.get(root).and_then(|state| state.problem.as_deref());
        let reader = Reader::new(&self.rows, &self.cover, self.home());
        let mut reader = reader.in_half(half).after(failed).about(problem);
        let Projected { writes, wake } = (root.kind.project)(root, &mut reader, world, now);
        let reads = reader.noted();
        self.note(root, |state| std::mem::replace(&mut state.projected, reads));
        self.set_wake(root, wake);
        writes
    }

    /// Why the object of a root cannot be read, where that is so.
    pub fn problem(&self, root: &Root) -> Option<&str> {
        self.roots.get(root)?.problem.as_deref()
    }

    /// The object of a root.
    pub fn object(&self, root: &Root) -> Option<&DynamicObject> {
        let name = (root.namespace.clone(), root.name.clone());
        self.rows.get(&Query::all(&root.kind.kind), &name)?.object()
    }

    /// All roots.
    pub fn roots(&self) -> impl Iterator<Item = &Root> {
        self.roots.keys()
    }
}

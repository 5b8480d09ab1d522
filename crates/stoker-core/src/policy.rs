//! Who may preheat what: what a PreheatPolicy restricts, and whether a job keeps to it. Pure matching, no parsing.
//!
//! [`World`](crate::World) finds out which policies concern a job and what follows for it, its [`Bounds`].

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::human;
use crate::model::{Job, Node};
use crate::reference::Reference;
use crate::select::Selector;

/// What one PreheatPolicy restricts. A job must keep to all policies that concern it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restriction {
    /// The name of the policy.
    pub policy: Arc<str>,
    /// The namespaces that it concerns, by their labels. None: all, and objects without a namespace.
    pub namespaces: Option<Selector>,
    /// The images that are allowed; none at all: every image.
    pub images: Vec<ImagePattern>,
    /// The nodes that may be used. None: all.
    pub nodes: Option<Arc<Selector>>,
    /// How much is allowed.
    pub most: Ceilings,
    /// Why its spec cannot be read, where that is so. Then nobody knows what it allows, and it allows nothing to anybody.
    pub unreadable: Option<String>,
}

/// How much one policy allows; what is missing has no ceiling.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ceilings {
    /// Images of one job.
    pub images: Option<u32>,
    /// Nodes of one job.
    pub nodes: Option<u32>,
    /// Jobs of one namespace at one time.
    pub jobs: Option<u32>,
    /// How long an attempt to pull may take.
    pub timeout: Option<Duration>,
    /// Bytes a second that a job may ask a node for.
    pub bandwidth: Option<u64>,
}

/// A pattern for images: registry and repository as a [`Reference`] has them, without tag and digest. `*` stands for any text without a
/// slash, `**` for any text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagePattern {
    /// What is written before the first star.
    start: String,
    rest: Vec<Piece>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Byte(u8),
    /// Any text without a slash.
    Segment,
    /// Any text.
    Any,
}

impl ImagePattern {
    /// The pattern that is written like this.
    pub fn new(text: &str) -> Self {
        let (start, rest) = text.split_at(text.find('*').unwrap_or(text.len()));
        let mut bytes = rest.bytes().peekable();
        let pieces = std::iter::from_fn(|| match bytes.next()? {
            b'*' => Some(bytes.next_if_eq(&b'*').map_or(Piece::Segment, |_| Piece::Any)),
            byte => Some(Piece::Byte(byte)),
        });
        Self { start: start.to_owned(), rest: pieces.collect() }
    }

    /// Whether it takes this image.
    pub fn takes(&self, image: &Reference) -> bool {
        self.matches(&repository(image))
    }

    /// Whether it takes the image of this registry and repository. The time is bounded by the product of both lengths, whatever the pattern is;
    /// most images of other registries differ in the first bytes.
    fn matches(&self, name: &str) -> bool {
        let Some(name) = name.strip_prefix(&self.start) else { return false };
        // For each beginning of the name whether the pieces so far take it.
        let mut taken = vec![false; name.len() + 1];
        if let Some(nothing) = taken.first_mut() {
            *nothing = true;
        }
        for piece in &self.rest {
            let mut before = false;
            let mut longer = taken.iter_mut();
            if let Some(nothing) = longer.next() {
                before = *nothing;
                *nothing &= !matches!(piece, Piece::Byte(_));
            }
            let mut grows = before;
            for (byte, now) in name.bytes().zip(longer) {
                let was = *now;
                grows = match piece {
                    Piece::Byte(wanted) => before && byte == *wanted,
                    Piece::Segment => was || grows && byte != b'/',
                    Piece::Any => was || grows,
                };
                (*now, before) = (grows, was);
            }
        }
        taken.last() == Some(&true)
    }
}

/// Registry and repository of an image, which patterns are compared with.
fn repository(image: &Reference) -> String {
    format!("{}/{}", image.registry(), image.repository())
}

/// Why a policy does not allow something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The name of the policy.
    pub policy: Arc<str>,
    /// Its field.
    pub field: &'static str,
    /// The rest of the sentence.
    pub why: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PreheatPolicy {} does not allow this job ({}): {}", self.policy, self.field, self.why)
    }
}

/// What follows from all policies for one job.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Why the job is held. It is held as a suspended one is: nothing is handed out for it, and what runs for it alone is stopped and kept.
    pub refusal: Option<Arc<Refusal>>,
    /// What must take a node on which something is done for the job, each with the name of the policy that says so.
    pub nodes: Vec<(Arc<str>, Arc<Selector>)>,
    /// The bytes a second that it gets where it asks for no limit.
    bandwidth: Option<u64>,
    /// Whether that is the limit that it has.
    capped: bool,
    /// How many nodes it may have, and the policy that says so. Which they are follows from where the job stands: see
    /// [`World::plan`](crate::World::plan).
    pub(crate) most_nodes: Option<(Arc<str>, u32)>,
}

impl fmt::Debug for Bounds {
    /// Most jobs have none, and many jobs are printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { refusal, nodes, bandwidth, capped, most_nodes } = self;
        if *self == Self::default() {
            return f.write_str("none");
        }
        let mut shown = f.debug_struct("Bounds");
        shown.field("refusal", refusal).field("nodes", nodes).field("bandwidth", bandwidth);
        shown.field("capped", capped).field("most_nodes", most_nodes).finish()
    }
}

impl Bounds {
    /// Of a job that is held.
    pub(crate) fn held(refusal: Refusal) -> Self {
        Self { refusal: Some(Arc::new(refusal)), ..Self::default() }
    }

    /// What follows from these policies for a job by itself, whatever other jobs and nodes there are.
    pub(crate) fn of<'a>(job: &Job, restrictions: impl Iterator<Item = &'a Restriction>) -> Self {
        let mut bounds = Self::default();
        for restriction in restrictions {
            if bounds.refusal.is_none() {
                bounds.refusal = restriction.refusal(job).map(Arc::new);
            }
            let (policy, most) = (&restriction.policy, &restriction.most);
            bounds.nodes.extend(restriction.nodes.iter().map(|nodes| (policy.clone(), nodes.clone())));
            bounds.bandwidth = bounds.bandwidth.into_iter().chain(most.bandwidth).min();
            // Entries that people keep in objects of nodes are no job on many nodes.
            let nodes = most.nodes.filter(|_| !job.is_standing()).map(|nodes| (policy.clone(), nodes));
            bounds.most_nodes = bounds.most_nodes.into_iter().chain(nodes).min_by_key(|(_, nodes)| *nodes);
        }
        let number = job.pick.as_ref().and_then(|pick| pick.number);
        if let (None, Some((policy, most)), Some(number)) = (&bounds.refusal, &bounds.most_nodes, number)
            && number > *most
        {
            let why = format!("the job wants {}, and a job may have {most}", human::count(number, "node"));
            bounds.refusal = Some(Arc::new(Refusal { policy: policy.clone(), field: MAX_NODES, why }));
        }
        bounds.capped = bounds.bandwidth.is_some() && job.asked_bandwidth().is_none();
        bounds
    }

    /// That the job has as many nodes as it may have, so that others wait.
    pub(crate) fn full(&self) -> Option<Refusal> {
        let (policy, most) = self.most_nodes.clone()?;
        let nodes = human::count(most, "node");
        let why = format!(
            "a job may have {nodes}, and this job has as many; its other nodes wait until one of those is gone"
        );
        Some(Refusal { policy, field: MAX_NODES, why })
    }

    /// Which policy keeps the job off this node.
    pub fn off_limits(&self, node: &Node) -> Option<Refusal> {
        let (policy, _) = self.nodes.iter().find(|(_, nodes)| !nodes.matches(&node.labels))?;
        let why = format!(
            "node {} does not have the labels that the policy asks for; other nodes of the job go on",
            node.name
        );
        Some(Refusal { policy: policy.clone(), field: "spec.nodes", why })
    }

    /// Whether something may be done for the job on this node.
    pub fn allow(&self, node: &Node) -> bool {
        self.nodes.iter().all(|(_, nodes)| nodes.matches(&node.labels))
    }
}

const MAX_NODES: &str = "spec.max.nodes";

impl Job {
    /// The bandwidth that its object asks for.
    pub(crate) fn asked_bandwidth(&self) -> Option<u64> {
        self.pull.bandwidth.filter(|_| !self.bounds.capped)
    }

    /// Gives it other bounds.
    pub(crate) fn bind(&mut self, bounds: Bounds) {
        let asked = self.asked_bandwidth();
        self.bounds = bounds;
        self.bounds.capped = self.bounds.bandwidth.is_some() && asked.is_none();
        self.pull.bandwidth = asked.or(self.bounds.bandwidth);
    }

    /// Whether nothing is to run for it at present, although it has not ended: its user or a policy says so.
    pub(crate) fn rests(&self) -> bool {
        self.suspend || self.bounds.refusal.is_some()
    }
}

impl Restriction {
    fn refuse(&self, field: &'static str, why: String) -> Refusal {
        Refusal { policy: self.policy.clone(), field, why }
    }

    /// What of the job by itself this policy does not allow.
    fn refusal(&self, job: &Job) -> Option<Refusal> {
        if let Some(problem) = &self.unreadable {
            return Some(self.refuse("spec", format!("the policy cannot be read, so it allows nothing: {problem}")));
        }
        if let Some(image) = self.strange_image(job) {
            return Some(self.refuse("spec.images", format!("no pattern matches {image}")));
        }
        let Ceilings { images, timeout, bandwidth, .. } = &self.most;
        let has = u32::try_from(job.images.len()).unwrap_or(u32::MAX);
        if let Some(most) = images.filter(|most| has > *most) {
            let why = format!("the job has {}, and a job may have {most}", human::count(has, "image"));
            return Some(self.refuse("spec.max.images", why));
        }
        if let Some(most) = timeout.filter(|most| job.pull.timeout > *most) {
            let (has, most) = (job.pull.timeout.as_secs(), most.as_secs());
            let why = format!("the job gives one attempt {has} s, and at most {most} s are allowed");
            return Some(self.refuse("spec.max.timeout", why));
        }
        let asked = job.asked_bandwidth();
        if let Some((has, most)) = asked.zip(*bandwidth).filter(|(has, most)| has > most) {
            let (has, most) = (human::bytes(has), human::bytes(most));
            let why = format!("the job asks each node for {has} a second, and at most {most} are allowed");
            return Some(self.refuse("spec.max.bandwidth", why));
        }
        None
    }

    /// The first image of the job that no pattern matches. Many images of a job may be of one repository, which is compared once.
    fn strange_image(&self, job: &Job) -> Option<String> {
        if self.images.is_empty() {
            return None;
        }
        let mut seen = BTreeSet::new();
        let names = job.images.iter().filter_map(|image| image.reference.as_ref().ok()).map(repository);
        let mut names = names.filter(|name| seen.insert(name.clone()));
        names.find(|name| !self.images.iter().any(|pattern| pattern.matches(name)))
    }

    /// That so many older jobs of its namespace come before a job.
    pub(crate) fn too_many_jobs(&self, most: u32) -> Refusal {
        let jobs = human::count(most, "unfinished job");
        self.refuse("spec.max.jobs", format!("the namespace may have {jobs} at one time, and older jobs come first"))
    }

    /// That nobody knows yet whether it concerns a namespace.
    pub(crate) fn namespace_unknown(&self, namespace: &str) -> Refusal {
        let why = format!("the labels of namespace {namespace} are not known yet");
        self.refuse("spec.namespaces", why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::job;
    use crate::select::{Operator, Requirement};

    #[test]
    fn patterns() {
        for (pattern, image, takes) in [
            ("docker.io/library/nginx", "nginx", true),
            (
                "docker.io/library/nginx",
                "nginx:1.27@sha256:0000000000000000000000000000000000000000000000000000000000000000",
                true,
            ),
            ("nginx", "nginx", false),
            ("docker.io/library/*", "index.docker.io/nginx", true),
            ("docker.io/*", "nginx", false),
            ("docker.io/**", "nginx", true),
            ("ghcr.io/acme/*", "ghcr.io/acme/web:v1", true),
            ("ghcr.io/acme/*", "ghcr.io/acme/team/web", false),
            ("ghcr.io/acme/**", "ghcr.io/acme/team/web", true),
            ("ghcr.io/acme/**", "ghcr.io/acme-evil/web", false),
            ("ghcr.io/acme/**", "ghcr.io/acme", false),
            ("ghcr.io/*/web", "ghcr.io/acme/web", true),
            ("ghcr.io/*/web", "ghcr.io/acme/team/web", false),
            ("ghcr.io/**/web", "ghcr.io/acme/team/web", true),
            ("**/web", "ghcr.io/acme/web", true),
            ("**/web", "ghcr.io/acme/web2", false),
            ("reg.test:5000/*", "REG.test:5000/web:v1", true),
            ("reg.test/*", "reg.test:5000/web", false),
            ("*.test/web", "a.b.test/web", true),
            ("*.test/web", "evil.example/a.test/web", false),
            ("**", "anything", true),
            ("*", "anything", false),
            ("ghcr.io/a*e/w*b", "ghcr.io/acme/web", true),
            ("ghcr.io/ac*me/web", "ghcr.io/acme/web", true),
            ("ghcr.io/acme/***", "ghcr.io/acme/a/b", true),
            ("", "nginx", false),
        ] {
            assert_eq!(ImagePattern::new(pattern).takes(&image.parse().unwrap()), takes, "{pattern} {image}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_is_quick() {
        let image: Reference = format!("reg.test/{}", "a".repeat(250)).parse().unwrap();
        assert!(!ImagePattern::new(&format!("reg.test/{}b", "*a".repeat(120))).takes(&image));
    }

    fn restriction(change: impl FnOnce(&mut Restriction)) -> Restriction {
        let mut restriction = Restriction { policy: "p".into(), ..Restriction::default() };
        change(&mut restriction);
        restriction
    }

    #[test]
    fn ceilings() {
        let secs = Duration::from_secs;
        for (restriction, said) in [
            (restriction(|_| {}), ""),
            (restriction(|it| it.images = vec![ImagePattern::new("other/*"), ImagePattern::new("r.test/*")]), ""),
            (
                restriction(|it| it.images = vec![ImagePattern::new("other/*")]),
                "(spec.images): no pattern matches r.test/i",
            ),
            (restriction(|it| it.most.images = Some(1)), ""),
            (
                restriction(|it| it.most.images = Some(0)),
                "(spec.max.images): the job has 1 image, and a job may have 0",
            ),
            (restriction(|it| it.most.timeout = Some(secs(600))), ""),
            (
                restriction(|it| it.most.timeout = Some(secs(599))),
                "(spec.max.timeout): the job gives one attempt 600 s, and at most 599 s are allowed",
            ),
            (restriction(|it| it.most.bandwidth = Some(1 << 20)), ""),
            (
                restriction(|it| it.most.bandwidth = Some((1 << 20) - 1024)),
                "(spec.max.bandwidth): the job asks each node for 1.0 MiB a second, and at most 1023.0 KiB are allowed",
            ),
            (
                restriction(|it| it.unreadable = Some("no".into())),
                "(spec): the policy cannot be read, so it allows nothing: no",
            ),
        ] {
            let mut job = job("j", None);
            job.pull.bandwidth = Some(1 << 20);
            let refusal = Bounds::of(&job, [&restriction].into_iter()).refusal;
            let refusal = refusal.map(|refusal| refusal.to_string()).unwrap_or_default();
            assert_eq!(refusal.trim_start_matches("PreheatPolicy p does not allow this job "), said);
        }
    }

    #[test]
    fn the_lowest_ceiling_caps_who_asks_for_no_limit_and_goes_with_its_policy() {
        let most = |bandwidth| restriction(|it| it.most.bandwidth = Some(bandwidth));
        let (mut unlimited, mut limited) = (job("j", None), job("k", None));
        limited.pull.bandwidth = Some(5);
        for job in [&mut unlimited, &mut limited] {
            let bounds = Bounds::of(job, [most(9), most(7)].iter());
            job.bind(bounds);
        }
        assert_eq!((unlimited.pull.bandwidth, limited.pull.bandwidth), (Some(7), Some(5)));
        // Whoever is capped has not asked for that.
        let bounds = Bounds::of(&unlimited, [most(6)].iter());
        unlimited.bind(bounds);
        assert_eq!((unlimited.pull.bandwidth, &unlimited.bounds.refusal), (Some(6), &None));
        unlimited.bind(Bounds::default());
        limited.bind(Bounds::default());
        assert_eq!((unlimited.pull.bandwidth, limited.pull.bandwidth), (None, Some(5)));
    }

    #[test]
    fn every_policy_must_take_a_node() {
        let pool = |policy: &str, value: &str| {
            let values = [value.to_string()].into();
            let selector = Selector(vec![Requirement { key: "pool".into(), operator: Operator::In, values }]);
            restriction(|it| (it.policy, it.nodes) = (policy.into(), Some(Arc::new(selector))))
        };
        let labels = [("pool".to_string(), "a".to_string())].into();
        let node =
            Node { name: "n1".into(), labels, ready: true, ready_changed: None, cordoned: false, foreign: false };
        let bounds = Bounds::of(&job("j", None), [pool("p", "a"), pool("q", "b")].iter());
        assert!(!bounds.allow(&node));
        let said = "PreheatPolicy q does not allow this job (spec.nodes): node n1 does not have the labels that the policy asks for; other nodes of the job go on";
        assert_eq!(bounds.off_limits(&node).unwrap().to_string(), said);
        assert!(Bounds::of(&job("j", None), [pool("p", "a")].iter()).allow(&node));
    }
}

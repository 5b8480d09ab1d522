//! How a node pulls: the terms of a job, and how those of several jobs become one.

use std::collections::BTreeMap;
use std::time::Duration;

use super::source::PullSource;

/// Whether an image that is there already is good enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Policy {
    /// A node that has the tag, in any digest, is done.
    #[default]
    IfNotPresent,
    /// The registry is asked; a digest that is there is not fetched again.
    Always,
}

/// How a node pulls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    /// Whether an image that is there already is good enough.
    pub policy: Policy,
    /// The longest that one attempt may take.
    pub timeout: Duration,
    /// How often a failed attempt is repeated.
    pub retries: u32,
    /// The most bytes a second that a node may receive for it.
    pub bandwidth: Option<u64>,
    /// Of the images that a namespace wants on a node, those of higher priority are pulled first.
    pub priority: i32,
    /// What a runtime that pulls by itself is told about the pod that the image is for.
    pub sandbox: Sandbox,
    /// Where the bytes may come from.
    pub source: PullSource,
    /// How many nodes of a peer group may fetch an image from the registry, as a promise. Not given: one, and another one where a
    /// node finds no other way.
    pub upstream_copies: Option<u32>,
}

impl Pull {
    /// How many nodes of a peer group may fetch an image from the registry, and whether that is a promise.
    pub fn copies(&self) -> (usize, bool) {
        match (self.source, self.upstream_copies) {
            (PullSource::PeersOnly, _) => (0, true),
            (_, Some(copies)) => (usize::try_from(copies).unwrap_or(usize::MAX), true),
            (_, None) => (1, false),
        }
    }

    /// Whether the image comes from other nodes alone: no node may fetch it from the registry.
    pub fn is_from_peers_alone(&self) -> bool {
        self.copies().0 == 0
    }

    /// The limit of copies, where no promise is the most generous of all.
    fn most_copies(&self) -> u32 {
        self.upstream_copies.unwrap_or(u32::MAX)
    }

    /// One pull for two jobs of the same namespace: the strictest of both.
    pub fn strictest(&self, other: &Self) -> Self {
        let source = self.source.strictest(other.source);
        let copies = [self.upstream_copies, other.upstream_copies].into_iter().flatten().min();
        // Where one lets mirrors give the image and the other one nobody, nobody gives it.
        let nobody = source != PullSource::PeersOnly && (self.is_from_peers_alone() || other.is_from_peers_alone());
        Self {
            timeout: self.timeout.min(other.timeout),
            retries: self.retries.min(other.retries),
            bandwidth: [self.bandwidth, other.bandwidth].into_iter().flatten().min(),
            source,
            upstream_copies: if nobody { Some(0) } else { copies },
            ..self.with(other, Sandbox::MOST_OF_A_NAMESPACE)
        }
    }

    /// One pull for jobs of two namespaces: the most generous of both, so that neither can throttle or fail the pull of the
    /// other.
    pub fn most_generous(&self, other: &Self) -> Self {
        self.with(other, Sandbox::MOST).at_least(other)
    }

    /// The same pull on terms that are at least as generous as those of the other one.
    pub fn at_least(&self, other: &Self) -> Self {
        Self {
            timeout: self.timeout.max(other.timeout),
            retries: self.retries.max(other.retries),
            bandwidth: self.bandwidth.zip(other.bandwidth).map(|(one, other)| one.max(other)),
            source: self.source.or(other.source),
            upstream_copies: self.upstream_copies.zip(other.upstream_copies).map(|(one, other)| one.max(other)),
            ..self.clone()
        }
    }

    /// The terms of `present`, but none stricter than these and none more generous than `most`.
    pub fn up_to(&self, present: &Self, most: &Self) -> Self {
        let limit = |pull: &Self| pull.bandwidth.unwrap_or(u64::MAX);
        let bandwidth = limit(present).min(limit(most)).max(limit(self));
        let copies = present.most_copies().min(most.most_copies()).max(self.most_copies());
        Self {
            timeout: present.timeout.min(most.timeout).max(self.timeout),
            retries: present.retries.min(most.retries).max(self.retries),
            bandwidth: Some(bandwidth).filter(|limit| *limit < u64::MAX),
            source: self.source.up_to(present.source, most.source),
            upstream_copies: Some(copies).filter(|copies| *copies < u32::MAX),
            ..self.clone()
        }
    }

    /// Whether a pull on these terms that failed would have failed on the others, too, as far as the terms decide that.
    pub fn is_as_generous_as(&self, other: &Self) -> bool {
        let limit = |pull: &Self| pull.bandwidth.unwrap_or(u64::MAX);
        let sources = self.source.includes(other.source) && self.most_copies() >= other.most_copies();
        self.timeout >= other.timeout && self.retries >= other.retries && limit(self) >= limit(other) && sources
    }

    /// What is the same in both cases: the registry is asked if either wants that, the higher priority counts, and a runtime is told
    /// what both say, up to so many labels and annotations; where they differ, what this one says.
    fn with(&self, other: &Self, most: usize) -> Self {
        let sandbox = self.sandbox.with(&other.sandbox, most);
        let (policy, priority) = (self.policy.max(other.policy), self.priority.max(other.priority));
        Self { policy, priority, sandbox, ..self.clone() }
    }
}

/// What a runtime that pulls by itself is told about the pod that an image is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// Labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// Annotations of the pod.
    pub annotations: BTreeMap<String, String>,
}

impl Sandbox {
    /// Labels of one job, and so many annotations, at most: a job with more is refused where it is read.
    pub const MOST_OF_A_JOB: usize = 64;
    /// Those of all jobs of one namespace that an order serves. As many as of one job: what one namespace says leaves room for others.
    const MOST_OF_A_NAMESPACE: usize = Self::MOST_OF_A_JOB;
    /// Those of an order, whomever it serves.
    pub const MOST: usize = 1024;
    /// The bytes of all keys and values of one job, at most.
    pub const MOST_BYTES: usize = 32 * 1024;

    /// What both say, up to so many labels and annotations each; all that this one says is among them.
    fn with(&self, other: &Self, most: usize) -> Self {
        let join = |own: &BTreeMap<String, String>, others: &BTreeMap<String, String>| {
            let mut joined = own.clone();
            for (key, value) in others {
                if joined.len() >= most {
                    break;
                }
                joined.entry(key.clone()).or_insert_with(|| value.clone());
            }
            joined
        };
        Self { labels: join(&self.labels, &other.labels), annotations: join(&self.annotations, &other.annotations) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pulls() -> impl Strategy<Value = Pull> {
        let source = prop_oneof![Just(PullSource::Any), Just(PullSource::PeersOnly), Just(PullSource::MirrorsOnly)];
        let limits = (proptest::option::of(1..4u64), proptest::option::of(0..4u32));
        (source, 1..4u64, 0..4u32, limits).prop_map(|(source, timeout, retries, (bandwidth, upstream_copies))| Pull {
            policy: Policy::IfNotPresent,
            timeout: Duration::from_secs(timeout),
            retries,
            bandwidth,
            priority: 0,
            sandbox: Sandbox::default(),
            source,
            upstream_copies,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// A failure on the terms of two namespaces is one for both, so nothing that one of them allows may be missing.
        #[test]
        fn terms_of_two_namespaces_allow_what_each_of_them_allows(one in pulls(), other in pulls(), third in pulls()) {
            let both = one.most_generous(&other);
            prop_assert!(both.is_as_generous_as(&one) && both.is_as_generous_as(&other), "{both:?}");
            let all = both.at_least(&third);
            prop_assert!([&one, &other, &third].into_iter().all(|pull| all.is_as_generous_as(pull)), "{all:?}");
            let kept = one.up_to(&all, &both);
            prop_assert!(kept.is_as_generous_as(&one) && both.is_as_generous_as(&kept), "{kept:?}");
        }

        #[test]
        fn terms_of_one_namespace_allow_no_more_than_each_of_its_jobs(one in pulls(), other in pulls()) {
            let both = one.strictest(&other);
            for pull in [&one, &other] {
                prop_assert!(both.copies().0 <= pull.copies().0 || !pull.copies().1, "{both:?}");
                prop_assert!(pull.source.may_ask() || !both.source.may_ask(), "{both:?}");
            }
        }
    }
}

//! Where an image may come from, and how the wishes of several jobs become one.

use super::MIRRORS;

/// Where the bytes of an image may come from. Other nodes may give it in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PullSource {
    /// The registry, its mirrors and other nodes.
    #[default]
    Any,
    /// Other nodes alone: the registry is asked what a tag means, and nothing is fetched from it.
    PeersOnly,
    /// Mirrors that the node's settings name, and other nodes: the registry itself is asked nothing, not even whether the node may have the image. Only
    /// jobs of objects without a namespace may want this, because other nodes give an image to whoever was ordered to have it.
    MirrorsOnly,
    /// What [`PeersOnly`](Self::PeersOnly) and [`MirrorsOnly`](Self::MirrorsOnly) allow together, in an order for jobs of both: the registry is asked what a
    /// tag means, and nothing is fetched from it. No job wants this.
    PeersOrMirrors,
    /// What [`Any`](Self::Any) and [`MirrorsOnly`](Self::MirrorsOnly) allow together, in an order for jobs of both: as `Any`, without the question whether the
    /// node may have the image. No job wants this.
    AnyOrMirrors,
}

/// What a source allows besides other nodes.
#[derive(Clone, Copy)]
struct Allowed {
    /// To fetch from the registry itself.
    fetches: bool,
    /// To ask the registry itself, for a tag or for permission.
    asks: bool,
    /// To fetch from mirrors.
    mirrors: bool,
    /// To read from other nodes without the registry's permission.
    unasked: bool,
}

impl PullSource {
    /// Who includes another one comes after it.
    const ALL: [Self; 5] = [Self::PeersOnly, Self::MirrorsOnly, Self::PeersOrMirrors, Self::Any, Self::AnyOrMirrors];

    fn allowed(self) -> Allowed {
        let (fetches, asks, mirrors, unasked) = match self {
            Self::PeersOnly => (false, true, false, false),
            Self::MirrorsOnly => (false, false, true, true),
            Self::PeersOrMirrors => (false, true, true, true),
            Self::Any => (true, true, true, false),
            Self::AnyOrMirrors => (true, true, true, true),
        };
        Allowed { fetches, asks, mirrors, unasked }
    }

    /// Whether mirrors may give the image, and the registry itself may not.
    pub fn is_from_mirrors_alone(self) -> bool {
        let allowed = self.allowed();
        allowed.mirrors && !allowed.fetches
    }

    /// Whether the registry itself may be asked for anything. Where it may not, it must hear nothing of the node.
    pub fn may_ask(self) -> bool {
        self.allowed().asks
    }

    /// Whether a node asks the registry for permission before it reads the image from other nodes.
    pub fn needs_permission(self) -> bool {
        !self.allowed().unasked
    }

    /// The feature of an agent that an order with this source needs.
    pub fn feature(self) -> Option<&'static str> {
        (!matches!(self, Self::Any | Self::PeersOnly)).then_some(MIRRORS)
    }

    /// Whether all that the other one allows is allowed here, too.
    pub fn includes(self, other: Self) -> bool {
        let (own, other) = (self.allowed(), other.allowed());
        let pairs = [
            (own.fetches, other.fetches),
            (own.asks, other.asks),
            (own.mirrors, other.mirrors),
            (own.unasked, other.unasked),
        ];
        pairs.into_iter().all(|(own, other)| own || !other)
    }

    /// What both allow together, and as little else as possible.
    pub fn or(self, other: Self) -> Self {
        let both = |source: &Self| source.includes(self) && source.includes(other);
        Self::ALL.into_iter().find(both).unwrap_or(Self::AnyOrMirrors)
    }

    /// What keeps the promises of both. Whether a node needs permission is no promise: in one namespace what one job may have, all may.
    pub(super) fn strictest(self, other: Self) -> Self {
        let strict = [Self::MirrorsOnly, Self::PeersOnly, Self::PeersOrMirrors, Self::AnyOrMirrors];
        strict.into_iter().find(|source| [self, other].contains(source)).unwrap_or_default()
    }

    /// This, and as much of `present` as `most` allows.
    pub(super) fn up_to(self, present: Self, most: Self) -> Self {
        let all = self.or(present);
        let fits = |source: &Self| source.includes(self) && all.includes(*source) && most.includes(*source);
        Self::ALL.into_iter().rev().find(fits).unwrap_or(self)
    }
}

#[cfg(test)]
mod tests {
    use super::PullSource::{Any, AnyOrMirrors, MirrorsOnly, PeersOnly, PeersOrMirrors};
    use super::*;

    #[test]
    fn two_sources_together_are_the_least_that_includes_both() {
        for (one, other, together) in [
            (Any, PeersOnly, Any),
            (Any, MirrorsOnly, AnyOrMirrors),
            (PeersOnly, MirrorsOnly, PeersOrMirrors),
            (PeersOrMirrors, Any, AnyOrMirrors),
            (PeersOrMirrors, PeersOnly, PeersOrMirrors),
            (PeersOrMirrors, MirrorsOnly, PeersOrMirrors),
        ] {
            assert_eq!((one.or(other), other.or(one)), (together, together), "{one:?} and {other:?}");
        }
        for one in PullSource::ALL {
            assert_eq!((one.or(one), one.or(AnyOrMirrors)), (one, AnyOrMirrors), "{one:?}");
            for other in PullSource::ALL {
                let together = one.or(other);
                assert!(together.includes(one) && together.includes(other), "{one:?} and {other:?}");
                for third in PullSource::ALL.into_iter().filter(|third| third.includes(one) && third.includes(other)) {
                    assert!(third.includes(together), "{one:?} and {other:?} are less than {together:?}");
                }
                assert_eq!(one.includes(other) && other.includes(one), one == other, "{one:?} and {other:?}");
            }
        }
    }

    #[test]
    fn nobody_is_allowed_more_than_the_bounds() {
        for own in PullSource::ALL {
            for present in PullSource::ALL {
                for most in PullSource::ALL.into_iter().filter(|most| most.includes(own)) {
                    let source = own.up_to(present, most);
                    assert!(source.includes(own) && most.includes(source), "{own:?} {present:?} {most:?}");
                    let stays = present.includes(own) && most.includes(present);
                    assert!(!stays || source == present, "{own:?} {present:?} {most:?}");
                }
            }
        }
    }

    /// The registry hears nothing where a job of the namespace promises that, and gives nothing where one promises that.
    #[test]
    fn the_strictest_keeps_all_promises() {
        for one in PullSource::ALL {
            for other in PullSource::ALL {
                let source = one.strictest(other);
                assert_eq!(source, other.strictest(one));
                assert!(!source.may_ask() || one.may_ask() && other.may_ask(), "{one:?} and {other:?}");
                let fetches = |source: PullSource| source.allowed().fetches;
                assert!(!fetches(source) || fetches(one) && fetches(other), "{one:?} and {other:?}");
            }
        }
    }
}

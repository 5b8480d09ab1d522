//! The bytes of a blob from other nodes.
//!
//! A list of nodes comes in, which may change at any time; the blob is written on from where it is, from one node after the other,
//! until it is whole or the registry is to be asked. What a node gives that still receives the blob itself comes as it comes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::pump::{self, BodyEnd};
use super::{BlobCheck, Chances, Fetch};
use crate::Error;
use crate::peer::key::PeerId;
use crate::peer::read::{Peer, PeerLine, PeerProblem};
use crate::peer::ways::{PeerList, PeerWays};
use crate::registry::{BlobBody, Party};
use crate::spool::{CurrentSource, SpoolWriter};

/// A node that sends nothing for so long is asked how far it is.
const SILENCE: Duration = Duration::from_secs(2);
/// It must answer that within this time.
const PROBE: Duration = Duration::from_millis(500);
/// When nobody gives anything, they are asked again after this time, or after this one if somebody will have it soon.
pub(crate) const ROUND: Duration = Duration::from_secs(5);
pub(crate) const SOON: Duration = Duration::from_millis(250);
/// A node whose order waits for its turn says for as long as that takes that the image will come. After so long the controller is to know.
pub(crate) const COMES_WITHIN: Duration = Duration::from_secs(30);
/// A silent node that says that it waits itself is waited for. After so long the controller is to know: it knows whether the node's own source is away, and a node
/// can say so for ever that gives nothing to anybody.
const WAITS_WITHIN: Duration = Duration::from_secs(120);
/// So many bytes count as something that came: 1 KiB a second. A single byte now and then is nothing.
const SOMETHING: u64 = 1024 * WAITS_WITHIN.as_secs();
/// A node that was just named may take so long until it has the first byte, or until it has heard of the image at all; then others are
/// asked.
pub(crate) const BEGINS_WITHIN: Duration = Duration::from_secs(5);
/// When nobody gives anything and the blob is wanted for other images, too, their nodes are asked after this time.
const ELSEWHERE: Duration = Duration::from_secs(1);

/// What is left to do.
pub(super) enum PeersEnd {
    /// Nothing.
    Whole,
    /// The registry is to be asked for the rest.
    Upstream(SpoolWriter),
    /// No node of the list gives anything, and there are other sources; or nobody wants the blob from this list any more.
    Nobody(SpoolWriter),
}

/// Who gave what turned out corrupt.
#[derive(Default)]
struct Blame {
    gave: Vec<Peer>,
    suspected: BTreeMap<PeerId, u32>,
}

impl Blame {
    fn gave(&mut self, peer: &Peer) {
        if !self.gave.iter().any(|other| other.id == peer.id) {
            self.gave.push(peer.clone());
        }
    }

    /// The blob is corrupt; says who lied. One that gave all of it did, and so did whoever gave a part of it twice: a node that was deceived
    /// itself begins anew, and is right the second time.
    fn corrupt(&mut self, innocent: bool) -> Vec<Peer> {
        let gave = std::mem::take(&mut self.gave);
        if innocent {
            return Vec::new();
        }
        let alone = gave.len() == 1;
        let mut lied = |peer: &Peer| {
            let times = self.suspected.entry(peer.id).or_default();
            *times += 1;
            alone || *times > 1
        };
        gave.into_iter().filter(|peer| lied(peer)).collect()
    }
}

impl Fetch<'_> {
    pub(super) async fn read_peers(
        &self,
        source: &CurrentSource,
        ways: &PeerWays,
        mut writer: SpoolWriter,
        chances: &mut Chances,
    ) -> Result<PeersEnd, Error> {
        let (mut changes, mut joined) = (ways.changes(), self.core.joined.subscribe());
        let blob = self.core.descriptor.digest();
        let mut list = PeerList::default();
        let mut gone: BTreeSet<PeerId> = BTreeSet::new();
        let mut blame = Blame::default();
        // When these nodes were named, and when something came last or they were named.
        let mut told = Instant::now();
        let mut came = Came { last: told, length: writer.length() };
        loop {
            self.core.pulse.rests();
            if writer.length() == self.core.descriptor.size() {
                let BlobCheck::Bad(bad, actual) = self.check(writer).await? else { return Ok(PeersEnd::Whole) };
                tracing::warn!(blob = %self.core.descriptor.digest(), actual, "corrupt, reading it again");
                writer = self.restart(bad).await?;
                // A part may be from an earlier fetch: then nobody is blamed.
                let innocent = std::mem::take(&mut chances.inherited);
                blame.corrupt(innocent).iter().for_each(|peer| ways.lied(peer));
            }
            if source.is_gone() {
                return Ok(PeersEnd::Nobody(writer));
            }
            let now = changes.borrow_and_update().list.clone();
            if std::mem::replace(&mut list, now) != list {
                gone.clear();
                told = Instant::now();
                came = Came { last: told, length: writer.length() };
            }
            if list.upstream {
                return Ok(PeersEnd::Upstream(writer));
            }
            let (mut soon, mut moved) = (false, false);
            let before = writer.length();
            for (turn, peer) in ways.in_turn(&list, &gone).into_iter().enumerate() {
                let opened = ways.reader().open(&peer, &list.ticket, &self.core.descriptor, writer.length()).await;
                let body = match opened {
                    Ok(body) => {
                        BlobBody::of_peer(body, writer.length(), Party::new(&peer.node, &peer.addr.to_string()))
                    }
                    Err(problem) => {
                        // It is told of the image at about the same time, perhaps a moment later, and begins then.
                        let begins = problem.may_be_early() && told.elapsed() < BEGINS_WITHIN;
                        soon |= begins || problem.is_passing(came.last.elapsed());
                        // Whoever goes to the next node at once takes a part of the uplink that others depend on.
                        if begins && turn == 0 {
                            break;
                        }
                        if begins {
                            continue;
                        }
                        if problem == PeerProblem::Gone {
                            gone.insert(peer.id);
                        }
                        ways.failed(&peer, problem);
                        continue;
                    }
                };
                ways.gives(&peer, blob);
                let length = writer.length();
                let leave = async {
                    tokio::select! {
                        () = ways.leave(&peer) => {}
                        () = source.goes() => {}
                    }
                };
                let (back, end) = pump::pump(self.core, &source.source.image, writer, body, SILENCE, leave).await?;
                if back.length() > length {
                    blame.gave(&peer);
                    came.has(back.length());
                }
                writer = back;
                let error = match end {
                    BodyEnd::Failed(error) => error,
                    BodyEnd::Whole(_) => break,
                    BodyEnd::Left => {
                        moved = true;
                        break;
                    }
                };
                if error.is_stall() && may_wait(came.last) && self.is_waiting_too(ways, &list, &peer).await {
                    soon = true;
                    break;
                }
                ways.failed(&peer, PeerProblem::Unreachable(error.brief()));
                if writer.length() > before {
                    break;
                }
            }
            if moved || writer.length() > before || writer.length() == self.core.descriptor.size() {
                continue;
            }
            if !soon {
                ways.nobody_gives(blob);
            }
            let pause = match (soon, self.core.has_other_source(source.id)) {
                (true, _) => SOON,
                (false, true) => ELSEWHERE,
                (false, false) => ROUND,
            };
            tokio::select! {
                Ok(()) = changes.changed() => {}
                Ok(()) = joined.changed() => {}
                () = source.goes() => {}
                () = sleep(pause) => if !soon && self.core.has_other_source(source.id) {
                    return Ok(PeersEnd::Nobody(writer));
                },
            }
        }
    }

    /// Whether a silent node is alive and has nothing more itself, and nobody else of the list has.
    async fn is_waiting_too(&self, ways: &PeerWays, list: &PeerList, peer: &Peer) -> bool {
        let state = |peer: Peer| async move {
            let asked = timeout(PROBE, ways.reader().state(&mut PeerLine::default(), &peer, &list.ticket)).await;
            asked.ok().and_then(Result::ok)
        };
        let Some(theirs) = state(peer.clone()).await.filter(|state| !state.whole) else { return false };
        for other in ways.in_turn(list, &BTreeSet::new()).into_iter().filter(|other| other.id != peer.id) {
            if state(other).await.is_some_and(|other| other.whole || other.have > theirs.have) {
                return false;
            }
        }
        true
    }
}

/// When something came.
#[derive(Clone, Copy, Debug)]
struct Came {
    last: Instant,
    /// What was here then.
    length: u64,
}

impl Came {
    /// So much is here now.
    fn has(&mut self, length: u64) {
        // A blob that was corrupt begins anew.
        self.length = self.length.min(length);
        if length >= self.length + SOMETHING {
            *self = Self { last: Instant::now(), length };
        }
    }
}

/// Whether nodes that say that they wait themselves are believed, when something came last or they were named at this time.
fn may_wait(came: Instant) -> bool {
    came.elapsed() < WAITS_WITHIN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::PeerIdentity;

    /// The sockets of whole fetches are real, and would fire all time-outs under a clock that stands.
    #[tokio::test(start_paused = true)]
    async fn a_silent_node_is_waited_for_two_minutes() {
        let came = Instant::now();
        assert!(may_wait(came));
        tokio::time::advance(Duration::from_millis(119_999)).await;
        assert!(may_wait(came));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!may_wait(came));
    }

    /// A node could give a byte every two minutes, and be waited for until the image has failed.
    #[tokio::test(start_paused = true)]
    async fn a_few_bytes_are_nothing_that_came() {
        let mut came = Came { last: Instant::now(), length: 0 };
        for second in 1..=119 {
            tokio::time::advance(Duration::from_secs(1)).await;
            came.has(second);
        }
        assert!(may_wait(came.last));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!may_wait(came.last));
        came.has(SOMETHING);
        assert!(may_wait(came.last), "64 kbit/s are enough");
        came.has(10);
        assert_eq!(came.length, 10, "it begins anew");
    }

    #[test]
    fn who_gave_all_of_it_lied_and_who_gave_parts_of_it_twice() {
        let peer = |name: &str| Peer {
            node: name.into(),
            addr: ([127, 0, 0, 1], 1).into(),
            id: PeerIdentity::generate().unwrap().id(),
            far: false,
        };
        let (a, b) = (peer("a"), peer("b"));
        let names = |lied: Vec<Peer>| lied.iter().map(|peer| peer.node.to_string()).collect::<Vec<_>>().join(" ");
        let mut blame = Blame::default();
        blame.gave(&a);
        assert_eq!(names(blame.corrupt(true)), "", "a part was here before");
        blame.gave(&a);
        blame.gave(&b);
        assert_eq!(names(blame.corrupt(false)), "");
        blame.gave(&b);
        blame.gave(&a);
        blame.gave(&a);
        assert_eq!(names(blame.corrupt(false)), "b a");
        let mut blame = Blame::default();
        blame.gave(&a);
        blame.gave(&a);
        assert_eq!(names(blame.corrupt(false)), "a");
    }
}

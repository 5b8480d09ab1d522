//! Looks at the nodes of a list while an image grows, and moves the image inside the list as the rules say.

use std::collections::BTreeMap;
use std::convert::Infallible;

use futures::future::join_all;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::read::{Peer, PeerLine};
use super::rules::{Circumstances, EVERY, Look, LookHistory, Move, decide};
use super::serve::PeerState;
use super::ways::{PeerList, PeerWays};

/// How far this node is itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnState {
    /// The bytes of the image that are here.
    pub have: u64,
    /// Whether more is to come.
    pub growing: bool,
    /// How many nodes read it from here.
    pub readers: u32,
    /// The bytes a second that this node can expect, where that is known.
    pub usual: Option<u64>,
}

impl PeerWays {
    /// Looks at the listed nodes for as long as it is polled, moves all blobs to another one where that is better, and notes where this node
    /// is too slow for those that read from it.
    pub async fn mind(&self, own: impl Fn() -> OwnState) -> Infallible {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut list, mut history) = (PeerList::default(), LookHistory::default());
        let mut whole: BTreeMap<usize, PeerState> = BTreeMap::new();
        // A connection to each node of the list that is asked.
        let mut lines: Vec<PeerLine> = Vec::new();
        loop {
            ticks.tick().await;
            let now = self.list();
            if std::mem::replace(&mut list, now) != list {
                history = LookHistory::default();
                whole.clear();
                lines.clear();
            }
            let state = own();
            // With a single node there is nowhere to go, but still something to tell.
            let from = self.place(&list).filter(|_| state.growing && !list.upstream);
            let Some(from) = from else {
                lines.clear();
                continue;
            };
            lines.resize_with(list.peers.len(), PeerLine::default);
            // A node that has all of the image has it at the next look, too: hundreds of nodes may have it in their lists.
            let known = |at: usize| whole.get(&at).copied().filter(|_| at != from);
            let listed = &list;
            let peers = listed.peers.iter().zip(&mut lines).enumerate().map(|(at, (peer, line))| {
                let known = known(at);
                async move {
                    match known {
                        Some(_) => {
                            *line = PeerLine::default();
                            known
                        }
                        None => self.look(line, peer, listed).await,
                    }
                }
            });
            let peers = join_all(peers).await;
            whole.extend(
                peers.iter().enumerate().filter_map(|(at, state)| Some((at, (*state).filter(|state| state.whole)?))),
            );
            history.add(Look { have: own().have, readers: state.readers, peers }, from);
            let far = list.peers.iter().map(|peer| peer.far).collect();
            let decided = decide(&history, &Circumstances { far, usual: state.usual });
            match decided {
                Move::Stay => {}
                Move::Try(to) | Move::Back(to) | Move::Yield(to) => {
                    if let Some(peer) = list.peers.get(to) {
                        tracing::debug!(node = %peer.node, ?decided, "the image is read from another node");
                        self.move_to(&list, peer);
                    }
                }
                Move::Tell => self.lag(),
            }
            history.moved(decided);
        }
    }

    /// How far a node is, if it answers before the next look. One that lied is not asked.
    async fn look(&self, line: &mut PeerLine, peer: &Peer, list: &PeerList) -> Option<PeerState> {
        if self.has_lied(peer) {
            *line = PeerLine::default();
            return None;
        }
        timeout(EVERY * 4 / 5, self.reader().state(line, peer, &list.ticket)).await.ok()?.ok()
    }
}

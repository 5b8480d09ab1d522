//! Looks at the nodes of a list while an image grows, and moves the image inside the list as the rules say.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, join_all};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::read::{Peer, PeerLine};
use super::rules::drought::Flow;
use super::rules::{Circumstances, EVERY, Look, LookHistory, Move, claims_more, decide};
use super::serve::PeerState;
use super::ways::{PeerList, PeerWays};

/// What a node has said counts for so long.
const COUNTS: Duration = Duration::from_secs(1);

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
    /// With fewer bytes a second the image will not be here before its attempts are over.
    pub least: u64,
    /// Whether a blob waits for bytes of another node, and for no limit, disk or turn of this one.
    pub waits: bool,
}

impl PeerWays {
    /// Looks at the listed nodes for as long as it is polled, moves all blobs to another one where that is better, and notes where this node
    /// is too slow for those that read from it, and where the list gives too little.
    pub async fn mind(&self, own: impl Fn() -> OwnState) -> Infallible {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut list, mut history) = (PeerList::default(), LookHistory::default());
        let mut whole: BTreeMap<usize, PeerState> = BTreeMap::new();
        let mut watched: Vec<WatchedPeer> = Vec::new();
        loop {
            ticks.tick().await;
            let now = self.list();
            if std::mem::replace(&mut list, now) != list {
                history = LookHistory::default();
                whole.clear();
                watched.clear();
            }
            let state = own();
            // With a single node there is nowhere to go, but still something to tell.
            let from = self.place(&list).filter(|_| state.growing && !list.upstream);
            let Some(from) = from else {
                watched.clear();
                continue;
            };
            watched.resize_with(list.peers.len(), WatchedPeer::default);
            // A node that has all of the image has it at the next look, too: hundreds of nodes may have it in their lists.
            let known = |at: usize| whole.get(&at).copied().filter(|_| at != from);
            let listed = &list;
            let peers = listed.peers.iter().zip(&mut watched).enumerate().map(|(at, (peer, watched))| {
                let known = known(at);
                async move {
                    if known.is_some() || self.has_lied(peer) {
                        *watched = WatchedPeer::default();
                        return known;
                    }
                    watched.look(self, peer, listed).await
                }
            });
            let peers = join_all(peers).await;
            whole.extend(
                peers.iter().enumerate().filter_map(|(at, state)| Some((at, (*state).filter(|state| state.whole)?))),
            );
            tracing::trace!(from, have = own().have, readers = state.readers, usual = ?state.usual, ?peers, "looked");
            history.add(Look { have: own().have, readers: state.readers, peers }, from);
            let far = list.peers.iter().map(|peer| peer.far).collect();
            let circumstances = Circumstances { far, usual: state.usual, least: state.least };
            let flow = Flow { have: own().have, waits: state.waits, claims: claims_more(&history) };
            self.flows(flow, &circumstances);
            let decided = decide(&history, &circumstances);
            match decided {
                Move::Stay => {}
                Move::Try(to) | Move::Back(to) => {
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
}

/// A node of the list, and what it says of itself. Its answers may take longer than the time between two looks: the link of a node that everybody waits for is
/// full.
#[derive(Default)]
struct WatchedPeer {
    /// The connection, while nothing is asked on it.
    line: PeerLine,
    /// The question that is under way. It brings the connection back.
    asked: Option<BoxFuture<'static, (PeerLine, Option<PeerState>)>>,
    /// The last answer, and when it came.
    said: Option<(PeerState, Instant)>,
}

impl WatchedPeer {
    /// How far the node is. If it does not answer before the next look, what it said shortly before.
    async fn look(&mut self, ways: &PeerWays, peer: &Peer, list: &PeerList) -> Option<PeerState> {
        let asked = self.asked.get_or_insert_with(|| {
            let mut line = std::mem::take(&mut self.line);
            let (reader, peer, ticket) = (ways.reader().clone(), peer.clone(), list.ticket.clone());
            async move {
                let state = reader.state(&mut line, &peer, &ticket).await.ok();
                (line, state)
            }
            .boxed()
        });
        if let Ok((line, state)) = timeout(EVERY * 4 / 5, asked).await {
            (self.asked, self.line) = (None, line);
            self.said = state.map(|state| (state, Instant::now()));
        }
        self.said.filter(|(_, when)| when.elapsed() < COUNTS).map(|(state, _)| state)
    }
}

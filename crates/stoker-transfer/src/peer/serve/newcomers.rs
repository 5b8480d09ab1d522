//! Connections that have shown no good ticket yet. In: connections as they come, with the address that each comes from. Out: which of them must go. Whoever
//! opens connections and shows no ticket keeps no reader out: a reader shows its ticket at once, and the others make room. It reads nothing and closes
//! nothing itself.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// When all places are taken, an address that holds more than this loses its oldest connection. A reader opens a few connections at one time.
const FAIR_SHARE: usize = 4;
/// Where no address holds more than its share, the oldest connection makes room once it has been here for this long: readers wait no longer for an answer. Before
/// that any of them does: a reader needs its place for a few milliseconds only, and many strangers that come again all the time cannot keep it out.
const GRACE: Duration = Duration::from_secs(1);

/// Everybody without a ticket.
#[derive(Debug)]
pub(super) struct Newcomers {
    most: usize,
    /// Each must have shown a ticket after this time.
    within: Duration,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    next: u64,
    /// The oldest first.
    taken: BTreeMap<u64, Taken>,
}

#[derive(Debug)]
struct Taken {
    from: IpAddr,
    since: Instant,
    pushed: CancellationToken,
}

impl Newcomers {
    /// At most so many at one time, and each for no longer than this.
    pub(super) fn new(most: usize, within: Duration) -> Self {
        Self { most: most.max(1), within, places: Mutex::default() }
    }

    /// One more, which may push another one out.
    pub(super) fn enter(self: &Arc<Self>, from: IpAddr) -> Newcomer {
        let (from, since, pushed) = (source(from), Instant::now(), CancellationToken::new());
        let mut places = self.places();
        if places.taken.len() >= self.most
            && let Some(victim) = places.victim(from, since, chance())
            && let Some(victim) = places.taken.remove(&victim)
        {
            victim.pushed.cancel();
        }
        let id = places.next;
        places.next += 1;
        places.taken.insert(id, Taken { from, since, pushed: pushed.clone() });
        drop(places);
        let known = CancellationToken::new();
        Newcomer { id, all: self.clone(), until: since + self.within, pushed, known }
    }

    /// Nothing is ever half-written under this lock, so a poisoned one is as good as any.
    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    /// Who makes room for a connection from this address: the oldest one of the address that holds most, if that is more than its share; else the oldest of
    /// all, or one by chance where that has just come.
    fn victim(&self, from: IpAddr, now: Instant, chance: u64) -> Option<u64> {
        let mut held = HashMap::from([(from, 1)]);
        self.taken.values().for_each(|taken| *held.entry(taken.from).or_default() += 1);
        let most = held.values().copied().max().unwrap_or_default();
        if most > FAIR_SHARE {
            let greedy = |taken: &Taken| held.get(&taken.from) == Some(&most);
            return self.taken.iter().find(|(_, taken)| greedy(taken)).map(|(id, _)| *id);
        }
        let (id, oldest) = self.taken.first_key_value()?;
        if now.duration_since(oldest.since) >= GRACE {
            return Some(*id);
        }
        let at = chance.checked_rem(self.taken.len() as u64).and_then(|at| usize::try_from(at).ok())?;
        self.taken.keys().nth(at).copied()
    }
}

/// A number that nobody else can foresee.
fn chance() -> u64 {
    RandomState::new().hash_one(0)
}

/// What counts as one address: of IPv6 the network, of which one host may have every address.
fn source(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address @ IpAddr::V4(_) => address,
    }
}

/// One of them, until it has shown a good ticket or is gone.
#[derive(Debug)]
pub(super) struct Newcomer {
    id: u64,
    all: Arc<Newcomers>,
    until: Instant,
    pushed: CancellationToken,
    known: CancellationToken,
}

impl Newcomer {
    /// Whether it has shown a good ticket.
    pub(super) fn is_known(&self) -> bool {
        self.known.is_cancelled()
    }

    /// It has shown a good ticket: it may stay, and counts no more.
    pub(super) fn becomes_known(&self) {
        self.known.cancel();
        self.leave();
    }

    /// Waits until it must go; for ever where it is known.
    pub(super) async fn must_go(&self) {
        tokio::select! {
            biased;
            () = self.known.cancelled() => std::future::pending().await,
            () = self.pushed.cancelled() => {}
            () = sleep_until(self.until) => {}
        }
    }

    fn leave(&self) {
        self.all.places().taken.remove(&self.id);
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn goes(newcomer: &Newcomer) -> bool {
        newcomer.must_go().now_or_never().is_some()
    }

    fn all(most: usize) -> Arc<Newcomers> {
        Arc::new(Newcomers::new(most, Duration::from_secs(5)))
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_holds_many_connections_pushes_out_its_own() {
        let all = all(8);
        let reader = all.enter(ip(1));
        let held: Vec<Newcomer> = (0..27).map(|_| all.enter(ip(2))).collect();
        assert!(!goes(&reader), "although it is the oldest");
        let left: Vec<usize> = (0..held.len()).filter(|at| !goes(&held[*at])).collect();
        assert_eq!(left, (20..27).collect::<Vec<_>>(), "the latest");
        let another = all.enter(ip(3));
        assert!(goes(&held[20]) && !goes(&reader) && !goes(&another));
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_addresses_the_oldest_connection_goes() {
        let all = all(8);
        let held: Vec<Newcomer> = (0..8).map(|host| all.enter(ip(host))).collect();
        assert!(!held.iter().any(goes));
        tokio::time::sleep(GRACE).await;
        let reader = all.enter(ip(9));
        assert_eq!(held.iter().map(goes).collect::<Vec<_>>(), [true, false, false, false, false, false, false, false]);
        assert!(!goes(&reader));
    }

    #[tokio::test(start_paused = true)]
    async fn strangers_with_many_addresses_that_come_again_all_the_time_keep_no_reader_out() {
        let all = all(8);
        let mut strangers: Vec<Newcomer> = (0..8).map(|host| all.enter(ip(host))).collect();
        let mut served = 0;
        for _ in 0..200 {
            let reader = all.enter(ip(99));
            // While it shows its ticket somebody comes again.
            strangers.retain(|stranger| !goes(stranger));
            strangers.push(all.enter(ip(0)));
            served += usize::from(!goes(&reader));
            drop(reader);
            strangers.push(all.enter(ip(1)));
            strangers.retain(|stranger| !goes(stranger));
        }
        assert!(served > 100, "{served} of 200");
        assert!(all.places().taken.len() <= 8);
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_shown_a_ticket_stays_and_who_has_not_goes_in_time() {
        let all = all(2);
        let (first, second) = (all.enter(ip(1)), all.enter(ip(2)));
        first.becomes_known();
        let third = all.enter(ip(3));
        assert!(first.is_known() && ![&first, &second, &third].into_iter().any(goes), "one of the three is known");
        drop(second);
        let fourth = all.enter(ip(4));
        assert!(!goes(&third) && !goes(&fourth), "one has left");
        third.must_go().await;
        fourth.must_go().await;
        assert!(tokio::time::timeout(Duration::from_secs(3600), first.must_go()).await.is_err(), "it stays");
        drop((first, third, fourth));
        assert!(all.places().taken.is_empty());
    }

    #[test]
    fn a_host_with_many_addresses_is_one() {
        let from = |text: &str| source(text.parse().unwrap());
        assert_eq!(from("::ffff:10.0.0.1"), from("10.0.0.1"));
        assert_ne!(from("10.0.0.1"), from("10.0.0.2"));
        assert_eq!(from("2001:db8:1:2::1"), from("2001:db8:1:2:3:4:5:6"));
        assert_ne!(from("2001:db8:1:2::1"), from("2001:db8:1:3::1"));
    }
}

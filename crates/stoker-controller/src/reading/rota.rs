//! Which Secret is read next. Namespaces take turns, so the many names of one delay no Secret of another; a Secret that is missing or
//! may not be read is looked for less and less often. Time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use stoker_core::SecretId;
use tokio::time::Instant;

/// A Secret that has changed is used within ten seconds.
const AGAIN: Duration = Duration::from_secs(8);

/// A Secret that is missing is looked for soon, because it may be made together with its job; then less and less often, and at least
/// this often.
const SOON: Duration = Duration::from_secs(2);
const AT_LEAST: Duration = Duration::from_secs(60);

/// So many Secrets are read again in a second; of more, each is read less often.
const PACE: Duration = Duration::from_millis(20);

/// Requests at one time, and those of them that may be of one namespace.
const AT_ONCE: usize = 8;
const AT_ONCE_OF_A_NAMESPACE: usize = 4;

/// What is read, and when.
pub(super) struct Rota {
    wanted: BTreeSet<SecretId>,
    lanes: BTreeMap<String, RotaLane>,
    /// The namespace that was last served.
    last: String,
    running: usize,
    /// When a Secret may be read again. What a job waits for is not held back by it.
    next_repeat: Instant,
}

/// The Secrets of a namespace.
#[derive(Default)]
struct RotaLane {
    /// Those that a job waits for.
    urgent: BTreeSet<SecretId>,
    repeats: BTreeSet<(Instant, SecretId)>,
    /// How long each rests when it is missing, and when it is read again, where it waits for that.
    known: BTreeMap<SecretId, (Duration, Option<Instant>)>,
    running: usize,
}

impl RotaLane {
    /// Sets when a Secret is read again.
    fn schedule(&mut self, id: &SecretId, pause: Duration, at: Option<Instant>) {
        if let Some((_, Some(before))) = self.known.insert(id.clone(), (pause, at)) {
            self.repeats.remove(&(before, id.clone()));
        }
        self.repeats.extend(at.map(|at| (at, id.clone())));
    }

    fn forget(&mut self, id: &SecretId) {
        self.schedule(id, SOON, None);
        self.known.remove(id);
    }

    fn has_some(&self, now: Instant, may_repeat: bool) -> bool {
        let repeats = || self.repeats.first().is_some_and(|(at, _)| may_repeat && *at <= now);
        self.running < AT_ONCE_OF_A_NAMESPACE && (!self.urgent.is_empty() || repeats())
    }

    /// What is first, and whether it is read again.
    fn take(&mut self) -> Option<(SecretId, bool)> {
        let (id, is_repeat) = match self.urgent.pop_first() {
            Some(id) => (id, false),
            None => (self.repeats.first()?.1.clone(), true),
        };
        let pause = self.known.get(&id).map_or(SOON, |(pause, _)| *pause);
        self.schedule(&id, pause, None);
        self.running += 1;
        Some((id, is_repeat))
    }
}

impl Rota {
    pub(super) fn new(now: Instant) -> Self {
        Self { wanted: BTreeSet::new(), lanes: BTreeMap::new(), last: String::new(), running: 0, next_repeat: now }
    }

    /// Jobs name these Secrets. One that was asked for and is not among them is read once: it may be new.
    pub(super) fn want(&mut self, wanted: BTreeSet<SecretId>, now: Instant) {
        for id in wanted.difference(&self.wanted) {
            let lane = self.lanes.entry(id.namespace.clone()).or_default();
            if !lane.known.contains_key(id) {
                lane.schedule(id, SOON, Some(now + AGAIN));
            }
        }
        for id in self.wanted.difference(&wanted) {
            if let Some(lane) = self.lanes.get_mut(&id.namespace) {
                lane.forget(id);
            }
        }
        self.wanted = wanted;
        self.lanes.retain(|_, lane| lane.running > 0 || !lane.urgent.is_empty() || !lane.known.is_empty());
    }

    /// A job waits for this Secret: it is read at once, and often again although it may have been missing for long.
    pub(super) fn ask(&mut self, id: SecretId) {
        let lane = self.lanes.entry(id.namespace.clone()).or_default();
        lane.schedule(&id, SOON, None);
        lane.urgent.insert(id);
    }

    /// What is to be read now.
    pub(super) fn next(&mut self, now: Instant) -> Option<SecretId> {
        if self.running >= AT_ONCE {
            return None;
        }
        let may_repeat = self.next_repeat <= now;
        let after = (Bound::Excluded(self.last.clone()), Bound::Unbounded);
        let mut turns = self.lanes.range::<String, _>(after).chain(&self.lanes);
        let (name, _) = turns.find(|(_, lane)| lane.has_some(now, may_repeat))?;
        self.last = name.clone();
        let (id, is_repeat) = self.lanes.get_mut(&self.last)?.take()?;
        if is_repeat {
            self.next_repeat = now + PACE;
        }
        self.running += 1;
        Some(id)
    }

    /// It was read, and found or not.
    pub(super) fn read(&mut self, id: &SecretId, found: bool, now: Instant) {
        self.running = self.running.saturating_sub(1);
        let Some(lane) = self.lanes.get_mut(&id.namespace) else { return };
        lane.running = lane.running.saturating_sub(1);
        if !self.wanted.contains(id) {
            return lane.forget(id);
        }
        let pause = lane.known.get(id).map_or(SOON, |(pause, _)| *pause);
        let (rest, next) = if found { (AGAIN, SOON) } else { (pause, (pause * 2).min(AT_LEAST)) };
        lane.schedule(id, next, Some(now + rest));
    }

    /// When there is something to be read, if nothing happens until then.
    pub(super) fn wake(&self) -> Option<Instant> {
        if self.running >= AT_ONCE {
            return None;
        }
        let free = self.lanes.values().filter(|lane| lane.running < AT_ONCE_OF_A_NAMESPACE);
        let due = free.filter_map(|lane| lane.repeats.first()).map(|(at, _)| *at).min();
        due.map(|due| due.max(self.next_repeat))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn many(count: usize) -> BTreeSet<SecretId> {
        (0..count).map(|n| SecretId::new("evil", format!("bogus-{n}"))).collect()
    }

    /// What is read from `start` on for this long, and when, where an answer takes 10 ms and `exists` says what is found.
    fn reads(
        rota: &mut Rota,
        start: Instant,
        lasts: Duration,
        exists: impl Fn(&SecretId) -> bool,
    ) -> Vec<(SecretId, Duration)> {
        let (mut now, mut running, mut all) = (start, VecDeque::new(), Vec::new());
        while now < start + lasts {
            while running.front().is_some_and(|(at, _)| *at <= now) {
                let (_, id): (Instant, SecretId) = running.pop_front().unwrap();
                rota.read(&id, exists(&id), now);
            }
            while let Some(id) = rota.next(now) {
                all.push((id.clone(), now - start));
                running.push_back((now + 10 * MILLISECOND, id));
            }
            let next = running.front().map(|(at, _)| *at).into_iter().chain(rota.wake()).min();
            now = next.unwrap_or(start + lasts).max(now + MILLISECOND);
        }
        all
    }

    fn longest_gap(reads: &[(SecretId, Duration)], id: &SecretId) -> Duration {
        let at: Vec<Duration> = reads.iter().filter(|(read, _)| read == id).map(|(_, at)| *at).collect();
        at.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
    }

    #[tokio::test]
    async fn many_secrets_of_one_namespace_delay_none_of_another() {
        for there in [false, true] {
            let good = SecretId::new("good", "login");
            let start = Instant::now();
            let mut rota = Rota::new(start);
            let mut wanted = many(5_000);
            wanted.insert(good.clone());
            wanted.iter().for_each(|id| rota.ask(id.clone()));
            rota.want(wanted, start);
            let reads = reads(&mut rota, start, Duration::from_secs(300), |id| there || *id == good);
            assert!(longest_gap(&reads, &good) < Duration::from_secs(9), "{:?}", longest_gap(&reads, &good));
            let at = reads.iter().position(|(id, _)| *id == good).unwrap();
            assert!(at < 16, "it was the {at}th to be read");
            let distinct: BTreeSet<&SecretId> = reads.iter().map(|(id, _)| id).collect();
            assert_eq!(distinct.len(), 5_001, "all are read");
        }
    }

    #[tokio::test]
    async fn what_is_missing_is_looked_for_less_often_until_a_job_names_it_again() {
        let (id, start) = (SecretId::new("evil", "bogus"), Instant::now());
        let mut rota = Rota::new(start);
        rota.ask(id.clone());
        rota.want([id.clone()].into(), start);
        let rounded =
            |reads: Vec<(SecretId, Duration)>| -> Vec<u64> { reads.iter().map(|(_, at)| at.as_secs()).collect() };
        let five_minutes = Duration::from_secs(300);
        assert_eq!(rounded(reads(&mut rota, start, five_minutes, |_| false)), [0, 2, 6, 14, 30, 62, 122, 182, 242]);
        let later = start + five_minutes;
        rota.ask(id.clone());
        assert_eq!(rounded(reads(&mut rota, later, Duration::from_secs(30), |_| false)), [0, 2, 6, 14]);
        let later = later + Duration::from_secs(30);
        rota.ask(id);
        assert_eq!(rounded(reads(&mut rota, later, Duration::from_secs(30), |_| true)), [0, 8, 16, 24]);
        rota.want(BTreeSet::new(), later + Duration::from_secs(30));
        assert_eq!((rota.lanes.values().map(|lane| lane.known.len()).sum::<usize>(), rota.wake()), (0, None));
    }

    /// The list of all is told after what is needed now: what it does not have yet is read all the same.
    #[tokio::test]
    async fn what_was_asked_for_is_read_although_nobody_is_known_to_want_it_yet() {
        let (id, start) = (SecretId::new("shop", "login"), Instant::now());
        let mut rota = Rota::new(start);
        rota.ask(id.clone());
        rota.want(BTreeSet::new(), start);
        assert_eq!(rota.next(start), Some(id.clone()));
        rota.want([id.clone()].into(), start);
        rota.read(&id, true, start);
        assert_eq!(rota.wake(), Some(start + AGAIN));
    }
}

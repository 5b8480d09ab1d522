//! What the agent says in its NodePreheat's status, and when: ends at once, progress at the pace that its orders
//! set, one write in flight with the newest state next.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use stoker_api::native::from_core::Saying;
use stoker_core::Reason;
use stoker_core::model::{Key, Order, Phase, Report, after};
use stoker_core::pace::SIGN_OF_LIFE;
use stoker_core::step::{Task, TaskState};
use stoker_core::world::{REPORT_WEIGHT, ROOM_OF_ENDED};

use crate::messages;

/// What the API server has of this agent.
#[derive(Default)]
pub(crate) struct Acknowledged {
    pub(crate) reports: BTreeMap<Key, Report>,
}

impl Acknowledged {
    /// A write was acknowledged.
    pub(crate) fn acknowledge(&mut self, saying: &Saying) {
        for (key, report) in &saying.reports {
            match report {
                Some(report) => self.reports.insert(*key, report.clone()),
                None => self.reports.remove(key),
            };
        }
    }

    /// When the next write is due: now for an end, a retry or an answer of the registry; later for progress.
    pub(crate) fn due(
        &self,
        tasks: &BTreeMap<Key, Task>,
        orders: &BTreeMap<Key, Order>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let due = tasks.iter().filter_map(|(key, task)| {
            let report = &task.report;
            let said = self.reports.get(key);
            if urgent(said, report) {
                return Some(now);
            }
            if report.ended() {
                return None;
            }
            // That it waits for its turn is told along with what others do.
            if task.state == TaskState::Queued {
                return Some(after(said.map_or(report.started, |said| said.updated), SIGN_OF_LIFE));
            }
            let pace = orders.get(key).map_or(SIGN_OF_LIFE, |order| order.terms.progress);
            let stalls = |report: &Report| report.stalled.is_some();
            let moved = said.is_none_or(|said| said.bytes != report.bytes || stalls(said) != stalls(report));
            let last = said.map_or(report.started, |said| said.updated.max(report.started));
            Some(after(last, if moved { pace } else { SIGN_OF_LIFE.max(pace) }))
        });
        due.min()
    }

    /// Everything that is new, and what is to be forgotten along with it. `kept` are ended reports whose orders are gone.
    pub(crate) fn saying(&self, tasks: &BTreeMap<Key, Task>, kept: &KeptReports) -> Saying {
        let longest = messages::longest(tasks.values().map(|task| &task.report));
        let new = tasks.iter().map(|(key, task)| (key, messages::cut(&task.report, longest)));
        let new = new.filter(|(key, report)| self.reports.get(key) != Some(&**report));
        let new = new.map(|(key, report)| (*key, Some(report.into_owned())));
        let gone = self.reports.keys().filter(|key| !tasks.contains_key(key) && !kept.has(**key));
        let gone = gone.map(|key| (*key, None));
        Saying { reports: new.chain(gone).collect(), agent: None, disk: None }
    }
}

/// How many ended reports stay after their orders are gone, so that people can read how a job went. What all of them may take is not much: every
/// write of the object stores all of it once more, on thousands of nodes.
const KEPT: usize = 200;

/// Ended reports whose orders are gone, the newest ones. The API server has them; here is only which, when they ended and how
/// large they are.
#[derive(Default)]
pub(crate) struct KeptReports(BTreeMap<Key, (Timestamp, usize)>);

impl KeptReports {
    /// Keeps a report that is an end, and forgets the oldest ones where there are too many.
    pub(crate) fn keep(&mut self, key: Key, report: &Report) {
        if !matches!(report.phase, Phase::Succeeded | Phase::Failed) {
            return;
        }
        let jobs: usize = report.jobs.iter().map(|job| job.as_str().len() + 3).sum();
        let message: usize = report.message.chars().map(messages::length).sum();
        let bytes = REPORT_WEIGHT + message + jobs;
        self.0.insert(key, (report.finished.unwrap_or(report.updated), bytes));
        while self.0.len() > KEPT || self.0.values().map(|(_, bytes)| bytes).sum::<usize>() > ROOM_OF_ENDED {
            let oldest = self.0.iter().min_by_key(|(_, (finished, _))| *finished).map(|(key, _)| *key);
            let Some(oldest) = oldest else { return };
            self.0.remove(&oldest);
        }
    }

    fn has(&self, key: Key) -> bool {
        self.0.contains_key(&key)
    }

    /// There is an order under this key again.
    pub(crate) fn release(&mut self, key: Key) {
        self.0.remove(&key);
    }
}

fn urgent(said: Option<&Report>, report: &Report) -> bool {
    let answered = report.pin.is_some() && said.is_none_or(|said| said.pin != report.pin);
    // A stall is told at the pace of progress: a registry that stalls does so to the whole fleet.
    let failed = report.reason.is_some()
        && report.stalled.is_none()
        && said.is_none_or(|said| (said.reason, said.attempt) != (report.reason, report.attempt));
    // The controller finds another source, as soon as it knows which ones are none.
    let complains = matches!(report.reason, Some(Reason::NoSource | Reason::PeerLied))
        && said.is_none_or(|said| said.bad != report.bad);
    // It need not find one, where bytes come again.
    let relents = report.reason.is_none() && said.is_some_and(|said| said.reason == Some(Reason::NoSource));
    let told = |report: &Report| (report.phase, report.asked, report.present);
    let ended = report.ended() && said.is_none_or(|said| told(said) != told(report));
    answered || failed || complains || relents || ended
}

/// How long the loop may sleep.
pub(crate) fn until(due: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    due.map(|due| Duration::try_from(due.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, order};
    use stoker_api::native::from_core;
    use stoker_core::model::{Bytes, Pin};
    use stoker_core::step::{begin, succeed};

    #[test]
    fn a_pull_without_trouble_is_one_write_and_an_answer_one_more() {
        let key = Key::of("r/i:1");
        let orders = BTreeMap::from([(key, order())]);
        let mut said = Acknowledged::default();
        let mut task = begin(&order(), 1, None, at(0));
        let mut tasks = BTreeMap::from([(key, task.clone())]);
        assert_eq!(said.due(&tasks, &orders, at(1)), Some(at(20)), "a start is no news, progress comes at its pace");
        task.report.pin = Some(Pin::new(at(0), "sha256:a"));
        tasks.insert(key, task.clone());
        assert_eq!(said.due(&tasks, &orders, at(1)), Some(at(1)), "others wait for the answer");
        said.acknowledge(&said.saying(&tasks, &KeptReports::default()));
        let done = succeed(&order(), &task, "sha256:a".into(), Bytes::default(), at(2));
        tasks.insert(key, done);
        assert_eq!(said.due(&tasks, &orders, at(2)), Some(at(2)), "an end is told at once");
        said.acknowledge(&said.saying(&tasks, &KeptReports::default()));
        assert_eq!(said.due(&tasks, &orders, at(3)), None);
        tasks.clear();
        assert_eq!(said.due(&tasks, &orders, at(4)), None, "forgetting is no reason to write");
        assert_eq!(
            said.saying(&tasks, &KeptReports::default()).reports,
            BTreeMap::from([(key, None)]),
            "but goes along with the next one"
        );
    }

    #[test]
    fn that_nodes_are_no_help_is_told_at_once_and_again_when_they_are_others() {
        let key = Key::of("r/i:1");
        let orders = BTreeMap::from([(key, order())]);
        let mut said = Acknowledged::default();
        let mut task = begin(&order(), 1, None, at(0));
        for (what, reason, bad, urgent) in [
            ("nobody helps", Some(Reason::NoSource), vec!["a"], true),
            ("still nobody", Some(Reason::NoSource), vec!["a"], false),
            ("those of the next list do not, either", Some(Reason::NoSource), vec!["a", "b"], true),
            ("one of them does", None, vec!["b"], true),
            ("it still does", None, vec!["b"], false),
            ("one lied", Some(Reason::PeerLied), vec!["c"], true),
            ("this node lags", Some(Reason::Lagging), vec![], true),
        ] {
            (task.report.reason, task.report.bad) = (reason, bad.into_iter().map(Into::into).collect());
            let tasks = BTreeMap::from([(key, task.clone())]);
            assert_eq!(said.due(&tasks, &orders, at(1)) == Some(at(1)), urgent, "{what}");
            if urgent {
                said.acknowledge(&said.saying(&tasks, &KeptReports::default()));
            }
        }
    }

    #[test]
    fn the_newest_ended_reports_stay_when_their_orders_are_gone() {
        let most = ROOM_OF_ENDED / REPORT_WEIGHT;
        let mut said = Acknowledged::default();
        let mut kept = KeptReports::default();
        for n in 0..most + 3 {
            let key = Key::of(&n.to_string());
            let begun = begin(&order(), 1, None, at(0));
            let done = succeed(&order(), &begun, "sha256:a".into(), Bytes::default(), at(i64::try_from(n).unwrap()));
            let tasks = BTreeMap::from([(key, done.clone())]);
            said.acknowledge(&said.saying(&tasks, &kept));
            kept.keep(key, &done.report);
            kept.keep(Key::of("never ended"), &begun.report);
        }
        let last = said.saying(&BTreeMap::new(), &kept);
        assert_eq!(last.reports, BTreeMap::from([(Key::of("2"), None)]), "the others went along with earlier writes");
        said.acknowledge(&last);
        assert_eq!((said.reports.len(), kept.0.len()), (most, most));
        assert!(said.reports.keys().all(|key| kept.has(*key)));
        let mut large = begin(&order(), 1, None, at(0)).report;
        (large.phase, large.message, large.finished) = (Phase::Failed, "x".repeat(ROOM_OF_ENDED), Some(at(9_999)));
        kept.keep(Key::of("large"), &large);
        assert!(kept.0.is_empty(), "one that is too large by itself is not kept");
    }

    /// As many orders as a node can have, which fail fifty at a time with the longest messages that there are.
    #[test]
    fn all_reports_of_a_node_together_are_not_too_large_for_the_api_server() {
        let most = stoker_core::world::ROOM / stoker_core::world::weight(&order());
        let mut failed = begin(&order(), 1, None, at(0));
        (failed.report.phase, failed.state) = (Phase::Failed, TaskState::Ended);
        failed.report.message = stoker_core::text::message(&"\u{1f980}".repeat(1 << 16));
        let (mut said, mut tasks) = (Acknowledged::default(), BTreeMap::new());
        for n in 0..most {
            tasks.insert(Key::of(&n.to_string()), failed.clone());
            if n % 50 != 0 && n + 1 < most {
                continue;
            }
            said.acknowledge(&said.saying(&tasks, &KeptReports::default()));
            assert!(said.saying(&tasks, &KeptReports::default()).reports.is_empty(), "all is said at once");
        }
        let size = from_core::node_preheat(&BTreeMap::new(), &BTreeMap::new(), &BTreeMap::new(), &said.reports)
            .to_string()
            .len();
        // A third of what the API server takes: orders and its own notes need the rest.
        assert!(size < 512 * 1024, "{most} reports have {size} bytes");
        assert!(said.reports.values().all(|report| report.message.chars().count() > 10), "there is something to read");
    }

    #[test]
    fn a_pull_that_does_not_move_gives_a_sign_of_life() {
        let key = Key::of("r/i:1");
        let orders = BTreeMap::from([(key, order())]);
        let tasks = BTreeMap::from([(key, begin(&order(), 1, None, at(0)))]);
        let mut said = Acknowledged::default();
        said.acknowledge(&said.saying(&tasks, &KeptReports::default()));
        assert_eq!(said.due(&tasks, &orders, at(9)), Some(at(300)));
    }

    #[test]
    fn a_task_that_rests_gives_one_sign_of_life_and_not_a_stream_of_them() {
        let key = Key::of("r/i:1");
        let orders = BTreeMap::from([(key, order())]);
        let mut task = begin(&order(), 1, None, at(0));
        task.state = stoker_core::step::TaskState::Resting { until: at(3600) };
        let mut tasks = BTreeMap::from([(key, task.clone())]);
        let mut said = Acknowledged::default();
        said.acknowledge(&said.saying(&tasks, &KeptReports::default()));
        assert_eq!(said.due(&tasks, &orders, at(301)), Some(at(300)));
        // The loop brings every task up to date before it writes.
        task.report.updated = at(301);
        tasks.insert(key, task);
        said.acknowledge(&said.saying(&tasks, &KeptReports::default()));
        assert_eq!(said.due(&tasks, &orders, at(302)), Some(at(601)));
    }
}

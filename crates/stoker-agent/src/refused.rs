//! Writes of the status that the API server refuses. One bad report would keep all reports of the node from being written,
//! so a refused write is split until the bad report stands alone. A small report takes its place, which says what could not
//! be said.

use stoker_api::is_refused_for_its_content;
use stoker_api::native::from_core::Saying;
use stoker_core::Reason;
use stoker_core::model::{Bytes, Key, Phase, Report};

/// After so many short reports that are refused as well, the fault is not in one report: the write is tried again later.
const MOST_IN_VAIN: usize = 3;

/// Why a write was not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WriteTrouble {
    /// The API server does not take what the write says, and never will.
    Refused(String),
    /// Anything else: the same write may be taken later.
    Passing(String),
}

impl WriteTrouble {
    /// What an answer of the API server means.
    pub(crate) fn of(problem: &kube::Error) -> Self {
        let text = problem.to_string();
        match problem {
            kube::Error::Api(status) if is_refused_for_its_content(status) => Self::Refused(text),
            _ => Self::Passing(text),
        }
    }
}

/// What came of a write.
#[derive(Debug, Default)]
pub(crate) struct WriteOutcome {
    /// What need not be said again: it was acknowledged, or was refused and replaced.
    pub(crate) said: Saying,
    /// Why the rest was not acknowledged, where there is a rest.
    pub(crate) problem: Option<String>,
}

/// Writes, and splits what is refused.
pub(crate) async fn tell<F>(saying: Saying, write: impl Fn(Saying) -> F) -> WriteOutcome
where
    F: Future<Output = Result<(), WriteTrouble>>,
{
    let mut told = WriteOutcome::default();
    let (mut parts, mut in_vain) = (vec![saying], 0);
    while let Some(part) = parts.pop() {
        let why = match write(part.clone()).await {
            Ok(()) => {
                told.add(part);
                continue;
            }
            Err(WriteTrouble::Passing(problem)) => {
                told.problem = Some(problem);
                return told;
            }
            Err(WriteTrouble::Refused(why)) => why,
        };
        match split(part) {
            Split::Two(two) => parts.extend(two.into_iter().rev()),
            Split::Report(key, report) => {
                tracing::warn!(order = %key, "the API server refused a report of this node; a short one takes its place: {why}");
                let instead = Saying { reports: [(key, Some(stand_in(&report, &why)))].into(), ..Saying::default() };
                match write(instead).await {
                    Ok(()) => drop(told.said.reports.insert(key, Some(*report))),
                    Err(WriteTrouble::Passing(problem)) => {
                        told.problem = Some(problem);
                        return told;
                    }
                    Err(WriteTrouble::Refused(why)) => {
                        told.problem = Some(why);
                        in_vain += 1;
                        if in_vain == MOST_IN_VAIN {
                            return told;
                        }
                    }
                }
            }
            Split::Whole => told.problem = Some(why),
        }
    }
    told
}

impl WriteOutcome {
    /// The task that wrote ended without an answer.
    pub(crate) fn broke_off(problem: tokio::task::JoinError) -> Self {
        Self { problem: Some(problem.to_string()), ..Self::default() }
    }

    fn add(&mut self, part: Saying) {
        let Saying { reports, agent, disk } = part;
        self.said.reports.extend(reports);
        self.said.agent = agent.or(self.said.agent.take());
        self.said.disk = disk.or(self.said.disk.take());
    }
}

/// How a refused write goes on.
#[derive(Debug, PartialEq)]
enum Split {
    /// As two writes.
    Two(Box<[Saying; 2]>),
    /// As a short report instead of this one.
    Report(Key, Box<Report>),
    /// Not at all.
    Whole,
}

fn split(saying: Saying) -> Split {
    let Saying { mut reports, agent, disk } = saying;
    let about_reports = |reports| Saying { reports, ..Saying::default() };
    match (reports.len(), agent, disk) {
        (0, Some(agent), Some(disk)) => {
            let agent = Saying { agent: Some(agent), ..Saying::default() };
            Split::Two(Box::new([agent, Saying { disk: Some(disk), ..Saying::default() }]))
        }
        (0, ..) => Split::Whole,
        (1, None, None) => match reports.pop_first() {
            Some((key, Some(report))) => Split::Report(key, Box::new(report)),
            _ => Split::Whole,
        },
        (count, None, None) => {
            let middle = reports.keys().nth(count / 2).copied();
            let second = middle.map(|middle| reports.split_off(&middle)).unwrap_or_default();
            Split::Two(Box::new([about_reports(reports), about_reports(second)]))
        }
        (_, agent, disk) => Split::Two(Box::new([Saying { agent, disk, ..Saying::default() }, about_reports(reports)])),
    }
}

/// The report that takes the place of a refused one: what the controller needs to count it, and what happened.
fn stand_in(report: &Report, why: &str) -> Report {
    let why: String = why.chars().filter(|c| !c.is_control()).take(300).collect();
    // An answer without its digest is none: other nodes are asked.
    let (phase, reason) = match report.phase {
        Phase::Resolved => (Phase::Failed, Some(Reason::Unknown)),
        phase => (phase, report.reason),
    };
    Report {
        phase,
        reason,
        digest: None,
        pin: None,
        bytes: Bytes::default(),
        message: format!(
            "the API server refused this node's report ({why}); its digest, bytes and message are left out: see the \
             agent's log on the node, and update Stoker's CRDs if they are older than the agent"
        ),
        ..report.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Mutex;

    use stoker_api::native::Disk;
    use stoker_core::step::begin;

    use super::*;
    use crate::testing::{at, order};

    /// An API server that refuses a whole write for one number that is too large, as the real one does.
    #[derive(Default)]
    struct RefusingServer {
        reports: Mutex<BTreeMap<Key, Report>>,
        disk: Mutex<bool>,
        writes: Mutex<usize>,
    }

    impl RefusingServer {
        async fn write(&self, saying: Saying) -> Result<(), WriteTrouble> {
            *self.writes.lock().unwrap() += 1;
            let large = |report: &Report| report.bytes.total > i64::MAX.unsigned_abs();
            if saying.reports.values().flatten().any(large) {
                return Err(WriteTrouble::Refused("status.reports: Invalid value: \"number\"".into()));
            }
            self.reports
                .lock()
                .unwrap()
                .extend(saying.reports.into_iter().filter_map(|(key, report)| Some((key, report?))));
            *self.disk.lock().unwrap() |= saying.disk.is_some();
            Ok(())
        }
    }

    fn report(total: u64) -> Report {
        let mut report = begin(&order(), 1, None, at(0)).report;
        (report.bytes.total, report.message) = (total, "said".into());
        report
    }

    #[tokio::test]
    async fn one_bad_report_does_not_mute_the_others() {
        for (count, bad) in [(1, vec![0]), (2, vec![1]), (9, vec![4]), (64, vec![0, 31, 63]), (5, vec![])] {
            let total = |n: usize| if bad.contains(&n) { u64::MAX } else { 5 };
            let reports: BTreeMap<Key, Option<Report>> =
                (0..count).map(|n| (Key::of(&n.to_string()), Some(report(total(n))))).collect();
            let server = RefusingServer::default();
            let saying = Saying { reports: reports.clone(), agent: None, disk: Some(Disk::new(9, 5)) };
            let told = tell(saying, |part| server.write(part)).await;
            assert_eq!((told.problem, told.said.reports), (None, reports), "none of them is said again");
            let there = server.reports.lock().unwrap();
            assert!(*server.disk.lock().unwrap());
            let short: BTreeSet<Key> =
                there.iter().filter(|(_, report)| report.message != "said").map(|(key, _)| *key).collect();
            assert_eq!(there.len(), count);
            assert_eq!(short, bad.iter().map(|n| Key::of(&n.to_string())).collect(), "of {count}");
            for key in short {
                let report = &there[&key];
                assert!(report.message.contains("Invalid value"), "{report:?}");
                assert_eq!(report.phase, Phase::Pulling);
            }
            let most = 1 + bad.len() * (2 * usize::BITS.saturating_sub(count.leading_zeros()) as usize + 4);
            assert!(*server.writes.lock().unwrap() <= most, "{} writes for {count}", server.writes.lock().unwrap());
        }
    }

    #[tokio::test]
    async fn what_passes_is_told_later_and_nothing_is_replaced() {
        let saying = Saying { reports: [(Key::of("a"), Some(report(1)))].into(), ..Saying::default() };
        let told = tell(saying.clone(), async |_| Err(WriteTrouble::Passing("gone".into()))).await;
        assert_eq!((told.problem.as_deref(), told.said.reports.len()), (Some("gone"), 0));
        let told = tell(saying, async |_| Err(WriteTrouble::Refused("never".into()))).await;
        assert_eq!((told.problem.as_deref(), told.said.reports.len()), (Some("never"), 0), "not even the short one");
    }

    /// An API server that takes no report at all is not asked for each of them.
    #[tokio::test]
    async fn a_server_that_takes_nothing_is_not_flooded() {
        let reports = (0..200).map(|n| (Key::of(&n.to_string()), Some(report(1)))).collect();
        let writes = Mutex::new(0);
        let told = tell(Saying { reports, ..Saying::default() }, async |_| {
            *writes.lock().unwrap() += 1;
            Err(WriteTrouble::Refused("never".into()))
        });
        assert_eq!(told.await.problem.as_deref(), Some("never"));
        assert!(*writes.lock().unwrap() < 20, "{} writes", writes.lock().unwrap());
    }

    #[test]
    fn an_answer_without_its_digest_is_a_failure() {
        let resolved = Report { phase: Phase::Resolved, ..report(1) };
        let told = stand_in(&resolved, "no\nway");
        assert_eq!((told.phase, told.reason), (Phase::Failed, Some(Reason::Unknown)));
        assert!(told.message.contains("(noway)"), "{}", told.message);
    }
}

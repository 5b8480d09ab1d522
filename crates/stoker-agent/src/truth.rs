//! The node's own truth: others bring images, take them away and damage them. What the reports say is compared with what
//! is there, at the start and whenever the runtime says that something changed.
//!
//! A look changes what is said, and never starts an attempt: it knows as much as an attempt would find out, and whether
//! something is fetched again is the controller's business.

use std::collections::BTreeMap;

use jiff::Timestamp;
use stoker_core::model::{Bytes, Key, Order, Phase};
use stoker_core::step::{self, Task, TaskState};
use stoker_runtime::{Care, Runtime, Stored, There};

use crate::pull::{enough, name_in_store, pinned};

/// What a report said when its image was looked for.
type ReportMark = (Phase, Timestamp, u32);

/// What was seen of the images that are not being pulled just now; nothing for those that could not be looked at.
pub(crate) type Sightings = Vec<(Key, ReportMark, Stored<There>)>;

/// An image to look for, by its name in the store.
pub(crate) type LookFor = (Key, ReportMark, Care, String);

/// The images to look for: all whose orders are not being worked on, and those of which it is said meanwhile that they are there.
pub(crate) fn questions(orders: &BTreeMap<Key, Order>, tasks: &BTreeMap<Key, Task>) -> Vec<LookFor> {
    let look = tasks.iter().filter(|(_, task)| task.report.present || !is_running(task));
    let look = look.filter_map(|(key, task)| {
        let name = name_in_store(&orders.get(key)?.image.parse().ok()?);
        // Who says that an image is there has hashed it; who said so looks whether it changed.
        let is_said = task.report.present || task.report.phase == Phase::Succeeded;
        Some((*key, said(task), if is_said { Care::Unchanged } else { Care::Hashed }, name))
    });
    look.collect()
}

fn is_running(task: &Task) -> bool {
    matches!(task.state, TaskState::Running { .. })
}

/// Looks for them.
pub(crate) async fn look(runtime: Runtime, questions: Vec<LookFor>) -> Sightings {
    let mut seen = Vec::new();
    for (key, said, care, name) in questions {
        if let Ok(there) = runtime.find(&name, care).await {
            seen.push((key, said, there));
        }
    }
    seen
}

fn said(task: &Task) -> ReportMark {
    (task.report.phase, task.report.asked, task.report.attempt)
}

/// The task as it is after that look, if it is another. One that moved on since is judged by the next look.
pub(crate) fn judge(
    order: &Order,
    task: &Task,
    then: ReportMark,
    seen: &Stored<There>,
    now: Timestamp,
) -> Option<Task> {
    if said(task) != then {
        return None;
    }
    match (task.report.phase, seen) {
        // An attempt finds it by itself.
        (_, Stored::Whole(_)) if is_running(task) => None,
        (Phase::Succeeded, Stored::Missing) => {
            let why = "the image was there and was removed by somebody else: by hand, or by the kubelet's collector \
                       because the disk was full";
            Some(step::lose(task, why.into(), now))
        }
        (Phase::Succeeded, Stored::Damaged(file)) => {
            let why = "the image was there, and its file {} on this node was damaged since; a job that still runs has it \
                       fetched again";
            Some(step::lose(task, why.replace("{}", &file.display().to_string()), now))
        }
        (Phase::Failed | Phase::Pulling, Stored::Whole(there)) => {
            let Some(done) = enough(order, pinned(order), there) else { return step::notice(task, true, now) };
            let bytes = Bytes { total: there.size, done: there.size, ..task.report.bytes };
            let mut task = step::succeed(order, task, done.digest, bytes, now);
            task.report.message = done.note.unwrap_or_default();
            Some(task)
        }
        (_, Stored::Missing | Stored::Damaged(_)) => step::notice(task, false, now),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, order};
    use stoker_core::model::Policy;
    use stoker_core::step::{Failure, Step, begin, fail, succeed};
    use stoker_core::{Ask, Pin, Reason};
    use stoker_runtime::ImageIdentity;

    fn there(identity: ImageIdentity) -> Stored<There> {
        Stored::Whole(There { identity, size: 7 })
    }

    fn failed(order: &Order, retryable: bool) -> Task {
        let failure = Failure { reason: Reason::NotFound, message: "no".into(), retryable, pause: None };
        fail(order, &begin(order, 1, None, at(0)), failure, 0, at(1))
    }

    #[test]
    fn reports_follow_what_is_there() {
        let order = order();
        let running = begin(&order, 1, None, at(0));
        let done = succeed(&order, &running, "sha256:a".into(), Bytes::default(), at(1));
        let (failed, resting) = (failed(&order, false), failed(&order, true));
        let image = there(ImageIdentity::Digest("sha256:a".into()));
        let damaged = Stored::Damaged("/images/blobs/sha256/abc".into());
        let phase = |order: &Order, task: &Task, seen: &Stored<There>| {
            judge(order, task, said(task), seen, at(5)).map(|task| (task.report.phase, task.report.reason))
        };
        assert_eq!(phase(&order, &done, &Stored::Missing), Some((Phase::Failed, Some(Reason::Removed))));
        assert_eq!(phase(&order, &done, &damaged), Some((Phase::Failed, Some(Reason::Removed))));
        let told = judge(&order, &done, said(&done), &damaged, at(5)).unwrap().report.message;
        assert!(told.contains("/images/blobs/sha256/abc") && told.contains("damaged"), "{told}");
        assert_eq!(phase(&order, &done, &image), None);
        for task in [&failed, &resting] {
            assert_eq!(phase(&order, task, &Stored::Missing), None);
            assert_eq!(phase(&order, task, &damaged), None);
            assert_eq!(phase(&order, task, &image), Some((Phase::Succeeded, None)));
        }
        assert_eq!(phase(&order, &running, &image), None, "an attempt finds it by itself");
        let mut always = order.clone();
        always.terms.pull.policy = Policy::Always;
        let noticed = judge(&always, &failed, said(&failed), &image, at(5)).unwrap();
        assert_eq!(noticed.report.phase, Phase::Failed, "the registry must be asked");
        assert!(noticed.report.present, "but others may be content with it");
        let gone = judge(&always, &noticed, said(&noticed), &Stored::Missing, at(6)).unwrap();
        assert!(!gone.report.present);
        let pin = Pin::new(at(0), "sha256:a");
        let pinned = Order { ask: Ask::Fetch(Some(pin)), ..always };
        assert_eq!(phase(&pinned, &failed, &image), Some((Phase::Succeeded, None)));
        assert_eq!(
            judge(&order, &done, said(&running), &Stored::Missing, at(5)),
            None,
            "what was seen is older than what was said"
        );
    }

    /// Whatever a look finds, it starts nothing, and the next look at the same thing has nothing to add: a failed order of
    /// a job that has ended is not tried again for ever.
    #[test]
    fn a_look_starts_nothing_and_is_content_with_what_it_said() {
        let key = Key::of("r/i:1");
        let seen = [
            Stored::Missing,
            Stored::Damaged("/images/blobs/sha256/abc".into()),
            there(ImageIdentity::Digest("sha256:a".into())),
            there(ImageIdentity::Digest("sha256:b".into())),
            there(ImageIdentity::ImageId("sha256:c".into())),
        ];
        let pin = Pin::new(at(0), "sha256:a");
        for (policy, pin) in [
            (Policy::IfNotPresent, None),
            (Policy::IfNotPresent, Some(pin.clone())),
            (Policy::Always, None),
            (Policy::Always, Some(pin)),
        ] {
            let mut order = Order { ask: Ask::Fetch(pin), ..order() };
            order.terms.pull.policy = policy;
            let orders = BTreeMap::from([(key, order.clone())]);
            let done = succeed(&order, &begin(&order, 1, None, at(0)), "sha256:a".into(), Bytes::default(), at(1));
            for before in [failed(&order, false), done] {
                for seen in &seen {
                    let case = format!("{order:?} {before:?} {seen:?}");
                    let after = judge(&order, &before, said(&before), seen, at(60)).unwrap_or(before.clone());
                    let step =
                        step::step(&orders, &BTreeMap::from([(key, after.clone())]), &Default::default(), at(60));
                    assert_eq!(step, Step::default(), "{case}");
                    assert_eq!(judge(&order, &after, said(&after), seen, at(120)), None, "{case}");
                }
            }
        }
    }
}

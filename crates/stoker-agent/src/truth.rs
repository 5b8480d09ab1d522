//! The node's own truth: others bring images and take them away. What the reports say is compared with what is there, at
//! the start and whenever the runtime says that something changed.

use std::collections::BTreeMap;

use jiff::Timestamp;
use stoker_core::model::{Key, Order, Phase, Policy};
use stoker_core::step::{self, Task, TaskState};
use stoker_runtime::{Care, Runtime, There};

use crate::pull::name_in_store;

/// What a report said when its image was looked for.
type Said = (Phase, Timestamp, u32);

/// What was seen of the images that are not being pulled just now; nothing for those that could not be looked at.
pub(crate) type Seen = Vec<(Key, Said, Option<There>)>;

/// The images to look for: all whose orders are not being worked on.
pub(crate) fn questions(orders: &BTreeMap<Key, Order>, tasks: &BTreeMap<Key, Task>) -> Vec<(Key, Said, String)> {
    let idle = tasks.iter().filter(|(_, task)| task.state != TaskState::Running);
    let idle = idle.filter_map(|(key, task)| Some((*key, said(task), orders.get(key)?)));
    idle.filter_map(|(key, said, order)| Some((key, said, name_in_store(&order.image.parse().ok()?)))).collect()
}

/// Looks for them.
pub(crate) async fn look(runtime: Runtime, questions: Vec<(Key, Said, String)>) -> Seen {
    let mut seen = Vec::new();
    for (key, said, name) in questions {
        // Who says that an image is there has hashed it; who said so looks whether it changed.
        let care = if said.0 == Phase::Succeeded { Care::Unchanged } else { Care::Hashed };
        if let Ok(there) = runtime.find(&name, care).await {
            seen.push((key, said, there.whole()));
        }
    }
    seen
}

fn said(task: &Task) -> Said {
    (task.report.phase, task.report.asked, task.report.attempt)
}

/// The task as it is after that look, if it is another. One that moved on since is judged by the next look.
pub(crate) fn judge(order: &Order, task: &Task, seen: (Said, Option<&There>), now: Timestamp) -> Option<Task> {
    let (then, there) = seen;
    if task.state == TaskState::Running || said(task) != then {
        return None;
    }
    let wanted = order.pin().map(|pin| pin.digest.as_str());
    let enough = |there: &There| match order.terms.pull.policy {
        Policy::IfNotPresent => true,
        Policy::Always => wanted.is_some() && there.digest.as_deref() == wanted,
    };
    match (task.report.phase, there) {
        (Phase::Succeeded, None) => Some(step::lose(task, now)),
        (Phase::Failed | Phase::Pulling, Some(there)) if enough(there) => Some(step::find(task, now)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, order};
    use stoker_core::model::Bytes;
    use stoker_core::step::{Failure, begin, fail, succeed};
    use stoker_core::{Ask, Pin, Reason};

    #[test]
    fn reports_follow_what_is_there() {
        let order = order();
        let running = begin(&order, 1, None, at(0));
        let done = succeed(&order, &running, "sha256:a".into(), Bytes::default(), at(1));
        let failure = Failure { reason: Reason::NotFound, message: "no".into(), retryable: false, pause: None };
        let failed = fail(&order, &running, failure, 0, at(1));
        let there = There { digest: Some("sha256:a".into()), size: 1 };
        let phase = |order: &Order, task: &Task, there: Option<&There>| {
            judge(order, task, (said(task), there), at(5)).map(|task| (task.report.phase, task.report.reason))
        };
        assert_eq!(phase(&order, &done, None), Some((Phase::Failed, Some(Reason::Removed))));
        assert_eq!(phase(&order, &done, Some(&there)), None);
        assert_eq!(phase(&order, &failed, None), None);
        assert_eq!(phase(&order, &failed, Some(&there)), Some((Phase::Pulling, Some(Reason::NotFound))));
        assert_eq!(phase(&order, &running, Some(&there)), None, "an attempt finds it by itself");
        let mut always = order.clone();
        always.terms.pull.policy = Policy::Always;
        assert_eq!(phase(&always, &failed, Some(&there)), None, "the registry must be asked");
        let pin = Pin { asked: at(0), digest: "sha256:a".into() };
        let pinned = Order { ask: Ask::Fetch(Some(pin)), ..always };
        assert!(phase(&pinned, &failed, Some(&there)).is_some());
        assert_eq!(
            judge(&order, &done, (said(&running), None), at(5)),
            None,
            "what was seen is older than what was said"
        );
    }
}

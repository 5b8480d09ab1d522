//! From a job's outcome to the status of an ImagePullJob, in upstream's words.

use jiff::Timestamp;
use kube_core::dynamic::DynamicObject;
use stoker_core::rollup::{Outcome, Stage};

use super::versions::version_of;
use super::{ImagePullJob, ImagePullJobStatus};
use crate::write::{Write, status_write};

/// The change of an ImagePullJob's status, if there is one.
pub(super) fn status_change(object: &DynamicObject, outcome: &Outcome, _now: Timestamp) -> Option<Write> {
    let count = |nodes: u32| i32::try_from(nodes).unwrap_or(i32::MAX);
    let status = ImagePullJobStatus {
        start_time: outcome.started.map(whole_seconds),
        completion_time: outcome.completed.map(whole_seconds),
        desired: count(outcome.desired),
        active: count(outcome.pulling),
        succeeded: count(outcome.succeeded),
        failed: count(outcome.failed),
        message: message(outcome),
        failed_nodes: outcome.failed_nodes.iter().map(ToString::to_string).collect(),
    };
    status_write(version_of::<ImagePullJob>(object), object, &status)
}

/// Upstream's times have no fractions; rounded down, so that nothing asked at the start seems older than it.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn message(outcome: &Outcome) -> String {
    let done = outcome.succeeded + outcome.failed;
    match outcome.stage {
        Stage::Succeeded | Stage::Failed if outcome.overdue => "job exceeds activeDeadlineSeconds".into(),
        Stage::Succeeded | Stage::Failed => "job has completed".into(),
        _ if done == 0 => "job is running, no progress".into(),
        _ => {
            let progress = 100.0 * f64::from(done) / f64::from(outcome.desired.max(1));
            format!("job is running, progress {progress:.1}%")
        }
    }
}

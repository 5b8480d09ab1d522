//! How fast a job goes: nodes at one time, progress reports, when silence is failure.

use std::time::Duration;

use crate::model::{Job, Pull};
use crate::step;

/// An agent gives a sign of life for a running order at least this often.
pub const SIGN_OF_LIFE: Duration = Duration::from_secs(5 * 60);

/// A node that gave none for this long has failed, as far as a running job is concerned. It counts again when
/// it comes back while the job still runs.
pub const SILENCE: Duration = Duration::from_secs(10 * 60);

/// How long an order on these terms holds its place of a job's parallelism: twice what its attempts may take, because it may also wait
/// for its turn on the node, and never less than the time after which a silent node gives its place away. An agent that says for
/// longer that it pulls keeps no other node waiting.
pub fn keeps_place(pull: &Pull) -> Duration {
    let longest = step::longest(pull.timeout, pull.retries);
    longest.saturating_add(longest.max(SILENCE))
}

/// How long a job with this timeout and these retries waits for a pull or a question that runs on the more generous terms of others: half as long again as on its own terms,
/// and at least 30 s more.
pub fn patience(timeout: Duration, retries: u32) -> Duration {
    let longest = step::longest(timeout, retries);
    longest.saturating_add((longest / 2).max(SLOW_ANSWER))
}

/// A continuous job asks a failed node again after this long, not only in the next round.
pub const ASK_FAILED_AGAIN: Duration = Duration::from_secs(5 * 60);

/// A Secret that a job names and that is not there is waited for this long from the job's start: who makes both at once
/// need not know which is seen first. Then the pull is tried without.
pub const AWAIT_SECRET: Duration = Duration::from_secs(5);

/// From a job's start this long its nodes wait until the digests of all images are known, so that a node is written to once for
/// all of them. Then an image whose registry does not answer holds up no other.
pub const AWAIT_DIGESTS: Duration = Duration::from_secs(5);

/// A node that has not learned a digest after this long is slow: others are asked, too.
pub const SLOW_ANSWER: Duration = Duration::from_secs(30);

/// An agent whose runtime does not keep blobs serves them for this long after it has the image.
pub const LINGER: Duration = Duration::from_secs(5 * 60);

/// A node is not believed for this long that it cannot read an image, after the address of a node that it reads from has changed: it may still speak of the
/// old address.
pub const NEW_ADDRESS: Duration = Duration::from_secs(30);

/// A node whose source was just told other sources is not taken for one without a source for this long: bytes come down the chain again.
pub const SETTLES: Duration = Duration::from_secs(30);

/// A node that came back after a chosen node of a job was lost takes its place after it has been Ready for this long. When the control plane loses all
/// nodes, they come back within moments of each other.
pub const READY_AGAIN: Duration = Duration::from_secs(5 * 60);

/// A start that is further ahead than this is not that of a controller whose clock went before: somebody else wrote it, and it does not count.
pub const FAR_AHEAD: Duration = Duration::from_secs(24 * 3600);

/// This many nodes must hear the same digest from the registry before others are told to pull it: a single one could say what
/// it likes.
pub const WITNESSES: usize = 2;

/// Rounds of a continuous job are never shorter: a length of zero would keep the controller planning for ever.
pub const SHORTEST_ROUND: Duration = Duration::from_secs(1);

/// How many more of its nodes the job may hand out.
pub fn free(job: &Job, nodes: usize, active: usize) -> usize {
    job.places(nodes).saturating_sub(active)
}

/// How long an agent lets pass between two reports of mere progress, so that a job costs about ten such writes
/// a second however many nodes pull at one time.
pub fn progress_interval(pulling: usize) -> Duration {
    let interval = Duration::from_millis(u64::try_from(pulling).unwrap_or(u64::MAX).saturating_mul(100));
    interval.clamp(Duration::from_millis(250), SIGN_OF_LIFE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_slows_down_with_the_fleet() {
        let cases = [(0, 250), (1, 250), (10, 1_000), (200, 20_000), (5_000, 300_000), (usize::MAX, 300_000)];
        for (pulling, millis) in cases {
            assert_eq!(progress_interval(pulling), Duration::from_millis(millis), "{pulling} nodes");
        }
    }
}

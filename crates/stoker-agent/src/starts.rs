//! How often the agent has begun an order and ended before the attempt did. An image that makes the agent crash would do so
//! again after every restart, so an order that was begun five times in a row without progress is given up.
//!
//! The counts are in the ledger, on the disk before an attempt begins. A stop that somebody asked for is no crash.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use stoker_core::model::{Bytes, Key};

/// How often an order is begun without progress.
const MOST: u32 = 5;

/// Progress is this part of an image: whoever sends it byte by byte ends as well.
const PART: u64 = 100;

/// More than this in the spool than at an earlier start is progress, too.
const SPOOLED: u64 = 1024 * 1024;

/// An order that was begun and has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StartCount {
    /// Of the order; a later ask begins anew.
    asked: Timestamp,
    /// How often, without progress.
    count: u32,
    /// How many bytes of the image were there when it last made progress.
    done: u64,
    /// How many bytes the spool had then.
    #[serde(default)]
    spooled: u64,
}

/// The orders that were begun and have not ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Starts(BTreeMap<String, StartCount>);

impl Starts {
    /// An attempt begins. `spooled` is what the spool had when the agent began: what a life that ended soon had no time to note.
    pub(crate) fn begin(&mut self, key: Key, asked: Timestamp, spooled: u64) {
        let new = StartCount { asked, count: 0, done: 0, spooled };
        let start = self.0.entry(key.to_string()).or_insert(new);
        if start.asked != asked {
            *start = new;
        }
        if spooled > start.spooled.saturating_add(SPOOLED) {
            (start.count, start.spooled) = (0, spooled);
        }
        start.count = start.count.saturating_add(1);
    }

    /// Whether the attempt that begins now is one too many.
    pub(crate) fn is_too_often(&self, key: Key) -> bool {
        self.0.get(&key.to_string()).is_some_and(|start| start.count > MOST)
    }

    /// How far an attempt is. It is noted only where an earlier one broke off.
    pub(crate) fn progress(&mut self, key: Key, bytes: Bytes) {
        let Some(start) = self.0.get_mut(&key.to_string()).filter(|start| start.count > 1) else { return };
        if bytes.done > start.done.saturating_add(bytes.total / PART) {
            (start.count, start.done) = (1, bytes.done);
        }
    }

    /// An attempt has ended, well or not, and the agent lives.
    pub(crate) fn ended(&mut self, key: Key) {
        self.0.remove(&key.to_string());
    }

    /// The agent is asked to stop: what was begun last does not count.
    pub(crate) fn stop(&mut self) {
        self.0.retain(|_, start| {
            start.count = start.count.saturating_sub(1);
            start.count > 0
        });
    }
}

/// What is said of an order that is given up.
pub(crate) fn given_up(image: &str) -> String {
    format!(
        "{image}: this node's agent ended {MOST} times in a row while it pulled this image, without progress, so the image is \
         given up; look at the log of the agent's previous run (`kubectl logs --previous`) and at its memory limit, then make \
         the job anew"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    /// What happens to an order in one life of the agent that begins it.
    #[derive(Clone, Copy)]
    enum Life {
        Crash,
        /// It crashes when so many of 100 bytes are there.
        CrashAt(u64),
        End,
        Stop,
        AskedAnew,
    }

    #[test]
    fn an_order_that_makes_no_progress_is_begun_five_times() {
        use Life::*;
        for (what, lives, too_often) in [
            ("five crashes", [Crash; 5].to_vec(), true),
            ("four", [Crash; 4].to_vec(), false),
            ("crashes after it was fetched", vec![CrashAt(100); 6], true),
            ("each gets further", (1..20).map(|n| CrashAt(n * 6)).collect(), false),
            ("hardly", [CrashAt(1); 20].to_vec(), true),
            ("an attempt that fails is no crash", vec![Crash, Crash, End, Crash, Crash, Crash, Crash], false),
            ("nor is a stop", [vec![Stop; 20], vec![Crash; 4]].concat(), false),
            ("stops hide no crashes", [[Crash, Stop]; 5].concat(), true),
            ("somebody asks anew", [vec![Crash; 5], vec![AskedAnew], vec![Crash; 4]].concat(), false),
        ] {
            let (mut starts, mut asked, key) = (Starts::default(), at(1), Key::of("a"));
            let mut gives_up = false;
            for life in lives {
                // As the ledger has it.
                starts = serde_json::from_value(serde_json::to_value(&starts).unwrap()).unwrap();
                if matches!(life, AskedAnew) {
                    asked = at(2);
                    continue;
                }
                starts.begin(key, asked, 0);
                gives_up |= starts.is_too_often(key);
                match life {
                    Crash | AskedAnew => {}
                    CrashAt(done) => starts.progress(key, Bytes { total: 100, done, ..Bytes::default() }),
                    End => starts.ended(key),
                    Stop => starts.stop(),
                }
            }
            starts.begin(key, asked, 0);
            assert_eq!(gives_up || starts.is_too_often(key), too_often, "{what}");
            starts.ended(key);
            starts.begin(key, asked, 0);
            assert!(!starts.is_too_often(key), "{what}: the count ends with the order");
        }
    }
}

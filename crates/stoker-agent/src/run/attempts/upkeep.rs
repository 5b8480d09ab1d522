//! The node's disk between attempts: looks at whether images are still there, and sweeps of what orders have left behind. One of
//! each is under way at a time, and neither holds up the loop.

use futures::future::{BoxFuture, OptionFuture};
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use stoker_runtime::Runtime;

use crate::leftovers::Leftovers;
use crate::sweep::Broom;
use crate::truth::{self, LookFor, Sightings};

pub(super) struct Upkeep {
    node: String,
    runtime: Runtime,
    /// Says when something changed in the image store.
    changes: BoxStream<'static, ()>,
    looking: Option<BoxFuture<'static, Sightings>>,
    look_again: bool,
    pub(super) broom: Broom,
    sweeping: Option<BoxFuture<'static, Result<Option<Timestamp>, String>>>,
    /// The last sweep failed.
    sweep_again: bool,
}

impl Upkeep {
    pub(super) fn new(node: String, runtime: Runtime) -> Self {
        Self {
            node,
            changes: runtime.changes(),
            runtime,
            looking: None,
            look_again: false,
            broom: Broom::default(),
            sweeping: None,
            sweep_again: false,
        }
    }

    /// Begins a look, if something changed since the last one.
    pub(super) fn look(&mut self, questions: impl FnOnce() -> Vec<LookFor>) {
        if self.looking.is_none() && std::mem::take(&mut self.look_again) {
            self.looking = Some(truth::look(self.runtime.clone(), questions()).boxed());
        }
    }

    /// Begins a sweep, if one is due. `quiet` is whether no stopped attempt is still ending.
    pub(super) fn sweep(&mut self, leftovers: &Leftovers, quiet: bool, now: Timestamp) {
        if self.sweeping.is_none() && self.broom.take(quiet, now) {
            let leftovers = leftovers.clone();
            self.sweeping = Some(async move { leftovers.sweep().await }.boxed());
        }
    }

    /// Waits until something happens; what was seen, where that is the end of a look. Nothing is lost where it is dropped.
    pub(super) async fn next(&mut self) -> Option<Sightings> {
        tokio::select! {
            Some(()) = self.changes.next() => {
                self.look_again = true;
                if std::mem::take(&mut self.sweep_again) {
                    self.broom.call();
                }
                None
            }
            Some(swept) = OptionFuture::from(self.sweeping.as_mut()) => {
                self.sweeping = None;
                match swept {
                    Ok(next) => self.broom.call_at(next),
                    Err(problem) => {
                        let node = &self.node;
                        // A runtime that comes back says so.
                        tracing::warn!(node, "cannot clear away what is no longer wanted, trying again: {problem}");
                        self.sweep_again = true;
                    }
                }
                None
            }
            Some(seen) = OptionFuture::from(self.looking.as_mut()) => {
                self.looking = None;
                Some(seen)
            }
            else => std::future::pending().await,
        }
    }
}

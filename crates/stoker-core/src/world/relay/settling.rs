//! Which nodes without a source are helped by what was just done for another one. When bytes stop at one place of a chain, everybody below it complains; the
//! first of them is given another source, and the others get its bytes a few seconds later. In: orders and reports. Out: until when a node is to wait.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::repair::Complaint;
use crate::model::{Key, after};
use crate::pace::SETTLES;
use crate::world::World;

/// What was found out about nodes that complain about one image. Void as soon as an order of that image changes.
#[derive(Debug, Default)]
pub(super) struct Settling {
    known: BTreeMap<usize, Option<Timestamp>>,
}

impl Settling {
    /// Until when this node waits: the node that it reads from, or the one that that reads from, and so on as far as they complain, was told other sources
    /// shortly before. None if it does not wait.
    pub(super) fn until(&mut self, world: &World, at: usize, key: Key, now: Timestamp) -> Option<Timestamp> {
        let (mut path, mut next) = (Vec::new(), Some(at));
        let mut until = None;
        while let Some(reader) = next {
            if let Some(known) = self.known.get(&reader) {
                until = *known;
                break;
            }
            // What agents say that they read from may go round in a circle.
            self.known.insert(reader, None);
            path.push(reader);
            let Some(source) = world.source_of(reader, key) else { break };
            until = mended_until(world, source, key, now);
            if until.is_some() {
                break;
            }
            let complains = world.complaint_of(source, key, now);
            next = complains.filter(|(complaint, ..)| *complaint == Complaint::NoSource).map(|_| source);
        }
        self.known.extend(path.into_iter().map(|reader| (reader, until)));
        until
    }
}

/// Until when what was done for this node may help those that read from it.
fn mended_until(world: &World, at: usize, key: Key, now: Timestamp) -> Option<Timestamp> {
    let is_there = world.slots.get(at).is_some_and(|slot| slot.agent && slot.is_ready());
    // A time ahead of our clock was written by a controller whose clock was ahead.
    let mended = world.order_of(at, key)?.past.mended.filter(|mended| *mended <= now)?;
    Some(after(mended, SETTLES)).filter(|until| is_there && now < *until)
}

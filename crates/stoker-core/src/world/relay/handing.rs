//! In which order the nodes of a job are handed out. The first one that may go upstream is the seed, and each reads from one that was handed out before it.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::{Ask, Job, Key};
use crate::world::demand::answered;
use crate::world::held::HeldOrder;
use crate::world::seats::JobSeats;
use crate::world::{NodeSlot, World};

impl NodeSlot {
    /// Whether it has something else to fetch than these images: an order for one of them may have to wait for that.
    fn has_other_work(&self, images: &BTreeSet<Key>) -> bool {
        let open = |(key, order): (&Key, &HeldOrder)| {
            let fetches = matches!(order.ask, Ask::Fetch(_)) && !order.hold && !images.contains(key);
            fetches && !answered(order, self.report_to(Some(order), *key))
        };
        self.orders.iter().any(open)
    }
}

impl World {
    /// Puts the seats at these positions into the order in which they are handed out: the zone from which the image comes first, so that it need not come
    /// into another one and back; nodes with other work after those without, because all who read from a node wait until its other work is done; fast nodes
    /// before slow ones, which are the last to be read from; else by name.
    pub(in crate::world) fn sort_by_speed(
        &self,
        job: &Job,
        digest: Option<&str>,
        seats: &JobSeats,
        open: &mut [usize],
    ) {
        if !self.relay {
            return;
        }
        let images: BTreeSet<Key> = job.keys().collect();
        let mut turns: BTreeMap<usize, Turn<'_>> = BTreeMap::new();
        for position in open.iter().copied() {
            let Some((at, slot)) = seats.get(position).and_then(|(at, _)| Some((*at, self.slots.get(*at)?))) else {
                continue;
            };
            let rate = self.peer(at).and_then(|peer| peer.rate).unwrap_or_default();
            let speed = (!slot.has_other_work(&images), rate);
            turns.insert(position, Turn { slot, relays: self.peer(at).is_some(), speed });
        }
        let key = job.keys().next();
        let chains = key.and_then(|key| self.chains.get(key, digest));
        let mut origins: BTreeMap<String, &str> = BTreeMap::new();
        for (group, chain) in chains.into_iter().flatten() {
            origins.extend(chain.origin_zone().map(|zone| (group.clone(), zone)));
        }
        // Where nobody has it yet the fastest node will be the seed.
        let mut fastest: BTreeMap<String, ((bool, u64), &str)> = BTreeMap::new();
        for Turn { slot, speed, .. } in
            open.iter().filter_map(|position| turns.get(position)).filter(|turn| turn.relays)
        {
            let Some(group) = slot.peer_group().filter(|group| !origins.contains_key(&**group)) else { continue };
            if fastest.get(&*group).is_none_or(|(best, _)| best < speed) {
                fastest.insert(group.into_owned(), (*speed, slot.zone()));
            }
        }
        origins.extend(fastest.into_iter().map(|(group, (_, zone))| (group, zone)));
        open.sort_by_cached_key(|position| {
            let Some(Turn { slot, speed: (idle, rate), .. }) = turns.get(position) else {
                return (true, true, u64::MAX);
            };
            let origin = slot.peer_group().and_then(|group| origins.get(&*group));
            (origin != Some(&slot.zone()), !idle, u64::MAX - rate)
        });
    }
}

/// What decides when a node is handed out.
struct Turn<'a> {
    slot: &'a NodeSlot,
    /// Whether its agent can read from others and serve them.
    relays: bool,
    /// Whether it has no other work, and the bytes a second that it receives.
    speed: (bool, u64),
}

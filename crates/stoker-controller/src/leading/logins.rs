//! Logins between the World, which names them, and the orders, in which they are sealed.

use std::time::Duration;

use jiff::Timestamp;
use stoker_api::native;
use stoker_core::SecretId;
use stoker_core::world::NodeTroubles;
use tokio::time::Instant;

use super::{Agent, Leading};
use crate::hearing::Hearing;
use crate::owed;
use crate::reading::Read;
use crate::secrets::Sealed;
use crate::writer::Numbered;

/// No plan waits longer than this for Secrets: the jobs of one namespace may name a hundred thousand that do not exist. Orders keep the
/// logins that they have until all Secrets of their jobs were read.
const AWAITED: Duration = Duration::from_secs(5);

impl Leading {
    /// Whether the Secrets were read that jobs named when all objects were known, or were waited for long enough. Every one that is read
    /// has the loop ask again.
    pub(crate) fn knows_secrets(&mut self, hearing: &mut Hearing) -> bool {
        let secrets = &mut self.secrets;
        let (unread, until) = self.unread.get_or_insert_with(|| {
            let wanted = hearing.world.wanted_secrets();
            let ids = wanted.keys().cloned().collect();
            secrets.want(wanted);
            (ids, Instant::now() + AWAITED)
        });
        if *until <= Instant::now() {
            unread.clear();
        }
        unread.is_empty()
    }

    /// A Secret was read. Orders that waited for it, and nodes that lack logins, are written to.
    pub(crate) fn see_secret(&mut self, hearing: &mut Hearing, id: SecretId, read: Read, asked: Timestamp) {
        if let Some((unread, _)) = &mut self.unread {
            unread.remove(&id);
        }
        if let Some(event) = self.secrets.see(id, read, asked) {
            hearing.world.apply(event);
        }
        self.owed.resume();
        for node in std::mem::take(&mut self.lacking) {
            self.owed.add(&node, std::iter::empty());
        }
    }

    /// Whether a node lacks logins that its orders name: it has lost its key, or they could not be read when the orders were written.
    pub(super) fn look_for_logins(&mut self, hearing: &Hearing, name: &str) {
        let Some(agent) = self.nodes.get(name) else { return };
        let named = hearing.world.open_logins(name);
        match self.secrets.lacks(&named, agent.key.get(), &agent.logins) {
            true => self.lacking.insert(name.into()),
            false => self.lacking.remove(name),
        };
    }

    /// Follows keys that agents said a while ago. Returns when there are more to follow.
    pub(super) fn follow_keys(&mut self, hearing: &Hearing, now: Instant) -> Option<Instant> {
        let mut next = None;
        for name in std::mem::take(&mut self.rekeyed) {
            let Some(agent) = self.nodes.get_mut(&name) else { continue };
            let (is_another, is_another_reader) = (agent.key.follow(now), agent.reader.follow(now));
            let wake = agent.key.wake().into_iter().chain(agent.reader.wake()).min();
            if is_another {
                self.look_for_logins(hearing, &name);
            }
            if is_another_reader {
                self.nodes.get_mut(&name).into_iter().for_each(Agent::lose_tickets);
                self.look_for_tickets(hearing, &name);
            }
            if let Some(wake) = wake {
                next = Some(next.map_or(wake, |next: Instant| next.min(wake)));
                self.rekeyed.insert(name);
            }
        }
        next
    }

    /// The write that is owed longest: the orders of a node as they are now, with the logins that they name and tickets for the nodes that
    /// they let it read from. None where a login has to be read first.
    pub(crate) fn next_owed(&mut self, hearing: &mut Hearing) -> Option<Numbered> {
        let (node, mut keys) = self.owed.next()?;
        let agent = self.nodes.get_mut(&node)?;
        let orders = hearing.world.orders(&node)?;
        let named = hearing.world.open_logins(&node);
        let Ok(Sealed { changes: logins, left_out }) = self.secrets.changes(&named, agent.key.get(), &agent.logins)
        else {
            self.owed.park(&node, keys);
            return None;
        };
        agent.refused.hold_back(&mut keys, &orders, Instant::now());
        let troubles = NodeTroubles { refused: agent.refused.words(), left_out };
        if !troubles.left_out.is_empty() && hearing.world.troubles(&node).left_out != troubles.left_out {
            tracing::warn!(
                node,
                logins = troubles.left_out.len(),
                "logins are left out: the object of the node has no room"
            );
        }
        hearing.world.set_troubles(&node, troubles);
        if keys.is_empty() && logins.is_empty() {
            return None;
        }
        for (id, login) in &logins {
            match login {
                Some(login) => agent.logins.insert(id.clone(), (login.key.clone(), login.sealed.len())),
                None => agent.logins.remove(id),
            };
        }
        self.number += 1;
        (agent.pending, agent.before) = (self.number, hearing.node_version(&node));
        let tickets = self.tickets_for(&node, &keys, &orders, (hearing.clock)());
        let changes = owed::changes(keys, orders);
        let write = native::from_core::orders(&node, &changes, &logins, &tickets, hearing.epoch());
        Some((self.number, write))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use stoker_api::view::{Query, SeenRow};
    use stoker_core::World;
    use tokio::sync::{Notify, mpsc, watch};

    use super::*;
    use crate::metrics::{LeaderMetrics, Metrics};
    use crate::moment::Source;
    use crate::owed::Owed;
    use crate::secrets::Secrets;
    use crate::watch::Fact;

    /// After a start nothing is planned for anybody until this is over.
    #[tokio::test(start_paused = true)]
    async fn secrets_that_take_long_to_be_read_hold_up_no_plan() {
        let mut hearing =
            Hearing::new(Arc::new(Timestamp::now), World::new(), LeaderMetrics::new(&Metrics::default()), 0);
        let secrets: Vec<_> = (0..10).map(|n| json!({ "name": format!("bogus-{n}") })).collect();
        let object = json!({
            "metadata": { "name": "web", "namespace": "evil", "uid": "u", "resourceVersion": "1" },
            "spec": { "images": [{ "image": "reg.io/web:1", "pullSecrets": secrets }] },
        });
        let query = Query::all(&native::PREHEATS.kind);
        let row = SeenRow::of(&query, serde_json::from_value(object).unwrap());
        hearing.row(&query, Fact::There(row, Source::Watch));
        hearing.settle();
        let (now, mut asked) = mpsc::unbounded_channel();
        let secrets = Secrets::new(watch::Sender::new(Arc::default()), now);
        let mut leading = Leading::new(secrets, Arc::new(Notify::new()), Owed::default(), mpsc::unbounded_channel().0);
        assert!(!leading.knows_secrets(&mut hearing), "they are read first");
        let first = asked.try_recv().unwrap();
        assert_eq!(asked.len(), 9);
        leading.see_secret(&mut hearing, first, Read::Missing, Timestamp::now());
        assert!(!leading.knows_secrets(&mut hearing));
        tokio::time::advance(AWAITED).await;
        assert!(leading.knows_secrets(&mut hearing));
        assert_eq!(asked.len(), 9, "and are not asked for again");
    }
}

//! Logins between the World, which names them, and the orders, in which they are sealed.

use jiff::Timestamp;
use stoker_api::native;
use stoker_core::SecretId;
use tokio::time::Instant;

use super::Leading;
use crate::hearing::Hearing;
use crate::owed;
use crate::reading::Read;
use crate::writer::Numbered;

impl Leading {
    /// Whether the Secrets were read that jobs named when all objects were known.
    pub(crate) fn knows_secrets(&mut self, hearing: &Hearing) -> bool {
        let secrets = &mut self.secrets;
        let unread = self.unread.get_or_insert_with(|| {
            let wanted = hearing.world.wanted_secrets();
            let ids = wanted.keys().cloned().collect();
            secrets.want(wanted);
            ids
        });
        unread.is_empty()
    }

    /// A Secret was read. Orders that waited for it, and nodes that lack logins, are written to.
    pub(crate) fn see_secret(&mut self, hearing: &mut Hearing, id: SecretId, read: Read, asked: Timestamp) {
        if let Some(unread) = &mut self.unread {
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
            let (is_another, wake) = (agent.key.follow(now), agent.key.wake());
            if is_another {
                self.look_for_logins(hearing, &name);
            }
            if let Some(wake) = wake {
                next = Some(next.map_or(wake, |next: Instant| next.min(wake)));
                self.rekeyed.insert(name);
            }
        }
        next
    }

    /// The write that is owed longest: the orders of a node as they are now, with the logins that they name. None where a login has
    /// to be read first.
    pub(crate) fn next_owed(&mut self, hearing: &Hearing) -> Option<Numbered> {
        let (node, keys) = self.owed.next()?;
        let agent = self.nodes.get_mut(&node)?;
        let orders = hearing.world.orders(&node)?;
        let named = hearing.world.open_logins(&node);
        let Ok(logins) = self.secrets.changes(&node, &named, agent.key.get(), &agent.logins) else {
            self.owed.park(&node, keys);
            return None;
        };
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
        let changes = owed::changes(keys, orders);
        let write = native::from_core::orders(&node, &changes, &logins, hearing.epoch());
        Some((self.number, write))
    }
}

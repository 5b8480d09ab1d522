//! Logins between the World, which names them, and the orders, in which they are sealed.

use jiff::Timestamp;
use stoker_api::native;
use stoker_core::SecretId;

use super::Shell;
use crate::owed;
use crate::reading::Read;
use crate::writer::Numbered;

impl Shell {
    /// Whether everything was seen that a plan depends on.
    pub(super) fn may_plan(&mut self) -> bool {
        if !self.unheard.is_empty() {
            return false;
        }
        let (world, secrets) = (&self.world, &mut self.secrets);
        let unread = self.unread.get_or_insert_with(|| {
            let wanted = world.wanted_secrets();
            let ids = wanted.keys().cloned().collect();
            secrets.want(wanted);
            ids
        });
        unread.is_empty()
    }

    /// A Secret was read. Orders that waited for it, and nodes that lack logins, are written to.
    pub(super) fn see_secret(&mut self, id: SecretId, read: Read, asked: Timestamp) {
        if let Some(unread) = &mut self.unread {
            unread.remove(&id);
        }
        if let Some(event) = self.secrets.see(id, read, asked) {
            self.world.apply(event);
        }
        self.owed.resume();
        for node in std::mem::take(&mut self.lacking) {
            self.owed.add(&node, std::iter::empty());
        }
    }

    /// Whether a node lacks logins that its orders name: it has lost its key, or they could not be read when the orders were written.
    pub(super) fn look_for_logins(&mut self, name: &str) {
        let Some(agent) = self.nodes.get(name) else { return };
        let named = self.world.open_logins(name);
        match self.secrets.lacks(&named, agent.key.as_ref(), &agent.logins) {
            true => self.lacking.insert(name.into()),
            false => self.lacking.remove(name),
        };
    }

    /// The write that is owed longest: the orders of a node as they are now, with the logins that they name. None where a login has
    /// to be read first.
    pub(super) fn next_owed(&mut self) -> Option<Numbered> {
        let (node, keys) = self.owed.next()?;
        let agent = self.nodes.get_mut(&node)?;
        let orders = self.world.orders(&node)?;
        let named = self.world.open_logins(&node);
        let Ok(logins) = self.secrets.changes(&node, &named, agent.key.as_ref(), &agent.logins) else {
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
        agent.progress.hand_out(self.number);
        let changes = owed::changes(keys, orders);
        let write = native::from_core::orders(&node, &changes, &logins, self.epoch.unwrap_or(self.highest));
        Some((self.number, write))
    }
}

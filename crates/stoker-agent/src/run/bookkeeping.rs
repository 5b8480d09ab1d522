//! What is durable: the orders in hand, the logins that they name, the version of the NodePreheat that both are from, and the
//! file in which the agent finds all of it after a restart. Tasks come in as they are; this part neither starts nor reports anything.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use kube::ResourceExt as _;
use stoker_api::native::from_core::Tickets;
use stoker_api::native::{NodeObject, SealedLogin};
use stoker_core::model::{Bytes, Key, LoginId, Order, Phase, Report};
use stoker_core::step::Task;
use tokio::sync::watch::{self, Receiver, Sender};

use crate::ledger::Ledger;
use crate::logins::Sealed;
use crate::starts::Starts;

/// Uid and generation of a NodePreheat.
type ObjectVersion = (String, i64);

pub(super) struct Bookkeeping {
    path: PathBuf,
    /// What the file has.
    written: Ledger,
    /// The object that the orders are from.
    source: ObjectVersion,
    orders: BTreeMap<Key, Order>,
    /// What this node shows to the nodes that the orders name.
    tickets: Tickets,
    /// The logins that the orders name, for the attempts that open them.
    sealed: Sender<Sealed>,
}

impl Bookkeeping {
    /// Goes on with what the file has; the receiver sees every later change of the logins.
    pub(super) fn recover(path: PathBuf, written: Ledger) -> (Self, Receiver<Sealed>) {
        let (sealed, receiver) = watch::channel(Arc::new(written.logins.clone()));
        let (source, orders) = ((written.uid.clone(), written.generation), written.orders.clone());
        let tickets = written.tickets.clone();
        (Self { path, written, source, orders, tickets, sealed }, receiver)
    }

    pub(super) fn orders(&self) -> &BTreeMap<Key, Order> {
        &self.orders
    }

    pub(super) fn tickets(&self) -> &Tickets {
        &self.tickets
    }

    /// Whether the orders of this object may be taken: an older generation of the same object is refused.
    pub(super) fn accept(&mut self, object: &NodeObject) -> bool {
        let source = source(object);
        if source.0 == self.source.0 && source.1 < self.source.1 {
            tracing::warn!(
                "orders of generation {} are older than those of {} in hand, not taken",
                source.1,
                self.source.1
            );
            return false;
        }
        self.source = source;
        true
    }

    /// Takes the word of a new list over all that was known: the next object is accepted, whatever its generation is.
    pub(super) fn relist(&mut self, object: &NodeObject) {
        let ((uid, generation), listed) = (std::mem::take(&mut self.source), source(object));
        if listed.0 == uid && listed.1 < generation {
            tracing::warn!(
                "the API server went back from generation {generation} of the orders to {}; taking those",
                listed.1
            );
        }
    }

    /// These are the orders now.
    pub(super) fn set(
        &mut self,
        orders: BTreeMap<Key, Order>,
        tickets: Tickets,
        logins: BTreeMap<LoginId, SealedLogin>,
    ) {
        (self.orders, self.tickets) = (orders, tickets);
        self.sealed.send_if_modified(|sealed| {
            let changed = **sealed != logins;
            *sealed = Arc::new(logins);
            changed
        });
    }

    /// The object is gone, and with it all orders.
    pub(super) fn forget(&mut self) {
        self.orders.clear();
        self.tickets.clear();
        self.sealed.send_replace(Sealed::default());
    }

    /// Whether the file has the orders in hand, and every digest that all nodes will take from this one.
    pub(super) fn is_noted(&self, tasks: &BTreeMap<Key, Task>) -> bool {
        let noted = |key: &Key| self.written.reports.get(key).and_then(|report| report.pin.as_ref());
        let told_to_all = |phase: Phase| matches!(phase, Phase::Pulling | Phase::Resolved);
        let mut open = tasks.iter().filter(|(_, task)| told_to_all(task.report.phase));
        (&self.written.uid, self.written.generation) == (&self.source.0, self.source.1)
            && self.written.orders == self.orders
            && open.all(|(key, task)| task.report.pin.is_none() || task.report.pin.as_ref() == noted(key))
    }

    /// Writes the file where it is out of date. A disk that refuses is said; the work goes on.
    pub(super) async fn note(&mut self, tasks: &BTreeMap<Key, Task>, starts: &Starts) {
        let (uid, generation) = self.source.clone();
        let (orders, tickets) = (self.orders.clone(), self.tickets.clone());
        let logins = self.sealed.borrow().as_ref().clone();
        let ledger =
            Ledger { uid, generation, orders, tickets, logins, reports: durable(tasks), starts: starts.clone() };
        if ledger == self.written {
            return;
        }
        let (path, copy) = (self.path.clone(), ledger.clone());
        let saved = tokio::task::spawn_blocking(move || copy.save(&path)).await;
        match saved.unwrap_or_else(|problem| Err(std::io::Error::other(problem))) {
            Ok(()) => self.written = ledger,
            Err(problem) => {
                tracing::warn!("cannot write the ledger {}, trying again: {problem}", self.path.display());
            }
        }
    }
}

fn source(object: &NodeObject) -> ObjectVersion {
    (object.uid().unwrap_or_default(), object.metadata.generation.unwrap_or_default())
}

/// What of the reports must survive a restart: ends, and answers of registries.
fn durable(tasks: &BTreeMap<Key, Task>) -> BTreeMap<Key, Report> {
    let worth = tasks.iter().filter(|(_, task)| task.report.ended() || task.report.pin.is_some());
    let reports = worth.map(|(key, task)| {
        let mut report = task.report.clone();
        // Progress is not worth a write.
        if !report.ended() {
            (report.bytes, report.updated) = (Bytes::default(), report.started);
        }
        (*key, report)
    });
    reports.collect()
}

#[cfg(test)]
mod tests;

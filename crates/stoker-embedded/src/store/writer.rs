//! The thread that writes the journal. In: the changes that came while it was writing the last ones. Out: all of them durable by
//! one fsync, then seen by readers and watchers, then acknowledged; or none of them. It ends with the store.

use super::Shared;
use super::state::{Batch, Change, Mode, State, Waiting};
use crate::journal::{Journal, JournalFailure, JournalRow};
use std::sync::{Arc, PoisonError};
use std::thread::{Builder, JoinHandle};

pub(super) fn spawn(shared: Arc<Shared>, journal: Journal) -> std::io::Result<JoinHandle<()>> {
    Builder::new().name("journal".to_owned()).spawn(move || run(&shared, journal))
}

/// However the thread ends, nobody waits for it any longer.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.mode = Mode::Stopped;
        let waiting = state.roll_back(JournalFailure::stopped());
        drop(state);
        tell(waiting, &Err(JournalFailure::stopped()));
    }
}

fn run(shared: &Shared, mut journal: Journal) {
    let ending = Ending(shared);
    while wait(shared) {
        // A failure was logged, and told to everyone whom it concerns.
        let _ = flush(shared, &mut journal);
        journal.tidy();
    }
    journal.close();
    drop(ending);
}

/// Waits for work; `false` when there will be none.
fn wait(shared: &Shared) -> bool {
    let idle = |state: &mut State| state.pending.changes.is_empty() && !state.closing;
    let state = shared.work.wait_while(shared.lock(), idle).unwrap_or_else(PoisonError::into_inner);
    !state.pending.changes.is_empty()
}

/// Writes everything that is pending.
pub(super) fn flush(shared: &Shared, journal: &mut Journal) -> Result<(), JournalFailure> {
    let changes = {
        let mut state = shared.lock();
        let Batch { changes, waiting } = std::mem::take(&mut state.pending);
        state.flying = Some(waiting);
        changes
    };
    let (rows, revision) = rows(&changes);
    let written = if rows.is_empty() { Ok(()) } else { journal.commit(&rows, revision) };
    let mut state = shared.lock();
    let waiting = match &written {
        Ok(()) => {
            state.apply(changes);
            state.flying.take().unwrap_or_default()
        }
        Err(failure) => state.roll_back(failure.clone()),
    };
    drop(state);
    tell(waiting, &written);
    written
}

fn tell(waiting: Waiting, outcome: &Result<(), JournalFailure>) {
    for waiter in waiting {
        // Whoever no longer listens has gone away.
        let _ = waiter.send(outcome.clone());
    }
}

/// The changes of objects, and the revision of the last. Kinds are made of objects, so they need no rows of their own.
fn rows(changes: &[Change]) -> (Vec<JournalRow>, u64) {
    let mut rows = Vec::with_capacity(changes.len());
    let mut revision = 0;
    for change in changes {
        if let Change::Object(made) = change {
            revision = made.object.revision;
            rows.push(JournalRow { place: made.place.clone(), after: (!made.removed).then(|| made.object.clone()) });
        }
    }
    (rows, revision)
}

//! A cluster for as long as the tests run: the one that is up, which stays, or one that comes for them and goes with them.
//! One has it on loan at a time: whoever comes meanwhile waits for his turn, and then finds the cluster or makes one.

use super::journal::Journal;
use super::lock::{self, Lock};
use super::place::{Nodes, Place};
use super::site::Site;
use super::up::{self, Half};
use super::{ROOT, down, inside, open};
use crate::shell;

/// The cluster, which nobody but a person takes down before the end of this.
pub(crate) struct Loan {
    pub(super) site: Site,
    /// Of tests.
    turn: Option<Lock>,
}

/// A cluster with real nodes, or why this machine has none.
pub(crate) fn take() -> anyhow::Result<Result<Loan, String>> {
    if !shell::is_root() {
        return Ok(Err(ROOT.to_string()));
    }
    // Before anybody looks at the cluster: what the tests of another stopped on purpose is not for us to make anew.
    let turn = lock::turn(&Place::usual()?)?;
    let _up = match up::run(Place::usual()?, None, Half::Goes)? {
        Ok(up) => up,
        Err(lack) => return Ok(Err(lack)),
    };
    let site = open(Place::usual()?)?;
    if !matches!(site.journal.nodes(), Some(Nodes::Real(nodes)) if *nodes >= up::NODES) {
        let has =
            "the cluster that is up has no two real nodes; `cargo xtask cluster down` makes room for one that has";
        return Ok(Err(has.to_string()));
    }
    Ok(Ok(Loan { turn: Some(turn), ..Loan::begin(site)? }))
}

impl Loan {
    /// Whoever calls holds the lock.
    pub(super) fn begin(site: Site) -> anyhow::Result<Self> {
        site.journal.borrow()?;
        Ok(Self { site, turn: None })
    }

    /// Cargo's setting, for `--config`, by which tests run in the control plane's network and find the cluster.
    pub(crate) fn inside(&self) -> anyhow::Result<String> {
        inside(&self.site)
    }

    /// Takes it down, if it came on loan and nobody wanted it since, whatever came of what ran on it.
    pub(crate) fn end<T>(self, ran: anyhow::Result<T>) -> anyhow::Result<T> {
        let Self { site: Site { place, journal }, turn } = self;
        let ended = down::after(ran, give_back(&place, journal), &place);
        drop(turn);
        ended
    }
}

fn give_back(place: &Place, held: Journal) -> anyhow::Result<()> {
    let _lock = lock::change(place)?;
    drop(held);
    // Read again: others may have written in it, and taken the cluster down.
    match Journal::open(&place.journal())? {
        Some(journal) if !journal.goes() => Ok(()),
        _ => down::run(place),
    }
}

#[cfg(test)]
mod tests {
    use super::super::journal::Record;
    use super::*;

    #[test]
    fn a_cluster_that_came_on_loan_goes_with_it() {
        let dir = std::env::temp_dir().join(format!("stoker-loan-{}", std::process::id()));
        let place = || Place::new(dir.clone()).unwrap();
        let made = |half| {
            let _lock = lock::change(&place()).unwrap();
            up::begin(&place(), half).unwrap();
        };
        let loan = || Loan::begin(open(place()).unwrap());
        made(Half::Goes);
        // Also with the next one's, where the first was killed.
        let killed = loan().unwrap();
        let told = loan().err().unwrap().to_string();
        assert!(told.contains("somebody else works"), "{told}");
        drop(killed);
        assert!(place().journal().exists());
        loan().unwrap().end(Ok(())).unwrap();
        assert!(!dir.exists());
        // Somebody's own stays, and so does one that somebody wants by now.
        made(Half::Stays);
        loan().unwrap().end(Ok(())).unwrap();
        assert!(place().journal().exists());
        down::run(&place()).unwrap();
        made(Half::Goes);
        let last = loan().unwrap();
        open(place()).unwrap().journal.add(Record::Goes(false)).unwrap();
        last.end(Ok(())).unwrap();
        assert!(place().journal().exists());
        // A person's `down` does not wait, and nothing is left of the loan either.
        let last = loan().unwrap();
        assert!(open(place()).unwrap().journal.on_loan().unwrap());
        down::run(&place()).unwrap();
        last.end(Ok(())).unwrap();
        assert!(!dir.exists());
    }
}

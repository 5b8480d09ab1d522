//! A cluster for as long as the tests run: the one that is up, which stays, or one that comes for them and goes with them.
//! Several may have the same one on loan; one that came for the first goes with the last.

use super::journal::{Journal, Record};
use super::place::{Nodes, Place};
use super::site::{self, Site};
use super::up::{self, Half};
use super::{ROOT, down, inside, open};
use crate::shell;

/// The cluster, which nobody but a person takes down before the end of this.
pub(crate) struct Loan {
    pub(super) site: Site,
}

/// A cluster with real nodes, or why this machine has none.
pub(crate) fn take() -> anyhow::Result<Result<Loan, String>> {
    if !shell::is_root() {
        return Ok(Err(ROOT.to_string()));
    }
    let up = match up::run(Place::usual()?, None, Half::Goes)? {
        Ok(up) => up,
        Err(lack) => return Ok(Err(lack)),
    };
    let site = open(Place::usual()?)?;
    if !matches!(site.journal.nodes(), Some(Nodes::Real(nodes)) if *nodes >= up::NODES) {
        let has =
            "the cluster that is up has no two real nodes; `cargo xtask cluster down` makes room for one that has";
        return Ok(Err(has.to_string()));
    }
    Loan::begin(site, up.new).map(Ok)
}

impl Loan {
    /// Whoever calls holds the lock. `goes`: the cluster came for this.
    pub(super) fn begin(mut site: Site, goes: bool) -> anyhow::Result<Self> {
        if goes {
            site.journal.add(Record::Goes(true))?;
        }
        site.journal.borrow()?;
        Ok(Self { site })
    }

    /// Cargo's setting, for `--config`, by which tests run in the control plane's network and find the cluster.
    pub(crate) fn inside(&self) -> anyhow::Result<String> {
        inside(&self.site)
    }

    /// Takes it down, if it came on loan and nobody else has it, whatever came of what ran on it.
    pub(crate) fn end<T>(self, ran: anyhow::Result<T>) -> anyhow::Result<T> {
        let Site { place, journal } = self.site;
        down::after(ran, give_back(&place, journal), &place)
    }
}

fn give_back(place: &Place, held: Journal) -> anyhow::Result<()> {
    let _lock = site::lock(place)?;
    drop(held);
    // Read again: others may have written in it, and taken the cluster down.
    match Journal::open(&place.journal())? {
        Some(journal) if !journal.goes() => Ok(()),
        Some(journal) if journal.on_loan()? => {
            println!("somebody else works with the cluster; it goes with the last");
            Ok(())
        }
        _ => down::run(place),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_came_on_loan_goes_with_the_last_who_has_it() {
        let dir = std::env::temp_dir().join(format!("stoker-loan-{}", std::process::id()));
        let place = || Place::new(dir.clone()).unwrap();
        let made = || {
            let _lock = site::lock(&place()).unwrap();
            Journal::begin(&place().journal()).unwrap();
        };
        let loan = |goes| Loan::begin(open(place()).unwrap(), goes).unwrap();
        made();
        let (first, second) = (loan(true), loan(false));
        first.end(Ok(())).unwrap();
        assert!(place().journal().exists());
        second.end(Ok(())).unwrap();
        assert!(!dir.exists());
        // Somebody's own stays, and so does one that somebody wants by now.
        made();
        loan(false).end(Ok(())).unwrap();
        let last = loan(true);
        open(place()).unwrap().journal.add(Record::Goes(false)).unwrap();
        last.end(Ok(())).unwrap();
        assert!(place().journal().exists());
        // A person's `down` does not wait, and nothing is left of the loan either.
        let last = loan(true);
        assert!(open(place()).unwrap().journal.on_loan().unwrap());
        down::run(&place()).unwrap();
        last.end(Ok(())).unwrap();
        assert!(!dir.exists());
    }
}

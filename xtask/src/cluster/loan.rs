//! A cluster for as long as the tests run: the one that is up, which stays, or one that comes for them and goes with them.

use super::place::Place;
use super::site::{self, Site};
use super::up::{self, Half};
use super::{ROOT, down, inside, open};
use crate::{built, shell};

/// The cluster, and whether it goes.
pub(crate) struct Loan {
    pub(super) site: Site,
    pub(super) ours: bool,
}

/// A cluster with real nodes, or why this machine has none.
pub(crate) fn take() -> anyhow::Result<Result<Loan, String>> {
    if !shell::is_root() {
        return Ok(Err(ROOT.to_string()));
    }
    let place = || Place::new(built::cache()?.join("cluster"));
    let ours = !place()?.journal().exists();
    if let Some(lack) = up::run(place()?, None, Half::Goes)? {
        return Ok(Err(lack));
    }
    let site = open(place()?)?;
    if site.journal.fake() || site.journal.nodes().is_none_or(|nodes| nodes < up::NODES) {
        let has =
            "the cluster that is up has no two real nodes; `cargo xtask cluster down` makes room for one that has";
        return Ok(Err(has.to_string()));
    }
    Ok(Ok(Loan { site, ours }))
}

impl Loan {
    /// Cargo's setting, for `--config`, by which tests run in the control plane's network and find the cluster.
    pub(crate) fn inside(&self) -> anyhow::Result<String> {
        inside(&self.site)
    }

    /// Takes it down, if it came for this, whatever came of what ran on it.
    pub(crate) fn end<T>(self, ran: anyhow::Result<T>) -> anyhow::Result<T> {
        let place = &self.site.place;
        match self.ours {
            true => down::after(ran, site::lock(place).and_then(|_lock| down::run(place)), place),
            false => ran,
        }
    }
}

//! Random histories of a small cluster: an API server on paper, the controller's own [`Shell`](crate::run::Shell) with its World and
//! View, and agents that do as little as possible. Watches are late and break off, writes and answers are late or lost, users change
//! their minds, somebody rude writes to the same objects, and the controller is restarted anywhere. `laws` says what holds at every
//! moment, `rest` what holds when everybody has calmed down.
//!
//! A failure prints what happened, one line each, and the seed of the run: PROPTEST_RNG_SEED replays it.

mod agents;
mod cluster;
mod ears;
mod happenings;
mod laws;
mod rest;
mod rude;
mod users;
mod wire;

use proptest::prelude::*;

use cluster::Cluster;
use happenings::{Happening, happening};

/// A few histories; PROPTEST_CASES asks for more, and PROPTEST_RNG_SEED for others.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, max_shrink_iters: 400, ..ProptestConfig::default() };
    // Proptest's own number: nobody asked for another.
    if config.cases == 256 {
        config.cases = 64;
    }
    config
}

/// Lets a history happen, and then everybody calm down.
fn live(history: &[Happening]) -> Result<(), TestCaseError> {
    let mut cluster = Cluster::new();
    let result = history.iter().try_for_each(|happening| cluster.happen(happening)).and_then(|()| cluster.rest());
    if std::env::var("STATS").is_ok() {
        let ended = cluster.paper.all().filter(|(_, o)| wire::has_ended(o)).count();
        let jobs = cluster.paper.all().filter(|(_, o)| wire::job_kind(o).is_some()).count();
        let done = cluster.log.iter().filter(|l| l.contains("Done:")).count();
        let before = cluster.log.iter().position(|l| l.contains("calms down")).unwrap_or(0);
        let done_before = cluster.log.iter().take(before).filter(|l| l.contains("Done:")).count();
        println!(
            "STATS jobs {jobs} ended {ended} writes {done} before rest {done_before} events {} now {}",
            cluster.log.len(),
            cluster.now()
        );
    }
    result.map_err(|law| {
        let seed = std::env::var("PROPTEST_RNG_SEED").unwrap_or_default();
        TestCaseError::fail(format!("{law}\n\nPROPTEST_RNG_SEED={seed}; what happened:\n{}\n", cluster.log.join("\n")))
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn whatever_happens_the_laws_hold(history in prop::collection::vec(happening(), 20..160)) {
        live(&history)?;
    }
}

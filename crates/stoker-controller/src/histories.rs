//! Random histories of a small cluster: an API server on paper, the controller's own [`Shell`](crate::run::Shell) with its World and
//! View, and agents that do as little as possible. Watches are late and break off, writes and answers are late or lost, users change
//! their minds, somebody rude writes to the same objects, and the controller is restarted anywhere. `laws` says what holds at every
//! moment, `rest` what holds when everybody has calmed down.
//!
//! A failure prints what happened, one line each, and the seed of the run: PROPTEST_RNG_SEED replays it.

mod agents;
mod cluster;
mod ears;
mod half;
mod happenings;
mod laws;
mod makers;
mod manager;
mod policies;
mod rest;
mod rude;
mod users;
mod wire;
mod writes;

use proptest::prelude::*;

use cluster::Cluster;
use happenings::{Fate, Happening, happening};
use rude::Rudeness;
use users::{KINDS, Wish};

/// A few histories; PROPTEST_CASES asks for more, and PROPTEST_RNG_SEED for others.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, max_shrink_iters: 150, ..ProptestConfig::default() };
    // Proptest's own number: nobody asked for another.
    if config.cases == 256 {
        config.cases = 64;
    }
    config
}

/// Lets a history happen, and then everybody calm down. In half a hand-over Kruise's manager goes on with its own part.
fn live(history: &[Happening], half: bool) -> Result<(), TestCaseError> {
    let mut cluster = Cluster::new(half);
    let result = history.iter().try_for_each(|happening| cluster.happen(happening)).and_then(|()| cluster.rest());
    result.map_err(|law| {
        let seed = std::env::var("PROPTEST_RNG_SEED").unwrap_or_default();
        TestCaseError::fail(format!("{law}\n\nPROPTEST_RNG_SEED={seed}; what happened:\n{}\n", cluster.log.join("\n")))
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn whatever_happens_the_laws_hold(history in prop::collection::vec(happening(), 20..160), half in prop::bool::weighted(0.25)) {
        live(&history, half)?;
    }
}

/// Writes wait while their object is deleted and made anew under the same name.
#[test]
fn what_is_meant_for_an_object_does_not_reach_the_next_one_of_its_name() {
    for (kind, (name, ..)) in KINDS.iter().enumerate() {
        let made = [
            Happening::Wish { kind, name: 0, wish: Wish::plain() },
            Happening::Flow { writes: 0 },
            Happening::Rude { object: 0, rudeness: Rudeness::Recreate },
        ];
        let delivered = (0..8).map(|_| Happening::Deliver { write: 0, fate: Fate::Done });
        let history: Vec<Happening> = made.into_iter().chain(delivered).collect();
        live(&history, false).unwrap_or_else(|law| panic!("{name}: {law}"));
    }
}

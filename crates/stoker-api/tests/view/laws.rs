//! One test for each law, over random histories.

use proptest::prelude::*;
use stoker_api::Write;
use stoker_api::view::{Query, Root};
use stoker_core::{Job, Plan};
use stoker_testbed::paper::Paper;

use crate::telling::{Step, Teller, now, step};

/// A few histories; PROPTEST_CASES asks for more, and PROPTEST_RNG_SEED for others.
pub(crate) fn config() -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    // Proptest's own number: nobody asked for another.
    if config.cases == 256 {
        config.cases = 96;
    }
    config
}

fn history() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 5..80)
}

/// A View to which a history has happened, and that has heard of everything since. In half a hand-over upstream's manager goes on.
fn after(history: &[Step], half: bool, seed: usize) -> Teller {
    let mut teller = Teller::new(Paper::default(), half);
    history.iter().for_each(|step| teller.step(step));
    teller.catch_up(seed);
    teller
}

fn half() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.2)
}

/// All that follows from what a View was told.
struct Meaning {
    jobs: Vec<Job>,
    wanted: Vec<Query>,
    plan: Plan,
    writes: Vec<(Root, Vec<Write>)>,
}

fn meaning(teller: &mut Teller) -> Meaning {
    let mut plan = teller.plan();
    // Those that were there are named, too.
    plan.nodes.clear();
    let jobs = teller.world.jobs().filter_map(|id| teller.world.job(id)).cloned().collect();
    let roots: Vec<Root> = teller.view.roots().cloned().collect();
    let writes = roots.into_iter().map(|root| {
        let writes = teller.view.project(&root, &teller.world, now());
        (root, writes)
    });
    // Who was allowed to see the objects of nodes knows those roots still.
    let writes = writes.filter(|(_, writes)| !writes.is_empty()).collect();
    Meaning { jobs, wanted: teller.view.wanted().into_iter().collect(), plan, writes }
}

proptest! {
    #![proptest_config(config())]

    /// What was told piece by piece, with gaps and changes of mind, means what the rows of today mean; and it does not matter in
    /// which order the lists of today came.
    #[test]
    fn only_what_is_there_counts(history in history(), half in half(), seeds in any::<[usize; 3]>()) {
        let mut told = after(&history, half, seeds[0]);
        let (mut fresh, mut other) = (told.fresh(seeds[1]), told.fresh(seeds[2]));
        let meant = meaning(&mut fresh);
        // Which watches serve the queries depends on those that there were before.
        assert_eq!(other.view.wanted().into_iter().collect::<Vec<_>>(), meant.wanted);
        for other in [&mut told, &mut other].map(meaning) {
            assert_eq!(other.jobs, meant.jobs);
            assert_eq!(other.plan, meant.plan);
            assert_eq!(other.writes, meant.writes);
        }
    }

    /// When every write is done nothing more is written, also by a controller that starts anew.
    #[test]
    fn writes_come_to_an_end(history in history(), half in half(), seed in any::<usize>()) {
        let mut told = after(&history, half, seed);
        for round in 0.. {
            told.plan().outcomes.iter().for_each(|outcome| told.view.touch(&outcome.job));
            let writes = told.due();
            let done = told.perform(&writes);
            if done.is_empty() {
                break;
            }
            assert!(round < 6, "still writes {done:#?}");
            told.catch_up(seed);
        }
        let mut fresh = told.fresh(seed);
        let meant = meaning(&mut fresh);
        for (root, writes) in meant.writes {
            assert_eq!(fresh.perform(&writes), [], "{root:?}");
        }
    }

    /// Who is told again what it knows has nothing to do.
    #[test]
    fn an_equal_row_changes_nothing(history in history(), half in half(), seed in any::<usize>()) {
        let mut told = after(&history, half, seed);
        told.plan();
        told.due();
        told.settle();
        assert_eq!(told.view.due(now()).next(), None);
        told.catch_up(seed);
        assert_eq!(told.view.due(now()).next(), None);
        assert!(told.world.plan(now()).is_empty());
    }
}

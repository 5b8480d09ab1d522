//! The bytes a second that nodes of a peer group usually get. In: what their agents say that they got. Out: the median. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// So many nodes must have said how fast they are. The median of fewer is what one or two of them claim.
const FEWEST: usize = 5;

/// What the nodes of a group say that they receive, by slot.
#[derive(Clone, Debug, Default)]
pub(in crate::world) struct UsualRate {
    /// The slowest first.
    sorted: Vec<(u64, usize)>,
    rates: BTreeMap<usize, u64>,
}

impl UsualRate {
    pub(in crate::world) fn of(said: Vec<(usize, u64)>) -> Self {
        let mut sorted: Vec<(u64, usize)> = said.into_iter().map(|(at, rate)| (rate, at)).collect();
        sorted.sort_unstable();
        Self { rates: sorted.iter().map(|(rate, at)| (*at, *rate)).collect(), sorted }
    }

    /// The median of all nodes but these. None where too few nodes have said anything.
    pub(in crate::world) fn besides(&self, slots: &[usize]) -> Option<u64> {
        if self.sorted.len() < FEWEST {
            return None;
        }
        // Thousands of nodes ask for this in one plan.
        let place = |at: &usize| self.sorted.binary_search(&(*self.rates.get(at)?, *at)).ok();
        let left_out: BTreeSet<usize> = slots.iter().filter_map(place).collect();
        let mut middle = (self.sorted.len() - left_out.len()) / 2;
        for place in left_out {
            middle += usize::from(place <= middle);
        }
        self.sorted.get(middle).map(|(rate, _)| *rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn median(rates: &[u64], besides: &[usize]) -> Option<u64> {
        UsualRate::of(rates.iter().copied().enumerate().collect()).besides(besides)
    }

    #[test]
    fn what_is_usual_is_the_median_of_at_least_five_nodes() {
        assert_eq!(median(&[], &[]), None);
        assert_eq!(median(&[8, 8, 8, 8], &[]), None);
        assert_eq!(median(&[8, 1, 9, 2, 7], &[]), Some(7));
        assert_eq!(median(&[8, 1, 9, 2, 7, 1 << 62], &[]), Some(8));
    }

    #[test]
    fn the_sources_of_a_node_do_not_say_what_it_can_expect() {
        assert_eq!(median(&[1, 2, 3, 4, 5], &[0]), Some(4));
        assert_eq!(median(&[1, 2, 3, 4, 5], &[4]), Some(3));
        assert_eq!(median(&[5, 4, 3, 2, 1], &[0, 1, 2, 3]), Some(1));
        assert_eq!(median(&[1, 2, 3, 4, 5], &[0, 1, 2, 3, 4]), None);
        // All of them, by an oracle.
        let rates = [7, 7, 3, 9, 1, 4, 7];
        for bits in 0..1_u32 << rates.len() {
            let besides: Vec<usize> = (0..rates.len()).filter(|at| bits & (1 << at) != 0).collect();
            let mut left: Vec<u64> = (0..rates.len()).filter(|at| !besides.contains(at)).map(|at| rates[at]).collect();
            left.sort_unstable();
            assert_eq!(median(&rates, &besides), left.get(left.len() / 2).copied(), "{besides:?}");
        }
    }
}

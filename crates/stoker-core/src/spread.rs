//! Which nodes have an image that only some nodes are to have: so many, over all zones, and the same ones as long as they can be.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::NodeName;

/// A node that may be one of them.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its name.
    pub name: &'a NodeName,
    /// Its zone.
    pub zone: &'a str,
    /// Whether it is one of them already.
    pub chosen: bool,
}

/// The nodes to choose: `number` of the candidates, or all where there are fewer.
///
/// A node that is chosen stays chosen. A missing node is taken from the zone with the fewest, a superfluous one is given up in the zone with the
/// most: the first zone by name where several are equal, and in a zone the first node by name is taken, the last one given up.
pub fn choose<'a>(number: usize, candidates: impl IntoIterator<Item = Candidate<'a>>) -> BTreeSet<NodeName> {
    let mut zones: BTreeMap<&str, Zone<'a>> = BTreeMap::new();
    for Candidate { name, zone, chosen } in candidates {
        let zone = zones.entry(zone).or_default();
        let nodes = if chosen { &mut zone.chosen } else { &mut zone.free };
        nodes.insert(name);
    }
    let mut chosen: usize = zones.values().map(|zone| zone.chosen.len()).sum();
    // By how many are chosen, then by name: every step takes one entry and puts it back.
    let mut open: BTreeSet<(usize, &str)> = zones.iter().map(|(name, zone)| (zone.chosen.len(), *name)).collect();
    while chosen < number {
        let Some((taken, name)) = open.pop_first() else { break };
        let Some(zone) = zones.get_mut(name) else { continue };
        // A zone without a free node is not looked at again.
        if let Some(node) = zone.free.pop_first() {
            zone.chosen.insert(node);
            chosen += 1;
            open.insert((taken + 1, name));
        }
    }
    while chosen > number {
        let most =
            zones.values_mut().reduce(|most, zone| if zone.chosen.len() > most.chosen.len() { zone } else { most });
        if most.and_then(|zone| zone.chosen.pop_last()).is_none() {
            break;
        }
        chosen -= 1;
    }
    zones.into_values().flat_map(|zone| zone.chosen).cloned().collect()
}

#[derive(Default)]
struct Zone<'a> {
    chosen: BTreeSet<&'a NodeName>,
    free: BTreeSet<&'a NodeName>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Nodes as `zone/name`, those that are chosen with a star behind.
    fn chosen(number: usize, nodes: &[&str]) -> Vec<String> {
        let nodes = nodes.iter().map(|node| {
            let (zone, name) = node.split_once('/').unwrap();
            (zone, NodeName::from(name.trim_end_matches('*')), name.ends_with('*'))
        });
        let nodes: Vec<(&str, NodeName, bool)> = nodes.collect();
        let candidates = nodes.iter().map(|(zone, name, chosen)| Candidate { name, zone, chosen: *chosen });
        choose(number, candidates).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn nodes_are_spread_over_zones_and_stay() {
        let cases: &[(usize, &[&str], &[&str])] = &[
            (0, &["a/n1", "b/n2*"], &[]),
            (2, &[], &[]),
            (2, &["a/n1", "a/n2", "b/n3"], &["n1", "n3"]),
            (2, &["/n1", "/n2", "/n3"], &["n1", "n2"]),
            (3, &["a/n1", "a/n2", "b/n3"], &["n1", "n2", "n3"]),
            (4, &["a/n1", "a/n2", "b/n3"], &["n1", "n2", "n3"]),
            (4, &["a/n1", "a/n2", "a/n3", "a/n4", "b/n5"], &["n1", "n2", "n3", "n5"]),
            // What is chosen stays, also where another choice would be spread better.
            (2, &["a/n1*", "a/n2*", "b/n3"], &["n1", "n2"]),
            (3, &["a/n1*", "a/n2*", "b/n3", "a/n0"], &["n1", "n2", "n3"]),
            (2, &["a/n1", "a/n9*", "b/n3", "b/n4"], &["n3", "n9"]),
            // What is too many goes where most are.
            (2, &["a/n1*", "a/n2*", "b/n3*"], &["n1", "n3"]),
            (1, &["a/n1*", "b/n2*", "c/n3*"], &["n3"]),
        ];
        for (number, nodes, expected) in cases {
            assert_eq!(chosen(*number, nodes), *expected, "{number} of {nodes:?}");
        }
    }

    proptest! {
        #[test]
        fn no_node_is_given_up_without_a_cause_and_zones_differ_by_one(
            nodes in prop::collection::btree_map("[a-f]{1,3}", ("[xyz]", any::<bool>()), 0..24),
            number in 0..24usize,
        ) {
            let nodes: Vec<(NodeName, String, bool)> =
                nodes.into_iter().map(|(name, (zone, chosen))| (name.into(), zone, chosen)).collect();
            let candidates = |chosen: &dyn Fn(&NodeName, bool) -> bool| {
                let candidates = nodes.iter().map(|(name, zone, was)| Candidate { name, zone, chosen: chosen(name, *was) });
                choose(number, candidates)
            };
            let choice = candidates(&|_, was| was);
            prop_assert_eq!(choice.len(), number.min(nodes.len()));
            let before: BTreeSet<NodeName> = nodes.iter().filter(|node| node.2).map(|node| node.0.clone()).collect();
            if before.len() <= number {
                prop_assert!(before.is_subset(&choice), "given up without a cause");
            } else {
                prop_assert!(choice.is_subset(&before), "taken although there are enough");
            }
            prop_assert_eq!(&candidates(&|name, _| choice.contains(name)), &choice, "a second choice is another");
            // From nothing, no zone has two more than one that has a free node.
            let fresh = candidates(&|_, _| false);
            let mut zones: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
            for (name, zone, _) in &nodes {
                let (taken, free) = zones.entry(zone).or_default();
                if fresh.contains(name) { *taken += 1 } else { *free += 1 }
            }
            let most = zones.values().map(|(taken, _)| *taken).max().unwrap_or_default();
            let fewest = zones.values().filter(|(_, free)| *free > 0).map(|(taken, _)| *taken).min().unwrap_or(most);
            prop_assert!(most <= fewest + 1, "{:?}", zones);
        }
    }
}

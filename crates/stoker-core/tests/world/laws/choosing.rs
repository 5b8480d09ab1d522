//! Jobs that want only some of the nodes that they could have.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use stoker_core::model::{Job, Node, NodeName};

use super::{config, each_plan};
use crate::history::history;
use crate::sim::Sim;

fn chosen(sim: &Sim, job: &Job) -> BTreeSet<NodeName> {
    let job = sim.world.job(&job.id);
    job.and_then(|job| job.names.as_ref()).into_iter().flat_map(|names| names.keys()).cloned().collect()
}

/// Whether a job could have this node.
fn fits(job: &Job, node: &Node) -> bool {
    let among = job.pick.as_ref().and_then(|pick| pick.among.as_ref());
    among.is_none_or(|among| among.contains_key(&node.name))
        && !node.foreign
        && job.selector.matches(&node.labels)
        && job.bounds.allow(node)
}

/// Whether a job that has chosen this node keeps it in any case.
fn may_stay(job: &Job, node: &Node) -> bool {
    node.ready && fits(job, node)
}

/// Whether an order on this node names the job: that is how a controller knows its nodes that has read no status.
fn is_ordered(sim: &Sim, job: &Job, node: &NodeName) -> bool {
    sim.world.orders(node).into_iter().flatten().any(|(_, order)| order.jobs.contains(&job.id))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_node_stays_chosen_while_it_can_and_a_free_one_is_taken(history in history()) {
        each_plan(&history, |before, after, _| {
            for job in after.world.jobs().filter_map(|id| after.world.job(id)) {
                let Some(pick) = &job.pick else { continue };
                let still = after.stands_still(&job.id) || job.ended.is_some() || job.unseen.is_some();
                if still {
                    continue;
                }
                let (had, has) = (chosen(before, job), chosen(after, job));
                let number = pick.number.map_or(usize::MAX, |number| usize::try_from(number).unwrap());
                assert!(has.len() <= number, "{has:?} are more than {number}");
                let nodes: BTreeMap<&NodeName, &Node> = after.nodes.values().map(|node| (&node.name, node)).collect();
                let stays = |name: &&NodeName| nodes.get(*name).is_some_and(|node| may_stay(job, node));
                let away = |name: &NodeName| nodes.get(name).is_some_and(|node| !node.ready && fits(job, node));
                let known = |name: &NodeName| had.contains(name) || is_ordered(before, job, name);
                assert!(has.iter().all(|name| stays(&name) || away(name) && known(name)), "{has:?}");
                // One that is not Ready is given up for another one alone.
                let given_up = had.iter().any(|name| away(name) && !has.contains(name));
                assert!(!given_up || has.len() == number, "{had:?} became {has:?}");
                let could_stay = had.iter().filter(stays).count();
                let gone = had.iter().filter(stays).filter(|name| !has.contains(*name)).count();
                assert_eq!(gone, could_stay.saturating_sub(number), "{had:?} became {has:?}");
                let free = nodes.values().filter(|node| {
                    let pulls = pick.number.is_none() || after.agents.contains_key(&*node.name);
                    may_stay(job, node) && !node.cordoned && !has.contains(&node.name) && pulls
                });
                let free: Vec<&&Node> = free.collect();
                assert!(has.len() == number || free.is_empty(), "{has:?} are too few, and {free:?} are free");
                // No new node is in a zone that has two more than one with a free node.
                let in_zone = |zone: &str| has.iter().filter(|name| nodes[*name].zone() == zone).count();
                for new in has.difference(&had) {
                    let taken = in_zone(nodes[new].zone());
                    assert!(free.iter().all(|node| taken <= in_zone(node.zone()) + 1), "{new} among {has:?}, not {free:?}");
                }
            }
        });
    }
}

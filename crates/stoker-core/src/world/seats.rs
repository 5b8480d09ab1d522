//! The seats of one job: one for each node that it wants, in the order of the nodes' names, which is the order of every plan.
//!
//! A job that wants one node of thousands has one seat. A seat goes with its node: slots are used again.

use super::NodeSlot;
use super::seat::Seat;

/// The seats of one job, each with the slot of its node. Every slot here has a node.
#[derive(Clone, Debug, Default)]
pub(super) struct JobSeats(Vec<(usize, Seat)>);

impl JobSeats {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Gives back the memory that a job needed when it wanted more nodes.
    pub(super) fn fit(&mut self) {
        self.0.shrink_to_fit();
    }

    /// Slots and seats by the name of the node. The position of a seat is good until a seat is added or taken away.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(usize, Seat)> {
        self.0.iter()
    }

    /// The slot and the seat at this position.
    pub(super) fn get(&self, position: usize) -> Option<&(usize, Seat)> {
        self.0.get(position)
    }

    /// The same, to be changed.
    pub(super) fn get_mut(&mut self, position: usize) -> Option<&mut (usize, Seat)> {
        self.0.get_mut(position)
    }

    /// The positions of the seats of which this is so.
    pub(super) fn positions(&self, is: impl Fn(&Seat) -> bool) -> Vec<usize> {
        let all = self.0.iter().enumerate();
        all.filter(|(_, (_, seat))| is(seat)).map(|(position, _)| position).collect()
    }

    /// Adds the seat of a node whose name comes after those of all others.
    pub(super) fn push(&mut self, at: usize, seat: Seat) {
        self.0.push((at, seat));
    }

    /// The node in this slot has this seat from now on, or none.
    pub(super) fn put(&mut self, slots: &[NodeSlot], at: usize, seat: Option<Seat>) {
        match (self.find(slots, at), seat) {
            (Ok(position), Some(seat)) => {
                if let Some(place) = self.0.get_mut(position) {
                    place.1 = seat;
                }
            }
            (Ok(position), None) => {
                self.0.remove(position);
            }
            (Err(position), Some(seat)) => self.0.insert(position, (at, seat)),
            (Err(_), None) => {}
        }
    }

    /// The seat of the node in this slot.
    pub(super) fn seat(&self, slots: &[NodeSlot], at: usize) -> Option<&Seat> {
        self.find(slots, at).ok().and_then(|position| self.0.get(position)).map(|(_, seat)| seat)
    }

    /// Whether the node in this slot has a seat.
    pub(super) fn contains(&self, slots: &[NodeSlot], at: usize) -> bool {
        self.find(slots, at).is_ok()
    }

    /// The position of the seat of the node in this slot, or the position that it would have.
    fn find(&self, slots: &[NodeSlot], at: usize) -> Result<usize, usize> {
        let name = |at: usize| slots.get(at).map(|slot| &slot.name);
        self.0.binary_search_by(|(other, _)| name(*other).cmp(&name(at)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use crate::model::testing::{at, job};
    use crate::model::{Job, JobId, Node};
    use crate::world::{Event, Stale, World};

    const FLEET: usize = 5_000;

    fn node(name: &str) -> Event {
        Event::Node(Node {
            name: name.into(),
            labels: BTreeMap::new(),
            ready: true,
            ready_changed: None,
            cordoned: false,
            foreign: false,
        })
    }

    fn fleet() -> World {
        let mut world = World::new();
        (0..FLEET).for_each(|n| world.apply(node(&format!("n{n}"))));
        world
    }

    fn seats(world: &World, id: &JobId) -> (usize, usize) {
        let seats = &world.jobs[id].seats.0;
        (seats.len(), seats.capacity())
    }

    #[test]
    fn a_job_costs_a_seat_for_each_node_that_it_wants_and_no_more() {
        let mut world = fleet();
        let (one, all) = (job("one", Some(&["n7", "nowhere"])), job("all", None));
        for job in [&one, &all] {
            world.apply(Event::Job(Box::new(job.clone())));
        }
        world.plan(at(0));
        assert_eq!(seats(&world, &one.id), (1, 1));
        assert_eq!(seats(&world, &all.id), (FLEET, FLEET));
        world.apply(Event::Job(Box::new(Job { names: one.names, ..all.clone() })));
        world.plan(at(1));
        assert_eq!(seats(&world, &all.id), (1, 1), "an edit gives the memory back");
    }

    #[test]
    fn a_seat_goes_with_its_node() {
        let mut world = World::new();
        let job = job("j", Some(&["n1"]));
        world.apply(Event::Job(Box::new(job.clone())));
        world.apply(node("n1"));
        world.plan(at(0));
        assert_eq!(seats(&world, &job.id).0, 1);
        world.apply(Event::NodeGone("n1".into()));
        // It takes the place of the one that went.
        world.apply(node("n2"));
        assert_eq!((world.slots.len(), seats(&world, &job.id).0), (1, 0));
        let told: Vec<String> = world.nodes(&job.id, at(0)).iter().map(|view| view.node.to_string()).collect();
        assert_eq!(told, ["n1"], "before a plan");
        world.plan(at(0));
        assert_eq!(seats(&world, &job.id).0, 0);
    }

    #[test]
    fn a_change_of_names_touches_the_nodes_that_differ() {
        let mut world = World::new();
        let mut job = job("j", Some(&["n1", "n2", "n3", "n9"]));
        ["n1", "n2", "n3", "n4"].into_iter().for_each(|name| world.apply(node(name)));
        world.apply(Event::Job(Box::new(job.clone())));
        world.plan(at(0));
        let own = |name: &str, second: i64| (name.into(), at(second));
        let from = Job::FROM_ITS_START;
        job.names = Some(Arc::new([("n1".into(), from), own("n2", 5), own("n4", 5), ("n8".into(), from)].into()));
        world.apply(Event::Job(Box::new(job.clone())));
        let state = &world.jobs[&job.id];
        let Stale::Some(stale) = &state.stale else { panic!("all seats are looked at again") };
        let names: Vec<&str> = stale.iter().map(|at| &*world.slots[*at].name).collect();
        assert_eq!(names, ["n2", "n3", "n4"]);
        assert_eq!(world.dirty_slots.len(), 3);
        world.plan(at(5));
        let told: Vec<String> = world.nodes(&job.id, at(5)).iter().map(|view| view.node.to_string()).collect();
        assert_eq!(told, ["n1", "n2", "n4", "n8"]);
        world.apply(Event::Job(Box::new(Job { parallelism: 1, ..job.clone() })));
        assert!(matches!(world.jobs[&job.id].stale, Stale::All), "something else has changed, too");
    }

    #[test]
    fn a_change_of_a_node_touches_the_jobs_that_want_it() {
        let mut world = World::new();
        let (one, other, all) = (job("one", Some(&["n1"])), job("other", Some(&["n2", "n3"])), job("all", None));
        for job in [&one, &other, &all] {
            world.apply(Event::Job(Box::new(job.clone())));
        }
        world.apply(node("n1"));
        world.apply(node("n2"));
        world.plan(at(0));
        let touched = |world: &mut World, event: Event| -> Vec<JobId> {
            world.apply(event);
            let touched = world.dirty_jobs.iter().cloned().collect();
            world.plan(at(0));
            touched
        };
        assert_eq!(touched(&mut world, Event::NodeGone("n1".into())), [all.id.clone(), one.id]);
        assert_eq!(touched(&mut world, node("n3")), [all.id.clone(), other.id]);
        assert_eq!(touched(&mut world, node("n4")), [all.id]);
    }
}

//! Logins of jobs and where they go.

use std::collections::BTreeSet;

use proptest::prelude::*;
use stoker_core::model::{Found, Image, Job, LoginId};
use stoker_core::select::selects;
use stoker_core::world::{MOST_LOGINS, NodeState};
use stoker_core::{JobId, Key, Reason};

use super::{Ordered, config, each_plan, orders};
use crate::history::{found, history};
use crate::sim::{FOREIGN, Sim};

proptest! {
    #![proptest_config(config())]

    /// A node is given up for want of a login only when every login that its job has was tried.
    #[test]
    fn every_login_is_tried(history in history()) {
        each_plan(&history, |_, after, _| {
            let mut sim = after.clone();
            sim.read();
            sim.plan();
            let runs = |job: &&Job| sim.world.job(&job.id).is_some_and(Job::runs) && !sim.stands_still(&job.id);
            for job in sim.jobs.values().filter(|job| job.runs()).filter(runs) {
                assert_eq!(untried(&sim, job), None, "{}", job.id);
            }
        });
    }

    /// A login is lent by jobs that run and want the image on that node, to agents that can open it; and few are tried.
    #[test]
    fn logins_go_where_their_jobs_want_them_and_nowhere_else(history in history()) {
        each_plan(&history, |_, after, _| {
            let mut sim = after.clone();
            sim.read();
            sim.plan();
            let open = orders(&sim).into_iter().filter(|ordered| !ordered.answered && !ordered.silent && !ordered.order.hold);
            // What jobs that stand still were given stays as it was.
            let still = |id: &JobId| sim.stands_still(id) || sim.world.waits_for_sight(id).is_some();
            let open = open.filter(|ordered| !ordered.order.jobs.iter().any(still));
            for Ordered { node, key, order, .. } in open {
                let image = if order.ask.is_question() { key.question() } else { key };
                // As the World knows them: that one has ended may be on its way.
                let jobs = sim.world.jobs().filter_map(|id| sim.world.job(id)).filter(|job| job.runs());
                let wanting = jobs.filter(|job| sim.nodes.get(node).is_some_and(|node| selects(job, node) && job.bounds.allow(node)));
                let lent: BTreeSet<LoginId> = wanting.flat_map(|job| logins_of(&sim, job, image)).collect();
                let logins: BTreeSet<LoginId> = order.terms.logins.iter().cloned().collect();
                let forbidden = sim.secrets.values().any(|content| found(Some(*content)) == Found::Forbidden);
                assert!(forbidden || logins.is_subset(&lent), "{node} has {logins:?} of {lent:?}");
                // Jobs are of two namespaces.
                assert!(forbidden || logins.len() <= 2 * MOST_LOGINS, "{node} has {logins:?}");
                let able = sim.agents.get(node).is_some_and(|agent| agent.features.contains("sealed"));
                assert!(able || logins.is_empty(), "{node} cannot open {logins:?}");
            }
        });
    }
}

/// The logins that this job has for an image, as a controller that reads its Secrets now finds them.
fn logins_of(sim: &Sim, job: &Job, key: Key) -> BTreeSet<LoginId> {
    let is = |image: &&Image| image.reference.as_ref().is_ok_and(|reference| reference.key() == key);
    let secrets = job.images.iter().filter(is).flat_map(|image| &image.secrets);
    let found = secrets.map(|id| found(sim.secrets.get(id.name.as_str()).copied()));
    let offers = found.flat_map(|found| match found {
        Found::Logins(offers) => offers,
        _ => Vec::new(),
    });
    offers.into_iter().map(|offer| offer.id).collect()
}

/// A node that a job has given up as refused, with a login that was not tried there.
fn untried(sim: &Sim, job: &Job) -> Option<(String, LoginId)> {
    // A foreign node gets no login.
    for view in sim.world.nodes(&job.id, sim.now).into_iter().filter(|view| &*view.node != FOREIGN) {
        let refusals = [Reason::Unauthorized, Reason::SecretMissing, Reason::SecretForbidden, Reason::SecretUnusable];
        if !matches!(view.state, NodeState::Failed(reason, _) if refusals.contains(&reason)) {
            continue;
        }
        let orders = sim.world.orders(&view.node).unwrap_or_default();
        for (image, (_, report)) in job.images.iter().zip(&view.images) {
            let refused = report.is_some_and(|report| report.reason == Some(Reason::Unauthorized));
            let Ok(key) = image.reference.as_ref().map(|reference| reference.key()) else { continue };
            let asked = report.map(|report| report.asked);
            let of_report = |key: &Key| orders.get(key).filter(|order| Some(order.asked) == asked);
            let order = of_report(&key).or_else(|| of_report(&key.question()));
            let Some(order) = order.filter(|_| refused) else { continue };
            // Where a namespace has more than are tried, nobody can say here which they are.
            let all: BTreeSet<LoginId> = sim.jobs.values().flat_map(|job| logins_of(sim, job, key)).collect();
            let mut logins = logins_of(sim, job, key).into_iter().filter(|_| all.len() <= MOST_LOGINS);
            if let Some(login) = logins.find(|login| !order.terms.logins.contains(login)) {
                return Some((view.node.to_string(), login));
            }
        }
    }
    None
}

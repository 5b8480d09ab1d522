//! Everybody calms down: all nodes are ready, all watches are heard, nobody is rude any more, and agents do what they are asked. Then
//! every job ends or says why not, and nothing more is written.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::DynamicObject;
use serde_json::{Value, json};
use stoker_api::native::NodeObject;
use stoker_core::{Key, Phase, Report};
use stoker_testbed::paper::PaperId;

use super::agents::Work;
use super::cluster::{Cluster, NODES};
use super::laws;
use super::users::{NAMESPACE, Wish};
use super::wire;

/// After so many rounds there is nothing left to do.
const ROUNDS: usize = 80;
/// What happens by itself later than this is nothing to wait for: failed nodes of jobs without an end are asked again for ever.
const SOON: i64 = 120;

impl Cluster {
    pub(super) fn rest(&mut self) -> Result<(), String> {
        self.log.push("everybody calms down".into());
        self.calm();
        let mut quiet = 0;
        for _ in 0..ROUNDS {
            let before = self.paper.version();
            self.round()?;
            quiet = if self.paper.version() == before { quiet + 1 } else { 0 };
            let wake = self.wake.map(|wake| wake.as_second() - self.now().as_second() + 1);
            match wake.filter(|wake| *wake < SOON) {
                None if quiet > 2 => {
                    self.settled()?;
                    return self.restarted();
                }
                wake => self.pass(wake.filter(|_| quiet > 0).unwrap_or(1).max(1)),
            }
        }
        Err("it never comes to rest".into())
    }

    /// What users and operators do to get everything going.
    fn calm(&mut self) {
        (0..NODES.len()).for_each(|node| self.node(node, true, true));
        let jobs: Vec<PaperId> =
            self.paper.all().map(|(id, _)| id.clone()).filter(|id| id.namespace == NAMESPACE).collect();
        for id in jobs.iter().filter(|id| id.kind != "Pod" && id.kind != "Event") {
            self.release(id);
        }
        // What is in the way of a child goes; so does what nobody wants.
        for id in laws::stray_children(&self.paper) {
            let now = self.now();
            let _ = self.paper.delete(&id, None, now);
        }
        for id in jobs {
            let Some(object) = self.paper.get(&id) else { continue };
            if wire::job_kind(object).is_some() && !wire::has_ended(object) {
                let mut spec = wire::field(object, "/spec").clone();
                Wish::calmed(&mut spec);
                self.paper.patch(&id, &json!({ "spec": spec }), false).unwrap();
            }
        }
    }

    /// Everything that can be done now is done.
    fn round(&mut self) -> Result<(), String> {
        let now = self.now();
        self.paper.collect(now);
        self.hear_all();
        self.turn()?;
        // A watch that is new is heard, too.
        self.hear_all();
        self.turn()?;
        self.deliver_all()?;
        for name in NODES {
            let Some(mut agent) = self.agents.remove(name) else { continue };
            agent.read(&self.paper, name);
            let work = if name == "n2" { Work::Fail } else { Work::Succeed };
            // As often as it may try.
            for _ in 0..40 {
                agent.work(0, work, now);
            }
            agent.say(&mut self.paper, name, 1, now);
            self.agents.insert(name, agent);
        }
        self.check()
    }

    /// What holds when nothing more happens.
    fn settled(&self) -> Result<(), String> {
        let world = &self.shell.hearing.world;
        if let Some(forgotten) = laws::forgotten(world, &self.paper, self.now()) {
            return Err(forgotten);
        }
        let reports: BTreeMap<&str, BTreeMap<Key, Report>> = NODES
            .into_iter()
            .filter_map(|name| {
                Some((name, wire::read::<NodeObject>(self.paper.get(&super::agents::id(name))?).reports))
            })
            .collect();
        for (id, object) in self.paper.all().filter(|(_, object)| wire::job_kind(object).is_some()) {
            let status = |field: &str| wire::field(object, &format!("/status/{field}")).clone();
            let said = || {
                let views = wire::job_id(object).map(|id| world.nodes(&id, self.now())).unwrap_or_default();
                let nodes: Vec<String> =
                    views.iter().map(|view| format!("\n{}: {:?}", view.node, view.state)).collect();
                format!("{}{}", wire::field(object, "/status"), nodes.concat())
            };
            let never = wire::field(object, "/spec/completionPolicy/type") == "Never"
                || wire::field(object, "/spec/completion/mode") == "Continuous";
            let ended = wire::has_ended(object);
            if id.kind == "ImageListPullJob" {
                self.children(id, object)?;
            }
            // A Preheat waits for nodes that are named or selected and not there.
            let waits = id.kind == "Preheat" && !status("waitingFor").is_null();
            if !ended && !never && !waits {
                return Err(format!("{id} has not ended and says no reason: {}", said()));
            }
            if id.kind == "ImageListPullJob" || waits || status("desired").is_null() {
                continue;
            }
            let count = |field: &str| status(field).as_u64().unwrap_or_default();
            if count("succeeded") + count("failed") != count("desired") {
                return Err(format!("{id} has ended, and its counts do not add up: {}", said()));
            }
            if never {
                self.counts(id, object, &reports)?;
            }
        }
        Ok(())
    }

    /// A list that runs has one child for each image; one that has ended need not have any.
    fn children(&self, id: &PaperId, list: &DynamicObject) -> Result<(), String> {
        let uid = wire::uid(list);
        let owns = |job: &&DynamicObject| {
            let owners = job.metadata.owner_references.iter().flatten();
            owners.into_iter().any(|owner| owner.uid == uid && owner.controller == Some(true))
        };
        let mut images: Vec<Value> = self
            .paper
            .of_kind("ImagePullJob")
            .filter(owns)
            .map(|job| wire::field(job, "/spec/image").clone())
            .collect();
        images.sort_by_key(Value::to_string);
        let wanted: BTreeSet<String> =
            wire::field(list, "/spec/images").as_array().into_iter().flatten().map(Value::to_string).collect();
        let has: Vec<String> = images.iter().map(Value::to_string).collect();
        match wire::has_ended(list) || has == wanted.iter().cloned().collect::<Vec<_>>() {
            true => Ok(()),
            false => Err(format!("{id} wants a child each for {wanted:?} and has {has:?}")),
        }
    }

    /// What the status of a job that does not end counts is what agents report.
    fn counts(
        &self,
        id: &PaperId,
        object: &DynamicObject,
        reports: &BTreeMap<&str, BTreeMap<Key, Report>>,
    ) -> Result<(), String> {
        let Some(job) = wire::job_id(object).and_then(|id| self.shell.hearing.world.job(&id)) else { return Ok(()) };
        let wanted = self.paper.of_kind("Node").map(|node| wire::read::<stoker_api::node::PlainNode>(node).into_core());
        let wanted: Vec<_> = wanted.filter(|node| stoker_core::select::selects(job, node)).collect();
        let since = job.since(self.now());
        let has = |node: &str, key: Key| {
            let said = [key, key.question()].map(|key| reports.get(node).and_then(|reports| reports.get(&key)));
            said.into_iter().flatten().any(|report| report.phase == Phase::Succeeded && report.asked >= since)
        };
        let done = wanted.iter().filter(|node| job.keys().all(|key| has(&node.name, key))).count();
        let said = ["desired", "succeeded"].map(|field| wire::field(object, &format!("/status/{field}")).as_u64());
        match said == [Some(wanted.len() as u64), Some(done as u64)] {
            true => Ok(()),
            false => Err(format!("{id}: {done} of {} nodes have it, the status says {said:?}", wanted.len())),
        }
    }

    /// A controller that starts now has nothing to do.
    fn restarted(&mut self) -> Result<(), String> {
        self.restart(0)?;
        for _ in 0..4 {
            self.hear_all();
            self.turn()?;
        }
        match self.is_idle() {
            true => Ok(()),
            false => {
                let from = self.log.len();
                self.deliver_all()?;
                Err(format!("a controller that is restarted writes:\n{}", self.log.split_off(from).join("\n")))
            }
        }
    }
}

//! Everybody calms down: all nodes are ready, all watches are heard, nobody is rude any more, and agents do what they are asked. Then
//! every job ends or says why not, and nothing more is written.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::DynamicObject;
use serde_json::{Value, json};
use stoker_api::native::NodeObject;
use stoker_core::model::Image;
use stoker_core::{Key, Phase, Policy, Report};
use stoker_testbed::paper::PaperId;

use super::agents::Work;
use super::cluster::{Cluster, NODES};
use super::laws;
use super::makers::is_fake;
use super::manager::Managing;
use super::policies::POLICIES;
use super::users::Wish;
use super::wire;

/// After so many rounds there is nothing left to do.
const ROUNDS: usize = 40;
/// What happens by itself later than this is nothing to wait for: failed nodes of jobs without an end are asked again for ever.
const SOON: i64 = 120;

impl Cluster {
    pub(super) fn rest(&mut self) -> Result<(), String> {
        self.log.push("everybody calms down".into());
        self.calm();
        self.check()?;
        let mut quiet = 0;
        for _ in 0..ROUNDS {
            let before = self.paper.version();
            self.round()?;
            quiet = if self.paper.version() == before { quiet + 1 } else { 0 };
            let wake = self.wake.map(|wake| wake.as_second() - self.now().as_second() + 1);
            match wake.filter(|wake| *wake < SOON) {
                None if quiet > 2 => {
                    self.settled()?;
                    // Upstream's kinds keep whole seconds of their start. In a second that comes twice, nobody can tell from that which asks were
                    // made before the start.
                    return if self.laws.set_back { Ok(()) } else { self.restarted() };
                }
                wake => self.pass(wake.filter(|_| quiet > 0).unwrap_or(1).max(1)),
            }
        }
        Err("it never comes to rest".into())
    }

    /// What users and operators do to get everything going.
    fn calm(&mut self) {
        (0..NODES.len()).for_each(|node| self.node(node, true, true));
        (0..POLICIES.len()).for_each(|policy| self.policy(policy, usize::MAX));
        let jobs = self.paper.all().filter(|(_, object)| wire::job_kind(object).is_some());
        let jobs: Vec<PaperId> = jobs.map(|(id, _)| id.clone()).collect();
        for id in &jobs {
            self.release(id);
        }
        // What is in the way of a child goes; so does what nobody wants.
        for id in laws::stray_children(&self.paper) {
            let now = self.now();
            let _ = self.paper.delete(&id, None, now);
        }
        for id in jobs {
            let Some(object) = self.paper.get(&id) else { continue };
            if !wire::has_ended(object) {
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
        self.manage(Managing::Round);
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
        self.make_all();
        self.check()
    }

    /// What holds when nothing more happens.
    fn settled(&self) -> Result<(), String> {
        let world = &self.shell.hearing.world;
        if let Some(forgotten) = laws::forgotten(world, &self.nodes(), self.now()) {
            return Err(forgotten);
        }
        self.node_images()?;
        let reports: BTreeMap<&str, BTreeMap<Key, Report>> = NODES
            .into_iter()
            .filter_map(|name| {
                Some((name, wire::read::<NodeObject>(self.paper.get(&super::agents::id(name))?).reports))
            })
            .collect();
        // Where Kruise's manager goes on, jobs of its kinds are its own.
        let is_ours = |object: &DynamicObject| {
            wire::job_kind(object).is_some_and(|kind| self.manager.is_none() || !kind.is_foreign())
        };
        for (id, object) in self.paper.all().filter(|(_, object)| is_ours(object)) {
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
            if never && !ended {
                self.counts(id, object, &reports)?;
            }
        }
        Ok(())
    }

    /// What a job did is shown to the end where it was shown at all, and nothing is left of jobs that are gone.
    fn node_images(&self) -> Result<(), String> {
        for object in self.paper.of_kind("NodeImage") {
            if let (Some((image, entry)), false) = (self.left_of(object), is_fake(object)) {
                return Err(format!("{entry} of {image} is said, and there is no such tag"));
            }
            for (image, tag) in wire::tags(object) {
                let is_done = wire::said(object, image, tag).is_some_and(wire::is_done);
                if self.manager.is_some() && !is_fake(object) {
                    match is_done {
                        true => continue,
                        false => return Err(format!("nobody answers {image} {tag}: {}", shown(object))),
                    }
                }
                let owners = tag["ownerReferences"].as_array().into_iter().flatten();
                for owner in owners.filter(|owner| owner["kind"] == "ImagePullJob") {
                    let text = |field: &str| owner[field].as_str().unwrap_or_default();
                    let job = self.paper.get(&PaperId::new("ImagePullJob", text("namespace"), text("name")));
                    let job = job.filter(|job| wire::uid(job) == text("uid"));
                    match job {
                        None => return Err(format!("{image} {tag} is left of a job that is gone")),
                        Some(job) if wire::has_ended(job) && !is_done => {
                            return Err(format!("the end of {image} {tag} is not shown: {}", shown(object)));
                        }
                        Some(_) => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// An entry of a status whose tag is gone. One that waits in a version that no tag can have is somebody else's.
    pub(super) fn left_of<'a>(&self, object: &'a DynamicObject) -> Option<(&'a String, &'a Value)> {
        let is_tag = |image: &String, entry: &Value| {
            wire::tags(object).into_iter().any(|(of, tag)| of == image && tag["tag"] == entry["tag"])
        };
        let mut left = wire::entries(object).into_iter().filter(|(image, entry)| !is_tag(image, entry));
        left.find(|(_, entry)| wire::version(entry) >= 0)
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

    /// What the status of a job that does not end counts is what agents report. Where a pull has failed and a question was answered well,
    /// or the other way round, either may be what the job goes by.
    fn counts(
        &self,
        id: &PaperId,
        object: &DynamicObject,
        reports: &BTreeMap<&str, BTreeMap<Key, Report>>,
    ) -> Result<(), String> {
        let Some(job) = wire::job_id(object).and_then(|id| self.shell.hearing.world.job(&id)) else { return Ok(()) };
        let wanted: Vec<_> = self.nodes().into_iter().filter(|node| stoker_core::select::selects(job, node)).collect();
        let phases = |node: &stoker_core::Node, image: &Image| -> BTreeSet<Phase> {
            let Ok(key) = image.reference.as_ref().map(|reference| reference.key()) else { return BTreeSet::new() };
            if node.foreign {
                let said = self.made_of(&node.name, &image.written);
                let phase =
                    said.map(|said| if said["phase"] == "Succeeded" { Phase::Succeeded } else { Phase::Failed });
                return phase.into_iter().collect();
            }
            let node = &*node.name;
            let said = [key, key.question()].map(|key| reports.get(node).and_then(|reports| reports.get(&key)));
            let said = said.into_iter().flatten();
            let since = job.since(node, self.now());
            let there = said.clone().any(|report| report.present) && job.pull.policy == Policy::IfNotPresent;
            let counts = said.filter(|report| report.asked >= since).map(|report| report.phase);
            counts.chain(there.then_some(Phase::Succeeded)).collect()
        };
        let nodes = |all: &dyn Fn(&BTreeSet<Phase>) -> bool| {
            wanted.iter().filter(|node| job.images.iter().all(|image| all(&phases(node, image)))).count() as u64
        };
        let most = nodes(&|phases| phases.contains(&Phase::Succeeded));
        let least = nodes(&|phases| phases.contains(&Phase::Succeeded) && !phases.contains(&Phase::Failed));
        let said = |field: &str| wire::field(object, &format!("/status/{field}")).as_u64().unwrap_or_default();
        let (desired, succeeded) = (said("desired"), said("succeeded"));
        match desired == wanted.len() as u64 && (least..=most).contains(&succeeded) {
            true => Ok(()),
            false => {
                let nodes = wanted.len();
                Err(format!(
                    "{id}: {least} to {most} of {nodes} nodes have it, the status says {succeeded} of {desired}"
                ))
            }
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

fn shown(object: &DynamicObject) -> String {
    serde_json::to_string(object).unwrap()
}

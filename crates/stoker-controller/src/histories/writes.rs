//! The writer: one write in flight an object, in the order in which they were handed out. What it makes of answers is what the
//! controller's own writer makes of them; when they come, and whether, is up to the history.

use stoker_api::AnyObject;
use stoker_testbed::paper::PaperId;

use super::cluster::Cluster;
use super::happenings::Fate;
use super::laws;
use super::wire;
use crate::writer::{self, Answer, Done, Id, Numbered, Refusal};

impl Cluster {
    pub(super) fn queue(&mut self, write: Numbered) {
        self.last_write = self.last_write.max(write.0);
        writer::push(self.waiting.entry(writer::id(write.1.target())).or_default(), write);
    }

    /// Whether nothing is to be written.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.late.is_empty()
    }

    /// Sends one of the writes that may be sent.
    pub(super) fn deliver(&mut self, which: usize, fate: Fate) -> Result<(), String> {
        let ids: Vec<Id> = self.waiting.keys().filter(|id| !self.late.contains_key(*id)).cloned().collect();
        let Some(id) = ids.get(which % ids.len().max(1)) else { return Ok(()) };
        let Some(waiting) = self.waiting.get_mut(id) else { return Ok(()) };
        let Some((number, write)) = waiting.pop_front() else { return Ok(()) };
        if waiting.is_empty() {
            self.waiting.remove(id);
        }
        let target = write.target().clone();
        self.say(format!("{fate:?}: {}", shown(&write)));
        let answer = match fate {
            Fate::Lost => None,
            _ => self.perform(number, &write)?,
        };
        let answer = answer.filter(|_| !matches!(fate, Fate::Unanswered));
        match answer {
            None if target.resource.kind == "NodePreheat" => {
                // Before what came later, and merged with it, as the writer does.
                let newer = self.waiting.remove(id).unwrap_or_default();
                [(number, write)].into_iter().chain(newer).for_each(|write| self.queue(write));
            }
            answer => {
                let answer = answer.unwrap_or_else(|| Answer::Failed("no answer".into()));
                let done = Done { target, number, answer, at: self.moments.now() };
                match fate {
                    Fate::Late => {
                        self.late.insert(id.clone(), done);
                    }
                    _ => self.acknowledge(done),
                }
            }
        }
        Ok(())
    }

    /// The controller hears what came of a write.
    pub(super) fn acknowledge(&mut self, done: Done) {
        if let Answer::Object(Some((_, row))) = &done.answer {
            self.laws.told(&row.uid, self.last_write);
        }
        self.shell.acknowledge(done);
    }

    /// What the writer makes of a write and its answer; none where it is to be tried again.
    pub(super) fn perform(&mut self, number: u64, write: &stoker_api::Write) -> Result<Option<Answer>, String> {
        let (now, target) = (self.now(), write.target());
        self.laws.before(write, &self.paper, now);
        let before = (self.paper.version(), self.paper.get(&PaperId::of(target)).cloned());
        let answer = match self.paper.perform(write, now) {
            Ok(Some(object)) if target.resource.kind == "NodePreheat" => {
                Some(Answer::Node(Box::new(wire::read(&object))))
            }
            Ok(Some(object)) => Some(Answer::object(target, AnyObject(object))),
            Ok(None) => Some(Answer::Gone),
            Err(status) => {
                let there = self.paper.get(&PaperId::of(target)).map(wire::uid);
                match writer::refusal(&status, write) {
                    Refusal::Gone => Some(Answer::Gone),
                    Refusal::Failed => None,
                    Refusal::GoneUnless(uid) => {
                        let is_there = there.is_some_and(|there| uid.is_none_or(|uid| uid == there));
                        (!is_there).then_some(Answer::Gone)
                    }
                }
            }
        };
        if let (version, Some(object)) = before
            && self.paper.version() != version
        {
            self.laws.knew(&object, number)?;
            let now = self.paper.get(&PaperId::of(target));
            laws::keeps_to_its_own(&object, now, self.manager.is_some())?;
        }
        self.laws.written(write, &self.paper, now)?;
        Ok(answer)
    }

    pub(super) fn deliver_all(&mut self) -> Result<(), String> {
        std::mem::take(&mut self.late).into_values().for_each(|done| self.acknowledge(done));
        while !self.waiting.is_empty() {
            self.deliver(0, Fate::Done)?;
        }
        Ok(())
    }
}

/// A write in a line.
fn shown(write: &stoker_api::Write) -> String {
    use stoker_api::Write::*;
    let target = PaperId::of(write.target());
    match write {
        Create(_, event) if target.kind == "Event" => format!("event {} {}", event["reason"], event["message"]),
        Create(_, object) => format!("create {target} {}", object["spec"]),
        Patch(_, patch) | Guarded(_, patch) => format!("patch {target} {patch}"),
        GuardedStatus(_, patch) => format!("status {target} {patch}"),
        Status(_, patch) => format!("status of {target} {patch}"),
        Delete(_, uid) => format!("delete {target} {uid:?}"),
    }
}

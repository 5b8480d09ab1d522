//! Writes of roots that are under way. A root is projected again only when all its writes have ended: so each projection sees what
//! the one before has done, and one that failed is made anew instead of being sent again. Events about what has been done go last:
//! they are told only where the other writes have succeeded; one that is related to another object, where the write of that
//! object has. Warnings are about what is, and go at once. An event that cannot be written is tried again a few times: the status
//! beside it may have been written, and then no later projection makes the event anew.

use std::collections::BTreeMap;

use stoker_api::view::Root;
use stoker_api::{Target, Write};

use crate::leading::is_node;

/// Writes under way, by number, and what is left of each root.
#[derive(Debug, Default)]
pub(crate) struct Due {
    writes: BTreeMap<u64, (Root, Sent)>,
    busy: BTreeMap<Root, Left>,
    /// Events that are being told after the rest, each with how often it is tried again. No root waits for them.
    told: BTreeMap<u64, (Write, u8)>,
}

/// An event that cannot be written is tried this often again: nobody could tell it later.
const EVENT_TRIES: u8 = 3;

/// A write that was handed out, as far as its end matters.
#[derive(Debug)]
enum Sent {
    /// The whole of it, to be tried again.
    Event(Write),
    Change(Target, Ends),
}

/// How a write ends well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// With the object as it is then.
    There,
    /// With an object that is gone.
    Gone,
}

/// What is left of the writes of a root.
#[derive(Debug, Default)]
struct Left {
    under_way: usize,
    /// Events to be told when the others have ended well.
    events: Vec<Write>,
}

/// What follows from the end of a write.
#[derive(Debug, PartialEq)]
pub(crate) enum Next {
    /// It was a write of this root; these events are to be told now.
    Of(Root, Vec<Write>),
    /// It was an event, and is to be told again so often.
    Again(Write, u8),
    /// It was an event, and that was all.
    Told,
}

/// How a write has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The object was written.
    There,
    /// The object is not there, or not the one that was meant.
    Gone,
    /// It failed.
    Failed,
}

impl Due {
    /// Whether a write of this root is under way.
    pub(crate) fn is_busy(&self, root: &Root) -> bool {
        self.busy.contains_key(root)
    }

    /// How many nodes have writes under way.
    pub(crate) fn nodes(&self) -> usize {
        self.busy.keys().filter(|root| is_node(root)).count()
    }

    /// Takes the writes of a root. Returns those to be handed out now.
    pub(crate) fn begin(&mut self, root: &Root, writes: Vec<Write>) -> Vec<Write> {
        let (events, others): (Vec<Write>, Vec<Write>) = writes.into_iter().partition(tells_of_a_success);
        match others.is_empty() {
            true => events,
            false => {
                self.busy.entry(root.clone()).or_default().events = events;
                others
            }
        }
    }

    /// A write of this root was handed out.
    pub(crate) fn hand_out(&mut self, root: &Root, number: u64, write: &Write) {
        let sent = match write {
            event if is_event(event) => Sent::Event(event.clone()),
            Write::Delete(target, _) => Sent::Change(target.clone(), Ends::Gone),
            other => Sent::Change(other.target().clone(), Ends::There),
        };
        self.writes.insert(number, (root.clone(), sent));
        self.busy.entry(root.clone()).or_default().under_way += 1;
    }

    /// An event is being told after the rest.
    pub(crate) fn tell(&mut self, number: u64, event: Write, tries: Option<u8>) {
        self.told.insert(number, (event, tries.unwrap_or(EVENT_TRIES)));
    }

    /// A write has ended. Returns what follows, where it was one of these.
    pub(crate) fn end(&mut self, number: u64, ended: Ended) -> Option<Next> {
        match self.told.remove(&number) {
            Some((event, tries)) if ended == Ended::Failed && tries > 0 => return Some(Next::Again(event, tries - 1)),
            Some(_) => return Some(Next::Told),
            None => {}
        }
        let (root, sent) = self.writes.remove(&number)?;
        let Some(left) = self.busy.get_mut(&root) else { return Some(Next::Of(root, Vec::new())) };
        let mut events = Vec::new();
        match (sent, ended) {
            (Sent::Event(event), Ended::Failed) => events.push(event),
            (Sent::Event(_), _)
            | (Sent::Change(_, Ends::There), Ended::There)
            | (Sent::Change(_, Ends::Gone), Ended::Gone) => {}
            (Sent::Change(target, _), _) => left.events.retain(|event| tells_of_another(event, &target)),
        }
        left.under_way = left.under_way.saturating_sub(1);
        if left.under_way == 0 {
            events.append(&mut left.events);
            self.busy.remove(&root);
        }
        Some(Next::Of(root, events))
    }
}

fn is_event(write: &Write) -> bool {
    matches!(write, Write::Create(target, _) if target.resource.kind == "Event")
}

fn tells_of_a_success(write: &Write) -> bool {
    matches!(write, Write::Create(_, event) if is_event(write) && event["type"] == "Normal")
}

/// Whether an event is related to one object, and not to this one.
fn tells_of_another(event: &Write, target: &Target) -> bool {
    let Write::Create(_, event) = event else { return false };
    let related = &event["related"];
    !related.is_null() && (related["kind"] != target.resource.kind || related["name"] != target.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use stoker_api::native;

    fn root(name: &str) -> Root {
        Root { kind: &native::PREHEATS, namespace: "shop".into(), name: name.into() }
    }

    fn target(kind: &str) -> Target {
        let mut resource = native::PREHEATS.kind.newest();
        resource.kind = kind.into();
        Target { resource, namespace: Some("shop".into()), name: "x".into() }
    }

    fn status() -> Write {
        Write::Status(target("Preheat"), json!({}))
    }

    fn event() -> Write {
        Write::Create(target("Event"), json!({ "type": "Normal" }))
    }

    #[test]
    fn a_root_is_busy_until_its_last_write_has_ended() {
        let mut due = Due::default();
        due.hand_out(&root("web"), 1, &status());
        due.hand_out(&root("web"), 2, &status());
        due.hand_out(&root("db"), 3, &status());
        assert_eq!(due.end(1, Ended::There), Some(Next::Of(root("web"), Vec::new())));
        assert!(due.is_busy(&root("web")) && due.is_busy(&root("db")));
        assert_eq!(due.end(2, Ended::There), Some(Next::Of(root("web"), Vec::new())));
        assert!(!due.is_busy(&root("web")) && due.is_busy(&root("db")));
        assert_eq!(due.end(2, Ended::There), None);
    }

    #[test]
    fn events_are_told_when_what_they_tell_has_happened() {
        let delete = || Write::Delete(target("ImagePullJob"), None);
        for (write, ended, told) in [
            (status(), Ended::There, 1),
            (status(), Ended::Failed, 0),
            (status(), Ended::Gone, 0),
            (Write::Create(target("ImagePullJob"), json!({})), Ended::Gone, 0),
            (delete(), Ended::Gone, 1),
            (delete(), Ended::Failed, 0),
        ] {
            let mut due = Due::default();
            let now = due.begin(&root("web"), vec![event(), write.clone(), status()]);
            assert_eq!(now, [write.clone(), status()]);
            now.iter().zip(1..).for_each(|(write, number)| due.hand_out(&root("web"), number, write));
            assert_eq!(due.end(1, ended), Some(Next::Of(root("web"), Vec::new())));
            let events = vec![event(); told];
            assert_eq!(due.end(2, Ended::There), Some(Next::Of(root("web"), events)), "{write:?} {ended:?}");
            assert!(!due.is_busy(&root("web")));
        }
        assert_eq!(
            Due::default().begin(&root("web"), vec![event()]),
            [event()],
            "one that is alone tells of nothing else"
        );
        let warning = || Write::Create(target("Event"), json!({ "type": "Warning" }));
        assert_eq!(Due::default().begin(&root("web"), vec![warning(), status()]), [warning(), status()]);
        for (ended, again) in [(Ended::Failed, vec![warning()]), (Ended::There, vec![]), (Ended::Gone, vec![])] {
            let mut due = Due::default();
            let now = due.begin(&root("web"), vec![warning(), status(), event()]);
            now.iter().zip(1..).for_each(|(write, number)| due.hand_out(&root("web"), number, write));
            assert_eq!(due.end(1, ended), Some(Next::Of(root("web"), again)), "{ended:?}");
            let told = Some(Next::Of(root("web"), vec![event()]));
            assert_eq!(due.end(2, Ended::There), told, "events depend on the status, not on each other: {ended:?}");
        }
    }

    #[test]
    fn an_event_that_is_related_to_one_object_depends_on_the_write_of_that_object_alone() {
        let child = |name: &str| Target { name: name.into(), ..target("ImagePullJob") };
        let made = |name: &str| {
            let event = json!({ "type": "Normal", "related": { "kind": "ImagePullJob", "name": name } });
            Write::Create(target("Event"), event)
        };
        let create = |name: &str| Write::Create(child(name), json!({}));
        for (ended, told) in [
            ([Ended::There, Ended::There], vec![made("a"), made("b"), event()]),
            ([Ended::There, Ended::Failed], vec![made("a")]),
            ([Ended::Failed, Ended::There], vec![made("b")]),
            ([Ended::Failed, Ended::Gone], vec![]),
        ] {
            let mut due = Due::default();
            let now = due.begin(&root("web"), vec![create("a"), create("b"), made("a"), made("b"), event()]);
            assert_eq!(now, [create("a"), create("b")]);
            now.iter().zip(1..).for_each(|(write, number)| due.hand_out(&root("web"), number, write));
            due.end(1, ended[0]);
            assert_eq!(due.end(2, ended[1]), Some(Next::Of(root("web"), told)), "{ended:?}");
        }
    }

    #[test]
    fn an_event_that_cannot_be_written_is_tried_again_a_few_times_and_keeps_no_root_waiting() {
        let mut due = Due::default();
        due.tell(1, event(), None);
        assert!(!due.is_busy(&root("web")));
        let mut tries = 0;
        while let Some(Next::Again(event, left)) = due.end(1, Ended::Failed) {
            tries += 1;
            due.tell(1, event, Some(left));
        }
        assert_eq!(tries, 3);
        due.tell(2, event(), None);
        assert_eq!(due.end(2, Ended::There), Some(Next::Told));
        assert_eq!(due.end(2, Ended::There), None);
    }
}

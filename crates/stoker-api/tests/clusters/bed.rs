//! A cluster on paper with objects for each node: the controller's View and World, and agents that answer at once.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube_core::dynamic::DynamicObject;
use serde_json::Value;
use stoker_api::view::{Heard, Query, Root};
use stoker_api::{HandOver, View, Write, served_kinds};
use stoker_core::model::{
    Bytes, Found, Key, LOOK, MIRRORS, Order, PEERS, PeerFacts, PeerKey, Phase, RESOLVE, Report, SEALED,
};
use stoker_core::{Event, Node, Reason, World};
use stoker_testbed::paper::{Paper, PaperId};

/// A cluster on paper, with the controller that looks at it.
pub(crate) struct Bed {
    pub(crate) paper: Paper,
    view: View,
    pub(crate) world: World,
    nodes: BTreeMap<String, Node>,
    reports: BTreeMap<String, BTreeMap<Key, Report>>,
    half: bool,
    relays: bool,
    pub(crate) now: Timestamp,
    /// How a write is shown; in no words where it is of no interest.
    shows: fn(&Write) -> String,
    /// Writes by node.
    pub(crate) said: String,
}

/// Of every agent.
fn features() -> BTreeSet<String> {
    [LOOK, RESOLVE, SEALED, PEERS, MIRRORS].map(str::to_owned).into()
}

fn view(half: bool) -> View {
    let mut view = View::without_signs();
    if half {
        view.hand_over(&[("kruise", HandOver::Half)].into());
    }
    view
}

impl Bed {
    pub(crate) fn new(half: bool, shows: fn(&Write) -> String) -> Self {
        let mut bed = Self {
            paper: Paper::default(),
            view: view(half),
            world: World::new(),
            nodes: BTreeMap::new(),
            reports: BTreeMap::new(),
            half,
            relays: false,
            now: "2026-01-02T03:04:05.678Z".parse().unwrap(),
            shows,
            said: String::new(),
        };
        assert_eq!(bed.paper.list_all(&mut bed.view, &mut bed.world), [""; 0]);
        bed
    }

    pub(crate) fn put(&mut self, text: &str, there: bool) {
        for document in text.split("---\n").filter(|document| document.lines().any(|line| !line.starts_with('#'))) {
            let mut object: DynamicObject = serde_saphyr::from_str(document).unwrap();
            let (kind, name) = (object.types.clone().unwrap().kind, object.metadata.name.clone().unwrap());
            if kind == "Node" {
                let ready = object.data.pointer("/status/conditions/0/status").is_none_or(|status| status == "True");
                let cordoned = object.data.pointer("/spec/unschedulable").is_some_and(|said| said == true);
                let node = Node {
                    name: name.as_str().into(),
                    labels: object.metadata.labels.unwrap_or_default(),
                    ready,
                    ready_changed: None,
                    cordoned,
                    foreign: false,
                };
                self.node(&name, node, there);
                continue;
            }
            if !matches!(kind.as_str(), "NodeImage" | "NodeImageSet") {
                object.metadata.namespace.get_or_insert("shop".into());
            }
            let id = PaperId::new(&kind, object.metadata.namespace.as_deref().unwrap_or_default(), &name);
            if !there {
                self.paper.delete(&id, None, self.now).unwrap();
                self.see(&id);
                continue;
            }
            if let Some(before) = self.paper.get(&id) {
                object.metadata.uid = before.metadata.uid.clone();
                object.metadata.creation_timestamp = before.metadata.creation_timestamp.clone();
                if object.data.get("status").is_none() {
                    object.data["status"] = before.data["status"].clone();
                }
            } else {
                object.metadata.uid.get_or_insert_with(|| format!("uid of {name}"));
                object.metadata.creation_timestamp =
                    Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.now));
            }
            self.paper.put(object);
            self.see(&id);
        }
    }

    /// Nodes read from each other from now on.
    pub(crate) fn relay(&mut self) {
        self.relays = true;
        self.world.relay(true);
    }

    /// Somebody takes all images away from a node.
    pub(crate) fn remove_images(&mut self, node: &str) {
        let Some(reports) = self.reports.get_mut(node) else { return };
        for report in reports.values_mut().filter(|report| report.phase == Phase::Succeeded) {
            (report.phase, report.reason) = (Phase::Failed, Some(Reason::Removed));
            report.message = "the image was there, and was removed".into();
            report.updated = self.now;
        }
        let reports = reports.clone();
        self.world.apply(Event::Reports(node.into(), reports));
        self.world.heard(node, self.now);
    }

    fn node(&mut self, name: &str, node: Node, there: bool) {
        if there {
            self.nodes.insert(name.into(), node.clone());
            self.world.apply(Event::Node(node));
            if self.world.orders(name).is_none_or(|orders| orders.is_empty()) {
                self.world.apply(Event::Orders(name.into(), BTreeMap::new()));
            }
            self.world.apply(Event::Features(name.into(), features()));
            self.world.apply(peer(name));
        } else {
            self.nodes.remove(name);
            self.reports.remove(name);
            self.world.apply(Event::NodeGone(name.into()));
            self.world.apply(Event::AgentGone(name.into()));
        }
        self.view.touch_node(name, there);
    }

    fn see(&mut self, id: &PaperId) {
        let Some(kind) = served_kinds().find(|of| of.kind.name == id.kind) else { return };
        let query = Query::all(&kind.kind);
        match self.paper.get(id) {
            Some(object) => self.view.see(&query, object.clone()),
            None => self.view.gone(&query, &(id.namespace.clone(), id.name.clone())),
        }
    }

    /// Lets the World hear of what is there.
    pub(crate) fn settle(&mut self) {
        self.view.settle(&mut self.world);
    }

    /// Lets everything happen that follows.
    pub(crate) fn rest(&mut self) {
        for _ in 0..20 {
            self.view.settle(&mut self.world);
            assert_eq!(self.paper.list_all(&mut self.view, &mut self.world), [""; 0]);
            let plan = self.world.plan(self.now);
            for (id, wanted) in self.world.wanted_secrets().iter() {
                let found = wanted.images.keys().map(|key| (*key, Found::Unseen)).collect();
                self.world.apply(Event::Secret(id.clone(), found, self.now));
            }
            plan.outcomes.iter().for_each(|outcome| self.view.touch(&outcome.job));
            plan.expired.iter().for_each(|id| self.view.touch(id));
            plan.nodes.iter().for_each(|node| self.view.touch_node(node, self.world.has_node(node)));
            let answered = self.answer();
            let roots: Vec<Root> = self.view.due(self.now).cloned().collect();
            let writes: Vec<Write> =
                roots.iter().flat_map(|root| self.view.project(root, &self.world, self.now)).collect();
            if writes.is_empty() && !answered && plan.is_empty() {
                return self.start_anew();
            }
            for write in &writes {
                self.said += &(self.shows)(write);
                if write.target().resource.kind != "Event" {
                    let answer = self.paper.perform(write, self.now);
                    // Another root has changed the object: what this one writes is made anew for that version.
                    let changed = answer.as_ref().is_err_and(|status| status.code == 409);
                    let is_of_part = write.target().resource.kind == "NodeImageSet";
                    assert!(answer.is_ok() || changed && is_of_part, "{write:?}: {answer:?}");
                    self.see(&PaperId::of(write.target()));
                }
            }
        }
        panic!("it is never done: {}", self.said);
    }

    /// Agents answer orders that they have not answered yet.
    fn answer(&mut self) -> bool {
        let mut answered = false;
        for name in self.nodes.keys() {
            let orders = self.world.orders(name).unwrap_or_default();
            let mut reports = orders.iter().filter_map(|(key, order)| Some((*key, report(name, order, self.now)?)));
            let reports: BTreeMap<Key, Report> = reports
                .by_ref()
                .map(|(key, report)| {
                    let before = self.reports.get(name).and_then(|all| all.get(&key));
                    (key, before.filter(|before| before.asked == report.asked).cloned().unwrap_or(report))
                })
                .collect();
            if self.reports.get(name).cloned().unwrap_or_default() != reports {
                answered = true;
                self.reports.insert(name.clone(), reports.clone());
                self.world.apply(Event::Reports(name.as_str().into(), reports));
                self.world.heard(name, self.now);
            }
        }
        answered
    }

    /// A controller that knows only what is on paper and on nodes has nothing to write.
    fn start_anew(&self) {
        let (mut view, mut world) = self.anew();
        world.plan(self.now);
        let roots: Vec<Root> = view.due(self.now).cloned().collect();
        let writes: Vec<Write> = roots.iter().flat_map(|root| view.project(root, &world, self.now)).collect();
        assert_eq!(writes, [], "after {}", self.said);
        assert!(matches!(view.heard(&Query::all(&stoker_api::dialect::kruise::NODE_IMAGES.kind)), Heard::Listed));
    }

    /// Another controller takes over.
    pub(crate) fn restart(&mut self) {
        (self.view, self.world) = self.anew();
    }

    /// Agents that pull go on.
    pub(crate) fn beat(&mut self) {
        for (name, reports) in &mut self.reports {
            reports.values_mut().filter(|report| !report.ended()).for_each(|report| report.updated = self.now);
            self.world.apply(Event::Reports(name.as_str().into(), reports.clone()));
            self.world.heard(name, self.now);
        }
    }

    /// Somebody writes to an object, or to its status.
    pub(crate) fn write(&mut self, id: &PaperId, patch: &Value, status: bool) {
        self.paper.patch(id, patch, status).unwrap();
        self.see(id);
    }

    /// What a controller knows that starts now.
    fn anew(&self) -> (View, World) {
        let (mut view, mut world) = (view(self.half), World::new());
        world.relay(self.relays);
        for (name, node) in &self.nodes {
            world.apply(Event::Node(node.clone()));
            world.apply(Event::Orders(name.as_str().into(), self.world.orders(name).unwrap_or_default()));
            let reports = self.reports.get(name).cloned().unwrap_or_default();
            world.apply(Event::Reports(name.as_str().into(), reports));
            world.apply(Event::Features(name.as_str().into(), features()));
            world.apply(peer(name));
            world.heard(name, self.now);
        }
        self.paper.list_all(&mut view, &mut world);
        for name in self.nodes.keys() {
            view.touch_node(name, true);
        }
        view.settle(&mut world);
        (view, world)
    }
}

/// The agent of a node, which serves images to others.
fn peer(name: &str) -> Event {
    let facts = PeerFacts {
        address: [10, 0, 0, 1].into(),
        port: 7447,
        key: PeerKey::new(name),
        keeps: true,
        rate: None,
        sent: None,
    };
    Event::Peer(name.into(), Some(facts))
}

fn report(node: &str, order: &Order, now: Timestamp) -> Option<Report> {
    let image = &order.image;
    let digest = || Some(format!("sha256:{}", "a".repeat(64)));
    let (phase, done, reason, message) = match () {
        () if image.contains("mute") => return None,
        () if order.ask.is_question() => (Phase::Resolved, 0, None, ""),
        () if image.contains("slow") => (Phase::Pulling, 40, None, ""),
        () if image.contains("broken-on-") && !image.contains(&format!("broken-on-{node}")) => {
            (Phase::Succeeded, 100, None, "")
        }
        () if image.contains("broken") => (Phase::Failed, 10, Some(Reason::NotFound), "the registry has no such image"),
        () => (Phase::Succeeded, 100, None, ""),
    };
    Some(Report {
        asked: order.asked,
        jobs: order.jobs.clone(),
        phase,
        digest: digest().filter(|_| phase != Phase::Failed).map(Into::into),
        pin: digest()
            .filter(|_| phase == Phase::Resolved)
            .map(|digest| stoker_core::model::Pin::new(order.asked, digest)),
        bytes: Bytes { total: 100, done, ..Bytes::default() },
        from: None,
        bad: Vec::new(),
        attempt: 1,
        reason,
        message: message.into(),
        present: false,
        stalled: None,
        started: now,
        finished: (phase != Phase::Pulling).then_some(now),
        updated: now,
    })
}

pub(crate) fn shown(write: &Write) -> String {
    let (kind, name) = (&write.target().resource.kind, &write.target().name);
    match write {
        Write::Create(_, event) if kind == "Event" => {
            let about = event["involvedObject"]["kind"].as_str().unwrap();
            let about = format!("{about} {}", event["involvedObject"]["name"].as_str().unwrap());
            format!("event of {about}: {} {}\n", event["reason"], event["message"])
        }
        Write::Create(_, object) => format!("create {kind} {name}\n{object:#}\n"),
        Write::Guarded(_, patch) => format!("patch one version of {kind} {name}\n{patch:#}\n"),
        Write::GuardedStatus(_, patch) => format!("status of one version of {kind} {name}\n{patch:#}\n"),
        Write::Delete(..) => format!("delete {kind} {name}\n"),
        Write::Patch(..) | Write::Status(..) => String::new(),
    }
}

/// Of jobs and their Events alone.
pub(crate) fn shown_of_jobs(write: &Write) -> String {
    let (kind, name) = (&write.target().resource.kind, &write.target().name);
    match write {
        Write::Create(_, event) if kind == "Event" && event["involvedObject"]["kind"] == "NodeImage" => String::new(),
        _ if kind == "NodeImage" => String::new(),
        Write::Status(_, patch) => format!("status of {kind} {name}\n{:#}\n", patch["status"]),
        Write::Patch(_, patch) => format!("patch {kind} {name}\n{patch:#}\n"),
        write => shown(write),
    }
}

/// Of objects of ofen and their Events alone.
pub(crate) fn shown_of_ofen(write: &Write) -> String {
    let (kind, name) = (&write.target().resource.kind, &write.target().name);
    let is_of_ofen = |kind: &str| matches!(kind, "ImagePrefetch" | "NodeImageSet");
    match write {
        Write::Create(_, event) if kind == "Event" && is_of_ofen(event["involvedObject"]["kind"].as_str().unwrap()) => {
            shown(write)
        }
        Write::Status(_, patch) if is_of_ofen(kind) => format!("status of {kind} {name}\n{:#}\n", patch["status"]),
        Write::Status(..) => String::new(),
        write if is_of_ofen(kind) => shown(write),
        _ => String::new(),
    }
}

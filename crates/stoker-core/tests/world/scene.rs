//! A cluster in miniature for tables: facts go in by name, and what a plan does comes out as short sentences.

use std::collections::BTreeMap;

use jiff::Timestamp;
use stoker_core::model::{Job, Node, Order, Report};
use stoker_core::world::NodeState;
use stoker_core::{Ask, Event, Found, Key, Outcome, Phase, Pin, Plan, Reason, SecretId, World};

use crate::build::{acknowledge, at, id, key, node, pulling, short};

pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) now: Timestamp,
    jobs: BTreeMap<String, Job>,
    nodes: BTreeMap<String, Node>,
    reports: BTreeMap<String, BTreeMap<Key, Report>>,
    outcomes: BTreeMap<String, Outcome>,
    images: BTreeMap<Key, String>,
    /// Whether outcomes come back as the status of the object at once.
    pub(crate) acknowledge: bool,
    /// What is in the Secrets; those that are not here are missing.
    pub(crate) secrets: BTreeMap<SecretId, Found>,
    /// Whether Secrets are read before each plan.
    pub(crate) reads: bool,
}

impl Scene {
    /// Ready nodes with agents, of which one is believed: most rules are about something else.
    pub(crate) fn of(nodes: &[&str]) -> Self {
        let mut scene = Self::of_strangers(nodes);
        scene.world.trust_one_witness(true);
        scene
    }

    /// Ready nodes with agents.
    pub(crate) fn of_strangers(nodes: &[&str]) -> Self {
        let mut scene = Self {
            world: World::new(),
            now: at(0),
            jobs: BTreeMap::new(),
            nodes: BTreeMap::new(),
            reports: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            images: BTreeMap::new(),
            acknowledge: true,
            secrets: BTreeMap::new(),
            reads: true,
        };
        for name in nodes {
            scene.node(node(name));
            scene.agent(name);
        }
        scene
    }

    pub(crate) fn node(&mut self, node: Node) {
        self.nodes.insert(node.name.to_string(), node.clone());
        self.world.apply(Event::Node(node));
    }

    pub(crate) fn change_node(&mut self, name: &str, change: impl FnOnce(&mut Node)) {
        let mut node = self.nodes[name].clone();
        change(&mut node);
        self.node(node);
    }

    pub(crate) fn agent(&mut self, name: &str) {
        self.world.apply(Event::Orders(name.into(), BTreeMap::new()));
        self.features(name, &["look", "resolve", "sealed"]);
    }

    pub(crate) fn features(&mut self, name: &str, features: &[&str]) {
        let features = features.iter().map(|feature| feature.to_string()).collect();
        self.world.apply(Event::Features(name.into(), features));
    }

    /// Reads the Secrets that jobs name, as a controller does.
    pub(crate) fn read(&mut self) {
        for (id, wanted) in self.world.wanted_secrets().iter() {
            let found = self.secrets.get(id).cloned().unwrap_or(Found::Missing);
            let found = wanted.images.keys().map(|key| (*key, found.clone())).collect();
            self.world.apply(Event::Secret(id.clone(), found, self.now));
        }
    }

    /// A job; its object is as old as the scene, unless it was made to be older.
    pub(crate) fn job(&mut self, mut job: Job) {
        job.created = self.now;
        self.put(job);
    }

    /// A job as it is.
    pub(crate) fn put(&mut self, job: Job) {
        for image in &job.images {
            self.images.insert(key(&image.written), image.written.clone());
        }
        self.jobs.insert(job.id.name().into(), job.clone());
        self.world.apply(Event::Job(Box::new(job)));
    }

    pub(crate) fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Job)) {
        let mut job = self.jobs[name].clone();
        job.generation += 1;
        edit(&mut job);
        self.put(job);
    }

    pub(crate) fn delete(&mut self, name: &str) {
        let id = self.jobs.remove(name).map_or_else(|| id(name), |job| job.id);
        self.world.apply(Event::JobGone(id));
    }

    pub(crate) fn pass(&mut self, seconds: i64) {
        self.now = Timestamp::from_second(self.now.as_second() + seconds).unwrap();
    }

    /// Plans, lets everything be acknowledged, and says what was written.
    pub(crate) fn plan(&mut self) -> Vec<String> {
        if self.reads {
            self.read();
        }
        let before = self.orders();
        let plan = self.world.plan(self.now);
        self.acknowledge(&plan);
        for write in &plan.orders {
            let orders = self.world.orders(&write.node).unwrap();
            self.world.apply(Event::Orders(write.node.clone(), orders));
        }
        let writes = plan.orders.iter().flat_map(|write| write.keys.iter().map(move |key| (&write.node, key)));
        let sentence = |(node, key): (&std::sync::Arc<str>, &Key)| {
            let image = self.images.get(key).unwrap_or_else(|| &self.images[&key.question()]);
            let old = before.get(&(node.to_string(), *key));
            match self.world.order(node, *key) {
                None => format!("{node} drops {image}"),
                Some(order) if order.hold => format!("{node} holds {image}"),
                Some(order) if old.is_some_and(|old| old.asked == order.asked) => format!("{node} keeps {image}"),
                Some(order) => match &order.ask {
                    Ask::Resolve => format!("{node} asks for {image}"),
                    Ask::Look => format!("{node} looks for {image}"),
                    Ask::Fetch(None) => format!("{node} pulls {image} at any digest"),
                    Ask::Fetch(Some(pin)) => format!("{node} pulls {image} at {}", short(&pin.digest)),
                },
            }
        };
        // That a question goes along with its answer is said nowhere: it is no news.
        let resolved = |node: &str, key: &Key| {
            let report = self.reports.get(node).and_then(|reports| reports.get(key));
            report.is_some_and(|report| report.phase == Phase::Resolved)
        };
        let news = writes.filter(|(node, key)| self.world.order(node, **key).is_some() || !resolved(node, key));
        news.map(sentence).collect()
    }

    fn acknowledge(&mut self, plan: &Plan) {
        for outcome in &plan.outcomes {
            let name = outcome.job.name().to_string();
            self.outcomes.insert(name.clone(), outcome.clone());
            if let Some(mut job) = self.jobs.get(&name).filter(|_| self.acknowledge).cloned() {
                acknowledge(&mut job, outcome);
                self.put(job);
            }
        }
        for id in &plan.expired {
            self.delete(id.name());
        }
    }

    fn orders(&self) -> BTreeMap<(String, Key), Order> {
        let mut orders = BTreeMap::new();
        for node in self.nodes.keys() {
            for (key, order) in self.world.orders(node).into_iter().flatten() {
                orders.insert((node.clone(), key), order);
            }
        }
        orders
    }

    pub(crate) fn order(&self, node: &str, image: &str) -> Option<Order> {
        self.world.orders(node)?.remove(&key(image))
    }

    /// The question about the image that the node was asked.
    pub(crate) fn question(&self, node: &str, image: &str) -> Option<Order> {
        self.world.orders(node)?.remove(&key(image).question())
    }

    /// The key of what the agent has in hand: its order for the image, or else the question about it.
    fn in_hand(&self, node: &str, image: &str) -> (Key, Order) {
        let key = key(image);
        let open = |key: Key, order: Option<Order>| {
            let order = order.filter(|order| !order.hold)?;
            let report = self.reports.get(node).and_then(|reports| reports.get(&key));
            report.is_none_or(|report| !report.ended() || report.asked != order.asked).then_some((key, order))
        };
        let question = || open(key.question(), self.question(node, image));
        let any = || self.order(node, image).map(|order| (key, order));
        let found = open(key, self.order(node, image)).or_else(question).or_else(any);
        found.unwrap_or_else(|| panic!("{node} has no order for {image}"))
    }

    /// The agent says something new about its order.
    pub(crate) fn report(&mut self, node: &str, image: &str, change: impl FnOnce(&mut Report)) {
        let (key, order) = self.in_hand(node, image);
        let reports = self.reports.entry(node.into()).or_default();
        let earlier = reports.get(&key).filter(|report| report.asked == order.asked).cloned();
        let mut report = earlier.unwrap_or_else(|| pulling(order.asked, self.now));
        report.updated = self.now;
        report.jobs = order.jobs;
        change(&mut report);
        reports.insert(key, report);
        self.world.apply(Event::Reports(node.into(), reports.clone()));
    }

    /// An agent says what nobody asked it.
    pub(crate) fn says_unasked(&mut self, node: &str, key: Key, report: Report) {
        let reports = self.reports.entry(node.into()).or_default();
        reports.insert(key, report);
        self.world.apply(Event::Reports(node.into(), reports.clone()));
    }

    pub(crate) fn progresses(&mut self, node: &str, image: &str) {
        self.report(node, image, |_| {});
    }

    /// The registry told the agent which digest the tag means.
    pub(crate) fn resolves(&mut self, node: &str, image: &str, digest: &str) {
        let (_, order) = self.in_hand(node, image);
        self.report(node, image, |report| {
            if order.ask.is_question() {
                report.phase = Phase::Resolved;
            }
            report.pin = Some(Pin::new(report.asked, digest));
        });
    }

    /// The same where the agent has an order for the image in hand, too.
    pub(crate) fn report_question(&mut self, node: &str, image: &str, digest: &str) {
        let (key, order) = (key(image).question(), self.question(node, image).unwrap());
        let mut report = pulling(order.asked, self.now);
        (report.phase, report.pin) = (Phase::Resolved, Some(Pin::new(order.asked, digest)));
        let reports = self.reports.entry(node.into()).or_default();
        reports.insert(key, report);
        self.world.apply(Event::Reports(node.into(), reports.clone()));
    }

    /// The node's runtime finds registries by itself, or its agent is too old for such a question.
    pub(crate) fn cannot_resolve(&mut self, node: &str, image: &str) {
        self.fails(node, image, Reason::Unsupported);
    }

    pub(crate) fn succeeds(&mut self, node: &str, image: &str) {
        self.report(node, image, |report| report.phase = Phase::Succeeded);
    }

    /// The node has an image of this name already, and need not ask.
    pub(crate) fn has(&mut self, node: &str, image: &str) {
        self.report(node, image, |report| {
            report.phase = Phase::Succeeded;
            report.digest = Some("sha256:old".into());
        });
    }

    /// It was to look for the image, and has it not.
    pub(crate) fn lacks(&mut self, node: &str, image: &str) {
        self.fails(node, image, Reason::Unresolved);
    }

    pub(crate) fn fails(&mut self, node: &str, image: &str, reason: Reason) {
        self.report(node, image, |report| {
            report.phase = Phase::Failed;
            report.reason = Some(reason);
            report.message = format!("{image} went wrong");
        });
    }

    pub(crate) fn outcome(&self, name: &str) -> &Outcome {
        &self.outcomes[name]
    }

    /// `node: state` for each node of a job.
    pub(crate) fn states(&self, name: &str) -> Vec<String> {
        let id = self.jobs.get(name).map_or_else(|| id(name), |job| job.id.clone());
        let views = self.world.nodes(&id, self.now);
        let state = |state: &NodeState| match state {
            NodeState::Succeeded => "done".to_string(),
            NodeState::Pulling => "pulls".to_string(),
            NodeState::Waiting(waiting) => format!("waits: {}", waiting.reason()),
            NodeState::Failed(reason, _) => format!("failed: {reason}"),
        };
        views.iter().map(|view| format!("{} {}", view.node, state(&view.state))).collect()
    }
}

pub(crate) const NOTHING: [&str; 0] = [];

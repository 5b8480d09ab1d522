//! Policies: a job that is not allowed is held, and goes on when it is.

use std::collections::BTreeMap;

use stoker_core::model::Job;
use stoker_core::world::NodeState;
use stoker_core::{Ceilings, Completion, Event, ImagePattern, Phase, Reason, Restriction, Stage, Waiting};

use crate::build::{GUEST, OTHER, at, id, job, node, pool, secs, standing};
use crate::scene::{NOTHING, Scene};

const WEB: &str = "web@sha256:w";
const DB: &str = "db@sha256:d";

fn policy(name: &str, change: impl FnOnce(&mut Restriction)) -> Restriction {
    let mut restriction = Restriction { policy: name.into(), ..Restriction::default() };
    change(&mut restriction);
    restriction
}

fn only_web(name: &str) -> Restriction {
    policy(name, |it| it.images = vec![ImagePattern::new("reg.test/web")])
}

fn most(change: impl FnOnce(&mut Ceilings)) -> Restriction {
    policy("p", |it| change(&mut it.most))
}

impl Scene {
    /// What a plan does, in the order of the alphabet.
    fn sorted(&mut self) -> Vec<String> {
        let mut plan = self.plan();
        plan.sort();
        plan
    }

    fn policies(&mut self, policies: &[Restriction]) {
        self.world.apply(Event::Policies(policies.to_vec()));
    }

    fn namespace(&mut self, name: &str, team: &str) {
        let labels = BTreeMap::from([("pool".to_string(), team.to_string())]);
        self.world.apply(Event::Namespace(name.into(), Some(labels)));
    }

    /// Why the node waits.
    fn sentence(&self, job: &str, node: &str) -> String {
        match self.world.nodes(&id(job), self.now).into_iter().find(|view| &*view.node == node).unwrap().state {
            NodeState::Waiting(waiting @ Waiting::NotAllowed { .. }) => waiting.to_string(),
            state => panic!("{state:?}"),
        }
    }
}

#[test]
fn a_job_that_is_not_allowed_is_held_and_goes_on_when_it_is() {
    let mut scene = Scene::of(&["n1"]);
    scene.policies(&[only_web("team-a")]);
    scene.job(job("db", &[WEB, DB]));
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("db"), ["n1 waits: NotAllowed"]);
    let said = "PreheatPolicy team-a does not allow this job (spec.images): no pattern matches reg.test/db; \
                this node goes on by itself when that changes";
    assert_eq!(scene.sentence("db", "n1"), said);
    let outcome = scene.outcome("db");
    assert_eq!((outcome.stage, outcome.waiting, outcome.started), (Stage::Running, 1, None));
    assert_eq!(outcome.not_allowed.as_ref().map(|refusal| &*refusal.policy), Some("team-a"));
    scene.policies(&[]);
    assert_eq!(scene.sorted(), ["n1 pulls db@sha256:d at sha256:d", "n1 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.outcome("db").not_allowed, None);
    scene.progresses("n1", DB);
    scene.policies(&[only_web("team-a")]);
    assert_eq!(scene.sorted(), ["n1 holds db@sha256:d", "n1 holds web@sha256:w"], "what was fetched is kept");
    scene.edit("db", |job| job.images.truncate(1));
    assert_eq!(scene.sorted(), ["n1 drops db@sha256:d", "n1 pulls web@sha256:w at sha256:w"]);
    scene.succeeds("n1", WEB);
    scene.plan();
    scene.policies(&[policy("none", |it| it.images = vec![ImagePattern::new("other/*")])]);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.outcome("db").stage, Stage::Succeeded, "it has ended");
}

#[test]
fn every_policy_that_concerns_a_namespace_must_allow() {
    let mut scene = Scene::of(&["n1"]);
    scene.namespace("default", "a");
    let all = policy("all", |it| it.images = vec![ImagePattern::new("reg.test/*")]);
    let team = Restriction { namespaces: Some(pool("a")), ..only_web("team") };
    scene.policies(&[team, all]);
    scene.job(job("db", &[DB]));
    scene.job(job(GUEST, &[WEB]));
    assert_eq!(scene.plan(), NOTHING);
    let unknown = "PreheatPolicy team does not allow this job (spec.namespaces): the labels of namespace elsewhere are not known yet; \
                   this node goes on by itself when that changes";
    assert_eq!(scene.sentence(GUEST, "n1"), unknown);
    scene.namespace("elsewhere", "b");
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    scene.namespace("default", "b");
    assert_eq!(scene.plan(), ["n1 pulls db@sha256:d at sha256:d"], "it concerns this namespace no more");
}

#[test]
fn objects_without_a_namespace_are_concerned_by_policies_for_all() {
    let mut scene = Scene::of(&["n1"]);
    scene.put(standing("entries", DB, &[("n1", 0)]));
    scene.policies(&[
        Restriction { namespaces: Some(pool("a")), ..only_web("team") },
        most(|most| (most.jobs, most.nodes) = (Some(0), Some(0))),
    ]);
    assert_eq!(scene.plan(), ["n1 pulls db@sha256:d at sha256:d"]);
    scene.policies(&[only_web("all")]);
    assert_eq!(scene.plan(), ["n1 holds db@sha256:d"]);
}

#[test]
fn nodes_that_may_not_be_used_wait_and_the_others_go_on() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.change_node("n2", |node| node.labels.clear());
    let web = job("web", &[WEB]);
    scene.job(web);
    scene.plan();
    scene.progresses("n2", WEB);
    scene.policies(&[policy("p", |it| it.nodes = Some(pool("main").into()))]);
    assert_eq!(scene.plan(), ["n2 holds web@sha256:w"]);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 waits: NotAllowed"]);
    let said = "PreheatPolicy p does not allow this job (spec.nodes): node n2 does not have the labels that the policy asks for; other \
                nodes of the job go on; this node goes on by itself when that changes";
    assert_eq!(scene.sentence("web", "n2"), said);
    scene.succeeds("n1", WEB);
    scene.plan();
    let outcome = scene.outcome("web");
    assert_eq!((outcome.stage, outcome.succeeded, outcome.waiting), (Stage::Running, 1, 1));
    scene.edit("web", |job| job.completion = Completion::Once { deadline: Some(secs(60)), ttl: None });
    scene.pass(60);
    scene.plan();
    let outcome = scene.outcome("web");
    assert_eq!((outcome.stage, outcome.failures[0].reason), (Stage::Failed, Reason::DeadlineExceeded));
    let said = "the job's deadline passed before the node was done; last: PreheatPolicy p does not allow this job (spec.nodes): node n2 does not \
                have the labels that the policy asks for; other nodes of the job go on";
    assert_eq!(outcome.failures[0].message, said);
}

#[test]
fn a_tag_is_asked_of_nodes_that_may_be_used() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.change_node("n1", |node| node.labels.clear());
    scene.policies(&[policy("p", |it| it.nodes = Some(pool("main").into()))]);
    scene.job(job("web", &["web:1"]));
    assert_eq!(scene.plan(), ["n2 asks for web:1"]);
    scene.fails("n2", "web:1", Reason::Unreachable);
    scene.plan();
    assert_eq!(scene.question("n1", "web:1"), None);
}

#[test]
fn a_job_that_wants_some_nodes_chooses_among_those_that_it_may_use() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    scene.change_node("n1", |node| node.labels.clear());
    scene.policies(&[policy("p", |it| {
        it.nodes = Some(pool("main").into());
        it.most.nodes = Some(2);
    })]);
    scene.job(job("web", &[WEB]).picking(2, None));
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w", "n3 pulls web@sha256:w at sha256:w"]);
    scene.edit("web", |job| job.pick.as_mut().unwrap().number = Some(3));
    assert_eq!(scene.plan(), ["n2 holds web@sha256:w", "n3 holds web@sha256:w"]);
}

#[test]
fn a_job_gets_so_many_nodes_and_the_others_wait_one_by_one() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    scene.policies(&[most(|most| most.nodes = Some(2))]);
    scene.job(job("web", &[WEB]));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w", "n2 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 pulls", "n3 waits: NotAllowed"]);
    let said = "PreheatPolicy p does not allow this job (spec.max.nodes): a job may have 2 nodes, and this job has as many; its other nodes \
                wait until one of those is gone; this node goes on by itself when that changes";
    assert_eq!(scene.sentence("web", "n3"), said);
    assert_eq!(scene.outcome("web").not_allowed.as_ref().map(|refusal| refusal.field), Some("spec.max.nodes"));
    scene.succeeds("n1", WEB);
    scene.fails("n2", WEB, Reason::NotFound);
    assert_eq!(scene.plan(), NOTHING, "a node that is done or has failed is one of the job's nodes, too");
    scene.world.apply(Event::NodeGone("n1".into()));
    assert_eq!(scene.plan(), ["n3 pulls web@sha256:w at sha256:w"]);
    scene.policies(&[policy("p", |it| it.nodes = Some(pool("main").into()))]);
    scene.plan();
    scene.change_node("n3", |node| node.labels.clear());
    assert_eq!(scene.plan(), ["n3 holds web@sha256:w"]);
}

#[test]
fn neither_a_node_that_joins_nor_a_lower_number_stops_what_has_begun() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.policies(&[most(|most| most.nodes = Some(2))]);
    scene.job(job("web", &[WEB]));
    assert_eq!(scene.plan().len(), 2);
    // Its name comes first.
    scene.node(node("n0"));
    scene.agent("n0");
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n0 waits: NotAllowed", "n1 pulls", "n2 pulls"]);
    scene.policies(&[most(|most| most.nodes = Some(1))]);
    assert_eq!(scene.plan(), NOTHING);
    // What was stopped for another reason goes on where it was.
    scene.edit("web", |job| job.suspend = true);
    assert_eq!(scene.plan(), ["n1 holds web@sha256:w", "n2 holds web@sha256:w"]);
    scene.edit("web", |job| job.suspend = false);
    assert_eq!(scene.plan().len(), 2);
    assert_eq!(scene.states("web"), ["n0 waits: NotAllowed", "n1 pulls", "n2 pulls"]);
}

#[test]
fn only_as_many_nodes_wait_for_their_turn_as_the_job_may_have() {
    let mut scene = Scene::of(&["n1", "n2", "n3", "n4"]);
    scene.change_node("n2", |node| node.ready = false);
    scene.policies(&[most(|most| most.nodes = Some(2))]);
    scene.job(Job { parallelism: 1, ..job("web", &[WEB]) });
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    let waits = ["n1 pulls", "n2 waits: NodeNotReady", "n3 waits: Parallelism", "n4 waits: NotAllowed"];
    assert_eq!(scene.states("web"), waits);
    scene.succeeds("n1", WEB);
    assert_eq!(scene.plan(), ["n3 pulls web@sha256:w at sha256:w"], "a node that is not Ready takes no place");
    scene.change_node("n2", |node| node.ready = true);
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 done", "n2 waits: NotAllowed", "n3 pulls", "n4 waits: NotAllowed"]);
}

/// Two nodes must say what a tag means, also for a job that may have one node. Asking fetches nothing.
#[test]
fn a_node_that_is_asked_for_a_digest_alone_takes_no_place() {
    let mut scene = Scene::of_strangers(&["n1", "n2"]);
    scene.policies(&[most(|most| most.nodes = Some(1))]);
    scene.job(job("web", &["web:1"]));
    assert_eq!(scene.plan(), ["n1 asks for web:1", "n2 asks for web:1"]);
    ["n1", "n2"].into_iter().for_each(|node| scene.resolves(node, "web:1", "sha256:w"));
    assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:w"]);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 waits: NotAllowed"]);
}

#[test]
fn the_first_jobs_of_a_namespace_go_and_the_others_wait() {
    let mut scene = Scene::of(&["n1"]);
    scene.policies(&[most(|most| most.jobs = Some(1))]);
    scene.job(job("a", &[WEB]));
    scene.job(job(OTHER, &[DB]));
    scene.job(job(GUEST, &["web@sha256:x"]));
    let guests = "n1 pulls web@sha256:x at sha256:x";
    assert_eq!(scene.sorted(), ["n1 pulls web@sha256:w at sha256:w", guests], "another namespace has its own");
    assert_eq!(scene.states(OTHER), ["n1 waits: NotAllowed"], "whatever its kind is");
    // What rests takes no place; and who comes back is older.
    scene.edit("a", |job| job.suspend = true);
    assert_eq!(scene.sorted(), ["n1 holds web@sha256:w", "n1 pulls db@sha256:d at sha256:d"]);
    scene.edit("a", |job| job.suspend = false);
    assert_eq!(scene.sorted(), ["n1 holds db@sha256:d", "n1 pulls web@sha256:w at sha256:w"]);
    scene.succeeds("n1", WEB);
    scene.plan();
    assert_eq!(
        scene.sorted(),
        ["n1 drops web@sha256:w", "n1 pulls db@sha256:d at sha256:d"],
        "the first one has ended"
    );
}

#[test]
fn who_asks_for_no_limit_gets_that_of_the_policy() {
    let mut scene = Scene::of(&["n1"]);
    scene.policies(&[most(|most| most.bandwidth = Some(7))]);
    scene.job(job("web", &[WEB]));
    scene.plan();
    let limit = |scene: &Scene| scene.order("n1", WEB).unwrap().terms.pull.bandwidth;
    assert_eq!(limit(&scene), Some(7));
    scene.policies(&[most(|most| most.bandwidth = Some(5))]);
    assert_eq!(scene.plan(), ["n1 keeps web@sha256:w"]);
    assert_eq!(limit(&scene), Some(5));
    scene.edit("web", |job| job.pull.bandwidth = Some(3));
    scene.plan();
    assert_eq!(limit(&scene), Some(3));
    scene.edit("web", |job| job.pull.bandwidth = Some(6));
    assert_eq!(scene.plan(), ["n1 holds web@sha256:w"], "what is asked for is refused and not cut down");
    scene.policies(&[]);
    scene.plan();
    assert_eq!(limit(&scene), Some(6));
}

#[test]
fn nobody_holds_the_pull_of_another_namespace() {
    let mut scene = Scene::of(&["n1"]);
    scene.namespace("default", "a");
    scene.namespace("elsewhere", "b");
    scene.job(job("db", &[DB]));
    scene.job(job(GUEST, &[DB]));
    scene.plan();
    scene.progresses("n1", DB);
    let team = Restriction { namespaces: Some(pool("a")), ..only_web("team") };
    scene.policies(&[team]);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(
        (scene.states("db"), scene.states(GUEST)),
        (vec!["n1 waits: NotAllowed".into()], vec!["n1 pulls".into()])
    );
    assert!(!scene.order("n1", DB).unwrap().hold);
}

#[test]
fn while_policies_cannot_be_listed_nothing_is_decided() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("web", &[WEB]));
    scene.plan();
    scene.world.apply(Event::PoliciesUnseen("PreheatPolicy"));
    scene.job(job("db", &[DB]));
    scene.delete("web");
    assert_eq!(scene.plan(), NOTHING);
    assert!(scene.world.is_frozen(&id("db")));
    assert_eq!(scene.world.policies_unseen(), Some("PreheatPolicy"));
    scene.policies(&[only_web("p")]);
    assert_eq!(scene.plan(), ["n1 drops web@sha256:w"]);
    assert_eq!(scene.states("db"), ["n1 waits: NotAllowed"]);
    scene.policies(&[]);
    assert_eq!(scene.plan(), ["n1 pulls db@sha256:d at sha256:d"]);
}

#[test]
fn a_policy_that_cannot_be_read_allows_nothing() {
    let mut scene = Scene::of(&["n1"]);
    scene.policies(&[policy("p", |it| it.unreadable = Some("spec.images is no list".into()))]);
    scene.job(job("web", &[WEB]));
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 waits: NotAllowed"]);
}

#[test]
fn an_image_that_is_there_already_needs_no_permission() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(job("db", &[DB]));
    scene.plan();
    scene.report("n1", DB, |report| report.phase = Phase::Succeeded);
    scene.policies(&[only_web("p")]);
    scene.plan();
    assert_eq!((scene.outcome("db").stage, scene.outcome("db").completed), (Stage::Succeeded, Some(at(0))));
}

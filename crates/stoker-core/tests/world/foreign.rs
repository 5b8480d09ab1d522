//! Nodes whose agent somebody else plays: they are told to pull, and nothing that they say counts for others.

use stoker_core::model::{Found, LoginId, Node, Offer, SecretId};
use stoker_core::world::NodeState;
use stoker_core::{Event, Job, Order, Phase, Pin, Reason, Stage};

use crate::build::{at, id, job, key, names, node, pool, pulling};
use crate::scene::{NOTHING, Scene};

const WEB: &str = "web@sha256:w";

fn foreign(name: &str) -> Node {
    Node { ready: false, foreign: true, ..node(name) }
}

/// These nodes with agents, and `f1`.
fn scene(nodes: &[&str]) -> Scene {
    let mut scene = Scene::of(nodes);
    scene.node(foreign("f1"));
    scene.world.apply(Event::Orders("f1".into(), Default::default()));
    scene
}

fn wants_foreign(job: Job) -> Job {
    Job { foreign_nodes: true, ..job }
}

#[test]
fn only_a_job_that_wants_foreign_nodes_gets_them() {
    let f1 = "f1 pulls web@sha256:w at sha256:w";
    let n1 = "n1 pulls web@sha256:w at sha256:w";
    let web = || job("web", &[WEB]);
    for (job, expected) in [
        (web(), &[n1][..]),
        (Job { names: names(&["f1"]), ..web() }, &[]),
        (Job { selector: pool("main"), ..web() }, &[n1]),
        (wants_foreign(web()), &[f1, n1]),
        (wants_foreign(Job { names: names(&["f1"]), ..web() }), &[f1]),
        (wants_foreign(Job { selector: pool("main"), ..web() }), &[f1, n1]),
        (wants_foreign(Job { selector: pool("other"), ..web() }), &[]),
    ] {
        let mut scene = scene(&["n1"]);
        let about = format!("{:?} {:?} {}", job.names, job.selector, job.foreign_nodes);
        scene.job(job);
        assert_eq!(scene.plan(), expected, "{about}");
    }
}

#[test]
fn it_pulls_what_the_tag_means_and_is_asked_nothing() {
    let mut scene = scene(&["n1"]);
    scene.job(wants_foreign(job("web", &["web:1"])));
    assert_eq!(scene.plan(), ["f1 pulls web:1 at any digest", "n1 asks for web:1"]);
    assert_eq!(scene.states("web"), ["f1 pulls", "n1 waits: Unresolved"]);
    // Whatever it says that the tag means, others hear it from the registry.
    scene.report("f1", "web:1", |report| report.pin = Some(Pin::new(report.asked, "sha256:foreign")));
    assert_eq!(scene.plan(), NOTHING);
    scene.resolves("n1", "web:1", "sha256:a");
    assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:a"]);
    scene.succeeds("f1", "web:1");
    scene.succeeds("n1", "web:1");
    scene.plan();
    let outcome = scene.outcome("web");
    assert_eq!((outcome.stage, outcome.desired, outcome.succeeded), (Stage::Succeeded, 2, 2));
}

#[test]
fn it_is_told_no_digest_that_others_know() {
    let mut scene = scene(&["n1"]);
    scene.job(job("web", &["web:1"]));
    scene.plan();
    scene.resolves("n1", "web:1", "sha256:a");
    assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:a"]);
    scene.edit("web", |job| job.foreign_nodes = true);
    assert_eq!(scene.plan(), ["f1 pulls web:1 at any digest"]);
}

#[test]
fn it_is_there_as_soon_as_its_orders_or_reports_are_known() {
    let mut scene = Scene::of(&[]);
    scene.node(foreign("f1"));
    scene.job(wants_foreign(job("web", &[WEB])));
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["f1 waits: NoAgent"]);
    scene.world.apply(Event::Reports("f1".into(), Default::default()));
    assert_eq!(scene.plan(), ["f1 pulls web@sha256:w at sha256:w"], "whether it is ready says nobody");
}

#[test]
fn it_gets_no_login_and_waits_for_no_secret() {
    let mut scene = scene(&["n1"]);
    let (mine, none) = (SecretId::new("default", "mine"), SecretId::new("default", "none"));
    scene.secrets.insert(mine.clone(), Found::Logins(vec![Offer { id: LoginId::new("mine"), closeness: 0 }]));
    let mut web = wants_foreign(job("web", &[WEB]));
    web.images[0].secrets = vec![mine, none];
    scene.job(web);
    scene.reads = false;
    assert_eq!(scene.plan(), ["f1 pulls web@sha256:w at sha256:w"], "n1 waits until the Secrets are read");
    scene.reads = true;
    scene.pass(10);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    let logins = |node: &str| scene.order(node, WEB).unwrap().terms.logins.len();
    assert_eq!((logins("f1"), logins("n1")), (0, 1));
    scene.fails("f1", WEB, Reason::Unauthorized);
    assert_eq!(scene.plan(), NOTHING, "the login that it does not get is not tried for ever");
    assert_eq!(scene.states("web")[0], "f1 failed: SecretMissing");
}

#[test]
fn it_fails_when_it_says_nothing_for_ten_minutes_and_never_once_it_has_begun() {
    let mut scene = scene(&[]);
    scene.node(foreign("f2"));
    scene.world.apply(Event::Orders("f2".into(), Default::default()));
    scene.job(wants_foreign(Job { parallelism: 2, ..job("web", &[WEB]) }));
    assert_eq!(scene.plan().len(), 2);
    scene.progresses("f1", WEB);
    scene.pass(600);
    scene.plan();
    assert_eq!(scene.states("web"), ["f1 pulls", "f2 failed: NodeSilent"]);
    let view = scene.world.seat_of(&id("web"), "f2", scene.now).unwrap();
    assert!(
        matches!(view.state, NodeState::Failed(_, message) if message == "the node has not responded for a long time")
    );
    scene.pass(86_400);
    scene.plan();
    assert_eq!(scene.states("web"), ["f1 pulls", "f2 failed: NodeSilent"]);
    assert_eq!(scene.world.plan(scene.now).wake, None, "nothing is awaited at the end of time");
    scene.succeeds("f1", WEB);
    scene.plan();
    assert_eq!(scene.outcome("web").stage, Stage::Failed);
}

#[test]
fn one_that_pulls_for_ever_gives_its_place_to_others() {
    let mut scene = scene(&["n1"]);
    scene.job(wants_foreign(Job { parallelism: 1, ..job("web", &[WEB]) }));
    assert_eq!(scene.plan(), ["f1 pulls web@sha256:w at sha256:w"]);
    scene.progresses("f1", WEB);
    scene.plan();
    assert_eq!(scene.states("web"), ["f1 pulls", "n1 waits: Parallelism"]);
    scene.pass(86_400);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
}

/// A controller that starts knows such an order from an object that anybody may have written.
#[test]
fn an_ask_that_is_far_ahead_holds_no_place() {
    let web = || wants_foreign(Job { parallelism: 1, ..job("web", &[WEB]) });
    let mut before = scene(&["n1"]);
    before.job(web());
    before.plan();
    let order = Order { asked: at(2 * 86_400), ..before.order("f1", WEB).unwrap() };
    let mut scene = scene(&["n1"]);
    scene.world.apply(Event::Orders("f1".into(), [(key(WEB), order)].into()));
    scene.job(web());
    assert_eq!(scene.plan(), ["f1 pulls web@sha256:w at sha256:w"]);
    assert_eq!(
        (scene.order("f1", WEB).unwrap().asked, scene.states("web")[1].as_str()),
        (at(0), "n1 waits: Parallelism")
    );
    scene.pass(660);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
}

/// What a node has said is counted when its reports come, and it may only then turn out whose node it is.
#[test]
fn what_it_said_does_not_count_whenever_it_turns_out_to_be_foreign() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.job(wants_foreign(job("web", &["web:1"])));
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    scene.change_node("n1", |node| node.foreign = true);
    scene.resolves("n1", "web:1", "sha256:foreign");
    assert!(scene.plan().contains(&"n2 asks for web:1".to_string()));
    scene.change_node("n1", |node| node.foreign = false);
    let writes = scene.plan();
    assert!(
        writes.contains(&"n2 pulls web:1 at sha256:foreign".to_string()),
        "n1 is one of ours, and was asked: {writes:?}"
    );
}

#[test]
fn plans_name_the_nodes_of_which_something_else_can_be_shown() {
    let mut scene = scene(&["n1", "n2"]);
    let nodes = |scene: &mut Scene| -> Vec<String> {
        let plan = scene.world.plan(scene.now);
        plan.nodes.iter().map(ToString::to_string).collect()
    };
    scene.job(Job { names: names(&["n1"]), ..job("web", &[WEB]) });
    assert_eq!(nodes(&mut scene), NOTHING, "nobody has asked for it");
    scene.world.tell_nodes(true);
    assert_eq!(nodes(&mut scene), ["f1", "n1", "n2"], "all of them, at first");
    assert_eq!(nodes(&mut scene), NOTHING);
    scene.progresses("n1", WEB);
    assert_eq!(nodes(&mut scene), ["n1"]);
    scene.pass(1);
    scene.progresses("n1", WEB);
    assert_eq!(nodes(&mut scene), NOTHING, "a sign of life says nothing new");
    scene.report("n1", WEB, |report| report.bytes.done = 1);
    assert_eq!(nodes(&mut scene), ["n1"]);
    scene.job(wants_foreign(Job { names: names(&["f1"]), ..job("more", &[WEB]) }));
    assert_eq!(nodes(&mut scene), ["f1"], "it has an order");
    scene.pass(600);
    scene.progresses("n1", WEB);
    assert_eq!(nodes(&mut scene), ["f1"], "it is silent");
    scene.world.apply(Event::NodeGone("n2".into()));
    scene.world.apply(Event::AgentGone("n2".into()));
    assert_eq!(nodes(&mut scene), ["n2"]);
    scene.node(node("n3"));
    assert_eq!(nodes(&mut scene), ["n3"]);
}

#[test]
fn reports_are_told_as_far_as_they_are_about_orders() {
    let mut scene = scene(&[]);
    scene.job(wants_foreign(job("web", &[WEB])));
    scene.plan();
    assert!(scene.world.reports("nowhere").is_none());
    scene.progresses("f1", WEB);
    let phases = |scene: &Scene| scene.world.reports("f1").unwrap().map(|(_, report)| report.phase).collect::<Vec<_>>();
    assert_eq!(phases(&scene), [Phase::Pulling]);
    assert_eq!(scene.world.report("f1", key(WEB)).map(|report| report.phase), Some(Phase::Pulling));
    scene.says_unasked("f1", key(WEB), pulling(at(10_000), scene.now));
    assert_eq!(phases(&scene), [], "it is about an ask that is still to come");
}

//! Secrets of jobs: read by name, their logins merged into orders, missed by name.

use std::sync::Arc;

use stoker_core::model::{Found, LoginId, Offer, SecretId};
use stoker_core::world::{MOST_LOGINS, NodeState, NodeTroubles};
use stoker_core::{Event, Job, JobId, Reason, Stage};

use crate::build::{GUEST, OTHER, id, job, key, kind, secs};
use crate::scene::{NOTHING, Scene};

const WEB: &str = "web@sha256:w";

fn secret(name: &str) -> SecretId {
    SecretId::new("default", name)
}

fn login(content: &str) -> LoginId {
    LoginId::new(content)
}

fn logins(contents: &[&str]) -> Found {
    Found::Logins(contents.iter().map(|content| Offer { id: login(content), closeness: 1 }).collect())
}

fn with_secrets(name: &str, secrets: &[&str]) -> Job {
    let mut job = job(name, &[WEB]);
    job.images[0].secrets = secrets.iter().map(|name| secret(name)).collect();
    job
}

/// The same job in another namespace, with Secrets of that one.
fn elsewhere(namespace: &str, mut job: Job) -> Job {
    job.id = JobId::new(("stoker.dev", "Preheat"), namespace, job.id.name());
    job.images[0].secrets.iter_mut().for_each(|id| id.namespace = namespace.into());
    job
}

impl Scene {
    fn secret(&mut self, name: &str, content: &str) {
        self.holds(secret(name), logins(&[content]));
    }

    fn holds(&mut self, id: SecretId, found: Found) {
        self.secrets.insert(id, found);
    }

    fn ordered(&self) -> Vec<LoginId> {
        self.order("n1", WEB).unwrap().terms.logins.clone()
    }

    fn said(&self, name: &str) -> String {
        match &self.world.nodes(&id(name), self.now)[0].state {
            NodeState::Failed(reason, message) => format!("{reason}: {message}"),
            NodeState::Waiting(waiting) => waiting.to_string(),
            other => format!("{other:?}"),
        }
    }
}

#[test]
fn a_node_is_asked_when_the_secrets_were_read() {
    let mut scene = Scene::of(&["n1"]);
    scene.reads = false;
    scene.secret("a", "one");
    scene.job(with_secrets("web", &["a"]));
    let wanted: Vec<SecretId> = scene.world.wanted_secrets().keys().cloned().collect();
    assert_eq!(wanted, [secret("a")]);
    scene.pass(60);
    assert_eq!(scene.plan(), NOTHING, "as long as it takes");
    assert_eq!(scene.states("web"), ["n1 waits: SecretUnread"]);
    assert!(scene.said("web").contains("is reading Secret default/a"), "{}", scene.said("web"));
    scene.read();
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.ordered(), [login("one")]);
}

/// One namespace may have thousands of jobs with many Secrets and images each: who else plans does not go through all of them.
#[test]
fn what_is_to_be_read_is_computed_again_only_where_a_job_with_secrets_has_changed() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(with_secrets("web", &["a"]));
    scene.plan();
    let first = scene.world.wanted_secrets();
    scene.job(job("plain", &[WEB]));
    scene.plan();
    assert!(Arc::ptr_eq(&first, &scene.world.wanted_secrets()), "a job without Secrets changes nothing");
    let mut guest = job(GUEST, &[WEB]);
    guest.images[0].secrets.push(SecretId::new(id(GUEST).namespace(), "b"));
    scene.job(guest);
    scene.plan();
    let second = scene.world.wanted_secrets();
    assert_eq!(second.len(), 2);
    assert!(Arc::ptr_eq(&first[&secret("a")], &second[&secret("a")]), "that of another namespace is the same value");
}

#[test]
fn secrets_are_read_for_jobs_that_run_and_of_their_own_namespace_alone() {
    let mut scene = Scene::of(&["n1"]);
    let mut web = with_secrets("web", &["a"]);
    web.images[0].secrets.push(SecretId::new("kube-system", "token"));
    scene.job(web);
    let wanted = |scene: &mut Scene| scene.world.wanted_secrets();
    assert_eq!(wanted(&mut scene).keys().collect::<Vec<_>>(), [&secret("a")]);
    assert_eq!(wanted(&mut scene)[&secret("a")].images.keys().collect::<Vec<_>>(), [&key(WEB)]);
    // Even if somebody read it, nobody would use it.
    scene.holds(secret("a"), Found::Logins(Vec::new()));
    let stolen = [(key(WEB), logins(&["stolen"]))].into();
    scene.world.apply(Event::Secret(SecretId::new("kube-system", "token"), stolen, scene.now));
    scene.plan();
    assert_eq!(scene.ordered(), []);
    scene.edit("web", |job| job.suspend = true);
    assert!(wanted(&mut scene).is_empty());
    scene.edit("web", |job| job.suspend = false);
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.plan();
    assert_eq!(scene.outcome("web").stage, Stage::Succeeded);
    assert!(wanted(&mut scene).is_empty(), "an ended job needs none");
}

#[test]
fn an_order_has_the_logins_of_all_jobs_that_want_it_there_and_of_no_other() {
    let mut scene = Scene::of(&["n1"]);
    for (name, content) in [("z", "one"), ("a", "two"), ("same", "one"), ("b", "three")] {
        scene.secret(name, content);
    }
    scene.job(with_secrets("first", &["z", "a", "same"]));
    scene.plan();
    assert_eq!(scene.ordered(), [login("one"), login("two")]);
    scene.job(with_secrets("second", &["a", "b"]));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"], "a job that joins brings its logins");
    assert_eq!(scene.ordered(), [login("one"), login("two"), login("three")]);
    scene.delete("first");
    assert_eq!(scene.plan(), ["n1 keeps web@sha256:w"]);
    assert_eq!(scene.ordered(), [login("two"), login("three")], "and takes them along");
    let mut other = with_secrets("other", &["z"]);
    other.names = crate::build::names(&["n2"]);
    scene.job(other);
    scene.plan();
    assert_eq!(scene.ordered(), [login("two"), login("three")], "its job wants the image on another node");
    scene.edit("second", |job| job.images[0].secrets.clear());
    scene.plan();
    assert_eq!(scene.ordered(), []);
}

#[test]
fn twenty_logins_of_one_namespace_do_not_push_out_those_of_another() {
    let mut scene = Scene::of(&["n1"]);
    let bogus: Vec<String> = (0..20).map(|n| format!("bogus{n}")).collect();
    let bogus: Vec<&str> = bogus.iter().map(String::as_str).collect();
    scene.holds(SecretId::new("a-bad-one", "many"), logins(&bogus));
    scene.holds(SecretId::new("shop", "good"), logins(&["good"]));
    scene.job(elsewhere("a-bad-one", with_secrets("bad", &["many"])));
    scene.job(elsewhere("shop", with_secrets("web", &["good"])));
    scene.plan();
    scene.plan();
    let logins = scene.ordered();
    assert_eq!(logins.len(), MOST_LOGINS + 1);
    assert_eq!(logins.last(), Some(&login("good")));
    // And who has more than are tried is not asked for ever.
    scene.fails("n1", WEB, Reason::Unauthorized);
    for _ in 0..3 {
        assert_eq!(scene.plan(), NOTHING);
    }
}

#[test]
fn the_closest_logins_of_a_namespace_are_tried_first() {
    let mut scene = Scene::of(&["n1"]);
    let offer = |content: &str, closeness| Offer { id: login(content), closeness };
    scene.holds(secret("wide"), Found::Logins((0..4).map(|n| offer(&format!("wide{n}"), 1)).collect()));
    scene.holds(secret("close"), Found::Logins(vec![offer("close", 9)]));
    scene.job(with_secrets("web", &["wide", "close"]));
    scene.plan();
    assert_eq!(scene.ordered(), ["close", "wide0", "wide1", "wide2"].map(login));
}

#[test]
fn an_agent_that_cannot_open_logins_makes_its_node_wait_where_one_is_needed() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.features("n1", &[]);
    scene.secret("a", "one");
    scene.job(with_secrets("web", &["a"]));
    assert_eq!(scene.plan(), ["n2 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.states("web"), ["n1 waits: AgentTooOld", "n2 pulls"]);
    assert!(scene.said("web").contains("too old"), "{}", scene.said("web"));
    scene.job(job("plain", &["db@sha256:d"]));
    assert_eq!(scene.plan().len(), 2, "without logins it goes on as before");
    // Somebody who explains it without having read the Secret says the same.
    scene.holds(secret("a"), Found::Unseen);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 waits: AgentTooOld", "n2 pulls"]);
    scene.secret("a", "one");
    scene.features("n1", &["sealed"]);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    assert!(scene.order("n1", WEB).unwrap().features().any(|feature| feature == "sealed"));
    assert!(scene.order("n1", "db@sha256:d").unwrap().features().next().is_none());
}

#[test]
fn a_node_whose_agent_is_too_old_is_not_asked_for_a_digest_either() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.features("n1", &["look", "resolve"]);
    scene.secret("a", "one");
    let mut web = job("web", &["web:1"]);
    web.images[0].secrets = vec![secret("a")];
    scene.job(web);
    scene.plan();
    assert!(scene.world.orders("n1").unwrap().is_empty());
    assert!(!scene.world.orders("n2").unwrap().is_empty());
}

#[test]
fn what_an_order_has_stays_until_the_secrets_were_read_again() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    scene.job(with_secrets("web", &["a"]));
    scene.plan();
    // Another controller leads now, and has read nothing yet.
    let mut fresh = Scene::of(&["n1"]);
    fresh.reads = false;
    fresh.world.apply(Event::Orders("n1".into(), scene.world.orders("n1").unwrap()));
    fresh.job(with_secrets("web", &["a"]));
    assert_eq!(fresh.plan(), NOTHING);
    assert_eq!(fresh.ordered(), [login("one")]);
    fresh.holds(secret("a"), Found::Forbidden);
    fresh.read();
    assert_eq!(fresh.plan(), NOTHING, "a role may be about to be replaced");
    fresh.secret("a", "two");
    fresh.read();
    assert_eq!(fresh.plan().len(), 1);
    assert_eq!(fresh.ordered(), [login("two")]);
}

#[test]
fn a_job_that_is_suspended_lends_nothing() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    scene.job(with_secrets("web", &["a"]));
    scene.plan();
    assert_eq!(scene.world.open_logins("n1"), [login("one")]);
    scene.edit("web", |job| job.suspend = true);
    assert_eq!(scene.plan(), ["n1 holds web@sha256:w"]);
    assert!(scene.world.open_logins("n1").is_empty());
    scene.edit("web", |job| job.suspend = false);
    // What it named before is read again.
    scene.plan();
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.world.open_logins("n1"), [login("one")]);
    scene.succeeds("n1", WEB);
    assert!(scene.world.open_logins("n1").is_empty(), "a finished order needs none");
}

#[test]
fn a_job_uses_what_was_read_since_it_began() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    scene.job(with_secrets("first", &["a"]));
    scene.plan();
    scene.succeeds("n1", WEB);
    scene.reads = false;
    scene.pass(1);
    // Somebody changes the Secret and makes a job, which must not fail because of what was read before.
    scene.secret("a", "two");
    let mut again = with_secrets("again", &["a"]);
    again.pull.policy = stoker_core::Policy::Always;
    scene.job(again);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("again"), ["n1 waits: SecretUnread"]);
    assert_eq!(scene.world.wanted_secrets()[&secret("a")].since, Some(scene.now));
    scene.read();
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.ordered(), [login("two")]);
}

#[test]
fn a_changed_secret_reaches_the_order_with_a_new_ask() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    scene.job(with_secrets("web", &["a"]));
    scene.plan();
    scene.secret("a", "two");
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"], "it may have been refused just now");
    assert_eq!(scene.ordered(), [login("two")]);
    assert_eq!(scene.plan(), NOTHING);
}

#[test]
fn a_secret_that_may_not_be_read_or_makes_no_sense_is_said() {
    let mut scene = Scene::of(&["n1"]);
    scene.holds(secret("a"), Found::Forbidden);
    scene.job(with_secrets("web", &["a"]));
    assert_eq!(scene.plan(), NOTHING, "it may be allowed");
    assert_eq!(scene.states("web"), ["n1 waits: SecretForbidden"]);
    assert!(scene.said("web").contains("--secrets-from default"), "{}", scene.said("web"));
    let troubles = &scene.outcome("web").secrets;
    assert_eq!((&troubles[0].secret, troubles[0].reason), (&secret("a"), Reason::SecretForbidden));
    scene.pass(5);
    assert_eq!(scene.plan().len(), 1, "tried without");
    scene.acknowledge = false;
    scene.fails("n1", WEB, Reason::Unauthorized);
    scene.plan();
    assert_eq!(scene.outcome("web").failures[0].reason, Reason::SecretForbidden);
    assert!(scene.said("web").starts_with("SecretForbidden: the controller may not read Secret default/a;"));
    scene.world.tell_nodes(true);
    scene.world.plan(scene.now);
    assert_eq!(scene.world.plan(scene.now).nodes, [].into());
    scene.holds(secret("a"), Found::Unusable("a login of it is longer than 8 KiB".into()));
    scene.read();
    assert_eq!(scene.world.plan(scene.now).nodes, ["n1".into()].into(), "another word for the same failure");
    assert_eq!(
        scene.said("web"),
        "SecretUnusable: Secret default/a cannot be used: a login of it is longer than 8 KiB; make it anew \
         (web@sha256:w went wrong)"
    );
    scene.secret("a", "one");
    assert_eq!(scene.plan().len(), 1, "mended");
    assert!(scene.outcome("web").secrets.is_empty());
}

#[test]
fn a_missing_secret_stops_nothing_and_is_named_where_the_registry_wants_one() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    scene.job(with_secrets("web", &["gone", "a"]));
    assert_eq!(scene.plan(), NOTHING, "it may come");
    assert_eq!(scene.states("web"), ["n1 waits: SecretMissing"]);
    assert_eq!(scene.outcome("web").waiting_for, [(Reason::SecretMissing, 1)].into());
    assert!(scene.said("web").contains("Secret default/gone is not there; the pull is tried without"));
    assert_eq!(scene.world.plan(scene.now).wake, Some(scene.now + secs(5)));
    scene.pass(5);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"], "tried with the others");
    assert_eq!(scene.ordered(), [login("one")]);
    scene.acknowledge = false;
    scene.fails("n1", WEB, Reason::NotFound);
    scene.plan();
    assert_eq!(scene.said("web"), "NotFound: web@sha256:w went wrong", "that is not for want of a Secret");
    scene.fails("n1", WEB, Reason::Unauthorized);
    scene.plan();
    assert_eq!(scene.outcome("web").failures[0].reason, Reason::SecretMissing);
    assert_eq!(
        scene.said("web"),
        "SecretMissing: Secret default/gone is not there, or not of type kubernetes.io/dockerconfigjson or \
         kubernetes.io/dockercfg; create it, or remove it from pullSecrets (web@sha256:w went wrong)"
    );
    scene.secret("gone", "one");
    scene.plan();
    assert_eq!(scene.said("web"), "Unauthorized: web@sha256:w went wrong");
}

#[test]
fn a_message_names_a_secret_as_the_jobs_user_does() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    scene.job(with_secrets("web", &["a"]));
    scene.plan();
    scene.acknowledge = false;
    scene.report("n1", WEB, |report| {
        report.phase = stoker_core::Phase::Failed;
        report.reason = Some(Reason::Unauthorized);
        report.message = format!("the login {} cannot be used", login("one"));
    });
    scene.plan();
    assert_eq!(scene.said("web"), "Unauthorized: the login of Secret default/a cannot be used");
}

#[test]
fn a_refused_node_is_asked_again_once_for_each_change_of_its_secret() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.secret("a", "one");
    scene.job(with_secrets("web", &["a"]));
    scene.plan();
    scene.fails("n1", WEB, Reason::Unauthorized);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 failed: Unauthorized", "n2 pulls"]);
    scene.secret("a", "two");
    let pull = |node: &str| format!("{node} pulls {WEB} at sha256:w");
    assert_eq!(scene.plan(), [pull("n1"), pull("n2")], "the one that pulls may have been refused just now");
    scene.fails("n1", WEB, Reason::Unauthorized);
    for _ in 0..3 {
        assert_eq!(scene.plan(), NOTHING, "once is enough");
        scene.pass(60);
        scene.progresses("n2", WEB);
    }
    scene.secret("a", "three");
    assert_eq!(scene.plan(), [pull("n1"), pull("n2")]);
    scene.fails("n1", WEB, Reason::NotFound);
    scene.secret("a", "four");
    assert_eq!(scene.plan(), [pull("n2")], "that was not for want of a login");
}

#[test]
fn a_secret_that_is_made_or_named_later_gives_a_refused_node_another_try() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.job(with_secrets("web", &["late"]));
    assert_eq!(scene.plan(), NOTHING);
    scene.pass(5);
    scene.plan();
    scene.fails("n1", WEB, Reason::Unauthorized);
    scene.plan();
    assert_eq!(scene.states("web"), ["n1 failed: SecretMissing", "n2 pulls"]);
    scene.secret("late", "one");
    assert_eq!(scene.plan().len(), 2, "n1 again, n2 with the login");
    scene.fails("n1", WEB, Reason::Unauthorized);
    scene.secret("other", "two");
    assert_eq!(scene.plan(), NOTHING);
    scene.edit("web", |job| job.images[0].secrets.push(secret("other")));
    assert_eq!(scene.plan().len(), 2);
    assert_eq!(scene.ordered(), [login("one"), login("two")]);
}

#[test]
fn a_job_that_has_ended_stays_ended_whatever_becomes_of_its_secret() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    scene.job(with_secrets("web", &["a"]));
    scene.plan();
    scene.fails("n1", WEB, Reason::Unauthorized);
    scene.plan();
    assert_eq!(scene.outcome("web").stage, Stage::Failed);
    scene.secret("a", "two");
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 failed: Unauthorized"]);
}

#[test]
fn jobs_that_were_refused_together_are_asked_again_together_and_not_by_turns() {
    let mut scene = Scene::of(&["n1", "n2"]);
    for (name, content) in [("a", "one"), ("b", "two")] {
        scene.secret(name, content);
    }
    for (name, secret) in [("first", "a"), ("second", "b")] {
        scene.job(with_secrets(name, &[secret]));
    }
    scene.plan();
    scene.plan();
    assert_eq!(scene.ordered(), [login("one"), login("two")]);
    scene.fails("n1", WEB, Reason::Unauthorized);
    assert_eq!(scene.plan(), NOTHING);
    scene.secret("a", "three");
    scene.plan();
    assert_eq!(scene.ordered(), [login("three"), login("two")], "what was tried is not forgotten");
    for name in ["first", "second"] {
        assert_eq!(scene.states(name), ["n1 pulls", "n2 pulls"], "{name}: one answer serves both");
    }
    scene.fails("n1", WEB, Reason::Unauthorized);
    for _ in 0..4 {
        assert_eq!(scene.plan(), NOTHING, "neither has a login that was not tried");
    }
    for name in ["first", "second"] {
        assert_eq!(scene.states(name), ["n1 failed: Unauthorized", "n2 pulls"], "{name}");
    }
}

#[test]
fn a_node_that_was_refused_while_its_order_changed_is_not_forgotten() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.secret("a", "one");
    scene.job(with_secrets("web", &["a"]));
    scene.plan();
    let old = scene.order("n1", WEB).unwrap().clone();
    scene.secret("a", "two");
    scene.plan();
    scene.report("n1", WEB, |report| {
        // The agent had not seen the change when it gave up.
        report.asked = old.asked;
        report.phase = stoker_core::Phase::Failed;
        report.reason = Some(Reason::Unauthorized);
    });
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 pulls"], "the new ask wants a new answer");
}

#[test]
fn a_silent_node_gets_new_logins_when_it_is_heard_of() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    let mut web = with_secrets("web", &["a"]);
    web.completion = stoker_core::Completion::Continuous { resync: secs(86_400) };
    scene.job(web);
    scene.plan();
    scene.pass(601);
    scene.edit("web", |job| job.parallelism = 0);
    scene.secret("a", "two");
    assert_eq!(scene.plan(), NOTHING, "nobody listens, and nobody may be asked");
    assert_eq!(scene.states("web"), ["n1 failed: NodeSilent"]);
    scene.progresses("n1", WEB);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.ordered(), [login("two")]);
}

#[test]
fn what_was_tried_for_one_job_is_not_tried_again_because_another_asked() {
    let mut scene = Scene::of(&["n1", "n2"]);
    for (name, content) in [("a", "one"), ("b", "two")] {
        scene.secret(name, content);
    }
    for (name, secret) in [("first", "a"), ("second", "b")] {
        scene.job(with_secrets(name, &[secret]));
    }
    scene.plan();
    scene.fails("n1", WEB, Reason::Unauthorized);
    scene.plan();
    // The second job has no place left in which it could join the first.
    scene.edit("second", |job| job.parallelism = 1);
    scene.plan();
    scene.secret("a", "three");
    scene.plan();
    assert_eq!(scene.ordered(), [login("three"), login("two")]);
    scene.fails("n1", WEB, Reason::Unauthorized);
    assert_eq!(scene.plan(), NOTHING);
    for name in ["first", "second"] {
        assert_eq!(scene.states(name), ["n1 failed: Unauthorized", "n2 pulls"], "{name}");
    }
}

#[test]
fn an_agent_that_cannot_open_logins_is_no_witness_to_wait_for() {
    let mut scene = Scene::of_strangers(&["n1", "n2"]);
    scene.features("n2", &["look", "resolve"]);
    scene.secret("a", "one");
    let mut web = job("web", &["web:1"]);
    web.images[0].secrets = vec![secret("a")];
    scene.job(web);
    assert_eq!(scene.plan(), ["n1 asks for web:1"]);
    scene.resolves("n1", "web:1", "sha256:a");
    assert_eq!(scene.plan(), ["n1 pulls web:1 at sha256:a"]);
    assert_eq!(scene.states("web"), ["n1 pulls", "n2 waits: AgentTooOld"]);
}

/// A kind that cannot be listed when one of its jobs was just made: that job does not start, and its Secret is never read for it. Orders of
/// others still lose the login of a Secret that is deleted.
#[test]
fn a_frozen_job_that_never_started_keeps_no_login_of_others() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(with_secrets(OTHER, &["b"]));
    scene.world.apply(Event::Freeze(kind(1)));
    scene.secret("a", "one");
    scene.job(with_secrets("web", &["a"]));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.ordered(), [login("one")]);
    scene.secrets.clear();
    scene.plan();
    assert_eq!(scene.ordered(), []);
}

/// The object of a node has room for so many logins; a job learns which of its own have none.
#[test]
fn a_login_that_was_left_out_of_a_node_is_said() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.secret("a", "large");
    scene.job(with_secrets("web", &["a"]));
    scene.plan();
    assert!(scene.outcome("web").secrets.is_empty());
    let troubles = NodeTroubles { left_out: [login("large")].into(), ..NodeTroubles::default() };
    scene.world.set_troubles("n2", troubles);
    scene.plan();
    let said = &scene.outcome("web").secrets[0];
    assert_eq!((said.secret.clone(), said.reason), (secret("a"), Reason::SecretUnusable));
    assert!(said.message.starts_with("the object of node n2 has no room for a login of Secret default/a"), "{said:?}");
    scene.fails("n2", WEB, Reason::Unauthorized);
    scene.plan();
    let failed = &scene.outcome("web").failures[0];
    assert_eq!(failed.reason, Reason::SecretUnusable);
    scene.world.set_troubles("n2", NodeTroubles::default());
    scene.plan();
    assert!(scene.outcome("web").secrets.is_empty(), "there is room again");
}

#[test]
fn an_order_that_the_api_server_refuses_is_said() {
    let mut scene = Scene::of(&["n1", "n2", "n3"]);
    scene.job(job("web", &[WEB]));
    scene.job(job("db", &["db@sha256:d"]));
    scene.plan();
    let troubles = NodeTroubles { refused: [(key(WEB), "too many labels".into())].into(), ..NodeTroubles::default() };
    scene.world.set_troubles("n3", troubles.clone());
    scene.world.set_troubles("n2", troubles);
    scene.plan();
    let refused = &scene.outcome("web").refused;
    assert_eq!((refused.len(), refused[0].image.as_str(), refused[0].nodes), (1, WEB, 2));
    assert_eq!((refused[0].node.as_ref(), refused[0].why.as_str()), ("n2", "too many labels"));
    assert!(scene.outcome("db").refused.is_empty());
}

//! Secrets of jobs: copied by content, merged into orders, missed by name.

use stoker_core::model::{CopyName, SecretId};
use stoker_core::world::{CopyChange, State};
use stoker_core::{Event, Job, Reason, Stage};

use crate::build::{id, job, secs};
use crate::scene::{NOTHING, Scene};

const WEB: &str = "web@sha256:w";

fn secret(name: &str) -> SecretId {
    SecretId::new("default", name)
}

fn copy(content: &str) -> CopyName {
    CopyName::of("kubernetes.io/dockerconfigjson", content.as_bytes())
}

fn with_secrets(name: &str, secrets: &[&str]) -> Job {
    let mut job = job(name, &[WEB]);
    job.images[0].secrets = secrets.iter().map(|name| secret(name)).collect();
    job
}

impl Scene {
    fn secret(&mut self, name: &str, content: &str) {
        self.world.apply(Event::Secret(secret(name), copy(content)));
    }

    fn copied(&mut self, content: &str) {
        self.world.apply(Event::Copy(copy(content)));
    }

    /// What a plan does about copies; its orders are looked at by name.
    fn copies(&mut self) -> Vec<String> {
        let changes = self.world.plan(self.now).copies;
        let name = |name: &CopyName| {
            let contents = ["one", "two", "three"];
            contents.into_iter().find(|content| copy(content) == *name).unwrap_or("?")
        };
        let sentence = |change: &CopyChange| match change {
            CopyChange::Make { copy, from } => format!("copies {} of {from}", name(copy)),
            CopyChange::Remove(copy) => format!("removes {}", name(copy)),
        };
        changes.iter().map(sentence).collect()
    }

    fn ordered(&self) -> Vec<CopyName> {
        self.order("n1", WEB).unwrap().terms.secrets.clone()
    }

    fn said(&self, name: &str) -> String {
        match &self.world.nodes(&id(name), self.now)[0].state {
            State::Failed(reason, message) => format!("{reason}: {message}"),
            State::Waiting(waiting) => waiting.to_string(),
            other => format!("{other:?}"),
        }
    }
}

#[test]
fn a_node_is_asked_when_the_copies_are_there() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    scene.secret("unused", "three");
    scene.job(with_secrets("web", &["a"]));
    assert_eq!(scene.copies(), ["copies one of default/a"]);
    assert_eq!(scene.states("web"), ["n1 waits: SecretCopying"]);
    assert!(scene.said("web").contains("Secret default/a is being copied"), "{}", scene.said("web"));
    assert_eq!(scene.copies(), NOTHING, "once is enough");
    scene.copied("one");
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.ordered(), [copy("one")]);
}

#[test]
fn an_order_has_the_secrets_of_all_its_jobs_in_their_order_and_equal_contents_once() {
    let mut scene = Scene::of(&["n1"]);
    for (name, content) in [("z", "one"), ("a", "two"), ("same", "one"), ("b", "three")] {
        scene.secret(name, content);
        scene.copied(content);
    }
    scene.job(with_secrets("first", &["z", "a", "same"]));
    scene.plan();
    assert_eq!(scene.ordered(), [copy("one"), copy("two")]);
    scene.job(with_secrets("second", &["a", "b"]));
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"], "a job that joins brings its Secrets");
    assert_eq!(scene.ordered(), [copy("one"), copy("two"), copy("three")]);
    scene.delete("first");
    assert_eq!(scene.plan(), ["n1 keeps web@sha256:w"]);
    assert_eq!(scene.ordered(), [copy("two"), copy("three")], "and takes them along");
    scene.edit("second", |job| job.images[0].secrets.clear());
    scene.plan();
    assert_eq!(scene.ordered(), []);
}

#[test]
fn a_changed_secret_reaches_the_order_when_its_copy_is_there_and_the_old_copy_goes_later() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    scene.copied("one");
    scene.job(with_secrets("web", &["a"]));
    scene.plan();
    scene.secret("a", "two");
    assert_eq!(scene.copies(), ["copies two of default/a"]);
    assert_eq!(scene.ordered(), [copy("one")], "what it has until the new one is there");
    scene.copied("two");
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"], "a new ask: it may have been refused just now");
    assert_eq!(scene.ordered(), [copy("two")]);
    scene.pass(9);
    assert_eq!(scene.copies(), NOTHING);
    scene.pass(1);
    assert_eq!(scene.copies(), ["removes one"]);
    assert_eq!(scene.copies(), NOTHING, "once is enough");
    scene.world.apply(Event::CopyGone(copy("one")));
    assert_eq!(scene.copies(), NOTHING);
}

#[test]
fn copies_go_when_no_job_needs_them_and_come_back_when_somebody_removes_them() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    scene.copied("one");
    scene.copied("two"); // left by an earlier life of the controller
    scene.job(with_secrets("web", &["a"]));
    scene.plan();
    scene.world.apply(Event::CopyGone(copy("one")));
    assert_eq!(scene.copies(), ["copies one of default/a"]);
    scene.copied("one");
    scene.pass(10);
    assert_eq!(scene.copies(), ["removes two"]);
    scene.succeeds("n1", WEB);
    scene.plan();
    assert_eq!(scene.outcome("web").stage, Stage::Succeeded);
    scene.plan();
    scene.pass(10);
    assert_eq!(scene.copies(), ["removes one"], "an ended job needs none");
}

#[test]
fn a_copy_is_wanted_again_while_it_is_being_removed() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    scene.copied("one");
    assert_eq!(scene.copies(), NOTHING);
    scene.pass(10);
    assert_eq!(scene.copies(), ["removes one"]);
    scene.job(with_secrets("web", &["a"]));
    assert_eq!(scene.plan(), NOTHING, "it is there, and about to go");
    assert_eq!(scene.states("web"), ["n1 waits: SecretCopying"]);
    scene.world.apply(Event::CopyGone(copy("one")));
    assert_eq!(scene.copies(), ["copies one of default/a"]);
    scene.copied("one");
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
}

#[test]
fn a_missing_secret_stops_nothing_and_is_named_where_the_registry_wants_one() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    scene.copied("one");
    scene.job(with_secrets("web", &["gone", "a"]));
    assert_eq!(scene.plan(), NOTHING, "it may come");
    assert_eq!(scene.states("web"), ["n1 waits: SecretMissing"]);
    assert_eq!(scene.outcome("web").waiting_for, [(Reason::SecretMissing, 1)].into());
    assert!(scene.said("web").contains("Secret default/gone is not there; the pull is tried without"));
    assert_eq!(scene.world.plan(scene.now).wake, Some(scene.now + secs(5)));
    scene.pass(5);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"], "tried with the others");
    assert_eq!(scene.ordered(), [copy("one")]);
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
fn a_secret_that_is_seen_after_its_job_is_used() {
    let mut scene = Scene::of(&["n1"]);
    scene.job(with_secrets("web", &["a"]));
    assert_eq!(scene.plan(), NOTHING);
    scene.secret("a", "one");
    assert_eq!(scene.copies(), ["copies one of default/a"]);
    scene.pass(60);
    assert_eq!(scene.plan(), NOTHING, "a copy is waited for as long as it takes");
    scene.copied("one");
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
}

#[test]
fn a_message_names_a_secret_as_the_jobs_user_does() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    scene.copied("one");
    scene.job(with_secrets("web", &["a"]));
    scene.plan();
    scene.acknowledge = false;
    scene.report("n1", WEB, |report| {
        report.phase = stoker_core::Phase::Failed;
        report.reason = Some(Reason::Unauthorized);
        report.message = format!("Secret {} cannot be used", copy("one"));
    });
    scene.plan();
    assert_eq!(scene.said("web"), "Unauthorized: Secret default/a cannot be used");
}

#[test]
fn a_refused_node_is_asked_again_once_for_each_change_of_its_secret() {
    let mut scene = Scene::of(&["n1", "n2"]);
    scene.secret("a", "one");
    scene.copied("one");
    scene.job(with_secrets("web", &["a"]));
    scene.plan();
    scene.fails("n1", WEB, Reason::Unauthorized);
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 failed: Unauthorized", "n2 pulls"]);
    scene.secret("a", "two");
    assert_eq!(scene.copies(), ["copies two of default/a"]);
    assert_eq!(scene.states("web"), ["n1 waits: SecretCopying", "n2 pulls"], "it has hope again");
    scene.copied("two");
    let pull = |node: &str| format!("{node} pulls {WEB} at sha256:w");
    assert_eq!(scene.plan(), [pull("n1"), pull("n2")], "the one that pulls may have been refused just now");
    scene.fails("n1", WEB, Reason::Unauthorized);
    for _ in 0..3 {
        assert_eq!(scene.plan(), NOTHING, "once is enough");
        scene.pass(60);
        scene.progresses("n2", WEB);
    }
    scene.secret("a", "three");
    scene.copied("three");
    assert_eq!(scene.plan(), [pull("n1"), pull("n2")]);
    scene.fails("n1", WEB, Reason::NotFound);
    scene.secret("a", "four");
    scene.copied("four");
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
    scene.copied("one");
    assert_eq!(scene.plan().len(), 2, "n1 again, n2 with the login");
    scene.fails("n1", WEB, Reason::Unauthorized);
    scene.secret("other", "two");
    scene.copied("two");
    assert_eq!(scene.plan(), NOTHING);
    scene.edit("web", |job| job.images[0].secrets.push(secret("other")));
    assert_eq!(scene.plan().len(), 2);
    assert_eq!(scene.ordered(), [copy("one"), copy("two")]);
}

#[test]
fn a_job_that_has_ended_stays_ended_whatever_becomes_of_its_secret() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    scene.copied("one");
    scene.job(with_secrets("web", &["a"]));
    scene.plan();
    scene.fails("n1", WEB, Reason::Unauthorized);
    scene.plan();
    assert_eq!(scene.outcome("web").stage, Stage::Failed);
    scene.secret("a", "two");
    scene.copied("two");
    assert_eq!(scene.plan(), NOTHING);
    assert_eq!(scene.states("web"), ["n1 failed: Unauthorized"]);
}

#[test]
fn jobs_that_were_refused_together_are_asked_again_together_and_not_by_turns() {
    let mut scene = Scene::of(&["n1", "n2"]);
    for (name, content) in [("a", "one"), ("b", "two")] {
        scene.secret(name, content);
        scene.copied(content);
    }
    for (name, secret) in [("first", "a"), ("second", "b")] {
        scene.job(with_secrets(name, &[secret]));
    }
    scene.plan();
    scene.plan();
    assert_eq!(scene.ordered(), [copy("one"), copy("two")]);
    scene.fails("n1", WEB, Reason::Unauthorized);
    assert_eq!(scene.plan(), NOTHING);
    scene.secret("a", "three");
    scene.copied("three");
    scene.plan();
    assert_eq!(scene.ordered(), [copy("three"), copy("two")], "what was tried is not forgotten");
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
    scene.copied("one");
    scene.job(with_secrets("web", &["a"]));
    scene.plan();
    let old = scene.order("n1", WEB).unwrap().clone();
    scene.secret("a", "two");
    scene.copied("two");
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
fn a_stranger_under_the_name_of_a_copy_is_named_until_it_is_gone() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    scene.job(with_secrets("web", &["a"]));
    let stranger = SecretId::new("stoker-system", copy("one").as_str());
    scene.world.apply(Event::NameTaken(stranger.clone()));
    scene.world.apply(Event::NameTaken(SecretId::new("stoker-system", copy("two").as_str())));
    assert_eq!(scene.copies(), ["copies one of default/a"]);
    assert_eq!(scene.states("web"), ["n1 waits: SecretCopying"]);
    let said = scene.said("web");
    assert!(
        said.contains(&format!("Secret {stranger} has the name of the copy")) && said.contains("delete it"),
        "{said}"
    );
    scene.world.apply(Event::NameFree(stranger));
    assert!(scene.said("web").contains("is being copied"), "{}", scene.said("web"));
    scene.copied("one");
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
}

#[test]
fn a_silent_node_gets_new_logins_when_it_is_heard_of() {
    let mut scene = Scene::of(&["n1"]);
    scene.secret("a", "one");
    scene.copied("one");
    let mut web = with_secrets("web", &["a"]);
    web.completion = stoker_core::Completion::Continuous { resync: secs(86_400) };
    scene.job(web);
    scene.plan();
    scene.pass(601);
    scene.edit("web", |job| job.parallelism = 0);
    scene.secret("a", "two");
    scene.copied("two");
    assert_eq!(scene.plan(), NOTHING, "nobody listens, and nobody may be asked");
    assert_eq!(scene.states("web"), ["n1 failed: NodeSilent"]);
    scene.progresses("n1", WEB);
    assert_eq!(scene.plan(), ["n1 pulls web@sha256:w at sha256:w"]);
    assert_eq!(scene.ordered(), [copy("two")]);
}

#[test]
fn what_was_tried_for_one_job_is_not_tried_again_because_another_asked() {
    let mut scene = Scene::of(&["n1", "n2"]);
    for (name, content) in [("a", "one"), ("b", "two")] {
        scene.secret(name, content);
        scene.copied(content);
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
    scene.copied("three");
    scene.plan();
    assert_eq!(scene.ordered(), [copy("three"), copy("two")]);
    scene.fails("n1", WEB, Reason::Unauthorized);
    assert_eq!(scene.plan(), NOTHING);
    for name in ["first", "second"] {
        assert_eq!(scene.states(name), ["n1 failed: Unauthorized", "n2 pulls"], "{name}");
    }
}

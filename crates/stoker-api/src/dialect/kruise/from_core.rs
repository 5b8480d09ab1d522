//! From a job's outcome to the status of an ImagePullJob, in upstream's words.

use jiff::Timestamp;
use kube_core::dynamic::DynamicObject;
use serde_json::json;
use stoker_core::World;
use stoker_core::rollup::{Outcome, Stage};

use super::versions::version_of;
use super::{ImagePullJob, ImagePullJobStatus, predownload};
use crate::dialect::{project_job, project_unreadable};
use crate::native;
use crate::view::{Projected, Reader, Root};
use crate::write::{Target, Write, status_write};

/// Upstream's controller puts it on ImagePullJobs, and one that is taken over would never go without it.
const PROTECTION: &str = "apps.kruise.io/deletion-protection";

/// What an ImagePullJob asks to be written.
pub(super) fn project(root: &Root, reader: &mut Reader<'_>, world: &World, now: Timestamp) -> Projected {
    let Some(object) = reader.own(root) else { return Projected::default() };
    if object.metadata.deletion_timestamp.is_some() {
        return unprotected(object).into_iter().collect::<Vec<_>>().into();
    }
    match (predownload::left_over(object, reader), reader.problem()) {
        (Some(delete), _) => vec![delete].into(),
        (None, Some(problem)) => {
            project_unreadable((root.kind, object), problem, now, |before, message| unreadable(object, before, message))
        }
        (None, None) => project_job(root, reader, world, now, status_change),
    }
}

/// The change of the status of an ImagePullJob whose spec cannot be read. One that has ended stays as it is.
fn unreadable(object: &DynamicObject, before: ImagePullJobStatus, message: String) -> Option<Write> {
    let status = ImagePullJobStatus { message, active: 0, ..before };
    let open = status.completion_time.is_none();
    status_write(version_of::<ImagePullJob>(object), object, &status).filter(|_| open)
}

/// An object that is being deleted without upstream's finalizer, as long as nobody else has changed it: finalizers are one list.
fn unprotected(object: &DynamicObject) -> Option<Write> {
    let all = object.metadata.finalizers.as_deref().unwrap_or_default();
    let others: Vec<&String> = all.iter().filter(|finalizer| *finalizer != PROTECTION).collect();
    let metadata = json!({
        "uid": object.metadata.uid, "resourceVersion": object.metadata.resource_version, "finalizers": others,
    });
    let target = Target::of(version_of::<ImagePullJob>(object), object);
    (others.len() < all.len()).then(|| Write::Guarded(target, json!({ "metadata": metadata })))
}

/// The change of an ImagePullJob's status, if there is one.
pub(super) fn status_change(object: &DynamicObject, outcome: &Outcome, _now: Timestamp) -> Option<Write> {
    let mut failed_nodes: Vec<String> = outcome.failed_nodes.iter().map(ToString::to_string).collect();
    failed_nodes.sort_unstable();
    let count = |nodes: u32| i32::try_from(nodes).unwrap_or(i32::MAX);
    let status = ImagePullJobStatus {
        start_time: outcome.started.map(whole_seconds),
        completion_time: outcome.completed.map(whole_seconds),
        desired: count(outcome.desired),
        active: count(outcome.pulling),
        succeeded: count(outcome.succeeded),
        failed: count(outcome.failed),
        message: message(outcome),
        failed_nodes,
    };
    status_write(version_of::<ImagePullJob>(object), object, &status)
}

/// Upstream's times have no fractions; rounded down, so that nothing asked at the start seems older than it.
pub(super) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn message(outcome: &Outcome) -> String {
    let done = outcome.succeeded + outcome.failed;
    if let Some(unseen) = native::from_core::unseen(outcome).filter(|_| outcome.desired == 0) {
        return unseen;
    }
    match outcome.stage {
        Stage::Succeeded | Stage::Failed if outcome.overdue => "job exceeds activeDeadlineSeconds".into(),
        Stage::Succeeded | Stage::Failed => "job has completed".into(),
        _ if outcome.desired == 0 => "job is running, no progress".into(),
        _ => {
            let progress = 100.0 * f64::from(done) / f64::from(outcome.desired);
            let running = format!("job is running, progress {progress:.1}%");
            // Upstream has no word for it.
            let not_allowed = native::from_core::not_allowed(outcome);
            [running]
                .into_iter()
                .chain(not_allowed)
                .chain(native::from_core::refused(outcome))
                .collect::<Vec<_>>()
                .join("; ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use stoker_core::model::{JobId, NodeName, Order, Phase, Report};
    use stoker_core::rollup::RefusedOrder;
    use stoker_core::{Event, Node, World};

    fn object(spec: Value, status: Value) -> DynamicObject {
        let mut object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob",
            "metadata": { "name": "j", "namespace": "shop", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": spec,
        }))
        .unwrap();
        object.data["spec"]["image"] = json!("nginx");
        object.data["status"] = status;
        object
    }

    /// How a job without nodes stands at first: all else is changed by the tests.
    fn outcome() -> Outcome {
        let mut world = World::new();
        let object = object(json!({ "completionPolicy": { "type": "Never" } }), Value::Null);
        world.apply(Event::Job(Box::new(super::super::to_core::job_on(&object, Default::default()).unwrap())));
        world.plan(Timestamp::UNIX_EPOCH).outcomes.remove(0)
    }

    #[test]
    fn messages_are_upstreams() {
        let cases = [
            (Stage::Running, (0, 0, 0), false, "job is running, no progress"),
            (Stage::Running, (3, 0, 0), false, "job is running, progress 0.0%"),
            (Stage::Running, (5, 1, 1), false, "job is running, progress 40.0%"),
            (Stage::Running, (3, 1, 0), false, "job is running, progress 33.3%"),
            (Stage::Synced, (2, 2, 0), false, "job is running, progress 100.0%"),
            (Stage::Succeeded, (2, 2, 0), false, "job has completed"),
            (Stage::Failed, (2, 1, 1), false, "job has completed"),
            (Stage::Failed, (2, 1, 1), true, "job exceeds activeDeadlineSeconds"),
        ];
        for (stage, (desired, succeeded, failed), overdue, wanted) in cases {
            let outcome = Outcome { stage, desired, succeeded, failed, overdue, ..outcome() };
            assert_eq!(message(&outcome), wanted, "{stage:?} {desired} {succeeded} {failed}");
        }
        let refused = RefusedOrder { image: "web:1".into(), node: "n1".into(), nodes: 3, why: "too many".into() };
        let outcome = Outcome { stage: Stage::Running, desired: 3, refused: vec![refused], ..outcome() };
        let wanted = "job is running, progress 0.0%; the API server refuses the order of web:1 for node n1 and 2 other nodes, and it is \
                      tried again: too many";
        assert_eq!(message(&outcome), wanted);
    }

    #[test]
    fn counts_of_zero_are_written_and_failed_nodes_are_in_order() {
        let nodes = ["n2", "n10", "n1"].map(Into::into).to_vec();
        let outcome = Outcome { desired: 3, failed: 3, failed_nodes: nodes, ..outcome() };
        let Some(Write::Status(target, patch)) =
            status_change(&object(json!({}), Value::Null), &outcome, Timestamp::UNIX_EPOCH)
        else {
            panic!("no status")
        };
        assert_eq!(target.resource.version, "v1beta1");
        assert_eq!(patch["status"]["failedNodes"], json!(["n1", "n10", "n2"]));
        assert_eq!((&patch["status"]["active"], &patch["status"]["succeeded"]), (&json!(0), &json!(0)));
    }

    #[test]
    fn of_a_job_that_has_ended_only_the_time_to_live_can_be_edited() {
        let ended =
            json!({ "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:10:00Z", "desired": 0 });
        let now: Timestamp = "2026-01-01T00:20:00Z".parse().unwrap();
        let mut world = World::new();
        let mut expired = |ttl: Value| -> Vec<JobId> {
            let policy = json!({ "ttlSecondsAfterFinished": ttl });
            let object =
                object(json!({ "completionPolicy": policy, "selector": { "names": ["other"] } }), ended.clone());
            world.apply(Event::Job(Box::new(super::super::to_core::job_on(&object, Default::default()).unwrap())));
            let plan = world.plan(now);
            assert_eq!(plan.orders, [], "nothing is pulled again");
            plan.expired
        };
        assert_eq!(expired(Value::Null), []);
        assert_eq!(expired(json!(3600)), []);
        assert_eq!(expired(json!(600)).len(), 1);
    }

    #[test]
    fn upstreams_finalizer_goes_with_the_object_and_those_of_others_stay() {
        let protected = |others: &[&str], going: bool| {
            let mut object = object(json!({}), Value::Null);
            let all = others.iter().copied().chain([PROTECTION]).map(str::to_owned);
            object.metadata.finalizers = Some(all.collect());
            object.metadata.resource_version = Some("7".into());
            let going = going.then(|| serde_json::from_value(json!("2026-01-01T00:01:00Z")).unwrap());
            object.metadata.deletion_timestamp = going;
            let (mut view, mut world) = (crate::View::without_signs(), World::new());
            let query = crate::view::Query::all(&super::super::IMAGE_PULL_JOBS.kind);
            view.see(&query, object);
            view.hear(&query, crate::view::Heard::Listed);
            view.settle(&mut world);
            let root = Root { kind: &super::super::IMAGE_PULL_JOBS, namespace: "shop".into(), name: "j".into() };
            view.project(&root, &world, "2026-01-01T00:02:00Z".parse().unwrap())
        };
        for others in [&[][..], &["example.com/mine"], &["foregroundDeletion", "example.com/mine"]] {
            let writes = protected(others, true);
            let [Write::Guarded(target, patch)] = &writes[..] else { panic!("{writes:?}") };
            assert_eq!((target.namespace.as_deref(), target.name.as_str()), (Some("shop"), "j"));
            let metadata = json!({ "uid": "u", "resourceVersion": "7", "finalizers": others });
            assert_eq!(*patch, json!({ "metadata": metadata }));
            let guarded = protected(others, false).iter().any(|write| matches!(write, Write::Guarded(..)));
            assert!(!guarded, "an object that is not being deleted keeps its finalizers");
        }
        let mut unprotected_object = object(json!({}), Value::Null);
        unprotected_object.metadata.finalizers = Some(vec!["example.com/mine".into()]);
        assert_eq!(unprotected(&unprotected_object), None, "finalizers of others alone are no concern of ours");
    }

    /// All orders of a node that are planned, as pulls that have begun or are over.
    fn reports(world: &World, node: &str, phase: Phase, now: Timestamp) -> Event {
        let report = |order: Order| Report {
            asked: order.asked,
            jobs: order.jobs,
            phase,
            digest: None,
            pin: None,
            bytes: Default::default(),
            from: None,
            bad: Vec::new(),
            attempt: 1,
            reason: None,
            message: String::new(),
            present: false,
            stalled: None,
            started: now,
            finished: (phase != Phase::Pulling).then_some(now),
            updated: now,
        };
        let orders = world.orders(node).unwrap();
        Event::Reports(node.into(), orders.into_iter().map(|(key, order)| (key, report(order))).collect())
    }

    #[test]
    fn a_node_that_is_silent_for_ten_minutes_fails_and_succeeds_after_all_when_it_reports() {
        let mut world = World::new();
        for name in ["n1", "n2", "n3"] {
            let name: NodeName = name.into();
            let node = Node {
                name: name.clone(),
                labels: Default::default(),
                ready: true,
                ready_changed: None,
                cordoned: false,
                foreign: false,
            };
            world.apply(Event::Node(node));
            world.apply(Event::Orders(name, Default::default()));
        }
        let mut object = object(json!({ "parallelism": 3 }), Value::Null);
        object.data["spec"]["image"] = json!(format!("nginx@sha256:{}", "a".repeat(64)));
        let job = super::super::to_core::job_on(&object, Default::default()).unwrap();
        let id = job.id.clone();
        let minute = |minute: i64| job.created + jiff::SignedDuration::from_mins(minute);
        world.apply(Event::Job(Box::new(job.clone())));
        world.plan(minute(0));
        world.apply(reports(&world, "n1", Phase::Succeeded, minute(1)));
        world.plan(minute(1));
        // n3 still pulls, and says so; of n2 nothing was heard.
        world.apply(reports(&world, "n3", Phase::Pulling, minute(9)));
        world.heard("n3", minute(9));
        let status = |world: &mut World, now: Timestamp| {
            world.plan(now);
            let outcome = world.outcome(&id).unwrap();
            let Some(Write::Status(_, mut patch)) = status_change(&object, &outcome, now) else { panic!("no status") };
            (patch["status"].take(), outcome.failures)
        };
        let (before, _) = status(&mut world, minute(9));
        assert_eq!((&before["active"], &before["failed"]), (&json!(2), &json!(0)));
        let (silent, failures) = status(&mut world, minute(10));
        assert_eq!(
            (&silent["failedNodes"], &silent["message"]),
            (&json!(["n2"]), &json!("job is running, progress 66.7%"))
        );
        assert_eq!((&silent["active"], &silent["completionTime"]), (&json!(1), &Value::Null));
        assert_eq!(failures.len(), 1);
        assert_eq!(failures[0].message, "the node has not responded for a long time");
        world.apply(reports(&world, "n2", Phase::Succeeded, minute(12)));
        world.heard("n2", minute(12));
        world.heard("n3", minute(12));
        let (back, failures) = status(&mut world, minute(12));
        assert_eq!((&back["succeeded"], &back["failed"], failures.len()), (&json!(2), &json!(0), 0));
        world.apply(reports(&world, "n3", Phase::Succeeded, minute(13)));
        let (whole, _) = status(&mut world, minute(13));
        assert_eq!((&whole["succeeded"], &whole["message"]), (&json!(3), &json!("job has completed")));
    }
}

use super::*;
use crate::metrics::Metrics;
use crate::testing::{at, order};

use stoker_api::native::AgentInfo;
use stoker_core::model::Bytes;
use stoker_core::step::{begin, succeed};
use tokio::sync::oneshot;

fn key() -> Key {
    Key::of("r/i:1")
}

fn reporting() -> Reporting {
    Reporting::new("n".into(), Arc::new(Metrics::new().join()))
}

fn agent() -> AgentInfo {
    AgentInfo {
        version: "1".into(),
        runtime: "layout".into(),
        chosen: None,
        platform: "linux/amd64".into(),
        features: Vec::new(),
        key: None,
        peer: None,
    }
}

/// One that has read its object, of which the API server knows what agent it is.
fn introduced() -> Reporting {
    let mut reporting = reporting();
    reporting.adopt(BTreeMap::new(), &BTreeMap::new());
    let said = Saying { agent: Some(agent()), ..Saying::default() };
    reporting.written(WriteOutcome { said, problem: None }, at(0));
    reporting
}

fn done() -> BTreeMap<Key, Task> {
    let begun = begin(&order(), 1, None, at(0));
    BTreeMap::from([(key(), succeed(&order(), &begun, "sha256:a".into(), Bytes::default(), at(1)))])
}

fn orders() -> BTreeMap<Key, Order> {
    BTreeMap::from([(key(), order())])
}

fn failed() -> WriteOutcome {
    WriteOutcome { problem: Some("away".into()), ..WriteOutcome::default() }
}

#[test]
fn nothing_is_said_before_the_object_was_read_and_the_first_write_introduces_the_agent() {
    let (mut reporting, none, orders) = (reporting(), BTreeMap::new(), BTreeMap::new());
    assert_eq!(reporting.next(&done(), &orders, at(1)), None);
    assert_eq!(reporting.due(&none, &orders, at(1)), None);
    reporting.adopt(BTreeMap::new(), &orders);
    assert_eq!(reporting.due(&none, &orders, at(1)), Some(at(1)), "also where there is nothing else to say");
    assert!(reporting.must_introduce(None));
    reporting.written(WriteOutcome { said: reporting.next(&none, &orders, at(1)).unwrap(), problem: None }, at(1));
    assert!(reporting.must_introduce(None), "that write said nothing of the agent");
    let reporting = introduced();
    assert!(!reporting.must_introduce(None));
    assert_eq!(reporting.due(&none, &orders, at(1)), None);
}

#[test]
fn writes_that_fail_are_tried_again_with_growing_pauses() {
    let (mut reporting, tasks, orders) = (introduced(), done(), orders());
    assert_eq!(reporting.due(&tasks, &orders, at(1)), Some(at(1)));
    let mut pauses = Vec::new();
    for _ in 0..10 {
        reporting.written(failed(), at(10));
        pauses.push(reporting.due(&tasks, &orders, at(10)).unwrap().duration_since(at(10)).as_millis());
        assert_eq!(reporting.next(&tasks, &orders, at(10)), None);
        assert!(reporting.next(&tasks, &orders, at(40)).is_some());
    }
    assert_eq!(pauses, [200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000]);
    reporting.written(WriteOutcome { said: reporting.next(&tasks, &orders, at(40)).unwrap(), problem: None }, at(40));
    assert_eq!(reporting.due(&tasks, &orders, at(40)), None, "all is said");
    reporting.written(failed(), at(50));
    assert_eq!(reporting.pause, FIRST_PAUSE, "the pauses begin anew");
}

/// What was acknowledged of a write that failed in part is not said again.
#[test]
fn what_was_taken_of_a_write_is_not_said_again() {
    let (mut reporting, mut tasks) = (introduced(), done());
    let said = reporting.next(&tasks, &orders(), at(1)).unwrap();
    let other = Key::of("r/j:1");
    tasks.insert(other, tasks[&key()].clone());
    reporting.written(WriteOutcome { said, problem: Some("away".into()) }, at(1));
    let next = reporting.next(&tasks, &orders(), at(2)).unwrap();
    assert_eq!(next.reports.keys().collect::<Vec<_>>(), [&other]);
}

#[tokio::test]
async fn one_write_is_under_way_at_a_time_and_one_that_breaks_off_has_failed() {
    let (mut reporting, tasks, orders) = (introduced(), done(), orders());
    let (answer, answered) = oneshot::channel::<WriteOutcome>();
    let saying = reporting.next(&tasks, &orders, at(1)).unwrap();
    reporting.begin(async { answered.await.unwrap() });
    assert_eq!((reporting.next(&tasks, &orders, at(9)), reporting.due(&tasks, &orders, at(9))), (None, None));
    answer.send(WriteOutcome { said: saying, problem: None }).unwrap();
    let told = reporting.ended().await.unwrap();
    reporting.written(told, at(9));
    assert_eq!(reporting.due(&tasks, &orders, at(9)), None);
    assert!(reporting.ended().await.is_none(), "none is under way");

    let (lost, answered) = oneshot::channel::<WriteOutcome>();
    reporting.begin(async { answered.await.unwrap() });
    drop(lost);
    assert!(reporting.ended().await.unwrap().problem.is_some());
}

#[tokio::test]
async fn an_object_that_is_gone_or_listed_anew_is_read_again() {
    let (mut reporting, tasks, orders) = (introduced(), done(), orders());
    reporting.written(WriteOutcome { said: reporting.next(&tasks, &orders, at(1)).unwrap(), problem: None }, at(1));
    for (what, knows_agent) in [("restored", false), ("listed", true)] {
        let mut listed = introduced();
        listed.relist(knows_agent);
        assert_eq!((listed.has_adopted(), listed.must_introduce(None)), (false, !knows_agent), "{what}");
        listed.adopt(BTreeMap::new(), &orders);
        assert!(listed.next(&tasks, &orders, at(2)).unwrap().reports.contains_key(&key()), "{what}: it is said again");
    }
    reporting.begin(std::future::pending());
    reporting.forget();
    assert!(!reporting.has_adopted() && reporting.must_introduce(None));
    assert!(reporting.ended().await.is_none(), "its write is for nobody");
}

#[test]
fn ends_stay_for_people_until_there_is_an_order_again() {
    let report = done()[&key()].report.clone();
    let nothing = BTreeMap::new();
    let gone = |reporting: &Reporting| reporting.said.saying(&nothing, &reporting.kept).reports;
    let mut reporting = introduced();
    reporting.adopt(BTreeMap::from([(key(), report.clone())]), &BTreeMap::new());
    assert!(gone(&reporting).is_empty(), "found in the object");
    reporting.release([key()].iter());
    assert_eq!(gone(&reporting), BTreeMap::from([(key(), None)]));
    reporting.keep(key(), &report);
    assert!(gone(&reporting).is_empty(), "its order was taken back");
}

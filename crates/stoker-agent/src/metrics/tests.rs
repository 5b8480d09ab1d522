use super::*;
use crate::testing::{at, order};

use prometheus_client::encoding::text::encode;
use stoker_core::model::{Ask, Bytes};
use stoker_core::step::{begin, succeed};

/// The samples with a value other than zero.
fn samples(metrics: &Metrics) -> Vec<String> {
    let (mut registry, mut text) = (Registry::default(), String::new());
    metrics.register(&mut registry);
    encode(&mut text, &registry).unwrap();
    let samples = text.lines().filter(|line| !line.starts_with('#') && !line.ends_with(" 0"));
    let mut samples: Vec<String> = samples.map(|line| line.trim_start_matches("stoker_agent_").to_string()).collect();
    samples.sort();
    samples
}

fn failed(reason: Reason) -> Result<Success, Failure> {
    Err(Failure { reason, message: "r/i:1 is not there".into(), retryable: true, pause: None })
}

#[test]
fn counters_stay_and_levels_go_with_their_agent() {
    let metrics = Metrics::new();
    assert_eq!(samples(&metrics), Vec::<String>::new());
    let (one, two) = (metrics.join(), metrics.join());
    one.attempt(&Ok(Success::from("sha256:a".to_string())));
    two.attempt(&failed(Reason::NotFound));
    two.attempt(&failed(Reason::NotFound));
    two.attempt(&failed(Reason::Unresolved));
    one.received(Received { registry: 70, mirror: 0, peer: 5 });
    two.received(Received { registry: 10, mirror: 20, peer: 0 });
    metrics.sent().inc_by(5);
    one.lied(0);
    two.lied(2);
    one.wrote(false);
    two.wrote(true);
    one.disk(Some(5_000));
    two.disk(Some(4_000));
    one.state(|state| state.phases = [1, 2, 0, 0]);
    two.state(|state| state.phases = [1, 0, 3, 0]);
    let counters =
        [r#"attempts_total{result="failed",reason="NotFound"} 2"#, r#"attempts_total{result="succeeded",reason=""} 1"#];
    let levels = [
        "disk_free_bytes 4000",
        r#"orders{phase="pulling"} 2"#,
        r#"orders{phase="succeeded"} 3"#,
        r#"orders{phase="waiting"} 2"#,
    ];
    let rest = [
        "peer_lies_total 2",
        r#"received_bytes_total{source="mirror"} 20"#,
        r#"received_bytes_total{source="peer"} 5"#,
        r#"received_bytes_total{source="registry"} 80"#,
        "sent_bytes_total 5",
        r#"status_writes_total{result="failed"} 1"#,
        r#"status_writes_total{result="succeeded"} 1"#,
    ];
    let all: Vec<&str> = counters.into_iter().chain(levels).chain(rest).collect();
    assert_eq!(samples(&metrics), all);
    drop((one, two));
    let counters: Vec<&str> = counters.into_iter().chain(rest).collect();
    assert_eq!(samples(&metrics), counters);
}

#[test]
fn an_order_that_was_asked_anew_waits_and_questions_are_no_pulls() {
    let order = |asked| Order { asked, ..order() };
    let (a, b, c) = (Key::of("r/a:1"), Key::of("r/b:1"), Key::of("r/c:1"));
    let orders = BTreeMap::from([(a, order(at(1))), (b, order(at(1))), (c, order(at(5)))]);
    let begun = begin(&order(at(1)), 1, None, at(2));
    let done = succeed(&order(at(1)), &begun, "sha256:a".into(), Bytes::default(), at(3));
    assert_eq!(phases(&orders, &BTreeMap::new()), [3, 0, 0, 0]);
    let tasks = BTreeMap::from([(a, begun), (b, done.clone()), (c, done)]);
    assert_eq!(phases(&orders, &tasks), [1, 1, 1, 0]);
    let question = Order { ask: Ask::Look, ..order(at(1)) };
    assert_eq!(phases(&BTreeMap::from([(a, question)]), &BTreeMap::new()), [0, 0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn one_that_hangs_or_is_not_registered_speaks_for_all() {
    let metrics = Metrics::new();
    assert_eq!(metrics.ready(), Err("no agent has started yet".into()));
    let (one, two) = (metrics.join(), metrics.join());
    let turn = |share: &AgentCounts| share.turn(true, &BTreeMap::new(), &BTreeMap::new());
    turn(&one);
    let sentence = "1 of 2 agents are registered and have seen their NodePreheat";
    assert_eq!(metrics.ready(), Err(sentence.into()));
    turn(&two);
    assert_eq!(metrics.ready(), Ok(()));
    tokio::time::advance(HEALTHY_FOR).await;
    assert_eq!(metrics.healthy(), Ok(()));
    turn(&one);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(metrics.healthy(), Err("an agent's loop made no turn for 61 s".into()));
    drop(two);
    assert_eq!(metrics.healthy(), Ok(()));
}

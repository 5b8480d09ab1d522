use super::*;
use prometheus_client::encoding::text::encode;
use stoker_core::Bytes;

fn outcome(name: &str, generation: i64, stage: Stage, [waiting, pulling, succeeded, failed]: [u32; 4]) -> Outcome {
    let waits = if stage == Stage::Suspended { Reason::Suspended } else { Reason::Parallelism };
    Outcome {
        job: JobId::new(("stoker.dev", "Preheat"), "default", name),
        generation,
        stage,
        desired: waiting + pulling + succeeded + failed,
        waiting,
        pulling,
        succeeded,
        failed,
        bytes: Bytes::default(),
        digests: BTreeMap::new(),
        alone: Vec::new(),
        failures: Vec::new(),
        failed_nodes: Vec::new(),
        waiting_for: BTreeMap::from([(waits, waiting)]),
        waits: Vec::new(),
        started: None,
        completed: None,
        eta: None,
        secrets: Vec::new(),
        private: false,
        refused: Vec::new(),
        overdue: false,
        chosen: None,
        lacking: 0,
        lacks_nodes: false,
        unseen: None,
        not_allowed: None,
    }
}

fn plan(outcomes: &[Outcome]) -> Plan {
    Plan { outcomes: outcomes.to_vec(), ..Plan::default() }
}

fn text(metrics: &Metrics) -> String {
    let (mut registry, mut text) = (Registry::default(), String::new());
    metrics.register(&mut registry);
    encode(&mut text, &registry).unwrap();
    text
}

/// The samples with a value other than zero, without the histogram.
fn samples(metrics: &Metrics) -> Vec<String> {
    let text = text(metrics);
    let sample = |line: &&str| !line.starts_with('#') && !line.ends_with(" 0") && !line.contains("_seconds");
    text.lines().filter(sample).map(|line| line.trim_start_matches("stoker_controller_").to_string()).collect()
}

#[test]
fn jobs_are_counted_while_they_run_and_once_when_they_end() {
    let metrics = Metrics::new();
    let mut leading = LeaderMetrics::new(&metrics);
    let begun = Instant::now();
    leading.planned(
        &plan(&[outcome("a", 1, Stage::Running, [3, 2, 1, 0]), outcome("b", 1, Stage::Suspended, [1, 0, 0, 0])]),
        begun,
    );
    let mut now = samples(&metrics);
    now.sort();
    assert_eq!(
        now,
        [
            "jobs{stage=\"Running\"} 1",
            "jobs{stage=\"Suspended\"} 1",
            "leader 1",
            "nodes_waiting{reason=\"Parallelism\"} 3",
            "nodes_waiting{reason=\"Suspended\"} 1",
            "nodes{state=\"pulling\"} 2",
            "nodes{state=\"succeeded\"} 1",
            "nodes{state=\"waiting\"} 4",
        ]
    );
    // The same end said twice is one end; that of an edited job is another.
    for (generation, bytes) in [(1, 0), (1, 9), (2, 9)] {
        let mut ended = outcome("a", generation, Stage::Failed, [0, 0, 5, 1]);
        ended.bytes.done = bytes;
        leading.planned(&plan(&[ended]), begun);
    }
    leading.forget(&JobId::new(("stoker.dev", "Preheat"), "default", "b"));
    leading.forget(&JobId::new(("stoker.dev", "Preheat"), "default", "never seen"));
    assert_eq!(samples(&metrics), ["leader 1", "jobs_ended_total{result=\"Failed\"} 2"]);
    leading.planned(&plan(&[outcome("a", 3, Stage::Running, [6, 0, 0, 0])]), begun);
    drop(leading);
    assert_eq!(samples(&metrics), ["jobs_ended_total{result=\"Failed\"} 2"], "who does not lead has no jobs");
    assert!(text(&metrics).contains("\nstoker_controller_plan_seconds_count 5\n"));
}

#[test]
fn writes_and_interruptions_are_counted_by_kind() {
    let metrics = Metrics::new();
    metrics.wrote("NodePreheat", true);
    metrics.wrote("NodePreheat", false);
    metrics.writes_waiting(7);
    let leading = LeaderMetrics::new(&metrics);
    leading.deaf("Node", true);
    drop(leading);
    let mut now = samples(&metrics);
    now.sort();
    assert_eq!(
        now,
        [
            "watch_interruptions_total{kind=\"Node\"} 1",
            "writes_total{kind=\"NodePreheat\",result=\"failed\"} 1",
            "writes_total{kind=\"NodePreheat\",result=\"succeeded\"} 1",
            "writes_waiting 7",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn health_wants_turns_and_readiness_wants_knowledge() {
    let metrics = Metrics::new();
    assert_eq!(metrics.ready(), Err(format!("the controller is not ready: {NO_LEASE}")));
    metrics.standing_by();
    assert_eq!(metrics.ready(), Ok(()));
    let leading = LeaderMetrics::new(&metrics);
    assert_eq!(metrics.ready(), Err(format!("the controller is not ready: {NOT_HEARD}")));
    leading.hears();
    assert_eq!(metrics.ready(), Ok(()));
    leading.deaf("Node", true);
    assert!(metrics.ready().is_err(), "a watch is deaf");
    drop(leading);
    assert!(metrics.ready().is_err());

    tokio::time::advance(HEALTHY_FOR).await;
    assert_eq!(metrics.healthy(), Ok(()));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(metrics.healthy(), Err("the controller's loop made no turn for 61 s".into()));
    metrics.beat();
    assert_eq!(metrics.healthy(), Ok(()));
}

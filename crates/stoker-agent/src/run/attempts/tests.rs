mod peers;

use super::*;
use crate::guard::DiskGuard;
use crate::logins::{LoginOpener, Sealed};
use crate::metrics::Metrics;
use crate::pull::Uses;
use crate::pulls::PullNotes;
use crate::testing::{at, order};
use crate::ways::PeerSide;

use stoker_api::native::SealedLogin;
use stoker_core::model::{LoginId, Phase};
use stoker_core::step::{begin, succeed};
use stoker_core::{Ask, Clock, Reason};
use stoker_runtime::room::Room;
use stoker_runtime::{Layout, Runtime};
use stoker_transfer::credentials::Providers;
use stoker_transfer::registry::Settings as RegistrySettings;
use stoker_transfer::{LoginEntry, NodeKey, Platform, Registry, SecretKind, Spool, SpoolSettings};
use tokio::sync::watch;

/// The attempts of a node with an empty image layout. Its key is not the one to which its logins are sealed, so an order that
/// names one waits, until it is stopped or its time is over, and asks no registry.
struct NodeBed {
    attempts: Attempts,
    orders: BTreeMap<Key, Order>,
    _dir: tempfile::TempDir,
    _sealed: watch::Sender<Sealed>,
}

fn sealed_to_another_node() -> Sealed {
    let text = br#"{"r": {"username": "me", "password": "hunter2"}}"#;
    let (key, entry) = (NodeKey::generate().public(), LoginEntry::read(SecretKind::DockerCfg, text).unwrap().remove(0));
    let login = SealedLogin { key: key.name(), sealed: entry.seal(&key).unwrap() };
    Arc::new(BTreeMap::from([(LoginId::new("a"), login)]))
}

fn bed(earlier: EarlierLife) -> NodeBed {
    bed_with(earlier, None)
}

/// The same, of a node that reads from others.
fn bed_with(earlier: EarlierLife, peers: Option<PeerSide>) -> NodeBed {
    let dir = tempfile::tempdir().unwrap();
    let clock: Clock = Arc::new(|| at(100));
    let runtime = Runtime::Layout(Layout::open(dir.path().join("images")).unwrap());
    let registry = Registry::new(RegistrySettings::default()).unwrap();
    let spool = Spool::open(dir.path().join("spool"), registry.clone(), SpoolSettings::default()).unwrap();
    let uses: Arc<Uses> = Arc::default();
    let leftovers = Leftovers {
        clock: clock.clone(),
        spool: spool.clone(),
        runtime: runtime.clone(),
        uses: uses.clone(),
        pulls: Arc::new(PullNotes::open(dir.path().join("pulls"))),
        age: Duration::from_secs(3600),
        lingering: Default::default(),
        turn: Arc::default(),
    };
    let (_sealed, receiver) = watch::channel(sealed_to_another_node());
    let guard = DiskGuard { runtime: runtime.clone(), spool: spool.dir().into(), room: Room::new(100), leftovers };
    let tools = PullTools {
        clock,
        registry,
        spool,
        runtime,
        platform: Platform::host(),
        logins: LoginOpener::new(NodeKey::generate(), receiver),
        providers: Providers::default(),
        guard,
        layers: 1,
        uses,
        peers,
    };
    let limits = Limits { pulls: 1, ..Limits::default() };
    let attempts = Attempts::new("n".into(), &limits, tools, Arc::new(Metrics::new().join()), earlier);
    NodeBed { attempts, orders: BTreeMap::new(), _dir: dir, _sealed }
}

fn new_node() -> NodeBed {
    bed(EarlierLife { tasks: BTreeMap::new(), starts: Starts::default(), spooled: 0 })
}

fn key() -> Key {
    Key::of("r/i:1")
}

/// An order whose attempt waits for its login.
fn waits() -> Order {
    let mut order = order();
    order.terms.logins = vec![LoginId::new("a")];
    order
}

impl NodeBed {
    fn turn(&mut self, now: i64) -> Vec<(Key, Report)> {
        let step = self.attempts.step(&self.orders, at(now));
        self.attempts.perform(step, &self.orders, at(now))
    }

    fn task(&self) -> &Task {
        &self.attempts.tasks()[&key()]
    }

    /// Takes what happens until the task is as it should be.
    async fn until(&mut self, is: impl Fn(&Task) -> bool) {
        while !is(self.task()) {
            let happened = self.attempts.happens().await;
            self.attempts.take(happened, &self.orders);
            self.attempts.read_meters(at(100));
        }
    }

    /// Waits until no task of an attempt is left.
    async fn drain(&mut self) {
        while !self.attempts.spawned.is_empty() {
            let happened = self.attempts.happens().await;
            self.attempts.take(happened, &self.orders);
        }
    }
}

#[tokio::test]
async fn an_attempt_tells_what_it_waits_for_before_it_ends() {
    let mut node = new_node();
    node.orders.insert(key(), waits());
    node.turn(0);
    assert!(matches!(node.task().state, TaskState::Running { .. }));
    node.until(|task| task.report.reason == Some(Reason::SecretUnread)).await;
    assert_eq!(node.task().report.phase, Phase::Pulling);
    assert!(node.turn(1).is_empty() && node.attempts.running.len() == 1, "it is not begun twice");
}

#[tokio::test]
async fn an_attempt_that_was_stopped_says_no_more() {
    type Change = fn(&mut NodeBed);
    let hold: Change = |node| node.orders.get_mut(&key()).unwrap().hold = true;
    let take_back: Change = |node| drop(node.orders.remove(&key()));
    for (what, change, state) in
        [("held", hold, Some(TaskState::Resting { until: at(5) })), ("taken back", take_back, None)]
    {
        let mut node = new_node();
        node.orders.insert(key(), waits());
        node.turn(0);
        change(&mut node);
        assert_eq!(node.turn(5), [], "{what}: it was no end");
        assert!(node.attempts.running.is_empty(), "{what}");
        node.drain().await;
        assert_eq!(node.attempts.tasks().get(&key()).map(|task| task.state), state, "{what}");
        assert_eq!(*node.attempts.starts(), Starts::default(), "{what}: a stop is no crash");
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_before_an_order_gave_its_place_away_counts_for_its_timeout() {
    let began = tokio::time::Instant::now();
    let mut node = new_node();
    node.orders.insert(key(), waits());
    node.turn(0);
    node.attempts.act(Action::Yield { key: key() }, &node.orders, at(400));
    assert!(matches!(node.task().state, TaskState::Yielded { .. }));
    node.drain().await;
    assert!(matches!(node.task().state, TaskState::Yielded { .. }), "its end is nobody's");
    node.turn(401);
    node.until(|task| task.report.reason == Some(Reason::Timeout)).await;
    assert!(began.elapsed() < Duration::from_secs(210), "200 s of 600 s were left, {:?}", began.elapsed());
    let message = &node.task().report.message;
    assert!(message.contains("not done after 600 s") && message.contains("last: the login a was sealed"), "{message}");
    assert!(matches!(node.task().state, TaskState::Resting { .. }));
}

#[tokio::test]
async fn ends_of_attempts_become_reports() {
    let look = Order { ask: Ask::Look, ..order() };
    let nonsense = Order { image: "not a reference".into(), ..order() };
    for (order, reason) in [(look, Reason::Unresolved), (nonsense, Reason::InvalidReference)] {
        let mut node = new_node();
        node.orders.insert(key(), order);
        node.turn(0);
        node.until(|task| task.state == TaskState::Ended).await;
        assert_eq!((node.task().report.phase, node.task().report.reason), (Phase::Failed, Some(reason)));
        assert!(node.turn(101).is_empty() && node.attempts.running.is_empty(), "{reason}: it is not begun again");
        let report = node.task().report.clone();
        node.orders.clear();
        assert_eq!(node.turn(102), [(key(), report)], "{reason}: people may read it");
        assert!(node.attempts.tasks().is_empty());
    }
}

#[tokio::test]
async fn an_order_on_which_earlier_lives_broke_off_is_not_begun_again() {
    let mut starts = Starts::default();
    for _ in 0..5 {
        starts.begin(key(), at(0), 0);
    }
    let mut node = bed(EarlierLife { tasks: BTreeMap::new(), starts, spooled: 0 });
    node.orders.insert(key(), waits());
    node.turn(0);
    assert_eq!((node.task().report.reason, node.task().state), (Some(Reason::GivenUp), TaskState::Ended));
    assert!(node.attempts.spawned.is_empty());
}

#[tokio::test]
async fn orders_that_have_no_place_wait_for_their_turn() {
    let mut node = new_node();
    let later = Key::of("r/j:1");
    node.orders.insert(key(), waits());
    node.orders.insert(later, Order { asked: at(1), ..waits() });
    node.turn(2);
    assert_eq!(node.attempts.running.keys().collect::<Vec<_>>(), [&key()]);
    assert_eq!(node.attempts.tasks()[&later].state, TaskState::Queued);
    node.orders.remove(&key());
    node.turn(3);
    assert_eq!(node.attempts.running.keys().collect::<Vec<_>>(), [&later]);
}

#[tokio::test]
async fn an_image_that_somebody_removed_is_not_said_to_be_there() {
    let done = succeed(&order(), &begin(&order(), 1, None, at(0)), "sha256:a".into(), Bytes::default(), at(1));
    let mut node = new_node();
    node.orders.insert(key(), order());
    node.attempts.adopt(&BTreeMap::from([(key(), done.report)]), &node.orders, at(2));
    while node.task().report.reason != Some(Reason::Removed) {
        assert!(node.turn(3).is_empty() && node.attempts.running.is_empty(), "a look starts no attempt");
        let happened = node.attempts.happens().await;
        node.attempts.take(happened, &node.orders);
    }
}

#[tokio::test]
async fn attempts_under_way_follow_their_orders() {
    let mut node = new_node();
    node.orders.insert(key(), waits());
    node.turn(0);
    let order = node.orders.get_mut(&key()).unwrap();
    order.terms.pull.bandwidth = Some(7);
    order.jobs.insert(stoker_core::model::JobId::new(("stoker.dev", "Preheat"), "shop", "web"));
    node.attempts.follow(&node.orders, &Tickets::new());
    assert_eq!(node.task().report.jobs.len(), 1, "whoever joined sees how far it is");
    assert_eq!(node.attempts.running[&key()].supply.pace.limit(), Some(7));
}

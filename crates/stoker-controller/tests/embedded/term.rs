//! Whoever leads writes only while nobody else can have taken its lease: for 15 s after it asked for it last and got it, where
//! others wait 20.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Client;
use kube::api::Api;
use kube::client::Body;
use kube::runtime::wait::await_condition;
use stoker_controller::{Limits, Settings};
use stoker_core::Clock;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::bed::{self, Way, api, clock, node, ordered, over, preheat};

const TERM: Duration = Duration::from_secs(15);

/// What a controller sent to change something: when, and whether it was the lease.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<Vec<(Instant, bool)>>>);

impl Sent {
    fn note(&self, request: &http::Request<Body>) {
        if request.method() != Method::GET {
            self.0.lock().unwrap().push((Instant::now(), is_lease(request)));
        }
    }

    /// How many writes were sent since then; each must have been sent in a term.
    fn since(&self, start: Instant) -> usize {
        let mut renewed = None;
        let mut count = 0;
        for (at, lease) in self.0.lock().unwrap().iter().copied() {
            if lease {
                renewed = Some(at);
                continue;
            }
            let age = at - renewed.expect("written without the lease");
            assert!(age < TERM, "written {age:?} after the lease was renewed");
            count += usize::from(at >= start);
        }
        count
    }

    fn renewals(&self) -> usize {
        self.of_the_lease().len()
    }

    fn of_the_lease(&self) -> Vec<Instant> {
        self.0.lock().unwrap().iter().filter(|(_, lease)| *lease).map(|(at, _)| *at).collect()
    }
}

/// The controller's own, and not one of others that it looks at.
fn is_lease(request: &http::Request<Body>) -> bool {
    request.uri().path().contains(&format!("/namespaces/{}/leases", stoker_api::NAMESPACE))
}

/// The API over a way that notes what is sent, and on which requests for the lease fare as `way` says.
fn noted(client: &Client, sent: &Sent, way: impl Fn(&http::Request<Body>) -> Way + Send + Sync + 'static) -> Client {
    let sent = sent.clone();
    over(client, move |request| {
        sent.note(request);
        if is_lease(request) { way(request) } else { Way::Free }
    })
}

/// The lease is taken, or renewed for the last time, at once, and the answer is on the way for a while; then nothing of the lease
/// gets through. There is something to write all the time.
async fn the_term_is_no_longer_for_a_late_answer(to_the_first: bool) {
    const LATE: Duration = Duration::from_secs(3);
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    let sent = Sent::default();
    let (end, ends) = watch::channel(to_the_first);
    let was_last = Mutex::new(false);
    let way = move |request: &http::Request<Body>| {
        let mut last = was_last.lock().unwrap();
        match (*ends.borrow(), *last, request.method() == Method::GET) {
            (true, true, _) => Way::Cut,
            (true, false, false) => {
                *last = true;
                Way::Late(LATE)
            }
            _ => Way::Free,
        }
    };
    let cancel = CancellationToken::new();
    let leader = bed::run(bed::settings(&noted(&client, &sent, way), &clock, "only"), &cancel);
    if !to_the_first {
        preheat(&client, "first").await;
        ordered(&client, "n1", 1).await;
        end.send(true).unwrap();
    }
    let before = sent.renewals();
    while sent.renewals() == before {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let last = Instant::now();
    for number in 0..120 {
        preheat(&client, &format!("job-{number}")).await;
        tokio::time::sleep(TERM / 40).await;
    }
    assert!(sent.since(last + LATE) > 0, "it wrote after the answer had come");
    assert_eq!(sent.since(last + TERM), 0);
    cancel.cancel();
    leader.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_answered_late_makes_the_term_no_longer() {
    the_term_is_no_longer_for_a_late_answer(false).await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_given_late_makes_the_term_no_longer() {
    the_term_is_no_longer_for_a_late_answer(true).await;
}

/// As a connection does that is half open: what was asked on it is never answered, and another one is.
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_never_answered_is_asked_again_within_the_term() {
    let clock = clock();
    let client = api(&clock);
    let sent = Sent::default();
    let was_cut = Arc::new(AtomicBool::default());
    let way = {
        let was_cut = was_cut.clone();
        move |request: &http::Request<Body>| {
            // By its name: a watch asks for all of that name.
            let renews = request.method() == Method::GET && request.uri().path().ends_with("/stoker-controller");
            if renews && !was_cut.swap(true, Ordering::Relaxed) { Way::Cut } else { Way::Free }
        }
    };
    let cancel = CancellationToken::new();
    let leader = bed::run(bed::settings(&noted(&client, &sent, way), &clock, "only"), &cancel);
    while sent.renewals() < 4 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(was_cut.load(Ordering::Relaxed));
    for pair in sent.of_the_lease().windows(2) {
        let gap = pair[1] - pair[0];
        assert!(gap < TERM, "renewed after {gap:?}: it did not lead in between");
    }
    cancel.cancel();
    leader.await.unwrap();
}

/// A process that is stopped and goes on much later: all its timers are due at once, and what was to be written is old.
#[tokio::test(start_paused = true)]
async fn a_leader_that_slept_writes_nothing_before_it_leads_anew() {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    let sent = Sent::default();
    let limits = Limits { writes_per_second: 1, at_once: 1 };
    let settings = bed::settings(&noted(&client, &sent, |_| Way::Free), &clock, "only");
    let cancel = CancellationToken::new();
    let leader = bed::run(Settings { limits, ..settings }, &cancel);
    for number in 0..20 {
        preheat(&client, &format!("job-{number}")).await;
    }
    let start = Instant::now();
    while sent.since(start) < 3 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // It has more to write, with one a second.
    tokio::time::advance(3 * TERM).await;
    let awake = Instant::now();
    while sent.since(awake) < 10 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    cancel.cancel();
    leader.await.unwrap();
}

/// What becomes of requests that are sent to an API server while it is silent.
#[derive(Clone, Copy, Debug)]
enum Silence {
    /// All of them are done and answered when it is over.
    Answered,
    /// None of them is ever heard.
    Lost,
}

/// The API server is silent for 8 s again and again, each time from another moment between two renewals on.
async fn a_leader_leads_on_after(silence: Silence) {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    let sent = Sent::default();
    let (silent, is_silent) = watch::channel(Instant::now());
    let noting = sent.clone();
    let way = move |request: &http::Request<Body>| {
        noting.note(request);
        let until = *is_silent.borrow();
        match silence {
            _ if until <= Instant::now() => Way::Free,
            Silence::Answered => Way::Held(until),
            Silence::Lost => Way::Cut,
        }
    };
    let cancel = CancellationToken::new();
    let leader = bed::run(bed::settings(&over(&client, way), &clock, "only"), &cancel);
    for step in 0..25 {
        preheat(&client, &format!("job-{step}")).await;
        // One that leads anew has a higher epoch.
        assert_eq!(ordered(&client, "n1", step + 1).await, 1, "it stepped down; {silence:?}, {step}");
        let before = sent.renewals();
        while sent.renewals() == before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(100) * step as u32).await;
        let over = Instant::now() + Duration::from_secs(8);
        silent.send(over).unwrap();
        tokio::time::sleep_until(over + TERM).await;
    }
    cancel.cancel();
    leader.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_leader_lives_through_eight_seconds_that_are_answered_at_their_end() {
    a_leader_leads_on_after(Silence::Answered).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_lives_through_eight_seconds_that_are_never_answered() {
    a_leader_leads_on_after(Silence::Lost).await;
}

/// A plan takes as long as it likes: here until the Lease was renewed twice meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_takes_long_keeps_no_renewal_waiting() {
    let clock = clock();
    let client = api(&clock);
    node(&client, "n1").await;
    let (renews, renewed) = std::sync::mpsc::channel();
    let counted = over(&client, move |request| {
        if is_lease(request) && request.method() == Method::PUT {
            renews.send(()).ok();
        }
        Way::Free
    });
    // Whoever leads asks this clock for the time of its plan, and waits there.
    let (ends, ended) = oneshot::channel();
    let (stuck, ends) = (Mutex::new(renewed), Mutex::new(Some(ends)));
    let time = clock.clone();
    let slow: Clock = Arc::new(move || {
        if std::thread::current().name() == Some("leader")
            && let Some(ends) = ends.lock().unwrap().take()
        {
            let renewed = stuck.lock().unwrap();
            renewed.try_iter().count();
            let twice = (0..2).all(|_| renewed.recv_timeout(Duration::from_secs(30)).is_ok());
            ends.send(twice).unwrap();
        }
        time()
    });
    let cancel = CancellationToken::new();
    let run = bed::run(bed::settings(&counted, &slow, "only"), &cancel);
    let leases: Api<Lease> = Api::namespaced(client.clone(), stoker_api::NAMESPACE);
    await_condition(leases, "stoker-controller", |lease: Option<&Lease>| lease.is_some()).await.unwrap();
    preheat(&client, "one").await;
    assert!(ended.await.unwrap(), "nobody renewed the Lease during the plan");
    assert_eq!(ordered(&client, "n1", 1).await, 1, "it leads on");
    cancel.cancel();
    run.await.unwrap();
    assert_eq!(bed::holder(&client).await, None, "one that stops gives the Lease back");
}

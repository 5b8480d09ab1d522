//! Tickets, an API server that answers as it is told to, and a clock that stands still.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use kube::client::Body;
use serde_json::json;
use stoker_transfer::Digest;
use stoker_transfer::peer::{PeerIdentity, TicketSigner};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::testing::at;

/// An API server with the key of one signer.
#[derive(Clone, Default)]
struct TestApi {
    /// How many requests fail first.
    failures: usize,
    asked: Arc<AtomicUsize>,
    data: Arc<Mutex<BTreeMap<String, String>>>,
}

impl TestApi {
    fn new(signer: &TicketSigner) -> Self {
        let api = Self::default();
        api.publish(signer);
        api
    }

    fn publish(&self, signer: &TicketSigner) {
        let key = signer.public();
        self.data.lock().unwrap().insert(key.id().to_string(), format!("{} {}", key.0, at(1_000_000)));
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            let fails = api.asked.fetch_add(1, Ordering::Relaxed) < api.failures;
            let (status, answer) = if fails {
                (500, json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500 }))
            } else {
                (
                    200,
                    json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": { "name": NAME }, "data": *api.data.lock().unwrap() }),
                )
            };
            let answer = Response::builder().status(status).body(Body::from(answer.to_string().into_bytes()));
            std::future::ready(answer)
        });
        Client::new(service, "default")
    }

    fn gate(&self, dir: &tempfile::TempDir) -> Arc<TicketGate> {
        Arc::new(TicketGate::load(self.client(), "stoker-system", &dir.path().join("ledger.json")))
    }
}

fn root() -> Digest {
    format!("sha256:{}", "a".repeat(64)).parse().unwrap()
}

/// A ticket that somebody unknown has signed.
fn stranger(reader: PeerId) -> (SignerId, String) {
    let signer = TicketSigner::generate().unwrap();
    (signer.public().id(), signer.sign(&root(), reader, 4600).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_ticket_that_is_over_is_over_after_a_restart() {
    let (dir, signer) = (tempfile::tempdir().unwrap(), TicketSigner::generate().unwrap());
    let (api, reader) = (TestApi::new(&signer), PeerIdentity::generate().unwrap().id());
    let ticket = signer.sign(&root(), reader, 4600).unwrap();
    let orders = || [at(1000)].into_iter();
    let gate = api.gate(&dir);
    gate.set_orders(orders(), &Tickets::default());
    let keeps = gate.clone();
    let keeps = AbortOnDropHandle::new(tokio::spawn(async move { keeps.keep_time().await }));
    assert!(gate.check(&ticket, reader).await.is_ok());
    // It is kept every ten minutes.
    tokio::time::sleep(Duration::from_secs(3600 + 600)).await;
    assert_eq!(gate.check(&ticket, reader).await, Err(TicketError::Expired));
    keeps.abort();
    assert!(keeps.await.unwrap_err().is_cancelled());

    let gate = api.gate(&dir);
    assert_eq!(gate.check(&ticket, reader).await, Err(TicketError::Expired), "before the orders are known");
    gate.set_orders(orders(), &Tickets::default());
    assert_eq!(gate.check(&ticket, reader).await, Err(TicketError::Expired));
}

#[tokio::test(start_paused = true)]
async fn keys_that_could_not_be_read_are_soon_asked_for_again() {
    let (dir, signer) = (tempfile::tempdir().unwrap(), TicketSigner::generate().unwrap());
    let api = TestApi { failures: 2, ..TestApi::new(&signer) };
    let (gate, reader) = (api.gate(&dir), PeerIdentity::generate().unwrap().id());
    let ticket = signer.sign(&root(), reader, 4600).unwrap();
    let unknown = TicketError::SignerUnread(signer.public().id());
    for (after, asked) in [(0, 1), (249, 1), (1, 2), (499, 2)] {
        tokio::time::sleep(Duration::from_millis(after)).await;
        assert_eq!(gate.check(&ticket, reader).await, Err(unknown));
        assert_eq!(api.asked(), asked, "{after} ms later");
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(gate.check(&ticket, reader).await.is_ok());
    assert_eq!(api.asked(), 3);
    // An answer without the key is no failure.
    let (forger, forged) = stranger(reader);
    let (unread, unknown) = (TicketError::SignerUnread(forger), TicketError::UnknownSigner(forger));
    for (after, asked, problem) in [(0, 3, unread), (9_999, 3, unread), (1, 4, unknown), (9_999, 4, unknown)] {
        tokio::time::sleep(Duration::from_millis(after)).await;
        assert_eq!(gate.check(&forged, reader).await, Err(problem), "{after} ms later");
        assert_eq!(api.asked(), asked, "{after} ms later");
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_stays_away_is_not_waited_for() {
    let (dir, signer) = (tempfile::tempdir().unwrap(), TicketSigner::generate().unwrap());
    let api = TestApi { failures: usize::MAX, ..TestApi::new(&signer) };
    let (gate, reader) = (api.gate(&dir), PeerIdentity::generate().unwrap().id());
    let ticket = signer.sign(&root(), reader, 4600).unwrap();
    let began = Instant::now();
    while gate.check(&ticket, reader).await == Err(TicketError::SignerUnread(signer.public().id())) {
        tokio::time::sleep(FIRST_PAUSE).await;
    }
    let (unknown, most) = (TicketError::UnknownSigner(signer.public().id()), Duration::from_secs(30));
    assert_eq!(gate.check(&ticket, reader).await, Err(unknown), "the reader is to have another source");
    assert!(began.elapsed() > ASK_EVERY && began.elapsed() < most, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn who_shows_tickets_of_strangers_has_no_ticket_of_a_new_leader_refused() {
    let (dir, old, new) = (tempfile::tempdir().unwrap(), TicketSigner::generate(), TicketSigner::generate().unwrap());
    let api = TestApi::new(&old.unwrap());
    let (gate, reader) = (api.gate(&dir), PeerIdentity::generate().unwrap().id());
    let show_stranger = async || gate.check(&stranger(reader).1, reader).await.unwrap_err();
    assert!(matches!(show_stranger().await, TicketError::UnknownSigner(_)), "the keys were just read");
    api.publish(&new);
    let ticket = new.sign(&root(), reader, 4600).unwrap();
    for second in 0..10 {
        assert_eq!(gate.check(&ticket, reader).await, Err(TicketError::SignerUnread(new.public().id())), "{second}");
        assert!(matches!(show_stranger().await, TicketError::SignerUnread(_)), "{second}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    show_stranger().await;
    assert!(gate.check(&ticket, reader).await.is_ok());
    assert_eq!(api.asked(), 2);
}

/// Its readers are to look for another node, although others have the keys read all the time.
#[tokio::test(start_paused = true)]
async fn a_ticket_whose_key_is_gone_is_refused_once_the_keys_were_read() {
    let (dir, signer) = (tempfile::tempdir().unwrap(), TicketSigner::generate().unwrap());
    let api = TestApi::new(&signer);
    let (gate, reader) = (api.gate(&dir), PeerIdentity::generate().unwrap().id());
    let (gone, ticket) = stranger(reader);
    let mut refused = 0;
    for _ in 0..100 {
        gate.check(&stranger(reader).1, reader).await.unwrap_err();
        match gate.check(&ticket, reader).await.unwrap_err() {
            TicketError::SignerUnread(_) => assert_eq!(refused, 0, "it was looked for"),
            problem => {
                assert_eq!(problem, TicketError::UnknownSigner(gone));
                refused += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert!(refused > 50, "{refused}");
    // Strangers take no memory.
    for _ in 0..3 * MOST_UNKNOWN {
        gate.check(&stranger(reader).1, reader).await.unwrap_err();
    }
    let unknown = gate.unknown();
    assert!(unknown.shown.len() <= MOST_UNKNOWN && unknown.missing.len() <= MOST_UNKNOWN);
}

#[tokio::test(start_paused = true)]
async fn the_key_of_an_own_ticket_is_learned_although_the_first_reads_fail() {
    let (dir, signer) = (tempfile::tempdir().unwrap(), TicketSigner::generate().unwrap());
    for (failures, asked) in [(3, 4), (usize::MAX, 7)] {
        let api = TestApi { failures, ..TestApi::new(&signer) };
        let (gate, reader) = (api.gate(&dir), PeerIdentity::generate().unwrap().id());
        let learns = gate.clone();
        let _learns = AbortOnDropHandle::new(tokio::spawn(async move { learns.learn_early().await }));
        let own = signer.sign(&root(), reader, 4600).unwrap();
        gate.set_orders([at(1000)].into_iter(), &Tickets::from([(stoker_core::model::Key::of("r/i:1"), own)]));
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(api.asked(), asked, "not for ever");
        assert_eq!(gate.keys().knows(signer.public().id()), failures == 3);
        std::fs::remove_file(dir.path().join("peer-keys.json")).ok();
    }
}

#[tokio::test(start_paused = true)]
async fn the_key_of_an_own_ticket_is_read_as_soon_as_keys_may_be_read_again() {
    let (dir, signer) = (tempfile::tempdir().unwrap(), TicketSigner::generate().unwrap());
    let api = TestApi::default();
    let (gate, reader) = (api.gate(&dir), PeerIdentity::generate().unwrap().id());
    let learns = gate.clone();
    let _learns = AbortOnDropHandle::new(tokio::spawn(async move { learns.learn_early().await }));
    gate.check(&stranger(reader).1, reader).await.unwrap_err();
    api.publish(&signer);
    let own = signer.sign(&root(), reader, 4600).unwrap();
    gate.set_orders([at(1000)].into_iter(), &Tickets::from([(stoker_core::model::Key::of("r/i:1"), own)]));
    tokio::time::sleep(ASK_EVERY - Duration::from_millis(1)).await;
    assert_eq!((api.asked(), gate.keys().knows(signer.public().id())), (1, false));
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!((api.asked(), gate.keys().knows(signer.public().id())), (2, true));
    // A signer that nobody has published is not asked for again and again.
    let (gone, own) = stranger(reader);
    for _ in 0..100 {
        gate.set_orders([at(1000)].into_iter(), &Tickets::from([(stoker_core::model::Key::of("r/i:1"), own.clone())]));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!((api.asked(), gate.keys().knows(gone)), (3, false));
}

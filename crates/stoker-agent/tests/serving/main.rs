//! What agents serve to other nodes: real agents with real spools, servers and sockets, on the API in a box.

// Helpers of tests may unwrap as the tests themselves do; clippy's exception sees only the latter.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bed;

use std::net::TcpListener;
use std::time::Duration;

use bed::{Agent, Cluster, Reader, eventually, peer};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use stoker_core::Reason;
use stoker_core::model::{Key, PEERS, Phase};
use stoker_runtime::{Cri, Runtime};
use stoker_testbed::registry::{self as testbed, Fault, On, noise};
use stoker_testbed::scripted::{Ends, Script, Scripted};
use stoker_transfer::peer::ticket_subject;

/// Not a multiple of any buffer.
const SIZE: usize = 3 * 1024 * 1024 + 17;
const STALLS_AT: u64 = 1024 * 1024;

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_served_while_it_comes_and_when_it_is_there_and_after_a_restart() {
    let (cluster, home) = (Cluster::new().await, tempfile::tempdir().unwrap());
    let layer = noise(SIZE, 7);
    let pushed = cluster.registry.push("team/app", "v1", std::slice::from_ref(&layer));
    let image = cluster.image("team/app:v1");
    cluster.registry.fault(On::Path(pushed.layers[0].clone()), 1, Fault::StallAfter(STALLS_AT));
    cluster.publish_key().await;
    let agent = Agent::start(cluster.settings("n", home.path()));
    let object = cluster.until("n", |object| object.peer.is_some()).await;
    assert!(object.features.contains(PEERS));
    assert!(object.peer.as_ref().unwrap().keeps, "a layout keeps its blobs");
    let node = Api::<Node>::all(cluster.client.clone()).get("n").await.unwrap();
    let addresses = node.status.and_then(|status| status.addresses).unwrap();
    assert_eq!((addresses[0].type_.as_str(), addresses[0].address.as_str()), ("InternalIP", "127.0.0.1"));

    // While it comes.
    cluster.order("n", &image, &pushed.manifest).await;
    let reader = Reader::new();
    let ways = reader.ways(&cluster, &pushed.manifest, &peer(&object));
    let documents = reader.documents(&ways, &pushed.manifest).await;
    let growing = reader.begin(&ways, &documents, &pushed.layers[0]);
    // The server holds back what is not on its disk.
    let most = eventually(async || Some(growing.progress().have()).filter(|have| *have >= STALLS_AT / 2)).await;
    assert!(most <= STALLS_AT);
    cluster.registry.let_go();
    assert_eq!(std::fs::read(growing.complete().await.unwrap()).unwrap(), layer);
    assert_eq!(cluster.registry.body_bytes(&pushed.layers[0]), SIZE as u64, "it left the registry once");

    // When it is there.
    cluster.until_done("n", &image).await;
    let late = Reader::new();
    let read = late.read(&late.ways(&cluster, &pushed.manifest, &peer(&object)), &pushed.manifest).await;
    assert!(read.contains(&layer.to_vec()));

    // After a restart, with a key that only a file has.
    cluster.remove_keys().await;
    agent.stop().await;
    let _agent = Agent::start(cluster.settings("n", home.path()));
    let port = object.peer.as_ref().unwrap().port;
    let again = cluster.until("n", |now| now.peer.as_ref().is_some_and(|peer| peer.port != port)).await;
    assert_eq!(again.peer.as_ref().unwrap().key, object.peer.as_ref().unwrap().key, "its key is kept");
    let last = Reader::new();
    let read = last.read(&last.ways(&cluster, &pushed.manifest, &peer(&again)), &pushed.manifest).await;
    assert!(read.contains(&layer.to_vec()));
    assert_eq!(cluster.registry.body_bytes(&pushed.layers[0]), SIZE as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_was_ordered_is_read_and_only_with_a_ticket_for_it() {
    let (cluster, home) = (Cluster::new().await, tempfile::tempdir().unwrap());
    let [own, other] = [1, 2].map(|seed| noise(1000, seed));
    let own = cluster.registry.push("team/app", "v1", std::slice::from_ref(&own));
    let other = cluster.registry.push("team/other", "v1", std::slice::from_ref(&other));
    cluster.publish_key().await;
    let mut settings = cluster.settings("n", home.path());
    settings.peers.as_mut().unwrap().linger = Duration::ZERO;
    let _agent = Agent::start(settings);
    let server = peer(&cluster.until("n", |object| object.peer.is_some()).await);
    for (name, pushed) in [("team/app:v1", &own), ("team/other:v1", &other)] {
        cluster.order("n", &cluster.image(name), &pushed.manifest).await;
        cluster.until_done("n", &cluster.image(name)).await;
    }
    let reader = Reader::new();
    // A ticket of nobody. It is shown first, because the keys are not read again at once.
    let forger = stoker_transfer::peer::TicketSigner::generate().unwrap();
    let forged = forger.sign(&cluster.subject(&own.manifest), reader.key.id(), u32::MAX).unwrap();
    let said = reader.refused(&reader.ways_with(forged, &server), &own.manifest).await;
    assert_eq!(said, format!("server refuses the ticket: its signer {} is not known here", forger.public().id()));
    let ways = reader.ways(&cluster, &own.manifest, &server);
    assert_eq!(reader.read(&ways, &own.manifest).await.len(), 2, "configuration and layer");

    // A digest of another image that is here, with a ticket for this one.
    let ways = reader.ways(&cluster, &own.manifest, &server);
    assert_eq!(reader.refused(&ways, &other.manifest).await, "server does not have it");
    // The same digest under another name: another registry decides who may have it there.
    let renamed = ticket_subject("registry.evil/x:v1", &own.manifest.parse().unwrap());
    let ticket = cluster.signer.sign(&renamed, reader.key.id(), u32::MAX).unwrap();
    assert_eq!(reader.refused(&reader.ways_with(ticket, &server), &own.manifest).await, "server does not have it");
    // A ticket of another reader, and one that is over.
    let root = cluster.subject(&own.manifest);
    let stranger = Reader::new();
    let stolen = cluster.signer.sign(&root, reader.key.id(), u32::MAX).unwrap();
    let over = cluster.signer.sign(&root, stranger.key.id(), 1).unwrap();
    for (ticket, why) in [(stolen, "it was made for another node"), (over, "its time is over")] {
        let said = stranger.refused(&stranger.ways_with(ticket, &server), &own.manifest).await;
        assert_eq!(said, format!("server refuses the ticket: {why}"));
    }

    // An image that nobody ordered any more, although it is still there.
    cluster.take_back("n", &cluster.image("team/app:v1")).await;
    let gone = || reader.ways(&cluster, &own.manifest, &server);
    // Until the agent has heard of it.
    let is_gone = async || {
        let ways = gone();
        let given = tokio::time::timeout(Duration::from_secs(8), reader.documents(&ways, &own.manifest)).await;
        given.is_err().then(|| ways.exhausted()).flatten()
    };
    assert_eq!(eventually(is_gone).await, "server does not have it");
}

/// Whoever owns a registry could order a private image of somebody else under a name there, and have the nodes that have the image give it away.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_served_under_no_name_by_which_this_node_did_not_get_it() {
    let (cluster, home) = (Cluster::new().await, tempfile::tempdir().unwrap());
    let evil = testbed::Registry::start().await.unwrap();
    cluster.publish_key().await;
    let _agent = Agent::start(cluster.settings("n", home.path()));
    let server = peer(&cluster.until("n", |object| object.peer.is_some()).await);
    let layers = [1, 2].map(|seed| noise(SIZE, seed));
    let [there, coming] = ["there", "coming"].map(|name| cluster.image(&format!("team/{name}:v1")));
    let [old, new] = [("team/there", 0), ("team/coming", 1)]
        .map(|(name, at)| cluster.registry.push(name, "v1", std::slice::from_ref(&layers[at])));
    // Of the same digests. It is asked for their documents and hardly answers, so both orders stay open.
    let named = [("team/there", 0), ("team/coming", 1)].map(|(name, at)| {
        evil.push(name, "v1", std::slice::from_ref(&layers[at]));
        format!("{}/{name}:v1", evil.host())
    });
    evil.fault(On::Manifests, usize::MAX, Fault::StallAfter(1));

    // One image is in the store, the other one comes while its foreign name is open.
    cluster.order("n", &there, &old.manifest).await;
    cluster.until_done("n", &there).await;
    cluster.order("n", &named[0], &old.manifest).await;
    cluster.order("n", &named[1], &new.manifest).await;
    evil.wait_for(|seen| ["there", "coming"].iter().all(|name| seen.iter().any(|seen| seen.path.contains(name)))).await;
    cluster.registry.fault(On::Path(new.layers[0].clone()), 1, Fault::StallAfter(STALLS_AT));
    cluster.order("n", &coming, &new.manifest).await;
    let reader = Reader::new();
    let ways = |name: &str, root: &str| {
        let subject = ticket_subject(name, &root.parse().unwrap());
        reader.ways_with(cluster.signer.sign(&subject, reader.key.id(), u32::MAX).unwrap(), &server)
    };
    for (name, pushed) in [(&there, &old), (&coming, &new)] {
        reader.documents(&ways(name, &pushed.manifest), &pushed.manifest).await;
    }
    let foreign = [ways(&named[0], &old.manifest), ways(&named[1], &new.manifest)];
    let opened = async {
        tokio::select! {
            _ = reader.documents(&foreign[0], &old.manifest) => "the one that is there",
            _ = reader.documents(&foreign[1], &new.manifest) => "the one that comes",
        }
    };
    let opened = tokio::time::timeout(Duration::from_secs(2), opened).await;
    assert!(opened.is_err(), "{opened:?} is served under a foreign name");

    // Once that registry has given them under this name, it is its own business.
    evil.let_go();
    reader.documents(&foreign[0], &old.manifest).await;
    reader.documents(&foreign[1], &new.manifest).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_is_no_reason_to_stop() {
    let (cluster, home) = (Cluster::new().await, tempfile::tempdir().unwrap());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let pushed = cluster.registry.push("team/app", "v1", &[noise(1000, 1)]);
    let mut settings = cluster.settings("n", home.path());
    settings.peers.as_mut().unwrap().listen = taken.local_addr().unwrap();
    let _agent = Agent::start(settings);
    let object = cluster.until("n", |object| object.introduced).await;
    assert!(object.peer.is_none() && !object.features.contains(PEERS));
    let image = cluster.image("team/app:v1");
    cluster.order("n", &image, &pushed.manifest).await;
    cluster.until_done("n", &image).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limit_for_other_nodes_holds_and_is_told() {
    let (cluster, home) = (Cluster::new().await, tempfile::tempdir().unwrap());
    let pushed = cluster.registry.push("team/app", "v1", &[noise(SIZE, 7)]);
    cluster.publish_key().await;
    let mut settings = cluster.settings("n", home.path());
    settings.limits.upload = Some(1);
    let _agent = Agent::start(settings);
    let object = cluster.until("n", |object| object.peer.is_some()).await;
    assert_eq!(object.peer.as_ref().unwrap().sent, Some(1));
    let image = cluster.image("team/app:v1");
    cluster.order("n", &image, &pushed.manifest).await;
    cluster.until_done("n", &image).await;
    let reader = Reader::new();
    let ways = reader.ways(&cluster, &pushed.manifest, &peer(&object));
    let documents = reader.documents(&ways, &pushed.manifest);
    assert!(tokio::time::timeout(Duration::from_millis(500), documents).await.is_err(), "a byte a second");
    // What a person says in the object comes first.
    let upload = Patch::Merge(json!({ "spec": { "upload": "100Mi" } }));
    cluster.objects().patch("n", &PatchParams::default(), &upload).await.unwrap();
    assert_eq!(reader.read(&ways, &pushed.manifest).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_does_not_keep_a_fetch_alive() {
    let (cluster, home) = (Cluster::new().await, tempfile::tempdir().unwrap());
    let pushed = cluster.registry.push("team/app", "v1", &[noise(SIZE, 7)]);
    cluster.registry.fault(On::Path(pushed.layers[0].clone()), 1, Fault::StallAfter(STALLS_AT));
    cluster.publish_key().await;
    let _agent = Agent::start(cluster.settings("n", home.path()));
    let object = cluster.until("n", |object| object.peer.is_some()).await;
    let image = cluster.image("team/app:v1");
    cluster.order("n", &image, &pushed.manifest).await;
    let reader = Reader::new();
    let ways = reader.ways(&cluster, &pushed.manifest, &peer(&object));
    let documents = reader.documents(&ways, &pushed.manifest).await;
    let growing = reader.begin(&ways, &documents, &pushed.layers[0]);
    eventually(async || (growing.progress().have() >= STALLS_AT / 2).then_some(())).await;
    cluster.take_back("n", &image).await;
    // The attempt stops in the turn that notes this. The reader is still there: it waits a second for a node that is silent.
    let ledger = home.path().join("ledger.json");
    eventually(async || (!std::fs::read_to_string(&ledger).unwrap().contains(&image)).then_some(())).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    cluster.registry.let_go();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let seen = cluster.registry.requests(&pushed.layers[0]);
    assert_eq!(seen.len(), 1, "nobody asked for the rest");
    // The registry counts what it put into its socket; what came is in the spool.
    let name = format!("{}.{SIZE}", pushed.layers[0].trim_start_matches("sha256:"));
    let came = std::fs::metadata(home.path().join("spool").join(name)).unwrap().len();
    assert!(came <= STALLS_AT, "{came} bytes came, and the registry sent {}", seen[0].body_bytes);
    assert_eq!(eventually(async || ways.exhausted()).await, "server does not have it");
}

/// It would ask the registry, whatever the order says.
#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_pulls_by_itself_is_not_asked_where_the_registry_may_not_be() {
    let (cluster, home) = (Cluster::new().await, tempfile::tempdir().unwrap());
    let pushed = cluster.registry.push("team/app", "v1", &[noise(1000, 1)]);
    let folder = home.path().join("runtime");
    let runtime = Scripted::open("n", &folder, Script::default(), Ends::untold()).unwrap();
    let socket = runtime.socket();
    tokio::spawn(runtime.serve());
    let cri = Runtime::Cri(Cri::connect(socket).await.unwrap());
    let settings = stoker_agent::Settings { runtime: cri, ..cluster.settings("n", home.path()) };
    let _agent = Agent::start(settings);
    let object = cluster.until("n", |object| object.introduced).await;
    assert!(object.peer.is_none() && !object.features.contains(PEERS), "nobody reads from it");
    let image = cluster.image(&format!("team/app@{}", pushed.manifest));
    cluster.order_from("n", &image, &pushed.manifest, false).await;
    let (key, images) = (Key::of(&image), folder.join("images"));
    let object = cluster.until("n", |object| object.reports.get(&key).is_some_and(|report| report.ended())).await;
    let report = &object.reports[&key];
    assert_eq!((report.phase, report.reason), (Phase::Failed, Some(Reason::SourceNotEnforceable)), "{report:?}");
    assert_eq!((cluster.registry.seen().len(), images.exists()), (0, false), "neither was asked for anything");
    // The same image where it may.
    cluster.order("n", &image, &pushed.manifest).await;
    cluster.until_done("n", &image).await;
    assert!(images.exists());
}

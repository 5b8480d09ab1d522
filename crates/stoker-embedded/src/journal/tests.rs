//! The journal under a whole API: shared syncs, full disks, foreign files. Damaged files and compaction are below, in modules;
//! killed processes in `tests/journal.rs`.

mod compact;
mod cut;

use super::faulty::{Faulty, Hasty};
use super::{Contents, FLOOR, Journal, JournalError, JournalFailure, JournalRow};
use crate::object::{Key, Object};
use crate::store::{Place, Store};
use crate::{Api, Settings, setup};
use futures::future::join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio_util::sync::CancellationToken;

fn settings() -> Settings {
    Settings::new(vec![], Arc::new(jiff::Timestamp::now))
}

fn on(disk: &Arc<Faulty>, path: &Path) -> Result<Api, crate::Error> {
    let (journal, contents) = Journal::open_with(path, disk.clone(), FLOOR)?;
    let keeper = setup::furnish(Store::of(journal, contents), settings())?;
    Ok(Api { keeper, until: CancellationToken::new() })
}

fn open(path: &Path) -> Result<Api, crate::Error> {
    Api::new(Settings { journal: Some(path.to_owned()), ..settings() })
}

fn maps(client: &Client) -> kube::Api<ConfigMap> {
    kube::Api::default_namespaced(client.clone())
}

fn map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": value}})).unwrap()
}

/// Names and values of one commit; no value removes.
type Rows = BTreeMap<&'static str, Option<String>>;
/// Name to revision and value.
type KeptObjects = BTreeMap<String, (u64, String)>;

fn open_hasty(path: &Path) -> Result<(Journal, Contents), JournalError> {
    Journal::open_with(path, Arc::new(Hasty), FLOOR)
}

/// Writes a commit, and does the same to `state`.
fn commit(journal: &mut Journal, rows: &Rows, revision: u64, state: &mut KeptObjects) -> Result<(), JournalFailure> {
    let row = |(name, value): (&&str, &Option<String>)| {
        let place = Place { table: "v1/maps".to_owned(), key: Key::new("default", name) };
        let object = |value| json!({"metadata": {"namespace": "default", "name": name}, "data": value});
        JournalRow { place, after: value.as_ref().map(|value| Arc::new(Object::seal(object(value), revision))) }
    };
    for (name, value) in rows {
        match value {
            Some(value) => drop(state.insert((*name).to_owned(), (revision, value.clone()))),
            None => drop(state.remove(*name)),
        }
    }
    journal.commit(&rows.iter().map(row).collect::<Vec<_>>(), revision)
}

fn state(contents: &Contents) -> KeptObjects {
    let entry = |(place, object): &(Place, Object)| {
        (place.key.name.clone(), (object.revision, object.value["data"].as_str().unwrap().to_owned()))
    };
    contents.objects.iter().map(entry).collect()
}

/// Name to resourceVersion and value of every ConfigMap.
async fn contents(api: &Api) -> BTreeMap<String, (String, String)> {
    let list = maps(&api.client("default")).list(&ListParams::default()).await.unwrap();
    let entry = |m: &ConfigMap| (m.resource_version().unwrap(), m.data.as_ref().unwrap()["k"].clone());
    list.iter().map(|m| (m.name_any(), entry(m))).collect()
}

async fn values(api: &Api) -> BTreeMap<String, String> {
    contents(api).await.into_iter().map(|(name, (_, value))| (name, value)).collect()
}

/// Waits until nobody holds the store any more; a client's worker goes a little after the client.
async fn close(api: Api) {
    let store = Arc::downgrade(&api.keeper.store);
    drop(api);
    while store.strong_count() > 0 {
        tokio::task::yield_now().await;
    }
}

fn code<T: std::fmt::Debug>(result: kube::Result<T>) -> u16 {
    match result.unwrap_err() {
        kube::Error::Api(status) => status.code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn writers_share_a_sync_and_nobody_sees_it_early() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Faulty::new();
    let api = on(&disk, &dir.path().join("journal")).unwrap();
    let client = api.client("default");
    let mut watch = pin!(maps(&client).watch(&WatchParams::default(), "0").await.unwrap());
    let before = disk.syncs.load(Ordering::SeqCst);
    let mark = futures::StreamExt::next(&mut watch).await.unwrap().unwrap();
    assert!(matches!(mark, WatchEvent::Bookmark(_)), "the end of what is there");
    let held = disk.hold();
    let mut writes = Vec::new();
    for number in 0..64 {
        let maps = maps(&client);
        let mut write =
            Box::pin(async move { maps.create(&PostParams::default(), &map(&format!("m{number}"), "1")).await });
        // Submitted, and refused an answer: the first is being written, the others wait for it.
        assert!(futures::poll!(&mut write).is_pending());
        writes.push(write);
    }
    // A client hands its request on before it makes it: only now is every write waiting for the disk.
    while api.keeper.store.inside_namespace("default").len() < 64 {
        tokio::task::yield_now().await;
        for write in &mut writes {
            assert!(futures::poll!(write).is_pending());
        }
    }
    assert_eq!(contents(&api).await.len(), 0, "a reader saw what is not durable");
    assert!(futures::poll!(futures::StreamExt::next(&mut watch)).is_pending(), "a watcher saw what is not durable");
    // A second create is refused only when the first is sure.
    let again = maps(&client);
    let mut again = Box::pin(async move { again.create(&PostParams::default(), &map("m7", "2")).await });
    assert!(futures::poll!(&mut again).is_pending());
    drop(held);
    assert!(join_all(writes).await.into_iter().all(|written| written.is_ok()));
    assert_eq!(code(again.await), 409);
    // Two commits: the first write, with those that came before the writer took it; then all the others.
    let syncs = disk.syncs.load(Ordering::SeqCst) - before;
    assert!(syncs <= 2, "{syncs} syncs for 64 writes");
    assert_eq!(contents(&api).await.len(), 64);
    let mut last = 0;
    for _ in 0..64 {
        match futures::StreamExt::next(&mut watch).await.unwrap().unwrap() {
            WatchEvent::Added(m) => {
                let revision: u64 = m.resource_version().unwrap().parse().unwrap();
                assert!(revision > last, "events come in the order of their revisions");
                last = revision;
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn many_writers_of_one_object_all_arrive() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Faulty::new();
    let api = on(&disk, &dir.path().join("journal")).unwrap();
    let client = api.client("default");
    maps(&client).create(&PostParams::default(), &map("m", "0")).await.unwrap();
    let before = disk.syncs.load(Ordering::SeqCst);
    let held = disk.hold();
    let mut patches = Vec::new();
    for number in 0..64 {
        let maps = maps(&client);
        let patch = kube::api::Patch::Merge(json!({"data": {format!("k{number}"): "1"}}));
        patches.push(Box::pin(async move { maps.patch("m", &Default::default(), &patch).await.map(drop) }));
    }
    let [place] = api.keeper.store.inside_namespace("default").try_into().unwrap();
    let keys = || api.keeper.store.head(&place).unwrap().value["data"].as_object().unwrap().len();
    while keys() < 65 {
        tokio::task::yield_now().await;
        for patch in &mut patches {
            assert!(futures::poll!(patch).is_pending());
        }
    }
    drop(held);
    join_all(patches).await.into_iter().collect::<Result<(), _>>().unwrap();
    assert_eq!(maps(&client).get("m").await.unwrap().data.unwrap().len(), 65);
    let syncs = disk.syncs.load(Ordering::SeqCst) - before;
    assert!(syncs <= 2, "{syncs} syncs for 64 writes");
}

#[tokio::test]
async fn a_full_disk_refuses_and_goes_on_when_there_is_room() {
    let mut refusals = 0;
    // However far a commit comes before the disk is full: each is a write and a sync, and so is taking it back.
    for room in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let disk = Faulty::new();
        let api = on(&disk, &path).unwrap();
        let client = api.client("default");
        let maps = maps(&client);
        let mut wanted = BTreeMap::new();
        for name in ["changed", "deleted"] {
            maps.create(&PostParams::default(), &map(name, "old")).await.unwrap();
            wanted.insert(name.to_owned(), "old".to_owned());
        }
        let version = api.keeper.store.revision().to_string();
        let mut watch = Box::pin(maps.watch(&WatchParams::default(), &version).await.unwrap());
        disk.room.store(room, Ordering::SeqCst);
        let mut events = 0;
        for attempt in 0..4 {
            let (name, value) = [("new", "new"), ("changed", "new"), ("deleted", ""), ("changed", "newer")][attempt];
            let result = match (name, value) {
                ("new", _) => maps.create(&PostParams::default(), &map(name, value)).await.map(drop),
                ("changed", _) => maps.replace(name, &PostParams::default(), &map(name, value)).await.map(drop),
                _ => maps.delete(name, &DeleteParams::default()).await.map(drop),
            };
            match result {
                Ok(()) if value.is_empty() => drop(wanted.remove(name)),
                Ok(()) => drop(wanted.insert(name.to_owned(), value.to_owned())),
                Err(kube::Error::Api(status)) => {
                    assert_eq!((status.code, status.reason.as_str()), (507, "InsufficientStorage"), "{status:?}");
                    assert!(status.message.contains("journal") && status.message.contains("make room"), "{status:?}");
                    refusals += 1;
                    events -= 1;
                }
                Err(other) => panic!("{other}"),
            }
            events += 1;
            assert_eq!(values(&api).await, wanted, "room {room}, attempt {attempt}");
        }
        disk.room.store(-1, Ordering::SeqCst);
        maps.create(&PostParams::default(), &map("after", "x")).await.unwrap();
        wanted.insert("after".to_owned(), "x".to_owned());
        for _ in 0..events {
            futures::StreamExt::next(&mut watch).await.unwrap().unwrap();
        }
        match futures::StreamExt::next(&mut watch).await.unwrap().unwrap() {
            WatchEvent::Added(map) => assert_eq!(map.name_any(), "after", "a watcher saw a refused write"),
            other => panic!("{other:?}"),
        }
        drop((client, maps, watch));
        close(api).await;
        let again = open(&path).unwrap();
        assert_eq!(values(&again).await, wanted, "room {room}: a restart finds what was acknowledged");
    }
    assert!(refusals > 10, "{refusals}");
}

#[tokio::test]
async fn a_refused_write_does_not_come_back_at_the_next_start() {
    for room in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let disk = Faulty::new();
        let api = on(&disk, &path).unwrap();
        let client = api.client("default");
        maps(&client).create(&PostParams::default(), &map("m", "1")).await.unwrap();
        disk.room.store(room, Ordering::SeqCst);
        let refused = maps(&client).replace("m", &PostParams::default(), &map("m", "2")).await.is_err();
        disk.room.store(-1, Ordering::SeqCst);
        drop(client);
        close(api).await;
        let found = contents(&open(&path).unwrap()).await["m"].1.clone();
        assert_eq!(found, if refused { "1" } else { "2" }, "room {room}");
    }
}

#[tokio::test]
async fn files_that_are_no_journal_of_ours_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let named = |path: &Path, parts: &[&str]| {
        let error = open(path).map(drop).unwrap_err().to_string();
        for part in parts.iter().copied().chain([path.to_str().unwrap()]) {
            assert!(error.contains(part), "{error} lacks {part}");
        }
    };
    let text = dir.path().join("text");
    std::fs::write(&text, "not a journal ".repeat(1000)).unwrap();
    named(&text, &["cannot be read", "move it away"]);

    let newer = dir.path().join("newer");
    drop(open(&newer).unwrap());
    let mut bytes = std::fs::read(&newer).unwrap();
    bytes[8] = 7;
    std::fs::write(&newer, bytes).unwrap();
    named(&newer, &["format 7", "reads up to 2"]);

    // Where it has the journal's name, and where it has the name that it used to have.
    let earlier = dir.path().join("earlier.redb");
    std::fs::write(&earlier, b"redb\x1a\x0a\xa9\x0d\x0a and pages").unwrap();
    named(&earlier, &["an earlier build", "move it away"]);
    let error = open(&dir.path().join("earlier")).map(drop).unwrap_err().to_string();
    assert!(error.contains(earlier.to_str().unwrap()) && error.contains("an earlier build"), "{error}");
    assert!(!dir.path().join("earlier").exists(), "nothing is begun beside it");

    let used = dir.path().join("used");
    let first = open(&used).unwrap();
    named(&used, &["in use by another process"]);
    drop(first);
    open(&used).unwrap();
    named(&dir.path().join("missing/journal"), &["cannot be opened", "check the path"]);
}

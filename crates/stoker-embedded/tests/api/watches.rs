//! Watches, as far as no test on a real server can reach: the end of history, slow watchers, the clock, random histories.

use crate::setup::*;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt as _};
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use std::pin::pin;

/// `ADDED a` and so on.
async fn next(stream: &mut (impl Stream<Item = kube::Result<WatchEvent<DynamicObject>>> + Unpin)) -> String {
    match stream.next().await {
        None => "END".to_owned(),
        Some(Ok(WatchEvent::Added(o))) => format!("ADDED {}", o.name_any()),
        Some(Ok(WatchEvent::Modified(o))) => format!("MODIFIED {}", o.name_any()),
        Some(Ok(WatchEvent::Deleted(o))) => format!("DELETED {}", o.name_any()),
        Some(Ok(WatchEvent::Bookmark(b))) if b.metadata.annotations.contains_key("k8s.io/initial-events-end") => {
            "INITIAL END".to_owned()
        }
        Some(Ok(WatchEvent::Bookmark(_))) => "BOOKMARK".to_owned(),
        Some(Ok(WatchEvent::Error(e))) => format!("ERROR {}", e.code),
        Some(Err(e)) => format!("FAILED {e}"),
    }
}

async fn make(client: &Client, name: &str, tier: &str) -> DynamicObject {
    let mut object = widget(name, json!({}));
    object.labels_mut().insert("tier".to_owned(), tier.to_owned());
    widgets(client).create(&PostParams::default(), &object).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_and_the_timeout_ends() {
    let client = client();
    let params = WatchParams::default().timeout(150);
    let mut stream = pin!(widgets(&client).watch(&params, "0").await.unwrap());
    for wanted in ["INITIAL END", "BOOKMARK", "BOOKMARK", "BOOKMARK", "END"] {
        assert_eq!(next(&mut stream).await, wanted);
    }
}

/// More changes than are remembered: by their number, and by their size.
const TOO_MANY: [(usize, usize); 2] = [(6000, 1), (100, 64 << 10)];

/// A ConfigMap with a number in it, and so many bytes besides.
fn map(name: &str, number: usize, filler: usize) -> ConfigMap {
    let data = json!({"number": number.to_string(), "filler": "x".repeat(filler)});
    serde_json::from_value(json!({"metadata": {"name": name}, "data": data})).unwrap()
}

fn number(map: &ConfigMap) -> usize {
    map.data.as_ref().unwrap()["number"].parse().unwrap()
}

async fn change(maps: &Api<ConfigMap>, numbers: std::ops::Range<usize>, filler: usize) {
    for number in numbers {
        maps.replace("m", &PostParams::default(), &map("m", number, filler)).await.unwrap();
    }
}

#[tokio::test]
async fn history_has_an_end() {
    for (count, filler) in TOO_MANY {
        let maps: Api<ConfigMap> = Api::default_namespaced(client());
        let first =
            maps.create(&PostParams::default(), &map("m", 0, filler)).await.unwrap().resource_version().unwrap();
        change(&maps, 1..count, filler).await;
        let mut stream = pin!(maps.watch(&WatchParams::default(), &first).await.unwrap());
        match stream.next().await.unwrap().unwrap() {
            WatchEvent::Error(status) => assert_eq!((status.code, status.reason.as_str()), (410, "Expired")),
            other => panic!("{other:?}"),
        }
        assert!(stream.next().await.is_none());
    }
}

#[tokio::test]
async fn a_watcher_that_does_not_read_is_cut_off() {
    for (count, filler) in TOO_MANY {
        let maps: Api<ConfigMap> = Api::default_namespaced(client());
        let mut stream = pin!(maps.watch(&WatchParams::default(), "0").await.unwrap());
        maps.create(&PostParams::default(), &map("m", 0, filler)).await.unwrap();
        change(&maps, 1..count, filler).await;
        let mut last = None;
        while let Some(event) = stream.try_next().await.unwrap() {
            if let WatchEvent::Modified(map) = &event {
                assert_ne!(number(map), count - 1, "it was told everything");
            }
            last = Some(event);
        }
        assert!(matches!(last, Some(WatchEvent::Error(status)) if status.code == 410));
    }
}

/// kube's watcher is cut off in the same way, says so once, lists again and goes on with nothing missed.
#[tokio::test]
async fn kube_recovers_from_a_410() {
    for (count, filler) in TOO_MANY {
        recovers(count, filler).await;
    }
}

async fn recovers(count: usize, filler: usize) {
    let maps: Api<ConfigMap> = Api::default_namespaced(client());
    maps.create(&PostParams::default(), &map("m", 0, filler)).await.unwrap();
    maps.create(&PostParams::default(), &map("gone", 0, filler)).await.unwrap();
    let mut stream = pin!(watcher::watcher(maps.clone(), watcher::Config::default()));
    while !matches!(stream.next().await.unwrap().unwrap(), Event::InitDone) {}
    // The watch is under way, and then nobody reads it.
    change(&maps, 1..2, filler).await;
    assert!(matches!(stream.next().await.unwrap().unwrap(), Event::Apply(_)));
    change(&maps, 2..count, filler).await;
    maps.delete("gone", &DeleteParams::default()).await.unwrap();
    let mut errors = 0;
    let mut listed = Vec::new();
    loop {
        match stream.next().await.unwrap() {
            Err(watcher::Error::WatchError(status)) => {
                assert_eq!(status.code, 410);
                errors += 1;
            }
            Err(other) => panic!("{other}"),
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(map)) => listed.push((map.name_any(), number(&map))),
            Ok(Event::InitDone) => break,
            Ok(Event::Apply(map)) => assert_ne!(number(&map), count - 1, "it was told everything"),
            Ok(Event::Delete(_)) => {}
        }
    }
    assert_eq!((errors, listed), (1, vec![("m".to_owned(), count - 1)]));
    maps.create(&PostParams::default(), &map("after", 0, 1)).await.unwrap();
    match stream.next().await.unwrap().unwrap() {
        Event::Apply(map) => assert_eq!(map.name_any(), "after"),
        other => panic!("{other:?}"),
    }
}

/// One change that is larger than everything that is remembered still reaches whoever watches.
#[tokio::test]
async fn a_large_object_is_told_of() {
    let maps: Api<ConfigMap> = Api::default_namespaced(client());
    let mut stream = pin!(maps.watch(&WatchParams::default(), "0").await.unwrap());
    assert!(matches!(stream.next().await.unwrap().unwrap(), WatchEvent::Bookmark(_)));
    for number in 0..3 {
        match number {
            0 => drop(maps.create(&PostParams::default(), &map("m", 0, 5 << 19)).await.unwrap()),
            number => change(&maps, number..number + 1, 5 << 19).await,
        }
        match stream.next().await.unwrap().unwrap() {
            WatchEvent::Added(map) | WatchEvent::Modified(map) => {
                assert_eq!(self::number(&map), number);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn watches_end_with_the_api() {
    let api = start();
    let client = api.client("default");
    let mut stream = pin!(widgets(&client).watch(&WatchParams::default(), "0").await.unwrap());
    assert_eq!(next(&mut stream).await, "INITIAL END");
    api.end_watches();
    assert_eq!(next(&mut stream).await, "END");
    assert!(widgets(&client).list(&ListParams::default()).await.is_ok());
}

/// What a client does to one of a few objects.
#[derive(Debug, Clone)]
enum Step {
    Make(u8, bool),
    Label(u8, bool),
    Delete(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..4_u8, any::<bool>()).prop_map(|(name, tier)| Step::Make(name, tier)),
        (0..4_u8, any::<bool>()).prop_map(|(name, tier)| Step::Label(name, tier)),
        (0..4_u8).prop_map(Step::Delete),
    ]
}

async fn take(client: &Client, step: &Step) {
    let tier = |x: bool| if x { "x" } else { "y" };
    let api = widgets(client);
    // Steps on what is, or is not, there already are refused, which is fine here.
    match step {
        Step::Make(name, x) => {
            let mut object = widget(&format!("w{name}"), json!({}));
            object.labels_mut().insert("tier".to_owned(), tier(*x).to_owned());
            let _ = api.create(&PostParams::default(), &object).await;
        }
        Step::Label(name, x) => {
            let patch = Patch::Merge(json!({"metadata": {"labels": {"tier": tier(*x)}}}));
            let _ = api.patch(&format!("w{name}"), &PatchParams::default(), &patch).await;
        }
        Step::Delete(name) => {
            let _ = api.delete(&format!("w{name}"), &DeleteParams::default()).await;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever happens, whoever lists at some moment and watches from there ends with what a later list shows, and never hears
    /// of an object out of turn.
    #[test]
    fn list_and_watch_is_the_same_as_listing_later(before in prop::collection::vec(step(), 0..12), after in prop::collection::vec(step(), 0..12)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = client();
            for step in &before {
                take(&client, step).await;
            }
            let params = ListParams::default().labels("tier=x");
            let list = widgets(&client).list(&params).await.unwrap();
            let version = list.metadata.resource_version.unwrap();
            let mut known: BTreeMap<String, Option<String>> =
                list.items.iter().map(|o| (o.name_any(), o.resource_version())).collect();
            for step in &after {
                take(&client, step).await;
            }
            make(&client, "last", "x").await;
            let watch = WatchParams::default().labels("tier=x");
            let mut stream = pin!(widgets(&client).watch(&watch, &version).await.unwrap());
            while !known.contains_key("last") {
                match stream.next().await.unwrap().unwrap() {
                    WatchEvent::Added(o) => assert!(known.insert(o.name_any(), o.resource_version()).is_none()),
                    WatchEvent::Modified(o) => assert!(known.insert(o.name_any(), o.resource_version()).is_some()),
                    WatchEvent::Deleted(o) => assert!(known.remove(&o.name_any()).is_some()),
                    other => panic!("{other:?}"),
                }
            }
            let now = widgets(&client).list(&params).await.unwrap();
            let now: BTreeMap<String, Option<String>> =
                now.items.iter().map(|o| (o.name_any(), o.resource_version())).collect();
            assert_eq!(known, now);
        });
    }
}

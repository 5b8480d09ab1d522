//! Watches: where they begin, what they say, when they end; and kube's own watcher on top.

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

async fn label(client: &Client, name: &str, tier: &str) {
    let patch = Patch::Merge(json!({"metadata": {"labels": {"tier": tier}}}));
    widgets(client).patch(name, &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test]
async fn a_watch_begins_where_it_is_told() {
    let client = client();
    let first = make(&client, "a", "x").await;
    make(&client, "b", "x").await;
    let version = first.resource_version().unwrap();
    for (start, events) in
        [(version.as_str(), vec!["ADDED b", "DELETED a"]), ("0", vec!["ADDED a", "ADDED b", "DELETED a"])]
    {
        let mut stream = pin!(widgets(&client).watch(&WatchParams::default(), start).await.unwrap());
        for (at, wanted) in events.iter().enumerate() {
            if at + 1 == events.len() {
                widgets(&client).delete("a", &DeleteParams::default()).await.unwrap();
            }
            assert_eq!(next(&mut stream).await, *wanted);
        }
        make(&client, "a", "x").await;
    }
}

#[tokio::test]
async fn selectors_make_objects_come_and_go() {
    let client = client();
    make(&client, "a", "x").await;
    let params = WatchParams::default().labels("tier=x");
    let mut stream = pin!(widgets(&client).watch(&params, "0").await.unwrap());
    assert_eq!(next(&mut stream).await, "ADDED a");
    make(&client, "b", "y").await;
    label(&client, "a", "y").await;
    assert_eq!(next(&mut stream).await, "DELETED a");
    label(&client, "b", "x").await;
    assert_eq!(next(&mut stream).await, "ADDED b");
    label(&client, "b", "x").await;
    widgets(&client).delete("b", &DeleteParams::default()).await.unwrap();
    assert_eq!(next(&mut stream).await, "DELETED b");
}

#[tokio::test]
async fn a_watch_of_one_name_hears_of_one_object() {
    let client = client();
    let params = WatchParams::default().fields("metadata.name=b");
    let mut stream = pin!(widgets(&client).watch(&params, "0").await.unwrap());
    make(&client, "a", "x").await;
    make(&client, "b", "x").await;
    assert_eq!(next(&mut stream).await, "ADDED b");
    label(&client, "a", "y").await;
    label(&client, "b", "y").await;
    assert_eq!(next(&mut stream).await, "MODIFIED b");
}

#[tokio::test]
async fn a_streaming_list_marks_its_end() {
    let client = client();
    make(&client, "a", "x").await;
    let params = WatchParams::default().initial_events();
    let mut stream = pin!(widgets(&client).watch(&params, "0").await.unwrap());
    assert_eq!(next(&mut stream).await, "ADDED a");
    assert_eq!(next(&mut stream).await, "INITIAL END");
    make(&client, "b", "x").await;
    assert_eq!(next(&mut stream).await, "ADDED b");
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_and_the_timeout_ends() {
    let client = client();
    let params = WatchParams::default().timeout(150);
    let mut stream = pin!(widgets(&client).watch(&params, "0").await.unwrap());
    for wanted in ["BOOKMARK", "BOOKMARK", "BOOKMARK", "END"] {
        assert_eq!(next(&mut stream).await, wanted);
    }
}

#[tokio::test]
async fn history_has_an_end() {
    let client = client();
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let map = |data: usize| -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": "m"}, "data": {"k": data.to_string()}})).unwrap()
    };
    let first = maps.create(&PostParams::default(), &map(0)).await.unwrap().resource_version().unwrap();
    for data in 1..5000 {
        maps.replace("m", &PostParams::default(), &map(data)).await.unwrap();
    }
    let mut stream = pin!(maps.watch(&WatchParams::default(), &first).await.unwrap());
    match stream.next().await.unwrap().unwrap() {
        WatchEvent::Error(status) => assert_eq!((status.code, status.reason.as_str()), (410, "Expired")),
        other => panic!("{other:?}"),
    }
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn a_watcher_that_does_not_read_is_cut_off() {
    let client = client();
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let mut stream = pin!(maps.watch(&WatchParams::default(), "0").await.unwrap());
    let map = |data: usize| -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": "m"}, "data": {"k": data.to_string()}})).unwrap()
    };
    maps.create(&PostParams::default(), &map(0)).await.unwrap();
    for data in 1..6000 {
        maps.replace("m", &PostParams::default(), &map(data)).await.unwrap();
    }
    let mut last = None;
    while let Some(event) = stream.try_next().await.unwrap() {
        last = Some(event);
    }
    assert!(matches!(last, Some(WatchEvent::Error(status)) if status.code == 410));
}

#[tokio::test]
async fn watches_end_with_the_api() {
    let api = start();
    let client = api.client("default");
    let mut stream = pin!(widgets(&client).watch(&WatchParams::default(), "0").await.unwrap());
    api.end_watches();
    assert_eq!(next(&mut stream).await, "END");
    assert!(widgets(&client).list(&ListParams::default()).await.is_ok());
}

async fn follows(config: watcher::Config) {
    let client = client();
    make(&client, "a", "x").await;
    let mut stream = pin!(watcher::watcher(widgets(&client), config));
    let mut seen = Vec::new();
    for wanted in 0..6 {
        match wanted {
            3 => drop(make(&client, "b", "x").await),
            4 => label(&client, "b", "y").await,
            5 => drop(widgets(&client).delete("a", &DeleteParams::default()).await.unwrap()),
            _ => {}
        }
        seen.push(match stream.try_next().await.unwrap().unwrap() {
            Event::Init => "init".to_owned(),
            Event::InitApply(o) => format!("init {}", o.name_any()),
            Event::InitDone => "done".to_owned(),
            Event::Apply(o) => format!("apply {}", o.name_any()),
            Event::Delete(o) => format!("delete {}", o.name_any()),
        });
    }
    assert_eq!(seen, ["init", "init a", "done", "apply b", "apply b", "delete a"]);
}

#[tokio::test]
async fn kube_watches_by_list_and_watch() {
    follows(watcher::Config::default()).await;
}

#[tokio::test]
async fn kube_watches_by_pages() {
    follows(watcher::Config::default().page_size(1)).await;
}

#[tokio::test]
async fn kube_watches_by_streaming_list() {
    follows(watcher::Config::default().streaming_lists()).await;
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

#[tokio::test]
async fn a_no_op_write_is_no_event() {
    let client = client();
    make(&client, "a", "x").await;
    let mut stream = pin!(widgets(&client).watch(&WatchParams::default(), "0").await.unwrap());
    assert_eq!(next(&mut stream).await, "ADDED a");
    label(&client, "a", "x").await;
    make(&client, "b", "x").await;
    assert_eq!(next(&mut stream).await, "ADDED b");
}

//! Watches: where they begin, what they say, when they end; and kube's own watcher on top.

use crate::server::*;
use futures::{Stream, StreamExt as _, TryStreamExt as _};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::runtime::watcher::{self, Event};
use serde_json::json;
use std::pin::pin;

/// `ADDED a` and so on; plain bookmarks come when they like and are left out.
pub(crate) async fn next(stream: &mut (impl Stream<Item = kube::Result<WatchEvent<DynamicObject>>> + Unpin)) -> String {
    loop {
        return match stream.next().await {
            None => "END".to_owned(),
            Some(Ok(WatchEvent::Added(o))) => format!("ADDED {}", o.name_any()),
            Some(Ok(WatchEvent::Modified(o))) => format!("MODIFIED {}", o.name_any()),
            Some(Ok(WatchEvent::Deleted(o))) => format!("DELETED {}", o.name_any()),
            Some(Ok(WatchEvent::Bookmark(b))) if b.metadata.annotations.contains_key("k8s.io/initial-events-end") => {
                "INITIAL END".to_owned()
            }
            Some(Ok(WatchEvent::Bookmark(_))) => continue,
            Some(Ok(WatchEvent::Error(e))) => format!("ERROR {}", e.code),
            Some(Err(e)) => format!("FAILED {e}"),
        };
    }
}

pub(crate) async fn make(server: &Server, name: &str, tier: &str) -> DynamicObject {
    let mut object = widget(name, json!({}));
    object.labels_mut().insert("tier".to_owned(), tier.to_owned());
    server.widgets().create(&PostParams::default(), &object).await.unwrap()
}

/// Without bookmarks, and so without the mark behind the state that some servers cannot give (see `streams`).
fn plain() -> WatchParams {
    WatchParams::default().disable_bookmarks()
}

async fn label(server: &Server, name: &str, tier: &str) {
    let patch = Patch::Merge(json!({"metadata": {"labels": {"tier": tier}}}));
    server.widgets().patch(name, &PatchParams::default(), &patch).await.unwrap();
}

pub(crate) async fn a_watch_begins_where_it_is_told(server: Server) {
    let first = make(&server, "a", "x").await;
    make(&server, "b", "x").await;
    let version = first.resource_version().unwrap();
    let mut stream = pin!(server.widgets().watch(&WatchParams::default(), &version).await.unwrap());
    assert_eq!(next(&mut stream).await, "ADDED b");
    server.widgets().delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(next(&mut stream).await, "DELETED a");
    let mut stream = pin!(server.widgets().watch(&plain(), "0").await.unwrap());
    assert_eq!(next(&mut stream).await, "ADDED b");
    make(&server, "a", "x").await;
    assert_eq!(next(&mut stream).await, "ADDED a");
}

pub(crate) async fn selectors_make_objects_come_and_go(server: Server) {
    make(&server, "a", "x").await;
    let params = plain().labels("tier=x");
    let mut stream = pin!(server.widgets().watch(&params, "0").await.unwrap());
    assert_eq!(next(&mut stream).await, "ADDED a");
    make(&server, "b", "y").await;
    label(&server, "a", "y").await;
    assert_eq!(next(&mut stream).await, "DELETED a");
    label(&server, "b", "x").await;
    assert_eq!(next(&mut stream).await, "ADDED b");
    label(&server, "b", "x").await;
    server.widgets().delete("b", &DeleteParams::default()).await.unwrap();
    assert_eq!(next(&mut stream).await, "DELETED b");
}

pub(crate) async fn a_watch_of_one_name_hears_of_one_object(server: Server) {
    let params = plain().fields("metadata.name=b");
    let mut stream = pin!(server.widgets().watch(&params, "0").await.unwrap());
    make(&server, "a", "x").await;
    make(&server, "b", "x").await;
    assert_eq!(next(&mut stream).await, "ADDED b");
    label(&server, "a", "y").await;
    label(&server, "b", "y").await;
    assert_eq!(next(&mut stream).await, "MODIFIED b");
}

pub(crate) async fn the_timeout_ends_a_watch(server: Server) {
    let params = plain().timeout(1);
    let mut stream = pin!(server.widgets().watch(&params, "0").await.unwrap());
    assert_eq!(next(&mut stream).await, "END");
}

pub(crate) async fn follows(server: Server, config: watcher::Config) {
    make(&server, "a", "x").await;
    let mut stream = pin!(watcher::watcher(server.widgets(), config));
    let mut seen = Vec::new();
    for wanted in 0..6 {
        match wanted {
            3 => drop(make(&server, "b", "x").await),
            4 => label(&server, "b", "y").await,
            5 => drop(server.widgets().delete("a", &DeleteParams::default()).await.unwrap()),
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

pub(crate) async fn kube_watches_by_list_and_watch(server: Server) {
    follows(server, watcher::Config::default()).await;
}

pub(crate) async fn kube_watches_by_pages(server: Server) {
    follows(server, watcher::Config::default().page_size(1)).await;
}

pub(crate) async fn a_no_op_write_is_no_event(server: Server) {
    make(&server, "a", "x").await;
    let mut stream = pin!(server.widgets().watch(&plain(), "0").await.unwrap());
    assert_eq!(next(&mut stream).await, "ADDED a");
    label(&server, "a", "x").await;
    make(&server, "b", "x").await;
    assert_eq!(next(&mut stream).await, "ADDED b");
}

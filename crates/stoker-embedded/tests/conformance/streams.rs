//! Lists as streams: a watch that begins with the state, and marks its end. A real server can do that from 1.34 on, over an
//! etcd that tells how far a watch has come (3.4.31, 3.5.13 or newer); one that cannot says so, and these are left out there.

use crate::server::*;
use crate::watches::{follows, make, next};
use futures::StreamExt as _;
use kube::api::{WatchEvent, WatchParams};
use kube::runtime::watcher;
use std::pin::pin;

/// What a server says that cannot, instead of a list.
pub(crate) async fn lack(server: &Server) -> Option<String> {
    let params = WatchParams::default().initial_events();
    let mut stream = pin!(server.widgets().watch(&params, "0").await.unwrap());
    match stream.next().await {
        Some(Ok(WatchEvent::Error(status))) if status.code == 500 => Some(status.message),
        _ => None,
    }
}

pub(crate) async fn a_streaming_list_marks_its_end(server: Server) {
    make(&server, "a", "x").await;
    let params = WatchParams::default().initial_events();
    let mut stream = pin!(server.widgets().watch(&params, "0").await.unwrap());
    assert_eq!(next(&mut stream).await, "ADDED a");
    assert_eq!(next(&mut stream).await, "INITIAL END");
    make(&server, "b", "x").await;
    assert_eq!(next(&mut stream).await, "ADDED b");
}

/// The end of the state is marked for whoever takes bookmarks, asked for or not.
pub(crate) async fn a_watch_of_the_state_marks_its_end(server: Server) {
    make(&server, "a", "x").await;
    let mut stream = pin!(server.widgets().watch(&WatchParams::default(), "0").await.unwrap());
    assert_eq!(next(&mut stream).await, "ADDED a");
    assert_eq!(next(&mut stream).await, "INITIAL END");
    make(&server, "b", "x").await;
    assert_eq!(next(&mut stream).await, "ADDED b");
}

pub(crate) async fn kube_watches_by_streaming_list(server: Server) {
    follows(server, watcher::Config::default().streaming_lists()).await;
}

//! A journal that was cut off opens at its last whole write, and the log says so. In a process of its own, because what is
//! logged is decided once for all threads.
// Functions that tests share fail as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::{ListParams, PostParams};
use serde_json::json;
use std::path::Path;
use std::sync::{Arc, Mutex};
use stoker_embedded::{Api, Error, JournalError, Settings};

/// What is logged, for a test to read.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

async fn open(path: &Path) -> Api {
    let settings = Settings { journal: Some(path.to_owned()), ..Settings::new(vec![], Arc::new(jiff::Timestamp::now)) };
    // The worker of the client before goes a moment after it: until then the file is in use.
    loop {
        match Api::new(settings.clone()) {
            Err(Error::Journal(JournalError::InUse { .. })) => tokio::task::yield_now().await,
            other => return other.unwrap(),
        }
    }
}

fn maps(api: &Api) -> kube::Api<ConfigMap> {
    kube::Api::default_namespaced(api.client("default"))
}

async fn create(api: &Api, name: &str) {
    let map = serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": "x".repeat(5000)}})).unwrap();
    maps(api).create(&PostParams::default(), &map).await.unwrap();
}

async fn names(api: &Api) -> Vec<String> {
    maps(api).list(&ListParams::default()).await.unwrap().iter().map(|map| map.name_any()).collect()
}

#[tokio::test]
async fn a_cut_opens_at_the_last_whole_write_and_is_said() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let api = open(&path).await;
    for name in ["a", "b", "c"] {
        create(&api, name).await;
    }
    drop(api);
    drop(open(&path).await);
    assert_eq!(log.take(), "", "nothing is said of a whole one");

    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 2500).unwrap();
    let api = open(&path).await;
    let said = log.take();
    for part in ["WARN", "was cut off", "last whole write", "dropped_bytes=", "revision=", path.to_str().unwrap()] {
        assert!(said.contains(part), "{said} lacks {part}");
    }
    assert_eq!(names(&api).await, ["a", "b"]);
    create(&api, "d").await;
    drop(api);
    let api = open(&path).await;
    assert_eq!(names(&api).await, ["a", "b", "d"]);
    drop(api);
    assert_eq!(log.take(), "", "once is enough");

    std::fs::write(&path, "").unwrap();
    let api = open(&path).await;
    assert!(log.take().contains("was cut off"), "a file that lost everything");
    assert_eq!(names(&api).await, Vec::<String>::new());
}

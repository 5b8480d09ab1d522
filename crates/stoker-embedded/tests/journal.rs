//! What a restart finds: everything that was acknowledged, after kill -9 too; revisions go on; watches begin anew. The child that
//! is killed is this test binary itself, started for one test with a journal in its environment.
// Functions that tests share fail as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::pin::pin;
use std::process::Stdio;
use std::sync::Arc;
use stoker_embedded::Settings;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

/// Names the journal for the child.
const JOURNAL: &str = "STOKER_TEST_CHILD_JOURNAL";
/// Names how the child's objects begin.
const PREFIX: &str = "STOKER_TEST_CHILD_PREFIX";

async fn open(path: &Path, crds: Vec<Value>) -> stoker_embedded::Api {
    let clock = Arc::new(jiff::Timestamp::now);
    let settings = Settings { journal: Some(path.to_owned()), ..Settings::new(crds, clock) };
    // The worker of the client before goes a moment after it: until then the file is in use.
    loop {
        match stoker_embedded::Api::new(settings.clone()) {
            Err(stoker_embedded::Error::Journal(stoker_embedded::JournalError::InUse { .. })) => {
                tokio::task::yield_now().await;
            }
            other => return other.unwrap(),
        }
    }
}

fn maps(client: &Client) -> Api<ConfigMap> {
    Api::default_namespaced(client.clone())
}

fn map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"k": value}})).unwrap()
}

/// The child: creates, changes and deletes as fast as it can, and says what was acknowledged. It ends by being killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_until_it_is_killed() {
    let (Ok(journal), Ok(prefix)) = (std::env::var(JOURNAL), std::env::var(PREFIX)) else { return };
    let client = open(Path::new(&journal), vec![]).await.client("default");
    let one = |number: usize| {
        let (maps, name) = (maps(&client), format!("{prefix}-{number}"));
        async move {
            let made = maps.create(&PostParams::default(), &map(&name, "1")).await.unwrap();
            println!("\nPUT {name} {} {}", made.resource_version().unwrap(), made.uid().unwrap());
            if number.is_multiple_of(3) {
                let changed = maps.replace(&name, &PostParams::default(), &map(&name, "2")).await.unwrap();
                println!("\nPUT {name} {} {}", changed.resource_version().unwrap(), changed.uid().unwrap());
            }
            if number.is_multiple_of(5) {
                println!("\nGOING {name}");
                maps.delete(&name, &DeleteParams::default()).await.unwrap();
                println!("\nGONE {name}");
            }
        }
    };
    let mut writers: FuturesUnordered<_> = (0..16).map(one).collect();
    let mut next = 16;
    while writers.next().await.is_some() {
        writers.push(one(next));
        next += 1;
    }
}

/// What the child said before it was killed: resourceVersion and uid of what is there, and what may or must be gone.
#[derive(Default)]
struct Said {
    put: BTreeMap<String, (u64, String)>,
    going: BTreeMap<String, bool>,
}

async fn run_and_kill(journal: &Path, prefix: &str, after: usize, said: &mut Said) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writes_until_it_is_killed", "--nocapture"])
        .env(JOURNAL, journal)
        .env(PREFIX, prefix)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut heard = 0;
    while let Some(line) = lines.next_line().await.unwrap() {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["PUT", name, version, uid] => {
                let version = version.parse().unwrap();
                said.put.insert((*name).to_owned(), (version, (*uid).to_owned()));
            }
            ["GOING", name] => drop(said.going.insert((*name).to_owned(), false)),
            ["GONE", name] => drop(said.going.insert((*name).to_owned(), true)),
            _ => continue,
        }
        heard += 1;
        if heard == after {
            // SIGKILL. What it said meanwhile is still in the pipe, and counts.
            child.start_kill().unwrap();
        }
    }
    child.wait().await.unwrap();
    assert!(heard >= after, "the child ended by itself after {heard} lines");
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_by_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let mut said = Said::default();
    let mut newest = 0;
    for round in 0..6 {
        run_and_kill(&journal, &format!("r{round}"), 40 + 37 * round, &mut said).await;
        let api = open(&journal, vec![]).await;
        let client = api.client("default");
        let list = maps(&client).list(&ListParams::default()).await.unwrap();
        let revision: u64 = list.metadata.resource_version.clone().unwrap().parse().unwrap();
        let found: BTreeMap<String, &ConfigMap> = list.iter().map(|m| (m.name_any(), m)).collect();
        for (name, (version, uid)) in &said.put {
            assert!(revision >= *version, "the revision fell");
            match (found.get(name), said.going.get(name)) {
                (None, Some(_)) => {}
                (Some(_), Some(true)) => panic!("{name} came back"),
                (None, None) => panic!("{name} at {version} is lost"),
                (Some(found), _) => {
                    let stored: u64 = found.resource_version().unwrap().parse().unwrap();
                    assert!(stored >= *version, "{name} is at {stored} and was acknowledged at {version}");
                    assert_eq!(found.uid().as_ref(), Some(uid), "{name}");
                }
            }
        }
        assert!(revision > newest, "revisions go on");
        let next = maps(&client).create(&PostParams::default(), &map(&format!("between-{round}"), "x")).await.unwrap();
        newest = next.resource_version().unwrap().parse().unwrap();
        assert_eq!(newest, revision + 1);
    }
    assert!(said.put.len() > 100, "{}", said.put.len());
}

#[tokio::test]
async fn a_restart_ends_history_and_keeps_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let client = open(&journal, vec![]).await.client("default");
    let first = maps(&client).create(&PostParams::default(), &map("a", "1")).await.unwrap();
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": first.uid().unwrap()}]);
    let mut owned = map("owned", "1");
    owned.metadata.owner_references = serde_json::from_value(owner).unwrap();
    let last = maps(&client).create(&PostParams::default(), &owned).await.unwrap();
    drop(client);

    let client = open(&journal, vec![]).await.client("default");
    assert_eq!(maps(&client).get("a").await.unwrap(), first);
    let old = maps(&client).watch(&WatchParams::default(), &first.resource_version().unwrap()).await.unwrap();
    match pin!(old).next().await.unwrap().unwrap() {
        WatchEvent::Error(status) => assert_eq!((status.code, status.reason.as_str()), (410, "Expired")),
        other => panic!("{other:?}"),
    }
    let list = maps(&client).list(&ListParams::default()).await.unwrap();
    assert_eq!(list.metadata.resource_version, last.resource_version());
    let mut watch =
        pin!(maps(&client).watch(&WatchParams::default(), &last.resource_version().unwrap()).await.unwrap());
    // What was owned before the restart is still owned.
    maps(&client).delete("a", &DeleteParams::default()).await.unwrap();
    for name in ["a", "owned"] {
        match watch.next().await.unwrap().unwrap() {
            WatchEvent::Deleted(map) => assert_eq!(map.name_any(), name),
            other => panic!("{other:?}"),
        }
    }
}

fn dynamic(client: &Client, group: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
    match kind {
        "CustomResourceDefinition" => Api::all_with(client.clone(), &resource),
        _ => Api::namespaced_with(client.clone(), "default", &resource),
    }
}

#[tokio::test]
async fn a_new_schema_wins_and_objects_stay() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let mut crd: Value = serde_json::from_str(include_str!("support/widget.json")).unwrap();
    let client = open(&journal, vec![crd.clone()]).await.client("default");
    let widget =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"tags": ["a"]}});
    let widget: DynamicObject = serde_json::from_value(widget).unwrap();
    let made = dynamic(&client, "example.com", "Widget").create(&PostParams::default(), &widget).await.unwrap();
    let definitions = dynamic(&client, "apiextensions.k8s.io", "CustomResourceDefinition");
    let stored = definitions.get("widgets.example.com").await.unwrap();
    drop((client, definitions));

    // The same definition: nothing is written.
    let client = open(&journal, vec![crd.clone()]).await.client("default");
    let definitions = dynamic(&client, "apiextensions.k8s.io", "CustomResourceDefinition");
    assert_eq!(definitions.get("widgets.example.com").await.unwrap(), stored);
    drop((client, definitions));

    let properties = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    crd.pointer_mut(properties).unwrap()["fresh"] = json!({"type": "string", "default": "yes"});
    let client = open(&journal, vec![crd.clone()]).await.client("default");
    let definitions = dynamic(&client, "apiextensions.k8s.io", "CustomResourceDefinition");
    let renewed = definitions.get("widgets.example.com").await.unwrap();
    assert_eq!((renewed.uid(), renewed.metadata.generation), (stored.uid(), Some(2)));
    let seen = dynamic(&client, "example.com", "Widget").get("w").await.unwrap();
    assert_eq!((seen.uid(), &seen.data["spec"]["fresh"]), (made.uid(), &json!("yes")));
    drop((client, definitions));

    // Without any definition given, the stored one serves.
    let client = open(&journal, vec![]).await.client("default");
    assert_eq!(dynamic(&client, "example.com", "Widget").list(&ListParams::default()).await.unwrap().items.len(), 1);
    drop(client);

    // A change that would orphan the objects is refused by name.
    crd["spec"]["scope"] = json!("Cluster");
    let settings = Settings { journal: Some(journal), ..Settings::new(vec![crd], Arc::new(jiff::Timestamp::now)) };
    let error = loop {
        match stoker_embedded::Api::new(settings.clone()).map(drop).unwrap_err() {
            stoker_embedded::Error::Journal(_) => tokio::task::yield_now().await,
            other => break other.to_string(),
        }
    };
    assert!(error.contains("widgets.example.com") && error.contains("spec.scope"), "{error}");
}

/// An upgrade that stores another version, and the way back.
#[tokio::test]
async fn objects_of_before_are_served_when_another_version_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let before: Value = serde_json::from_str(include_str!("support/widget.json")).unwrap();
    let mut after = before.clone();
    for (at, storage) in [(0, false), (1, true)] {
        after["spec"]["versions"][at]["storage"] = json!(storage);
    }
    let of = |client: &Client, version: &str| -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", version, "Widget"));
        Api::namespaced_with(client.clone(), "default", &resource)
    };
    let object =
        json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"mode": "Once"}});
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let client = open(&journal, vec![before.clone()]).await.client("default");
    let made = of(&client, "v1").create(&PostParams::default(), &object).await.unwrap();
    drop(client);
    for (definition, stored) in [(after, json!(["v1", "v1beta1"])), (before, json!(["v1", "v1beta1"]))] {
        let client = open(&journal, vec![definition]).await.client("default");
        for version in ["v1", "v1beta1"] {
            let seen = of(&client, version).get("w").await.unwrap();
            assert_eq!(seen.types.as_ref().unwrap().api_version, format!("example.com/{version}"));
            assert_eq!((seen.uid(), &seen.data["spec"]["mode"]), (made.uid(), &json!("Once")));
        }
        let crd = dynamic(&client, "apiextensions.k8s.io", "CustomResourceDefinition");
        assert_eq!(crd.get("widgets.example.com").await.unwrap().data["status"]["storedVersions"], stored);
    }
}

#[tokio::test]
async fn the_journal_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    drop(open(&journal, vec![]).await);
    assert_eq!(std::fs::metadata(&journal).unwrap().permissions().mode() & 0o777, 0o600);
}

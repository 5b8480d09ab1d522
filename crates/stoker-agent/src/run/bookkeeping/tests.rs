use super::*;
use crate::testing::{at, order};

use stoker_core::model::Pin;
use stoker_core::step::{begin, succeed};

fn key() -> Key {
    Key::of("r/i:1")
}

fn digest() -> String {
    format!("sha256:{}", "a".repeat(64))
}

fn object(uid: &str, generation: i64) -> NodeObject {
    let mut object = NodeObject::default();
    (object.metadata.uid, object.metadata.generation) = (Some(uid.into()), Some(generation));
    object
}

fn books(dir: &tempfile::TempDir) -> Bookkeeping {
    let path = dir.path().join("ledger.json");
    let written = Ledger::load(&path).unwrap();
    Bookkeeping::recover(path, written).0
}

#[test]
fn an_older_generation_of_the_same_object_is_refused_unless_a_list_says_it() {
    let dir = tempfile::tempdir().unwrap();
    for (what, uid, generation, listed, accepted) in [
        ("newer", "a", 8, false, true),
        ("the same", "a", 7, false, true),
        ("older", "a", 6, false, false),
        ("older in a list", "a", 6, true, true),
        ("another object", "b", 1, false, true),
    ] {
        let (mut books, object, first) = (books(&dir), object(uid, generation), object("a", 7));
        assert!(books.accept(&first), "{what}");
        if listed {
            books.relist(&object);
        }
        assert_eq!(books.accept(&object), accepted, "{what}");
        let last = if accepted { (uid.to_string(), generation) } else { ("a".into(), 7) };
        assert_eq!(books.source, last, "{what}");
    }
}

#[tokio::test]
async fn orders_and_answers_are_noted_before_they_count_and_found_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (mut books, starts) = (books(&dir), Starts::default());
    let login = SealedLogin { key: "k".into(), sealed: "box".into() };
    let logins = BTreeMap::from([(LoginId::new("0a"), login)]);
    assert!(books.accept(&object("a", 7)));
    books.set(BTreeMap::from([(key(), order())]), BTreeMap::new(), logins.clone());
    let mut tasks = BTreeMap::new();
    assert!(!books.is_noted(&tasks), "the orders are new");
    books.note(&tasks, &starts).await;
    assert!(books.is_noted(&tasks));

    tasks.insert(key(), begin(&order(), 1, None, at(0)));
    assert!(books.is_noted(&tasks), "a start is told to nobody else");
    tasks.get_mut(&key()).unwrap().report.pin = Some(Pin::new(at(0), digest()));
    assert!(!books.is_noted(&tasks), "all nodes will take this digest");
    books.note(&tasks, &starts).await;
    assert!(books.is_noted(&tasks));
    let done = succeed(&order(), &tasks[&key()], digest(), Bytes::default(), at(2));
    tasks.insert(key(), done.clone());
    assert!(books.is_noted(&tasks), "an end may be told first");
    books.note(&tasks, &starts).await;

    let path = dir.path().join("ledger.json");
    let written = Ledger::load(&path).unwrap();
    assert_eq!(written.reports, BTreeMap::from([(key(), done.report)]));
    let (again, sealed) = Bookkeeping::recover(path, written);
    assert_eq!((again.orders(), &again.source), (books.orders(), &("a".into(), 7)));
    assert_eq!(**sealed.borrow(), logins);
}

#[tokio::test]
async fn progress_is_not_worth_a_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger.json");
    let (mut books, mut starts) = (books(&dir), Starts::default());
    books.set(BTreeMap::from([(key(), order())]), BTreeMap::new(), BTreeMap::new());
    let mut task = begin(&order(), 1, None, at(0));
    task.report.pin = Some(Pin::new(at(0), digest()));
    let mut tasks = BTreeMap::from([(key(), task)]);
    books.note(&tasks, &starts).await;
    std::fs::remove_file(&path).unwrap();
    let report = &mut tasks.get_mut(&key()).unwrap().report;
    (report.bytes, report.updated) = (Bytes { total: 9, done: 5, ..Bytes::default() }, at(5));
    books.note(&tasks, &starts).await;
    assert!(!path.exists(), "nothing was written");
    starts.begin(key(), at(0), 0);
    books.note(&tasks, &starts).await;
    assert!(path.exists(), "how often an order was begun is");
}

#[tokio::test]
async fn a_disk_that_refuses_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let below = dir.path().join("missing");
    let (mut books, _) = Bookkeeping::recover(below.join("ledger.json"), Ledger::default());
    let (tasks, starts) = (BTreeMap::new(), Starts::default());
    books.set(BTreeMap::from([(key(), order())]), BTreeMap::new(), BTreeMap::new());
    books.note(&tasks, &starts).await;
    assert!(!books.is_noted(&tasks));
    std::fs::create_dir(below).unwrap();
    books.note(&tasks, &starts).await;
    assert!(books.is_noted(&tasks));
}

#[test]
fn logins_are_told_to_attempts_when_they_change() {
    let dir = tempfile::tempdir().unwrap();
    let (mut books, mut sealed) = Bookkeeping::recover(dir.path().join("ledger.json"), Ledger::default());
    let logins = BTreeMap::from([(LoginId::new("0a"), SealedLogin { key: "k".into(), sealed: "box".into() })]);
    books.set(BTreeMap::new(), BTreeMap::new(), logins.clone());
    assert!(sealed.has_changed().unwrap());
    assert_eq!(**sealed.borrow_and_update(), logins);
    books.set(BTreeMap::from([(key(), order())]), BTreeMap::new(), logins);
    assert!(!sealed.has_changed().unwrap(), "the same ones");
    books.forget();
    assert!(books.orders().is_empty() && sealed.borrow_and_update().is_empty());
}

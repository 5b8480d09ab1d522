use super::*;
use crate::testing::at;

const HOUR: Duration = Duration::from_secs(3600);

fn names(all: &[&str]) -> BTreeSet<String> {
    all.iter().map(|name| name.to_string()).collect()
}

fn pull(blobs: &[&str], left: Option<(i64, u64)>) -> PullNote {
    PullNote { blobs: names(blobs), left: left.map(|(since, bytes)| LeftBehind { since: at(since), bytes }) }
}

fn file(digest: &str, bytes: u64, written: i64) -> LeftFile {
    LeftFile { digest: digest.into(), bytes, written: at(written) }
}

/// What is kept, forgotten and released at this second, of an hour and 100 bytes.
fn decide(open: &[&str], done: &[&str], pulls: &[(&str, PullNote)], files: &[LeftFile], now: i64) -> SweepPlan {
    let orders = Keep { open: names(open), done: names(done) };
    let pulls = pulls.iter().map(|(name, pull)| (name.to_string(), pull.clone())).collect();
    plan(&orders, &pulls, files, Bounds { age: HOUR, bytes: 100 }, at(now))
}

#[test]
fn what_orders_want_stays_however_old_and_large_it_is() {
    let files = [file("a", 1 << 40, 0)];
    let plan = decide(&["one"], &[], &[("one", pull(&["a"], None))], &files, 1_000_000);
    assert_eq!(plan, SweepPlan { keep: names(&["one"]), ..SweepPlan::default() });
}

#[test]
fn what_was_taken_back_stays_for_its_time() {
    let files = [file("a", 10, 0), file("b", 5, 0)];
    let pulls = [("one", pull(&["a"], None)), ("two", pull(&["b", "c"], Some((1_000, 50))))];
    let plan = decide(&[], &[], &pulls, &files, 2_000);
    assert_eq!(plan.keep, names(&["one", "two"]));
    assert_eq!(
        plan.leave,
        BTreeMap::from([("one".into(), LeftBehind { since: at(2_000), bytes: 10 })]),
        "it begins now"
    );
    assert_eq!((plan.forget, plan.release), (names(&[]), names(&[])));
    assert_eq!(plan.next, Some(at(1_000 + 3_600)));

    let pulls = [("one", pull(&["a"], Some((2_000, 10)))), ("two", pull(&["b", "c"], Some((1_000, 50))))];
    let plan = decide(&[], &[], &pulls, &files, 1_000 + 3_600);
    assert_eq!((plan.keep, plan.forget, plan.release), (names(&["one"]), names(&["two"]), names(&["b"])));
    assert_eq!(plan.next, Some(at(2_000 + 3_600)));
}

#[test]
fn the_oldest_go_first_where_it_is_too_much() {
    let pulls = [
        ("old", pull(&["a"], Some((1, 40)))),
        ("middle", pull(&["b"], Some((2, 40)))),
        ("new", pull(&["c"], Some((3, 40)))),
    ];
    let files = [file("a", 40, 0), file("b", 40, 0), file("c", 40, 0)];
    let plan = decide(&[], &[], &pulls, &files, 10);
    assert_eq!((plan.keep, plan.forget), (names(&["middle", "new"]), names(&["old"])));
    assert_eq!(plan.release, names(&["a"]));
    // More is in containerd than in the spool, and counts.
    let pulls = [("old", pull(&["a"], Some((1, 40)))), ("new", pull(&["c"], Some((3, 90))))];
    assert_eq!(decide(&[], &[], &pulls, &[file("a", 40, 0)], 10).keep, names(&["new"]));
}

#[test]
fn a_blob_that_somebody_else_wants_stays() {
    let pulls = [("gone", pull(&["a", "b"], Some((0, 10)))), ("open", pull(&["b"], None))];
    let plan = decide(&["open"], &[], &pulls, &[file("a", 5, 0), file("b", 5, 0)], 10_000);
    assert_eq!((plan.forget, plan.release), (names(&["gone"]), names(&["a"])));
}

#[test]
fn what_is_done_or_gave_way_leaves_nothing() {
    let pulls = [("done", pull(&["a"], None))];
    let plan = decide(&[], &["done"], &pulls, &[file("a", 5, 9)], 10);
    assert_eq!((plan.forget, plan.release, plan.next), (names(&["done"]), names(&["a"]), None));
    // Also while another order waits for its turn.
    let plan = decide(&["queued"], &["done"], &pulls, &[file("a", 5, 9)], 10);
    assert_eq!((plan.forget, plan.release), (names(&["done"]), names(&["a"])));
}

/// Files of an agent that noted nothing, or whose note was lost.
#[test]
fn files_that_nobody_knows_age_by_themselves() {
    let files = [file("old", 5, 0), file("new", 5, 5_000)];
    let plan = decide(&[], &[], &[], &files, 6_000);
    assert_eq!((plan.release, plan.next), (names(&["old"]), Some(at(5_000 + 3_600))));
    // Whatever orders are open: an attempt notes its blobs first, so none of these needs them.
    let plan = decide(&["queued"], &[], &[], &files, 6_000);
    assert_eq!((plan.keep, plan.release, plan.next), (names(&["queued"]), names(&["old"]), Some(at(5_000 + 3_600))));
    let pulls = [("failed", pull(&["mine"], None))];
    let files = [file("mine", 5, 0), file("old", 5, 0)];
    assert_eq!(decide(&["failed", "held"], &[], &pulls, &files, 6_000).release, names(&["old"]));
    assert_eq!(decide(&[], &[], &[], &[file("ahead", 5, 99_999)], 6_000).release, names(&[]));
}

#[test]
fn everything_that_is_left_goes_where_the_disk_is_needed() {
    let orders = Keep { open: names(&["open"]), done: names(&[]) };
    let pulls = BTreeMap::from([
        ("open".to_string(), pull(&["a"], None)),
        ("left".to_string(), pull(&["a", "b"], Some((9, 5)))),
        ("leaves".to_string(), pull(&["c"], None)),
    ]);
    let files = [file("a", 5, 0), file("b", 5, 0), file("c", 5, 0), file("d", 5, 0)];
    let plan = plan(&orders, &pulls, &files, Bounds { age: Duration::ZERO, bytes: 0 }, at(10));
    assert_eq!((plan.keep, plan.forget), (names(&["open"]), names(&["left", "leaves"])));
    assert_eq!((plan.release, plan.leave.len(), plan.next), (names(&["b", "c", "d"]), 0, None));
}

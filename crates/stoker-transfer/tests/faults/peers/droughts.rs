//! Nodes that give a few bytes now and then. They are no better than nodes that give none.

use super::*;

/// What a reader says whose list is this one node, as soon as it says anything.
async fn complaint(fleet: &Fleet, source: &Node, usual: Option<u64>) -> String {
    let reader = fleet.node("reader").await;
    let news = Arc::new(Notify::new());
    let ways = fleet.ways(&reader, &[source]).telling(news.clone());
    let read = fleet.reads(&reader, Some(&ways));
    tokio::select! {
        () = news.notified() => {}
        never = ways.mind(|| own_state(&read, usual)) => match never {},
    }
    let told = ways.exhausted().unwrap_or_default();
    // It goes on with the next list at its byte.
    let whole = fleet.node("whole").await;
    whole.serves(&fleet.root, &fleet.bench.pushed.layers[0], Given::Bytes(fleet.bench.layer.clone()));
    ways.set(fleet.list(&reader, &[&whole]));
    assert_eq!(ways.exhausted(), None);
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_gives_next_to_nothing_is_told_of_whatever_its_node_says() {
    let fleet = Fleet::new().await;
    let [claims, waits] = [fleet.node("claims").await, fleet.node("waits").await];
    claims.serves(&fleet.root, &fleet.bench.pushed.layers[0], Given::Drips);
    // This one has no more itself, and says so: a node whose own source is broken, or that lies.
    waits.serves(&fleet.root, &fleet.bench.pushed.layers[0], Given::Waits);
    let told = tokio::join!(
        complaint(&fleet, &claims, Some(100 << 20)),
        complaint(&fleet, &claims, None),
        complaint(&fleet, &waits, Some(100 << 20)),
        complaint(&fleet, &waits, None),
    );
    let (claims, waits) = ("claims gives next to nothing", "waits gives next to nothing");
    assert_eq!(told, (claims.into(), claims.into(), waits.into(), waits.into()));
}

//! Several jobs with one `delete`.

use crate::bed::Up;

#[tokio::test(flavor = "multi_thread")]
async fn one_that_cannot_be_deleted_is_named_and_the_others_go() {
    let up = Up::start(1);
    for name in ["web", "cart", "kept"] {
        let paused = ["pull", "registry.example/shop:v1", "--name", name, "--parallelism", "0", "--no-wait"];
        up.run(&paused).await.exits(0);
    }
    let ran = up.run(&["delete", "web", "wbe", "pod/x", "cart"]).await;
    ran.exits(1).says("Preheat web deleted").says("Preheat cart deleted");
    ran.says("cannot delete wbe: no Preheat wbe").says("cannot delete pod/x: `pod` is not a kind of job");
    up.run(&["delete", "preheat/kept"]).await.exits(0);
    up.run(&["get"]).await.exits(0).says("no jobs");
}

//! Several jobs with one `delete`.

use crate::bed::Up;

#[tokio::test(flavor = "multi_thread")]
async fn one_that_cannot_be_deleted_is_named_and_the_others_go() {
    let up = Up::start(1);
    for name in ["web", "cart", "kept"] {
        let paused = ["pull", "registry.example/shop:v1", "--name", name, "--parallelism", "0", "--no-wait"];
        up.run(&paused).await.exits(0);
    }
    // What cannot be a job is refused before anything is deleted.
    let ran = up.run(&["delete", "web", "pod/x"]).await;
    assert_eq!(ran.exits(2).says("`pod` is not a kind of job").out, "");
    let ran = up.run(&["delete", "web", "wbe", "cart"]).await;
    ran.exits(1).says("Preheat web deleted").says("Preheat cart deleted").says("cannot delete wbe: no Preheat wbe");
    up.run(&["delete", "preheat/kept"]).await.exits(0);
    up.run(&["get"]).await.exits(0).says("no jobs");
}

//! The life of `up`.

use crate::bed::Up;

#[tokio::test(flavor = "multi_thread")]
async fn up_stops_cleanly_and_its_kubeconfig_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let up = Up::start(1);
    let mode = std::fs::metadata(up.kubeconfig()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_stoker"))
        .args(["up", "--listen", "127.0.0.1:0", "--data"])
        .arg(up.data())
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&second.stderr).contains("is in use by another stoker"));
    let port = up.client().await; // a port in use is named
    let config = std::fs::read_to_string(up.kubeconfig()).unwrap();
    let address = config.split("https://").nth(1).unwrap().split_whitespace().next().unwrap().trim_matches('"');
    let other = tempfile::tempdir().unwrap();
    let taken = crate::bed::stoker().args(["up", "--listen", address, "--data"]).arg(other.path()).output().unwrap();
    assert!(String::from_utf8_lossy(&taken.stderr).contains(address), "{taken:?}");
    drop(port);
    assert!(up.stop("-TERM").success());
}

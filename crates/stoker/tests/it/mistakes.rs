//! What can be wrong before there is a cluster, and with the directory and the port of `up`, with what a user then reads. One
//! snapshot holds all of it, for a person to judge: does each name the thing and the next step? The rest is in the scenarios.

use std::fmt::Write as _;

use crate::bed::{Ran, Up, stoker};

#[test]
fn every_mistake_is_answered_with_the_thing_and_the_next_step() {
    let up = Up::start(1);
    let config = std::fs::read_to_string(up.kubeconfig()).unwrap();
    let address = config.lines().find_map(|line| line.trim().strip_prefix("server: ")).unwrap();
    let listen = address.trim().trim_matches('"').trim_start_matches("https://");
    let (data, other) = (up.data().to_str().unwrap(), tempfile::tempdir().unwrap());
    let (file, other) = (up.data().join("a-file"), other.path().to_str().unwrap());
    std::fs::write(&file, "").unwrap();
    let below = file.join("below");
    let mistakes: [(&str, &[&str]); 5] = [
        ("no cluster", &["get"]),
        ("a kubeconfig that is not there", &["get", "--kubeconfig", "/nonexistent/config"]),
        ("a data directory that cannot be written", &["up", "--data", below.to_str().unwrap()]),
        ("a port in use", &["up", "--listen", listen, "--data", other]),
        ("a data directory in use", &["up", "--listen", "127.0.0.1:0", "--data", data]),
    ];
    let mut page = String::new();
    for (what, args) in mistakes {
        let ran = Ran::of(stoker().args(args).output().unwrap());
        writeln!(page, "## {what}\nexit {}: {}{}", ran.code.unwrap(), ran.out, ran.err).unwrap();
    }
    insta::assert_snapshot!("mistakes", page.replace(listen, "API").replace(data, "DATA"));
}

/// What somebody typed cannot be meant: code 2. It was tried and did not work: code 1.
#[test]
fn wrong_input_ends_with_2_and_what_failed_with_1() {
    let up = Up::start(1);
    let scratch = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = scratch.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let (empty, broken) = (file("empty", ""), file("broken", "{"));
    let data = scratch.path().join("data").to_str().unwrap().to_string();
    let known = up.kubeconfig().to_str().unwrap().to_string();
    let wrong: &[(&str, &str)] = &[
        // Values of every kind.
        ("pull Not:An:Image", "is not an image reference"),
        ("pull https://registry.example/shop/web:v1", "leave out https://"),
        ("pull web:v1 --timeout 0s", "the shortest is 1s"),
        ("pull web:v1 --timeout 10", "is not a length of time"),
        ("pull web:v1 --bandwidth 0", "is not an amount of bytes"),
        ("pull web:v1 --parallelism -1", "-1 is not in 0.."),
        ("pull web:v1 --upstream-copies 0", "0 is not in 1..=5000"),
        ("pull web:v1 --source PeersOnly --upstream-copies 2", "leave out --upstream-copies"),
        ("pull web:v1 --name Web_1", "a name has lower-case letters"),
        ("pull web:v1 --node Node_1", "a name has lower-case letters"),
        ("pull web:v1 --secret Login!", "a name has lower-case letters"),
        ("pull web:v1 -l a=b=c", "is not a label selector"),
        ("pull web:v1 -n Shop", "a namespace has"),
        ("pull", "<IMAGE>"),
        ("get pod/web", "is not a kind of job"),
        ("get preheat/", "names no job"),
        ("get web -A", "cannot be used with"),
        ("get -o xml", "possible values"),
        ("get --log stoker=loud", "write error, warn"),
        ("get nodes -w", "nodes cannot be watched"),
        ("why pod/web", "is not a kind of job"),
        ("why web Node_1", "a name has lower-case letters"),
        ("delete web pod/web", "is not a kind of job"),
        ("uninstall --timeout 0s", "the shortest is 1s"),
        ("install --offline -n a'b", "a namespace has"),
        ("install --offline --image https://registry.example/stoker:v1", "leave out https://"),
        ("install --offline --image-pull-secret Login!", "a name has lower-case letters"),
        ("install --offline --replicas 0", "0 is not in 1..=10"),
        ("install --offline --dialects kruise,kruise=whole", "--dialects names kruise twice"),
        ("install --offline --agent-metrics 7480", "give an address and a port"),
        ("install --offline --runtime-endpoint tcp://x:1", "agents use a socket on the node"),
        ("crds --dialects kruise=whole", "write kruise"),
        ("up --data DATA --nodes 0", "0 is not in 1..=1000"),
        ("up --data DATA --listen 127.0.0.1", "give an address and a port"),
        ("up --data DATA --runtime containerd --nodes 2", "leave --nodes out"),
        ("up --data DATA --runtime layout --runtime-endpoint unix:///run/x.sock", "a layout has no endpoint"),
        ("up --data DATA --runtime cri --runtime-endpoint tcp://x:1", "is not the address of a runtime"),
        ("up --data DATA --max-disk 0", "0 is not in 1..=100"),
        ("agent --data DATA --node Node_1", "a name has lower-case letters"),
        ("controller --max-writes-per-second 0", "0 is not in 1.."),
        // Files and contexts that the command line names.
        ("get --kubeconfig /nonexistent/config", "check --kubeconfig"),
        ("get --kubeconfig EMPTY", "EMPTY"),
        ("get --kubeconfig BROKEN", "check --kubeconfig"),
        ("get --kubeconfig KNOWN --context other", "check it and --context"),
        (
            "up --data DATA --listen 127.0.0.1:0 --credential-provider-config EMPTY --credential-provider-bin-dir /",
            "CredentialProviderConfig",
        ),
        ("pull web:v1 --kubeconfig KNOWN --timeout 1000000000h", "the longest is 999999999h"),
    ];
    let failed: &[(&str, &str)] = &[
        ("get", "no cluster"),
        ("get web --kubeconfig KNOWN", "no Preheat web"),
        ("delete web --kubeconfig KNOWN", "no Preheat web"),
        ("pull web:v1 --kubeconfig KNOWN --node node-9", "no node node-9"),
        ("up --data EMPTY/below", "cannot be written"),
    ];
    let replaced = |word: &str| match word {
        "KNOWN" => known.clone(),
        word => word.replace("EMPTY", &empty).replace("BROKEN", &broken).replace("DATA", &data),
    };
    for (code, lines) in [(2, wrong), (1, failed)] {
        for (line, said) in lines {
            let args: Vec<String> = line.split(' ').map(replaced).collect();
            let ran = Ran::of(stoker().args(&args).output().unwrap());
            let all = format!("{}{}", ran.out, ran.err);
            assert_eq!(ran.code, Some(code), "stoker {line}\n{all}");
            assert!(all.contains(&replaced(said)), "stoker {line}: no `{said}` in\n{all}");
        }
    }
    let jobs = Ran::of(stoker().args(["get", "-A", "--kubeconfig", &known]).output().unwrap());
    jobs.exits(0).says("no jobs");
}

//! `stoker up --metrics`: what it counts is what the registry saw.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use stoker_testbed::registry::{Registry, noise};

use crate::bed::{PATIENCE, Ran, stoker};

/// Killed when dropped.
struct Process(Child);

impl Process {
    fn stop(mut self) {
        assert!(Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status().unwrap().success());
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `stoker up` with metrics.
struct Metered {
    process: Process,
    data: tempfile::TempDir,
    addr: String,
}

impl Metered {
    fn start(nodes: &str) -> Self {
        let data = tempfile::tempdir().unwrap();
        let mut command = stoker();
        command.args([
            "up",
            "--max-disk",
            "99",
            "--listen",
            "127.0.0.1:0",
            "--metrics",
            "127.0.0.1:0",
            "--nodes",
            nodes,
            "--data",
        ]);
        let mut child = command.arg(data.path()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let addr =
            lines.find_map(|line| Some(line.strip_prefix("Metrics at http://")?.strip_suffix("/metrics")?.into()));
        let addr = addr.expect("the greeting says where metrics are");
        // What it says later goes nowhere, but must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process: Process(child), data, addr }
    }

    fn run(&self, args: &[&str]) -> Ran {
        Ran::of(stoker().arg("--kubeconfig").arg(self.data.path().join("kubeconfig")).args(args).output().unwrap())
    }

    fn ask(&self, method: &str, path: &str) -> (String, String) {
        ask(&self.addr, method, path)
    }

    /// A part of its own against this cluster, once it said this on standard error, and where its metrics are.
    fn part(&self, args: &[&str], said: &str) -> (Process, String) {
        let mut command = stoker();
        command.arg("--kubeconfig").arg(self.data.path().join("kubeconfig")).args(args);
        let mut child = command.args(["--metrics", "127.0.0.1:0"]).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let addr =
            lines.find_map(|line| Some(line.split_once("metrics at http://")?.1.strip_suffix("/metrics")?.into()));
        assert!(lines.any(|line| line.contains(said)), "it did not say {said}");
        std::thread::spawn(move || lines.for_each(drop));
        (Process(child), addr.expect("it says where metrics are"))
    }
}

/// The status line and everything else of an answer.
fn ask(addr: &str, method: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {addr}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (first, rest) = answer.split_once("\r\n").unwrap();
    (first.into(), rest.into())
}

/// The value of the sample with this name and labels.
#[track_caller]
fn value(text: &str, sample: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {sample} in:\n{text}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_counted_is_what_happened() {
    let registry = Registry::start().await.unwrap();
    registry.push("shop/web", "v1", &[noise(300_000, 1), noise(5_000, 2)]);
    let (good, bad) = (format!("{}/shop/web:v1", registry.host()), format!("{}/shop/web:v9", registry.host()));
    let test = move || {
        let up = Metered::start("2");
        assert_eq!(up.ask("GET", "/").0, "HTTP/1.1 404 Not Found");
        assert_eq!(up.ask("POST", "/metrics").0, "HTTP/1.1 405 Method Not Allowed");
        up.run(&["pull", &good]).exits(0).says("on all 2 nodes");
        up.run(&["pull", &bad]).exits(1).says("NotFound");
        assert_eq!(up.ask("GET", "/healthz").0, "HTTP/1.1 200 OK");
        assert_eq!(up.ask("GET", "/readyz").0, "HTTP/1.1 200 OK");
        let (status, text) = up.ask("GET", "/metrics");
        assert_eq!(status, "HTTP/1.1 200 OK");
        assert!(text.contains("application/openmetrics-text"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
        let controller = |sample: &str| value(&text, &format!("stoker_controller_{sample}"));
        let agent = |sample: &str| value(&text, &format!("stoker_agent_{sample}"));
        assert_eq!(agent(r#"received_bytes_total{source="registry"}"#), registry.body_bytes("blobs"));
        assert_eq!(agent(r#"attempts_total{result="succeeded",reason=""}"#), 2);
        assert!(agent(r#"attempts_total{result="failed",reason="NotFound"}"#) >= 1);
        assert_eq!(agent(r#"status_writes_total{result="failed"}"#), 0);
        assert!(agent(r#"status_writes_total{result="succeeded"}"#) >= 4);
        assert!(agent("disk_free_bytes") > 0);
        assert_eq!(controller("leader"), 1);
        assert_eq!(controller(r#"jobs{stage="Running"}"#), 0);
        assert_eq!(controller(r#"jobs_ended_total{result="Succeeded"}"#), 1);
        assert_eq!(controller(r#"jobs_ended_total{result="Failed"}"#), 1);
        assert_eq!(controller(r#"nodes{state="pulling"}"#), 0);
        assert!(controller(r#"writes_total{kind="NodePreheat",result="succeeded"}"#) >= 2);
        assert!(controller("plan_seconds_count") > 0);
        assert!(!text.contains("node-1") && !text.contains("shop/web"), "names are never labels: {text}");

        let data = tempfile::tempdir().unwrap();
        let mut second = stoker();
        second.args(["up", "--listen", "127.0.0.1:0", "--metrics", &up.addr, "--data"]).arg(data.path());
        Ran::of(second.output().unwrap()).exits(1).says(&up.addr).says("give another --metrics address");
    };
    tokio::task::spawn_blocking(test).await.unwrap();
}

#[test]
fn parts_of_their_own_serve_only_their_own_numbers() {
    let up = Metered::start("1");
    let (controller, addr) = up.part(&["controller"], "another controller leads; standing by");
    assert_eq!(ask(&addr, "GET", "/readyz").0, "HTTP/1.1 200 OK", "it stands by, and knows who leads");
    let (_, text) = ask(&addr, "GET", "/metrics");
    assert_eq!(value(&text, "stoker_controller_leader"), 0);
    assert!(!text.contains("stoker_agent_"), "{text}");
    controller.stop();
    // No Node has this name, so it cannot register: alive, and not ready.
    let home = up.data.path().join("nobody");
    let args = ["agent", "--node", "nobody", "--runtime", "layout", "--data", home.to_str().unwrap()];
    let (agent, addr) = up.part(&args, "waiting for the Node of this name");
    assert_eq!(ask(&addr, "GET", "/healthz").0, "HTTP/1.1 200 OK");
    let (status, said) = ask(&addr, "GET", "/readyz");
    assert_eq!(status, "HTTP/1.1 503 Service Unavailable");
    assert!(said.ends_with("0 of 1 agents are registered and have seen their NodePreheat\n"), "{said}");
    assert!(!ask(&addr, "GET", "/metrics").1.contains("stoker_controller_"));
    agent.stop();
    up.process.stop();
}

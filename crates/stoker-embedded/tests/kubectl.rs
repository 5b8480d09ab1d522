//! Stock kubectl against the API over HTTPS: the commands a user types, and the same against a real API server where
//! `STOKER_TEST_KUBECONFIG` names one. Skipped, with a line that says so, where there is no kubectl 1.28 or later in `$KUBECTL`
//! or on the PATH.
// Functions that tests share fail as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/real.rs"]
mod real;

use real::Real;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;
use stoker_embedded::{Api, Server, Settings};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

/// kubectl with a home of its own.
struct Kubectl {
    program: String,
    home: tempfile::TempDir,
    /// Where it works.
    namespace: String,
}

impl Kubectl {
    async fn find(namespace: &str) -> Option<Self> {
        let program = std::env::var("KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
        let kubectl = Self { program, home: tempfile::tempdir().unwrap(), namespace: namespace.to_owned() };
        let output = kubectl.command(&["version", "--client", "-o", "json"]).output().await.ok()?;
        let version: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        let number = |field: &str| {
            let text = version["clientVersion"][field].as_str()?;
            text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().ok()
        };
        (number("major")? == 1 && number("minor")? >= 28).then_some(kubectl)
    }

    fn path(&self, name: &str) -> String {
        self.home.path().join(name).to_string_lossy().into_owned()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env("HOME", self.home.path()).env("KUBECONFIG", self.path("kubeconfig"));
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    async fn run(&self, line: &str) -> Output {
        let args = words(line);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        self.command(&args).output().await.unwrap()
    }

    /// Runs a command that must work, and returns what it printed.
    async fn ok(&self, line: &str) -> String {
        let output = self.run(line).await;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "kubectl {line}\n{out}{err}");
        out.into_owned()
    }

    /// Runs a command that must fail, and returns what it complained of.
    async fn fails(&self, line: &str) -> String {
        let output = self.run(line).await;
        assert!(!output.status.success(), "kubectl {line} worked");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(Path::new(&self.path(name)), text).unwrap();
        self.path(name)
    }
}

/// Splits at spaces, but not inside single quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in line.split('\'').enumerate() {
        match at % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

const WIDGET: &str = "
apiVersion: example.com/v1
kind: Widget
metadata: {name: w}
spec: {pace: {parallelism: 3}, tags: [a, b]}
";

#[tokio::test]
async fn stock_kubectl_works() {
    let Some(kubectl) = Kubectl::find("default").await else {
        println!("SKIPPED: stock_kubectl_works needs kubectl 1.28 or later in $KUBECTL or on the PATH");
        return;
    };
    let api = Api::new(Settings::new(vec![real::widget_crd()], Arc::new(jiff::Timestamp::now))).unwrap();
    let server = Server::bind(api, "127.0.0.1:0".parse().unwrap()).await.unwrap();
    kubectl.write("kubeconfig", &server.kubeconfig());
    let cancel = CancellationToken::new();
    let task = tokio::spawn(server.run(cancel.clone()));
    works(&kubectl, lacks).await;
    cancel.cancel();
    task.await.unwrap().unwrap();
}

#[tokio::test]
async fn stock_kubectl_works_the_same_on_a_real_server() {
    let Ok(kubeconfig) = std::env::var("STOKER_TEST_KUBECONFIG") else {
        println!("SKIPPED: stock_kubectl_works_the_same_on_a_real_server needs STOKER_TEST_KUBECONFIG");
        return;
    };
    let kubectl = Kubectl::find("test-kubectl").await.expect("kubectl 1.28 or later in $KUBECTL or on the PATH");
    let real = Real::new(&kubeconfig).await;
    real::make(&real.client("default"), &kubectl.namespace).await;
    kubectl.write("kubeconfig", &std::fs::read_to_string(kubeconfig).unwrap());
    kubectl.ok(&format!("config set-context --current --namespace {}", kubectl.namespace)).await;
    works(&kubectl, async |_| ()).await;
    real.clean().await;
}

/// Every command, and between the others those that only one of the servers answers so.
async fn works(kubectl: &Kubectl, its_own: impl AsyncFn(&Kubectl)) {
    discovers(kubectl).await;
    applies(kubectl).await;
    shows(kubectl).await;
    changes(kubectl).await;
    refuses(kubectl).await;
    its_own(kubectl).await;
    watches(kubectl).await;
    deletes(kubectl).await;
    built_in_kinds(kubectl).await;
}

async fn discovers(kubectl: &Kubectl) {
    let resources = kubectl.ok("api-resources").await;
    for part in ["widgets", "wd", "example.com/v1", "Widget", "daemonsets", "leases", "nodes"] {
        assert!(resources.contains(part), "{part} is missing in\n{resources}");
    }
    assert!(kubectl.ok("version").await.contains("Server Version: v1."));
    assert!(kubectl.ok("api-versions").await.contains("example.com/v1beta1"));
    let explained = kubectl.ok("explain widget.spec.pace").await;
    for part in ["How fast.", "parallelism", "How many at once."] {
        assert!(explained.contains(part), "{explained}");
    }
    assert!(kubectl.ok("explain widget").await.contains("A widget, for tests."));
    assert!(kubectl.ok("get --raw /readyz").await.contains("ok"));
    assert!(kubectl.ok("cluster-info").await.contains("control plane"));
    for question in ["create widgets", "delete nodes", "get /version", "get pods --subresource=log"] {
        assert_eq!(kubectl.ok(&format!("auth can-i {question}")).await.trim(), "yes", "{question}");
    }
    assert!(kubectl.ok("auth can-i --list").await.contains("*.*"));
    assert!(kubectl.ok("auth whoami").await.contains("Username"));
}

async fn applies(kubectl: &Kubectl) {
    let file = kubectl.write("widget.yaml", WIDGET);
    assert_eq!(kubectl.ok(&format!("apply -f {file}")).await.trim(), "widget.example.com/w created");
    assert_eq!(kubectl.ok(&format!("apply -f {file}")).await.trim(), "widget.example.com/w unchanged");
    let file = kubectl.write("widget.yaml", &WIDGET.replace("[a, b]", "[a]"));
    assert_eq!(kubectl.ok(&format!("apply -f {file}")).await.trim(), "widget.example.com/w configured");
    assert_eq!(kubectl.ok("get widget w -o jsonpath={.spec.tags}").await, r#"["a"]"#);
    let file = kubectl.write(
        "other.json",
        r#"{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "other"}, "spec": {}}"#,
    );
    assert_eq!(kubectl.ok(&format!("create -f {file}")).await.trim(), "widget.example.com/other created");
    assert!(kubectl.fails(&format!("create -f {file}")).await.contains("AlreadyExists"));
    let file = kubectl.write(
        "generated.yaml",
        "apiVersion: example.com/v1\nkind: Widget\nmetadata: {generateName: gen-}\nspec: {}\n",
    );
    assert!(kubectl.ok(&format!("create -f {file} -o name")).await.starts_with("widget.example.com/gen-"));
    let file = kubectl.write("dry.yaml", &WIDGET.replace("name: w", "name: dry"));
    assert!(kubectl.ok(&format!("apply --dry-run=server -f {file}")).await.contains("created (server dry run)"));
}

async fn shows(kubectl: &Kubectl) {
    let table = kubectl.ok("get wd w").await;
    let lines: Vec<Vec<&str>> = table.lines().map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "MODE", "READY", "AGE"]);
    assert_eq!(lines[1][..2], ["w", "Once"]);
    assert!(kubectl.ok("get widgets w -o wide").await.lines().next().unwrap().contains("PARALLELISM"));
    let older = kubectl.ok("get widgets.v1beta1.example.com w").await;
    assert_eq!(older.lines().next().unwrap().split_whitespace().collect::<Vec<_>>(), ["NAME", "AGE"]);
    let older = kubectl.ok("get widgets.v1beta1.example.com w -o jsonpath={.apiVersion}").await;
    assert_eq!(older, "example.com/v1beta1");
    let yaml = kubectl.ok("get widget w -o yaml").await;
    assert!(yaml.contains("parallelism: 3") && yaml.contains("kind: Widget"), "{yaml}");
    assert!(kubectl.ok("get all -A").await.contains("widget.example.com/w"));
    assert!(kubectl.ok("get widgets --field-selector spec.mode=Once,metadata.name=w -o name").await.contains("/w"));
    assert_eq!(kubectl.ok("get widgets -l tier=none -o name").await, "");
    let uid = kubectl.ok("get widget w -o jsonpath={.metadata.uid}").await;
    let event = serde_json::json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
        "type": "Normal", "reason": "Started", "message": "it began",
        "involvedObject": {"apiVersion": "example.com/v1", "kind": "Widget", "namespace": kubectl.namespace, "name": "w", "uid": uid},
    });
    let file = kubectl.write("event.json", &event.to_string());
    kubectl.ok(&format!("create -f {file}")).await;
    let described = kubectl.ok("describe widget w").await;
    for part in ["Name:", "Parallelism:", "Events:", "it began"] {
        assert!(described.contains(part), "{part} is missing in\n{described}");
    }
    assert!(kubectl.ok("get events").await.contains("it began"));
}

async fn changes(kubectl: &Kubectl) {
    kubectl.ok(r#"patch widget w --type merge -p '{"spec": {"epoch": 1}}'"#).await;
    kubectl.ok(r#"patch widget w --type json -p '[{"op": "replace", "path": "/spec/epoch", "value": 2}]'"#).await;
    assert_eq!(kubectl.ok("get widget w -o jsonpath={.spec.epoch}").await, "2");
    kubectl.ok("label widget w tier=front").await;
    kubectl.ok("annotate widget w note=hello").await;
    assert!(kubectl.ok("get widgets -l tier=front --show-labels").await.contains("tier=front"));
    kubectl.ok("label widget w tier-").await;
    let whole = kubectl.ok("get widget w -o json").await.replace(r#""epoch": 2"#, r#""epoch": 3"#);
    let file = kubectl.write("whole.json", &whole);
    assert_eq!(kubectl.ok(&format!("replace -f {file}")).await.trim(), "widget.example.com/w replaced");
    assert!(kubectl.fails(&format!("replace -f {file}")).await.contains("Conflict"));
    let status = r#"{"status": {"phase": "Done", "conditions": [{"type": "Ready", "status": "True"}]}}"#;
    kubectl.ok(&format!("patch widget w --subresource status --type merge -p '{status}'")).await;
    kubectl.ok("wait widget/w --for=condition=Ready --timeout=600s").await;
    kubectl.ok("wait widget/w --for=jsonpath={.status.phase}=Done --timeout=600s").await;
    let editor = kubectl.write("editor.sh", "#!/bin/sh\nsed -i 's/epoch: 3/epoch: 4/' \"$1\"\n");
    let mut edit = kubectl.command(&["edit", "widget", "w"]);
    let edited = edit.env("KUBE_EDITOR", format!("sh {editor}")).output().await.unwrap();
    assert!(edited.status.success(), "{}", String::from_utf8_lossy(&edited.stderr));
    assert_eq!(kubectl.ok("get widget w -o jsonpath={.spec.epoch}").await, "4");
}

async fn refuses(kubectl: &Kubectl) {
    let wrong = WIDGET.replace("name: w", "name: wrong");
    for (text, said) in [
        (wrong.replace("parallelism: 3", "paralelism: 3"), r#"unknown field "spec.pace.paralelism""#),
        (wrong.replace("parallelism: 3", "retries: -1"), "spec.pace.retries: Invalid value: -1"),
        (wrong.replace("tags: [a, b]", "tags: [a, a]"), r#"spec.tags[1]: Duplicate value: "a""#),
        (wrong.replace("tags: [a, b]", "mode: Continuous, tags: [a]"), "tags are for mode Once"),
    ] {
        let file = kubectl.write("wrong.yaml", &text);
        let error = kubectl.fails(&format!("apply -f {file}")).await;
        assert!(error.contains(said), "{said} is not in {error}");
    }
    assert!(kubectl.fails("get widget nobody").await.contains("NotFound"));
    assert!(kubectl.fails("get widgets nobody other").await.contains("nobody"));
}

/// What the embedded API does not have, and says so.
async fn lacks(kubectl: &Kubectl) {
    let file = kubectl.write("diff.yaml", &WIDGET.replace("parallelism: 3", "parallelism: 5"));
    let refused = kubectl.fails(&format!("diff -f {file}")).await;
    assert!(refused.contains("kubectl diff is not supported") && refused.contains("--dry-run=server"), "{refused}");
    let file = kubectl.write("widget.yaml", WIDGET);
    assert!(kubectl.fails(&format!("apply --server-side -f {file}")).await.contains("server-side apply"));
    let refused = kubectl.fails("scale widget w --replicas=2").await;
    assert!(refused.contains(r#"widgets.example.com have no subresource "scale""#), "{refused}");
    let refused = kubectl.fails("get widgets --as=eve").await;
    assert!(refused.contains("impersonation is not supported") && refused.contains("--as"), "{refused}");
    let manifest = kubectl.ok("run idle --image=registry.example/web:v1 --dry-run=client -o yaml").await;
    let file = kubectl.write("pod.yaml", &manifest);
    let made = kubectl.run(&format!("create -f {file}")).await;
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    assert!(made.status.success() && said.contains("Warning: this server only stores pods"), "{said}");
    let refused = kubectl.fails("logs idle").await;
    assert!(refused.contains("only stores pods"), "{refused}");
    kubectl.ok("delete pod idle").await;
}

async fn watches(kubectl: &Kubectl) {
    let mut child = kubectl.command(&["get", "widgets", "-w", "-o", "name"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.push(lines.next_line().await.unwrap().expect("the watch goes on"));
    }
    let file = kubectl.write("late.yaml", &WIDGET.replace("name: w", "name: late"));
    kubectl.ok(&format!("create -f {file}")).await;
    assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("widget.example.com/late"));
    child.kill().await.unwrap();
    let mut child = kubectl.command(&["get", "widgets", "-w"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while !lines.next_line().await.unwrap().expect("the table goes on").starts_with("w ") {}
    kubectl.ok("label widget late seen=yes").await;
    assert!(lines.next_line().await.unwrap().expect("the change is shown").starts_with("late"));
    child.kill().await.unwrap();
}

async fn deletes(kubectl: &Kubectl) {
    kubectl.ok(r#"patch widget late --type merge -p '{"metadata": {"finalizers": ["example.com/hold"]}}'"#).await;
    kubectl.ok("delete widget late --wait=false").await;
    let wait = kubectl.command(&["wait", "widget/late", "--for=delete", "--timeout=600s"]).output();
    let clear = kubectl.ok(r#"patch widget late --type merge -p '{"metadata": {"finalizers": null}}'"#);
    let (waited, _) = tokio::join!(wait, clear);
    assert!(waited.unwrap().status.success());
    assert!(kubectl.ok("delete widget w --cascade=foreground").await.contains("deleted"));
    kubectl.ok("delete widgets --all").await;
    assert_eq!(kubectl.ok("get widgets -o name").await, "");
    assert!(kubectl.fails("delete widget w").await.contains("NotFound"));
}

async fn built_in_kinds(kubectl: &Kubectl) {
    // The imperative forms send protobuf: kinds that a user makes by hand are read, the others refused with the way around.
    let shop = &format!("{}-shop", kubectl.namespace);
    kubectl.ok(&format!("create namespace {shop}")).await;
    kubectl.ok(&format!("label namespace {shop} {}", real::OURS)).await;
    kubectl.ok(&format!("create configmap settings -n {shop} --from-literal=a=b")).await;
    let login = "--docker-server=registry.example --docker-username=me --docker-password=secret";
    kubectl.ok(&format!("create secret docker-registry login -n {shop} {login}")).await;
    let kind = kubectl.ok(&format!("get secret login -n {shop} -o jsonpath={{.type}}")).await;
    assert_eq!(kind, "kubernetes.io/dockerconfigjson");
    let web = &format!("create deployment web -n {shop} --replicas=0 --image=registry.example/web:v1");
    let imperative = kubectl.run(web).await;
    if !imperative.status.success() {
        assert!(String::from_utf8_lossy(&imperative.stderr).contains("use -f"));
        let manifest = kubectl.ok(&format!("{web} --dry-run=client -o yaml")).await;
        let file = kubectl.write("web.yaml", &manifest);
        kubectl.ok(&format!("create -f {file}")).await;
    }
    kubectl.ok(&format!("set image deployment/web -n {shop} web=registry.example/web:v2")).await;
    let image = "jsonpath={.spec.template.spec.containers[0].image}";
    assert_eq!(kubectl.ok(&format!("get deployment web -n {shop} -o {image}")).await, "registry.example/web:v2");
    let manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: applied, namespace: SHOP}\ndata: {a: b}\n";
    let file = kubectl.write("map.yaml", &manifest.replace("SHOP", shop));
    kubectl.ok(&format!("apply -f {file}")).await;
    assert!(kubectl.ok(&format!("apply -f {file}")).await.contains("unchanged"));
    assert!(kubectl.ok(&format!("get configmaps,secrets,deployments -n {shop}")).await.contains("settings"));
    kubectl.ok(&format!("describe deployment web -n {shop}")).await;
    kubectl.ok(&format!("describe namespace {shop}")).await;
    assert!(kubectl.ok("get crds").await.contains("widgets.example.com"));
    kubectl.ok(&format!("delete namespace {shop}")).await;
    assert!(kubectl.fails(&format!("get namespace {shop}")).await.contains("NotFound"));
}

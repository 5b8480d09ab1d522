//! The control plane's programs and the registry: their command lines, in the order they are started, and when they are up.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use super::place::{API_ADDRESS, CONTROL, CONTROL_ADDRESS, Node, Place, REGISTRY, SERVICES};
use super::site::{PATH, Site, write};
use super::wait::{self, Look};
use crate::shell::output;

/// A loaded machine of two cores is slow; one that is not up by then never is.
const WAIT: Duration = Duration::from_secs(300);

/// What a cluster of simulated nodes has of all this. No kube-controller-manager: without kubelets that renew Leases it would
/// soon call every Node NotReady, and nothing here needs what it does. No registry: nothing is pulled.
const WITH_FAKE_NODES: [&str; 2] = ["etcd", "apiserver"];

/// Starts all of it, or what simulated nodes need; `programs` is where Kubernetes' are.
pub(crate) fn start(site: &mut Site, programs: &Path, fake: bool) -> anyhow::Result<()> {
    let registry = site.place.machine(CONTROL).join("registry.yml");
    write(&registry, &registry_settings(&site.place))?;
    for (name, mut command) in commands(&site.place, programs, &registry.display().to_string()) {
        if fake && !WITH_FAKE_NODES.contains(&name) {
            continue;
        }
        if fake && name == "apiserver" {
            // It taints every new Node, and who would take the taint away does not run.
            command.push("--disable-admission-plugins=TaintNodesByCondition".to_string());
        }
        site.start(CONTROL, name, PATH, &command)?;
    }
    Ok(())
}

fn commands(place: &Place, programs: &Path, registry: &str) -> Vec<(&'static str, Vec<String>)> {
    let etcd = place.machine(CONTROL).join("etcd").display().to_string();
    let program = |name: &str| programs.join(name).display().to_string();
    let key = |name: &str| place.key(name).display().to_string();
    let kubeconfig = |name: &str| format!("--kubeconfig={}", key(&format!("{name}.kubeconfig")));
    let own = |words: &[&str]| words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
    let registry = own(&["docker-registry", "serve", registry]);
    let etcd = vec![
        "etcd".to_string(),
        format!("--data-dir={etcd}"),
        "--listen-client-urls=http://127.0.0.1:2379".to_string(),
        "--advertise-client-urls=http://127.0.0.1:2379".to_string(),
        "--listen-peer-urls=http://127.0.0.1:2380".to_string(),
        // What a power cut would lose is a test cluster.
        "--unsafe-no-fsync".to_string(),
    ];
    let api = vec![
        program("kube-apiserver"),
        "--etcd-servers=http://127.0.0.1:2379".to_string(),
        "--bind-address=0.0.0.0".to_string(),
        "--secure-port=443".to_string(),
        format!("--advertise-address={CONTROL_ADDRESS}"),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--allow-privileged=true".to_string(),
        "--authorization-mode=Node,RBAC".to_string(),
        "--enable-admission-plugins=NodeRestriction".to_string(),
        format!("--client-ca-file={}", key("ca.crt")),
        format!("--tls-cert-file={}", key("apiserver.crt")),
        format!("--tls-private-key-file={}", key("apiserver.key")),
        // Nobody resolves the names of nodes here.
        "--kubelet-preferred-address-types=InternalIP".to_string(),
        format!("--kubelet-client-certificate={}", key("apiserver-to-kubelet.crt")),
        format!("--kubelet-client-key={}", key("apiserver-to-kubelet.key")),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_string(),
        format!("--service-account-key-file={}", key("tokens.pub")),
        format!("--service-account-signing-key-file={}", key("tokens.key")),
    ];
    let controllers = vec![
        program("kube-controller-manager"),
        kubeconfig("kube-controller-manager"),
        format!("--root-ca-file={}", key("ca.crt")),
        format!("--service-account-private-key-file={}", key("tokens.key")),
        "--use-service-account-credentials=true".to_string(),
        "--leader-elect=false".to_string(),
        "--bind-address=127.0.0.1".to_string(),
        // Tests stop kubelets to be alone with a node, and are not always quick.
        "--node-monitor-grace-period=10m".to_string(),
        // It makes the folder, which would be below /usr.
        "--flex-volume-plugin-dir=/var/lib/volume-plugins".to_string(),
    ];
    let scheduler = vec![
        program("kube-scheduler"),
        kubeconfig("kube-scheduler"),
        "--leader-elect=false".to_string(),
        "--bind-address=127.0.0.1".to_string(),
    ];
    vec![
        ("registry", registry),
        ("etcd", etcd),
        ("apiserver", api),
        ("controller-manager", controllers),
        ("scheduler", scheduler),
    ]
}

fn registry_settings(place: &Place) -> String {
    let folder = place.machine(CONTROL).join("registry");
    format!(
        "version: 0.1\nlog:\n  level: info\nstorage:\n  delete:\n    enabled: true\n  filesystem:\n    rootdirectory: {}\n\
         http:\n  addr: {REGISTRY}\n",
        folder.display()
    )
}

/// kubectl as the administrator.
pub(crate) fn kubectl(site: &Site, programs: &Path, args: &[&str]) -> anyhow::Result<String> {
    let mut command = site.errand(CONTROL)?;
    command.arg(programs.join("kubectl")).arg("--kubeconfig").arg(site.place.kubeconfig());
    output(command.arg("--request-timeout=10s").args(args))
}

/// Waits for the API server.
pub(crate) fn wait_for_api(site: &Site, programs: &Path) -> anyhow::Result<()> {
    until_asked(site, || kubectl(site, programs, &["get", "--raw=/readyz"]))
}

/// Asks the API server until it does what is asked.
pub(crate) fn until_asked(site: &Site, asked: impl Fn() -> anyhow::Result<String>) -> anyhow::Result<()> {
    until(site, "apiserver", &["etcd", "apiserver"], || asked().map(drop))
}

/// Waits for the API server, and for what controllers make first.
pub(crate) fn wait(site: &Site, programs: &Path) -> anyhow::Result<()> {
    wait_for_api(site, programs)?;
    let first = ["get", "--namespace=default", "serviceaccount/default", "configmap/kube-root-ca.crt"];
    until(site, "controller-manager", &["etcd", "apiserver", "controller-manager", "scheduler"], || {
        kubectl(site, programs, &first).map(drop)
    })
}

/// Waits for all nodes to be Ready, with none of the taints that new nodes have.
pub(crate) fn wait_for_nodes(site: &Site, programs: &Path, count: usize) -> anyhow::Result<()> {
    for node in Node::all(count).map(Node::name) {
        let log = site.place.log(&format!("{node}/kubelet"));
        wait::until(&format!("node {node} did not become ready"), WAIT, &log, || {
            for part in [format!("{node}/containerd"), format!("{node}/kubelet")] {
                if !site.journal.part(&part)?.process.lives() {
                    return Ok(Look::Failed(format!("{part} ended{}", wait::end_of(&site.place.log(&part)))));
                }
            }
            let object = kubectl(site, programs, &["get", "node", &node, "--output=json"]);
            let problem = match object.and_then(|text| Ok(serde_json::from_str::<Value>(&text)?)) {
                Ok(object) => what_keeps(&object),
                Err(problem) => Some(format!("{problem:#}")),
            };
            Ok(problem.map_or(Look::Ready, Look::NotYet))
        })?;
    }
    Ok(())
}

/// Why a node takes no pods, if it does not.
fn what_keeps(node: &Value) -> Option<String> {
    let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready");
    let Some(ready) = ready else { return Some("it has no Ready condition".to_string()) };
    if ready["status"] != "True" {
        return Some(ready["message"].as_str().unwrap_or("not Ready").to_string());
    }
    let taint = node["spec"]["taints"].as_array()?.first()?;
    Some(format!("it has the taint {}", taint["key"].as_str().unwrap_or_default()))
}

fn until(site: &Site, part: &str, needs: &[&str], ready: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let log = site.place.log(&format!("{CONTROL}/{part}"));
    wait::until(&format!("{part} did not come up"), WAIT, &log, || {
        for need in needs {
            let name = format!("{CONTROL}/{need}");
            if !site.journal.part(&name).context("a part was not started")?.process.lives() {
                return Ok(Look::Failed(format!("{name} ended{}", wait::end_of(&site.place.log(&name)))));
            }
        }
        let ready = ready();
        Ok(ready.map_or_else(|problem| Look::NotYet(format!("{API_ADDRESS}: {problem:#}")), |()| Look::Ready))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_that_takes_no_pods_says_why() {
        let node = |status: &str, taints: Value| {
            let ready = json!({"type": "Ready", "status": status, "message": "no network"});
            json!({"status": {"conditions": [{"type": "DiskPressure"}, ready]}, "spec": {"taints": taints}})
        };
        assert_eq!(what_keeps(&node("True", Value::Null)), None);
        assert_eq!(what_keeps(&node("True", json!([]))), None);
        assert_eq!(what_keeps(&node("False", Value::Null)).unwrap(), "no network");
        assert_eq!(what_keeps(&node("True", json!([{"key": "not-ready"}]))).unwrap(), "it has the taint not-ready");
        assert!(what_keeps(&json!({})).is_some());
    }
}

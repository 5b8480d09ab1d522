//! What runs: the controller's Deployment with the budget that keeps one of it, and the agents' DaemonSet. Settings in,
//! objects out.

use serde_json::{Value, json};

use super::access::{AGENT, CONTROLLER};
use super::host;
use super::manifests::{COMPONENT, InstallDocument, PART_OF, labels, merged, metadata};
use crate::cli::{HostArgs, InstallArgs, PEER_PORT, Switch};
use stoker_api::{Dialect, HandOver};

/// Inside the controllers' pods, which have a network of their own.
const CONTROLLER_PORT: u16 = 8080;
const CONTROLLER_PROBES: u16 = 8081;
/// The image has a user of this number.
const NOBODY: u32 = 65532;
/// What unpacking layers needs: overlay's attributes and whiteouts, and files of any owner and mode.
const CAPABILITIES: [&str; 7] = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD", "SETFCAP", "SYS_ADMIN"];

/// Deployment, its budget, DaemonSet.
pub(super) fn all(namespace: &str, args: &InstallArgs) -> Vec<InstallDocument> {
    vec![
        InstallDocument::new("When nodes are drained, one controller at a time goes.", budget(namespace)),
        InstallDocument::new("One controller leads, the others stand by.", controller(namespace, args)),
        InstallDocument::new(
            "One agent on every node, whatever its taints. It is root and may write where containerd keeps snapshots: layers are \
             unpacked by it. It shares the node's network (mirrors on loopback, the node's DNS, other agents that read from it) and sees its processes, because \
             containerd 2 says only on its command line where its settings are.",
            agent(namespace, args),
        ),
    ]
}

/// What selects the pods of a part; may never change once it is installed.
fn selector(component: &str) -> Value {
    json!({ PART_OF.0: PART_OF.1, COMPONENT: component })
}

fn versioned(name: &str, namespace: &str, component: &str) -> Value {
    let mut metadata = metadata(name, Some(namespace), component);
    metadata["labels"]["app.kubernetes.io/version"] = env!("CARGO_PKG_VERSION").into();
    metadata
}

fn budget(namespace: &str) -> Value {
    json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(CONTROLLER, Some(namespace), "controller"),
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": selector("controller") } },
    })
}

fn controller(namespace: &str, args: &InstallArgs) -> Value {
    let apart = ["kubernetes.io/hostname", "topology.kubernetes.io/zone"].map(|key| {
        json!({
            "topologyKey": key,
            "maxSkew": 1,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": { "matchLabels": selector("controller") },
            // Those that an upgrade replaces do not count.
            "matchLabelKeys": ["pod-template-hash"],
        })
    });
    let container = json!({
        "name": "controller",
        "image": args.image.name(),
        "args": controller_args(namespace, args),
        // One heap for all threads: what is parsed in passing otherwise stays in each of them, as much as all that is kept.
        "env": [{ "name": "MALLOC_ARENA_MAX", "value": "1" }],
        "ports": [
            { "name": "metrics", "containerPort": CONTROLLER_PORT, "protocol": "TCP" },
            { "name": "probes", "containerPort": CONTROLLER_PROBES, "protocol": "TCP" },
        ],
        "livenessProbe": probe("/healthz", 20, json!({ "port": "probes" })),
        "readinessProbe": probe("/readyz", 5, json!({ "port": "probes" })),
        "resources": { "requests": { "cpu": "100m", "memory": "128Mi" }, "limits": { "memory": "512Mi" } },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] },
            "readOnlyRootFilesystem": true,
        },
    });
    let mut deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": versioned(CONTROLLER, namespace, "controller"),
        "spec": {
            "replicas": args.replicas,
            "selector": { "matchLabels": selector("controller") },
            "template": {
                "metadata": { "labels": labels("controller") },
                "spec": {
                    "automountServiceAccountToken": true,
                    "containers": [container],
                    "enableServiceLinks": false,
                    "nodeSelector": { "kubernetes.io/os": "linux" },
                    "priorityClassName": "system-cluster-critical",
                    "securityContext": {
                        "runAsGroup": NOBODY,
                        "runAsNonRoot": true,
                        "runAsUser": NOBODY,
                        "seccompProfile": { "type": "RuntimeDefault" },
                    },
                    "serviceAccountName": CONTROLLER,
                    "topologySpreadConstraints": apart,
                },
            },
        },
    });
    log_in(&mut deployment, args);
    deployment
}

/// Says with which login the image is pulled, where it takes one.
fn log_in(workload: &mut Value, args: &InstallArgs) {
    if let Some(name) = &args.image_pull_secret {
        workload["spec"]["template"]["spec"]["imagePullSecrets"] = json!([{ "name": name }]);
    }
}

fn agent(namespace: &str, args: &InstallArgs) -> Value {
    let (volumes, mounts) = host::volumes(&args.host);
    let at = json!({ "host": probed(&args.host), "port": args.host.agent_probes.port() });
    let container = json!({
        "name": "agent",
        "image": args.image.name(),
        "args": agent_args(namespace, args),
        "env": [{ "name": "NODE_NAME", "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "spec.nodeName" } } }],
        "livenessProbe": probe("/healthz", 20, at.clone()),
        "readinessProbe": probe("/readyz", 5, at),
        "resources": { "requests": { "cpu": "50m", "memory": "64Mi" }, "limits": { "memory": "512Mi" } },
        "securityContext": {
            "capabilities": { "drop": ["ALL"], "add": CAPABILITIES },
            "readOnlyRootFilesystem": true,
            "runAsUser": 0,
            // Where SELinux is in force, a pod of another type may touch neither the socket nor the snapshots.
            "seLinuxOptions": { "type": "spc_t" },
        },
        "volumeMounts": mounts,
    });
    let mut set = json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": versioned(AGENT, namespace, "agent"),
        "spec": {
            "selector": { "matchLabels": selector("agent") },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "10%" } },
            "template": {
                "metadata": { "labels": labels("agent") },
                "spec": {
                    "automountServiceAccountToken": true,
                    "containers": [container],
                    // The node's own resolver, as its runtime has it.
                    "dnsPolicy": "Default",
                    "enableServiceLinks": false,
                    "hostNetwork": true,
                    "hostPID": true,
                    "nodeSelector": { "kubernetes.io/os": "linux" },
                    "priorityClassName": "system-node-critical",
                    "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
                    "serviceAccountName": AGENT,
                    "tolerations": [{ "operator": "Exists" }],
                    "volumes": volumes,
                },
            },
        },
    });
    log_in(&mut set, args);
    set
}

fn controller_args(namespace: &str, install: &InstallArgs) -> Vec<String> {
    let args = [
        "controller".to_string(),
        format!("--metrics=0.0.0.0:{CONTROLLER_PORT}"),
        format!("--probes=0.0.0.0:{CONTROLLER_PROBES}"),
    ];
    let peers = format!("--peers={}", peers(install).word());
    let witnesses = (install.digest_witnesses == 1).then(|| "--digest-witnesses=1".to_string());
    let handed_over = install.dialects.iter().flat_map(|dialect| {
        let words = HandOver::WORDS.iter().filter(|(_, hand_over)| *hand_over == dialect.hand_over);
        words.map(|(word, _)| format!("--handed-over={}={word}", dialect.name))
    });
    let followed = install.dialects.iter().filter_map(|one| Dialect::named(one.name));
    let followed = followed.filter(|dialect| !dialect.workloads.is_empty());
    let followed = followed.map(|dialect| format!("--serve={}", dialect.name));
    args.into_iter()
        .chain([peers])
        .chain(witnesses)
        .chain(handed_over)
        .chain(followed)
        .chain(elsewhere(namespace))
        .collect()
}

/// Said only where it is not what they take for granted.
fn elsewhere(namespace: &str) -> Option<String> {
    (namespace != stoker_api::NAMESPACE).then(|| format!("--namespace={namespace}"))
}

/// Whether nodes read from each other, where nothing else was said or seen.
fn peers(install: &InstallArgs) -> Switch {
    install.peers.unwrap_or(Switch::On)
}

fn agent_args(namespace: &str, install: &InstallArgs) -> Vec<String> {
    let host = &install.host;
    // Nobody listens where nobody is told to read.
    let port = if peers(install) == Switch::On { PEER_PORT } else { 0 };
    let mut args = vec![
        "agent".into(),
        "--node=$(NODE_NAME)".into(),
        "--runtime=auto".into(),
        format!("--data={}", host.data),
        format!("--metrics={}", host.agent_metrics),
        format!("--probes={}", host.agent_probes),
        format!("--peer-port={port}"),
    ];
    // Where the keys are by which it checks who may read.
    args.extend(elsewhere(namespace));
    args.extend(host.runtime_endpoint.iter().map(|socket| format!("--runtime-endpoint={socket}")));
    args.extend(host.max_disk.map(|percent| format!("--max-disk={percent}")));
    args.extend(host.max_pulls.map(|images| format!("--max-pulls={images}")));
    args.extend(host.bandwidth.map(|bytes| format!("--bandwidth={bytes}")));
    args.extend(host.upload.map(|bytes| format!("--upload={bytes}")));
    let config = host.credential_provider_config.iter();
    args.extend(config.map(|file| format!("--credential-provider-config={file}")));
    let programs = host.credential_provider_bin_dir.iter();
    args.extend(programs.map(|dir| format!("--credential-provider-bin-dir={dir}")));
    args
}

/// Where the kubelet asks: it is on the node's network as the agent is, so loopback will do.
fn probed(host: &HostArgs) -> String {
    match host.agent_probes.ip() {
        ip if !ip.is_unspecified() => ip.to_string(),
        ip if ip.is_ipv6() => "::1".into(),
        _ => "127.0.0.1".into(),
    }
}

/// Three times without a good answer, and it counts.
fn probe(path: &str, seconds: u32, at: Value) -> Value {
    json!({
        "httpGet": merged(json!({ "path": path, "scheme": "HTTP" }), at),
        "failureThreshold": 3,
        "periodSeconds": seconds,
        "timeoutSeconds": 5,
    })
}

//! A Node as a kubelet would have made it, with what people select nodes by. About as large as a real one without images.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

const ZONES: [&str; 3] = ["a", "b", "c"];

/// The name of a node, which counts from 1.
pub fn name(number: usize) -> String {
    format!("fake-{number:05}")
}

/// The object of a node.
pub(super) fn object(number: usize, now: Timestamp) -> Result<Node, serde_json::Error> {
    let (name, zone) = (name(number), ZONES[number % ZONES.len()]);
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let capacity = json!({
        "cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "100Gi", "hugepages-2Mi": "0",
    });
    let address = format!("10.{}.{}.{}", 64 + number / 65_536, number / 256 % 256, number % 256);
    serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "labels": {
                "beta.kubernetes.io/arch": architecture,
                "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": architecture,
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "fake.large",
                "topology.kubernetes.io/region": "nowhere-1",
                "topology.kubernetes.io/zone": format!("nowhere-1{zone}"),
            },
            "annotations": { "node.alpha.kubernetes.io/ttl": "0" },
        },
        "spec": { "providerID": format!("fake:///nowhere-1{zone}/{name}") },
        "status": {
            "addresses": [
                { "type": "InternalIP", "address": address },
                { "type": "Hostname", "address": name },
            ],
            "allocatable": capacity,
            "capacity": capacity,
            "conditions": conditions(now),
            "daemonEndpoints": { "kubeletEndpoint": { "Port": 10250 } },
            "nodeInfo": {
                "architecture": architecture, "bootID": "", "containerRuntimeVersion": "scripted://1.0.0",
                "kernelVersion": "6.1.0", "kubeProxyVersion": "", "kubeletVersion": "v1.34.4", "machineID": "",
                "operatingSystem": "linux", "osImage": "none", "systemUUID": "",
            },
        },
    }))
}

fn conditions(now: Timestamp) -> Value {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        })
    };
    json!([
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ])
}

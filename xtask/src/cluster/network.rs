//! The cluster's network: a bridge in the control plane's machine, a cable from it to every node, routes to the pods of
//! each. Runs `ip` inside of the machines; this machine's own network is never touched.

use super::place::{API_ADDRESS, CONTROL, CONTROL_ADDRESS, Node};
use super::site::Site;
use crate::shell::output;

/// The bridge. Its ports are named after the nodes, so that `tc` on one of them shapes that node's link.
const BRIDGE: &str = "nodes";
/// A machine passes on what is for another.
const FORWARD: &str = "echo 1 > /proc/sys/net/ipv4/ip_forward";

/// The network of the control plane.
pub(crate) fn control(site: &Site) -> anyhow::Result<()> {
    let lines = [
        "link set lo up".to_string(),
        format!("address add {API_ADDRESS}/32 dev lo"),
        format!("link add {BRIDGE} type bridge"),
        format!("address add {CONTROL_ADDRESS}/24 dev {BRIDGE}"),
        format!("link set {BRIDGE} up"),
    ];
    ip(site, CONTROL, &lines)
}

/// A node's cable to the control plane, its address, and the way to its pods.
pub(crate) fn node(site: &Site, node: Node) -> anyhow::Result<()> {
    let (name, address) = (node.name(), node.address());
    let first = site.first(&name)?.pid;
    // A process's number means the same in both only outside of the machines: entered by network alone.
    let cable = format!("link add {name} type veth peer name eth0 netns {first}");
    let mut command = site.errand(CONTROL)?;
    output(command.arg("ip").args(cable.split(' ')))?;
    ip(site, CONTROL, &[format!("link set {name} master {BRIDGE} up")])?;
    let lines = [
        "link set lo up".to_string(),
        format!("address add {address}/24 dev eth0"),
        "link set eth0 up".to_string(),
        format!("route add default via {CONTROL_ADDRESS}"),
    ];
    ip(site, &name, &lines)?;
    ip(site, CONTROL, &[format!("route add {} via {address}", node.pods())])
}

fn ip(site: &Site, machine: &str, lines: &[String]) -> anyhow::Result<()> {
    output(site.errand(machine)?.args(["sh", "-c", FORWARD]))?;
    for line in lines {
        output(site.errand(machine)?.arg("ip").args(line.split(' ')))?;
    }
    Ok(())
}

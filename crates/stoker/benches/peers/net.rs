//! Machines as network namespaces: a registry and nodes on one switch, each behind a link that is shaped both ways, and all of them on a second
//! switch without a limit, over which the API server is reached.

use std::process::Command;

use crate::Outcome;

/// The namespaces; they go when this is dropped.
pub(crate) struct Net {
    name: String,
    pub(crate) nodes: usize,
    pub(crate) mbits: usize,
}

impl Net {
    /// The namespaces that another process has made under this name.
    pub(crate) fn named(name: &str, nodes: usize, mbits: usize) -> Self {
        Self { name: name.into(), nodes, mbits }
    }

    /// Under which name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Makes them. `None` where that cannot be done here.
    pub(crate) fn make(nodes: usize, mbits: usize) -> Outcome<Option<Self>> {
        let net = Self::named(&format!("sp{}", std::process::id()), nodes, mbits);
        let hub = net.space("hub");
        if !ip(&["netns", "add", &hub]) {
            return Ok(None);
        }
        for bridge in ["data", "api"] {
            net.ip(&["-n", &hub, "link", "add", bridge, "type", "bridge"])?;
            net.ip(&["-n", &hub, "link", "set", bridge, "up"])?;
        }
        net.ip(&["-n", &hub, "link", "set", "lo", "up"])?;
        net.ip(&["-n", &hub, "addr", "add", "10.79.17.254/24", "dev", "api"])?;
        for at in 0..=nodes {
            net.machine(at)?;
        }
        Ok(Some(net))
    }

    /// The machine 0 is the registry.
    fn machine(&self, at: usize) -> Outcome<()> {
        let (hub, space) = (self.space("hub"), self.space(&machine(at)));
        self.ip(&["netns", "add", &space])?;
        self.ip(&["-n", &space, "link", "set", "lo", "up"])?;
        for (bridge, address) in [("data", self.address(at)), ("api", format!("10.79.17.{}", at + 1))] {
            let port = format!("{bridge}{at}");
            self.ip(&["link", "add", &port, "netns", &hub, "type", "veth", "peer", "name", bridge, "netns", &space])?;
            self.ip(&["-n", &hub, "link", "set", &port, "master", bridge, "up"])?;
            self.ip(&["-n", &space, "addr", "add", &format!("{address}/24"), "dev", bridge])?;
            self.ip(&["-n", &space, "link", "set", bridge, "up"])?;
        }
        self.shape(at, self.mbits)
    }

    /// The address of a machine on the shaped switch.
    pub(crate) fn address(&self, at: usize) -> String {
        format!("10.79.16.{}", at + 1)
    }

    /// The link of a machine has this rate, both ways.
    pub(crate) fn shape(&self, at: usize, mbits: usize) -> Outcome<()> {
        let rate = format!("{mbits}mbit");
        for (space, device) in [("hub".to_string(), format!("data{at}")), (machine(at), "data".to_string())] {
            let words =
                ["qdisc", "replace", "dev", &device, "root", "tbf", "rate", &rate, "burst", "256kb", "latency", "50ms"];
            self.tc(&space, &words)?;
        }
        Ok(())
    }

    /// The link of a machine has no limit.
    pub(crate) fn unshape(&self, at: usize) -> Outcome<()> {
        self.tc("hub", &["qdisc", "del", "dev", &format!("data{at}"), "root"])?;
        self.tc(&machine(at), &["qdisc", "del", "dev", "data", "root"])
    }

    fn tc(&self, space: &str, words: &[&str]) -> Outcome<()> {
        match Command::new("tc").args(["-n", &self.space(space)]).args(words).status()?.success() {
            true => Ok(()),
            false => Err(format!("tc {} failed", words.join(" ")).into()),
        }
    }

    fn ip(&self, words: &[&str]) -> Outcome<()> {
        if ip(words) { Ok(()) } else { Err(format!("ip {} failed", words.join(" ")).into()) }
    }

    fn space(&self, machine: &str) -> String {
        format!("{}-{machine}", self.name)
    }

    /// A program on a machine.
    pub(crate) fn program(&self, machine: &str, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.space(machine))).arg("--").arg(program);
        command
    }

    /// This program on a machine.
    pub(crate) fn inside(&self, machine: &str) -> Command {
        self.program(machine, &std::env::current_exe().unwrap_or_default().display().to_string())
    }

    /// Bytes that the registry has sent, as its link counts them.
    pub(crate) fn left_registry(&self) -> Outcome<u64> {
        let shown =
            Command::new("ip").args(["-n", &self.space("hub"), "-s", "-j", "link", "show", "data0"]).output()?;
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout)?;
        shown
            .pointer("/0/stats64/rx/bytes")
            .and_then(serde_json::Value::as_u64)
            .ok_or_else(|| "ip counts no bytes".into())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let machines = (0..=self.nodes).map(machine).chain(["hub".to_string()]);
        for machine in machines {
            ip(&["netns", "delete", &self.space(&machine)]);
        }
    }
}

/// The name of a machine. Names have the order of the numbers.
pub(crate) fn machine(at: usize) -> String {
    if at == 0 { "registry".into() } else { format!("n{at:02}") }
}

fn ip(words: &[&str]) -> bool {
    Command::new("ip").args(words).status().is_ok_and(|status| status.success())
}

/// How long all processors were busy and idle, in ticks.
#[derive(Clone, Copy)]
pub(crate) struct Processors {
    busy: f64,
    all: f64,
}

impl Processors {
    /// The part of the time since then in which they were busy.
    pub(crate) fn since(self, before: Self) -> f64 {
        (self.busy - before.busy) / (self.all - before.all).max(1.0)
    }
}

pub(crate) fn processors() -> Outcome<Processors> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let ticks: Vec<f64> =
        stat.lines().next().unwrap_or_default().split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let (all, idle): (f64, f64) = (ticks.iter().sum(), ticks.iter().skip(3).take(2).sum());
    Ok(Processors { busy: all - idle, all })
}

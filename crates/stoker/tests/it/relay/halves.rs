//! A network of two halves that can be parted: network namespaces on a switch, to which the API server and the registry belong. Parted halves
//! still reach those two, and no longer each other: what one half sends to the other one vanishes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stoker_testbed::proxy::Proxy;
use stoker_testbed::registry::Registry;

/// Where the API server and the registry are.
pub(super) const HUB: &str = "10.79.18.254";
const HALVES: [(&str, &str); 2] = [("left", "10.79.18.1"), ("right", "10.79.18.2")];
/// Tells a test that it runs inside of the namespace of the hub, and how the namespaces are called.
const VARIABLE: &str = "STOKER_TEST_HALVES";

/// The half of a node.
pub(super) fn half(node: &str) -> &'static str {
    HALVES[usize::from(node > "n02")].0
}

/// The address of a node: those of a half share it.
pub(super) fn address(node: &str) -> &'static str {
    HALVES[usize::from(node > "n02")].1
}

pub(super) struct Halves {
    name: String,
}

impl Halves {
    /// Makes the network and runs the test of this name again, inside of its hub: there it gives the network. `None` where the test has been run
    /// by that, or cannot be run here.
    pub(super) fn enter(test: &str) -> Option<Self> {
        if let Ok(name) = std::env::var(VARIABLE) {
            return Some(Self { name });
        }
        let made = Made(Self { name: format!("sh{}", std::process::id()) });
        if !made.0.make() {
            println!("SKIPPED: network namespaces need root and `ip` (package iproute2)");
            return None;
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args([test, "--exact", "--include-ignored", "--nocapture"]).env(VARIABLE, &made.0.name);
        let output = made.0.inside("hub", &again).stderr(Stdio::inherit()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{said}");
        assert!(output.status.success() && said.contains("1 passed"), "see above");
        None
    }

    fn make(&self) -> bool {
        let hub = &self.space("hub");
        let network = format!("{HUB}/24");
        ip(&["netns", "add", hub])
            && ip(&["-n", hub, "link", "set", "lo", "up"])
            && ip(&["-n", hub, "link", "add", "switch", "type", "bridge"])
            && ip(&["-n", hub, "addr", "add", &network, "dev", "switch"])
            && ip(&["-n", hub, "link", "set", "switch", "up"])
            && HALVES.iter().all(|(half, address)| {
                let (space, network) = (&self.space(half), format!("{address}/24"));
                ip(&["netns", "add", space])
                    && ip(&["-n", space, "link", "set", "lo", "up"])
                    && ip(&["link", "add", half, "netns", hub, "type", "veth", "peer", "name", "net", "netns", space])
                    && ip(&["-n", hub, "link", "set", half, "master", "switch", "up"])
                    && ip(&["-n", space, "addr", "add", &network, "dev", "net"])
                    && ip(&["-n", space, "link", "set", "net", "up"])
            })
    }

    /// The halves no longer reach each other.
    pub(super) fn part(&self) {
        self.isolate("on");
    }

    pub(super) fn heal(&self) {
        self.isolate("off");
    }

    fn isolate(&self, isolated: &str) {
        for (half, _) in HALVES {
            let words = ["link", "set", half, "type", "bridge_slave", "isolated", isolated];
            assert!(ip(&[&["-n", &self.space("hub")], words.as_slice()].concat()), "{words:?}");
        }
    }

    /// A command on a node.
    pub(super) fn of(&self, node: &str, command: &Command) -> Command {
        self.inside(half(node), command)
    }

    fn inside(&self, part: &str, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net=/run/netns/{}", self.space(part))).arg("--");
        inside.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    fn space(&self, part: &str) -> String {
        format!("{}-{part}", self.name)
    }
}

/// The namespaces of whoever made them: they go when this is dropped.
struct Made(Halves);

impl Drop for Made {
    fn drop(&mut self) {
        for part in HALVES.iter().map(|(half, _)| *half).chain(["hub"]) {
            ip(&["netns", "delete", &self.0.space(part)]);
        }
    }
}

fn ip(words: &[&str]) -> bool {
    Command::new("ip").args(words).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// How the halves reach the registry, which listens on loopback.
pub(super) struct Link {
    proxy: Proxy,
    /// Says that it is spoken to without TLS.
    pub(super) hosts: PathBuf,
}

impl Link {
    pub(super) async fn to(registry: &Registry, home: &Path) -> Self {
        let proxy = Proxy::start_at(HUB.parse().unwrap(), registry.host().parse().unwrap()).await.unwrap();
        let (hosts, host) = (home.join("hosts"), proxy.host());
        std::fs::create_dir_all(hosts.join(&host)).unwrap();
        std::fs::write(hosts.join(&host).join("hosts.toml"), format!("[host.\"http://{host}\"]\n")).unwrap();
        Self { proxy, hosts }
    }

    pub(super) fn host(&self) -> String {
        self.proxy.host()
    }
}

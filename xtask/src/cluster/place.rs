//! Where everything of a cluster is: paths, names and addresses, from its folder and a number. Computes, touches nothing.

use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::built;

/// The machine of the control plane, and of the registry.
pub(crate) const CONTROL: &str = "control";
/// Its address on the network of the nodes.
pub(crate) const CONTROL_ADDRESS: &str = "10.77.0.1";
/// Where pods and everybody else find the API server: the first address of the range of services, on the control
/// plane's loopback, so that no kube-proxy is needed for it.
pub(crate) const API_ADDRESS: &str = "10.99.0.1";
/// The range of services.
pub(crate) const SERVICES: &str = "10.99.0.0/24";
/// The registry, as images name it.
pub(crate) const REGISTRY: &str = "10.77.0.1:5000";
/// More than this no development machine carries, and the addresses below are counted with one byte.
pub(crate) const MOST_NODES: usize = 50;
/// Nobody has tried more; where this machine allows fewer, the fleet says so.
pub(crate) const MOST_FAKE_NODES: usize = 20_000;

/// What a machine has as its own, below its folder: each covers the machine's folder of that name.
pub(crate) const OWN_FOLDERS: [(&str, &str); 3] = [("lib", "/var/lib"), ("log", "/var/log"), ("run", "/run")];

/// A cluster's folder.
pub(crate) struct Place {
    dir: PathBuf,
}

impl Place {
    /// An absolute path of plain characters: it is put into options of `mount` and into configuration files.
    pub(crate) fn new(dir: PathBuf) -> anyhow::Result<Self> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
        let text = dir.to_string_lossy().into_owned();
        if !dir.is_absolute() || !text.bytes().all(plain) || text.contains("..") || dir.parent().is_none() {
            bail!("{text:?} cannot be a cluster's folder; give an absolute path of letters, digits, `.`, `_` and `-`");
        }
        let hidden = OWN_FOLDERS.iter().map(|(_, path)| *path).chain(["/etc", "/proc", "/sys", "/dev"]);
        for covered in hidden {
            if dir.starts_with(covered) {
                bail!("{text} cannot be a cluster's folder: nodes have a {covered} of their own and would not see it");
            }
        }
        Ok(Self { dir })
    }

    /// Where the cluster is when nobody says.
    pub(crate) fn usual() -> anyhow::Result<Self> {
        Self::new(built::cache()?.join("cluster"))
    }

    /// What to type, for people: `order` about this cluster, as in `down` or `exec`.
    pub(crate) fn order(&self, order: &str) -> String {
        match Self::usual() {
            Ok(usual) if usual.dir == self.dir => format!("cargo xtask cluster {order}"),
            _ => format!("cargo xtask cluster {order} --dir {}", self.dir.display()),
        }
    }

    /// The folder itself.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What was made, for `down`.
    pub(crate) fn journal(&self) -> PathBuf {
        self.dir.join("journal")
    }

    /// Held by the one whose tests run on it. Beside the folder: it comes before the cluster and ends after it.
    pub(crate) fn turn(&self) -> PathBuf {
        self.dir.with_added_extension("turn")
    }

    /// Credentials of the cluster's administrator.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    /// A private key, a certificate, or a kubeconfig of a part.
    pub(crate) fn key(&self, file: &str) -> PathBuf {
        self.dir.join("keys").join(file)
    }

    /// Where its programs find a home: kubectl keeps a cache there.
    pub(crate) fn home(&self) -> PathBuf {
        self.dir.join("home")
    }

    /// What a part prints.
    pub(crate) fn log(&self, part: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{}.log", part.replace('/', "-")))
    }

    /// What a machine keeps.
    pub(crate) fn machine(&self, machine: &str) -> PathBuf {
        self.dir.join("machines").join(machine)
    }
}

/// What nodes a cluster has.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Nodes {
    /// So many machines with a kubelet and a containerd.
    Real(usize),
    /// Nodes without machines.
    Fake(Fleet),
}

/// Nodes without machines: what the fleet's program is told.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fleet {
    pub(crate) nodes: usize,
    /// How long a pull takes, in the words of the program.
    pub(crate) pull_time: Option<String>,
    /// Every such node fails.
    pub(crate) fail_every: Option<usize>,
    /// The program, if it is built already.
    pub(crate) binary: Option<String>,
}

impl Nodes {
    /// How many.
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Real(count) | Self::Fake(Fleet { nodes: count, .. }) => *count,
        }
    }

    /// What they are, for people.
    pub(crate) fn describe(&self) -> String {
        let mut text = say(self.count(), matches!(self, Self::Fake(_)));
        if let Self::Fake(Fleet { nodes: _, pull_time, fail_every, binary }) = self {
            text.extend(pull_time.iter().map(|time| format!(" --pull-time {time}")));
            text.extend(fail_every.iter().map(|every| format!(" --fail-every {every}")));
            text.extend(binary.iter().map(|file| format!(" --binary {file}")));
        }
        text
    }
}

/// So many nodes, for people.
pub(crate) fn say(count: usize, fake: bool) -> String {
    let (kind, s) = (if fake { "simulated " } else { "" }, if count == 1 { "" } else { "s" });
    format!("{count} {kind}node{s}")
}

/// One node: what follows from its number, which counts from 1.
#[derive(Clone, Copy)]
pub(crate) struct Node {
    pub(crate) number: usize,
}

impl Node {
    /// The first nodes.
    pub(crate) fn all(count: usize) -> impl Iterator<Item = Node> {
        (1..=count).map(|number| Node { number })
    }

    /// Its name in Kubernetes, of its machine, and of its port of the control plane's bridge.
    pub(crate) fn name(self) -> String {
        format!("n{}", self.number)
    }

    /// Its address on the network of the nodes.
    pub(crate) fn address(self) -> String {
        format!("10.77.0.{}", 10 + self.number)
    }

    /// The addresses of its pods.
    pub(crate) fn pods(self) -> String {
        format!("10.88.{}.0/24", self.number)
    }

    /// Whether it has containerd 2.2, and not Debian's: users have both, so every second one.
    pub(crate) fn has_containerd_2(self) -> bool {
        self.number.is_multiple_of(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_a_node_could_not_see_or_a_mount_not_name_are_refused() {
        for bad in ["relative", "/", "/run/x", "/var/lib/x", "/etc/x", "/a b", "/a,b", "/a:b", "/a/../run"] {
            assert!(Place::new(PathBuf::from(bad)).is_err(), "{bad}");
        }
        for good in ["/tmp/x", "/home/ada/.cache/stoker/cluster", "/running/x"] {
            assert!(Place::new(PathBuf::from(good)).is_ok(), "{good}");
        }
    }

    #[test]
    fn people_are_told_of_the_folder_where_it_is_not_the_usual_one_and_of_all_that_was_asked_for() {
        assert_eq!(Place::usual().unwrap().order("down"), "cargo xtask cluster down");
        assert_eq!(Place::new("/tmp/x".into()).unwrap().order("exec"), "cargo xtask cluster exec --dir /tmp/x");
        let fleet = Fleet {
            nodes: 20,
            pull_time: Some("2s".to_string()),
            fail_every: Some(10),
            binary: Some("/x".to_string()),
        };
        let all = "20 simulated nodes --pull-time 2s --fail-every 10 --binary /x";
        assert_eq!(Nodes::Fake(fleet).describe(), all);
        assert_eq!(Nodes::Real(1).describe(), "1 node");
    }

    #[test]
    fn every_node_has_its_own_address_and_subnet() {
        let nodes: Vec<Node> = Node::all(MOST_NODES).collect();
        let distinct = |what: fn(Node) -> String| {
            nodes.iter().map(|node| what(*node)).collect::<std::collections::BTreeSet<_>>().len()
        };
        assert_eq!((distinct(Node::name), distinct(Node::address), distinct(Node::pods)), (50, 50, 50));
        assert_eq!(nodes.iter().filter(|node| node.has_containerd_2()).count(), 25);
    }
}

//! What a scenario runs on: nodes with agents that put images into layouts, a controller, and somebody who may edit one
//! namespace. A site and what the nodes shall be like come in; all of it running goes out, and ends when it is dropped.

use std::ops::Deref;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::pin::Pin;

use futures::FutureExt as _;
use kube::Client;
use stoker_testbed::small_disk::SmallDisk;

use crate::real::{Part, Real};
use crate::up::{Login, Up};

/// A scenario by name.
pub(crate) type Scenario = (&'static str, for<'a> fn(&'a Site) -> Pin<Box<dyn Future<Output = ()> + 'a>>);

/// Where scenarios run. Whatever the site, there are at least three nodes.
pub(crate) enum Site {
    /// A `stoker up` for each of them.
    Embedded,
    /// A real API server, for one after the other.
    Real(Box<Real>),
}

/// What a scenario wants of its nodes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wishes {
    /// What agents are told besides.
    pub(crate) agents: &'static [&'static str],
    /// Logs with everything in them.
    pub(crate) trace: bool,
    /// The second node has a disk of two MiB, where mounting one is allowed.
    pub(crate) small_disk: bool,
}

impl Site {
    /// A place that nothing happened in yet.
    pub(crate) async fn bed(&self, wishes: Wishes) -> Bed {
        match self {
            Site::Embedded => embedded(wishes).await,
            Site::Real(real) => real.bed(wishes).await,
        }
    }
}

async fn embedded(wishes: Wishes) -> Bed {
    let scratch = tempfile::tempdir().unwrap();
    let (data, log) = (tempfile::tempdir().unwrap(), scratch.path().join("up.log"));
    let disk = wishes.small_disk.then(|| SmallDisk::mount(data.path().join("nodes/node-2"), "2m")).flatten();
    assert!(!(wishes.trace && wishes.small_disk), "nobody wanted both yet");
    let up = match wishes.trace {
        true => Up::start_in_env(5, wishes.agents, &[], &log),
        false => Up::start_with(data, 5, wishes.agents),
    };
    Bed {
        person: Login::new(up.kubeconfig().to_owned()),
        operator: Login::new(up.kubeconfig().to_owned()),
        administrator: up.client().await,
        namespace: "default".to_owned(),
        nodes: (1..=5).map(|number| format!("node-{number}")).collect(),
        own_node: "node-3".to_owned(),
        homes: up.data().join("nodes"),
        logs: vec![log],
        disk,
        _running: Running::Up(up),
        relays: true,
        scratch,
    }
}

/// All that a scenario has.
pub(crate) struct Bed {
    /// Whose commands are run: may edit the namespace and see nodes.
    pub(crate) person: Login,
    /// May see all namespaces.
    pub(crate) operator: Login,
    /// May do everything: for what the test itself looks at and changes, and no command of Stoker does.
    pub(crate) administrator: Client,
    pub(crate) namespace: String,
    /// Their names, in order.
    pub(crate) nodes: Vec<String>,
    /// One of them that is the test's own: it may be changed.
    pub(crate) own_node: String,
    /// Below it each node has a directory of its name.
    pub(crate) homes: PathBuf,
    /// What controller and agents say.
    pub(crate) logs: Vec<PathBuf>,
    pub(crate) disk: Option<SmallDisk>,
    /// Whether nodes read images from each other.
    pub(crate) relays: bool,
    /// The processes, killed when dropped.
    pub(crate) _running: Running,
    pub(crate) scratch: tempfile::TempDir,
}

/// What it all runs as.
pub(crate) enum Running {
    Up(#[allow(dead_code, reason = "held until it is dropped")] Up),
    Parts(#[allow(dead_code, reason = "held until it is dropped")] Vec<Part>),
}

impl Deref for Bed {
    type Target = Login;

    fn deref(&self) -> &Login {
        &self.person
    }
}

impl Bed {
    /// The image store of a node.
    pub(crate) fn images(&self, node: &str) -> PathBuf {
        self.homes.join(node).join("images")
    }

    /// Where a scenario may write.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    pub(crate) fn has_small_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Everything that controller and agents said.
    pub(crate) fn log(&self) -> String {
        self.logs.iter().map(|log| std::fs::read_to_string(log).unwrap()).collect()
    }
}

/// Runs scenarios on a real server, one after another; says all that failed.
pub(crate) async fn on_real(kubeconfig: &str, scenarios: &[Scenario]) {
    let site = Site::Real(Box::new(Real::new(kubeconfig).await));
    let only = std::env::var("STOKER_TEST_ONLY").unwrap_or_default();
    let mut failed = Vec::new();
    let wanted: Vec<_> = scenarios.iter().filter(|(name, _)| name.contains(&only)).collect();
    assert!(!wanted.is_empty(), "no scenario has {only:?} in its name");
    for (name, scenario) in wanted {
        println!("{name} …");
        if AssertUnwindSafe(scenario(&site)).catch_unwind().await.is_err() {
            failed.push(*name);
        }
    }
    let Site::Real(real) = site else { unreachable!() };
    real.leave().await;
    assert!(failed.is_empty(), "{} of {} go otherwise: {failed:#?}", failed.len(), scenarios.len());
}

//! A node: a containerd, a registry behind a link that counts, and `stoker up` on both.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::api::DynamicObject;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use serde_json::Value;
use stoker_runtime::Cri;
use stoker_testbed::containerd::{self, Containerd, Version};
use stoker_testbed::docker_registry::{self, DockerRegistry};
use stoker_testbed::image::Image;
use stoker_testbed::proxy::Proxy;

use crate::up::{Ran, Up, eventually};

/// What one interruption may cost: bytes that are on the wire then, and those of the documents that are asked for again.
const CUT: u64 = 1 << 20;

/// A pull by CRI that takes this long hangs.
pub(crate) const LONGEST_PULL: Duration = Duration::from_secs(300);

/// Makes of `async fn case(version: Version)` a test on each version. `quick`: Debian's is not left out by quick runs.
macro_rules! on_both {
    (quick $case:ident) => {
        on_both!($case:);
    };
    ($case:ident) => {
        on_both!($case: #[ignore = "long"]);
    };
    ($case:ident: $(#[$debian:meta])?) => {
        mod $case {
            #[tokio::test(flavor = "multi_thread")]
            $(#[$debian])?
            async fn on_containerd_1() {
                super::$case(stoker_testbed::containerd::Version::Debian).await;
            }
            #[tokio::test(flavor = "multi_thread")]
            #[ignore = "long"]
            async fn on_containerd_2() {
                super::$case(stoker_testbed::containerd::Version::Two).await;
            }
        }
    };
}
pub(crate) use on_both;

/// The registry and the link to it. References name the link.
pub(crate) struct Registry {
    pub(crate) real: DockerRegistry,
    pub(crate) link: Proxy,
}

impl Registry {
    /// `None`, said loudly, where there is no docker-registry.
    pub(crate) async fn start(options: docker_registry::Options) -> Option<Self> {
        let real = DockerRegistry::start(options).await.unwrap()?;
        let link = Proxy::start(real.addr()).await.unwrap();
        Some(Self { real, link })
    }

    /// Pushes an image and gives the reference to pull it by.
    pub(crate) async fn push(&self, repository: &str, tag: &str, image: &Image) -> String {
        self.real.push(repository, tag, image).await.unwrap();
        format!("{}/{repository}:{tag}", self.link.host())
    }

    /// Fails where more was sent than an image needs that was interrupted this often.
    #[track_caller]
    pub(crate) fn sent_at_most(&self, image: &Image, cuts: u64) {
        let (sent, most) = (self.link.received(), bound(image, cuts));
        assert!(sent <= most, "{sent} bytes left the registry, {most} may");
    }
}

/// What may be sent for an image that was interrupted this often.
pub(crate) fn bound(image: &Image, cuts: u64) -> u64 {
    image.layer_bytes() + image.layer_bytes() / 50 + cuts.max(1) * CUT
}

/// A containerd with `stoker up` on it.
pub(crate) struct Node {
    pub(crate) up: Up,
    pub(crate) containerd: Containerd,
}

impl Node {
    /// `None`, said loudly, where there is no such containerd.
    pub(crate) async fn start(version: Version) -> Option<Self> {
        Self::start_with(version, containerd::Options::default(), &[]).await
    }

    /// With other options of containerd, and more arguments for `stoker up`.
    pub(crate) async fn start_with(version: Version, options: containerd::Options, more: &[&str]) -> Option<Self> {
        let containerd = Containerd::start(version, options).await.unwrap()?;
        let endpoint = containerd.endpoint();
        // The machine's own disk is nobody's business here.
        let mut args = vec!["--runtime", "containerd", "--runtime-endpoint", &endpoint, "--max-disk", "100"];
        args.extend(more);
        let up = Up::start_with(tempfile::tempdir().unwrap(), 1, &args);
        Some(Self { up, containerd })
    }

    /// `stoker pull`, to its end.
    pub(crate) async fn pull(&self, image: &str) -> Ran {
        self.up.run(&["pull", image]).await
    }

    /// The names of containerd's images.
    pub(crate) async fn names(&self) -> Vec<String> {
        let names = self.containerd.ctr_ok(&["images", "ls", "-q"]).await.unwrap();
        names.lines().map(str::to_owned).collect()
    }

    /// Begins a job without waiting for it.
    pub(crate) async fn begin(&self, name: &str, image: &str, more: &[&str]) {
        self.up.run(&[&["pull", image, "--name", name, "--no-wait"], more].concat()).await.exits(0);
    }

    /// Waits until the report of the only order is as the test wants it.
    pub(crate) async fn report(&self, wanted: impl Fn(&Report) -> bool) -> Report {
        let object = self.up.wait("NodePreheat", "node-1", |object| reports(object).iter().any(&wanted)).await;
        reports(&object).into_iter().find(wanted).unwrap()
    }

    /// Waits until so many bytes of the only image are on the disk, but for what a cut may cost, and says how many are. What
    /// the link has sent and nobody has read yet, as much as buffers hold, is lost with whoever was to read it.
    pub(crate) async fn keeps(&self, bytes: u64) -> u64 {
        self.report(|report| report.done + CUT >= bytes).await.done
    }

    /// Waits until the agent goes by its orders of this generation: it notes that after it has taken them in.
    pub(crate) async fn heard(&self, generation: i64) {
        let ledger = self.up.data().join("nodes/node-1/ledger.json");
        let noted = async || {
            let text = std::fs::read_to_string(&ledger).unwrap_or_default();
            let ledger: Value = serde_json::from_str(&text).unwrap_or_default();
            ledger["generation"].as_i64().is_some_and(|noted| noted >= generation)
        };
        eventually("the agent goes by its newest orders", noted).await;
    }

    /// Waits until the only order is done.
    pub(crate) async fn done(&self) -> Report {
        self.report(|report| report.phase == "Succeeded").await
    }

    /// The reports from now on: none that comes while the test does something else is missed.
    pub(crate) async fn watch(&self) -> Watch {
        let api = self.up.api("NodePreheat").await;
        let mut objects = watcher(api, watcher::Config::default()).default_backoff().applied_objects().boxed();
        let now = reports(&objects.next().await.unwrap().unwrap());
        Watch { objects, now }
    }

    /// The same through CRI.
    pub(crate) async fn cri(&self) -> Cri {
        Cri::connect(self.containerd.socket()).await.unwrap()
    }
}

/// What a test looks at in a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) phase: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// Received from the registry.
    pub(crate) upstream: u64,
    /// There, whoever brought it.
    pub(crate) done: u64,
    pub(crate) total: u64,
    pub(crate) attempt: u64,
}

/// The reports of a node, as they change.
pub(crate) struct Watch {
    objects: BoxStream<'static, watcher::Result<DynamicObject>>,
    now: Vec<Report>,
}

impl Watch {
    /// Waits until a report is as the test wants it.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&Report) -> bool) -> Report {
        let found = async {
            loop {
                if let Some(report) = self.now.iter().find(|report| wanted(report)) {
                    return report.clone();
                }
                self.now = reports(&self.objects.next().await.unwrap().unwrap());
            }
        };
        tokio::time::timeout(crate::up::PATIENCE, found).await.expect("a report as wanted")
    }
}

/// The reports of a NodePreheat, but for answers to questions.
pub(crate) fn reports(object: &DynamicObject) -> Vec<Report> {
    let all = object.data.pointer("/status/reports").and_then(Value::as_object);
    let text = |report: &Value, field: &str| report[field].as_str().unwrap_or_default().to_owned();
    let report = |report: &Value| Report {
        phase: text(report, "phase"),
        reason: text(report, "reason"),
        message: text(report, "message"),
        upstream: report["bytes"]["upstream"].as_u64().unwrap_or(0),
        done: report["bytes"]["done"].as_u64().unwrap_or(0),
        total: report["bytes"]["total"].as_u64().unwrap_or(0),
        attempt: report["attempt"].as_u64().unwrap_or(0),
    };
    let all = all.into_iter().flat_map(|all| all.values()).map(report);
    all.filter(|report| report.phase != "Resolved").collect()
}

/// Lets containerd's garbage collector run, and waits for it.
pub(crate) async fn collect(containerd: &Containerd) {
    containerd.ctr_ok(&["leases", "create", "--id", "collect"]).await.unwrap();
    containerd.ctr_ok(&["leases", "rm", "--sync", "collect"]).await.unwrap();
}

/// The leases that are ours.
pub(crate) async fn leases(containerd: &Containerd) -> Vec<String> {
    let list = containerd.ctr_ok(&["leases", "ls"]).await.unwrap();
    list.lines().filter(|line| line.starts_with("stoker-")).map(str::to_owned).collect()
}

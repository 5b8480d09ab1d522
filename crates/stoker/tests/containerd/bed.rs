//! A node: a containerd, a registry behind a link that counts, and `stoker up` on both.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::api::DynamicObject;
use serde_json::Value;
use stoker_runtime::Cri;
use stoker_runtime::cri::Listed;
use stoker_testbed::containerd::{self, Containerd, Version};
use stoker_testbed::docker_registry::{self, DockerRegistry};
use stoker_testbed::image::Image;
use stoker_testbed::proxy::Proxy;

use crate::up::{Ran, Up};

/// Makes of `async fn case(version: Version)` a test on each version. `quick`: Debian's is not left out by quick runs.
macro_rules! on_both {
    (quick $case:ident) => {
        mod $case {
            #[tokio::test(flavor = "multi_thread")]
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
    ($case:ident) => {
        mod $case {
            #[tokio::test(flavor = "multi_thread")]
            #[ignore = "long"]
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

    /// Waits until the only order is done.
    pub(crate) async fn done(&self) -> Report {
        self.report(|report| report.phase == "Succeeded").await
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
    pub(crate) attempt: u64,
}

/// The reports of a NodePreheat.
pub(crate) fn reports(object: &DynamicObject) -> Vec<Report> {
    let all = object.data.pointer("/status/reports").and_then(Value::as_object);
    let text = |report: &Value, field: &str| report[field].as_str().unwrap_or_default().to_owned();
    let report = |report: &Value| Report {
        phase: text(report, "phase"),
        reason: text(report, "reason"),
        message: text(report, "message"),
        upstream: report["bytes"]["upstream"].as_u64().unwrap_or(0),
        done: report["bytes"]["done"].as_u64().unwrap_or(0),
        attempt: report["attempt"].as_u64().unwrap_or(0),
    };
    all.into_iter().flat_map(|all| all.values()).map(report).collect()
}

/// A containerd that pulls by itself when CRI asks it, as the kubelet does: what ours is compared with.
pub(crate) struct Kubelet {
    pub(crate) containerd: Containerd,
    pub(crate) cri: Cri,
}

impl Kubelet {
    /// `None`, said loudly, where there is no such containerd.
    pub(crate) async fn start(version: Version, options: containerd::Options) -> Option<Self> {
        let containerd = Containerd::start(version, options).await.unwrap()?;
        let cri = Cri::connect(containerd.socket()).await.unwrap();
        Some(Self { containerd, cri })
    }

    /// CRI PullImage.
    pub(crate) async fn pull(&self, image: &str) {
        self.cri.pull(image, None, None, Duration::from_secs(120)).await.unwrap();
    }
}

/// Waits until CRI lists an image: it hears of records that others make a moment later.
pub(crate) async fn listed(cri: &Cri, image: &str) -> Listed {
    let look = async {
        loop {
            if let Some(found) = cri.find(image).await.unwrap().filter(|found| !found.digests.is_empty()) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let mut found = tokio::time::timeout(crate::up::PATIENCE, look).await.expect("CRI lists it");
    found.tags.sort();
    found.digests.sort();
    found
}

/// The records and contents of a containerd, each with its labels, but for those of its sandbox image.
pub(crate) async fn inventory(containerd: &Containerd) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let sandbox = contents(containerd, &[containerd::SANDBOX_IMAGE]).await;
    for line in containerd.ctr_ok(&["images", "ls"]).await.unwrap().lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if !sandbox.iter().any(|digest| line.contains(digest.as_str())) {
            all.insert(format!("image {}", words[0]), words[1..].join(" "));
        }
    }
    for line in containerd.ctr_ok(&["content", "ls"]).await.unwrap().lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let labels = words.last().copied().unwrap_or_default();
        // An own content is what names where it is from.
        if labels.contains("distribution.source") {
            let mut labels: Vec<&str> = labels.split(',').collect();
            labels.sort_unstable();
            all.insert(format!("content {}", words[0]), labels.join(" "));
        }
    }
    for line in containerd.ctr_ok(&["snapshots", "ls"]).await.unwrap().lines().skip(1) {
        let key = line.split_whitespace().next().unwrap_or_default();
        if key.starts_with("sha256:") {
            let info = containerd.ctr_ok(&["snapshots", "info", key]).await.unwrap();
            let info: Value = serde_json::from_str(&info).unwrap();
            all.insert(format!("snapshot {key}"), format!("{} on {} {}", info["Kind"], info["Parent"], info["Labels"]));
        }
    }
    all
}

/// Lets containerd's garbage collector run, and waits for it.
pub(crate) async fn collect(containerd: &Containerd) {
    containerd.ctr_ok(&["leases", "create", "--id", "collect"]).await.unwrap();
    containerd.ctr_ok(&["leases", "rm", "--sync", "collect"]).await.unwrap();
}

/// The digests that records of these names have.
async fn contents(containerd: &Containerd, names: &[&str]) -> Vec<String> {
    let list = containerd.ctr_ok(&["images", "ls"]).await.unwrap();
    let rows = list.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| names.contains(&row[0])).map(|row| row[2].to_owned()).collect()
}

/// The leases that are ours.
pub(crate) async fn leases(containerd: &Containerd) -> Vec<String> {
    let list = containerd.ctr_ok(&["leases", "ls"]).await.unwrap();
    list.lines().filter(|line| line.starts_with("stoker-")).map(str::to_owned).collect()
}

//! A second containerd that pulls by itself, and what both then have, in a form that can be compared.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use stoker_runtime::Cri;
use stoker_runtime::cri::Listed;
use stoker_testbed::containerd::{self, Containerd, Version};

use crate::bed::LONGEST_PULL;

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
        self.cri.pull(image, None, None, LONGEST_PULL).await.unwrap();
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

/// Waits until CRI lists it like this.
pub(crate) async fn listed_as(cri: &Cri, image: &str, wanted: &Listed) {
    let look = async {
        while listed(cri, image).await != *wanted {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(crate::up::PATIENCE, look).await.is_err() {
        panic!("listed as {:?} and not as {wanted:?}", listed(cri, image).await);
    }
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

/// The digests that records of these names have.
async fn contents(containerd: &Containerd, names: &[&str]) -> Vec<String> {
    let list = containerd.ctr_ok(&["images", "ls"]).await.unwrap();
    let rows = list.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| names.contains(&row[0])).map(|row| row[2].to_owned()).collect()
}

//! What users wish: objects of all three kinds, with few names and few contents.

use proptest::prelude::*;
use serde_json::{Value, json};

pub(super) const NAMESPACES: [&str; 2] = ["shop", "bank"];
pub(super) const KINDS: [(&str, &str); 3] = [
    ("Preheat", "stoker.dev/v1alpha1"),
    ("ImagePullJob", "apps.kruise.io/v1beta1"),
    ("ImageListPullJob", "apps.kruise.io/v1beta1"),
];
pub(super) const IMAGES: [&str; 3] = ["reg.test/web:1", "reg.test/db:1", "reg.test/cache:7"];
pub(super) const NAMES: [&str; 2] = ["one", "two"];

/// The namespace and the name of an object with this number: names are the same in all namespaces.
pub(super) fn place(number: usize) -> (&'static str, &'static str) {
    (NAMESPACES[number / NAMES.len() % NAMESPACES.len()], NAMES[number % NAMES.len()])
}

/// What an object says.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    images: u8,
    nodes: u8,
    parallelism: u8,
    completion: u8,
    retries: u8,
    timeout: u16,
    always: bool,
    suspend: bool,
}

impl Wish {
    pub(super) fn any() -> impl Strategy<Value = Self> {
        let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.15));
        let terms = (0..3u8, prop::sample::select(vec![60, 600, 3_600]));
        (1..8u8, 0..6u8, 0..5u8, 0..6u8, terms, flags).prop_map(
            |(images, nodes, parallelism, completion, (retries, timeout), (always, suspend))| Self {
                images,
                nodes,
                parallelism,
                completion,
                retries,
                timeout,
                always,
                suspend,
            },
        )
    }

    /// One image on all nodes, once.
    pub(super) fn plain() -> Self {
        Self {
            images: 1,
            nodes: 5,
            parallelism: 2,
            completion: 5,
            retries: 0,
            timeout: 600,
            always: false,
            suspend: false,
        }
    }

    /// One that ends by itself when every node can be asked.
    pub(super) fn calmed(spec: &mut Value) {
        if spec.get("pace").is_some() {
            spec["pace"]["parallelism"] = json!(2);
            spec["suspend"] = json!(false);
        } else {
            spec["parallelism"] = json!(2);
        }
    }

    fn images(&self) -> Vec<&'static str> {
        IMAGES
            .into_iter()
            .enumerate()
            .filter(|(bit, _)| self.images & (1 << bit) != 0)
            .map(|(_, image)| image)
            .collect()
    }

    pub(super) fn object(&self, kind: usize, namespace: &str, name: &str) -> Value {
        let (kind, api_version) = KINDS[kind % KINDS.len()];
        let metadata = json!({ "name": name, "namespace": namespace });
        let spec = if kind == "Preheat" { self.preheat() } else { self.kruise(kind) };
        json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec })
    }

    fn preheat(&self) -> Value {
        let images: Vec<Value> = self.images().into_iter().map(|image| json!({ "image": image })).collect();
        let nodes = match self.nodes {
            0 => json!({ "names": ["n1", "n3", "n9"] }),
            1 => json!({ "selector": { "matchLabels": { "pool": "main" } } }),
            2 => json!({ "podSelector": { "matchLabels": { "app": "web" } } }),
            3 => json!({ "podSelector": {} }),
            _ => json!({}),
        };
        let completion = match self.completion {
            0 => json!({ "mode": "Continuous", "resync": "1h" }),
            1 => json!({ "deadline": "600s", "ttl": "60s" }),
            2 => json!({ "deadline": "20s" }),
            _ => json!({}),
        };
        let policy = if self.always { "Always" } else { "IfNotPresent" };
        json!({
            "images": images, "nodes": nodes, "pace": { "parallelism": self.parallelism.min(3) }, "completion": completion,
            "pull": { "retries": self.retries, "timeout": format!("{}s", self.timeout), "policy": policy },
            "suspend": self.suspend,
        })
    }

    fn kruise(&self, kind: &str) -> Value {
        let completion = match self.completion {
            0 => json!({ "type": "Never" }),
            1 => json!({ "ttlSecondsAfterFinished": 60 }),
            2 => json!({ "activeDeadlineSeconds": 600 }),
            _ => json!({}),
        };
        let parallelism = match self.parallelism {
            4 => json!("50%"),
            number => json!(number),
        };
        let mut spec = json!({
            "parallelism": parallelism, "completionPolicy": completion,
            "pullPolicy": { "backoffLimit": self.retries, "timeoutSeconds": self.timeout },
        });
        match self.nodes {
            0 => spec["selector"] = json!({ "names": ["n1", "n3", "n9"] }),
            1 => spec["selector"] = json!({ "matchLabels": { "pool": "main" } }),
            2 => spec["podSelector"] = json!({ "matchLabels": { "app": "web" } }),
            3 => spec["podSelector"] = json!({}),
            _ => {}
        }
        if self.always {
            spec["imagePullPolicy"] = json!("Always");
        }
        match kind {
            "ImagePullJob" => spec["image"] = json!(self.images()[0]),
            _ => spec["images"] = json!(self.images()),
        }
        spec
    }
}

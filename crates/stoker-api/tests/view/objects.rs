//! Random objects of all kinds, and random changes of them.

use kube_core::dynamic::DynamicObject;
use proptest::prelude::*;
use serde_json::{Value, json};
use stoker_api::dialect::ofen::set_name;
use stoker_testbed::paper::PaperId;

const PARALLELISM: &str = "apps.kruise.io/image-predownload-parallelism";
const NAMESPACES: [&str; 2] = ["a", "b"];
const IMAGES: [&str; 3] = ["reg.test/web:1", "reg.test/db:1", "reg.test/cache:7"];
pub(crate) const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// An object of one of few names, with one of few contents.
#[derive(Clone)]
pub(crate) struct Thing {
    kind: usize,
    namespace: usize,
    name: usize,
    /// Which object of that name.
    uid: u8,
    /// Bits that decide what it says.
    content: u16,
    status: u8,
    going: bool,
    owned: bool,
}

/// A random one.
pub(crate) fn thing() -> impl Strategy<Value = Thing> {
    let kind = prop_oneof![
        2 => Just(0), 3 => Just(1), 2 => Just(2), 3 => Just(3), 2 => Just(4), 3 => Just(5), 4 => Just(6), 2 => Just(7), 3 => Just(8),
    ];
    let name = (kind, 0..2usize, 0..2usize, 0..2u8);
    let said = (any::<u16>(), 0..6u8, prop::bool::weighted(0.1), prop::bool::weighted(0.3));
    (name, said).prop_map(|((kind, namespace, name, uid), (content, status, going, owned))| Thing {
        kind,
        namespace,
        name,
        uid,
        content,
        status,
        going,
        owned,
    })
}

const KINDS: [(&str, &str); 9] = [
    ("Preheat", "stoker.dev/v1alpha1"),
    ("ImagePullJob", "apps.kruise.io/v1beta1"),
    ("ImageListPullJob", "apps.kruise.io/v1beta1"),
    ("Pod", "v1"),
    ("StatefulSet", "apps/v1"),
    ("ControllerRevision", "apps/v1"),
    ("NodeImage", "apps.kruise.io/v1beta1"),
    ("ImagePrefetch", "ofen.cybozu.io/v1"),
    ("NodeImageSet", "ofen.cybozu.io/v1"),
];

/// NodeImages have these names; of the last there is no Node.
const NODE_IMAGES: [&str; 4] = ["n1", "n2", "n3", "edge"];

/// A StatefulSet as the controller of something.
fn stateful_set(namespace: &str, name: usize) -> Value {
    let id = PaperId::new("StatefulSet", namespace, &format!("x{name}"));
    json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": id.name, "uid": id.to_string(), "controller": true })
}

impl std::fmt::Debug for Thing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", serde_json::to_string(&self.object()).unwrap())
    }
}

impl Thing {
    fn id(&self) -> PaperId {
        if KINDS[self.kind].0 == "NodeImage" {
            return PaperId::new("NodeImage", "", NODE_IMAGES[self.namespace * 2 + self.name]);
        }
        if KINDS[self.kind].0 == "NodeImageSet" {
            // The name of a part, or one that somebody chose.
            let name = match self.name {
                0 => set_name((NAMESPACES[self.namespace], "x0"), "n1"),
                _ => format!("mine-{}", self.namespace),
            };
            return PaperId::new("NodeImageSet", "", &name);
        }
        PaperId::new(KINDS[self.kind].0, NAMESPACES[self.namespace], &self.name())
    }

    fn name(&self) -> String {
        format!("x{}", self.name)
    }

    fn bits(&self, shift: u32, count: u32) -> usize {
        usize::from(self.content >> shift) & ((1 << count) - 1)
    }

    /// As an API server has it.
    pub(crate) fn object(&self) -> DynamicObject {
        let (kind, api_version) = KINDS[self.kind];
        let (id, app) = (self.id(), ["web", "db"][self.bits(0, 1)]);
        // The World remembers when a job began, also where somebody takes that out of its status: one that has another status here
        // is another object.
        let uid = format!("{id} {} {}", self.uid, self.status);
        let mut metadata = json!({
            "name": id.name, "namespace": id.namespace, "uid": uid, "generation": 1 + self.bits(12, 1),
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": { "app": app },
        });
        if kind == "NodeImage" {
            metadata.as_object_mut().unwrap().remove("namespace");
            if self.is_fake() {
                metadata["labels"]["apps.kruise.io/fake-nodeimage"] = json!("");
            }
        }
        if kind == "NodeImageSet" {
            let fields = metadata.as_object_mut().unwrap();
            fields.remove("namespace");
            if self.bits(0, 2) > 0 {
                let prefix = "image-prefetch.ofen.cybozu.io/";
                let owner = NAMESPACES[self.namespace];
                let labels = [("owner-namespace", owner), ("owner-name", "x0"), ("node-name", "n1")];
                for (key, value) in labels {
                    metadata["labels"][format!("{prefix}{key}")] = json!(value);
                }
            }
        }
        if self.going {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:30Z");
            let finalizer = ["apps.kruise.io/deletion-protection", "x/y"][self.bits(13, 1)];
            let finalizer = match (kind, self.bits(13, 1)) {
                ("ImagePrefetch", 0) => "image-prefetch.ofen.cybozu.io/finalizer",
                ("NodeImageSet", 0) => "nodeimageset.ofen.cybozu.io/finalizer",
                _ => finalizer,
            };
            metadata["finalizers"] = json!([finalizer]);
        }
        if self.owned && kind == "ImagePullJob" {
            let list = PaperId::new("ImageListPullJob", &id.namespace, &format!("x{}", self.bits(11, 1)));
            let uid = format!("{list} {} {}", self.bits(10, 1), self.bits(13, 3) % 6);
            metadata["ownerReferences"] = json!([{
                "apiVersion": api_version, "kind": "ImageListPullJob", "name": list.name, "uid": uid, "controller": true,
            }]);
            if self.bits(9, 1) == 1 {
                metadata["ownerReferences"] = json!([stateful_set(&id.namespace, self.bits(11, 1))]);
                metadata["annotations"] = json!({ "stoker.dev/pre-download": "x1" });
            }
        }
        match kind {
            // Most ask for pre-download.
            "StatefulSet" => {
                metadata["uid"] = json!(id.to_string());
                let parallelism = ["1", "2", "many"].get(self.bits(3, 2)).map(|nodes| json!({ PARALLELISM: nodes }));
                metadata["annotations"] = json!(parallelism);
            }
            "ControllerRevision" => {
                metadata["labels"] = json!({ "app": "web" });
                metadata["ownerReferences"] = json!([stateful_set(&id.namespace, self.bits(11, 1))]);
            }
            _ => {}
        }
        let mut object = json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": self.spec() });
        if kind == "ControllerRevision" {
            object["data"] = json!({ "spec": object["spec"].take() });
            object["revision"] = json!(self.name);
        }
        if let Some(status) = self.status() {
            object["status"] = status;
        }
        serde_json::from_value(object).unwrap()
    }

    fn images(&self) -> Vec<&'static str> {
        let chosen = self.bits(1, 2);
        if chosen == 3 { IMAGES.to_vec() } else { vec![IMAGES[chosen]] }
    }

    /// Some select pods, one in two ways, one all of them.
    fn selector(&self) -> Option<Value> {
        match self.bits(3, 3) {
            0 => Some(json!({ "matchLabels": { "app": "web" } })),
            1 => Some(json!({ "matchExpressions": [{ "key": "app", "operator": "In", "values": ["web", "db"] }] })),
            2 => Some(json!({})),
            _ => None,
        }
    }

    fn spec(&self) -> Value {
        let number = self.bits(6, 2);
        match KINDS[self.kind].0 {
            "NodeImage" => crate::node_images::spec(self.content, self.is_fake()),
            "Pod" => {
                let node = ["", "n1", "n2", "n3"][number];
                json!({ "nodeName": node })
            }
            "StatefulSet" | "ControllerRevision" => {
                // The newest revision is x1, and most StatefulSets have its image.
                let is_newest = if KINDS[self.kind].0 == "StatefulSet" { self.bits(1, 2) > 0 } else { self.name == 1 };
                let containers = json!([{ "name": "main", "image": IMAGES[usize::from(is_newest)] }]);
                let template =
                    json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": containers } });
                json!({ "replicas": 3, "selector": { "matchLabels": { "app": "web" } }, "template": template })
            }
            // Written past the schema.
            _ if self.bits(8, 4) == 15 => json!({ "parallelism": 1, "completion": 5, "completionPolicy": 5 }),
            // Of some of many nodes those count that were chosen first: which these are is no matter of objects alone.
            "ImagePrefetch" => {
                let mut spec = json!({ "images": self.images(), "allNodes": true });
                match number {
                    0 => spec["nodeSelector"] = json!({ "app": "web" }),
                    1 => spec["replicas"] = json!(1),
                    _ => {}
                }
                spec
            }
            "NodeImageSet" => {
                let node = ["n1", "n2", "n9"].get(number).copied().unwrap_or("n1");
                match self.bits(9, 1) {
                    0 => {
                        let policy = ["Default", "MirrorOnly"][self.bits(10, 1)];
                        json!({ "images": self.images(), "nodeName": node, "registryPolicy": policy })
                    }
                    _ => json!({ "imageSet": [
                        { "name": IMAGES[0], "registryPolicy": "Mirror" }, { "name": IMAGES[1], "registryPolicy": "Default" },
                    ], "nodeName": node }),
                }
            }
            "Preheat" => {
                let images: Vec<Value> = self.images().iter().map(|image| json!({ "image": image })).collect();
                let mut spec = json!({ "images": images, "pace": { "parallelism": number } });
                if let Some(selector) = self.selector() {
                    spec["nodes"] = json!({ "podSelector": selector });
                }
                spec
            }
            kind => {
                let mut spec = json!({ "parallelism": number });
                match kind {
                    "ImagePullJob" => spec["image"] = json!(self.images()[0]),
                    _ => spec["images"] = json!(self.images()),
                }
                if let Some(selector) = self.selector() {
                    spec["podSelector"] = selector;
                }
                spec
            }
        }
    }

    /// Whether it is a NodeImage that somebody made who plays the agent.
    fn is_fake(&self) -> bool {
        (self.id().name == "edge" && self.bits(3, 1) == 0) || self.bits(3, 3) == 7
    }

    fn status(&self) -> Option<Value> {
        let (kind, start) = (KINDS[self.kind].0, "2026-01-01T00:00:01Z");
        let end = "2026-01-01T00:00:05Z";
        match (kind, self.status) {
            ("StatefulSet", status) => {
                let current = if status == 0 { "x1" } else { "x0" };
                Some(json!({ "observedGeneration": 2 - u64::from(status == 1), "replicas": 3, "readyReplicas": 3,
                    "updatedReplicas": 1, "currentRevision": current, "updateRevision": "x1" }))
            }
            ("ControllerRevision", _) => None,
            ("ImagePrefetch", 0) => {
                Some(json!({ "observedGeneration": 1, "selectedNodes": ["n1", "n9"], "desiredNodes": 2 }))
            }
            ("NodeImageSet", 0) => {
                Some(json!({ "observedGeneration": 1, "desiredImages": 1, "containerImageStatuses": [
                { "imageRef": IMAGES[0], "lastState": "ImageDownloaded" },
            ] }))
            }
            ("ImagePrefetch" | "NodeImageSet", 1) => Some(json!({ "conditions": "none" })),
            ("ImagePrefetch" | "NodeImageSet", _) => None,
            ("NodeImage", status) => crate::node_images::status(status),
            ("Pod", status) => Some(json!({ "phase": if status == 0 { "Succeeded" } else { "Running" } })),
            (_, 0) => {
                Some(json!({ "startTime": start, "desired": 1, "succeeded": self.bits(9, 1), "active": 0, "failed": 0,
                "observedGeneration": 1 }))
            }
            (_, 1) => Some(json!({ "startTime": start, "completionTime": end, "desired": 1, "succeeded": 1,
                "observedGeneration": 1 })),
            (_, 2) if self.bits(8, 2) == 0 => Some(json!({ "completionTime": "some time ago", "desired": 1 })),
            _ => None,
        }
    }
}

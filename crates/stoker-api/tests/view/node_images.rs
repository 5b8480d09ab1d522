//! What NodeImages say in random histories.

use serde_json::{Value, json};

const BEFORE: &str = "2025-12-31T23:50:00Z";

/// Few tags, of people and of jobs. Those of jobs on a node without a Node would be orders that the World remembers, and that somebody else
/// takes back: they are left to the random histories of the controller.
pub(crate) fn spec(content: u16, fake: bool) -> Value {
    let bit = |at: u32| (content >> at) & 1 == 1;
    let tag = |name: &str, by: u32| {
        let mut tag =
            json!({ "tag": name, "pullPolicy": { "ttlSecondsAfterFinished": if bit(by) { 60 } else { 3600 } } });
        if bit(by + 1) {
            tag["createdAt"] = json!(BEFORE);
        }
        if bit(by + 2) {
            tag["version"] = json!(1 + u8::from(bit(by)));
        }
        tag
    };
    let mut images = json!({});
    if bit(4) {
        let mut web = tag("1", 6);
        if bit(5) && !fake {
            // With a uid that no job has, or of whichever job has that name.
            let uid = bit(9).then_some("another");
            web["ownerReferences"] = json!([{
                "apiVersion": "apps.kruise.io/v1beta1", "kind": "ImagePullJob", "namespace": "a", "name": "x0", "uid": uid,
            }]);
        }
        images["reg.test/web"] = json!({ "tags": [web] });
    }
    if bit(10) {
        images["reg.test/db"] = json!({ "tags": [tag("1", 11), tag("2", 12)] });
    }
    if bit(14) {
        images["reg.test/NO"] = json!({ "tags": [tag("1", 11)], "sandboxConfig": { "labels": { "x": "y" } } });
    }
    json!({ "images": images })
}

/// What is said of them, and of others.
pub(crate) fn status(which: u8) -> Option<Value> {
    let entry = |tag: &str, phase: &str, version: i64| {
        let mut entry = json!({ "tag": tag, "phase": phase });
        if version != 0 {
            entry["version"] = json!(version);
        }
        if phase != "Waiting" {
            entry["startTime"] = json!("2025-12-31T23:51:00Z");
        }
        if phase == "Succeeded" || phase == "Failed" {
            entry["completionTime"] = json!("2025-12-31T23:55:00Z");
        }
        entry
    };
    let images = match which {
        0 => return None,
        1 => json!({ "reg.test/web": { "tags": [entry("1", "Succeeded", 0)] } }),
        2 => json!({ "reg.test/web": { "tags": [entry("1", "Failed", 1), entry("old", "Succeeded", 0)] } }),
        3 => json!({ "reg.test/db": { "tags": [entry("1", "Waiting", 0), entry("2", "Pulling", 1)] } }),
        4 => {
            json!({ "reg.test/db": { "tags": [entry("2", "Exploded", 2)] }, "gone": { "tags": [entry("1", "Waiting", 0)] } })
        }
        _ => json!({ "reg.test/NO": { "tags": [entry("1", "Failed", 2)] } }),
    };
    Some(json!({ "desired": which, "succeeded": 0, "failed": 0, "pulling": 0, "waiting": 0, "imageStatuses": images }))
}

//! The three kinds of patch. In: a value and a patch from a stranger. Out: the patched value, or why not. Nothing is stored,
//! and no patch can grow a value past [`MAX_GROWTH`] or make it deeper than [`body::MAX_DEPTH`].

use crate::body::{self, Parsed};
use crate::refusal::Refusal;
use json_patch::PatchOperation;
use json_patch::jsonptr::PointerBuf;
use serde_json::{Map, Value, json};

/// Operations in one JSON patch, as a real server bounds them.
const MAX_OPERATIONS: usize = 10_000;
/// What `copy` operations of one patch may add: repeated, they would double a value each time.
const MAX_GROWTH: usize = 3 << 20;

/// A patch as it came, by its media type.
#[derive(Debug, Clone)]
pub(crate) enum Patch {
    Merge(Value),
    Json(Vec<PatchOperation>),
    Strategic(Value),
}

pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const JSON: &str = "application/json-patch+json";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";

impl Patch {
    /// Reads a patch of one of the media types above. Out: also the fields that it gives more than once.
    pub(crate) fn read(media: &str, body: &[u8], strategic: bool) -> Result<(Self, Vec<String>), Refusal> {
        let bad = |e: serde_json::Error| Refusal::bad_request(format!("error decoding patch: {e}"));
        let map = |make: fn(Value) -> Patch| {
            let Parsed { value, repeated } = body::parse(body).map_err(bad)?;
            Ok((make(map_only(value)?), repeated))
        };
        match media {
            MERGE => map(Patch::Merge),
            STRATEGIC if strategic => map(Patch::Strategic),
            JSON => {
                let operations: Vec<Value> = serde_json::from_slice(body).map_err(bad)?;
                if operations.len() > MAX_OPERATIONS {
                    let message = format!(
                        "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
                        operations.len()
                    );
                    return Err(Refusal::new(413, "RequestEntityTooLarge", message));
                }
                let known: Result<_, _> = operations.into_iter().map(serde_json::from_value).collect();
                Ok((Patch::Json(known.map_err(rejected)?), Vec::new()))
            }
            media if media.starts_with("application/apply-patch") => Err(Refusal::not_implemented(
                "server-side apply",
                "send a JSON merge patch (kubectl: leave out --server-side)",
            )),
            _ if strategic => Err(Refusal::unsupported_media(&[JSON, MERGE, STRATEGIC])),
            _ => Err(Refusal::unsupported_media(&[JSON, MERGE])),
        }
    }

    /// Applies the patch.
    pub(crate) fn apply(&self, value: &mut Value) -> Result<(), Refusal> {
        match self {
            Patch::Merge(patch) => json_patch::merge(value, patch),
            Patch::Strategic(patch) => strategic(value, patch),
            Patch::Json(operations) => return apply_json(value, operations),
        }
        Ok(())
    }
}

fn map_only(patch: Value) -> Result<Value, Refusal> {
    if patch.is_object() { Ok(patch) } else { Err(Refusal::bad_request("error decoding patch: it must be a map")) }
}

/// In the words of a real server, and why.
fn rejected(why: impl std::fmt::Display) -> Refusal {
    let message = format!("the server rejected our request due to an error in our request: {why}");
    Refusal::new(422, "Invalid", message)
}

fn apply_json(value: &mut Value, operations: &[PatchOperation]) -> Result<(), Refusal> {
    let mut growth = 0;
    for operation in operations {
        if too_deep(value, operation) {
            return Err(rejected(body::too_deep()));
        }
        if let PatchOperation::Copy(copy) = operation {
            growth += copy.from.resolve(value).map_or(0, |found| found.to_string().len());
            if growth > MAX_GROWTH {
                return Err(Refusal::too_large(MAX_GROWTH));
            }
        }
        json_patch::patch(value, std::slice::from_ref(operation)).map_err(rejected)?;
    }
    Ok(())
}

/// Whether what an operation puts somewhere would end too deep there. It is asked before each one: copies of copies would make a value
/// so deep that the stack does not hold the calls that drop it.
fn too_deep(value: &Value, operation: &PatchOperation) -> bool {
    let found = |from: &PointerBuf| from.resolve(value).map_or(0, body::depth);
    let (path, depth) = match operation {
        PatchOperation::Add(add) => (&add.path, body::depth(&add.value)),
        PatchOperation::Replace(replace) => (&replace.path, body::depth(&replace.value)),
        PatchOperation::Copy(copy) => (&copy.path, found(&copy.from)),
        PatchOperation::Move(moved) => (&moved.path, found(&moved.from)),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => return false,
    };
    path.count() + depth > body::MAX_DEPTH
}

/// How lists of built-in kinds are merged: by the field that tells their items apart.
const MERGE_KEYS: &[(&str, &str)] = &[
    ("addresses", "type"),
    ("conditions", "type"),
    ("containers", "name"),
    ("env", "name"),
    ("ephemeralContainers", "name"),
    ("hostAliases", "ip"),
    ("imagePullSecrets", "name"),
    ("initContainers", "name"),
    ("ownerReferences", "uid"),
    ("ports", "containerPort"),
    ("secrets", "name"),
    ("taints", "key"),
    ("topologySpreadConstraints", "topologyKey"),
    ("volumeDevices", "devicePath"),
    ("volumeMounts", "mountPath"),
    ("volumes", "name"),
];
/// Lists of plain values that are merged instead of replaced.
const MERGED_SETS: &[&str] = &["finalizers"];
const DELETE_PREFIX: &str = "$deleteFromPrimitiveList/";

fn strategic(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *value = patch.clone();
        return;
    };
    match patch.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            *value = Value::Object(without_directives(patch));
            return;
        }
        Some("delete") => {
            *value = json!({});
            return;
        }
        _ => {}
    }
    let map = crate::object::object_mut(value);
    if let Some(Value::Array(keep)) = patch.get("$retainKeys") {
        map.retain(|key, _| keep.iter().any(|k| k.as_str() == Some(key)));
    }
    for (key, change) in patch {
        if let Some(list) = key.strip_prefix(DELETE_PREFIX) {
            delete_from_list(map.get_mut(list), change);
        } else if key.starts_with('$') {
            // Order and the rest of the directives change nothing that is stored.
        } else if change.is_null() {
            map.remove(key);
        } else {
            merge_field(map, key, change);
        }
    }
}

fn merge_field(map: &mut Map<String, Value>, key: &str, change: &Value) {
    let slot = map.entry(key).or_insert(Value::Null);
    match change {
        Value::Object(_) => strategic(slot, change),
        Value::Array(items) => {
            let merge_key = MERGE_KEYS.iter().find(|(list, _)| *list == key).map(|(_, by)| *by);
            match merge_key.filter(|by| items.iter().all(|item| item.get(by).is_some() || is_directive(item))) {
                Some(by) => merge_list(slot, items, by),
                None if MERGED_SETS.contains(&key) => merge_set(slot, items),
                None => *slot = change.clone(),
            }
        }
        plain => *slot = plain.clone(),
    }
}

fn is_directive(item: &Value) -> bool {
    item.get("$patch").is_some()
}

fn merge_list(slot: &mut Value, items: &[Value], by: &str) {
    let mut list = slot.as_array().cloned().unwrap_or_default();
    if items.iter().any(|item| item.get("$patch") == Some(&json!("replace"))) {
        list.clear();
    }
    for item in items {
        let Some(identity) = item.get(by) else { continue };
        if item.get("$patch") == Some(&json!("delete")) {
            list.retain(|old| old.get(by) != Some(identity));
            continue;
        }
        match list.iter_mut().find(|old| old.get(by) == Some(identity)) {
            Some(old) => strategic(old, item),
            None => {
                let mut fresh = json!({});
                strategic(&mut fresh, item);
                list.push(fresh);
            }
        }
    }
    *slot = Value::Array(list);
}

fn merge_set(slot: &mut Value, items: &[Value]) {
    let mut list = slot.as_array().cloned().unwrap_or_default();
    for item in items {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
    *slot = Value::Array(list);
}

fn delete_from_list(list: Option<&mut Value>, gone: &Value) {
    if let (Some(Value::Array(list)), Value::Array(gone)) = (list, gone) {
        list.retain(|item| !gone.contains(item));
    }
}

fn without_directives(patch: &Map<String, Value>) -> Map<String, Value> {
    patch.iter().filter(|(key, _)| !key.starts_with('$')).map(|(k, v)| (k.clone(), v.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn patched(media: &str, value: Value, patch: Value) -> Result<Value, Refusal> {
        let mut value = value;
        Patch::read(media, patch.to_string().as_bytes(), true)?.0.apply(&mut value)?;
        Ok(value)
    }

    #[test]
    fn patches_by_media_type() {
        let pod = json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}});
        for (media, value, patch, wanted) in [
            (MERGE, json!({"a": {"b": 1, "c": 2}}), json!({"a": {"b": null, "d": 3}}), json!({"a": {"c": 2, "d": 3}})),
            (JSON, json!({"a": [1]}), json!([{"op": "add", "path": "/a/-", "value": 2}]), json!({"a": [1, 2]})),
            (
                STRATEGIC,
                pod.clone(),
                json!({"spec": {"containers": [{"name": "b", "image": "2"}]}}),
                json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]}}),
            ),
            (
                STRATEGIC,
                pod,
                json!({"spec": {"containers": [{"name": "a", "$patch": "delete"}]}}),
                json!({"spec": {"containers": [{"name": "b", "image": "1"}]}}),
            ),
            (
                STRATEGIC,
                json!({"metadata": {"finalizers": ["x/a"]}}),
                json!({"metadata": {"finalizers": ["x/b"]}}),
                json!({"metadata": {"finalizers": ["x/a", "x/b"]}}),
            ),
            (
                STRATEGIC,
                json!({"metadata": {"finalizers": ["x/a", "x/b"]}}),
                json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x/a"]}}),
                json!({"metadata": {"finalizers": ["x/b"]}}),
            ),
            (STRATEGIC, json!({"a": {"b": 1}}), json!({"a": {"$patch": "replace", "c": 2}}), json!({"a": {"c": 2}})),
        ] {
            assert_eq!(patched(media, value, patch.clone()).unwrap(), wanted, "{media} {patch}");
        }
    }

    #[test]
    fn what_is_refused() {
        let copies: Vec<Value> =
            (0..64).map(|i| json!({"op": "copy", "from": "/a", "path": format!("/a/c{i}")})).collect();
        // Each copy makes the object twice as deep.
        let doubled: Vec<Value> =
            (0..8).map(|i| json!({"op": "copy", "from": "", "path": "/a".repeat(1 << i)})).collect();
        for (media, patch, code) in [
            (MERGE, json!([]), 400),
            (JSON, json!({}), 400),
            (JSON, json!([{"op": "zap", "path": "/a"}]), 422),
            (JSON, json!([{"op": "remove", "path": "/missing"}]), 422),
            (JSON, json!([{"op": "test", "path": "/a", "value": 7}]), 422),
            (JSON, json!(copies), 413),
            (JSON, json!(doubled), 422),
            (JSON, json!([{"op": "add", "path": "/a/b", "value": nested(99)}]), 422),
            (JSON, json!([{"op": "replace", "path": "/a/x", "value": nested(99)}]), 422),
            (MERGE, nested(101), 400),
            (STRATEGIC, nested(101), 400),
            ("application/apply-patch+yaml", json!({}), 501),
            ("text/plain", json!({}), 415),
        ] {
            let value = json!({"a": {"x": "y".repeat(1000)}});
            assert_eq!(patched(media, value, patch.clone()).unwrap_err().code, code, "{media}");
        }
    }

    /// So many maps inside each other.
    fn nested(depth: usize) -> Value {
        (1..depth).fold(json!({}), |inner, _| json!({"a": inner}))
    }

    #[test]
    fn the_deepest_object_is_100_levels_deep() {
        assert_eq!(body::depth(&patched(MERGE, json!({}), nested(100)).unwrap()), 100);
        let patch = json!([{"op": "add", "path": "/a/b", "value": nested(98)}]);
        assert_eq!(body::depth(&patched(JSON, json!({"a": {}}), patch).unwrap()), 100);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-z$/~0-9-]{0,8}".prop_map(Value::from),
        ];
        let key = prop_oneof![
            "[a-z]{1,3}",
            Just("$patch".to_owned()),
            Just("containers".to_owned()),
            Just("name".to_owned()),
            Just("op".to_owned()),
            Just("path".to_owned()),
        ];
        leaf.prop_recursive(4, 32, 5, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::btree_map(key.clone(), inner, 0..5).prop_map(|m| m.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_patch_panics(value in any_json(), patch in any_json()) {
            for media in [MERGE, JSON, STRATEGIC] {
                let _ = patched(media, value.clone(), patch.clone());
            }
        }

        #[test]
        fn a_merge_patch_applied_twice_is_applied_once(value in any_json(), patch in any_json()) {
            if let Ok(once) = patched(MERGE, value, patch.clone()) {
                prop_assert_eq!(patched(MERGE, once.clone(), patch).unwrap(), once);
            }
        }
    }
}

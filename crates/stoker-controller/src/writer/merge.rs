//! Writes that wait for one object: patches of the same part become one.

use std::collections::VecDeque;

use serde_json::Value;
use stoker_api::Write;

use super::Numbered;

/// Where a patch names the one object that it is for.
pub(super) const UID: &str = "/metadata/uid";

/// Adds a write behind those that wait for the same object; a patch of the same part is merged into the last. Not so where the object was
/// made anew in between: what was to be said of the old one would be said of the new one.
pub(crate) fn push(waiting: &mut VecDeque<Numbered>, (number, write): Numbered) {
    use Write::{Patch, Status};
    if let (Some((last, Patch(_, old))), Patch(_, new)) | (Some((last, Status(_, old))), Status(_, new)) =
        (waiting.back_mut(), &write)
        && old.pointer(UID) == new.pointer(UID)
        && compose(old, new)
    {
        *last = number;
        return;
    }
    waiting.push_back((number, write));
}

/// Makes of the first merge patch one that does what both would; false where no single patch can: what was taken away
/// and is put back would bring back its old parts.
fn compose(first: &mut Value, second: &Value) -> bool {
    if !composable(first, second) {
        return false;
    }
    match (first, second) {
        (Value::Object(first), Value::Object(second)) => {
            for (key, value) in second {
                match first.get_mut(key) {
                    Some(old) => {
                        compose(old, value);
                    }
                    None => {
                        first.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        (first, second) => first.clone_from(second),
    }
    true
}

fn composable(first: &Value, second: &Value) -> bool {
    match (first, second) {
        (Value::Object(first), Value::Object(second)) => {
            second.iter().all(|(key, value)| first.get(key).is_none_or(|old| composable(old, value)))
        }
        (_, Value::Object(_)) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use stoker_api::Target;

    #[test]
    fn what_is_for_an_object_before_is_not_merged_into_what_is_for_the_next() {
        let target = Target {
            resource: kube::core::ApiResource::erase::<stoker_api::native::Preheat>(&()),
            namespace: Some("shop".into()),
            name: "web".into(),
        };
        let status = |uid: &str, field: &str| {
            Write::Status(target.clone(), json!({ "metadata": { "uid": uid }, "status": { field: "x" } }))
        };
        let mut waiting = VecDeque::new();
        for (number, uid, field) in [(1, "a", "completionTime"), (2, "a", "phase"), (3, "b", "startTime")] {
            push(&mut waiting, (number, status(uid, field)));
        }
        let writes: Vec<(u64, &str, usize)> = waiting
            .iter()
            .map(|(number, write)| match write {
                Write::Status(_, patch) => {
                    (*number, patch["metadata"]["uid"].as_str().unwrap(), patch["status"].as_object().unwrap().len())
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(writes, [(2, "a", 2), (3, "b", 1)]);
    }

    #[test]
    fn composed_patches_do_what_both_would() {
        let cases = [
            (json!({"a": 1}), json!({"b": null}), Some(json!({"a": 1, "b": null}))),
            (json!({"a": {"x": 1}}), json!({"a": null}), Some(json!({"a": null}))),
            (json!({"a": {"x": 1}}), json!({"a": {"y": 2}}), Some(json!({"a": {"x": 1, "y": 2}}))),
            (json!({"a": [1]}), json!({"a": [2]}), Some(json!({"a": [2]}))),
            (json!({"a": null}), json!({"a": {"y": 2}}), None),
            (json!({"b": 1, "a": {"c": null}}), json!({"b": 2, "a": {"c": {"y": 2}}}), None),
        ];
        for (first, second, both) in cases {
            let mut composed = first.clone();
            match both {
                Some(both) => {
                    assert!(compose(&mut composed, &second));
                    assert_eq!(composed, both, "{first} then {second}");
                }
                None => {
                    assert!(!compose(&mut composed, &second));
                    assert_eq!(composed, first, "left as it was");
                }
            }
        }
    }
}

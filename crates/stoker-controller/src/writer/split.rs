//! Patches of orders that the API server refuses because of what is in them: they are split until the bad order stands alone. Each part is a write of its own,
//! with its own turn. What takes something away goes first, because it makes room in the object.

use serde_json::{Map, Value, json};

/// How a refused patch goes on.
#[derive(Debug, PartialEq)]
pub(super) enum Split {
    /// As two patches, in this order.
    Two(Value, Value),
    /// Not at all: this order cannot be written.
    Order(String),
    /// Not at all: there is no order in it that could be left out.
    Whole,
}

pub(super) fn split(patch: &Value) -> Split {
    let map = |field: &str| patch.pointer(field).and_then(Value::as_object).cloned().unwrap_or_default();
    let (orders, logins) = (map("/spec/orders"), map("/spec/logins"));
    let (gone, made): (Map<_, _>, Map<_, _>) = orders.into_iter().partition(|(_, order)| order.is_null());
    let (taken, sealed): (Map<_, _>, Map<_, _>) = logins.into_iter().partition(|(_, login)| login.is_null());
    if made.is_empty() && sealed.is_empty() {
        return Split::Whole;
    }
    if !gone.is_empty() || !taken.is_empty() {
        return Split::Two(part(patch, gone, taken), part(patch, made, sealed));
    }
    let named = |orders: &Map<String, Value>, login: &str| {
        let logins = orders.values().filter_map(|order| order.get("logins")?.as_array()).flatten();
        logins.into_iter().any(|name| name == login)
    };
    let (own, others): (Map<_, _>, Map<_, _>) = sealed.into_iter().partition(|(login, _)| named(&made, login));
    if made.is_empty() {
        return Split::Whole;
    }
    if !others.is_empty() {
        return Split::Two(part(patch, Map::new(), others), part(patch, made, own));
    }
    let half = made.len() / 2;
    let mut made = made.into_iter();
    let first: Map<String, Value> = made.by_ref().take(half).collect();
    let second: Map<String, Value> = made.collect();
    match (first.is_empty(), second.iter().next()) {
        (true, Some((key, _))) => Split::Order(key.clone()),
        (true, None) => Split::Whole,
        (false, _) => {
            let (of_first, of_second): (Map<_, _>, Map<_, _>) =
                own.into_iter().partition(|(login, _)| named(&first, login));
            Split::Two(part(patch, first, of_first), part(patch, second, of_second))
        }
    }
}

/// The patch with these orders and logins and no others.
fn part(patch: &Value, orders: Map<String, Value>, logins: Map<String, Value>) -> Value {
    let mut part = patch.clone();
    if let Some(spec) = part.pointer_mut("/spec").and_then(Value::as_object_mut) {
        spec.insert("orders".into(), json!(orders));
        spec.remove("logins");
        if !logins.is_empty() {
            spec.insert("logins".into(), json!(logins));
        }
    }
    part
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn order(logins: &[&str]) -> Value {
        json!({ "image": "r/a:1", "logins": logins })
    }

    /// All that an API server takes of a patch that does not take this order or this login, what it never takes, and how often it was asked.
    fn written(patch: Value, bad: &str) -> (Value, Vec<String>, usize) {
        let (mut waiting, mut taken, mut refused, mut requests) = (VecDeque::from([patch]), json!({}), Vec::new(), 0);
        while let Some(patch) = waiting.pop_front() {
            requests += 1;
            if !patch.to_string().contains(bad) {
                for field in ["orders", "logins"] {
                    for (key, value) in patch["spec"][field].as_object().into_iter().flatten() {
                        taken[field][key] = value.clone();
                    }
                }
                continue;
            }
            match split(&patch) {
                Split::Two(first, second) => {
                    waiting.push_front(second);
                    waiting.push_front(first);
                }
                Split::Order(key) => refused.push(key),
                Split::Whole => refused.push("logins".into()),
            }
            assert!(requests < 1_000, "it ends");
        }
        (taken, refused, requests)
    }

    #[test]
    fn one_bad_order_of_hundreds_costs_a_few_requests() {
        let name = |n: usize| if n == 333 { "bad".to_string() } else { format!("{n:04}") };
        let orders: Map<String, Value> = (0..600).map(|n| (name(n), order(&[]))).collect();
        let (taken, refused, requests) = written(json!({ "spec": { "epoch": 1, "orders": orders } }), "\"bad\"");
        assert_eq!((taken["orders"].as_object().unwrap().len(), refused), (599, vec!["bad".to_string()]));
        assert!(requests <= 21, "{requests}");
    }

    #[test]
    fn logins_go_with_the_orders_that_name_them_and_what_goes_goes_first() {
        let patch = json!({ "spec": { "epoch": 7,
            "orders": { "a": order(&["one"]), "b": order(&["two", "one"]), "z": null },
            "logins": { "one": { "box": "1" }, "two": { "box": "2" }, "three": { "box": "3" }, "old": null },
        } });
        let Split::Two(gone, rest) = split(&patch) else { panic!("not split") };
        assert_eq!(gone, json!({ "spec": { "epoch": 7, "orders": { "z": null }, "logins": { "old": null } } }));
        let Split::Two(others, rest) = split(&rest) else { panic!("not split") };
        assert_eq!(others, json!({ "spec": { "epoch": 7, "orders": {}, "logins": { "three": { "box": "3" } } } }));
        assert_eq!(split(&others), Split::Whole);
        let Split::Two(first, second) = split(&rest) else { panic!("not split") };
        assert_eq!(first["spec"]["logins"], json!({ "one": { "box": "1" } }));
        assert_eq!(second["spec"]["logins"], json!({ "two": { "box": "2" } }));
        assert_eq!((split(&first), split(&second)), (Split::Order("a".into()), Split::Order("b".into())));
        assert_eq!(split(&gone), Split::Whole);
        let (taken, refused, _) = written(patch, "\"2\"");
        assert_eq!(refused, ["b"]);
        assert_eq!(taken["orders"], json!({ "a": order(&["one"]), "z": null }));
        assert_eq!(taken["logins"], json!({ "one": { "box": "1" }, "three": { "box": "3" }, "old": null }));
    }
}

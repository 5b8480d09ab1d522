//! Rules of the schema over the whole way: transitions, nulls, defaults.

use crate::server::*;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

pub(crate) async fn a_transition_rule_compares_with_what_is_stored(server: Server) {
    let widgets = server.widgets();
    widgets.create(&PostParams::default(), &widget("a", json!({"epoch": 2}))).await.unwrap();
    let patch = |epoch: serde_json::Value| Patch::Merge(json!({"spec": {"epoch": epoch}}));
    let params = PatchParams::default();
    for (epoch, allowed) in
        [(json!(3), true), (json!(3), true), (json!(2), false), (json!(null), false), (json!(4), true)]
    {
        let result = widgets.patch("a", &params, &patch(epoch.clone())).await;
        assert_eq!(result.is_ok(), allowed, "{epoch}: {result:?}");
        if let Err(kube::Error::Api(status)) = result {
            assert!(status.message.contains("epoch may neither fall nor vanish"), "{status:?}");
        }
    }
}

pub(crate) async fn a_default_comes_back_when_its_field_is_taken_away(server: Server) {
    let widgets = server.widgets();
    widgets.create(&PostParams::default(), &widget("a", json!({"pace": {"parallelism": "20%"}}))).await.unwrap();
    let patch = Patch::Merge(json!({"spec": {"pace": {"parallelism": null}, "mode": null}}));
    let patched = widgets.patch("a", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(patched.data["spec"], json!({"mode": "Once", "pace": {"parallelism": 10}}));
    // A null in a new object counts as left out, with a default and without.
    let nulls = widget("b", json!({"mode": null, "epoch": null, "tags": null}));
    let made = server.raw("POST", &server.path(""), JSON, serde_json::to_value(nulls).unwrap()).await;
    assert_eq!((made.code, &made.body["spec"]), (201, &json!({"mode": "Once", "pace": {"parallelism": 10}})));
}

pub(crate) async fn status_is_validated_too(server: Server) {
    let widgets = server.widgets();
    widgets.create(&PostParams::default(), &widget("a", json!({}))).await.unwrap();
    let twice = json!({"status": {"conditions": [{"type": "A", "status": "True"}, {"type": "A", "status": "False"}]}});
    let status = refusal(widgets.patch_status("a", &PatchParams::default(), &Patch::Merge(twice)).await);
    assert_eq!(status["details"]["causes"][0]["field"], json!("status.conditions[1]"));
    assert_eq!(status["details"]["causes"][0]["message"], json!(r#"Duplicate value: {"type":"A"}"#));
}

//! The node's own NodePreheat: made where it is missing, with an empty spec and owned by the Node.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt as _};
use stoker_api::native::{NodePreheat, NodePreheatSpec};

/// Tries until the object is there. Without its Node it is not made: nothing would ever remove it. An agent that makes its Node
/// itself does so at the same time: then waiting for it is nothing that a person should hear of.
pub(crate) async fn register(client: Client, node: String, makes_node: bool) {
    let mut pause = Duration::from_millis(50);
    while let Err(problem) = try_register(&client, &node).await {
        match problem {
            kube::Error::Api(status) if status.code == 404 && makes_node => {
                tracing::debug!(node, "waiting for the Node that this agent makes");
            }
            kube::Error::Api(status) if status.code == 404 => {
                tracing::info!(node, "waiting for the Node of this name, without which nothing is registered");
            }
            problem => tracing::warn!(node, "cannot register with the API server, trying again: {problem}"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(30));
    }
}

async fn try_register(client: &Client, node: &str) -> Result<(), kube::Error> {
    let preheats: Api<NodePreheat> = Api::all(client.clone());
    if preheats.get_opt(node).await?.is_some() {
        return Ok(());
    }
    let owner = Api::<Node>::all(client.clone()).get(node).await?;
    let mut object = NodePreheat::new(node, NodePreheatSpec::default());
    object.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.into(),
        uid: owner.uid().unwrap_or_default(),
        controller: None,
        block_owner_deletion: None,
    }]);
    match preheats.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        result => result.map(|_| ()),
    }
}

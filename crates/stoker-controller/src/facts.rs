//! From API objects to core's events: the one place where both the watches and `why` translate.

use kube::ResourceExt;
use stoker_api::native::NodeObject;
use stoker_core::Event;
use stoker_core::model::{NodeName, SEALED};
use stoker_transfer::PublicKey;

/// The version of an object; later ones are greater.
pub(crate) fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// Orders of a NodePreheat, and what its agent says: its reports and its features. Entries that cannot be read are logged and
/// left out.
pub(crate) fn node(object: NodeObject) -> (Event, [Event; 2]) {
    let name: NodeName = object.name_any().into();
    if let Some(first) = object.broken.first() {
        let entries = object.broken.len();
        tracing::warn!(node = %name, entries, "entries of the NodePreheat cannot be read and are left out; the first: {first}");
    }
    let takes_logins = key(&object).is_some();
    let features = object.features.into_iter().filter(|feature| takes_logins || feature != SEALED);
    let said = [Event::Reports(name.clone(), object.reports), Event::Features(name.clone(), features.collect())];
    (Event::Orders(name, object.orders), said)
}

/// The key to which logins for this node are sealed.
pub(crate) fn key(object: &NodeObject) -> Option<PublicKey> {
    object.key.as_ref()?.parse().ok()
}

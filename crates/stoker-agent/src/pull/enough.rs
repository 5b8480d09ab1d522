//! Whether an image that is there is what an order wants: the one rule for attempts and for looks at the node.
//!
//! Were there two rules, a look could find an image that the attempt it starts does not accept, and so for ever.

use stoker_core::{Order, Policy};
use stoker_runtime::{ImageIdentity, There};

use super::Success;

/// The digest that an order carries.
pub(crate) fn pinned(order: &Order) -> Option<&str> {
    order.pin().map(|pin| pin.digest.as_str())
}

impl Success {
    /// Of an image that the runtime knows by its own id alone.
    pub(super) fn without_digest(image: &str, id: String) -> Self {
        let note = format!(
            "the runtime has {image} without a registry digest, as an image has that was loaded from a file; {id} is its \
             image id"
        );
        Self { note: Some(note), ..id.into() }
    }
}

/// What to say of the order if what is there is enough for it: any image under this name for IfNotPresent, as it is for
/// the kubelet; the wanted digest for Always.
pub(crate) fn enough(order: &Order, wanted: Option<&str>, there: &There) -> Option<Success> {
    match (&there.identity, order.terms.pull.policy) {
        (ImageIdentity::Digest(digest), Policy::IfNotPresent) => Some(digest.clone().into()),
        (ImageIdentity::Digest(digest), Policy::Always) => (wanted == Some(digest)).then(|| digest.clone().into()),
        (ImageIdentity::ImageId(id), Policy::IfNotPresent) => Some(Success::without_digest(&order.image, id.clone())),
        (ImageIdentity::ImageId(_), Policy::Always) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::order;

    #[test]
    fn any_image_is_enough_for_if_not_present_and_the_wanted_digest_for_always() {
        let (ours, other) = (ImageIdentity::Digest("sha256:a".into()), ImageIdentity::Digest("sha256:b".into()));
        let loaded = ImageIdentity::ImageId("sha256:c".into());
        let (unpinned, pinned) = (None, Some("sha256:a"));
        for (policy, wanted, there, expected) in [
            (Policy::IfNotPresent, unpinned, &ours, Some("sha256:a")),
            (Policy::IfNotPresent, pinned, &ours, Some("sha256:a")),
            (Policy::IfNotPresent, pinned, &other, Some("sha256:b")),
            (Policy::IfNotPresent, unpinned, &loaded, Some("sha256:c")),
            (Policy::IfNotPresent, pinned, &loaded, Some("sha256:c")),
            (Policy::Always, unpinned, &ours, None),
            (Policy::Always, pinned, &ours, Some("sha256:a")),
            (Policy::Always, pinned, &other, None),
            (Policy::Always, unpinned, &loaded, None),
            (Policy::Always, pinned, &loaded, None),
            // The id of an image is no digest of a registry, even if somebody takes it for one.
            (Policy::Always, Some("sha256:c"), &loaded, None),
        ] {
            let mut order = order();
            order.terms.pull.policy = policy;
            let done = enough(&order, wanted, &There { identity: there.clone(), size: 1 });
            let case = format!("{policy:?}, wanted {wanted:?}, there {there:?}");
            assert_eq!(done.as_ref().map(|done| done.digest.as_str()), expected, "{case}");
            let said = done.and_then(|done| done.note).unwrap_or_default();
            let id = *there == loaded && expected.is_some();
            assert_eq!(said.contains("image id") && said.contains(&order.image), id, "{case}: {said}");
        }
    }
}

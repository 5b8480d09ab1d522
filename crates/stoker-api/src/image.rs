//! Image references: from what a user wrote to the core model.

use std::collections::{BTreeMap, BTreeSet};

use stoker_core::{Image, Key, Reference, SecretId};

/// The core's image. One that cannot be parsed carries the reason and fails by itself, not its job.
pub fn image(written: &str) -> Image {
    let reference = written.parse::<Reference>().map_err(|problem| problem.to_string());
    Image { written: written.into(), reference, secrets: Vec::new() }
}

/// The images of a job with their Secrets, each key once: two ways to write one reference are one image, with the
/// Secrets of both.
pub(crate) fn images<'a>(written: impl Iterator<Item = (&'a str, Vec<SecretId>)>) -> Vec<Image> {
    let mut images: Vec<Image> = Vec::new();
    let mut seen: BTreeMap<Key, usize> = BTreeMap::new();
    for (written, secrets) in written {
        let new = image(written);
        let place = new.reference.as_ref().ok().map(|reference| *seen.entry(reference.key()).or_insert(images.len()));
        match place.and_then(|at| images.get_mut(at)) {
            Some(known) => known.secrets.extend(secrets),
            None => images.push(Image { secrets, ..new }),
        }
    }
    for image in &mut images {
        let mut seen = BTreeSet::new();
        image.secrets.retain(|secret| seen.insert(secret.clone()));
    }
    images
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_image_written_twice_is_one() {
        let secret = |name| SecretId::new("shop", name);
        let images = images(
            [
                ("nginx", vec![secret("b"), secret("a")]),
                ("docker.io/library/nginx:latest", vec![secret("c"), secret("b")]),
                ("!", vec![]),
                ("!", vec![]),
            ]
            .into_iter(),
        );
        assert_eq!(images.len(), 3);
        assert_eq!(images[0].secrets, [secret("b"), secret("a"), secret("c")], "the Secrets of both, in order");
    }
}

//! Image references: from what a user wrote to the core model.

use std::collections::BTreeSet;

use stoker_core::{Image, Reference};

/// The core's image. One that cannot be parsed carries the reason and fails by itself, not its job.
pub fn image(written: &str) -> Image {
    let reference = written.parse::<Reference>().map_err(|problem| problem.to_string());
    Image { written: written.into(), reference }
}

/// The images of a job, each key once: two ways to write one reference are one image.
pub(crate) fn images<'a>(written: impl Iterator<Item = &'a str>) -> Vec<Image> {
    let mut seen = BTreeSet::new();
    let images = written.map(image);
    images.filter(|image| image.reference.as_ref().map_or(true, |reference| seen.insert(reference.key()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_image_written_twice_is_one() {
        assert_eq!(images(["nginx", "docker.io/library/nginx:latest", "!", "!"].into_iter()).len(), 3);
    }
}

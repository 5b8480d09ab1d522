//! Image references: from what a user wrote to the canonical one of the core model.

use oci_spec::distribution::Reference;
use stoker_core::model;

/// The core's image. One that cannot be parsed carries the reason and fails by itself, not its job.
pub fn image(written: &str) -> model::Image {
    let reference = match written.parse::<Reference>() {
        Err(problem) => Err(format!("{problem}; write it as registry/repository:tag or registry/repository@sha256:…")),
        Ok(reference) => match reference.digest() {
            Some(digest) if !digest.starts_with("sha256:") => {
                Err("only sha256 digests are supported; use the image's sha256 digest or a tag".into())
            }
            digest => Ok(model::Reference::new(reference.whole(), digest.map(Into::into))),
        },
    };
    model::Image { written: written.into(), reference }
}

/// The images of a job, each key once: two ways to write one reference are one image.
pub(crate) fn images<'a>(written: impl Iterator<Item = &'a str>) -> Vec<model::Image> {
    let mut seen = std::collections::BTreeSet::new();
    let images = written.map(image);
    images.filter(|image| image.reference.as_ref().map_or(true, |reference| seen.insert(reference.key))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references() {
        let digest = "sha256:".to_string() + &"a".repeat(64);
        let cases = [
            ("nginx", Ok("docker.io/library/nginx:latest")),
            ("reg.example/shop/web:v42", Ok("reg.example/shop/web:v42")),
            ("127.0.0.1:5000/a/b", Ok("127.0.0.1:5000/a/b:latest")),
            ("Bad Name", Err(())),
            ("", Err(())),
            ("a:b:c", Err(())),
        ];
        for (written, expected) in cases {
            let name = image(written).reference.map(|reference| reference.name).map_err(|_| ());
            assert_eq!(name, expected.map(String::from), "{written}");
        }
        assert_eq!(image(&format!("web@{digest}")).reference.unwrap().digest, Some(digest));
        assert!(image(&format!("web@sha512:{}", "a".repeat(128))).reference.is_err());
        assert_eq!(images(["nginx", "docker.io/library/nginx:latest", "!", "!"].into_iter()).len(), 3);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(written in ".{0,300}") {
            let _ = image(&written);
        }
    }
}

//! The labels of a content that say from which registry and repositories it can be had, as containerd writes them.
//!
//! containerd refuses a label that is too long, and with it the content: one blob that many repositories share, or one very long
//! name, must fail no image. A source that does not fit is left out. The label is a hint: it is only used to push.

use super::ObjectLabels;

const SOURCE: &str = "containerd.io/distribution.source.";
/// The most bytes that containerd allows a label, its name and its value together.
const MOST_BYTES: usize = 4096;
/// The most repositories of one registry that we name.
const MOST_REPOSITORIES: usize = 64;

/// The label for a registry and a repository; none where it would be too long. containerd leaves the port out.
pub(super) fn labels(registry: &str, repository: &str) -> ObjectLabels {
    let host = match registry.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => registry.split_once(':').map_or(registry, |(host, _)| host),
    };
    let (key, value) = (format!("{SOURCE}{host}"), repository.to_owned());
    if fits(&key, &value) { ObjectLabels::from([(key, value)]) } else { ObjectLabels::new() }
}

/// What is to be changed where a content that has labels gets more of them: repositories are added, everything else is replaced.
pub(super) fn news(before: &ObjectLabels, more: &ObjectLabels) -> ObjectLabels {
    let news = more.iter().filter_map(|(key, value)| match before.get(key) {
        Some(old) if key.starts_with(SOURCE) => Some((key.clone(), joined(key, old, value)?)),
        old => (old != Some(value)).then(|| (key.clone(), value.clone())),
    });
    news.collect()
}

/// Repositories of one registry, in order, each once; `None` where nothing is to be changed.
fn joined(key: &str, before: &str, more: &str) -> Option<String> {
    let mut all: Vec<&str> = before.split(',').chain(more.split(',')).filter(|name| !name.is_empty()).collect();
    all.sort_unstable();
    all.dedup();
    let joined = all.join(",");
    (joined != before && all.len() <= MOST_REPOSITORIES && fits(key, &joined)).then_some(joined)
}

fn fits(key: &str, value: &str) -> bool {
    key.len() + value.len() <= MOST_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "containerd.io/distribution.source.r.example";

    #[test]
    fn repositories_are_joined_once() {
        for (before, more, joined) in
            [("b,a", "c", Some("a,b,c")), ("a", "a", None), ("", "a", Some("a")), ("b,a", "a", Some("a,b"))]
        {
            assert_eq!(super::joined(KEY, before, more).as_deref(), joined, "{before:?} and {more:?}");
        }
    }

    #[test]
    fn a_source_has_no_port() {
        for (registry, host) in [("r.example:5000", "r.example"), ("docker.io", "docker.io"), ("[::1]:5000", "::1")] {
            assert_eq!(labels(registry, "a/b"), ObjectLabels::from([(format!("{SOURCE}{host}"), "a/b".into())]));
        }
    }

    #[test]
    fn a_label_that_containerd_would_refuse_is_not_written() {
        let room = MOST_BYTES - KEY.len();
        assert_eq!(labels("r.example", &"a".repeat(room)).len(), 1);
        assert_eq!(labels("r.example", &"a".repeat(room + 1)), ObjectLabels::new());
        let one = |value: &str| ObjectLabels::from([(KEY.to_owned(), value.to_owned())]);
        let full = "b".repeat(room - 2);
        assert_eq!(news(&one(&full), &one("a")), one(&format!("a,{full}")));
        assert_eq!(news(&one(&full), &one("aa")), ObjectLabels::new(), "it stays as it is");
        let many = (0..MOST_REPOSITORIES).map(|number| format!("r{number:02}")).collect::<Vec<_>>().join(",");
        assert_eq!(news(&one(&many), &one("new")), ObjectLabels::new());
        // Other labels come all the same.
        let mut more = one("aa");
        more.insert("containerd.io/gc.ref.content.config".into(), "sha256:a".into());
        assert_eq!(news(&one(&full), &more).into_keys().collect::<Vec<_>>(), ["containerd.io/gc.ref.content.config"]);
    }
}

//! What a plugin said, for as long as it is good.
//!
//! Answers come in with how widely and how long they hold; what is known for an image goes out. As the kubelet keeps
//! them: by image, by registry or for everything. A failure is remembered for a moment, so that ten pulls that wait for a
//! plugin that hangs do not wait ten times.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::Provided;
use super::config::Plugin;
use super::exec::{PluginAnswer, Reach};

/// More answers than this are not kept: a plugin can be asked again.
const MOST: usize = 1024;
const REMEMBER_FAILURE: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum CacheKey {
    Image(String),
    Registry(String),
    Global,
}

#[derive(Default)]
pub(super) struct Cache {
    known: HashMap<CacheKey, (Instant, Result<Vec<Provided>, String>)>,
}

impl Cache {
    /// What is known and still good, the closest first.
    pub(super) fn find(&self, image: &str, registry: &str) -> Option<Result<Vec<Provided>, String>> {
        let now = Instant::now();
        [CacheKey::Image(image.to_owned()), CacheKey::Registry(registry.to_owned()), CacheKey::Global]
            .iter()
            .find_map(|key| self.known.get(key).filter(|(until, _)| now < *until))
            .map(|(_, said)| said.clone())
    }

    /// Keeps an answer as long as it holds, and gives it on.
    pub(super) fn keep(
        &mut self,
        plugin: &Plugin,
        image: &str,
        registry: &str,
        answer: Result<PluginAnswer, String>,
    ) -> Result<Vec<Provided>, String> {
        let (key, holds, said) = match answer {
            Ok(PluginAnswer { reach, keep, logins }) => {
                let key = match reach {
                    Reach::Image => CacheKey::Image(image.to_owned()),
                    Reach::Registry => CacheKey::Registry(registry.to_owned()),
                    Reach::Global => CacheKey::Global,
                };
                (key, keep.unwrap_or(plugin.keep).min(LONGEST), Ok(logins))
            }
            Err(trouble) => (CacheKey::Image(image.to_owned()), REMEMBER_FAILURE, Err(trouble)),
        };
        let now = Instant::now();
        if self.known.len() >= MOST {
            self.known.retain(|_, (until, _)| now < *until);
        }
        if self.known.len() >= MOST {
            self.known.clear();
        }
        if holds > Duration::ZERO {
            self.known.insert(key, (now + holds, said.clone()));
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::pattern::Pattern;
    use super::*;
    use crate::login::Login;

    fn plugin(keep: u64) -> Plugin {
        Plugin {
            name: "p".into(),
            patterns: Vec::new(),
            keep: Duration::from_secs(keep),
            protocol: "",
            args: Vec::new(),
            env: Vec::new(),
            needs_pod: false,
        }
    }

    fn answer(reach: Reach, keep: Option<u64>) -> Result<PluginAnswer, String> {
        let login = Login { username: "ada".into(), password: "p".into() };
        let logins = vec![Provided { pattern: Pattern::read("reg.io").unwrap(), login }];
        Ok(PluginAnswer { reach, keep: keep.map(Duration::from_secs), logins })
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_holds_as_widely_and_as_long_as_it_says() {
        for (reach, same, sibling, stranger) in [
            (Reach::Image, true, false, false),
            (Reach::Registry, true, true, false),
            (Reach::Global, true, true, true),
        ] {
            let mut cache = Cache::default();
            cache.keep(&plugin(60), "reg.io/a", "reg.io", answer(reach, Some(10))).unwrap();
            assert_eq!(cache.find("reg.io/a", "reg.io").is_some(), same, "{reach:?}");
            assert_eq!(cache.find("reg.io/b", "reg.io").is_some(), sibling, "{reach:?}");
            assert_eq!(cache.find("other.io/a", "other.io").is_some(), stranger, "{reach:?}");
            tokio::time::advance(Duration::from_secs(10)).await;
            assert!(cache.find("reg.io/a", "reg.io").is_none(), "it is over");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_word_the_configuration_says_how_long_and_zero_is_not_kept() {
        let mut cache = Cache::default();
        cache.keep(&plugin(60), "a", "r", answer(Reach::Global, None)).unwrap();
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(cache.find("a", "r").is_some());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(cache.find("a", "r").is_none());
        cache.keep(&plugin(60), "b", "r", answer(Reach::Image, Some(0))).unwrap();
        cache.keep(&plugin(0), "c", "r", answer(Reach::Image, None)).unwrap();
        assert!(cache.find("b", "r").is_none() && cache.find("c", "r").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_remembered_for_a_moment_and_for_its_image_only() {
        let mut cache = Cache::default();
        cache.keep(&plugin(60), "a", "r", Err("broken".into())).unwrap_err();
        assert_eq!(cache.find("a", "r"), Some(Err("broken".into())));
        assert!(cache.find("b", "r").is_none());
        tokio::time::advance(REMEMBER_FAILURE).await;
        assert!(cache.find("a", "r").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn it_does_not_grow_without_end() {
        let mut cache = Cache::default();
        for number in 0..2 * MOST {
            cache.keep(&plugin(60), &number.to_string(), "r", answer(Reach::Image, None)).unwrap();
        }
        assert!(cache.known.len() <= MOST);
    }
}

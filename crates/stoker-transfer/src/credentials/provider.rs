//! Logins from the kubelet's credential provider plugins.
//!
//! The kubelet's own configuration and the name of an image come in; what its plugins say goes out, so that a node that
//! needs no pull secrets for ECR, GCR or ACR needs none here. A plugin that fails is a sentence for people and stops nothing:
//! the pull goes on without it. What a plugin gave is kept as long as it says, and shown to nobody.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Mutex;

use super::pattern::Pattern;
use crate::login::Login;
use crate::reference::Reference;

mod cache;
mod config;
mod exec;

use self::cache::Cache;
pub use self::config::ConfigError;
use self::config::Plugin;

/// The plugins of a node. Clones share what is remembered.
#[derive(Clone, Default)]
pub struct Providers {
    providers: Arc<Vec<Provider>>,
}

/// A login that a plugin gave, and for which images it is.
#[derive(Clone, PartialEq, Eq)]
pub struct Provided {
    pub(super) pattern: Pattern,
    pub(super) login: Login,
}

struct Provider {
    plugin: Plugin,
    path: PathBuf,
    /// Locked while the plugin runs: those who want the same wait, and find it here.
    cache: Mutex<Cache>,
}

impl Providers {
    /// The plugins of this `CredentialProviderConfig` file, whose programs are in this directory: what the kubelet has as
    /// `--image-credential-provider-config` and `--image-credential-provider-bin-dir`. Reads one small file.
    pub fn load(config_file: &Path, bin_dir: &Path) -> Result<Self, ConfigError> {
        let plugins = config::load(config_file)?;
        let provider = |plugin: Plugin| Provider { path: bin_dir.join(&plugin.name), plugin, cache: Mutex::default() };
        Ok(Self { providers: Arc::new(plugins.into_iter().map(provider).collect()) })
    }

    /// The logins of all plugins that are for this image, in the order of the configuration, and what is wrong with those
    /// that gave none.
    pub async fn logins(&self, image: &Reference) -> (Vec<Provided>, Vec<String>) {
        let fitting = self.providers.iter().filter(|provider| provider.plugin.is_for(image));
        let answers = futures::future::join_all(fitting.map(|provider| provider.ask(image))).await;
        let (mut logins, mut troubles) = (Vec::new(), Vec::new());
        for answer in answers {
            match answer {
                Ok(given) => logins.extend(given),
                Err(trouble) => troubles.push(trouble),
            }
        }
        (logins, troubles)
    }
}

impl Provider {
    async fn ask(&self, image: &Reference) -> Result<Vec<Provided>, String> {
        let name = format!("{}/{}", image.registry(), image.repository());
        let mut cache = self.cache.lock().await;
        if let Some(known) = cache.find(&name, image.registry()) {
            return known;
        }
        let answer = exec::run(&self.plugin, &self.path, &name).await;
        if let Err(trouble) = &answer {
            tracing::warn!(plugin = self.plugin.name, "{trouble}");
        }
        cache.keep(&self.plugin, &name, image.registry(), answer)
    }
}

impl fmt::Debug for Providers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.providers.iter().map(|provider| &provider.plugin.name)).finish()
    }
}

impl fmt::Debug for Provided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Provided(for {})", self.pattern.text())
    }
}

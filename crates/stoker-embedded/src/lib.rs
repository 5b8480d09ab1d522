//! A Kubernetes-compatible API in a box, as one tower service.
//!
//! Custom kinds come in as CustomResourceDefinitions, objects live in memory (and in a journal, if [`Settings::journal`] names
//! one: then no acknowledged write is lost), and a `kube::Client` cannot tell it from a small cluster: [`Api::client`] in process, [`Server`] over HTTPS for `kubectl` and everyone else. Kinds are rows of a table; no
//! code matches on a kind. What it does not do (server-side apply, RBAC, admission, OpenAPI v2) it refuses by name.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//! use stoker_embedded::{Api, Settings};
//!
//! let api = Api::new(Settings::new(vec![], Arc::new(jiff::Timestamp::now)))?;
//! let version = api.client("default").apiserver_version().await?;
//! assert_eq!(version.major, "1");
//! # Ok(())
//! # }
//! ```

mod accept;
mod body;
mod collect;
mod crd;
mod crowd;
mod discovery;
mod encode;
#[doc(hidden)]
pub mod fuzzing;
mod https;
mod journal;
mod kind;
mod object;
mod openapi;
mod patch;
mod protobuf;
mod random;
mod read;
mod refusal;
mod request;
mod rows;
mod schema;
mod select;
mod serve;
mod setup;
mod store;
mod table;
mod watch;
mod write;

pub use accept::accept;
pub use crowd::{Crowd, Stranger};
pub use https::{Server, ServerError};
pub use journal::JournalError;
pub use serve::{Body, Service};

use jiff::Timestamp;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use write::Keeper;

/// What an API is made of.
#[derive(Clone)]
pub struct Settings {
    /// `apiextensions.k8s.io/v1` CustomResourceDefinition objects.
    pub crds: Vec<Value>,
    /// Wall time, for creation and deletion timestamps and the ages in tables.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    /// The file that keeps every object across restarts; it is made where it is not there. `None` keeps them in memory only.
    pub journal: Option<PathBuf>,
}

impl Settings {
    /// An API in memory. For one that lasts: `Settings { journal: Some(file), ..Settings::new(crds, clock) }`.
    pub fn new(crds: Vec<Value>, clock: Arc<dyn Fn() -> Timestamp + Send + Sync>) -> Self {
        Self { crds, clock, journal: None }
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Settings");
        shown.field("crds", &self.crds.len()).field("journal", &self.journal).finish_non_exhaustive()
    }
}

/// Why an API could not be made.
#[derive(Debug, Error)]
pub enum Error {
    /// A definition is wrong; the message names the place in it.
    #[error("the definition {name:?} was refused: {why}")]
    Definition {
        /// The `metadata.name` of the definition.
        name: String,
        /// The path in the definition, and what is wrong there.
        why: String,
    },
    /// The server could not set itself up; a defect of this crate or a machine without randomness.
    #[error("the embedded API could not be set up: {0}")]
    Setup(String),
    /// The journal could not be opened.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The HTTPS server failed.
    #[error(transparent)]
    Server(#[from] ServerError),
}

/// The API itself: one store, shared by all clones, clients and servers.
#[derive(Clone)]
pub struct Api {
    keeper: Keeper,
    until: CancellationToken,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}

impl Api {
    /// An API with the built-in kinds, the given definitions and two namespaces; and, with a journal, everything that is in it.
    /// Then this reads and writes the file, on the calling thread: call it before anything is served.
    pub fn new(settings: Settings) -> Result<Self, Error> {
        Ok(Self { keeper: setup::keeper(settings)?, until: CancellationToken::new() })
    }

    /// A client in this process, with no socket between. Call it inside a tokio runtime.
    pub fn client(&self, default_namespace: &str) -> kube::Client {
        kube::Client::new(self.service(), default_namespace)
    }

    /// The tower service, for a transport of one's own. It authenticates nobody.
    pub fn service(&self) -> Service {
        self.service_until(self.until.clone())
    }

    /// Ends every watch, of every client and server of this API; it goes on answering everything else.
    pub fn end_watches(&self) {
        self.until.cancel();
    }

    fn service_until(&self, until: CancellationToken) -> Service {
        Service::new(self.keeper.clone(), until)
    }
}

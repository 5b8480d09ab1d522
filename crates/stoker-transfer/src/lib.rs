//! Bytes: references, registries, resumable fetches, a small registry to serve them.
//!
//! An image [`Reference`] comes in; verified manifests ([`PlatformImage`]) and verified files (a [`Growing`]
//! blob's path) go out. A [`Registry`] speaks to registries, a [`Spool`] turns what it says into files
//! that survive a cut connection and a restart, a [`RegistryServer`] offers an OCI layout to
//! others. Nothing here knows Kubernetes, and no secret or signed address reaches a log or an error.
//!
//! ```no_run
//! # async fn pull() -> Result<(), Box<dyn std::error::Error>> {
//! use stoker_transfer::{BlobSource, Platform, Reference, Registry, Settings, Spool, SpoolSettings};
//!
//! let registry = Registry::new(Settings::default())?;
//! let spool = Spool::open("spool".into(), registry.clone(), SpoolSettings::default())?;
//! let reference: Reference = "nginx:1.29".parse()?;
//! let root = registry.resolve(&reference, None).await?;
//! let image = registry.image(&reference, root.digest(), &Platform::host(), None).await?;
//! for blob in image.blobs() {
//!     let file = spool.blob(BlobSource::new(reference.clone(), None), blob.clone()).complete().await?;
//!     println!("{} is in {}", blob.digest(), file.display());
//! }
//! # Ok(())
//! # }
//! ```

pub mod credentials;
pub mod error;
pub mod fetch;
#[doc(hidden)]
pub mod fuzzing;
mod hash;
pub mod hosts;
pub mod image;
pub mod limit;
pub mod login;
pub mod peer;
pub mod platform;
pub mod proxy;
pub mod pulse;
pub mod reference;
pub mod registry;
pub mod serve;
mod sip;
mod socket;
pub mod spool;

pub use credentials::{Keyring, LoginEntry, Logins, NodeKey, Permission, Providers, PublicKey, SecretKind};
pub use error::{Error, TransferErrorKind};
pub use image::{Document, PlatformImage};
pub use limit::Pace;
pub use login::{Login, Secret};
pub use oci_spec::image::{Descriptor, Digest, MediaType};
pub use platform::Platform;
pub use proxy::Proxy;
pub use pulse::{Pulse, TransferTrouble};
pub use reference::{Address, Reference};
pub use registry::{Registry, Retry, Settings};
pub use serve::{RegistryServer, ServeSettings};
pub use spool::{BlobSource, Growing, Progress, Spool, SpoolSettings, SpooledPart};

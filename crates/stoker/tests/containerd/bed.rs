//! A node: a containerd, a registry behind a link that counts, and `stoker up` on both.

use stoker_testbed::containerd::{self, Containerd, Version};
use stoker_testbed::docker_registry::{self, DockerRegistry};
use stoker_testbed::image::Image;
use stoker_testbed::proxy::Proxy;

use crate::up::{Ran, Up};

/// Makes of `async fn case(version: Version)` a test on each version. `quick`: Debian's is not left out by quick runs.
macro_rules! on_both {
    (quick $case:ident) => {
        mod $case {
            #[tokio::test(flavor = "multi_thread")]
            async fn on_containerd_1() {
                super::$case(stoker_testbed::containerd::Version::Debian).await;
            }
            #[tokio::test(flavor = "multi_thread")]
            #[ignore = "long"]
            async fn on_containerd_2() {
                super::$case(stoker_testbed::containerd::Version::Two).await;
            }
        }
    };
    ($case:ident) => {
        mod $case {
            #[tokio::test(flavor = "multi_thread")]
            #[ignore = "long"]
            async fn on_containerd_1() {
                super::$case(stoker_testbed::containerd::Version::Debian).await;
            }
            #[tokio::test(flavor = "multi_thread")]
            #[ignore = "long"]
            async fn on_containerd_2() {
                super::$case(stoker_testbed::containerd::Version::Two).await;
            }
        }
    };
}
pub(crate) use on_both;

/// The registry and the link to it. References name the link.
pub(crate) struct Registry {
    pub(crate) real: DockerRegistry,
    pub(crate) link: Proxy,
}

impl Registry {
    /// `None`, said loudly, where there is no docker-registry.
    pub(crate) async fn start(options: docker_registry::Options) -> Option<Self> {
        let real = DockerRegistry::start(options).await.unwrap()?;
        let link = Proxy::start(real.addr()).await.unwrap();
        Some(Self { real, link })
    }

    /// Pushes an image and gives the reference to pull it by.
    pub(crate) async fn push(&self, repository: &str, tag: &str, image: &Image) -> String {
        self.real.push(repository, tag, image).await.unwrap();
        format!("{}/{repository}:{tag}", self.link.host())
    }
}

/// A containerd with `stoker up` on it.
pub(crate) struct Node {
    pub(crate) up: Up,
    pub(crate) containerd: Containerd,
}

impl Node {
    /// `None`, said loudly, where there is no such containerd.
    pub(crate) async fn start(version: Version) -> Option<Self> {
        Self::start_with(version, containerd::Options::default(), &[]).await
    }

    /// With other options of containerd, and more arguments for `stoker up`.
    pub(crate) async fn start_with(version: Version, options: containerd::Options, more: &[&str]) -> Option<Self> {
        let containerd = Containerd::start(version, options).await.unwrap()?;
        let endpoint = containerd.endpoint();
        // The machine's own disk is nobody's business here.
        let mut args = vec!["--runtime", "containerd", "--runtime-endpoint", &endpoint, "--max-disk", "100"];
        args.extend(more);
        let up = Up::start_with(tempfile::tempdir().unwrap(), 1, &args);
        Some(Self { up, containerd })
    }

    /// `stoker pull`, to its end.
    pub(crate) async fn pull(&self, image: &str) -> Ran {
        self.up.run(&["pull", image]).await
    }

    /// The names of containerd's images.
    pub(crate) async fn names(&self) -> Vec<String> {
        let names = self.containerd.ctr_ok(&["images", "ls", "-q"]).await.unwrap();
        names.lines().map(str::to_owned).collect()
    }
}

//! Which runtime a node has: what was asked for, or what answers on the usual sockets; and why.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::grpc::{self, socket};
use crate::{Containerd, Cri, Layout, Runtime, containerd, layout};

/// Where runtimes listen: containerd, that of k3s, of MicroK8s, CRI-O, cri-dockerd.
pub const USUAL: &[&str] = &[
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
];

/// What a user may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wish {
    /// What answers.
    #[default]
    Auto,
    /// containerd by its own services.
    Containerd,
    /// Any runtime by CRI.
    Cri,
    /// An OCI image layout.
    Layout,
}

/// A runtime, and why it is this one.
#[derive(Debug, Clone)]
pub struct Choice {
    /// The runtime.
    pub runtime: Runtime,
    /// The reason, for the log and for people.
    pub why: String,
}

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is not one of a socket.
    #[error("`{0}` is not the address of a runtime; give a socket, such as unix:///run/containerd/containerd.sock")]
    Endpoint(String),
    /// A layout was asked for together with an address.
    #[error("a layout has no endpoint; leave --runtime-endpoint out, or choose another --runtime")]
    LayoutWithEndpoint,
    /// No usual socket is there.
    #[error("no runtime is at the usual places ({}); name its socket with --runtime-endpoint", USUAL.join(", "))]
    Nowhere,
    /// It does not answer.
    #[error("{0}; is it running, and may this process use its socket?")]
    Silent(#[from] grpc::Error),
    /// The directory cannot be used.
    #[error(transparent)]
    Layout(#[from] layout::Error),
}

/// Finds the runtime. `images` is where a layout would be.
pub async fn choose(wish: Wish, endpoint: Option<&str>, images: &Path) -> Result<Choice, Error> {
    let given = match endpoint {
        None => None,
        Some(text) => Some(socket(text).ok_or_else(|| Error::Endpoint(text.into()))?),
    };
    let usual = || USUAL.iter().map(PathBuf::from).find(|path| path.exists());
    match (wish, given) {
        (Wish::Layout, Some(_)) => Err(Error::LayoutWithEndpoint),
        (Wish::Layout, None) => layout(images, "it was asked for".into()),
        (Wish::Containerd, given) => {
            let why = reason(given.is_some());
            by_containerd(given.or_else(usual).ok_or(Error::Nowhere)?, why).await
        }
        (Wish::Cri, given) => {
            let why = reason(given.is_some());
            let cri = Cri::connect(given.or_else(usual).ok_or(Error::Nowhere)?).await?;
            Ok(Choice { why: format!("{why}, at {}", cri.socket().display()), runtime: Runtime::Cri(cri) })
        }
        (Wish::Auto, given) => match given.clone().or_else(usual) {
            Some(path) => what_answers(path, given.is_some()).await,
            None => layout(images, format!("no runtime is at the usual places ({})", USUAL.join(", "))),
        },
    }
}

fn reason(given: bool) -> String {
    if given { "it was asked for".into() } else { "it was asked for and found at the usual place".into() }
}

async fn what_answers(path: PathBuf, given: bool) -> Result<Choice, Error> {
    let why = if given { "it answers where it was said to be" } else { "it answers at its usual place" };
    let cri = Cri::connect(&path).await?;
    match cri.name() {
        "containerd" => by_containerd(path, why.into()).await,
        _ => Ok(Choice { why: format!("{why}, {}", path.display()), runtime: Runtime::Cri(cri) }),
    }
}

async fn by_containerd(path: PathBuf, why: String) -> Result<Choice, Error> {
    let containerd = Containerd::connect(containerd::Settings::new(&path)).await?;
    let cri = Cri::connect(&path).await?;
    let mut why = format!("{why}, {}", path.display());
    if let Some(ineligible) = &containerd.node().ineligible {
        why = format!("{why}; its images go by its own pull, because {ineligible}");
    }
    Ok(Choice { runtime: Runtime::Containerd(containerd, cri), why })
}

fn layout(images: &Path, why: String) -> Result<Choice, Error> {
    Ok(Choice {
        runtime: Runtime::Layout(Layout::open(images)?),
        why: format!("{why}; images go to {}", images.display()),
    })
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Containerd => "containerd",
            Self::Cri => "cri",
            Self::Layout => "layout",
        })
    }
}

impl FromStr for Wish {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Auto, Self::Containerd, Self::Cri, Self::Layout];
        let wish = all.into_iter().find(|wish| wish.to_string() == text);
        wish.ok_or_else(|| "it is one of auto, containerd, cri, layout".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn wrong_wishes_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let problem = choose(Wish::Auto, Some("tcp://1.2.3.4:5"), dir.path()).await.unwrap_err();
        assert!(problem.to_string().contains("tcp://1.2.3.4:5"), "{problem}");
        let problem = choose(Wish::Layout, Some("/x"), dir.path()).await.unwrap_err();
        assert!(problem.to_string().contains("--runtime-endpoint"), "{problem}");
        let silent = format!("unix://{}/no.sock", dir.path().display());
        let problem = choose(Wish::Containerd, Some(&silent), dir.path()).await.unwrap_err();
        assert!(problem.to_string().contains("no.sock"), "{problem}");
        let choice = choose(Wish::Layout, None, dir.path()).await.unwrap();
        assert_eq!(choice.runtime.describe(), "layout");
    }
}

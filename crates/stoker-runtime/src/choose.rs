//! Which runtime a node has: what was asked for, or what answers on the usual sockets; and why.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::grpc::{self, RuntimeErrorKind, socket};
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
pub enum RuntimeWish {
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

/// What becomes of [`RuntimeWish::Auto`] where nothing answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Otherwise {
    /// An error: on a node of a cluster images in a layout are images that its kubelet never sees.
    #[default]
    Refuse,
    /// A layout, which needs nothing on the machine.
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
    #[error(
        "no runtime is at the usual places ({0}); name its socket with --runtime-endpoint, for pods with `stoker install \
         --runtime-endpoint …`, which also mounts it, or give --runtime layout for images that no kubelet will see"
    )]
    Nowhere(String),
    /// It does not answer.
    #[error("{0}; is it running, and may this process use its socket?")]
    Silent(#[from] grpc::Error),
    /// The directory cannot be used.
    #[error(transparent)]
    Layout(#[from] layout::Error),
}

/// Finds the runtime. `images` is where a layout would be.
pub async fn choose(
    wish: RuntimeWish,
    otherwise: Otherwise,
    endpoint: Option<&str>,
    images: &Path,
) -> Result<Choice, Error> {
    let usual: Vec<PathBuf> = USUAL.iter().map(PathBuf::from).collect();
    choose_among(wish, otherwise, endpoint, images, &usual).await
}

async fn choose_among(
    wish: RuntimeWish,
    otherwise: Otherwise,
    endpoint: Option<&str>,
    images: &Path,
    usual: &[PathBuf],
) -> Result<Choice, Error> {
    if let Some(text) = endpoint {
        let path = socket(text).ok_or_else(|| Error::Endpoint(text.into()))?;
        return match wish {
            RuntimeWish::Layout => Err(Error::LayoutWithEndpoint),
            RuntimeWish::Auto => what_answers(path, "it answers where it was said to be").await,
            RuntimeWish::Containerd => by_containerd(path, "it was asked for").await,
            RuntimeWish::Cri => by_cri(path, "it was asked for").await,
        };
    }
    if wish == RuntimeWish::Layout {
        return layout(images, None);
    }
    // Others than the kubelet's runtime may have a usual place: Docker's containerd, which has no CRI, or one that was.
    let mut silent: Option<grpc::Error> = None;
    let mut unfit = Vec::new();
    for path in usual.iter().filter(|path| path.exists()).cloned() {
        let found = match wish {
            RuntimeWish::Containerd => {
                by_containerd(path.clone(), "it was asked for and answers at its usual place").await
            }
            RuntimeWish::Cri => by_cri(path.clone(), "it was asked for and answers at its usual place").await,
            _ => what_answers(path.clone(), "it answers at its usual place").await,
        };
        match found {
            Err(Error::Silent(problem)) if problem.kind == RuntimeErrorKind::Unsupported => unfit.push(path),
            Err(Error::Silent(problem)) => {
                silent.get_or_insert(problem);
            }
            found => return found,
        }
    }
    if let Some(problem) = silent {
        return Err(Error::Silent(problem));
    }
    let unfit: String = unfit.iter().map(|path| format!("; {} speaks no CRI", path.display())).collect();
    let places = format!("{}{unfit}", listed(usual));
    match (wish, otherwise) {
        (RuntimeWish::Auto, Otherwise::Layout) => {
            layout(images, Some(format!("no runtime is at the usual places ({places})")))
        }
        _ => Err(Error::Nowhere(places)),
    }
}

fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

async fn what_answers(path: PathBuf, why: &str) -> Result<Choice, Error> {
    let cri = Cri::connect(&path).await?;
    match cri.name() {
        "containerd" => by_containerd(path, why).await,
        _ => Ok(Choice { why: format!("{why}, {}", path.display()), runtime: Runtime::Cri(cri) }),
    }
}

async fn by_cri(path: PathBuf, why: &str) -> Result<Choice, Error> {
    let cri = Cri::connect(&path).await?;
    Ok(Choice { why: format!("{why}, {}", path.display()), runtime: Runtime::Cri(cri) })
}

async fn by_containerd(path: PathBuf, why: &str) -> Result<Choice, Error> {
    let containerd = Containerd::connect(containerd::Settings::new(&path)).await?;
    let cri = Cri::connect(&path).await?;
    let mut why = format!("{why}, {}", path.display());
    if let Some(ineligible) = containerd.node().ineligible() {
        why = format!("{why}; its images go by its own pull, because {ineligible}");
    }
    Ok(Choice { runtime: Runtime::Containerd(containerd, cri), why })
}

fn layout(images: &Path, because: Option<String>) -> Result<Choice, Error> {
    let place = format!("an OCI image layout in {}", images.display());
    let why = because.map_or_else(|| place.clone(), |because| format!("{place}, because {because}"));
    Ok(Choice { runtime: Runtime::Layout(Layout::open(images)?), why })
}

impl fmt::Display for RuntimeWish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Containerd => "containerd",
            Self::Cri => "cri",
            Self::Layout => "layout",
        })
    }
}

impl FromStr for RuntimeWish {
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
        let problem =
            choose(RuntimeWish::Auto, Otherwise::Refuse, Some("tcp://1.2.3.4:5"), dir.path()).await.unwrap_err();
        assert!(problem.to_string().contains("tcp://1.2.3.4:5"), "{problem}");
        let problem = choose(RuntimeWish::Layout, Otherwise::Refuse, Some("/x"), dir.path()).await.unwrap_err();
        assert!(problem.to_string().contains("--runtime-endpoint"), "{problem}");
        let silent = format!("unix://{}/no.sock", dir.path().display());
        let problem = choose(RuntimeWish::Containerd, Otherwise::Refuse, Some(&silent), dir.path()).await.unwrap_err();
        assert!(problem.to_string().contains("no.sock"), "{problem}");
        let choice = choose(RuntimeWish::Layout, Otherwise::Refuse, None, dir.path()).await.unwrap();
        assert_eq!(choice.runtime.describe(), "layout");
    }

    #[tokio::test]
    async fn without_a_runtime_images_go_to_a_layout_where_that_will_do_and_it_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let images = dir.path().join("images");
        let usual = ["a.sock", "b.sock"].map(|name| dir.path().join(name));
        let choice = choose_among(RuntimeWish::Auto, Otherwise::Layout, None, &images, &usual).await.unwrap();
        assert_eq!(choice.runtime.describe(), "layout");
        assert!(choice.why.contains("a.sock") && choice.why.contains("images"), "{}", choice.why);
        let (refuse, layout) = (Otherwise::Refuse, Otherwise::Layout);
        for (wish, otherwise) in
            [(RuntimeWish::Auto, refuse), (RuntimeWish::Containerd, layout), (RuntimeWish::Cri, layout)]
        {
            let problem = choose_among(wish, otherwise, None, &images, &usual).await.unwrap_err().to_string();
            for said in ["a.sock", "b.sock", "`stoker install --runtime-endpoint", "--runtime layout"] {
                assert!(problem.contains(said), "{wish}: {problem}");
            }
        }
        // A socket that nobody serves any more may be one that is about to be served: a layout would be wrong.
        drop(std::os::unix::net::UnixListener::bind(&usual[1]).unwrap());
        for wish in [RuntimeWish::Auto, RuntimeWish::Containerd, RuntimeWish::Cri] {
            let problem = choose_among(wish, layout, None, &images, &usual).await.unwrap_err().to_string();
            assert!(problem.contains("b.sock") && problem.contains("is it running"), "{problem}");
        }
    }
}

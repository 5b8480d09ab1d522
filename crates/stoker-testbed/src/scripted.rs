//! A container runtime that does as a script says, behind a real CRI socket: an agent cannot tell it from a node's own.
//!
//! A script and a folder come in. Pulls take the time and have the end that the script says, and what was pulled is listed
//! from then on, also by the next life on the same folder. No byte of an image is ever fetched.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};
use stoker_runtime::wire::cri as wire;
use tokio::net::UnixListener;
use tonic::Status;

mod serve;

/// Bytes of every image, as far as anybody asks.
const SIZE: u64 = 100 << 20;

/// How pulls go.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// How long each takes.
    pub pull_time: Duration,
    /// Whether they fail, as if the registry did not know the image.
    pub fails: bool,
}

/// Where the ends of pulls are told, a line each: nanoseconds since 1970, the node, the image, `pulled` or `failed`.
#[derive(Debug, Clone, Default)]
pub struct Ends(Option<Arc<Mutex<File>>>);

impl Ends {
    /// Nowhere.
    pub fn untold() -> Self {
        Self(None)
    }

    /// At the end of a file.
    pub fn to(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self(Some(Arc::new(Mutex::new(file)))))
    }

    fn tell(&self, node: &str, image: &str, end: &str) {
        let Some(file) = &self.0 else { return };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let line = format!("{} {node} {image} {end}\n", now.as_nanos());
        // Whoever reads the file notices what is missing there.
        let _ = lock(file).write_all(line.as_bytes());
    }
}

/// Nothing is ever half-written under these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The runtime of one node.
#[derive(Debug)]
pub struct Scripted {
    node: String,
    folder: PathBuf,
    script: Script,
    ends: Ends,
    images: Mutex<BTreeSet<String>>,
    /// Bound already, so that whoever connects now is served later.
    listener: Option<UnixListener>,
}

impl Scripted {
    /// A runtime that keeps its images and its socket in this folder.
    pub fn open(node: &str, folder: &Path, script: Script, ends: Ends) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let known = match fs::read_to_string(folder.join("images")) {
            Err(problem) if problem.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        };
        let mut runtime = Self {
            node: node.into(),
            folder: folder.into(),
            script,
            ends,
            images: Mutex::new(known.lines().map(str::to_owned).collect()),
            listener: None,
        };
        runtime.listener = Some(runtime.bind()?);
        Ok(runtime)
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("sock")
    }

    fn bind(&self) -> io::Result<UnixListener> {
        let _ = fs::remove_file(self.socket());
        UnixListener::bind(self.socket())
    }

    /// Serves for ever, one connection at a time: nobody but the node's agent asks. So it listens only while it is not
    /// connected, which saves a third of the open files of a large fleet.
    pub async fn serve(mut self) -> io::Result<()> {
        let mut listener = self.listener.take();
        let runtime = Arc::new(self);
        loop {
            let bound = listener.take().map_or_else(|| runtime.bind(), Ok)?;
            let (stream, _) = bound.accept().await?;
            drop(bound);
            serve::connection(runtime.clone(), stream).await;
        }
    }

    fn version(&self) -> wire::VersionResponse {
        wire::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "scripted".into(),
            runtime_version: "1.0.0".into(),
            runtime_api_version: "v1".into(),
        }
    }

    fn status(&self, image: &str) -> wire::ImageStatusResponse {
        let there = lock(&self.images).contains(image);
        wire::ImageStatusResponse { image: there.then(|| listed(image)), ..Default::default() }
    }

    fn list(&self) -> wire::ListImagesResponse {
        wire::ListImagesResponse { images: lock(&self.images).iter().map(|image| listed(image)).collect() }
    }

    fn remove(&self, image: &str) -> Result<wire::RemoveImageResponse, Status> {
        let mut images = lock(&self.images);
        images.remove(image);
        let text: String = images.iter().map(|image| format!("{image}\n")).collect();
        fs::write(self.folder.join("images"), text).map_err(|problem| Status::unknown(problem.to_string()))?;
        Ok(wire::RemoveImageResponse {})
    }

    fn filesystem(&self) -> wire::ImageFsInfoResponse {
        let mountpoint = self.folder.display().to_string();
        let id = wire::FilesystemIdentifier { mountpoint };
        let usage = wire::FilesystemUsage { fs_id: Some(id), ..Default::default() };
        wire::ImageFsInfoResponse { image_filesystems: vec![usage] }
    }

    async fn pull(&self, image: &str) -> Result<wire::PullImageResponse, Status> {
        tokio::time::sleep(self.script.pull_time).await;
        if self.script.fails {
            self.ends.tell(&self.node, image, "failed");
            return Err(Status::not_found(format!("failed to resolve reference \"{image}\": {image}: not found")));
        }
        self.keep(image).map_err(|problem| Status::unknown(problem.to_string()))?;
        self.ends.tell(&self.node, image, "pulled");
        Ok(wire::PullImageResponse { image_ref: listed(image).id })
    }

    fn keep(&self, image: &str) -> io::Result<()> {
        if lock(&self.images).insert(image.into()) {
            let mut file = OpenOptions::new().create(true).append(true).open(self.folder.join("images"))?;
            file.write_all(format!("{image}\n").as_bytes())?;
        }
        Ok(())
    }
}

/// The digest that a name stands for: the one in it, or one that is the same on all nodes.
pub fn digest(image: &str) -> String {
    match image.split_once('@') {
        Some((_, digest)) => digest.into(),
        None => sha256(image),
    }
}

fn sha256(text: &str) -> String {
    let hash = Sha256::digest(text);
    format!("sha256:{}", hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn listed(image: &str) -> wire::Image {
    let name = image.split('@').next().unwrap_or(image);
    let (repository, tag) = match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (repository, Some(name.to_owned())),
        _ => (name, None),
    };
    wire::Image {
        id: sha256(&format!("the configuration of {image}")),
        repo_tags: tag.into_iter().collect(),
        repo_digests: vec![format!("{repository}@{}", digest(image))],
        size: SIZE,
        ..Default::default()
    }
}

//! A containerd of a test's own: real, of two versions, in a temporary directory.
//!
//! A version and options come in; a socket for clients, `ctr` and its files go out. When it is dropped nothing is left:
//! daemon, shims, containers, mounts and files go, also after a panic. It never touches the machine's own containerd.

mod config;
mod version;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};

use self::version::Programs;
pub use self::version::Version;
use crate::daemon::{Daemon, Log, NotUp};
use crate::image::{Compression, Image, ImageBuilder, busybox};
use crate::plot::Plot;

/// The namespace of kubelet's images.
pub const NAMESPACE: &str = "k8s.io";
/// The name of the image that holds a pod's namespaces.
pub const SANDBOX_IMAGE: &str = "testbed.local/pause:1";
/// Both messages come before CRI answers, in no certain order.
const READY: [&str; 2] = ["Start streaming server", "containerd successfully booted"];
/// A command of `ctr` that takes longer is broken off by itself.
const LONGEST: &str = "300s";

/// Why there is no containerd, or why it did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ContainerdError {
    /// Files or processes.
    #[error("containerd: {what}: {source}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// It ended or did not get ready.
    #[error("containerd cannot be started: {0}")]
    NotUp(#[from] NotUp),
    /// A command failed.
    #[error("`{command}` failed: {errors}")]
    Command {
        /// The command line.
        command: String,
        /// What it wrote to its standard error.
        errors: String,
    },
}

fn during(what: &'static str) -> impl Fn(io::Error) -> ContainerdError {
    move |source| ContainerdError::Io { what, source }
}

/// How it is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// Of CRI, and of [`run`](Containerd::run) and [`mount`](Containerd::mount): `overlayfs` or `native`.
    pub snapshotter: &'static str,
    /// Whether CRI throws blobs away once they are unpacked.
    pub discard_unpacked_layers: bool,
    /// Where CRI looks for hosts.toml files; `None`: in [`certs`](Containerd::certs), which is empty at first.
    pub certs: Option<PathBuf>,
    /// Its root is on a tmpfs of this many bytes.
    pub disk: Option<u64>,
    /// Where containerd 2 looks for programs that judge images; `None`: nowhere.
    pub verifiers: Option<PathBuf>,
    /// Whether the image for pods' sandboxes is imported at the start. It shares no layer with other images.
    pub sandbox: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            snapshotter: "overlayfs",
            discard_unpacked_layers: false,
            certs: None,
            disk: None,
            verifiers: None,
            sandbox: true,
        }
    }
}

/// A running containerd.
#[derive(Debug)]
pub struct Containerd {
    daemon: Daemon,
    log: Log,
    options: Options,
    programs: Programs,
    /// Last: it ends the shims and removes the files when the daemon is gone.
    plot: Plot,
}

impl Containerd {
    /// Starts one and waits until it answers; `None`, with a line that says why, where this machine cannot.
    pub async fn start(version: Version, options: Options) -> Result<Option<Self>, ContainerdError> {
        let programs = match version.find() {
            Ok(programs) => programs,
            Err(missing) => {
                println!("SKIPPED: {version}: {missing}");
                return Ok(None);
            }
        };
        let plot = Plot::new().map_err(during("make a directory"))?;
        let root = plot.dir("root").map_err(during("make a directory"))?;
        if let Some(bytes) = options.disk {
            mount_tmpfs(&root, bytes)?;
        }
        for dir in ["certs.d", "cni", "mounts"] {
            plot.dir(dir).map_err(during("make a directory"))?;
        }
        let text = config::text(plot.path(), programs.major, &options);
        plot.write("config.toml", text).map_err(during("write its configuration"))?;
        let log = Log::default();
        let daemon = launch(&plot, &programs, &log).await?;
        let containerd = Self { daemon, log, options, programs, plot };
        if containerd.options.sandbox {
            containerd.import(SANDBOX_IMAGE, &pause()?).await?;
        }
        Ok(Some(containerd))
    }

    /// Its socket, as a path.
    pub fn socket(&self) -> PathBuf {
        self.plot.path().join(config::SOCKET)
    }

    /// Its socket, as `--runtime-endpoint` takes it.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.socket().display())
    }

    /// Where its content and snapshots are.
    pub fn root(&self) -> PathBuf {
        self.plot.path().join("root")
    }

    /// Where it looks for hosts.toml files, each in a directory of the registry's name.
    pub fn certs(&self) -> PathBuf {
        self.options.certs.clone().unwrap_or_else(|| self.plot.path().join("certs.d"))
    }

    /// Writes the hosts.toml of a registry; it is read at each pull.
    pub fn set_hosts(&self, registry: &str, toml: &str) -> Result<(), ContainerdError> {
        let dir = self.certs().join(registry);
        fs::create_dir_all(&dir).map_err(during("make a directory for hosts.toml"))?;
        fs::write(dir.join("hosts.toml"), toml).map_err(during("write hosts.toml"))
    }

    /// The process of the daemon.
    pub fn id(&self) -> u32 {
        self.daemon.id()
    }

    /// All that it said, in all its lives.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// kill -9 of the daemon; its shims and containers stay.
    pub fn kill(&mut self) {
        self.daemon.kill();
    }

    /// kill -9 if it still runs, and a new start on the same files; waits until it answers.
    pub async fn restart(&mut self) -> Result<(), ContainerdError> {
        self.daemon.kill();
        self.daemon = launch(&self.plot, &self.programs, &self.log).await?;
        Ok(())
    }

    /// A `ctr` of the same version for this containerd and kubelet's namespace, to be run as one likes.
    pub fn ctr_command(&self, args: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(&self.programs.ctr);
        command.args(["--timeout", LONGEST, "--namespace", NAMESPACE, "--address"]).arg(self.socket()).args(args);
        command.env("PATH", &self.programs.path);
        command
    }

    /// Runs `ctr`, away from the executor.
    pub async fn ctr(&self, args: &[impl AsRef<OsStr>]) -> Result<Output, ContainerdError> {
        output(self.ctr_command(args)).await
    }

    /// Runs `ctr`, which must succeed; what it printed.
    pub async fn ctr_ok(&self, args: &[impl AsRef<OsStr>]) -> Result<String, ContainerdError> {
        succeed(self.ctr_command(args)).await
    }

    /// Brings an image in under this name without any registry, unpacked.
    pub async fn import(&self, name: &str, image: &Image) -> Result<(), ContainerdError> {
        let archive = image.archive(name).map_err(during("make an archive"))?;
        let file = self.plot.path().join(format!("import-{}.tar", number()));
        fs::write(&file, archive).map_err(during("write an archive"))?;
        let path = file.to_string_lossy().into_owned();
        let imported = self.ctr_ok(&["images", "import", "--snapshotter", self.options.snapshotter, &path]).await;
        let _ = fs::remove_file(file);
        imported.map(drop)
    }

    /// Runs a command in a new container of an image that is there, and removes the container. What the container says is in the output's `stdout`.
    pub async fn run(&self, image: &str, command: &[&str]) -> Result<Output, ContainerdError> {
        // Cgroups and runc's state have no other name than this on the whole machine.
        let id = format!("stoker-bed-{}-{}", std::process::id(), number());
        // The shim writes it to a file: `ctr` loses what a container says that ends before `ctr` listens.
        let said = self.plot.dir("said").map_err(during("make a directory"))?.join(&id);
        let log = format!("file://{}", said.display());
        let args = ["run", "--rm", "--log-uri", &log, "--snapshotter", self.options.snapshotter, image, &id];
        let output = self.ctr(&[&args, command].concat()).await?;
        match output.status.success() {
            true => Ok(Output { stdout: std::fs::read(said).map_err(during("read what a container said"))?, ..output }),
            false => Ok(output),
        }
    }

    /// Mounts an image's root file system to be read; it is unmounted with this containerd.
    pub async fn mount(&self, image: &str) -> Result<PathBuf, ContainerdError> {
        let target = self.plot.dir(&format!("mounts/{}", number())).map_err(during("make a directory"))?;
        let path = target.to_string_lossy().into_owned();
        self.ctr_ok(&["images", "mount", "--snapshotter", self.options.snapshotter, image, &path]).await?;
        Ok(target)
    }
}

/// No two are the same in this process.
fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

async fn launch(plot: &Plot, programs: &Programs, log: &Log) -> Result<Daemon, ContainerdError> {
    let mut command = Command::new(&programs.containerd);
    command.arg("--config").arg(plot.path().join("config.toml")).env("PATH", &programs.path);
    // A proxy or a service manager of whoever runs the tests is none of its business.
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "NOTIFY_SOCKET"] {
        command.env_remove(name);
    }
    let daemon = Daemon::start(&mut command, log).map_err(during("start it"))?;
    daemon.says(&READY).await?;
    Ok(daemon)
}

fn mount_tmpfs(at: &Path, bytes: u64) -> Result<(), ContainerdError> {
    let mut command = Command::new("mount");
    command.args(["-t", "tmpfs", "-o", &format!("size={bytes},mode=0700"), "stoker-bed"]).arg(at);
    let line = format!("{command:?}");
    let output = command.output().map_err(during("mount a tmpfs"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(ContainerdError::Command { command: line, errors: text(&output.stderr) }),
    }
}

/// It waits in the background as the real one does; the file makes its layer unlike any other image's.
fn pause() -> Result<Image, ContainerdError> {
    let no_busybox = |error| during("make the image of sandboxes")(io::Error::other(error));
    let layer = busybox().map_err(no_busybox)?.file("pause", "").build(Compression::None);
    let layer = layer.map_err(during("make the image of sandboxes"))?;
    Ok(ImageBuilder::new().layer(&layer).entrypoint(&["/bin/sleep", "1000000"]).build())
}

async fn output(mut command: Command) -> Result<Output, ContainerdError> {
    let ran = tokio::task::spawn_blocking(move || command.output()).await;
    ran.map_err(io::Error::other).and_then(|output| output).map_err(during("run ctr"))
}

async fn succeed(command: Command) -> Result<String, ContainerdError> {
    let line = format!("{command:?}");
    let output = output(command).await?;
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(ContainerdError::Command { command: line, errors: text(&output.stderr) }),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

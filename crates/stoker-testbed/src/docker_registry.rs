//! Debian's docker-registry as a child of the test, on a free port of loopback.
//!
//! Accounts and TLS come in as options, images by [`push`](DockerRegistry::push); it serves them until it is stopped or dropped,
//! and again after [`restart`](DockerRegistry::restart), on the same port. It never uses the machine's own configuration.

mod accounts;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use serde_json::json;
use tokio::net::TcpSocket;

use crate::certificates::Certificates;
use crate::daemon::{Daemon, Log, NotUp};
use crate::image::{Image, PushError, Pusher};
use crate::plot::Plot;

const PROGRAM: &str = "docker-registry";

/// Why there is no registry.
#[derive(Debug, thiserror::Error)]
pub enum DockerRegistryError {
    /// Files, processes or ports.
    #[error("docker-registry cannot be started: {0}")]
    Io(#[from] io::Error),
    /// It ended or said nothing.
    #[error("docker-registry cannot be started: {0}")]
    NotUp(#[from] NotUp),
    /// No certificate.
    #[error("no certificate for docker-registry: {0}")]
    Certificate(#[from] rcgen::Error),
    /// No accounts.
    #[error("htpasswd made no account ({0}); install apache2-utils")]
    Accounts(String),
}

/// What kind of registry. Its Debug shows no password.
#[derive(Clone, Default)]
pub struct Options {
    /// Who may pull and push, as name and password; nobody: everybody.
    pub accounts: Vec<(String, String)>,
    /// Whether it speaks https, with a certificate for `localhost` and 127.0.0.1 of a CA of its own.
    pub tls: bool,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("accounts", &self.accounts.len()).field("tls", &self.tls).finish()
    }
}

/// What it needs to speak https. The keys never leave its directory.
#[derive(Debug)]
struct TlsFiles {
    /// The CA's certificate as PEM.
    ca: String,
    /// The file of the registry's certificate.
    certificate: PathBuf,
    /// The file of its key.
    key: PathBuf,
}

impl TlsFiles {
    fn new(plot: &Plot) -> Result<Self, DockerRegistryError> {
        let made = Certificates::make(&["localhost", "127.0.0.1"])?;
        let certificate = plot.write("registry.pem", made.certificate)?;
        Ok(Self { ca: made.ca, certificate, key: plot.write("registry.key", made.key)? })
    }
}

/// A running registry; it ends when dropped.
#[derive(Debug)]
pub struct DockerRegistry {
    daemon: Option<Daemon>,
    /// Holds the port, so that nobody else gets it while the registry is stopped or about to listen there.
    _place: TcpSocket,
    addr: SocketAddr,
    log: Log,
    options: Options,
    certificates: Option<TlsFiles>,
    /// Last: it removes the files when all else is gone.
    plot: Plot,
}

impl DockerRegistry {
    /// Starts one; `None`, with a line that says so, where the program is missing.
    pub async fn start(options: Options) -> Result<Option<Self>, DockerRegistryError> {
        let wanted = if options.accounts.is_empty() { &[PROGRAM][..] } else { &[PROGRAM, accounts::PROGRAM] };
        // Whatever they make of it: one that is not there cannot be started.
        let missing = wanted.iter().find(|program| Command::new(program).arg("--version").output().is_err());
        if let Some(program) = missing {
            println!("SKIPPED: no {program} on this machine");
            return Ok(None);
        }
        let plot = Plot::new()?;
        let certificates = if options.tls { Some(TlsFiles::new(&plot)?) } else { None };
        // The registry's own listener shares its port as readily: Go asks for that with every one.
        let place = TcpSocket::new_v4()?;
        place.set_reuseaddr(true)?;
        place.bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let (addr, log) = (place.local_addr()?, Log::default());
        let mut registry = Self { daemon: None, _place: place, addr, log, options, certificates, plot };
        if !registry.options.accounts.is_empty() {
            accounts::write(&registry.plot, &registry.options.accounts)?;
        }
        registry.launch().await?;
        Ok(Some(registry))
    }

    async fn launch(&mut self) -> Result<(), DockerRegistryError> {
        let mut config = json!({
            "version": "0.1",
            "log": {"level": "info", "accesslog": {"disabled": true}},
            "storage": {
                "filesystem": {"rootdirectory": self.plot.dir("data")?},
                "delete": {"enabled": true},
                "maintenance": {"uploadpurging": {"enabled": false}},
            },
            "http": {"addr": self.addr.to_string()},
        });
        if !self.options.accounts.is_empty() {
            let path = self.plot.path().join(accounts::FILE);
            config["auth"] = json!({"htpasswd": {"realm": "testbed", "path": path}});
        }
        if let Some(certificates) = &self.certificates {
            config["http"]["tls"] = json!({"certificate": certificates.certificate, "key": certificates.key});
        }
        // JSON is YAML.
        let file = self.plot.write("config.yml", config.to_string())?;
        let mut command = Command::new(PROGRAM);
        command.arg("serve").arg(file);
        // Each setting can also come from the environment, and would win.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"REGISTRY_")) {
            command.env_remove(name);
        }
        let daemon = Daemon::start(&mut command, &self.log)?;
        daemon.says(&["listening on "]).await?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `127.0.0.1:PORT`, to begin references with.
    pub fn host(&self) -> String {
        self.addr.to_string()
    }

    /// `http://…` or `https://…`.
    pub fn url(&self) -> String {
        let scheme = if self.options.tls { "https" } else { "http" };
        format!("{scheme}://{}", self.addr)
    }

    /// The certificate of its CA as PEM, where it speaks https.
    pub fn ca(&self) -> Option<&str> {
        self.certificates.as_ref().map(|certificates| certificates.ca.as_str())
    }

    /// Pushes an image, with the first account; returns its reference by tag.
    pub async fn push(&self, repository: &str, tag: &str, image: &Image) -> Result<String, PushError> {
        let mut pusher = Pusher::new(&self.url(), self.ca())?;
        if let Some((name, password)) = self.options.accounts.first() {
            pusher = pusher.login(name, password);
        }
        pusher.push(repository, tag, image).await?;
        Ok(format!("{}/{repository}:{tag}", self.host()))
    }

    /// From now on only these may come in. Without a restart, for it looks at the file again; only where there were accounts before.
    pub fn set_accounts(&mut self, accounts: &[(String, String)]) -> Result<(), DockerRegistryError> {
        accounts::write(&self.plot, accounts)?;
        self.options.accounts = accounts.to_vec();
        Ok(())
    }

    /// kill -9. Its port refuses connections, and stays ours.
    pub fn stop(&mut self) {
        // Dropped, it is killed and waited for.
        self.daemon = None;
    }

    /// Starts it again, on the same port and with the same data.
    pub async fn restart(&mut self) -> Result<(), DockerRegistryError> {
        self.stop();
        self.launch().await
    }

    /// Removes the content of a blob behind its back; the registry still has its name.
    pub fn lose_blob(&self, digest: &str) -> Result<(), DockerRegistryError> {
        let hex = digest.trim_start_matches("sha256:");
        let folder = format!("data/docker/registry/v2/blobs/sha256/{}/{hex}", hex.get(..2).unwrap_or_default());
        fs::remove_dir_all(self.plot.path().join(folder))?;
        Ok(())
    }

    /// All that it said.
    pub fn log(&self) -> String {
        self.log.text()
    }
}

//! Whom to ask for the images of a registry, as the node's containerd is told to.
//!
//! A directory of the shape of containerd's `certs.d` and the name of a registry come in; the hosts to ask, in their order,
//! go out: mirrors, then the registry itself. It is read anew for each pull, as containerd does. A file that cannot be
//! used is an error of its own registry alone. It speaks to nobody.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderMap;

use crate::reference::{Address as _, Reference};
use crate::registry::encode;
use crate::spool::on_disk;

pub(crate) mod file;
mod names;
mod read;
mod trust;

use self::file::{HostEntry, HostsFile};
pub(crate) use self::names::RegistryNames;
pub(crate) use self::trust::{Pem, Trust};

/// What is wrong with the settings of one registry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // The fields are the words of the messages above them.
pub enum Error {
    /// A file or directory that is there cannot be read.
    #[error("cannot read {}, which says how to reach a registry: {cause}; check the file and who may read it", .file.display())]
    Unreadable { file: PathBuf, cause: String },
    /// Not TOML.
    #[error("{} is not TOML (line {line}: {cause}); put it right and start the job again", .file.display())]
    Syntax { file: PathBuf, line: usize, cause: String },
    /// A field that cannot be what it is.
    #[error("{field} in {} {why}; put it right and start the job again", .file.display())]
    Field { file: PathBuf, field: String, why: String },
    /// A certificate or key that is none.
    #[error("{} cannot be used as {role}: {why}; put it right and start the job again", .file.display())]
    Certificate { file: PathBuf, role: &'static str, why: String },
    /// Nobody is left to ask.
    #[error("{} lets no host {need} {registry}; add this capability to one of its hosts and start the job again", .file.display())]
    Nobody { file: PathBuf, registry: String, need: &'static str },
    /// Only mirrors may be asked.
    #[error(
        "only mirrors may be asked, and no hosts.toml of this node names one that may {need} {registry}; name one as a [host] there, or allow the \
         registry itself"
    )]
    NoMirror { registry: String, need: &'static str },
}

/// What somebody is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostNeed {
    /// Which digest a tag is.
    Resolve,
    /// Something that a digest names: who gives it cannot lie.
    Pull,
}

impl HostNeed {
    /// What a host of a registry does that meets it, for errors.
    fn words(self) -> &'static str {
        match self {
            Self::Resolve => "resolve tags of",
            Self::Pull => "give images of",
        }
    }
}

/// Somebody who may have the images of a registry.
#[derive(Debug, Clone)]
pub(crate) struct Host {
    /// `http` or `https`.
    pub(crate) scheme: &'static str,
    /// Name or address, and port.
    pub(crate) authority: String,
    /// What comes before the repository: `/v2`, unless somebody overrides it.
    pub(crate) path: String,
    pub(crate) trust: Arc<Trust>,
    /// For this host and nobody else.
    pub(crate) headers: HeaderMap,
    /// The registry it stands in for, where it is not that itself.
    pub(crate) mirror_of: Option<String>,
    /// Whether it is the registry itself, or what hosts.toml gives for that, whatever its name.
    is_upstream: bool,
    /// The registry, where it must hear nothing of what this host is asked: this host may lead to any other host.
    pub(crate) apart_from: Option<Arc<RegistryNames>>,
    can: Can,
}

/// What a host may be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Can {
    resolve: bool,
    pull: bool,
}

impl Can {
    const ALL: Self = Self { resolve: true, pull: true };

    fn meets(self, need: HostNeed) -> bool {
        match need {
            HostNeed::Resolve => self.resolve,
            HostNeed::Pull => self.pull,
        }
    }
}

impl Host {
    /// The registry itself, where nothing else is said.
    fn upstream(image: &Reference, trust: Trust, headers: HeaderMap) -> Self {
        // Whoever brings certificates for this machine's own registry wants TLS with it.
        let plain = image.plain_http() && trust.is_usual();
        Self {
            scheme: if plain { "http" } else { "https" },
            authority: image.authority().to_owned(),
            path: "/v2".to_owned(),
            trust: Arc::new(trust),
            headers,
            mirror_of: None,
            is_upstream: true,
            apart_from: None,
            can: Can::ALL,
        }
    }

    /// The address of a thing of a repository.
    pub(crate) fn address(&self, repository: &str, thing: &str) -> String {
        let namespace = self.mirror_of.as_ref().map(|registry| format!("?ns={}", encode(registry))).unwrap_or_default();
        format!("{}://{}{}/{repository}/{thing}{namespace}", self.scheme, self.authority, self.path)
    }

    /// Scheme, name and port: whose tokens and logins these are.
    pub(crate) fn place(&self) -> String {
        format!("{}://{}", self.scheme, self.authority)
    }
}

/// The settings of all registries.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    /// The first that has something for a registry counts.
    dirs: Vec<PathBuf>,
    /// Those that were warned of: once is enough.
    warned: Mutex<HashSet<String>>,
}

impl Hosts {
    pub(crate) fn new(dirs: Vec<PathBuf>) -> Self {
        Self { dirs, warned: Mutex::default() }
    }

    /// Whom to ask for this, the first one first; at least one.
    pub(crate) async fn of(&self, image: &Reference, need: HostNeed) -> Result<Vec<Host>, Error> {
        Ok(self.named(image, need).await?.hosts)
    }

    /// The same without the registry itself; at least one.
    pub(crate) async fn mirrors_of(&self, image: &Reference, need: HostNeed) -> Result<Vec<Host>, Error> {
        let RegistryHosts { mut hosts, names } = self.named(image, need).await?;
        hosts.retain(|host| !host.is_upstream);
        let names = Arc::new(names);
        hosts.iter_mut().for_each(|host| host.apart_from = Some(names.clone()));
        let none = || Error::NoMirror { registry: image.registry().to_owned(), need: need.words() };
        (!hosts.is_empty()).then_some(hosts).ok_or_else(none)
    }

    async fn named(&self, image: &Reference, need: HostNeed) -> Result<RegistryHosts, Error> {
        let usual = || RegistryHosts::alone(Host::upstream(image, Trust::default(), HeaderMap::new()), image);
        let Some(first) = self.dirs.first() else { return Ok(usual()) };
        let (roots, reference) = (self.dirs.clone(), image.clone());
        let broken = Error::Unreadable { file: first.clone(), cause: "the process is going down".to_owned() };
        let look = move || roots.iter().find_map(|root| look(root, &reference).transpose()).transpose();
        let found = on_disk(look).await.map_err(|_| broken)??;
        let Some((file, mut found)) = found else { return Ok(usual()) };
        found.hosts.retain(|host| host.can.meets(need));
        found.hosts.iter().filter(|host| host.trust.skip_verify).for_each(|host| self.warn(host));
        if found.hosts.is_empty() {
            return Err(Error::Nobody { file, registry: image.registry().to_owned(), need: need.words() });
        }
        Ok(found)
    }

    fn warn(&self, host: &Host) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.insert(host.place()) {
            tracing::warn!(host = host.place(), "skip_verify: the certificate of this host is not checked");
        }
    }
}

/// The hosts of a registry, and which names are the registry itself.
#[derive(Debug)]
struct RegistryHosts {
    hosts: Vec<Host>,
    names: RegistryNames,
}

impl RegistryHosts {
    /// The registry and nobody else.
    fn alone(host: Host, image: &Reference) -> Self {
        let names = RegistryNames::of(image, &host.authority);
        Self { hosts: vec![host], names }
    }
}

/// Finds and reads the directory of a registry; `None` where nobody made one.
fn look(root: &Path, image: &Reference) -> Result<Option<(PathBuf, RegistryHosts)>, Error> {
    let Some(dir) = directory(root, image.registry())? else { return Ok(None) };
    let path = dir.join("hosts.toml");
    let text = match read::text(&path) {
        Err(Error::Unreadable { .. }) if !path.exists() => String::new(),
        text => text?,
    };
    if text.is_empty() {
        let trust = trust::of_directory(&dir)?;
        let upstream = Host::upstream(image, trust, HeaderMap::new());
        return Ok(Some((dir, RegistryHosts::alone(upstream, image))));
    }
    let HostsFile { hosts, server } = file::parse(&path, &text)?;
    let mut all = Vec::new();
    for entry in hosts {
        all.push(host(&dir, &path, image, entry)?);
    }
    let (named, mut last) = (server.url.is_some(), host(&dir, &path, image, server)?);
    let names = RegistryNames::of(image, &last.authority);
    last.is_upstream = true;
    all.iter_mut().for_each(|host| host.is_upstream |= names.has(&host.authority));
    // Where the file says that this very port speaks plain HTTP, to try TLS there as well only hides what it answered.
    let plain = |host: &Host| host.scheme == "http" && host.authority == last.authority && last.authority.contains(':');
    if named || last.scheme == "http" || !all.iter().any(plain) {
        all.push(last);
    }
    Ok(Some((path, RegistryHosts { hosts: all, names })))
}

fn host(dir: &Path, file: &Path, image: &Reference, entry: HostEntry) -> Result<Host, Error> {
    let trust = trust::load(dir, file, &entry)?;
    let Some(url) = entry.url else { return Ok(Host::upstream(image, trust, entry.headers)) };
    let own = url.authority.eq_ignore_ascii_case(image.registry()) || url.authority == image.authority();
    Ok(Host {
        scheme: url.scheme,
        authority: url.authority,
        path: url.path,
        trust: Arc::new(trust),
        headers: entry.headers,
        mirror_of: (!own).then(|| image.registry().to_owned()),
        is_upstream: own,
        apart_from: None,
        can: entry.can,
    })
}

/// The directory that containerd would take.
fn directory(root: &Path, registry: &str) -> Result<Option<PathBuf>, Error> {
    // A name that is a way out of the directory is no name of a registry, whoever made it up.
    if registry.contains(['/', '\\', '\0']) || registry.starts_with('.') {
        return Ok(None);
    }
    let spelled = registry.rsplit_once(':').map(|(host, port)| format!("{host}_{port}_"));
    for name in spelled.iter().map(String::as_str).chain([registry, "_default"]) {
        let dir = root.join(name);
        match std::fs::metadata(&dir) {
            Ok(_) => return Ok(Some(dir)),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(e) => return Err(Error::Unreadable { file: dir, cause: e.to_string() }),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;

//! Whom to trust, and as whom to come: the certificates of one host.
//!
//! Paths come in; their bytes go out, with a fingerprint that tells whether anything changed. What the bytes mean, the TLS
//! client finds out. Keys are never shown.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::file::HostEntry;
use super::{Error, read};

/// More files than this in a directory of certificates are somebody else's.
const MOST_FILES: usize = 64;

/// A PEM file, and where it came from.
#[derive(Clone)]
pub(crate) struct Pem {
    pub(crate) file: PathBuf,
    pub(crate) bytes: Vec<u8>,
}

/// How to do TLS with one host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trust {
    /// Trusted besides the public ones.
    pub(crate) ca: Vec<Pem>,
    /// Certificate and key; a file may hold both.
    pub(crate) clients: Vec<(Pem, Pem)>,
    /// Nothing is checked: somebody wrote so.
    pub(crate) skip_verify: bool,
}

impl Trust {
    /// Whether nothing special is said.
    pub(crate) fn is_usual(&self) -> bool {
        self.ca.is_empty() && self.clients.is_empty() && !self.skip_verify
    }

    /// What holds where this host sends us on to: its own CA is good there too (its storage or token server), but
    /// nobody else is believed unchecked or shown our certificate.
    pub(crate) fn abroad(self: &Arc<Self>) -> Arc<Self> {
        if self.clients.is_empty() && !self.skip_verify {
            return self.clone();
        }
        Arc::new(Self { ca: self.ca.clone(), ..Self::default() })
    }

    /// The same for the same content, wherever it lies.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let mut add = |tag: u8, bytes: &[u8]| {
            hash.update([tag]);
            hash.update((bytes.len() as u64).to_be_bytes());
            hash.update(bytes);
        };
        self.ca.iter().for_each(|pem| add(1, &pem.bytes));
        for (certificate, key) in &self.clients {
            add(2, &certificate.bytes);
            add(3, &key.bytes);
        }
        add(4, &[u8::from(self.skip_verify)]);
        hash.finalize().into()
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pem({})", self.file.display())
    }
}

fn pem(path: PathBuf) -> Result<Pem, Error> {
    Ok(Pem { bytes: read::bytes(&path)?, file: path })
}

/// Reads what an entry of a hosts.toml names.
pub(super) fn load(dir: &Path, file: &Path, entry: &HostEntry) -> Result<Trust, Error> {
    let missing = |field: &'static str, error: Error| match error {
        Error::Unreadable { file: named, cause } => Error::Field {
            file: file.to_owned(),
            field: entry.field(field),
            why: format!("names {}, which cannot be read ({cause})", named.display()),
        },
        other => other,
    };
    let ca = entry.ca.iter().map(|path| pem(dir.join(path))).collect::<Result<_, _>>();
    let client = |(certificate, key): &(PathBuf, Option<PathBuf>)| {
        Ok((pem(dir.join(certificate))?, pem(dir.join(key.as_ref().unwrap_or(certificate)))?))
    };
    let clients = entry.clients.iter().map(client).collect::<Result<_, _>>();
    Ok(Trust {
        ca: ca.map_err(|error| missing("ca", error))?,
        clients: clients.map_err(|error| missing("client", error))?,
        skip_verify: entry.skip_verify,
    })
}

/// Reads Docker's older spelling: `*.crt` is a CA, `*.cert` with the `*.key` beside it a client.
pub(super) fn of_directory(dir: &Path) -> Result<Trust, Error> {
    let failed = |e: std::io::Error| Error::Unreadable { file: dir.to_owned(), cause: e.to_string() };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let known = path.extension().is_some_and(|end| end == "crt" || end == "cert");
        if known && files.len() < MOST_FILES {
            files.push(path);
        }
    }
    files.sort();
    let mut trust = Trust::default();
    for path in files {
        match path.extension().is_some_and(|end| end == "crt") {
            true => trust.ca.push(pem(path)?),
            false => trust.clients.push((pem(path.clone())?, pem(path.with_extension("key"))?)),
        }
    }
    Ok(trust)
}

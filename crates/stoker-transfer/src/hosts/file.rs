//! A hosts.toml, read.
//!
//! Its text comes in; mirrors in the order of the file and what is said of the registry itself go out, or which field is
//! wrong. Pure. Values of headers are never shown: they may be secrets.

use std::path::{Path, PathBuf};

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, Uri};
use toml::{Table, Value};

use super::{Can, Error};
use crate::login::sensitive;

const MOST_HOSTS: usize = 64;
const MOST_HEADERS: usize = 64;
/// Those that the connection needs for itself; containerd's HTTP library sends its own too.
const OURS: [HeaderName; 4] = [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION];
const HUB: &str = "docker.io";
const HUB_SERVER: &str = "registry-1.docker.io";

/// All of a hosts.toml.
#[derive(Debug)]
pub(crate) struct HostsFile {
    pub(crate) hosts: Vec<HostEntry>,
    /// The fields outside of any host: they are about the registry itself.
    pub(crate) server: HostEntry,
}

/// What is said of one host.
#[derive(Debug)]
pub(crate) struct HostEntry {
    /// Where it is in the file, in words.
    place: String,
    /// `None` is the registry under its own name.
    pub(crate) url: Option<Url>,
    pub(crate) can: Can,
    pub(crate) ca: Vec<PathBuf>,
    pub(crate) clients: Vec<(PathBuf, Option<PathBuf>)>,
    pub(crate) skip_verify: bool,
    pub(crate) headers: HeaderMap,
}

/// The address of a host, in the parts that matter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) scheme: &'static str,
    pub(crate) authority: String,
    pub(crate) path: String,
}

impl HostEntry {
    /// A field of this entry, as errors name it.
    pub(crate) fn field(&self, name: &str) -> String {
        field(&self.place, name)
    }
}

fn field(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{name} of {place}") }
}

pub(crate) fn parse(file: &Path, text: &str) -> Result<HostsFile, Error> {
    let table: Table = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text.get(..span.start).unwrap_or("").lines().count().max(1));
        Error::Syntax { file: file.to_owned(), line, cause: error.message().to_owned() }
    })?;
    let wrong = |name: String, why: &str| Error::Field { file: file.to_owned(), field: name, why: why.to_owned() };
    let none = Table::new();
    let hosts = match table.get("host") {
        None => &none,
        Some(Value::Table(hosts)) if hosts.len() <= MOST_HOSTS => hosts,
        Some(Value::Table(_)) => return Err(wrong("host".to_owned(), "has more than 64 entries")),
        Some(_) => return Err(wrong("host".to_owned(), "is no table")),
    };
    let mut entries = Vec::new();
    for (number, (url, said)) in hosts.iter().enumerate() {
        // An address with a password in it is refused below, but would be shown before.
        let shown = if url.contains('@') { format!("host {}", number + 1) } else { format!("host {url:?}") };
        let Value::Table(said) = said else { return Err(wrong(shown, "is no table")) };
        entries.push(HostsTable { file, place: &shown, table: said }.entry(Some(url))?);
    }
    let root = HostsTable { file, place: "", table: &table };
    let server = match table.get("server") {
        None => None,
        Some(Value::String(server)) => Some(server.as_str()).filter(|server| !server.is_empty()),
        Some(_) => return Err(wrong("server".to_owned(), "is no text")),
    };
    Ok(HostsFile { hosts: entries, server: root.entry(server)? })
}

/// One table of the file, and where it is.
struct HostsTable<'a> {
    file: &'a Path,
    place: &'a str,
    table: &'a Table,
}

impl HostsTable<'_> {
    fn wrong(&self, name: &str, why: impl Into<String>) -> Error {
        Error::Field { file: self.file.to_owned(), field: field(self.place, name), why: why.into() }
    }

    fn entry(&self, url: Option<&str>) -> Result<HostEntry, Error> {
        let override_path = self.yes_or_no("override_path")?;
        let url = match url {
            None => None,
            Some(text) => {
                let bad = || match self.place.is_empty() {
                    true => self.wrong("server", "is no address (write https://name:port, without a user)"),
                    false => self.wrong("the name", "is no address (write https://name:port, without a user)"),
                };
                Some(address(text, override_path).ok_or_else(bad)?)
            }
        };
        Ok(HostEntry {
            place: self.place.to_owned(),
            can: self.capabilities()?,
            ca: self.paths("ca")?,
            clients: self.clients()?,
            skip_verify: self.yes_or_no("skip_verify")?,
            headers: self.headers()?,
            url,
        })
    }

    fn yes_or_no(&self, name: &str) -> Result<bool, Error> {
        match self.table.get(name) {
            None => Ok(false),
            Some(Value::Boolean(yes)) => Ok(*yes),
            Some(_) => Err(self.wrong(name, "is neither true nor false")),
        }
    }

    /// A text, or a list of texts.
    fn texts<'a>(&self, name: &str, value: &'a Value) -> Result<Vec<&'a str>, Error> {
        let wrong = || self.wrong(name, "is neither a text nor a list of texts");
        match value {
            Value::String(text) => Ok(vec![text]),
            Value::Array(list) => list.iter().map(|text| text.as_str().ok_or_else(wrong)).collect(),
            _ => Err(wrong()),
        }
    }

    fn capabilities(&self) -> Result<Can, Error> {
        const NAME: &str = "capabilities";
        let Some(value) = self.table.get(NAME) else { return Ok(Can::ALL) };
        let Value::Array(list) = value else { return Err(self.wrong(NAME, "is no list")) };
        if list.is_empty() {
            return Ok(Can::ALL);
        }
        let mut can = Can { resolve: false, pull: false };
        for text in self.texts(NAME, value)? {
            match text.to_ascii_lowercase().as_str() {
                "resolve" => can.resolve = true,
                "pull" => can.pull = true,
                // Nobody pushes from here.
                "push" => {}
                _ => return Err(self.wrong(NAME, format!("holds {text:?}; there is pull, resolve and push"))),
            }
        }
        Ok(can)
    }

    fn paths(&self, name: &str) -> Result<Vec<PathBuf>, Error> {
        let Some(value) = self.table.get(name) else { return Ok(Vec::new()) };
        Ok(self.texts(name, value)?.into_iter().map(PathBuf::from).collect())
    }

    fn clients(&self) -> Result<Vec<(PathBuf, Option<PathBuf>)>, Error> {
        const NAME: &str = "client";
        let Some(value) = self.table.get(NAME) else { return Ok(Vec::new()) };
        let wrong = || self.wrong(NAME, "is neither a file, nor a list of files, nor a list of pairs of files");
        let one = |value: &Value| match value {
            Value::String(file) => Ok((PathBuf::from(file), None)),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(certificate), Value::String(key)] => Ok((certificate.into(), Some(key.into()))),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        };
        match value {
            Value::Array(list) => list.iter().map(one).collect(),
            single => Ok(vec![one(single)?]),
        }
    }

    fn headers(&self) -> Result<HeaderMap, Error> {
        let mut headers = HeaderMap::new();
        let table = match self.table.get("header") {
            None => return Ok(headers),
            Some(Value::Table(table)) if table.len() <= MOST_HEADERS => table,
            Some(Value::Table(_)) => return Err(self.wrong("header", "has more than 64 entries")),
            Some(_) => return Err(self.wrong("header", "is no table")),
        };
        for (name, value) in table {
            let parsed = HeaderName::try_from(name.as_str());
            let parsed = parsed.map_err(|_| self.wrong("header", format!("holds {name:?}, which is no header")))?;
            for text in self.texts(&format!("header {name:?}"), value)? {
                let value = sensitive(text)
                    .ok_or_else(|| self.wrong("header", format!("has a value for {name:?} that cannot be sent")))?;
                if !OURS.contains(&parsed) {
                    headers.append(parsed.clone(), value);
                }
            }
        }
        Ok(headers)
    }
}

/// The address that a text means: https where it says nothing, `/v2` at the end of its path unless that is overridden.
fn address(text: &str, override_path: bool) -> Option<Url> {
    let whole = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
    let uri: Uri = whole.parse().ok()?;
    let scheme = match uri.scheme_str()? {
        "http" => "http",
        "https" => "https",
        _ => return None,
    };
    let authority = uri.authority()?.as_str();
    if uri.host().is_none_or(str::is_empty) || authority.contains('@') || uri.query().is_some() {
        return None;
    }
    let authority = if authority == HUB { HUB_SERVER.to_owned() } else { authority.to_owned() };
    let parts: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let mut path: String = parts.iter().map(|part| format!("/{part}")).collect();
    if !override_path && parts.last() != Some(&"v2") {
        path.push_str("/v2");
    }
    (!parts.contains(&"..")).then_some(Url { scheme, authority, path })
}

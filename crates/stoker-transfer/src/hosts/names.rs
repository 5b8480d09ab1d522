//! Which hosts are a registry itself.
//!
//! The names of a registry come in: that of its images, the one behind it, and the `server` of its hosts.toml. Whether a host is one of them goes
//! out, however the host is written. No name is looked up.

use std::net::IpAddr;

use http::uri::Authority;

use crate::reference::{Address as _, Reference};

/// Docker Hub: its registry, its token server and its downloads.
const HUB: [&str; 2] = ["docker.io", "docker.com"];
/// The storage to which Docker Hub redirects has names of cloud providers that begin so.
const HUB_STORAGE: &str = "docker-images-prod";

/// All names of one registry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RegistryNames {
    hosts: Vec<HostName>,
    /// Whether it is Docker Hub, which has more names than these.
    is_hub: bool,
}

/// A host in one spelling.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HostName {
    name: String,
    /// None for the ports that http and https have when an address says none.
    port: Option<u16>,
}

impl RegistryNames {
    /// Those of the registry of an image, with the `server` that hosts.toml gives for it.
    pub(crate) fn of(image: &Reference, server: &str) -> Self {
        let hosts: Vec<HostName> = [image.registry(), image.authority(), server].map(HostName::read).into();
        let is_hub = hosts.iter().any(HostName::is_hub);
        Self { hosts, is_hub }
    }

    /// Whether this host, as name or address with or without a port, is the registry. Another port of the same machine is another host, except at
    /// Docker Hub.
    pub(crate) fn has(&self, authority: &str) -> bool {
        let host = HostName::read(authority);
        self.hosts.contains(&host) || self.is_hub && host.is_hub()
    }
}

impl HostName {
    fn read(authority: &str) -> Self {
        let lower = authority.to_ascii_lowercase();
        let parsed = lower.parse::<Authority>().ok();
        let host = parsed.as_ref().map_or(lower.as_str(), Authority::host);
        let port = parsed.as_ref().and_then(Authority::port_u16).filter(|port| ![80, 443].contains(port));
        // The name of a host may end with a dot.
        let name = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
        let name = name.parse::<IpAddr>().map_or_else(|_| name.to_owned(), |ip| ip.to_canonical().to_string());
        Self { name, port }
    }

    fn is_hub(&self) -> bool {
        let below =
            |domain: &str| self.name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        HUB.into_iter().any(below) || self.name.starts_with(HUB_STORAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_known_however_it_is_written() {
        for (image, server, host, is) in [
            ("reg.io/r", "reg.io", "reg.io", true),
            ("reg.io/r", "reg.io", "REG.io:443", true),
            ("reg.io/r", "reg.io", "reg.io:80", true),
            ("reg.io/r", "reg.io", "reg.io.", true),
            ("reg.io/r", "reg.io", "reg.io.:443", true),
            ("reg.io/r", "reg.io", "reg.io:5000", false),
            ("reg.io/r", "reg.io", "mirror.reg.io", false),
            ("reg.io:443/r", "reg.io:443", "reg.io", true),
            ("reg.io:5000/r", "reg.io:5000", "reg.io:5000", true),
            ("reg.io:5000/r", "reg.io:5000", "reg.io:5001", false),
            ("reg.io/r", "Other.io", "other.io.", true),
            ("[::1]:5000/r", "[::1]:5000", "[0:0::1]:5000", true),
            ("10.0.0.1:5000/r", "10.0.0.1:5000", "[::ffff:10.0.0.1]:5000", true),
            ("reg.io/r", "reg.io", "auth.docker.io", false),
            ("nginx", "registry-1.docker.io", "docker.io", true),
            ("nginx", "registry-1.docker.io", "Registry-1.Docker.io", true),
            ("nginx", "mirror.local", "registry-1.docker.io:443", true),
            ("nginx", "registry-1.docker.io", "index.docker.io", true),
            ("nginx", "registry-1.docker.io", "auth.docker.io", true),
            ("nginx", "registry-1.docker.io", "production.cloudflare.docker.com", true),
            ("nginx", "registry-1.docker.io", "docker-images-prod.x.r2.cloudflarestorage.com", true),
            ("nginx", "registry-1.docker.io", "mydocker.io", false),
            ("nginx", "registry-1.docker.io", "mirror.gcr.io", false),
            ("hub.local/r", "registry-1.docker.io", "auth.docker.io", true),
        ] {
            let names = RegistryNames::of(&image.parse().unwrap(), server);
            assert_eq!(names.has(host), is, "{image} with the server {server}: {host}");
        }
    }
}

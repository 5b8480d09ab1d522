//! Where and how a registry is asked for an image. What a reference is, core says.

use std::net::IpAddr;

use oci_spec::image::Digest;
pub use stoker_core::reference::{InvalidReference, Reference};

const HUB: &str = "docker.io";

/// What a registry client wants to know of a reference.
pub trait Address {
    /// Whether this registry is spoken to without TLS: only where the bytes cannot leave this machine.
    fn plain_http(&self) -> bool;

    /// Where the registry's API really is: the Hub answers under another name than it is known by.
    fn authority(&self) -> &str;

    /// What to ask a manifest for: the digest where there is one, because a tag can move.
    fn manifest_name(&self) -> &str;

    /// The digest that the reference is pinned to.
    fn pinned(&self) -> Option<Digest>;
}

impl Address for Reference {
    fn plain_http(&self) -> bool {
        is_loopback(host_of(self.registry()))
    }

    fn authority(&self) -> &str {
        if self.registry() == HUB { "registry-1.docker.io" } else { self.registry() }
    }

    fn manifest_name(&self) -> &str {
        self.digest().or(self.tag()).unwrap_or("latest")
    }

    fn pinned(&self) -> Option<Digest> {
        self.digest().and_then(|digest| digest.parse().ok())
    }
}

/// The host of "host", "host:port" or "[v6]:port".
fn host_of(authority: &str) -> &str {
    match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or(v6),
        None => authority.split(':').next().unwrap_or(authority),
    }
}

/// Whether a host can only be this machine. Names other than localhost are not looked up: an answer of DNS
/// must not decide whether TLS is used.
pub(crate) fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Whether a connection to a host may end on this machine, as far as its name tells: more than [`is_loopback`], because whoever
/// wrote the name may want to hide that.
pub(crate) fn is_this_machine(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase();
    let last = host.rsplit('.').next().unwrap_or_default();
    match host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
        // Linux takes the unspecified address for loopback.
        Ok(ip) => ip.is_loopback() || ip.is_unspecified(),
        // The system's resolver reads 127.1, 0x7f000001 and 2130706433 as addresses. No honest server writes them.
        Err(_) if last.starts_with("0x") || last.bytes().all(|b| b.is_ascii_digit()) => true,
        Err(_) => last == "localhost",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_loopback_only() {
        for (text, plain) in [
            ("localhost:5000/a", true),
            ("127.9.8.7/a", true),
            ("[::1]/a", true),
            ("nginx", false),
            ("10.0.0.1:5000/a", false),
            ("localhost.example.com/a", false),
            ("127.0.0.1.nip.io/a", false),
        ] {
            assert_eq!(text.parse::<Reference>().unwrap().plain_http(), plain, "{text}");
        }
    }
}

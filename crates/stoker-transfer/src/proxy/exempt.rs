//! What `NO_PROXY` lets through, read with the rules of Go's `httpproxy`.
//!
//! A list comes in, once; whether a host and port are on it goes out. Names are not looked up.

use std::net::IpAddr;

use crate::reference::is_loopback;

/// One entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Exempt {
    Everything,
    /// All addresses that begin with so many of these bits.
    Network(IpAddr, u8),
    Address(IpAddr, Option<u16>),
    /// What a name ends with, its dot included; whether it may also be all of the name; on which port.
    Domain {
        end: String,
        itself: bool,
        port: Option<u16>,
    },
}

/// Reads the list. What makes no sense is left out, as Go does.
pub(super) fn parse(list: &str) -> Vec<Exempt> {
    list.split(',').filter_map(|entry| one(&entry.trim().to_lowercase())).collect()
}

fn one(entry: &str) -> Option<Exempt> {
    if entry == "*" {
        return Some(Exempt::Everything);
    }
    if let Some((address, bits)) = entry.split_once('/') {
        let (address, bits) = (address.parse::<IpAddr>().ok()?, bits.parse::<u8>().ok()?);
        let most = if address.is_ipv4() { 32 } else { 128 };
        return (bits <= most).then_some(Exempt::Network(address, bits));
    }
    if let Ok(address) = bare(entry).parse() {
        return Some(Exempt::Address(address, None));
    }
    let (host, port) = match entry.rsplit_once(':') {
        Some((host, port)) => (bare(host), Some(port.parse::<u16>().ok()?)),
        None => (entry, None),
    };
    if let Ok(address) = host.parse() {
        return Some(Exempt::Address(address, port));
    }
    let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
    let itself = !host.starts_with('.');
    let end = if itself { format!(".{host}") } else { host.to_owned() };
    (end.len() > 1).then_some(Exempt::Domain { end, itself, port })
}

/// An IPv6 address without its brackets.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

/// Whether a host is asked directly. This machine always is.
pub(super) fn is_exempt(list: &[Exempt], host: &str, port: u16) -> bool {
    let host = bare(host).to_lowercase();
    let address: Option<IpAddr> = host.parse().ok();
    is_loopback(&host) || list.iter().any(|exempt| exempt.matches(&host, address, port))
}

impl Exempt {
    fn matches(&self, host: &str, address: Option<IpAddr>, port: u16) -> bool {
        let on = |wanted: &Option<u16>| wanted.is_none_or(|wanted| wanted == port);
        match self {
            Self::Everything => true,
            Self::Network(network, bits) => address.is_some_and(|address| begins(*network, *bits, address)),
            Self::Address(wanted, port) => address == Some(*wanted) && on(port),
            Self::Domain { end, itself, port } => {
                let ends = host.ends_with(end) || (*itself && end.get(1..) == Some(host));
                address.is_none() && ends && on(port)
            }
        }
    }
}

fn begins(network: IpAddr, bits: u8, address: IpAddr) -> bool {
    let bits = u32::from(bits);
    match (network, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= bits,
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()).leading_zeros() >= bits,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_go_reads_it() {
        for (list, host, port, exempt) in [
            ("", "reg.io", 443, false),
            ("*", "reg.io", 443, true),
            ("reg.io", "reg.io", 443, true),
            ("reg.io", "a.reg.io", 443, true),
            ("reg.io", "areg.io", 443, false),
            ("REG.io", "Reg.IO", 443, true),
            (".reg.io", "reg.io", 443, false),
            (".reg.io", "a.reg.io", 443, true),
            ("*.reg.io", "reg.io", 443, false),
            ("*.reg.io", "a.b.reg.io", 443, true),
            ("other.io , reg.io", "reg.io", 443, true),
            ("reg.io:5000", "reg.io", 5000, true),
            ("reg.io:5000", "reg.io", 443, false),
            ("10.1.0.0/16", "10.1.255.1", 443, true),
            ("10.1.0.0/16", "10.2.0.1", 443, false),
            ("0.0.0.0/0", "10.2.0.1", 443, true),
            ("10.0.0.1/32", "10.0.0.1", 443, true),
            ("10.0.0.1", "10.0.0.1", 443, true),
            ("10.0.0.1:80", "10.0.0.1", 443, false),
            ("0.0.1", "10.0.0.1", 443, false),
            ("fd00::/8", "[fd12::1]", 443, true),
            ("fd00::/8", "10.0.0.1", 443, false),
            ("[fd12::1]:5000", "[fd12::1]", 5000, true),
            ("fd12::1", "[fd12::1]", 5000, true),
            ("", "localhost", 443, true),
            ("", "127.0.0.1", 443, true),
            ("", "[::1]", 443, true),
            ("", "localhost.io", 443, false),
            ("10.0.0.0/99,:80,.,/,reg.io:x,", "reg.io", 80, false),
        ] {
            assert_eq!(is_exempt(&parse(list), host, port), exempt, "{list:?} for {host}:{port}");
        }
    }
}

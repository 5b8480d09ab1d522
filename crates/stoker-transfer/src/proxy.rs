//! Which requests go through a proxy.
//!
//! The variables that a node's containerd reads (`HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY`, either case) come in; for an
//! address the way goes out. The rules are those of Go's HTTP client, because containerd is written in it: what works
//! for the kubelet's pull works here. Passwords of proxies are never shown.

use std::fmt;
use std::sync::Arc;

use http::{HeaderValue, Uri};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};

mod exempt;

use self::exempt::Exempt;

/// The proxies of this process; by default none.
#[derive(Clone, Default)]
pub struct Proxy {
    rules: Option<Arc<ProxyRules>>,
}

struct ProxyRules {
    http: Option<ProxyServer>,
    https: Option<ProxyServer>,
    exempt: Vec<Exempt>,
}

#[derive(Clone)]
enum ProxyServer {
    Known(Intercept),
    /// The variable's name; its value may hold a password.
    Unusable(&'static str),
}

/// How to get to an address.
#[derive(Debug)]
pub(crate) enum Way {
    Direct,
    /// Through the proxy at this address, as whoever this header says.
    Through(Uri, Option<HeaderValue>),
    /// There should be a proxy, but this variable names none.
    Nowhere(&'static str),
}

impl Proxy {
    /// No proxy for anything.
    pub fn none() -> Self {
        Self::default()
    }

    /// What these variables say; the environment is `|name| std::env::var(name).ok()`.
    ///
    /// A value that is no proxy is not an error here but of each request that would have to use it.
    pub fn from_env_like(variable: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: [&str; 2]| names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()));
        let cgi = variable("REQUEST_METHOD").is_some_and(|value| !value.is_empty());
        // In a CGI program whoever sends a request could set it, by a header "Proxy".
        let http = first(["HTTP_PROXY", "http_proxy"]).filter(|_| !cgi);
        let https = first(["HTTPS_PROXY", "https_proxy"]);
        if http.is_none() && https.is_none() {
            return Self::none();
        }
        let exempt = first(["NO_PROXY", "no_proxy"]).map(|list| exempt::parse(&list)).unwrap_or_default();
        let http = http.map(|value| server("HTTP_PROXY", &value));
        let https = https.map(|value| server("HTTPS_PROXY", &value));
        Self { rules: Some(Arc::new(ProxyRules { http, https, exempt })) }
    }

    pub(crate) fn way(&self, to: &Uri) -> Way {
        let Some(rules) = &self.rules else { return Way::Direct };
        let (server, port) = match to.scheme_str() {
            Some("https") => (&rules.https, 443),
            _ => (&rules.http, 80),
        };
        let (Some(server), Some(host)) = (server, to.host()) else { return Way::Direct };
        if exempt::is_exempt(&rules.exempt, host, to.port_u16().unwrap_or(port)) {
            return Way::Direct;
        }
        match server {
            ProxyServer::Known(proxy) => Way::Through(proxy.uri().clone(), proxy.basic_auth().cloned()),
            ProxyServer::Unusable(variable) => Way::Nowhere(variable),
        }
    }
}

fn server(variable: &'static str, value: &str) -> ProxyServer {
    let anything = Uri::from_static("https://example.com");
    let found = Matcher::builder().all(value.trim().to_owned()).build().intercept(&anything);
    match found.filter(|proxy| matches!(proxy.uri().scheme_str(), Some("http" | "https"))) {
        Some(proxy) => ProxyServer::Known(proxy),
        None => ProxyServer::Unusable(variable),
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(rules) = &self.rules else { return f.write_str("Proxy(none)") };
        let place = |server: &Option<ProxyServer>| match server {
            None => "none".to_owned(),
            Some(ProxyServer::Known(proxy)) => proxy.uri().to_string(),
            Some(ProxyServer::Unusable(variable)) => format!("{variable} is unusable"),
        };
        write!(f, "Proxy(http: {}, https: {})", place(&rules.http), place(&rules.https))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy(variables: &[(&str, &str)]) -> Proxy {
        let owned: Vec<(String, String)> = variables.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
        Proxy::from_env_like(move |name| owned.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone()))
    }

    fn way(proxy: &Proxy, to: &str) -> String {
        match proxy.way(&to.parse().unwrap()) {
            Way::Direct => "direct".to_owned(),
            Way::Through(server, login) => {
                format!("{server}{}", login.map_or(String::new(), |header| format!(" {}", header.to_str().unwrap())))
            }
            Way::Nowhere(variable) => format!("{variable}?"),
        }
    }

    #[test]
    fn each_scheme_has_its_proxy_and_names_come_in_either_case() {
        for (variables, http, https) in [
            (vec![], "direct", "direct"),
            (vec![("HTTP_PROXY", "http://p:1")], "http://p:1/", "direct"),
            (vec![("https_proxy", "p:1")], "direct", "http://p:1/"),
            (vec![("HTTPS_PROXY", "https://p"), ("http_proxy", "http://q")], "http://q/", "https://p/"),
            (vec![("HTTPS_PROXY", "http://upper"), ("https_proxy", "http://lower")], "direct", "http://upper/"),
            (vec![("HTTPS_PROXY", ""), ("https_proxy", "http://lower")], "direct", "http://lower/"),
            (vec![("ALL_PROXY", "http://p")], "direct", "direct"),
            (
                vec![("HTTP_PROXY", "http://p"), ("HTTPS_PROXY", "http://p"), ("REQUEST_METHOD", "GET")],
                "direct",
                "http://p/",
            ),
            (vec![("HTTPS_PROXY", "http://ada:hunter%32@p:1")], "direct", "http://p:1/ Basic YWRhOmh1bnRlcjI="),
            (vec![("HTTPS_PROXY", "ftp://p"), ("HTTP_PROXY", "http:// hunter2")], "HTTP_PROXY?", "HTTPS_PROXY?"),
        ] {
            let proxy = proxy(&variables);
            assert_eq!(way(&proxy, "http://reg.io/v2/"), http, "{variables:?}");
            assert_eq!(way(&proxy, "https://reg.io/v2/"), https, "{variables:?}");
            assert!(!format!("{proxy:?}").contains("hunter"), "{proxy:?}");
        }
    }

    #[test]
    fn this_machine_and_what_is_exempt_are_asked_directly() {
        let proxy = proxy(&[("HTTPS_PROXY", "http://p"), ("NO_PROXY", "10.0.0.0/8,reg.io:5000")]);
        for (to, direct) in [
            ("https://localhost:5000/", true),
            ("https://127.9.9.9/", true),
            ("https://[::1]:5000/", true),
            ("https://10.1.2.3/", true),
            ("https://11.1.2.3/", false),
            ("https://reg.io:5000/", true),
            ("https://reg.io/", false),
        ] {
            assert_eq!(way(&proxy, to) == "direct", direct, "{to}");
        }
    }
}

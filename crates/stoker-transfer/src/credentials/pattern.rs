//! Whether a login is for an image: the kubelet's rules, as a pattern that is read once.
//!
//! `host`, `host:port`, `host/path`, each with or without `https://`, with `*` inside the labels of the host.

use crate::reference::Reference;

const HUB: &str = "docker.io";
const LONGEST: usize = 1024;

/// Where a login may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// Host, port and path, for the order among patterns.
    text: String,
    host: String,
    port: String,
    /// Empty, or with its leading slash.
    path: String,
}

impl Pattern {
    /// Reads what stands before a login in a secret; `None` where it can be no place.
    pub(crate) fn read(written: &str) -> Option<Self> {
        let rest = written.strip_prefix("https://").or_else(|| written.strip_prefix("http://")).unwrap_or(written);
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        // The address of an API version is the address of the registry.
        let path = path.strip_prefix("/v2/").or_else(|| path.strip_prefix("/v1/")).map_or(path, |_| &path[3..]);
        let path = if path == "/" { "" } else { path };
        let (host, port) = split_port(authority);
        // The Hub is known by the name under which it once kept its index.
        let host = match host.to_ascii_lowercase().as_str() {
            "index.docker.io" => HUB.to_owned(),
            other => other.to_owned(),
        };
        if host.is_empty() || authority.contains('@') || written.len() > LONGEST {
            return None;
        }
        let colon = if port.is_empty() { "" } else { ":" };
        Some(Self { text: format!("{host}{colon}{port}{path}"), host, port: port.to_owned(), path: path.to_owned() })
    }

    /// The order among patterns is that of their text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Host, port and path, from which [`Pattern::from_parts`] makes the same pattern. A text would not do: what looks like the
    /// address of an API version is cut off when a pattern is read.
    pub(crate) fn parts(&self) -> (&str, &str, &str) {
        (&self.host, &self.port, &self.path)
    }

    /// The pattern with these parts; `None` where they can be none.
    pub(crate) fn from_parts(host: String, port: String, path: String) -> Option<Self> {
        let colon = if port.is_empty() { "" } else { ":" };
        let text = format!("{host}{colon}{port}{path}");
        (!host.is_empty() && text.len() <= LONGEST).then_some(Self { text, host, port, path })
    }

    /// The one registry that the pattern can fit, as images name it; none where its host has a star.
    pub(crate) fn registry(&self) -> Option<String> {
        let colon = if self.port.is_empty() { "" } else { ":" };
        (!self.host.contains('*')).then(|| format!("{}{colon}{}", self.host, self.port))
    }

    /// A number that orders patterns which fit one image as their texts do: by how much of the host is written out before the
    /// first star, and then by the length of the path. Only patterns with a star at the same place may have the same number.
    pub(crate) fn closeness(&self) -> u32 {
        let literal = self.host.find('*').unwrap_or(self.host.len() + 1);
        // Both are below the longest length of a pattern.
        u32::try_from(literal * 2 * LONGEST + self.path.len()).unwrap_or(u32::MAX)
    }

    /// Whether the login may be sent to this image's registry: the port is the same, the host has as many labels and each
    /// fits, the path is how the repository begins.
    pub(crate) fn matches(&self, image: &Reference) -> bool {
        let (host, port) = split_port(image.registry());
        let (ours, theirs) = (self.host.split('.'), host.split('.'));
        port == self.port
            && ours.clone().count() == theirs.clone().count()
            && ours.zip(theirs).all(|(glob, label)| fits(glob.as_bytes(), label.as_bytes()))
            && format!("/{}", image.repository()).starts_with(&self.path)
    }
}

/// Host and port of `host`, `host:port` or `[v6]:port`.
fn split_port(authority: &str) -> (&str, &str) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') && (!host.contains(':') || host.ends_with(']')) => (host, port),
        _ => (authority, ""),
    }
}

/// Whether a label is of this shape: `*` is any number of characters. Looks at each byte of the label at most
/// once for each star, whoever wrote the pattern.
fn fits(glob: &[u8], label: &[u8]) -> bool {
    let (mut g, mut l) = (0, 0);
    // Where to go on when what came after the last star does not fit.
    let mut back: Option<(usize, usize)> = None;
    while l < label.len() {
        match glob.get(g) {
            Some(b'*') => {
                back = Some((g + 1, l));
                g += 1;
            }
            Some(byte) if Some(byte) == label.get(l) => (g, l) = (g + 1, l + 1),
            _ => match back {
                Some((after, from)) => {
                    back = Some((after, from + 1));
                    (g, l) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    glob.iter().skip(g).all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of Kubernetes' documentation of image pull secrets, and the corners of the kubelet's own rules.
    #[test]
    fn as_the_kubelet_matches() {
        for (pattern, image, fits) in [
            ("reg.example.com", "reg.example.com/a", true),
            ("https://reg.example.com", "reg.example.com/a", true),
            ("http://reg.example.com/", "reg.example.com/a", true),
            ("https://reg.example.com/v1/", "reg.example.com/a", true),
            ("https://reg.example.com/v2/", "reg.example.com/a", true),
            ("REG.example.com", "reg.example.com/a", true),
            ("reg.example.com", "www.example.com/a", false),
            ("example.com", "reg.example.com/a", false),
            ("reg.example.com", "example.com/a", false),
            // Ports.
            ("reg.example.com:5000", "reg.example.com:5000/a", true),
            ("reg.example.com:5000", "reg.example.com/a", false),
            ("reg.example.com", "reg.example.com:5000/a", false),
            ("reg.example.com:443", "reg.example.com/a", false),
            ("*.example.com:5000", "reg.example.com:5000/a", true),
            ("localhost:5000", "localhost:5000/a", true),
            ("127.0.0.1:5000", "127.0.0.1:5001/a", false),
            ("[::1]:5000", "[::1]:5000/a", true),
            ("[::1]", "[::1]:5000/a", false),
            ("[::1]", "[::1]/a", true),
            // Paths: how the repository begins.
            ("reg.example.com/team", "reg.example.com/team/app", true),
            ("reg.example.com/v2/team", "reg.example.com/team/app", true),
            ("reg.example.com/team/app", "reg.example.com/team", false),
            ("reg.example.com/team", "reg.example.com/other/app", false),
            ("reg.example.com/v1app", "reg.example.com/v1app", true),
            // Wildcards, one label each.
            ("*.example.com", "reg.example.com/a", true),
            ("*.example.com", "a.b.example.com/a", false),
            ("*.*.example.com", "a.b.example.com/a", true),
            ("*.*.example.com", "reg.example.com/a", false),
            ("*.example.com", "example.com/a", false),
            ("reg.*.com", "reg.example.com/a", true),
            ("*.io", "reg.example.io/a", false),
            ("pre*.example.com", "prefix.example.com/a", true),
            ("pre*x.example.com", "prefiy.example.com/a", false),
            ("*", "reg.example.com/a", false),
            ("*.example.com/team", "reg.example.com/team/app", true),
            // The Hub.
            ("https://index.docker.io/v1/", "nginx", true),
            ("index.docker.io", "team/app", true),
            ("docker.io", "nginx", true),
            ("docker.io/library", "nginx", true),
            ("docker.io/team", "nginx", false),
            ("https://index.docker.io/v1/", "reg.example.com/a", false),
            ("reg.example.com", "nginx", false),
        ] {
            let image: Reference = image.parse().unwrap();
            let read = Pattern::read(pattern).unwrap();
            assert_eq!(read.matches(&image), fits, "{pattern} for {image}");
            let may_fit = read.registry().is_none_or(|registry| registry == image.registry());
            assert!(may_fit || !fits, "{pattern} is not looked for with {image}");
            assert_eq!(read.registry().is_none(), pattern.contains('*'));
        }
    }

    #[test]
    fn the_closer_of_two_patterns_is_the_greater_text() {
        let written = ["*.*.com", "*.example.com", "r*.example.com", "reg.*.com", "reg.example.com"];
        let paths = ["", "/team", "/team/app"];
        let all: Vec<Pattern> = written
            .iter()
            .flat_map(|host| paths.map(|path| Pattern::read(&format!("{host}{path}")).unwrap()))
            .collect();
        for a in &all {
            for b in &all {
                let same_star = a.host.find('*') == b.host.find('*') && a.host != b.host;
                assert!(same_star || a.closeness().cmp(&b.closeness()) == a.text.cmp(&b.text), "{} {}", a.text, b.text);
            }
        }
    }

    #[test]
    fn what_can_be_no_place_is_none() {
        for written in ["", "https://", "/team", "https://user:password@reg.io", "?", &"a".repeat(2000)] {
            assert_eq!(Pattern::read(written), None, "{written}");
        }
    }

    #[test]
    fn stars_do_not_make_it_slow() {
        let (glob, label) = ("a*".repeat(400) + "b", "a".repeat(60_000));
        assert!(!fits(glob.as_bytes(), label.as_bytes()));
    }
}

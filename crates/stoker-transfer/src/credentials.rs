//! Which logins to try for an image.
//!
//! The bytes of pull secrets come in, in their order, and what the node's credential provider plugins said; for an image
//! the logins that fit go out, matched with the kubelet's rules, so that what works for a pod works here. A secret that
//! cannot be read is refused with what is wrong with it, never with what is in it. It speaks to no registry.

use std::fmt;

use crate::login::Login;
use crate::reference::Reference;

pub(crate) mod config;
mod pattern;
mod permission;
mod provider;
mod sealed;
mod trial;

pub use self::config::{Malformed, SecretKind};
use self::pattern::Pattern;
pub use self::permission::Permission;
pub use self::provider::{ConfigError, Provided, Providers};
pub use self::sealed::{LoginEntry, NodeKey, NotAPublicKey, NotOpened, PublicKey, TooLong};
pub use self::trial::Logins;

/// More logins than this are not tried for one image, besides those that an order names: each costs a request, and some
/// registries lock out who fails often.
pub const MOST_TRIED: usize = 20;

/// The logins of any number of pull secrets, and behind them those of the node's plugins.
#[derive(Clone, Default)]
pub struct Keyring {
    /// Those that an order names, in its order; it names few of each namespace.
    named: Vec<LoginEntry>,
    /// In the order in which they came.
    entries: Vec<(Pattern, Login)>,
    provided: Vec<(Pattern, Login)>,
}

impl Keyring {
    /// A ring without keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the logins of one pull secret behind those that are there; none of them where it cannot be read.
    pub fn add(&mut self, kind: SecretKind, bytes: &[u8]) -> Result<(), Malformed> {
        self.entries.extend(config::read(kind, bytes)?);
        Ok(())
    }

    /// Adds a login that an order names. They are tried first, in the order in which they are added: it was made so that the
    /// logins of one namespace keep those of another from nothing.
    pub fn name(&mut self, entry: LoginEntry) {
        self.named.push(entry);
    }

    /// Adds what plugins gave. They come behind all secrets, whenever they are added: a job's own logins are meant for it.
    pub fn provide(&mut self, provided: Vec<Provided>) {
        self.provided.extend(provided.into_iter().map(|Provided { pattern, login }| (pattern, login)));
    }

    /// The logins for this image: those that the order names, then those of secrets, then those of plugins, of the last two
    /// the most specific pattern first and then in the order they came; nobody last.
    pub fn logins(&self, image: &Reference) -> Logins {
        let mut logins: Vec<Login> = Vec::new();
        for LoginEntry { login, .. } in self.named.iter().filter(|entry| entry.fits(image)) {
            if !logins.contains(login) {
                logins.push(login.clone());
            }
        }
        let most = logins.len() + MOST_TRIED;
        for entries in [&self.entries, &self.provided] {
            let mut fitting: Vec<&(Pattern, Login)> =
                entries.iter().filter(|(pattern, _)| pattern.matches(image)).collect();
            // As the kubelet sorts: among patterns that fit one image the longer text is the greater, and a name is
            // greater than a wildcard. Equal ones keep their order.
            fitting.sort_by(|(a, _), (b, _)| b.text().cmp(a.text()));
            for (_, login) in fitting {
                if logins.len() < most && !logins.contains(login) {
                    logins.push(login.clone());
                }
            }
        }
        Logins::new(logins)
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keyring({} logins)", self.named.len() + self.entries.len() + self.provided.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(secrets: &[&[(&str, &str)]]) -> Keyring {
        let mut ring = Keyring::new();
        for secret in secrets {
            let entries: Vec<String> = secret
                .iter()
                .map(|(place, user)| format!(r#""{place}": {{"username": "{user}", "password": "p"}}"#))
                .collect();
            ring.add(SecretKind::DockerCfg, format!("{{{}}}", entries.join(",")).as_bytes()).unwrap();
        }
        ring
    }

    fn tried(ring: &Keyring, image: &str) -> Vec<String> {
        let logins = ring.logins(&image.parse().unwrap());
        logins.candidates().map(|login| login.map_or("nobody".into(), |login| login.username.clone())).collect()
    }

    #[test]
    fn the_most_specific_comes_first_and_nobody_last() {
        let ring = ring(&[&[
            ("reg.example.com", "host"),
            ("*.example.com", "wild"),
            ("reg.example.com/team/app", "app"),
            ("https://reg.example.com/v2/team", "team"),
            ("other.example.com", "other"),
        ]]);
        assert_eq!(tried(&ring, "reg.example.com/team/app:v1"), ["app", "team", "host", "wild", "nobody"]);
        assert_eq!(tried(&ring, "reg.example.com/team/cart"), ["team", "host", "wild", "nobody"]);
        assert_eq!(tried(&ring, "elsewhere.org/team/app"), ["nobody"]);
    }

    #[test]
    fn equal_patterns_keep_the_order_of_the_secrets_and_equal_logins_are_tried_once() {
        let ring = ring(&[
            &[("reg.io", "z-first")],
            &[("reg.io", "a-second"), ("reg.io/app", "z-first")],
            &[("https://reg.io/", "third")],
        ]);
        assert_eq!(tried(&ring, "reg.io/app"), ["z-first", "a-second", "third", "nobody"]);
    }

    #[test]
    fn what_plugins_give_comes_behind_all_secrets() {
        let mut ring = ring(&[&[("*.example.com", "secret")]]);
        let provided = |place: &str, user: &str| Provided {
            pattern: Pattern::read(place).unwrap(),
            login: Login { username: user.into(), password: "p".into() },
        };
        ring.provide(vec![provided("*.example.com", "wide"), provided("reg.example.com/app", "narrow")]);
        ring.add(SecretKind::DockerCfg, br#"{"*.example.com": {"username": "late", "password": "p"}}"#).unwrap();
        assert_eq!(tried(&ring, "reg.example.com/app"), ["secret", "late", "narrow", "wide", "nobody"]);
    }

    #[test]
    fn what_an_order_names_is_tried_first_in_its_order_where_it_fits() {
        let mut ring = ring(&[&[("reg.io/app", "secret")]]);
        let places = [("reg.io", "z"), ("reg.io/app", "a"), ("other.io", "elsewhere"), ("reg.io", "z")];
        for (place, user) in places {
            let text = format!(r#"{{"{place}": {{"username": "{user}", "password": "p"}}}}"#);
            LoginEntry::read(SecretKind::DockerCfg, text.as_bytes())
                .unwrap()
                .into_iter()
                .for_each(|entry| ring.name(entry));
        }
        assert_eq!(tried(&ring, "reg.io/app"), ["z", "a", "secret", "nobody"]);
    }

    #[test]
    fn not_more_than_a_bounded_number_is_tried() {
        let names: Vec<String> = (0..100).map(|n| format!("user{n}")).collect();
        let secrets: Vec<[(&str, &str); 1]> = names.iter().map(|name| [("reg.io", name.as_str())]).collect();
        let secrets: Vec<&[(&str, &str)]> = secrets.iter().map(<[_; 1]>::as_slice).collect();
        assert_eq!(tried(&ring(&secrets), "reg.io/app").len(), MOST_TRIED + 1);
    }

    #[test]
    fn nothing_shows_a_password() {
        let mut ring = Keyring::new();
        ring.add(SecretKind::DockerCfg, br#"{"reg.io": {"username": "ada", "password": "hunter2"}}"#).unwrap();
        let logins = ring.logins(&"reg.io/a".parse().unwrap());
        assert!(!format!("{ring:?} {logins:?}").contains("hunter2"));
    }
}

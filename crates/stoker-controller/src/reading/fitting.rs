//! Which logins of a Secret are for which images. The entries of a Secret and the images that it is named for come in; of each image the
//! few logins that may be tried go out, and nothing else of the Secret. This is done where Secrets are read, so that a Secret with
//! many entries, or large ones, holds up no plan.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use stoker_core::world::MOST_LOGINS;
use stoker_core::{Found, Key, LoginId, Offer, Reference};
use stoker_transfer::LoginEntry;

/// The logins of a Secret that may be used.
#[derive(Debug, Default)]
pub(crate) struct Fitting {
    /// What the Secret holds for each image.
    pub(crate) found: BTreeMap<Key, Found>,
    /// The logins that are named there.
    pub(crate) logins: BTreeMap<LoginId, LoginEntry>,
}

/// The entries of a Secret, those that say closest where they belong first.
struct Entries {
    all: Vec<LoginEntry>,
    /// Those for one registry, by its name.
    by_registry: BTreeMap<String, Vec<usize>>,
    /// Those for any registry of a shape. None of them says closer where it belongs than one for the registry itself.
    of_shapes: Vec<usize>,
}

impl Entries {
    fn new(mut all: Vec<LoginEntry>) -> Self {
        all.sort_by_key(|entry| Reverse(entry.closeness()));
        let (mut by_registry, mut of_shapes): (BTreeMap<String, Vec<usize>>, _) = (BTreeMap::new(), Vec::new());
        for (at, entry) in all.iter().enumerate() {
            match entry.registry() {
                Some(registry) => by_registry.entry(registry).or_default().push(at),
                None => of_shapes.push(at),
            }
        }
        Self { all, by_registry, of_shapes }
    }

    /// The entries for an image, the closest first.
    fn of<'a>(&'a self, image: &'a Reference) -> impl Iterator<Item = &'a LoginEntry> + 'a {
        let own = self.by_registry.get(image.registry()).into_iter().flatten();
        let entries = own.chain(&self.of_shapes).filter_map(|at| self.all.get(*at));
        entries.filter(|entry| entry.fits(image))
    }
}

impl Fitting {
    /// Looks for the logins of each image. The salt is what no reader of names of logins knows.
    pub(crate) fn new(entries: Vec<LoginEntry>, salt: &str, images: &BTreeMap<Key, Reference>) -> Self {
        // Looked at once: that costs as much as the login is long.
        let checked = entries.into_iter().map(|entry| (entry.check().err(), entry));
        let (long, short): (Vec<_>, Vec<_>) = checked.partition(|(too_long, _)| too_long.is_some());
        let too_long = long.iter().find_map(|(too_long, _)| *too_long);
        let [long, short] = [long, short].map(|some| Entries::new(some.into_iter().map(|(_, entry)| entry).collect()));
        let mut fitting = Self::default();
        for (key, image) in images {
            let mut offers: Vec<Offer> = Vec::new();
            for entry in short.of(image) {
                let id = LoginId::new(&entry.name(salt));
                // No more than these are ever tried.
                if offers.len() < MOST_LOGINS && !offers.iter().any(|offer| offer.id == id) {
                    fitting.logins.entry(id.clone()).or_insert_with(|| entry.clone());
                    offers.push(Offer { id, closeness: entry.closeness() });
                }
                if offers.len() == MOST_LOGINS {
                    break;
                }
            }
            let found = match too_long.filter(|_| offers.is_empty() && long.of(image).next().is_some()) {
                Some(too_long) => Found::Unusable(too_long.to_string()),
                None => Found::Logins(offers),
            };
            fitting.found.insert(*key, found);
        }
        fitting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_transfer::SecretKind;

    fn images(names: &[&str]) -> BTreeMap<Key, Reference> {
        let images = names.iter().map(|name| name.parse::<Reference>().unwrap());
        images.map(|image| (image.key(), image)).collect()
    }

    /// The users of the logins for an image, where all entries of a Secret have a user of their own and this length.
    fn fitting(entries: &[(&str, &str, usize)], image: &str) -> (Found, Vec<String>) {
        let read = |(place, user, length): &(&str, &str, usize)| {
            let entry = serde_json::json!({ *place: { "username": user, "password": "p".repeat(*length) } });
            LoginEntry::read(SecretKind::DockerCfg, entry.to_string().as_bytes()).unwrap()
        };
        let all: Vec<LoginEntry> = entries.iter().flat_map(read).collect();
        let name = |entry: &LoginEntry| LoginId::new(&entry.name("uid"));
        let users: BTreeMap<LoginId, &str> = all.iter().map(name).zip(entries.iter().map(|entry| entry.1)).collect();
        let fitting = Fitting::new(all, "uid", &images(&[image]));
        let found = fitting.found.into_values().next().unwrap();
        let offers = if let Found::Logins(offers) = &found { offers.as_slice() } else { &[] };
        assert_eq!(offers.len(), fitting.logins.len(), "nothing else of the Secret is kept");
        let named = offers.iter().map(|offer| users[&offer.id].to_string());
        (found.clone(), named.collect())
    }

    #[test]
    fn the_closest_logins_of_an_image_come_first_and_there_are_few() {
        let entries = [
            ("*.io", "any", 1),
            ("reg.io", "first", 1),
            ("reg.io", "second", 1),
            ("other.io", "other", 1),
            ("reg.io:5000", "port", 1),
            ("reg.io/team", "team", 1),
            ("reg.*", "shape", 1),
        ];
        let users = |image: &str| fitting(&entries, image).1;
        assert_eq!(users("reg.io/team/web:1"), ["team", "first", "second", "shape"]);
        assert_eq!(users("reg.io/web:1"), ["first", "second", "shape", "any"]);
        assert_eq!(users("reg.io:5000/web:1"), ["port"]);
        assert_eq!(users("other.io/web:1"), ["other", "any"]);
        assert_eq!(users("elsewhere.com/web:1"), Vec::<String>::new());
    }

    #[test]
    fn a_login_that_is_too_long_is_said_where_no_other_fits() {
        let entries = [("reg.io", "long", 9_000), ("reg.io/team", "short", 1), ("*.com", "long too", 9_000)];
        let too_long = Found::Unusable("a login of it is longer than 8 KiB".into());
        assert_eq!(fitting(&entries, "reg.io/web:1").0, too_long);
        assert_eq!(fitting(&entries, "reg.com/web:1").0, too_long);
        assert_eq!(fitting(&entries, "reg.io/team/web:1").1, ["short"]);
        assert_eq!(fitting(&entries, "other.io/web:1").0, Found::Logins(Vec::new()));
    }

    /// What a Secret of a megabyte leaves behind does not depend on how much is in it.
    #[test]
    fn a_secret_with_a_thousand_entries_gives_an_image_no_more_than_are_tried() {
        let entries: serde_json::Map<_, _> = (0..1_000)
            .map(|n| (format!("reg.io/{n}"), serde_json::json!({ "username": "eve", "password": "p".repeat(900) })))
            .chain([("*.io".to_string(), serde_json::json!({ "username": "ada", "password": "p" }))])
            .skip(1)
            .collect();
        let text = serde_json::Value::Object(entries).to_string();
        let all = LoginEntry::read(SecretKind::DockerCfg, text.as_bytes()).unwrap();
        let names: Vec<String> = (0..100).map(|n| format!("reg.io/{n}/web:1")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let fitting = Fitting::new(all, "uid", &images(&names));
        assert_eq!(fitting.found.len(), 100);
        assert!(fitting.logins.len() <= 100 * MOST_LOGINS, "{}", fitting.logins.len());
        for found in fitting.found.values() {
            assert!(matches!(found, Found::Logins(offers) if (1..=MOST_LOGINS).contains(&offers.len())), "{found:?}");
        }
    }
}

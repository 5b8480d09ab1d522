//! Pull secrets of running jobs: what was read comes in, names of logins go to the World, and logins go into orders, sealed to
//! the node that is ordered to pull. Contents are kept only while orders wait to be written, and nothing shows them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use stoker_api::native::SealedLogin;
use stoker_api::native::from_core::LoginChanges;
use stoker_core::world::WantedSecret;
use stoker_core::{Event, Found, LoginId, Offer, Reference, SecretId};
use stoker_transfer::{LoginEntry, PublicKey};
use tokio::sync::{mpsc, watch};

use crate::reading::Read;

/// The most bytes of sealed logins that one namespace may have on a node, and all together. An API server keeps no object of more
/// than 1.5 MiB, and the orders and reports of the node are in the same one.
const MOST_OF_NAMESPACE: usize = 64 * 1024;
const MOST_OF_NODE: usize = 256 * 1024;

/// The Secrets that running jobs name.
pub(crate) struct Secrets {
    wanted: BTreeMap<SecretId, WantedSecret>,
    /// Which Secret a login is in.
    sources: BTreeMap<LoginId, SecretId>,
    /// What was read just now.
    contents: BTreeMap<SecretId, Content>,
    /// For whoever reads: all of them, and those that are needed now.
    all: watch::Sender<BTreeSet<SecretId>>,
    now: mpsc::UnboundedSender<SecretId>,
    /// What was said of those that could not be read.
    said: BTreeMap<SecretId, String>,
}

/// The logins of a Secret; none where it could not be read.
#[derive(Default)]
struct Content {
    logins: BTreeMap<LoginId, LoginEntry>,
    /// Something was sealed since it was read.
    used: bool,
}

/// The logins in an object, with the name of the key of each and its length.
pub(crate) type Present = BTreeMap<LoginId, (String, usize)>;

impl Secrets {
    pub(crate) fn new(all: watch::Sender<BTreeSet<SecretId>>, now: mpsc::UnboundedSender<SecretId>) -> Self {
        let (wanted, sources) = (BTreeMap::new(), BTreeMap::new());
        Self { wanted, sources, contents: BTreeMap::new(), all, now, said: BTreeMap::new() }
    }

    /// Jobs name these Secrets from now on. What is new among them is read at once.
    pub(crate) fn want(&mut self, wanted: BTreeMap<SecretId, WantedSecret>) {
        if wanted == self.wanted {
            return;
        }
        for (id, WantedSecret { images, since }) in &wanted {
            let all =
                |known: &WantedSecret| images.keys().all(|key| known.images.contains_key(key)) && *since <= known.since;
            if !self.wanted.get(id).is_some_and(all) {
                self.ask(id.clone());
            }
        }
        self.wanted = wanted;
        self.contents.retain(|id, _| self.wanted.contains_key(id));
        self.sources.retain(|_, id| self.wanted.contains_key(id));
        self.said.retain(|id, _| self.wanted.contains_key(id));
        self.all.send_replace(self.wanted.keys().cloned().collect());
    }

    fn ask(&self, id: SecretId) {
        // Who reads ends with the process only.
        let _ = self.now.send(id);
    }

    /// A Secret was read that was asked for at this time. Returns what the World is told.
    pub(crate) fn see(&mut self, id: SecretId, read: Read, asked: Timestamp) -> Option<Event> {
        let images = &self.wanted.get(&id)?.images;
        let everywhere = |found: Found| images.keys().map(|key| (*key, found.clone())).collect();
        let mut content = Content::default();
        let found = match read {
            Read::There { entries, salt } => {
                let entries = entries.into_iter().map(|entry| (LoginId::new(&entry.name(&salt)), entry));
                let entries: Vec<(LoginId, LoginEntry)> = entries.collect();
                let found = images.iter().map(|(key, image)| (*key, fitting(&entries, image))).collect();
                content.logins.extend(entries);
                found
            }
            Read::Missing => everywhere(Found::Missing),
            Read::Forbidden => everywhere(Found::Forbidden),
            Read::Unusable(why) => everywhere(Found::Unusable(why)),
            Read::Failed(why) => {
                if self.said.get(&id) != Some(&why) {
                    tracing::warn!(secret = %id, "cannot be read, trying again: {why}");
                    self.said.insert(id.clone(), why);
                }
                // Orders that wait for it go without; they are written again when it can be read.
                self.contents.insert(id, content);
                return None;
            }
        };
        self.said.remove(&id);
        self.sources.retain(|_, source| *source != id);
        self.sources.extend(content.logins.keys().map(|login| (login.clone(), id.clone())));
        self.contents.insert(id.clone(), content);
        Some(Event::Secret(id, found, asked))
    }

    /// Nothing is to be sealed now. What was used since it was last read may be needed again for the next orders, until it is
    /// read again.
    pub(crate) fn forget(&mut self) {
        self.contents.retain(|_, content| content.used);
    }

    /// Whether a node lacks logins that its orders name. Those of them that can be had are asked for.
    pub(crate) fn lacks(&self, named: &[LoginId], key: Option<&PublicKey>, present: &Present) -> bool {
        let Some(name) = key.map(PublicKey::name) else { return false };
        let there = |id: &&LoginId| present.get(*id).is_some_and(|(key, _)| *key == name);
        let sources: BTreeSet<Option<&SecretId>> =
            named.iter().filter(|id| !there(id)).map(|id| self.sources.get(id)).collect();
        sources.iter().flatten().for_each(|id| self.ask((*id).clone()));
        !sources.is_empty()
    }

    /// The changes of a node's logins that make it have those that its orders name, and no others. An error while a Secret must be
    /// read for it first; that was asked for then.
    pub(crate) fn changes(
        &mut self,
        node: &str,
        named: &[LoginId],
        key: Option<&PublicKey>,
        present: &Present,
    ) -> Result<LoginChanges, NotRead> {
        let name = key.map(PublicKey::name);
        let is_there = |id: &LoginId| present.get(id).is_some_and(|(key, _)| Some(key) == name.as_ref());
        let unread: BTreeSet<&SecretId> = named
            .iter()
            .filter(|id| key.is_some() && !is_there(id))
            .filter_map(|id| self.sources.get(id))
            .filter(|source| !self.contents.contains_key(source))
            .collect();
        if !unread.is_empty() {
            unread.into_iter().for_each(|id| self.ask(id.clone()));
            return Err(NotRead);
        }
        let gone = present.keys().filter(|id| !named.contains(id) || !is_there(id));
        let mut changes: LoginChanges = gone.map(|id| (id.clone(), None)).collect();
        let Some((key, name)) = key.zip(name.clone()) else { return Ok(changes) };
        let mut room = Room::default();
        for (id, (_, len)) in present.iter().filter(|(id, _)| !changes.contains_key(id)) {
            room.take(self.sources.get(id), *len);
        }
        for id in named.iter().filter(|id| !is_there(id)) {
            let Some(source) = self.sources.get(id) else { continue };
            let Some(content) = self.contents.get_mut(source) else { continue };
            content.used = true;
            let Some(entry) = content.logins.get(id) else { continue };
            if !room.has(source, entry.sealed_len()) {
                tracing::warn!(
                    node,
                    secret = %source,
                    "a login is left out: the logins of a namespace may take {} KiB on a node, all together {} KiB",
                    MOST_OF_NAMESPACE / 1024,
                    MOST_OF_NODE / 1024
                );
                continue;
            }
            if let Ok(sealed) = entry.seal(key) {
                room.take(Some(source), sealed.len());
                changes.insert(id.clone(), Some(SealedLogin { key: name.clone(), sealed }));
            }
        }
        Ok(changes)
    }
}

/// A Secret has to be read first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotRead;

/// The logins for an image, in the order of the Secret.
fn fitting(entries: &[(LoginId, LoginEntry)], image: &Reference) -> Found {
    let fitting = || entries.iter().filter(|(_, entry)| entry.fits(image));
    let short: Vec<Offer> = fitting()
        .filter(|(_, entry)| entry.check().is_ok())
        .map(|(id, entry)| Offer { id: id.clone(), closeness: entry.closeness() })
        .collect();
    match fitting().find_map(|(_, entry)| entry.check().err()) {
        Some(too_long) if short.is_empty() => Found::Unusable(too_long.to_string()),
        _ => Found::Logins(short),
    }
}

/// How many bytes the logins of a node take, by namespace.
#[derive(Default)]
struct Room {
    all: usize,
    by_namespace: BTreeMap<String, usize>,
}

impl Room {
    fn has(&self, source: &SecretId, len: usize) -> bool {
        let own = self.by_namespace.get(&source.namespace).copied().unwrap_or_default();
        own + len <= MOST_OF_NAMESPACE && self.all + len <= MOST_OF_NODE
    }

    fn take(&mut self, source: Option<&SecretId>, len: usize) {
        self.all += len;
        if let Some(source) = source {
            *self.by_namespace.entry(source.namespace.clone()).or_default() += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_transfer::{NodeKey, SecretKind};

    fn secret(namespace: &str) -> SecretId {
        SecretId::new(namespace, "login")
    }

    fn image(name: &str) -> Reference {
        format!("reg.io/{name}:v1").parse().unwrap()
    }

    fn there(logins: &[(&str, String)]) -> Read {
        let entries = logins.iter().flat_map(|(user, password)| {
            let text = format!(r#"{{"reg.io": {{"username": "{user}", "password": "{password}"}}}}"#);
            LoginEntry::read(SecretKind::DockerCfg, text.as_bytes()).unwrap()
        });
        Read::There { entries: entries.collect(), salt: "uid".into() }
    }

    /// With the Secrets of these namespaces wanted for one image.
    fn secrets(namespaces: &[&str]) -> (Secrets, mpsc::UnboundedReceiver<SecretId>) {
        let (now, asked) = mpsc::unbounded_channel();
        let mut secrets = Secrets::new(watch::Sender::new(BTreeSet::new()), now);
        let wanted = WantedSecret { images: BTreeMap::from([(image("web").key(), image("web"))]), since: None };
        secrets.want(namespaces.iter().map(|namespace| (secret(namespace), wanted.clone())).collect());
        (secrets, asked)
    }

    fn seen(secrets: &mut Secrets, id: SecretId, read: Read) -> Option<Event> {
        secrets.see(id, read, Timestamp::UNIX_EPOCH)
    }

    fn names(event: Option<Event>) -> Vec<LoginId> {
        let Some(Event::Secret(_, found, _)) = event else { panic!("{event:?}") };
        match found.into_values().next() {
            Some(Found::Logins(offers)) => offers.into_iter().map(|offer| offer.id).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_named_is_sealed_once_and_what_is_not_goes() {
        let (mut secrets, mut asked) = secrets(&["shop"]);
        assert_eq!(asked.try_recv().unwrap(), secret("shop"), "read at once");
        let names = names(seen(&mut secrets, secret("shop"), there(&[("ada", "hunter2".into())])));
        let (key, other) = (NodeKey::generate(), NodeKey::generate());
        let present = Present::from([(LoginId::new("old"), (key.public().name(), 10))]);
        let changes = secrets.changes("n1", &names, Some(&key.public()), &present).unwrap();
        assert_eq!(changes[&LoginId::new("old")], None);
        let login = changes[&names[0]].clone().unwrap();
        assert!(key.open(&login.sealed).is_ok() && other.open(&login.sealed).is_err());
        assert!(!format!("{changes:?}").contains("hunter2"));
        // It is there: nothing changes, and nothing need be known of it.
        let present = Present::from([(names[0].clone(), (key.public().name(), login.sealed.len()))]);
        secrets.contents.clear();
        assert_eq!(secrets.changes("n1", &names, Some(&key.public()), &present), Ok(LoginChanges::new()));
        assert!(asked.try_recv().is_err());
        // Under another key it is sealed again, after it was read again.
        assert_eq!(secrets.changes("n1", &names, Some(&other.public()), &present), Err(NotRead));
        assert_eq!(asked.try_recv().unwrap(), secret("shop"));
        seen(&mut secrets, secret("shop"), there(&[("ada", "hunter2".into())]));
        let changes = secrets.changes("n1", &names, Some(&other.public()), &present).unwrap();
        assert!(other.open(&changes[&names[0]].clone().unwrap().sealed).is_ok());
    }

    #[test]
    fn contents_are_forgotten_when_nothing_waits_for_them() {
        let (mut secrets, _asked) = secrets(&["shop"]);
        let names = names(seen(&mut secrets, secret("shop"), there(&[("ada", "p".into())])));
        secrets.forget();
        assert!(secrets.contents.is_empty());
        seen(&mut secrets, secret("shop"), there(&[("ada", "p".into())]));
        secrets.changes("n1", &names, Some(&NodeKey::generate().public()), &Present::new()).unwrap();
        secrets.forget();
        assert_eq!(secrets.contents.len(), 1, "the next orders may need it");
        seen(&mut secrets, secret("shop"), there(&[("ada", "p".into())]));
        secrets.forget();
        assert!(secrets.contents.is_empty(), "it was not needed since then");
        secrets.want(BTreeMap::new());
        assert!(secrets.sources.is_empty());
    }

    #[test]
    fn a_secret_is_read_at_once_for_each_job_that_begins() {
        let (mut secrets, mut asked) = secrets(&["shop"]);
        asked.try_recv().unwrap();
        let mut wanted = secrets.wanted.clone();
        secrets.want(wanted.clone());
        assert!(asked.try_recv().is_err());
        wanted.get_mut(&secret("shop")).unwrap().since = Some(Timestamp::UNIX_EPOCH);
        secrets.want(wanted.clone());
        assert_eq!(asked.try_recv().unwrap(), secret("shop"));
        wanted.get_mut(&secret("shop")).unwrap().images.insert(image("db").key(), image("db"));
        secrets.want(wanted);
        assert_eq!(asked.try_recv().unwrap(), secret("shop"));
    }

    #[test]
    fn one_namespace_does_not_fill_the_object_of_a_node() {
        let (mut secrets, _asked) = secrets(&["bad", "shop"]);
        let many: Vec<(&str, String)> = (0..40).map(|n| ("eve", format!("{n}{}", "p".repeat(6000)))).collect();
        let mut all = names(seen(&mut secrets, secret("bad"), there(&many)));
        let good = names(seen(&mut secrets, secret("shop"), there(&[("ada", "p".into())])));
        all.extend(good.clone());
        let changes = secrets.changes("n1", &all, Some(&NodeKey::generate().public()), &Present::new()).unwrap();
        let sealed: usize = changes.values().flatten().map(|login| login.sealed.len()).sum();
        assert!(sealed <= MOST_OF_NAMESPACE + 1024, "{sealed}");
        assert!(changes.contains_key(&good[0]), "there is room for the other");
    }

    #[test]
    fn a_secret_that_cannot_be_read_holds_up_nobody() {
        let (mut secrets, _asked) = secrets(&["shop"]);
        let names = names(seen(&mut secrets, secret("shop"), there(&[("ada", "p".into())])));
        secrets.contents.clear();
        let key = NodeKey::generate().public();
        assert_eq!(secrets.changes("n1", &names, Some(&key), &Present::new()), Err(NotRead));
        assert!(seen(&mut secrets, secret("shop"), Read::Failed("no answer".into())).is_none());
        assert_eq!(secrets.changes("n1", &names, Some(&key), &Present::new()), Ok(LoginChanges::new()));
        assert!(seen(&mut secrets, secret("elsewhere"), Read::Missing).is_none(), "nobody asked");
    }

    #[test]
    fn a_login_that_is_too_long_is_said_and_entries_for_other_places_are_not_told() {
        let (mut secrets, _asked) = secrets(&["shop"]);
        let event = seen(&mut secrets, secret("shop"), there(&[("ada", "p".repeat(9000))]));
        let Some(Event::Secret(_, found, _)) = event else { panic!("{event:?}") };
        assert_eq!(found[&image("web").key()], Found::Unusable("a login of it is longer than 8 KiB".into()));
        let text = r#"{"other.io": {"username": "ada", "password": "p"}}"#;
        let entries = LoginEntry::read(SecretKind::DockerCfg, text.as_bytes()).unwrap();
        assert!(names(seen(&mut secrets, secret("shop"), Read::There { entries, salt: "uid".into() })).is_empty());
    }
}

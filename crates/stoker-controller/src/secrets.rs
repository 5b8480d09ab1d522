//! Pull secrets of running jobs: what was read comes in, names of logins go to the World, and logins go into orders, sealed to
//! the node that is ordered to pull. Contents are kept only while orders wait to be written, and nothing shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use stoker_api::native::SealedLogin;
use stoker_api::native::from_core::LoginChanges;
use stoker_core::world::{LOGIN_WEIGHT, ROOM_OF_LOGINS, ROOM_OF_LOGINS_OF_A_NAMESPACE, WantedSecret, WantedSecrets};
use stoker_core::{Event, Found, LoginId, SecretId};
use stoker_transfer::{LoginEntry, PublicKey};
use tokio::sync::{mpsc, watch};

use crate::reading::{Fitting, Read};

/// The Secrets that running jobs name.
pub(crate) struct Secrets {
    wanted: WantedSecrets,
    /// Which Secret a login is in.
    sources: BTreeMap<LoginId, SecretId>,
    /// The same by Secret.
    named: BTreeMap<SecretId, BTreeSet<LoginId>>,
    /// What was read just now.
    contents: BTreeMap<SecretId, Content>,
    /// For whoever reads: all of them, and those that are needed now.
    all: watch::Sender<WantedSecrets>,
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
    pub(crate) fn new(all: watch::Sender<WantedSecrets>, now: mpsc::UnboundedSender<SecretId>) -> Self {
        let (wanted, contents, said) = (WantedSecrets::default(), BTreeMap::new(), BTreeMap::new());
        Self { wanted, sources: BTreeMap::new(), named: BTreeMap::new(), contents, all, now, said }
    }

    /// Jobs name these Secrets from now on. What is new among them is read at once.
    pub(crate) fn want(&mut self, wanted: WantedSecrets) {
        if Arc::ptr_eq(&wanted, &self.wanted) {
            return;
        }
        let old = std::mem::replace(&mut self.wanted, wanted);
        self.contents.retain(|id, _| self.wanted.contains_key(id));
        self.sources.retain(|_, id| self.wanted.contains_key(id));
        self.named.retain(|id, _| self.wanted.contains_key(id));
        self.said.retain(|id, _| self.wanted.contains_key(id));
        // Before anything is asked for: whoever reads looks there for which images.
        self.all.send_replace(self.wanted.clone());
        for (id, wanted) in self.wanted.iter() {
            let all = |known: &Arc<WantedSecret>| {
                let covers = || wanted.images.keys().all(|key| known.images.contains_key(key));
                Arc::ptr_eq(known, wanted) || wanted.since <= known.since && covers()
            };
            if !old.get(id).is_some_and(all) {
                self.ask(id.clone());
            }
        }
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
            Read::There(Fitting { found, logins }) => {
                content.logins = logins;
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
        let logins: BTreeSet<LoginId> = content.logins.keys().cloned().collect();
        self.sources.extend(logins.iter().map(|login| (login.clone(), id.clone())));
        let old = self.named.insert(id.clone(), logins.clone()).unwrap_or_default();
        old.difference(&logins).for_each(|login| {
            self.sources.remove(login);
        });
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

    /// The changes of a node's logins that make it have those that its orders name and that find room, and no others. An error while a
    /// Secret must be read for it first; that was asked for then.
    pub(crate) fn changes(
        &mut self,
        named: &[LoginId],
        key: Option<&PublicKey>,
        present: &Present,
    ) -> Result<Sealed, NotRead> {
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
        let mut sealed = Sealed { changes: gone.map(|id| (id.clone(), None)).collect(), left_out: BTreeSet::new() };
        let Some((key, name)) = key.zip(name.clone()) else { return Ok(sealed) };
        let mut taken = 0;
        for (of_namespace, len, id) in self.by_size(named, |id| present.get(id).filter(|_| is_there(id))) {
            let fits = of_namespace <= ROOM_OF_LOGINS_OF_A_NAMESPACE && taken + len <= ROOM_OF_LOGINS;
            if !fits {
                if is_there(id) {
                    sealed.changes.insert(id.clone(), None);
                }
                sealed.left_out.insert(id.clone());
                continue;
            }
            taken += len;
            let content =
                self.sources.get(id).filter(|_| !is_there(id)).and_then(|source| self.contents.get_mut(source));
            let Some(content) = content else { continue };
            content.used = true;
            if let Some(Ok(boxed)) = content.logins.get(id).map(|entry| entry.seal(key)) {
                sealed.changes.insert(id.clone(), Some(SealedLogin { key: name.clone(), sealed: boxed }));
            }
        }
        Ok(sealed)
    }

    /// The logins that are there or can be sealed, each with what its namespace takes up to it and what it takes itself: whoever has little comes
    /// before whoever has much. So nobody is kept out by a few namespaces that name as much as they may.
    fn by_size<'a>(
        &self,
        named: &'a [LoginId],
        present: impl Fn(&LoginId) -> Option<&'a (String, usize)>,
    ) -> Vec<(usize, usize, &'a LoginId)> {
        let mut namespaces: BTreeMap<Option<&str>, usize> = BTreeMap::new();
        let mut all = Vec::new();
        for id in named {
            let source = self.sources.get(id);
            let entry = || self.contents.get(source?)?.logins.get(id);
            let len = present(id).map(|(_, len)| *len).or_else(|| entry().map(LoginEntry::sealed_len));
            let Some(len) = len.map(|len| len + LOGIN_WEIGHT) else { continue };
            let of_namespace = namespaces.entry(source.map(|source| source.namespace.as_str())).or_default();
            *of_namespace += len;
            all.push((*of_namespace, len, id));
        }
        all.sort_by_key(|(of_namespace, ..)| *of_namespace);
        all
    }
}

/// What a node's logins become.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sealed {
    pub(crate) changes: LoginChanges,
    /// Those that its orders name and for which its object has no room.
    pub(crate) left_out: BTreeSet<LoginId>,
}

/// A Secret has to be read first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotRead;

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_core::Reference;
    use stoker_transfer::{LoginEntry, NodeKey, SecretKind};

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
        Read::There(Fitting::new(entries.collect(), "uid", &wanted().images))
    }

    fn wanted() -> WantedSecret {
        WantedSecret { images: BTreeMap::from([(image("web").key(), image("web"))]), since: None }
    }

    /// With the Secrets of these namespaces wanted for one image.
    fn secrets(namespaces: &[&str]) -> (Secrets, mpsc::UnboundedReceiver<SecretId>) {
        wanting(namespaces.iter().map(|namespace| secret(namespace)))
    }

    fn wanting(ids: impl Iterator<Item = SecretId>) -> (Secrets, mpsc::UnboundedReceiver<SecretId>) {
        let (now, asked) = mpsc::unbounded_channel();
        let mut secrets = Secrets::new(watch::Sender::new(Arc::default()), now);
        secrets.want(Arc::new(ids.map(|id| (id, Arc::new(wanted()))).collect()));
        (secrets, asked)
    }

    fn seen(secrets: &mut Secrets, id: SecretId, read: Read) -> Option<Event> {
        secrets.see(id, read, Timestamp::UNIX_EPOCH)
    }

    /// The changes, where nothing is left out.
    fn changed(
        secrets: &mut Secrets,
        named: &[LoginId],
        key: Option<&PublicKey>,
        present: &Present,
    ) -> Result<LoginChanges, NotRead> {
        let sealed = secrets.changes(named, key, present)?;
        assert!(sealed.left_out.is_empty(), "{:?}", sealed.left_out);
        Ok(sealed.changes)
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
        let changes = changed(&mut secrets, &names, Some(&key.public()), &present).unwrap();
        assert_eq!(changes[&LoginId::new("old")], None);
        let login = changes[&names[0]].clone().unwrap();
        assert!(key.open(&login.sealed).is_ok() && other.open(&login.sealed).is_err());
        assert!(!format!("{changes:?}").contains("hunter2"));
        // It is there: nothing changes, and nothing need be known of it.
        let present = Present::from([(names[0].clone(), (key.public().name(), login.sealed.len()))]);
        secrets.contents.clear();
        assert_eq!(changed(&mut secrets, &names, Some(&key.public()), &present), Ok(LoginChanges::new()));
        assert!(asked.try_recv().is_err());
        // Under another key it is sealed again, after it was read again.
        assert_eq!(changed(&mut secrets, &names, Some(&other.public()), &present), Err(NotRead));
        assert_eq!(asked.try_recv().unwrap(), secret("shop"));
        seen(&mut secrets, secret("shop"), there(&[("ada", "hunter2".into())]));
        let changes = changed(&mut secrets, &names, Some(&other.public()), &present).unwrap();
        assert!(other.open(&changes[&names[0]].clone().unwrap().sealed).is_ok());
    }

    #[test]
    fn contents_are_forgotten_when_nothing_waits_for_them() {
        let (mut secrets, _asked) = secrets(&["shop"]);
        let names = names(seen(&mut secrets, secret("shop"), there(&[("ada", "p".into())])));
        secrets.forget();
        assert!(secrets.contents.is_empty());
        seen(&mut secrets, secret("shop"), there(&[("ada", "p".into())]));
        changed(&mut secrets, &names, Some(&NodeKey::generate().public()), &Present::new()).unwrap();
        secrets.forget();
        assert_eq!(secrets.contents.len(), 1, "the next orders may need it");
        seen(&mut secrets, secret("shop"), there(&[("ada", "p".into())]));
        secrets.forget();
        assert!(secrets.contents.is_empty(), "it was not needed since then");
        secrets.want(WantedSecrets::default());
        assert!(secrets.sources.is_empty() && secrets.named.is_empty());
    }

    #[test]
    fn a_secret_is_read_at_once_for_each_job_that_begins() {
        let (mut secrets, mut asked) = secrets(&["shop"]);
        asked.try_recv().unwrap();
        let mut wanted = BTreeMap::clone(&secrets.wanted);
        secrets.want(Arc::new(wanted.clone()));
        assert!(asked.try_recv().is_err());
        Arc::make_mut(wanted.get_mut(&secret("shop")).unwrap()).since = Some(Timestamp::UNIX_EPOCH);
        secrets.want(Arc::new(wanted.clone()));
        assert_eq!(asked.try_recv().unwrap(), secret("shop"));
        Arc::make_mut(wanted.get_mut(&secret("shop")).unwrap()).images.insert(image("db").key(), image("db"));
        secrets.want(Arc::new(wanted));
        assert_eq!(asked.try_recv().unwrap(), secret("shop"));
    }

    /// Ten Secrets of a namespace with four large logins each, as they are named.
    fn large(secrets: &mut Secrets, namespace: &str) -> Vec<LoginId> {
        let mut all = Vec::new();
        for n in 0..10 {
            let logins = [0, 1, 2, 3].map(|m| ("eve", format!("{namespace}{n}{m}{}", "p".repeat(6000))));
            all.extend(names(seen(secrets, SecretId::new(namespace, format!("login-{n}")), there(&logins))));
        }
        assert_eq!(all.len(), 40);
        all
    }

    fn many(namespace: &str) -> impl Iterator<Item = SecretId> + use<> {
        let namespace = namespace.to_string();
        (0..10).map(move |n| SecretId::new(&*namespace, format!("login-{n}")))
    }

    fn bytes(changes: &LoginChanges) -> usize {
        changes.values().flatten().map(|login| login.sealed.len() + LOGIN_WEIGHT).sum()
    }

    #[test]
    fn one_namespace_does_not_fill_the_object_of_a_node() {
        let (mut secrets, _asked) = wanting(many("bad").chain([secret("shop")]));
        let mut all = large(&mut secrets, "bad");
        let good = names(seen(&mut secrets, secret("shop"), there(&[("ada", "p".into())])));
        all.extend(good.clone());
        let Sealed { changes, left_out } =
            secrets.changes(&all, Some(&NodeKey::generate().public()), &Present::new()).unwrap();
        assert!(bytes(&changes) <= ROOM_OF_LOGINS_OF_A_NAMESPACE + 1024, "{}", bytes(&changes));
        assert!(changes.contains_key(&good[0]), "there is room for the other");
        assert_eq!(changes.len() + left_out.len(), all.len());
    }

    /// Whoever comes last has a login of the usual size, and others have filled the object before.
    #[test]
    fn several_full_namespaces_keep_no_other_from_having_a_login() {
        let bad = ["bad-1", "bad-2", "bad-3", "bad-4", "bad-5"];
        let (mut secrets, _asked) = wanting(bad.iter().flat_map(|name| many(name)).chain([secret("shop")]));
        let mut all: Vec<LoginId> = bad.iter().flat_map(|namespace| large(&mut secrets, namespace)).collect();
        let key = NodeKey::generate().public();
        let first = secrets.changes(&all, Some(&key), &Present::new()).unwrap().changes;
        assert!(
            bytes(&first) > ROOM_OF_LOGINS - 16 * 1024 && bytes(&first) <= ROOM_OF_LOGINS,
            "{} of {ROOM_OF_LOGINS}",
            bytes(&first)
        );
        let made = |changes: &LoginChanges| -> Present {
            let logins = changes.iter().filter_map(|(id, login)| Some((id.clone(), login.as_ref()?)));
            logins.map(|(id, login)| (id, (login.key.clone(), login.sealed.len()))).collect()
        };
        let mut present = made(&first);
        let good = names(seen(&mut secrets, secret("shop"), there(&[("ada", "p".into())])));
        all.extend(good.clone());
        let Sealed { changes, left_out } = secrets.changes(&all, Some(&key), &present).unwrap();
        assert!(changes[&good[0]].is_some() && !left_out.contains(&good[0]), "{left_out:?}");
        present.retain(|id, _| changes.get(id) != Some(&None));
        present.extend(made(&changes));
        let taken: usize = present.values().map(|(_, len)| len + LOGIN_WEIGHT).sum();
        assert!(taken <= ROOM_OF_LOGINS, "{taken}");
        let again = secrets.changes(&all, Some(&key), &present).unwrap();
        assert_eq!((again.changes, again.left_out), (LoginChanges::new(), left_out), "and so it stays");
    }

    #[test]
    fn a_secret_that_cannot_be_read_holds_up_nobody() {
        let (mut secrets, _asked) = secrets(&["shop"]);
        let names = names(seen(&mut secrets, secret("shop"), there(&[("ada", "p".into())])));
        secrets.contents.clear();
        let key = NodeKey::generate().public();
        assert_eq!(changed(&mut secrets, &names, Some(&key), &Present::new()), Err(NotRead));
        assert!(seen(&mut secrets, secret("shop"), Read::Failed("no answer".into())).is_none());
        assert_eq!(changed(&mut secrets, &names, Some(&key), &Present::new()), Ok(LoginChanges::new()));
        assert!(seen(&mut secrets, secret("elsewhere"), Read::Missing).is_none(), "nobody asked");
    }

    #[test]
    fn a_login_that_a_secret_has_no_more_is_not_looked_for_there() {
        let (mut secrets, _asked) = secrets(&["shop"]);
        let old = names(seen(&mut secrets, secret("shop"), there(&[("ada", "old".into()), ("eve", "same".into())])));
        let new = names(seen(&mut secrets, secret("shop"), there(&[("ada", "new".into()), ("eve", "same".into())])));
        let known: BTreeSet<&LoginId> = secrets.sources.keys().collect();
        assert_eq!(known, new.iter().collect());
        assert!(!known.contains(&old[0]) && known.contains(&old[1]));
    }
}

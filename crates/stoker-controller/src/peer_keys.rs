//! Publishes the key by which nodes check the tickets of this leader, in a ConfigMap that agents may get, and looks every ten minutes
//! whether it is still there. Keys of earlier leaders stay until their last ticket is over. Nothing here knows the signing key.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use stoker_api::AnyObject;
use stoker_api::peer_keys::{self, MOST, NAME, PeerKeyEntry};
use stoker_core::Clock;
use stoker_core::model::after;
use stoker_transfer::peer::{SignerId, TicketKey};
use tokio::sync::mpsc;

use crate::lease::Term;
use crate::problem::{LastProblem, Problem};
use crate::watches::Input;

/// How long a ticket is good.
pub(crate) const TICKET_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// For how long more than that a key is published, so that it need not be written with every ticket.
const MARGIN: Duration = Duration::from_secs(2 * 60 * 60);
/// Between two looks at what is published.
const LOOK_EVERY: Duration = Duration::from_secs(10 * 60);
/// No answer after this long is none. Nothing is planned until the first answer.
const PATIENCE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What agents can find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublishedKeys {
    /// Until when tickets of this leader may live.
    pub(crate) until: Timestamp,
    /// All whose tickets agents can check.
    pub(crate) signers: BTreeSet<SignerId>,
}

/// Publishes this key for as long as this controller leads. Tells after each try what is published, or that it does not know.
pub(crate) async fn run(
    client: Client,
    clock: Clock,
    namespace: String,
    mut term: Term,
    own: TicketKey,
    to: mpsc::Sender<Input>,
) {
    let api = Api::<AnyObject>::namespaced_with(client, &namespace, &peer_keys::resource());
    let (mut said, mut pause) = (LastProblem::default(), FIRST_PAUSE);
    loop {
        term.holds().await;
        let answer = tokio::time::timeout(PATIENCE, publish(&api, own, clock())).await;
        let answer = answer.unwrap_or_else(|_| Err(format!("no answer after {} s", PATIENCE.as_secs())));
        let rest = match &answer {
            Ok(_) => {
                said.forget();
                pause = FIRST_PAUSE;
                LOOK_EVERY
            }
            Err(problem) => {
                match said.is_new(problem) {
                    true => tracing::warn!(
                        "cannot publish the key for tickets in the ConfigMap {namespace}/{NAME}, trying again: {problem}; until it is there \
                         nodes are not told to read images from each other; `stoker install --namespace {namespace}` prints the roles \
                         that allow it"
                    ),
                    false => tracing::debug!("cannot publish the key for tickets, trying again: {problem}"),
                }
                let next = (pause * 2).min(LONGEST_PAUSE);
                std::mem::replace(&mut pause, next)
            }
        };
        if to.send(Input::PeerKeys(answer.ok())).await.is_err() {
            return;
        }
        tokio::time::sleep(rest).await;
    }
}

async fn publish(api: &Api<AnyObject>, own: TicketKey, now: Timestamp) -> Result<PublishedKeys, String> {
    let problem = |problem: kube::Error| Problem::Request(&problem).to_string();
    let there = api.get_opt(NAME).await.map_err(problem)?;
    let changes = changes(&there.as_ref().map(peer_keys::entries).unwrap_or_default(), own, now);
    let there = match there {
        Some(there) if changes.is_empty() => there,
        // Entry by entry: another leader may write its own at this moment.
        Some(_) => {
            let patch = Patch::Merge(json!({ "data": changes }));
            api.patch(NAME, &PatchParams::default(), &patch).await.map_err(problem)?
        }
        None => {
            let entries = changes.into_iter().filter_map(|(name, text)| Some((name, text?))).collect();
            api.create(&PostParams::default(), &peer_keys::object(&entries)).await.map_err(problem)?
        }
    };
    published(&peer_keys::entries(&there), own).ok_or_else(|| "the entry is not kept".into())
}

/// What these entries publish; none where they lack this key.
fn published(entries: &BTreeMap<String, String>, own: TicketKey) -> Option<PublishedKeys> {
    let read = |text: &String| text.parse::<PeerKeyEntry>().ok();
    let key = |entry: PeerKeyEntry| entry.key.parse().ok().map(|key| TicketKey(key).id());
    let until = entries.get(&own.id().to_string()).and_then(read).filter(|entry| entry.key == own.0.to_string())?.until;
    Some(PublishedKeys { until, signers: entries.values().filter_map(read).filter_map(key).collect() })
}

/// The changes of the entries: this key is there for long enough, keys whose time is over are not, and there are not too many.
fn changes(there: &BTreeMap<String, String>, own: TicketKey, now: Timestamp) -> BTreeMap<String, Option<String>> {
    let (name, key) = (own.id().to_string(), own.0.to_string());
    let mut changes = BTreeMap::new();
    let lasts = |text: &String| {
        text.parse::<PeerKeyEntry>()
            .is_ok_and(|entry| entry.key == key && entry.until >= after(now, TICKET_LIFE + MARGIN / 2))
    };
    if !there.get(&name).is_some_and(lasts) {
        let until = after(now, TICKET_LIFE + MARGIN);
        let until = Timestamp::from_second(until.as_second()).unwrap_or(until);
        changes.insert(name.clone(), Some(PeerKeyEntry { key, until }.to_string()));
    }
    let others = there.iter().filter(|(other, _)| **other != name);
    let until = |text: &String| text.parse::<PeerKeyEntry>().ok().map(|entry| entry.until);
    // Entries that cannot be read may be of a later version: they are the first to go, but only where there are too many.
    let mut others: Vec<(Option<Timestamp>, &String)> = others.map(|(name, text)| (until(text), name)).collect();
    others.sort_unstable();
    let over = others.iter().filter(|(until, _)| until.is_some_and(|until| until <= now)).map(|(_, name)| *name);
    changes.extend(over.map(|name| (name.clone(), None)));
    others.retain(|(_, name)| !changes.contains_key(*name));
    let most = MOST.saturating_sub(1);
    let many = others.len().saturating_sub(most);
    changes.extend(others.into_iter().take(many).map(|(_, name)| (name.clone(), None)));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use stoker_transfer::peer::TicketSigner;

    const HOUR: Duration = Duration::from_secs(60 * 60);

    fn now() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn key() -> TicketKey {
        TicketSigner::generate().unwrap().public()
    }

    fn entry(key: TicketKey, until: Timestamp) -> (String, String) {
        (key.id().to_string(), PeerKeyEntry { key: key.0.to_string(), until }.to_string())
    }

    fn change(there: &mut BTreeMap<String, String>, own: TicketKey, now: Timestamp) -> usize {
        let changes = changes(there, own, now);
        let count = changes.len();
        for (name, text) in changes {
            match text {
                Some(text) => there.insert(name, text),
                None => there.remove(&name),
            };
        }
        count
    }

    #[test]
    fn a_key_is_published_for_longer_than_its_tickets_and_seldom_written() {
        let (own, mut there, mut writes) = (key(), BTreeMap::new(), 0);
        for look in 0..300_u32 {
            let now = after(now(), LOOK_EVERY * look);
            writes += change(&mut there, own, now);
            let published = published(&there, own).unwrap();
            // Up to the next look, and one more that fails.
            assert!(published.until >= after(now, TICKET_LIFE + LOOK_EVERY * 3));
            assert_eq!(published.signers, BTreeSet::from([own.id()]));
        }
        assert!(writes <= 51, "in 50 hours: {writes}");
        assert_eq!(published(&there, key()), None);
    }

    #[test]
    fn keys_of_earlier_leaders_stay_until_their_time_is_over_and_are_not_too_many() {
        let (own, earlier, old) = (key(), key(), key());
        let mut there = BTreeMap::from([entry(earlier, after(now(), HOUR)), entry(old, now())]);
        change(&mut there, own, now());
        assert_eq!(published(&there, own).unwrap().signers, BTreeSet::from([own.id(), earlier.id()]));
        assert_eq!(changes(&there, own, now()), BTreeMap::new());
        let others: Vec<TicketKey> = (0..20).map(|_| key()).collect();
        there.extend((1_u32..).zip(&others).map(|(n, key)| entry(*key, after(now(), HOUR * 2 * n))));
        there.insert("later".into(), "a version that nobody knows".into());
        change(&mut there, own, now());
        let known = published(&there, own).unwrap().signers;
        assert_eq!((there.len(), known.len()), (MOST, MOST));
        assert!(known.contains(&own.id()) && others.iter().skip(5).all(|key| known.contains(&key.id())));
    }

    #[test]
    fn a_key_that_somebody_took_away_or_changed_is_put_there_again() {
        let (own, other, mut there) = (key(), key(), BTreeMap::new());
        for text in [None, Some(entry(other, after(now(), HOUR * 48)).1), Some("nonsense".to_owned())] {
            text.map(|text| there.insert(own.id().to_string(), text));
            assert_eq!(published(&there, own), None);
            assert_eq!(change(&mut there, own, now()), 1);
            assert!(published(&there, own).is_some());
            there.clear();
        }
    }
}

//! What a job knows of the tags that it wants pulled, and whom it has ask the registry about the rest.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::demand::Askers;
use super::orders::Changes;
use super::refresh::Digests;
use super::seat::{self, ImageStanding, JudgedBy, MayAsk, Seat};
use super::seats::JobSeats;
use super::{NodeSlot, World};
use crate::model::{Ask, Job, Policy};
use crate::reference::Reference;

/// What a job knows of its images, by the time from which nodes count. Looked up once, until something is handed out.
#[derive(Default)]
pub(super) struct Resolutions(pub(super) BTreeMap<Timestamp, Vec<Resolution>>);

/// Whether the digest of an image is known, as one job sees it.
pub(super) enum Resolution {
    /// With the digest; a reference that is not valid has none.
    Known(Option<String>),
    /// Nodes ask, or have to.
    Open {
        askers: Askers,
        /// Whether one more node may look meanwhile whether it has the image.
        look: bool,
        /// Whether nodes that have answered go by their own word, because they disagree and no other can be asked.
        contested: bool,
    },
}

impl Resolution {
    /// The digest to fetch.
    pub(super) fn digest(&self) -> Option<&str> {
        match self {
            Resolution::Known(digest) => digest.as_deref(),
            Resolution::Open { .. } => None,
        }
    }
}

impl World {
    /// Has nodes ask the registry for the digests that the job lacks. That fetches nothing, so it takes no place of the job's
    /// parallelism; but a job that is paused does not ask. Returns whether any was asked.
    pub(super) fn ask_for_digests(
        &mut self,
        job: &Job,
        seats: &mut JobSeats,
        digests: &Digests,
        now: Timestamp,
        changes: &mut Changes,
    ) -> bool {
        let mut asked = false;
        if job.parallelism == 0 || digests.lacking().next().is_none() {
            return asked;
        }
        for image in 0..job.images.len() {
            let Some(Ok(reference)) = job.images.get(image).map(|image| image.reference.clone()) else { continue };
            let Some(since) = self.lacks_digest(job, image, seats, digests, now) else { continue };
            // After the others also a node that pulls another image, which may take long: it is asked while it does.
            let idle = seats.positions(Seat::may_be_handed_out);
            for position in idle.into_iter().chain(seats.positions(Seat::is_at_work)) {
                let Some(&(at, _)) = seats.get(position) else { continue };
                let Some(slot) = self.slots.get(at).filter(|slot| slot.may_be_asked()) else { continue };
                let known = JudgedBy::on(slot, job, digests, &self.secrets, now);
                let (Resolution::Open { askers, look, .. }, true) = (
                    self.resolution(job, image, &reference, since, now),
                    seat::entry(job, image, slot, known).0 == ImageStanding::Open
                        && self.secret_wait(job, image, at, now).is_none()
                        && self.has_no_room(job, image, at).is_none(),
                ) else {
                    continue;
                };
                let able = seat::able(slot, reference.key(), since, now) == MayAsk::Resolve;
                let ask = match (able, askers.more > 0) {
                    (true, true) => Ask::Resolve,
                    (true, false) if look && seat::may_look(slot, reference.key(), since) => Ask::Look,
                    (_, false) if !look => break,
                    _ => continue,
                };
                self.ask(job, &reference, at, (ask, since), now);
                changes.entry(at).or_default().insert(reference.key().question());
                self.look_again(job, seats, position, digests, now);
                asked = true;
            }
        }
        asked
    }

    /// The images that a node would wait for until another node brings them, and of which it has not said whether it has them. A node that reads from others
    /// gets what one of them may fetch, and need not look.
    pub(super) fn unlooked(&self, job: &Job, at: usize, now: Timestamp) -> Vec<usize> {
        let waits = job.pull.is_from_peers_alone() || self.peer(at).is_none();
        // A look finds some image of that name, which is enough for this policy only.
        let content = job.pull.policy == Policy::IfNotPresent;
        let Some(slot) = self.slots.get(at).filter(|slot| waits && content && slot.may_be_asked()) else {
            return Vec::new();
        };
        let since = self.since(job, at, now);
        let images = job.images.iter().enumerate();
        let keys = images.filter_map(|(image, written)| Some((image, written.reference.as_ref().ok()?.key())));
        keys.filter(|(_, key)| seat::may_look(slot, *key, since)).map(|(image, _)| image).collect()
    }

    /// Has a node look whether it has these images, for which it has no source: it needs none for what is there.
    pub(super) fn look_for_own(
        &mut self,
        job: &Job,
        (at, images): (usize, &[usize]),
        now: Timestamp,
        changes: &mut Changes,
    ) {
        let since = self.since(job, at, now);
        for image in images.iter().filter_map(|image| job.images.get(*image)) {
            // Each question takes room that was there for all of them.
            if let Ok(reference) = &image.reference
                && self.is_full(job, at, reference.key()).is_none()
            {
                self.ask(job, reference, at, (Ask::Look, since), now);
                changes.entry(at).or_default().insert(reference.key().question());
            }
        }
    }

    /// The latest time from which a node counts that lacks the image and its digest. What is asked for the sake of that node is an answer for
    /// all others, too; any node of the job may be asked it.
    fn lacks_digest(
        &self,
        job: &Job,
        image: usize,
        seats: &JobSeats,
        digests: &Digests,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let unknown = |since: Timestamp| digests.of(since).get(image) == Some(&false);
        if let Some(since) = digests.only_since() {
            return Some(since).filter(|since| unknown(*since));
        }
        let open = seats.iter().filter(|(_, seat)| seat.may_be_handed_out() || seat.is_at_work());
        let lacking = open.filter_map(|(at, _)| {
            let slot = self.slots.get(*at).filter(|slot| slot.may_be_asked())?;
            let known = JudgedBy::on(slot, job, digests, &self.secrets, now);
            let lacks =
                || matches!(seat::entry(job, image, slot, known).0, ImageStanding::Open | ImageStanding::Asking);
            (unknown(known.since) && lacks()).then_some(known.since)
        });
        lacking.max()
    }

    /// What a node knows of the images that counts from this time.
    pub(super) fn resolutions<'a>(
        &self,
        job: &Job,
        known: &'a mut Resolutions,
        since: Timestamp,
        now: Timestamp,
    ) -> &'a [Resolution] {
        known.0.entry(since).or_insert_with(|| {
            let images = job.images.iter().enumerate().map(|(image, written)| match &written.reference {
                Ok(reference) => self.resolution(job, image, reference, since, now),
                Err(_) => Resolution::Known(None),
            });
            images.collect()
        })
    }

    pub(super) fn resolution(
        &self,
        job: &Job,
        image: usize,
        reference: &Reference,
        since: Timestamp,
        now: Timestamp,
    ) -> Resolution {
        let named = reference.digest().map(str::to_owned);
        if let Some(digest) = named.or_else(|| self.pin(job, image, since, now).map(|pin| pin.digest)) {
            return Resolution::Known(Some(digest));
        }
        let demand = self.demand.get(&reference.key());
        let content = job.pull.policy == Policy::IfNotPresent;
        let askers = self.askers(reference.key(), since, now);
        let contested = self.is_contested(job, (image, reference.key()), &askers, since, now);
        Resolution::Open { askers, look: content && demand.is_some_and(|demand| demand.may_look(since)), contested }
    }

    pub(super) fn look_again(
        &self,
        job: &Job,
        seats: &mut JobSeats,
        position: usize,
        digests: &Digests,
        now: Timestamp,
    ) {
        let Some((at, seat)) = seats.get_mut(position) else { return };
        let known = |slot: &NodeSlot| JudgedBy::on(slot, job, digests, &self.secrets, now);
        if let Some(now) = self.slots.get(*at).and_then(|slot| seat::seat(job, slot, known(slot))) {
            *seat = now;
        }
    }
}

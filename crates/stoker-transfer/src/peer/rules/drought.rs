//! Whether the nodes of a list give so little that the controller is to name others.
//!
//! The same looks come in as for moves inside the list. Out goes whether a drought began or ended. Pure: time is the number of looks.
//!
//! A node with a slow link of its own, or in a group where all are slow, must not complain of its source. So it is not the rate alone that counts: either the
//! image will not be here in time at this rate, or the source says that it has more and gives far less than what is usual. Of the latter a node complains
//! for two lists only; after that it is its own link that is slow.

use std::collections::VecDeque;

use super::{Circumstances, LOOKS_A_SECOND, STARVES};

/// After so many looks, 15 s, a source that says that it has more than this node is one that gives too little.
const CLAIMS: usize = 60;
/// After so many, 30 s, it is one whatever it says: it may wait itself. Times the length of the list: the node next to the seed has one node in its list, and
/// where it is given another source those further down have bytes again before they complain.
const WAITS: usize = 120;
/// No drought must last longer to be told, 120 s.
const LONGEST: usize = 4 * WAITS;
/// A drought is over after so many looks with enough bytes.
const FLOWS: usize = 8;
/// In one list the second drought must last twice as long until it is told, and so on up to eight times.
const MOST_DOUBLED: u32 = 3;
/// Of so many lists a node complains whose nodes give enough for the image to be here in time.
const MOST_LISTS: u32 = 2;

/// What was seen at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    /// The bytes of the image that are here.
    pub(crate) have: u64,
    /// Whether this node waits for bytes of others: no limit, disk or turn of its own holds it back.
    pub(crate) waits: bool,
    /// Whether the node that is read from says that it has more.
    pub(crate) claims: bool,
}

/// The bytes a second that a source with more than this node gives at least.
fn enough(list: &Circumstances) -> u64 {
    list.least.max(list.usual.unwrap_or_default() / STARVES)
}

/// What is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DroughtNews {
    Began,
    Ended,
}

/// What came while the list was as it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drought {
    flows: VecDeque<Flow>,
    /// Whether it was told that the list gives too little, and not yet that this is over.
    is_dry: bool,
    /// How often that was told of this list.
    told: u32,
    /// How many lists gave enough for the image to be here in time, and far less than what is usual.
    slow_lists: u32,
}

impl Drought {
    /// The list is another one.
    pub(crate) fn begin(&mut self) {
        *self = Self { slow_lists: self.slow_lists, ..Self::default() };
    }

    /// Adds a look. Returns what is to be told now.
    pub(crate) fn add(&mut self, flow: Flow, list: &Circumstances) -> Option<DroughtNews> {
        self.flows.push_back(flow);
        if self.flows.len() > LONGEST + 1 {
            self.flows.pop_front();
        }
        if self.is_dry {
            let over = self.rate(FLOWS).is_some_and(|rate| rate >= enough(list));
            if !over {
                return None;
            }
            self.is_dry = false;
            // What came before is judged no more.
            self.flows = [flow].into();
            return Some(DroughtNews::Ended);
        }
        let patience = |looks: usize| (looks << self.told.min(MOST_DOUBLED)).min(LONGEST);
        let is_below = |looks: usize, floor: u64| {
            self.rate(looks).is_some_and(|rate| rate < floor) && self.count(looks, |flow| flow.waits) * 2 >= looks
        };
        // Some answers come late.
        let claims = |looks: usize| self.count(looks, |flow| flow.claims) * 4 >= looks * 3;
        let (soon, late) = (patience(CLAIMS), patience(WAITS * list.far.len().max(1)));
        let fails = is_below(late, list.least) || claims(soon) && is_below(soon, list.least);
        let is_slow = claims(soon) && is_below(soon, enough(list)) && self.slow_lists < MOST_LISTS;
        if !fails && !is_slow {
            return None;
        }
        self.slow_lists += u32::from(!fails && self.told == 0);
        (self.is_dry, self.told) = (true, self.told + 1);
        Some(DroughtNews::Began)
    }

    /// The bytes a second in the last looks.
    fn rate(&self, looks: usize) -> Option<u64> {
        let then = self.flows.len().checked_sub(looks + 1).and_then(|at| self.flows.get(at))?;
        let grown = self.flows.back()?.have.saturating_sub(then.have);
        Some(grown.saturating_mul(LOOKS_A_SECOND) / looks as u64)
    }

    /// In how many of the last looks something held.
    fn count(&self, looks: usize, is: impl Fn(&Flow) -> bool) -> usize {
        self.flows.iter().rev().take(looks).filter(|flow| is(flow)).count()
    }

    /// Whether the list was told of, and still gives too little.
    pub(crate) fn is_dry(&self) -> bool {
        self.is_dry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    fn list_of(nodes: usize, usual: Option<u64>, least: u64) -> Circumstances {
        Circumstances { far: vec![false; nodes], usual, least }
    }

    /// The looks after which a drought is told of, in so many looks at a source that gives so many bytes a second.
    fn told(drought: &mut Drought, looks: usize, rate: u64, of: (bool, bool), list: &Circumstances) -> Vec<usize> {
        let (waits, claims) = of;
        let have = |look: usize| look as u64 * rate / LOOKS_A_SECOND;
        let news = (0..looks)
            .filter(|look| drought.add(Flow { have: have(*look), waits, claims }, list) == Some(DroughtNews::Began));
        news.collect()
    }

    #[test]
    fn a_list_that_gives_next_to_nothing_is_told_of_once() {
        // A source that says that it has more, and one that waits itself or says so.
        let fast = &list_of(1, Some(12_800 * KIB), 100 * KIB);
        let unknown = &list_of(1, None, 100 * KIB);
        let further_down = &list_of(4, None, 100 * KIB);
        for (what, rate, of, list, expected) in [
            ("a byte a second", 1, (true, true), fast, Some(60)),
            ("a byte a second, and nobody knows what is usual", 1, (true, true), unknown, Some(60)),
            ("a byte a second from one that says that it has no more", 1, (true, false), fast, Some(120)),
            ("the same, and nobody knows what is usual", 1, (true, false), unknown, Some(120)),
            ("nothing", 0, (true, false), unknown, Some(120)),
            ("nothing, in a list of four", 0, (true, false), further_down, Some(480)),
            ("nothing from one that has more, in a list of four", 0, (true, true), further_down, Some(60)),
            ("far less than usual, from one that has more", 200 * KIB, (true, true), fast, Some(60)),
            ("far less than usual, from one that gets no more itself", 200 * KIB, (true, false), fast, None),
            ("enough to be done in time", 110 * KIB, (true, true), unknown, None),
            ("a tenth of what is usual", 1_280 * KIB, (true, true), fast, None),
            ("held back by a limit of this node", 1, (false, true), fast, None),
        ] {
            let at = told(&mut Drought::default(), 2_000, rate, of, list);
            assert_eq!(at, Vec::from_iter(expected), "{what}");
        }
    }

    /// 64 kbit/s, and an image of 10 MiB that may take 40 minutes.
    #[test]
    fn a_node_with_a_slow_link_complains_of_two_lists_at_most() {
        let (rate, least) = (8 * KIB, 10 * KIB * KIB / 2_400);
        let told = |usual: Option<u64>| {
            let mut drought = Drought::default();
            let lists = (0..5).map(|_| {
                drought.begin();
                told(&mut drought, 2_000, rate, (true, true), &list_of(3, usual, least)).len()
            });
            lists.collect::<Vec<_>>()
        };
        assert_eq!(told(None), [0; 5], "nobody knows what is usual");
        assert_eq!(told(Some(64 * KIB)), [0; 5], "all of its group are slow");
        assert_eq!(told(Some(12_800 * KIB)), [1, 1, 0, 0, 0], "all others are fast");
    }

    #[test]
    fn a_drought_ends_with_the_first_seconds_of_enough_and_the_next_one_lasts_longer() {
        let (mut drought, list) = (Drought::default(), list_of(3, None, KIB));
        let (mut have, mut news) = (0, Vec::new());
        for look in 0..1_500 {
            // Enough for three seconds of a minute.
            have += if look % 240 >= 228 { 64 * KIB } else { 0 };
            news.extend(drought.add(Flow { have, waits: true, claims: true }, &list).map(|news| (look, news)));
        }
        let began: Vec<usize> =
            news.iter().filter(|(_, news)| *news == DroughtNews::Began).map(|(look, _)| *look).collect();
        assert_eq!(news.len(), began.len() * 2, "each one ends: {news:?}");
        assert_eq!(began[0], 60);
        assert!(began.len() <= 3, "{news:?}");
    }
}

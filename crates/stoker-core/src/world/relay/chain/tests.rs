//! Chains in a line each: members by letter, and the way of the node `n`.

use super::*;
use crate::model::testing::at;

/// The slot of a node with this name: letters in their order.
fn slot(name: &str) -> usize {
    usize::from(name.as_bytes()[0] - b'a')
}

/// Members like `a seed`, `b reads a`, `c whole`, each followed by what else is so: `failed`, `fixed`, `old` (it cannot serve), `out`, `zone=z`,
/// `rate=4`, `sent=8`, `at=5` (when it was asked), `done=7`, `k=2` (copies that its jobs promise; else nothing).
fn chain(members: &[&str]) -> Chain {
    let mut chain = Chain::default();
    let all: Vec<Member> = members.iter().map(|text| member(&mut chain, text)).collect();
    chain.fill(all);
    chain
}

fn member(chain: &mut Chain, text: &str) -> Member {
    let words: Vec<&str> = text.split(' ').collect();
    let has = |word: &str| words.contains(&word);
    let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let number = |key: &str| value(key).map(|value| value.parse::<u64>().unwrap());
    let part = match words[1] {
        "seed" => Part::Seed { failed: has("failed"), fixed: has("fixed") },
        "whole" => Part::Whole { seeded: has("seeded"), until: None },
        _ => Part::Reader,
    };
    Member {
        at: slot(words[0]),
        name: words[0].into(),
        zone: chain.zone(value("zone").unwrap_or_default()),
        class: number("rate"),
        uplink: number("sent"),
        asked: at(i64::try_from(number("at").unwrap_or(10)).unwrap()),
        part,
        relays: !has("old"),
        serves: !has("old") && !has("out") && !has("failed"),
        reads: (words[1] == "reads").then(|| slot(words[2])),
        done: number("done").unwrap_or_default(),
        may_seed: true,
        most_copies: number("k").map_or(usize::MAX, |copies| usize::try_from(copies).unwrap()),
    }
}

fn shown(way: Way) -> String {
    let name = |at: usize| char::from(b'a' + u8::try_from(at).unwrap());
    match way {
        Way::Upstream { instead_of: None } => "upstream".into(),
        Way::Upstream { instead_of: Some(at) } => format!("upstream instead of {}", name(at)),
        Way::Peers(list) => list.into_iter().map(name).collect(),
        Way::NoSource => "no source".into(),
    }
}

/// The way of `n`, with `zone=`, `rate=`, `bad=ab`, `old` and `spent` (it was a seed); `k=2` or `k=2!`, which is a promise.
fn way(chain: &Chain, wish: &str) -> String {
    let words: Vec<&str> = wish.split(' ').collect();
    let value = |key: &str| words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    let bad: Vec<usize> = value("bad").unwrap_or_default().chars().map(|name| slot(&name.to_string())).collect();
    let copies = value("k").unwrap_or("1");
    let (copies, hard) = (copies.trim_end_matches('!').parse().unwrap(), copies.ends_with('!'));
    let wanting = Wanting {
        at: slot(words[0]),
        zone: chain.zone_or_none(value("zone").unwrap_or_default()),
        class: value("rate").map(|rate| rate.parse().unwrap()),
        relays: !words.contains(&"old"),
        may_seed: !words.contains(&"spent"),
        bad: &bad,
    };
    shown(chain.way(&wanting, CopyLimit { copies, hard, since: at(5) }))
}

#[test]
fn the_way_of_a_node() {
    let cases: &[(&str, &[&str], &str, &str)] = &[
        ("the first one goes upstream", &[], "n", "upstream"),
        ("the next one reads from it", &["a seed"], "n", "a"),
        ("each reads from the last one", &["a seed", "b reads a", "c reads b"], "n", "cba"),
        ("and lists three", &["a seed", "b reads a", "c reads b", "d reads c"], "n", "dcb"),
        ("two seeds where two are allowed", &["a seed"], "n k=2", "upstream"),
        ("and no more", &["a seed", "b seed"], "n k=2", "ab"),
        ("a holder is a copy", &["a whole"], "n", "a"),
        ("holders before growing nodes", &["a seed", "b whole", "c whole", "d whole", "e whole"], "n", "bcde"),
        ("the holder with least to send", &["a whole", "b whole", "c reads a"], "n", "bac"),
        ("a tail before a busy holder", &["a whole", "c reads a"], "n", "ca"),
        ("one that cannot serve is no seed", &["a seed old"], "n", "upstream"),
        ("unless that is promised", &["a seed old"], "n k=1!", "no source"),
        ("a failed seed is replaced", &["a seed failed", "b reads a"], "n", "upstream instead of a"),
        ("not where it may not be touched", &["a seed failed fixed", "b reads a"], "n", "b"),
        ("also for a promise", &["a seed failed k=1", "b reads a"], "n k=1!", "upstream instead of a"),
        ("one that promises less is left alone", &["a seed failed", "b reads a"], "n k=1!", "upstream"),
        ("or promises more copies", &["a seed failed k=2", "b reads a"], "n k=1!", "upstream"),
        ("and counts while it gets on", &["a seed", "b reads a"], "n k=1!", "ba"),
        ("a copy that was made counts for a promise", &["a whole seeded out"], "n k=1!", "no source"),
        ("not one of long ago", &["a whole seeded out at=4"], "n k=1!", "upstream"),
        ("and for nothing else", &["a whole seeded out"], "n", "upstream"),
        ("peers only", &[], "n k=0!", "no source"),
        ("peers only, with a holder", &["a whole"], "n k=0!", "a"),
        ("a node that was a seed is none again", &[], "n spent", "no source"),
        ("bad ones are left out", &["a seed", "b reads a", "c reads b"], "n bad=c", "a"),
        ("and in lists, too", &["a seed", "b reads a", "c reads b"], "n bad=b", "ca"),
        ("an old agent reads from nobody", &["a seed"], "n old k=1!", "no source"),
        ("the own zone first", &["a seed", "b reads a zone=z", "c reads a"], "n zone=z", "ba"),
        ("the first of a zone reads from another one", &["a seed", "b reads a"], "n zone=z", "ba"),
        (
            "a whole zone is not left for a free uplink",
            &["a seed zone=z", "b reads a zone=z", "c reads b"],
            "n zone=z",
            "a",
        ),
        ("slow readers share an uplink", &["a seed sent=8", "b reads a rate=2 out"], "n", "a"),
        ("a fast one does not", &["a seed sent=8", "b reads a rate=8 sent=8"], "n", "ba"),
        ("nobody reads from a slower one", &["a seed rate=8 sent=8", "b reads a rate=1 sent=1"], "n rate=8", "ab"),
        ("if there is another", &["a seed rate=8 sent=8 out", "b reads a rate=1 sent=1"], "n rate=8", "b"),
        (
            "four readers at most",
            &[
                "a seed sent=99",
                "b reads a rate=1 out",
                "c reads a rate=1 out",
                "d reads a rate=1 out",
                "e reads a rate=1 out",
            ],
            "n",
            "no source",
        ),
        ("who was asked first has most", &["a whole", "b whole", "d reads a at=9", "c reads b"], "n", "dab"),
        ("who is too slow serves nobody", &["a seed", "b reads a out"], "n", "a"),
        ("not from one that reads from itself", &["a seed", "n reads a", "b reads n"], "n bad=a", "no source"),
        ("but from others", &["a seed", "n reads a", "b reads n", "c reads a"], "n bad=a", "c"),
    ];
    for (what, members, wish, expected) in cases {
        assert_eq!(way(&chain(members), wish), *expected, "{what}");
    }
}

/// Put one after the other, in any order, members are what they are when they are put all at once.
#[test]
fn a_chain_that_grows_is_the_same() {
    let texts = [
        "a seed sent=4",
        "b reads a rate=1 sent=4",
        "c reads b",
        "d whole",
        "e reads d",
        "f reads a",
        "b reads e rate=2",
    ];
    let seen = |chain: &Chain| {
        (
            format!("{:?} {:?} {:?}", chain.ranks, chain.burdens, chain.seeds),
            chain.wholes,
            chain.made.len(),
            chain.orphans,
        )
    };
    for turn in 0..texts.len() {
        let mut grown = Chain::default();
        let mut order: Vec<&str> = texts.iter().cycle().skip(turn).take(texts.len()).copied().collect();
        // The last word about a node counts.
        order.retain(|text| *text != texts[1]);
        for text in [texts[1]].into_iter().chain(order) {
            let member = member(&mut grown, text);
            grown.put(member.at, Some(member));
        }
        assert_eq!(
            seen(&grown),
            seen(&chain(&["a seed sent=4", "c reads b", "d whole", "e reads d", "f reads a", texts[6]])),
            "{turn}"
        );
        for text in texts {
            grown.put(slot(text), None);
        }
        grown.ranks.retain(|_, ranks| !ranks.is_empty());
        assert_eq!(seen(&grown), seen(&Chain::default()), "{turn}");
    }
}

#[test]
fn a_liar_serves_nobody() {
    let mut chain = Chain::default();
    chain.distrust(BTreeSet::from([slot("a")]));
    let members: Vec<Member> = ["a whole", "b whole"].iter().map(|text| member(&mut chain, text)).collect();
    chain.fill(members);
    assert_eq!(way(&chain, "n"), "b");
    let again = member(&mut chain, "a whole");
    chain.put(again.at, Some(again));
    assert_eq!(way(&chain, "n"), "b");
}

use super::*;

const MIB: f64 = 1024.0 * 1024.0;

/// A node that gets on evenly: MiB at the beginning, MiB a look, whether it has all, and its readers.
#[derive(Clone, Copy)]
struct Even(f64, f64, bool, u32);

impl Even {
    fn at(self, look: usize) -> u64 {
        ((self.0 + self.1 * look as f64) * MIB) as u64
    }
}

/// The first move, and the look after which it is made; none within so many looks.
fn first(mine: Even, peers: &[Even], list: &Circumstances) -> Option<(usize, Move)> {
    let mut history = LookHistory::default();
    for look in 0..40 {
        let states = peers.iter().map(|peer| {
            let Even(_, _, whole, readers) = *peer;
            Some(PeerState { have: peer.at(look), whole, readers })
        });
        history.add(Look { have: mine.at(look), readers: mine.3, peers: states.collect() }, 0);
        let decided = decide(&history, list);
        if decided != Move::Stay {
            return Some((look + 1, decided));
        }
        history.moved(decided);
    }
    None
}

#[test]
fn moves_follow_from_what_was_seen() {
    // MiB a second.
    let near = |usual: Option<u64>| (vec![false; 3], usual);
    let (usual, unknown) = (near(Some(12 << 20)), near(None));
    let slow = Even(10.0, 0.25, false, 1);
    let fast = Even(20.0, 3.0, false, 1);
    let drained = Even(10.0, 0.25, false, 0);
    for (what, mine, peers, (far, usual), expected) in [
        ("all get on alike", Even(9.0, 3.0, false, 1), [Even(10.0, 3.0, false, 1), fast, fast], &unknown, None),
        ("the source is slow, the next is not", drained, [slow, fast, fast], &unknown, Some((5, Move::Try(1)))),
        ("the source is slow, so is the next", drained, [slow, slow, fast], &unknown, Some((14, Move::Try(2)))),
        ("the next is not ahead", drained, [slow, Even(10.5, 0.3, false, 1), slow], &unknown, None),
        ("the source is far", drained, [slow, fast, fast], &(vec![true, false, false], None), None),
        ("others are far", drained, [slow, fast, fast], &(vec![false, true, true], None), None),
        (
            "enough comes",
            Even(10.0, 2.5, false, 0),
            [Even(10.0, 2.5, false, 1), Even(20.0, 9.0, false, 1), slow],
            &usual,
            None,
        ),
        (
            "a slow source sends less than it receives",
            Even(5.0, 0.2, false, 0),
            [slow, fast, fast],
            &unknown,
            Some((5, Move::Try(1))),
        ),
        ("the source has more to give", Even(0.0, 0.45, false, 0), [slow, fast, fast], &unknown, None),
        ("another has all", drained, [slow, Even(90.0, 0.0, true, 1), slow], &usual, Some((5, Move::Try(1)))),
        (
            "another has all, but it is the link of this node that is slow",
            Even(5.0, 0.25, false, 0),
            [fast, Even(90.0, 0.0, true, 1), slow],
            &usual,
            None,
        ),
        (
            "another has all, and nobody knows what is usual",
            drained,
            [slow, Even(90.0, 0.0, true, 1), slow],
            &unknown,
            None,
        ),
        ("outrun, with readers", Even(5.0, 0.25, false, 1), [fast, fast, fast], &unknown, Some((10, Move::Try(1)))),
        ("outrun, without", Even(5.0, 0.25, false, 0), [fast, fast, fast], &unknown, None),
        (
            "a whole source gives little",
            Even(5.0, 0.25, false, 2),
            [Even(90.0, 0.0, true, 1); 3],
            &usual,
            Some((9, Move::Try(1))),
        ),
        (
            "a whole source gives little to one without readers",
            Even(5.0, 0.25, false, 0),
            [Even(90.0, 0.0, true, 1); 3],
            &usual,
            None,
        ),
        (
            "a whole source gives next to nothing",
            Even(5.0, 0.0, false, 0),
            [Even(90.0, 0.0, true, 1); 3],
            &usual,
            Some((17, Move::Try(1))),
        ),
        (
            "a source gives next to nothing of what it says it has",
            Even(5.0, 0.01, false, 0),
            [Even(1e9, 0.0, false, 1), Even(9.0, 1.0, false, 1), Even(9.0, 1.0, false, 1)],
            &usual,
            Some((17, Move::Try(1))),
        ),
        (
            "all have little, because the first one gets little",
            Even(5.0, 0.01, false, 0),
            [Even(5.0, 0.01, false, 1); 3],
            &usual,
            None,
        ),
        (
            "a crowded source",
            Even(5.0, 1.0, false, 0),
            [Even(10.0, 3.0, false, 2); 3],
            &unknown,
            Some((10, Move::Tell)),
        ),
        ("a crowded source that gives enough", Even(5.0, 2.5, false, 0), [Even(10.0, 4.0, false, 2); 3], &usual, None),
        ("a crowded source that is as slow", Even(5.0, 1.0, false, 0), [Even(10.0, 1.0, false, 2); 3], &unknown, None),
        (
            "a crowded source, with readers here",
            Even(5.0, 1.0, false, 1),
            [Even(10.0, 3.0, false, 2); 3],
            &unknown,
            Some((10, Move::Try(1))),
        ),
    ] {
        let list = Circumstances { far: far.clone(), usual: *usual, least: 0 };
        assert_eq!(first(mine, &peers, &list), expected, "{what}");
    }
}

/// A node that gets so many MiB a look from each source, and is outrun by all of them.
fn moves(rates: [f64; 2], looks: usize) -> Vec<(usize, Move)> {
    let list = Circumstances { far: vec![false; 2], usual: None, least: 0 };
    let (mut history, mut from, mut have, mut told) = (LookHistory::default(), 0, 0.0, Vec::new());
    for look in 1..=looks {
        have += rates[from] * MIB;
        let peer = PeerState { have: (20.0 * MIB) as u64 + look as u64 * (9 << 20), whole: false, readers: 1 };
        history.add(Look { have: have as u64, readers: 1, peers: vec![Some(peer); 2] }, from);
        let decided = decide(&history, &list);
        history.moved(decided);
        match decided {
            Move::Stay => continue,
            Move::Try(to) | Move::Back(to) => from = to,
            Move::Tell => {}
        }
        told.push((look, decided));
    }
    told
}

#[test]
fn a_node_that_is_no_better_is_left_for_ever_and_then_the_controller_is_told_once() {
    assert_eq!(moves([0.5, 0.5], 100), [(10, Move::Try(1)), (15, Move::Back(0)), (32, Move::Tell)]);
}

#[test]
fn a_node_that_is_better_is_stayed_with() {
    assert_eq!(moves([0.5, 8.0], 100), [(10, Move::Try(1))]);
}

#[test]
fn a_move_of_somebody_else_ends_a_trial() {
    let list = Circumstances { far: vec![false; 3], usual: None, least: 0 };
    let mut history = LookHistory::default();
    let look = |have: u64| Look { have, readers: 1, peers: vec![Some(PeerState::default()); 3] };
    history.add(look(1), 0);
    history.moved(Move::Try(1));
    for _ in 0..8 {
        history.add(look(1), 2);
        assert_eq!(decide(&history, &list), Move::Stay);
    }
}

/// What is said of a source may be up to a second old: here it is that of the eighth look in the next three.
#[test]
fn a_source_that_gives_enough_and_answers_late_is_stayed_with() {
    let list = Circumstances { far: vec![false; 2], usual: None, least: 0 };
    let mut history = LookHistory::default();
    for look in 1..20 {
        let said = if (9..=11).contains(&look) { 8 } else { look };
        let [source, other] = [Even(10.0, 3.0, false, 1).at(said), Even(20.0, 3.0, false, 1).at(look)];
        let peers = [source, other].map(|have| Some(PeerState { have, whole: false, readers: 1 }));
        history.add(Look { have: Even(9.9, 3.0, false, 0).at(look), readers: 0, peers: peers.into() }, 0);
        assert_eq!(decide(&history, &list), Move::Stay, "look {look}");
    }
}

/// Its link is so full that it answers no question in time, and all that there is to go to is a node that has the image.
#[test]
fn a_slow_source_that_does_not_answer_is_left_for_a_node_that_has_all() {
    let list = Circumstances { far: vec![false; 2], usual: Some(12 << 20), least: 0 };
    let mut history = LookHistory::default();
    let mut moved = None;
    for look in 1..20 {
        let whole = PeerState { have: 90 << 20, whole: true, readers: 1 };
        let have = Even(10.0, 0.25, false, 0).at(look);
        history.add(Look { have, readers: 0, peers: vec![None, Some(whole)] }, 0);
        moved = moved.or(Some(decide(&history, &list)).filter(|decided| *decided != Move::Stay));
    }
    assert_eq!(moved, Some(Move::Try(1)));
}

/// It has the image, and as many readers as it serves: it would be asked for all blobs again every second.
#[test]
fn a_node_that_refused_to_be_read_from_is_not_tried_again() {
    let list = Circumstances { far: vec![false; 2], usual: None, least: 0 };
    let (slow, fast) = (Even(10.0, 0.25, false, 1), Even(20.0, 3.0, false, 4));
    let (mut history, mut tries) = (LookHistory::default(), Vec::new());
    for look in 1..30 {
        let peers = [slow, fast].map(|peer| Some(PeerState { have: peer.at(look), whole: false, readers: peer.3 }));
        history.add(Look { have: slow.at(look), readers: 0, peers: peers.into() }, 0);
        let decided = decide(&history, &list);
        history.moved(decided);
        tries.extend((decided != Move::Stay).then_some(look));
    }
    assert_eq!(tries, [5]);
}

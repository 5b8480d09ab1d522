//! What may happen. Numbers are indices, taken modulo what there is.

use proptest::prelude::*;

use super::agents::Work;
use super::makers::Making;
use super::manager::Managing;
use super::rude::Rudeness;
use super::users::Wish;

#[derive(Clone, Debug)]
pub(super) enum Happening {
    /// A user makes an object, or edits the one of that name.
    Wish {
        kind: usize,
        name: usize,
        wish: Wish,
    },
    Delete {
        kind: usize,
        name: usize,
    },
    /// A node is there, ready or not, in the pool or not.
    Node {
        node: usize,
        ready: bool,
        pool: bool,
    },
    /// A node leaves, and its NodePreheat with it.
    NodeGone {
        node: usize,
    },
    /// A pod is on this node, or on none, and runs or has ended.
    Pod {
        pod: usize,
        node: usize,
        app: bool,
        ended: bool,
    },
    PodGone {
        pod: usize,
    },
    /// Somebody writes a policy, or deletes it.
    Policy {
        policy: usize,
        content: usize,
    },
    /// Somebody writes to an object that is not theirs.
    Rude {
        object: usize,
        rudeness: Rudeness,
    },
    /// What belongs to nobody any more is deleted.
    Collect,
    /// An agent reads its orders.
    Read {
        node: usize,
    },
    /// An agent goes on with one of its orders.
    Work {
        node: usize,
        order: usize,
        work: Work,
    },
    /// An agent writes its reports: they arrive, or are lost, or arrive twice.
    Say {
        node: usize,
        times: usize,
    },
    /// The clock goes on, or is set back.
    Pass {
        seconds: i64,
    },
    /// A watch says what comes next, so many times.
    Hear {
        ear: usize,
        times: usize,
    },
    /// A watch is interrupted; it is resumed, or its kind is listed anew.
    Deafen {
        ear: usize,
        lists: bool,
    },
    /// A kind is not ours to see any more, until somebody lets us.
    Refuse {
        ear: usize,
    },
    /// The controller plans.
    Turn,
    /// The writer sends a write.
    Deliver {
        write: usize,
        fate: Fate,
    },
    /// The answer to a write comes that was late.
    Answer {
        answer: usize,
    },
    /// Everybody does what there is to do for a while: watches that are not interrupted tell everything, the controller plans, and
    /// so many of its writes are done.
    Flow {
        writes: usize,
    },
    /// An agent reads its orders, does some work and says so.
    Bustle {
        node: usize,
        work: Work,
    },
    /// The controller is restarted, while its writes arrive or do not.
    Restart {
        arrive: usize,
    },
    /// Kruise's manager does something, where it goes on.
    Manage {
        managing: Managing,
    },
    /// Somebody plays the agent of a NodeImage without a Node.
    Make {
        fake: usize,
        tag: usize,
        making: Making,
    },
}

/// What becomes of a write.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// It is performed and answered.
    Done,
    /// It is performed, and the answer comes later.
    Late,
    /// It is performed, and nobody hears of it.
    Unanswered,
    /// It never arrives.
    Lost,
}

pub(super) fn happening() -> impl Strategy<Value = Happening> {
    let any_number = || 0..64usize;
    let seconds = prop_oneof![
        16 => 0..5i64, 4 => -3..0i64, 1 => Just(-50), 1 => Just(-3_600), 2 => Just(45), 2 => Just(301), 2 => Just(700)
    ];
    let fate =
        prop_oneof![12 => Just(Fate::Done), 3 => Just(Fate::Late), 1 => Just(Fate::Unanswered), 1 => Just(Fate::Lost)];
    prop_oneof![
        5 => (0..3usize, 0..4usize, Wish::any()).prop_map(|(kind, name, wish)| Happening::Wish { kind, name, wish }),
        1 => (0..3usize, 0..4usize).prop_map(|(kind, name)| Happening::Delete { kind, name }),
        2 => (any_number(), prop::bool::weighted(0.7), prop::bool::weighted(0.8))
            .prop_map(|(node, ready, pool)| Happening::Node { node, ready, pool }),
        1 => any_number().prop_map(|node| Happening::NodeGone { node }),
        3 => (any_number(), any_number(), any::<bool>(), prop::bool::weighted(0.2))
            .prop_map(|(pod, node, app, ended)| Happening::Pod { pod, node, app, ended }),
        1 => any_number().prop_map(|pod| Happening::PodGone { pod }),
        1 => (0..2usize, 0..8usize).prop_map(|(policy, content)| Happening::Policy { policy, content }),
        4 => (any_number(), Rudeness::any()).prop_map(|(object, rudeness)| Happening::Rude { object, rudeness }),
        1 => Just(Happening::Collect),
        8 => any_number().prop_map(|node| Happening::Read { node }),
        14 => (any_number(), any_number(), Work::any()).prop_map(|(node, order, work)| Happening::Work { node, order, work }),
        10 => (any_number(), prop_oneof![1 => Just(0), 6 => Just(1), 1 => Just(2)])
            .prop_map(|(node, times)| Happening::Say { node, times }),
        8 => seconds.prop_map(|seconds| Happening::Pass { seconds }),
        24 => (any_number(), 1..8usize).prop_map(|(ear, times)| Happening::Hear { ear, times }),
        1 => (any_number(), any::<bool>()).prop_map(|(ear, lists)| Happening::Deafen { ear, lists }),
        1 => any_number().prop_map(|ear| Happening::Refuse { ear }),
        16 => Just(Happening::Turn),
        24 => (any_number(), fate).prop_map(|(write, fate)| Happening::Deliver { write, fate }),
        4 => any_number().prop_map(|answer| Happening::Answer { answer }),
        20 => (0..12usize).prop_map(|writes| Happening::Flow { writes }),
        16 => (any_number(), Work::any()).prop_map(|(node, work)| Happening::Bustle { node, work }),
        1 => (0..3usize).prop_map(|arrive| Happening::Restart { arrive }),
        5 => Managing::any().prop_map(|managing| Happening::Manage { managing }),
        4 => (any_number(), any_number(), Making::any()).prop_map(|(fake, tag, making)| Happening::Make { fake, tag, making }),
    ]
}

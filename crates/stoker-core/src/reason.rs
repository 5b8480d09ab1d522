//! Why a node waits or failed: the public words that status, events, CLI and people's alerts use.
//!
//! The strings are explicit, so that a rename in code renames nothing public.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::human;
use crate::model::{GROUP_LABEL, NO_GROUP, SecretId};
use crate::policy::Refusal;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// Every reason to wait or to fail.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason { $($(#[doc = $doc])+ $name,)+ }

        impl Reason {
            /// All of them, in the order of the documentation.
            pub const ALL: &[Reason] = &[$(Reason::$name,)+];

            /// The public word.
            pub fn as_str(self) -> &'static str {
                match self { $(Reason::$name => $text,)+ }
            }
        }

        impl FromStr for Reason {
            type Err = UnknownReason;
            fn from_str(s: &str) -> Result<Self, UnknownReason> {
                match s { $($text => Ok(Reason::$name),)+ _ => Err(UnknownReason(s.into())) }
            }
        }
    };
}

reasons! {
    /// Waiting: the job is suspended.
    Suspended = "Suspended",
    /// Waiting: a PreheatPolicy does not allow the job, or not on this node.
    NotAllowed = "NotAllowed",
    /// Waiting: as many nodes pull as the job allows.
    Parallelism = "Parallelism",
    /// Waiting: another node is asking the registry which digest the tag means.
    Unresolved = "Unresolved",
    /// Waiting, or pulling: no node that this one may read from has the image, and it may not ask the registry.
    NoSource = "NoSource",
    /// Waiting: the node is not ready.
    NodeNotReady = "NodeNotReady",
    /// Waiting: no agent runs on the node.
    NoAgent = "NoAgent",
    /// Waiting: the job names a node that does not exist.
    NodeUnknown = "NodeUnknown",
    /// Waiting: the controller has not read a Secret of the job yet, or has not sealed a login of it to the node.
    SecretUnread = "SecretUnread",
    /// Waiting: the agent on the node is too old for what the job needs.
    AgentTooOld = "AgentTooOld",
    /// Waiting: the node's object has no room for more orders, of the job's namespace or of all.
    TooManyOrders = "TooManyOrders",
    /// Waiting: nothing stands in the way, the controller has not acted yet.
    Pending = "Pending",
    /// Waiting: no node matches what the job asks for.
    NoNodes = "NoNodes",
    /// Waiting: the job wants more nodes than there are that match it, are Ready and not cordoned, and have an agent.
    TooFewNodes = "TooFewNodes",
    /// Objects that say which nodes are wanted cannot be seen.
    CannotSee = "CannotSee",
    /// Nothing is done: the controller of the project that the job's kind comes from is at work.
    ForeignController = "ForeignController",
    /// Waiting: the status of the job cannot be read, so that nobody knows whether it has ended.
    StatusUnreadable = "StatusUnreadable",
    /// Nothing is done: the spec of the job cannot be read.
    SpecUnreadable = "SpecUnreadable",
    /// Failed: the image reference cannot be parsed.
    InvalidReference = "InvalidReference",
    /// Failed: the registry does not have the image or a part of it.
    NotFound = "NotFound",
    /// Failed: the registry refused the credentials, or wants some.
    Unauthorized = "Unauthorized",
    /// Waiting for a moment, or failed because the registry wants credentials: a Secret that the job names is not there.
    SecretMissing = "SecretMissing",
    /// Waiting for a moment, or failed because the registry wants credentials: the controller may not read a Secret that the job names.
    SecretForbidden = "SecretForbidden",
    /// Failed because the registry wants credentials: a Secret that the job names holds no logins that can be used.
    SecretUnusable = "SecretUnusable",
    /// Failed: the registry asked for patience for longer than the order has.
    RateLimited = "RateLimited",
    /// Failed: the registry cannot be reached.
    Unreachable = "Unreachable",
    /// Failed: the source stopped sending.
    Stalled = "Stalled",
    /// Failed: an attempt took longer than the job allows.
    Timeout = "Timeout",
    /// Failed: the bytes are not those that the digest names.
    DigestMismatch = "DigestMismatch",
    /// Pulling: the node receives much less than the node that it reads from, and others read from the same one or from this one.
    Lagging = "Lagging",
    /// Pulling: another node sent bytes that are not those that the digest names.
    PeerLied = "PeerLied",
    /// Failed: the node may not ask the registry, and its container runtime would do so by itself.
    SourceNotEnforceable = "SourceNotEnforceable",
    /// Failed: the registry sent more than the bounds allow.
    TooLarge = "TooLarge",
    /// Failed: the registry's answer makes no sense.
    InvalidContent = "InvalidContent",
    /// Failed: the image does not exist for the node's platform.
    PlatformMissing = "PlatformMissing",
    /// Failed: the registry answered with an error of its own.
    RegistryError = "RegistryError",
    /// Failed: the node's disk is full.
    NoSpace = "NoSpace",
    /// Failed: the node's disk or image store gave an error.
    StoreError = "StoreError",
    /// Waiting for other pulls of the node, or failed: the image would fill the node's disk past its limit.
    Disk = "Disk",
    /// Waiting, or failed: the node's container runtime does not answer.
    RuntimeUnavailable = "RuntimeUnavailable",
    /// Pulling again: somebody removed the image from the node.
    Removed = "Removed",
    /// Failed: the agent ended five times in a row while it pulled the image.
    GivenUp = "GivenUp",
    /// Failed: the agent is too old for this order.
    Unsupported = "Unsupported",
    /// Failed: the job's deadline passed first.
    DeadlineExceeded = "DeadlineExceeded",
    /// Waiting for the pulls under way, then failed: more nodes failed than the job tolerates, so this one is not tried.
    FailureTolerance = "FailureTolerance",
    /// Failed: the node gave no sign of life for ten minutes.
    NodeSilent = "NodeSilent",
    /// Failed: a reason that this version does not know.
    Unknown = "Unknown",
}

/// How the message of a report begins whose pull waits for what other pulls have reserved of the disk. No attempt has
/// failed then.
pub const WAITING_FOR_ROOM: &str = "waiting for room";

/// A word that is no reason of this version.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a reason that this version knows")]
pub struct UnknownReason(String);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Which other nodes a node may read images from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readable {
    /// Those of this peer group. The group of nodes that no label puts into one has an empty name.
    Group(String),
    /// None: a label takes it out of all groups.
    NoGroup,
    /// None: its agent reads from no other node.
    Unable,
    /// None: the controller has no node read from another one.
    Off,
}

/// Why a node waits, with what a person wants to know about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The job is suspended.
    Suspended {
        /// What its user does so that it goes on.
        resume: &'static str,
    },
    /// A policy does not allow the job, or not on this node.
    NotAllowed {
        /// Which policy, and why.
        refusal: Arc<Refusal>,
    },
    /// As many nodes pull as the job allows.
    Parallelism {
        /// How many it allows.
        limit: u32,
    },
    /// Other nodes are asking the registry.
    Unresolved {
        /// The image in question.
        image: String,
        /// The first of the nodes that are asking.
        by: String,
        /// How many more nodes are asking.
        others: usize,
        /// What the first node said last about it.
        trouble: String,
    },
    /// This node is asking the registry.
    Asking {
        /// The image in question.
        image: String,
        /// What went wrong so far.
        trouble: String,
    },
    /// No node that this one may read from has the image, and it may not ask the registry.
    NoSource {
        /// The image in question.
        image: String,
        /// How many nodes of its group may ask the registry.
        copies: u32,
        /// Which other nodes it may read from.
        readable: Readable,
    },
    /// The node is not ready.
    NodeNotReady,
    /// No agent runs on the node.
    NoAgent,
    /// There is no such node.
    NodeUnknown,
    /// A Secret was not read yet.
    SecretUnread {
        /// Which one.
        secret: SecretId,
    },
    /// The controller may not read a Secret; that may change.
    SecretForbidden {
        /// Which one.
        secret: SecretId,
    },
    /// The agent cannot be given logins.
    AgentTooOld,
    /// A Secret is not there; it may come.
    SecretMissing {
        /// Which one.
        secret: SecretId,
    },
    /// The node's object has no room for more orders.
    TooManyOrders {
        /// The namespace whose jobs have taken their part; none where all of them together have.
        namespace: Option<String>,
        /// The kind of that object.
        object: &'static str,
    },
    /// More nodes failed than the job tolerates; what is under way ends.
    FailureTolerance,
    /// The controller has not acted yet.
    Pending,
    /// Nobody knows whether the job has ended.
    StatusUnreadable {
        /// What is wrong with its status.
        problem: String,
    },
}

impl Waiting {
    /// The public words for all of them.
    pub const REASONS: [Reason; 16] = [
        Reason::Suspended,
        Reason::NotAllowed,
        Reason::Parallelism,
        Reason::Unresolved,
        Reason::NoSource,
        Reason::NodeNotReady,
        Reason::NoAgent,
        Reason::NodeUnknown,
        Reason::SecretUnread,
        Reason::SecretMissing,
        Reason::TooManyOrders,
        Reason::SecretForbidden,
        Reason::AgentTooOld,
        Reason::FailureTolerance,
        Reason::Pending,
        Reason::StatusUnreadable,
    ];

    /// Whether it ends by itself as the job goes on, so that nobody has to do anything about it; or the outcome says it apart.
    fn is_usual(&self) -> bool {
        match self {
            Waiting::Suspended { .. }
            | Waiting::NotAllowed { .. }
            | Waiting::Parallelism { limit: 1.. }
            | Waiting::Unresolved { .. }
            | Waiting::Asking { .. }
            | Waiting::SecretUnread { .. }
            | Waiting::SecretForbidden { .. }
            | Waiting::SecretMissing { .. }
            | Waiting::Pending => true,
            Waiting::Parallelism { limit: 0 }
            | Waiting::NoSource { .. }
            | Waiting::NodeNotReady
            | Waiting::NoAgent
            | Waiting::NodeUnknown
            | Waiting::AgentTooOld
            | Waiting::TooManyOrders { .. }
            | Waiting::FailureTolerance
            | Waiting::StatusUnreadable { .. } => false,
        }
    }

    /// The sentence for the status of the job, which is written anew when it changes: none for a wait that ends by itself. No sentence of the others
    /// changes with what a node reports of its pull.
    pub(crate) fn unusual(&self) -> String {
        if self.is_usual() { String::new() } else { self.to_string() }
    }

    /// The public word for it.
    pub fn reason(&self) -> Reason {
        match self {
            Waiting::Suspended { .. } => Reason::Suspended,
            Waiting::NotAllowed { .. } => Reason::NotAllowed,
            Waiting::Parallelism { .. } => Reason::Parallelism,
            Waiting::Unresolved { .. } | Waiting::Asking { .. } => Reason::Unresolved,
            Waiting::NoSource { .. } => Reason::NoSource,
            Waiting::NodeNotReady => Reason::NodeNotReady,
            Waiting::NoAgent => Reason::NoAgent,
            Waiting::NodeUnknown => Reason::NodeUnknown,
            Waiting::SecretUnread { .. } => Reason::SecretUnread,
            Waiting::SecretForbidden { .. } => Reason::SecretForbidden,
            Waiting::AgentTooOld => Reason::AgentTooOld,
            Waiting::SecretMissing { .. } => Reason::SecretMissing,
            Waiting::TooManyOrders { .. } => Reason::TooManyOrders,
            Waiting::FailureTolerance => Reason::FailureTolerance,
            Waiting::Pending => Reason::Pending,
            Waiting::StatusUnreadable { .. } => Reason::StatusUnreadable,
        }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Waiting::Suspended { resume } => write!(f, "the job is suspended; {resume} to go on"),
            Waiting::NotAllowed { refusal } => {
                write!(f, "{refusal}; this node goes on by itself when that changes")
            }
            Waiting::Parallelism { limit: 0 } => {
                f.write_str("the job is paused: its parallelism is 0; raise it to go on")
            }
            Waiting::Parallelism { limit } => {
                write!(f, "as many nodes pull as the job's parallelism allows ({limit}); it comes when one is done")
            }
            Waiting::Unresolved { image, by, .. } if by.is_empty() => {
                write!(f, "no node has been asked yet for the digest of {image}, so that all nodes get the same")
            }
            Waiting::Unresolved { image, by, others, trouble } => {
                let (more, verb) = match u32::try_from(*others).unwrap_or(u32::MAX) {
                    0 => (String::new(), "is"),
                    others => (format!(" and {}", human::count(others, "other node")), "are"),
                };
                write!(
                    f,
                    "node {by}{more} {verb} asking the registry for the digest of {image}, so that all nodes get the same"
                )?;
                match trouble.as_str() {
                    "" => Ok(()),
                    trouble => write!(f, "; last, on {by}: {trouble}"),
                }
            }
            Waiting::Asking { image, trouble } => {
                write!(f, "this node is asking the registry for the digest of {image}")?;
                last(trouble, f)
            }
            Waiting::NoSource { image, copies, readable } => no_source(image, *copies, readable, f),
            Waiting::NodeNotReady => f.write_str("the node is not Ready; it is asked when it is"),
            Waiting::NoAgent => f.write_str("no Stoker agent runs on this node; it is asked when one does"),
            Waiting::NodeUnknown => f.write_str("there is no node of this name; it is asked when it joins"),
            Waiting::SecretUnread { secret } => {
                write!(f, "the controller is reading Secret {secret}; if this lasts, look at the controller's log")
            }
            Waiting::SecretForbidden { secret } => {
                write!(
                    f,
                    "the controller may not read Secret {secret}: allow it for the namespace with `stoker install \
                     --secrets-from {}`; the pull is tried without the Secret in a few seconds",
                    secret.namespace
                )
            }
            Waiting::AgentTooOld => f.write_str(
                "the Stoker agent on this node is too old: it cannot open the logins that the image needs; update the agent",
            ),
            Waiting::SecretMissing { secret } => {
                write!(
                    f,
                    "Secret {secret} is not there; the pull is tried without it if it does not come in a few seconds"
                )
            }
            Waiting::TooManyOrders { namespace, object } => {
                let whose = match namespace {
                    Some(namespace) if namespace.is_empty() => "the jobs of objects without a namespace".into(),
                    Some(namespace) => format!("the jobs of namespace {namespace}"),
                    None => "all jobs together".into(),
                };
                write!(
                    f,
                    "{whose} have as many orders on this node as its {object} can hold; it comes when others end: delete \
                     jobs that are no longer needed, or give each fewer images"
                )
            }
            Waiting::FailureTolerance => f.write_str(
                "more nodes have failed than the job tolerates, so this one is not tried; the job ends when the pulls that are under \
                 way have ended",
            ),
            Waiting::Pending => {
                f.write_str("nothing stands in the way; the controller has not acted yet (is it running?)")
            }
            Waiting::StatusUnreadable { problem } => {
                write!(
                    f,
                    "the job's status cannot be read ({problem}), so nobody knows whether it has ended; mend its status, \
                     or delete the job and make it anew"
                )
            }
        }
    }
}

/// Why a node has nobody to read an image from, and what to do.
fn no_source(image: &str, copies: u32, readable: &Readable, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let otherwise = match copies {
        0 => {
            write!(f, "the job takes {image} from other nodes alone, and ")?;
            "let the job ask the registry"
        }
        _ => {
            let copies = human::count(copies, "node");
            write!(f, "at most {copies} of a peer group may fetch {image} from the registry for the job, and ")?;
            "let the job allow more copies"
        }
    };
    match readable {
        Readable::Group(group) => {
            match group.as_str() {
                "" => write!(
                    f,
                    "no node of the peer group without a name (no label {GROUP_LABEL}, no region) serves it; "
                )?,
                group => write!(f, "no node of peer group {group} serves it; ")?,
            }
            match copies {
                0 => f.write_str("pull it on another node of that group first"),
                _ => write!(f, "wait until one does, or {otherwise}"),
            }
        }
        Readable::NoGroup => {
            write!(
                f,
                "this node is in no peer group (label {GROUP_LABEL}={NO_GROUP}); change the label, or {otherwise}"
            )
        }
        Readable::Unable => write!(
            f,
            "the agent of this node reads from no other node: it is too old, runs with --peer-port 0, or the node's runtime pulls by \
             itself; {otherwise}"
        ),
        Readable::Off => write!(
            f,
            "nodes do not read from each other, because the controller runs with --peers off; switch it on, or {otherwise}"
        ),
    }
}

/// What went wrong last, behind what is being done.
fn last(trouble: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match trouble {
        "" => Ok(()),
        trouble => write!(f, "; last: {trouble}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_words_are_what_alerts_were_written_for() {
        let words: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        insta::assert_snapshot!(words.join("\n"));
        for reason in Reason::ALL {
            assert_eq!(reason.as_str().parse::<Reason>().unwrap(), *reason);
        }
    }
}

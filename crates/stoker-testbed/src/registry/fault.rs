//! What can be wrong with a registry, as values.

use bytes::Bytes;

use super::Seen;

/// Which requests a fault is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum On {
    /// GET of any blob.
    Blobs,
    /// GET of any manifest.
    Manifests,
    /// HEAD of any manifest.
    Heads,
    /// Requests for a token.
    Tokens,
    /// Any request whose path holds this text.
    Path(String),
    /// Requests for manifests whose Authorization header has at least this many bytes.
    Logins(usize),
}

/// Something that goes wrong.
#[derive(Debug, Clone)]
pub enum Fault {
    /// This status instead of the thing, with a Retry-After where given.
    Status(u16, Option<String>),
    /// This status instead of the thing, with this body to explain it.
    Explain(u16, String),
    /// This header, whatever else the answer is.
    Header(&'static str, String),
    /// The connection ends after this many bytes of the body.
    CutAfter(u64),
    /// Nothing more comes after this many bytes of the body, until [`let_go`](super::Registry::let_go).
    StallAfter(u64),
    /// Range is not understood: all of it, with a 200.
    IgnoreRange,
    /// The byte at this offset of the whole thing is wrong, if it is in the answer.
    CorruptAt(u64),
    /// Look there: the path is added to this base, with a signature as its query.
    Redirect(String),
    /// Look there: exactly this Location.
    Location(String),
    /// The body has this many bytes too many; the Content-Length says so, or there is none.
    Longer {
        /// How many.
        by: u64,
        /// Whether there is a Content-Length.
        declared: bool,
    },
    /// Content-Length and body lack the last bytes, this many.
    ShorterBy(u64),
    /// A 206 whose Content-Range begins one byte later than it should.
    WrongContentRange,
    /// Compressed on the way, whatever the client accepts; a range is one of the compressed bytes.
    Gzip,
    /// Content-Length and body lack the last bytes, this many; they come before the next answer on the same connection.
    LateTail(u64),
    /// Another digest in Docker-Content-Digest; empty: none.
    SayDigest(String),
    /// Another body.
    Serve(Bytes),
    /// A HEAD that tells nothing but 200.
    SayNothing,
    /// The connection ends without an answer.
    HangUp,
    /// No answer, until [`let_go`](super::Registry::let_go).
    Hold,
}

/// Who may pull.
#[derive(Debug, Clone, Default)]
pub enum Auth {
    /// Everybody.
    #[default]
    Open,
    /// Nobody, whatever they send.
    Refuse,
    /// One account.
    Basic {
        /// `name:password`.
        login: String,
    },
    /// Those with a token of ours.
    Bearer {
        /// `name:password` that the token server wants; `None` gives tokens to everybody.
        login: Option<String>,
        /// How many requests one token is good for.
        uses: usize,
        /// Where the token server says to be; `None` is this registry.
        realm: Option<String>,
        /// The lifetime that the token server tells, in seconds.
        expires_in: u64,
    },
}

/// A fault, and how often it still happens.
#[derive(Debug)]
pub(super) struct Rule {
    pub(super) on: On,
    pub(super) left: usize,
    pub(super) fault: Fault,
}

/// The faults of this request; each is used up by one.
pub(super) fn draw(rules: &mut [Rule], request: &Seen) -> Vec<Fault> {
    let Seen { method, path, .. } = request;
    let login = request.authorization.as_ref().map_or(0, String::len);
    let mut faults = Vec::new();
    for rule in rules.iter_mut().filter(|rule| rule.left > 0) {
        let matches = match &rule.on {
            On::Blobs => method == "GET" && path.contains("/blobs/"),
            On::Manifests => method == "GET" && path.contains("/manifests/"),
            On::Heads => method == "HEAD" && path.contains("/manifests/"),
            On::Tokens => path == "/token",
            On::Path(part) => path.contains(part),
            On::Logins(bytes) => login >= *bytes && path.contains("/manifests/"),
        };
        if matches {
            rule.left = rule.left.saturating_sub(1);
            faults.push(rule.fault.clone());
        }
    }
    faults
}

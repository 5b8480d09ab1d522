//! Why a registry does not let us in, and what to do about it.

use std::fmt;

/// A refusal of a registry or of its token server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginRefusal {
    /// Nobody may pull without a login, and there is none.
    NoLogin,
    /// The login is wrong.
    Login,
    /// The login is right, or none is needed, and still it is not allowed.
    Forbidden,
    /// The login holds characters that no header can.
    Unsendable,
    /// The registry offers neither Basic nor Bearer.
    UnknownScheme,
    /// The token server's address is none.
    TokenServer,
    /// The token server is one that must not get a password.
    UnsafeTokenServer,
    /// The token server is another host than the mirror, and only mirrors may be asked.
    ForeignTokenServer,
    /// The token server's answer has no token.
    NoToken,
}

impl LoginRefusal {
    /// What to do, for the images of this registry.
    pub(crate) fn next_step(self, registry: &str) -> String {
        match self {
            Self::NoLogin => format!("check that it exists, and name a pull secret for {registry} if it is private"),
            Self::Login => format!("check that it exists, and the name and password in the pull secret for {registry}"),
            Self::Forbidden => {
                format!("check that it exists, and that the login in the pull secret for {registry} may pull it")
            }
            Self::Unsendable => {
                format!("make the pull secret for {registry} anew: a name or password has no control characters")
            }
            Self::UnknownScheme => format!("look at the settings of {registry}: Stoker knows Basic and Bearer"),
            Self::TokenServer | Self::UnsafeTokenServer => format!("look at the settings of {registry}"),
            Self::ForeignTokenServer => "let the mirror give tokens itself, or give images without a login".to_owned(),
            Self::NoToken => "look at the token server".to_owned(),
        }
    }
}

impl fmt::Display for LoginRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoLogin => "it wants a login and there is none",
            Self::Login => "it refuses the login (401)",
            Self::Forbidden => "it denies access (403)",
            Self::Unsendable => "the login cannot be sent",
            Self::UnknownScheme => "it asks for no kind of login that we know",
            Self::TokenServer => "it names a token server that is no address",
            Self::UnsafeTokenServer => "it names a token server without TLS, or on this machine",
            Self::ForeignTokenServer => {
                "it names a token server on another host, which may be that of the registry, and only mirrors may be asked"
            }
            Self::NoToken => "its answer holds no token",
        })
    }
}

//! Whether a registry gives an image to any of some logins, for a node that reads the image from somewhere else.
//!
//! A reference and logins come in; what the registry says to them goes out. Whoever may make jobs brings logins, and with a login one can
//! make a registry refuse, limit its rate, hang up or take its time. So what a registry does with a login never means that it is
//! unavailable: only the question without a login says that, because nobody can shape it.

use std::time::Duration;

use super::Logins;
use crate::error::TransferErrorKind;
use crate::reference::Reference;
use crate::registry::{self, Registry};

/// A registry that does not answer within this time is unavailable, as far as is known. The first login, and the question without one, have it
/// each for themselves.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a registry that has answered may take for each login.
const PATIENCE_WITH_LOGIN: Duration = Duration::from_secs(10);

/// What a registry says to a pull for which nothing is fetched.
#[derive(Debug, Clone)]
pub enum Permission {
    /// It gives the image to one of the logins, or to everybody.
    Granted,
    /// It refuses all of them, or does not have the image.
    Refused(crate::Error),
    /// It answered, and said neither: it may say something else later.
    Undecided(crate::Error),
    /// It cannot be reached, or is broken, whoever asks.
    Unavailable(crate::Error),
}

impl Registry {
    /// Whether the registry gives this image to one of these logins, or to everybody. It is asked by HEAD alone. The login that it takes is
    /// remembered.
    pub async fn permission(&self, image: &Reference, logins: &Logins) -> Permission {
        let (known, nobody) = (logins.known(), logins.nobody());
        let ask = async |at: usize, within: Duration| {
            let answer = self.permits(image, logins.at(at), within).await;
            answer.inspect(|()| logins.works(at))
        };
        let first = match known == nobody {
            true => None,
            false => match ask(known, PATIENCE).await {
                Ok(()) => return Permission::Granted,
                Err(error) => Some(error),
            },
        };
        let Err(without) = ask(nobody, PATIENCE).await else { return Permission::Granted };
        let heard = first.filter(|error| !error.is_outage());
        if without.is_outage() {
            return unavailable(heard, without);
        }
        // The registry is there. A login that it has not answered within the short time has the longer one now.
        let unheard = (0..nobody).filter(|at| *at != known || heard.is_none()).collect::<Vec<_>>();
        let mut errors: Vec<registry::Error> = heard.into_iter().collect();
        for at in unheard {
            match ask(at, PATIENCE_WITH_LOGIN).await {
                Ok(()) => return Permission::Granted,
                Err(error) => errors.push(error),
            }
        }
        verdict(errors, without)
    }
}

/// What it means that a registry is unavailable for the question without a login. An answer that was heard before counts: the registry was there
/// a moment ago, and did not give the image.
fn unavailable(heard: Option<registry::Error>, without: registry::Error) -> Permission {
    match heard {
        Some(answer) => Permission::Undecided(answer.into()),
        None => Permission::Unavailable(without.into()),
    }
}

/// What it means that neither these logins have the image, in the order in which they were tried, nor everybody.
fn verdict(errors: Vec<registry::Error>, without: registry::Error) -> Permission {
    let is_refusal =
        |error: &registry::Error| matches!(error.kind(), TransferErrorKind::Unauthorized | TransferErrorKind::NotFound);
    // Where one login was not refused it may be let in later, whatever was said to the others.
    let undecided = errors.iter().chain([&without]).find(|error| !is_refusal(error)).cloned();
    match undecided {
        Some(error) => Permission::Undecided(error.into()),
        // The first is about the login that fits best.
        None => Permission::Refused(errors.into_iter().next().unwrap_or(without).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::{LoginRefusal, Party, RequestProblem};

    fn error(problem: RequestProblem) -> registry::Error {
        registry::Error::Failed { who: Party::new("r", "r"), what: "image r/i".into(), problem }
    }

    fn status(status: u16) -> registry::Error {
        error(RequestProblem::Server { status, retry_after: None, said: None })
    }

    fn refused() -> registry::Error {
        error(RequestProblem::Unauthorized { why: LoginRefusal::Login, said: None })
    }

    fn kind(permission: Permission) -> (&'static str, Option<TransferErrorKind>) {
        match permission {
            Permission::Granted => ("granted", None),
            Permission::Refused(error) => ("refused", Some(error.kind())),
            Permission::Undecided(error) => ("undecided", Some(error.kind())),
            Permission::Unavailable(error) => ("unavailable", Some(error.kind())),
        }
    }

    #[test]
    fn an_answer_that_was_heard_counts_although_the_registry_is_gone_a_moment_later() {
        let silent = || error(RequestProblem::Stalled { after: PATIENCE });
        let (server, unauthorized) = (TransferErrorKind::Server, TransferErrorKind::Unauthorized);
        assert_eq!(kind(unavailable(None, status(503))), ("unavailable", Some(server)));
        assert_eq!(kind(unavailable(Some(refused()), silent())), ("undecided", Some(unauthorized)));
        assert_eq!(kind(unavailable(Some(status(400)), silent())), ("undecided", Some(server)));
    }

    #[test]
    fn it_is_refused_where_every_login_is() {
        let missing = || error(RequestProblem::NotFound { said: None });
        let limited = || error(RequestProblem::RateLimited { retry_after: None, said: None });
        let (refusal, absent) = (TransferErrorKind::Unauthorized, TransferErrorKind::NotFound);
        for (logins, without, expected) in [
            (vec![], missing(), ("refused", absent)),
            (vec![refused()], missing(), ("refused", refusal)),
            (vec![missing(), refused()], refused(), ("refused", absent)),
            (vec![refused(), status(503)], refused(), ("undecided", TransferErrorKind::Server)),
            (vec![refused()], limited(), ("undecided", TransferErrorKind::RateLimited)),
            (vec![], status(405), ("undecided", TransferErrorKind::Server)),
        ] {
            let case = format!("{logins:?} {without:?}");
            assert_eq!(kind(verdict(logins, without)), (expected.0, Some(expected.1)), "{case}");
        }
    }
}

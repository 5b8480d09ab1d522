//! What the API server or the way to it said, in one line of a log: the reason and the message of a refusal without the
//! rest of its Status; and whether it was said before. Decides nothing.

use std::fmt;

use kube::core::Status;
use kube::runtime::watcher;

/// Something that went wrong with the API server, for a person.
pub(crate) enum Problem<'a> {
    /// A request.
    Request(&'a kube::Error),
    /// A watch.
    Watch(&'a watcher::Error),
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Request(kube::Error::Api(status)) => refusal(status, f),
            Problem::Request(other) => write!(f, "{other}"),
            Problem::Watch(watcher::Error::InitialListFailed(problem)) => {
                write!(f, "the list failed: {}", Problem::Request(problem))
            }
            Problem::Watch(watcher::Error::WatchStartFailed(problem)) => {
                write!(f, "the watch did not begin: {}", Problem::Request(problem))
            }
            Problem::Watch(watcher::Error::WatchFailed(problem)) => {
                write!(f, "the watch broke off: {}", Problem::Request(problem))
            }
            Problem::Watch(watcher::Error::WatchError(status)) => refusal(status, f),
            Problem::Watch(other) => write!(f, "{other}"),
        }
    }
}

/// Proxies and old servers leave out one or the other.
fn refusal(status: &Status, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match (status.reason.as_str(), status.message.as_str()) {
        // What an API server says of a path that no CRD has made.
        (_, message) if status.code == 404 && message.contains("page not found") => {
            write!(f, "the API server does not serve this kind; is its CRD installed?")
        }
        ("", "") => write!(f, "status {} without a message", status.code),
        (reason, "") => write!(f, "{reason} (status {})", status.code),
        ("", message) => write!(f, "{message} (status {})", status.code),
        (reason, message) => write!(f, "{reason}: {message}"),
    }
}

/// The last problem that was said, so that one that stays is said once.
#[derive(Debug, Default)]
pub(crate) struct LastProblem(String);

impl LastProblem {
    /// Notes a problem; whether it is another one than the last.
    pub(crate) fn is_new(&mut self, problem: &str) -> bool {
        let new = self.0 != problem;
        self.0 = problem.into();
        new
    }

    /// It is over: the same one would be a new one.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_new_once_for_as_long_as_it_stays() {
        let mut said = LastProblem::default();
        let new = ["away", "away", "forbidden", "away"].map(|problem| said.is_new(problem));
        assert_eq!(new, [true, false, true, true]);
        said.forget();
        assert!(said.is_new("away"));
    }

    #[test]
    fn a_kind_that_is_not_there_is_called_that() {
        let status = Status::failure("404 page not found\n", "Failed to parse error data").with_code(404).boxed();
        let line = Problem::Request(&kube::Error::Api(status)).to_string();
        assert_eq!(line, "the API server does not serve this kind; is its CRD installed?");
    }

    #[test]
    fn a_refusal_is_one_line_with_its_reason_and_message() {
        let status = |reason: &str, message: &str| Status::failure(message, reason).with_code(409).boxed();
        let cases = [
            ("AlreadyExists", "secrets \"x\" already exists", "AlreadyExists: secrets \"x\" already exists"),
            ("Conflict", "", "Conflict (status 409)"),
            ("", "bad gateway", "bad gateway (status 409)"),
            ("", "", "status 409 without a message"),
        ];
        for (reason, message, line) in cases {
            let request = kube::Error::Api(status(reason, message));
            assert_eq!(Problem::Request(&request).to_string(), line);
            assert_eq!(
                Problem::Watch(&watcher::Error::InitialListFailed(request)).to_string(),
                format!("the list failed: {line}")
            );
            assert_eq!(Problem::Watch(&watcher::Error::WatchError(status(reason, message))).to_string(), line);
        }
    }
}

//! How the lists and watches of one kind went so far: what is said of that in the log, and when a kind that cannot be listed is
//! as good as one without objects.

use std::time::Duration;

use kube::runtime::watcher::Error;
use stoker_api::served_kinds;
use tokio::time::Instant;

use crate::problem::{LastProblem, Problem};

/// A foreign kind that could be seen and is refused for this long is not ours to see any more; and a kind that need not be installed, and that could be
/// listed, is not there any more.
const REFUSED_FOR_GOOD: Duration = Duration::from_secs(60);

/// How the lists of one kind went so far.
pub(super) struct Lists {
    kind: &'static str,
    /// Whether it is no fault if there is no such kind, or if it is not ours to see.
    may_be_refused: bool,
    /// Whether it is no fault if there is no such kind.
    may_be_absent: bool,
    /// One did, and its kind was not taken for empty since.
    worked: bool,
    /// Since when they are refused.
    refused: Option<Instant>,
    /// The last one failed, and not because there is no such kind.
    failing: bool,
    said: LastProblem,
}

impl Lists {
    pub(super) fn new(kind: &'static str, may_be_refused: bool, may_be_absent: bool) -> Self {
        let said = LastProblem::default();
        Self { kind, may_be_refused, may_be_absent, worked: false, refused: None, failing: false, said }
    }

    pub(super) fn worked(&mut self) {
        if std::mem::take(&mut self.failing) {
            tracing::info!(kind = self.kind, "{} objects can be listed again", self.kind);
        }
        (self.worked, self.refused) = (true, None);
        self.said.forget();
    }

    /// A watch broke off. Says why, and whether that is as good as a list of nothing: only of another project's kind, which
    /// is not installed or not ours to see. Who has no right to a kind hears that first, kind or no kind; but one that could be
    /// seen a moment ago is still there. Nor is a kind of ours gone that could be listed a moment ago, because an API server says so once: it may have just
    /// started, and without policies everything would be allowed.
    pub(super) fn failed(&mut self, problem: &Error) -> bool {
        let (kind, code) = (self.kind, refusal(problem));
        let doubted = if self.may_be_absent { 404 } else { 403 };
        self.refused = (code == Some(doubted)).then(|| self.refused.unwrap_or_else(Instant::now));
        let for_good = self.refused.is_some_and(|since| since.elapsed() >= REFUSED_FOR_GOOD);
        let believed = code == Some(doubted) && (!self.worked || for_good);
        let nothing = self.may_be_absent && believed || self.may_be_refused && (code == Some(404) || believed);
        self.worked &= !nothing;
        let failed = matches!(problem, Error::InitialListFailed(_));
        self.failing = failed && !nothing;
        let text = match code {
            _ if nothing => "objects of this kind are not served here, or may not be seen, and count as none".into(),
            Some(403) => {
                "what depends on this kind waits until it may be listed; `stoker install` prints the roles that allow it".into()
            }
            Some(404) if self.may_be_absent => {
                "this kind was served a moment ago; until it is served again, or has been gone for a minute, no job is planned".into()
            }
            Some(404) => {
                "what depends on this kind waits until it is served; `stoker install` prints the definitions of our kinds".into()
            }
            _ if failed => frozen(kind),
            _ => "watch interrupted, trying again".into(),
        };
        let text: String = format!("{text}: {}", Problem::Watch(problem));
        match (self.said.is_new(&text), nothing) {
            (true, false) => tracing::warn!(kind, "{text}"),
            (true, true) => tracing::info!(kind, "{text}"),
            (false, _) => tracing::debug!(kind, "{text}"),
        }
        nothing
    }

    /// A watch went on for a while.
    pub(super) fn resumed(&mut self) {
        self.said.forget();
    }

    /// A watch broke off, and goes on where it was.
    pub(super) fn interrupted(&mut self, problem: &Error) {
        let (kind, text) = (self.kind, format!("watch interrupted, resuming: {}", Problem::Watch(problem)));
        match self.said.is_new(&text) {
            true => tracing::warn!(kind, "{text}"),
            false => tracing::debug!(kind, "{text}"),
        }
    }
}

/// What it means that a kind cannot be listed although it is there.
fn frozen(kind: &str) -> String {
    let then = match served_kinds().any(|served| served.kind.name == kind) {
        true => "so what was ordered for them stays as it is, and nothing new is",
        false => "so what depends on them waits",
    };
    format!("{kind} objects cannot be listed, {then}; trying again")
}

/// What a list was refused with; that of a watch alone is another matter.
fn refusal(problem: &Error) -> Option<u16> {
    match problem {
        Error::InitialListFailed(kube::Error::Api(status)) => Some(status.code),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn refused(code: u16) -> Error {
        Error::InitialListFailed(kube::Error::Api(Status::failure("no", "Refused").with_code(code).boxed()))
    }

    fn foreign() -> Lists {
        Lists::new("ImagePullJob", true, false)
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_foreign_kind_that_is_refused_or_missing_has_no_objects() {
        for kind in ["Node", "NodePreheat", "Preheat", "kubernetes.io/dockerconfigjson", "Lease"] {
            for code in [403, 404, 500] {
                assert!(!Lists::new(kind, false, false).failed(&refused(code)), "{kind} {code}");
            }
        }
        for (code, nothing) in [(403, true), (404, true), (500, false), (429, false)] {
            assert_eq!(foreign().failed(&refused(code)), nothing, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_may_be_absent_must_be_seen_where_it_is_there() {
        let mut lists = Lists::new("PreheatPolicy", false, true);
        assert!(lists.failed(&refused(404)));
        assert!(!lists.failed(&refused(403)));
        tokio::time::advance(REFUSED_FOR_GOOD).await;
        assert!(!lists.failed(&refused(403)), "for however long it is refused");
        assert!(!lists.failed(&refused(500)));
    }

    /// Policies restrict: that there are none any more lets all held jobs go at once.
    #[tokio::test(start_paused = true)]
    async fn a_kind_that_could_be_listed_is_not_gone_at_the_first_404() {
        let mut lists = Lists::new("PreheatPolicy", false, true);
        lists.worked();
        assert!(!lists.failed(&refused(404)));
        tokio::time::advance(REFUSED_FOR_GOOD - Duration::from_secs(1)).await;
        assert!(!lists.failed(&refused(404)));
        assert!(!lists.failed(&refused(503)), "another trouble begins the count anew");
        tokio::time::advance(REFUSED_FOR_GOOD).await;
        assert!(!lists.failed(&refused(404)));
        tokio::time::advance(REFUSED_FOR_GOOD).await;
        assert!(lists.failed(&refused(404)), "it was uninstalled");
        assert!(lists.failed(&refused(404)));
    }

    #[test]
    fn a_kind_of_jobs_that_cannot_be_listed_keeps_its_orders_and_the_log_says_so() {
        let words =
            "objects cannot be listed, so what was ordered for them stays as it is, and nothing new is; trying again";
        for kind in ["Preheat", "ImagePullJob", "ImageListPullJob"] {
            assert_eq!(frozen(kind), format!("{kind} {words}"));
        }
        assert_eq!(frozen("Node"), "Node objects cannot be listed, so what depends on them waits; trying again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_foreign_kind_that_could_be_seen_is_not_forgotten_at_the_first_refusal() {
        let mut lists = foreign();
        lists.worked();
        assert!(!lists.failed(&refused(403)));
        tokio::time::advance(REFUSED_FOR_GOOD).await;
        assert!(!lists.failed(&refused(500)), "another trouble begins the count anew");
        assert!(!lists.failed(&refused(403)));
        tokio::time::advance(REFUSED_FOR_GOOD).await;
        assert!(lists.failed(&refused(403)), "the right was taken away");
        assert!(lists.failed(&refused(403)));
        lists.worked();
        assert!(!lists.failed(&refused(403)), "it was given again");
        assert!(lists.failed(&refused(404)), "the kind was uninstalled");
    }
}

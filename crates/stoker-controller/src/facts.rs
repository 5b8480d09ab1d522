//! From API objects to core's events: the one place where both the watches and `why` translate.

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use stoker_api::{Dialect, native};
use stoker_core::Event;

/// The orders of a NodePreheat; entries that cannot be read are logged and left out.
pub(crate) fn orders(object: &DynamicObject) -> Event {
    let (orders, broken) = native::to_core::orders(object);
    complain(&broken);
    Event::Orders(object.name_any().into(), orders)
}

/// The reports of a NodePreheat; entries that cannot be read are logged and left out.
pub(crate) fn reports(object: &DynamicObject) -> Event {
    let (reports, broken) = native::to_core::reports(object);
    complain(&broken);
    Event::Reports(object.name_any().into(), reports)
}

fn complain(broken: &[String]) {
    for problem in broken {
        tracing::warn!("an entry cannot be read and is left out: {problem}");
    }
}

/// The job of an object of a dialect; one that cannot be read is logged, and the others go on.
pub(crate) fn job(dialect: &Dialect, object: &DynamicObject) -> Option<Event> {
    match (dialect.job)(object) {
        Ok(job) => Some(Event::Job(job)),
        Err(problem) => {
            tracing::warn!("a job cannot be read and is left out: {problem}");
            None
        }
    }
}

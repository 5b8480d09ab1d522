//! From API objects to core's events: the one place where both the watches and `why` translate.

use kube::ResourceExt;
use kube::api::DynamicObject;
use stoker_api::Dialect;
use stoker_api::native::NodeObject;
use stoker_api::secret::PullSecret;
use stoker_core::{Event, Job, SecretId};

/// A Secret with logins: a copy that we made, or one that jobs may name. One of others among our copies, under such a
/// name as they have, may be in the way of one.
pub(crate) fn secret(secret: &PullSecret) -> impl Iterator<Item = Event> {
    [Some(secret.to_core()), stranger(secret).map(Event::NameTaken)].into_iter().flatten()
}

/// The same when it is gone.
pub(crate) fn secret_gone(secret: &PullSecret) -> impl Iterator<Item = Event> {
    [Some(secret.gone()), stranger(secret).map(Event::NameFree)].into_iter().flatten()
}

fn stranger(secret: &PullSecret) -> Option<SecretId> {
    let among_copies = secret.is_at_home() && secret.id.name.starts_with("pull-");
    (among_copies && !is_copy(secret)).then(|| secret.id.clone())
}

/// Whether it is a copy that we made: its name is that of its content.
pub(crate) fn is_copy(secret: &PullSecret) -> bool {
    matches!(secret.to_core(), Event::Copy(_))
}

/// The version of an object; later ones are greater.
pub(crate) fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// Orders and reports of a NodePreheat; entries that cannot be read are logged and left out.
pub(crate) fn node(object: NodeObject) -> (Event, Event) {
    for problem in &object.broken {
        tracing::warn!("an entry cannot be read and is left out: {problem}");
    }
    let name = object.name_any();
    (Event::Orders(name.as_str().into(), object.orders), Event::Reports(name.into(), object.reports))
}

/// The job of an object of a dialect; one that cannot be read is logged, and the others go on.
pub(crate) fn job(dialect: &Dialect, object: &DynamicObject) -> Option<Job> {
    match (dialect.job)(object) {
        Ok(job) => Some(job),
        Err(problem) => {
            tracing::warn!("a job cannot be read and is left out: {problem}");
            None
        }
    }
}

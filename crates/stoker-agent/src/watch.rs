//! The watch of the agent's own object.

use std::fmt::Debug;

use futures::{Stream, StreamExt as _, stream};
use kube::api::Api;
use kube::runtime::watcher::{self, Event, watcher};
use serde::de::DeserializeOwned;

/// A watch that lists anew after every error. To resume after the last version would save one small object, and wait in vain for
/// an API server that came back with an older state: it says nothing until it has reached that version.
pub(crate) fn relisting<K>(
    api: Api<K>,
    config: watcher::Config,
) -> impl Stream<Item = Result<Event<K>, watcher::Error>> + Send
where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    stream::unfold(None, move |watch| {
        let (api, config) = (api.clone(), config.clone());
        async move {
            let mut watch = watch.unwrap_or_else(|| watcher(api, config).boxed());
            let event = watch.next().await?;
            let watch = event.is_ok().then_some(watch);
            Some((event, watch))
        }
    })
}

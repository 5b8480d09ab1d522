//! What others do to the images: containerd's events, as a sign that it is time to look.

use std::time::Duration;

use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};

use super::{Containerd, ContainerdInner};
use crate::wire::containerd::services::events::v1 as wire;
use wire::events_client::EventsClient;

/// How soon a lost subscription is made anew, at first and at most.
const SOON: Duration = Duration::from_millis(500);
const LATE: Duration = Duration::from_secs(30);

impl Containerd {
    /// One item for every change of an image record and every unpacked layer, and one whenever changes may have been missed. It never ends.
    pub fn changes(&self) -> BoxStream<'static, ()> {
        let state = (self.clone(), None, SOON);
        futures::stream::unfold(state, |(containerd, mut events, mut pause)| async move {
            loop {
                if events.is_none() {
                    match containerd.inner.subscribe().await {
                        Ok(new) => {
                            pause = SOON;
                            return Some(((), (containerd, Some(new), pause)));
                        }
                        Err(problem) => {
                            tracing::debug!("no events from containerd, trying again: {problem}");
                            tokio::time::sleep(pause).await;
                            pause = (pause * 2).min(LATE);
                            continue;
                        }
                    }
                }
                let next = events.as_mut().map(|events: &mut tonic::Streaming<_>| events.message().left_future());
                match next.unwrap_or_else(|| futures::future::pending().right_future()).await {
                    Ok(Some(_)) => return Some(((), (containerd, events, pause))),
                    Ok(None) | Err(_) => {
                        events = None;
                        tokio::time::sleep(pause).await;
                    }
                }
            }
        })
        .boxed()
    }
}

impl ContainerdInner {
    async fn subscribe(
        &self,
    ) -> Result<tonic::Streaming<crate::wire::containerd::types::Envelope>, crate::grpc::Error> {
        // `ctr` records an image first and unpacks it then: only the unpacked one is there.
        let filters = ["topic~=\"^/images/\"", "topic==\"/snapshot/commit\""];
        let filters = filters.map(|topic| format!("namespace=={},{topic}", self.settings.namespace)).into();
        let mut request = tonic::Request::new(wire::SubscribeRequest { filters });
        request.metadata_mut().insert("containerd-namespace", self.namespace.clone());
        let answer = EventsClient::new(self.channel.clone()).subscribe(request).await;
        Ok(answer.map_err(|status| self.failed("tell what happens", &status))?.into_inner())
    }
}

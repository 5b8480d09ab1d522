//! Reading a blob while it grows.
//!
//! A handle and an offset come in; chunks go out as soon as they are on disk. It holds back the last byte until the
//! blob was checked, and never reads past what its writer has published.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;

use super::growing::BlobState;
use super::{Core, Growing, on_disk, read_piece};
use crate::Error;

/// The most that one step reads.
const CHUNK: u64 = 256 * 1024;

/// Where a handle is given, the fetch goes on while somebody follows it.
pub(crate) fn stream(core: Arc<Core>, from: u64, held: Option<Growing>) -> BoxStream<'static, Result<Bytes, Error>> {
    let follower = Follower { core, _held: held, file: None, at: from, seen: None };
    futures::stream::try_unfold(follower, |mut follower| async move {
        Ok(follower.next().await?.map(|bytes| (bytes, follower)))
    })
    .boxed()
}

struct Follower {
    core: Arc<Core>,
    _held: Option<Growing>,
    file: Option<Arc<File>>,
    at: u64,
    /// How often the blob had been begun again when bytes were last given out; `None` before the first chunk.
    seen: Option<u32>,
}

impl Follower {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        loop {
            let state = self.wait().await?;
            if let Some(Err(error)) = state.outcome {
                return Err(error);
            }
            if self.seen.is_some_and(|seen| seen != state.restarts) {
                return Err(super::Error::Restarted { blob: self.core.named() }.into());
            }
            let readable = self.readable(&state);
            if self.at >= readable {
                return Ok(None);
            }
            let bytes = self.read((readable - self.at).min(CHUNK)).await?;
            // What was read while the file was begun again belongs to neither.
            if self.core.state.borrow().restarts != state.restarts {
                continue;
            }
            if bytes.is_empty() {
                let core = &self.core;
                return Err(core.disk_failed(super::Error::Disk {
                    path: core.path.clone(),
                    action: "read to the end of",
                    cause: "it became shorter".to_owned(),
                }));
            }
            self.at += bytes.len() as u64;
            self.seen = Some(state.restarts);
            return Ok(Some(bytes));
        }
    }

    /// How far one may read now.
    fn readable(&self, state: &BlobState) -> u64 {
        let size = self.core.descriptor.size();
        if state.checked || matches!(state.outcome, Some(Ok(()))) {
            size
        } else {
            state.have.min(size.saturating_sub(1))
        }
    }

    /// Waits until there is something to give, to complain about, or to end with.
    async fn wait(&self) -> Result<BlobState, Error> {
        let mut state = self.core.state.subscribe();
        let news = |state: &BlobState| {
            state.outcome.is_some()
                || state.checked
                || self.readable(state) > self.at
                || self.seen.is_some_and(|seen| seen != state.restarts)
        };
        let state = state.wait_for(news).await.map_err(|_| super::Error::Stopped)?;
        Ok(state.clone())
    }

    async fn read(&mut self, most: u64) -> Result<Bytes, Error> {
        let core = self.core.clone();
        let failed = |e: std::io::Error| core.disk_failed(super::Error::disk(&core.path, "read", &e));
        let file = match &self.file {
            Some(file) => file.clone(),
            None => {
                let path = core.path.clone();
                let file = Arc::new(on_disk(move || File::open(&path)).await?.map_err(failed)?);
                self.file.insert(file).clone()
            }
        };
        read_piece(file, self.at, most as usize).await.map_err(failed)
    }
}

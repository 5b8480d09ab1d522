//! Unpacking a layer ourselves while its bytes come, into a snapshot of its own; and moving it to its place when the
//! layers below are there. containerd would begin when all bytes have come, one layer after the other.
//!
//! Whatever we cannot do falls back to containerd's own applier: it has the blob too.

use std::io::{self, Read};
use std::path::PathBuf;
use std::pin::Pin;

use bytes::{Buf as _, Bytes};
use futures::StreamExt as _;
use tokio::sync::mpsc;

use super::ObjectLabels;
use super::ingest::Open;
use super::session::{LayerTrouble, Session};
use super::snapshot::{SnapshotPlace, named};
use crate::grpc::{Error, RuntimeErrorKind};
use crate::room::Purse;
use crate::unpack::{self, LayerCompression, LayerToUnpack, Unpacked};

/// Chunks between the wire and the thread that unpacks.
const CHUNKS: usize = 4;

/// A layer that is unpacked, beside its place.
#[derive(Debug)]
pub(super) struct Staged {
    key: String,
    dir: PathBuf,
    unpacked: Unpacked,
}

impl Session {
    /// Unpacks a layer beside its place; `None` where containerd has to do it.
    pub(super) async fn stage<E: Send>(
        &self,
        index: usize,
        open: &Open<'_, E>,
        purse: &Purse,
    ) -> Result<Option<Staged>, LayerTrouble<E>> {
        let inner = &self.containerd.inner;
        let compression = LayerCompression::of(self.wanted.layers[index].media_type().as_ref());
        let Some(compression) = compression.filter(|_| inner.node.direct) else { return Ok(None) };
        let key = self.key("stage", index);
        let mounts = inner.prepare(&self.lease, &key, "", ObjectLabels::new()).await?;
        let Some(SnapshotPlace { upper: dir, .. }) = SnapshotPlace::of(&mounts) else {
            inner.remove(&key).await?;
            return Ok(None);
        };
        purse.begin_again();
        let layer = LayerToUnpack { compression, lowest: index == 0, most: u64::MAX };
        let (chunks, source) = mpsc::channel(CHUNKS);
        let into = dir.clone();
        let mut stream = open(0).peekable();
        // A layer of which nothing has come yet needs no decoder. What comes while it waits for one is read from the spool later.
        let _ = Pin::new(&mut stream).peek().await;
        let decoder = self.decoders.take().await;
        let paying = purse.clone();
        let work = tokio::task::spawn_blocking(move || {
            let _decoder = decoder;
            let chunks = Chunks { source, chunk: Bytes::new() };
            unpack::unpack_within(chunks, layer, &into, &mut |need| paying.take(need))
        });
        let mut failed = None;
        while let Some(chunk) = stream.next().await {
            match chunk {
                // One that has ended says so below.
                Ok(chunk) => {
                    if chunks.send(chunk).await.is_err() {
                        break;
                    }
                }
                Err(problem) => {
                    failed = Some(problem);
                    break;
                }
            }
        }
        drop(chunks);
        let unpacked = work.await.map_err(|problem| {
            let action = format!("unpack layer {}", self.wanted.layers[index].digest());
            inner.broken(action, problem.to_string(), RuntimeErrorKind::Other)
        })?;
        if let Some(problem) = failed {
            inner.remove(&key).await?;
            return Err(LayerTrouble::Source(problem));
        }
        match unpacked {
            Ok(unpacked) => match self.check(index, &unpacked.diff_id()) {
                Ok(()) => Ok(Some(Staged { key, dir, unpacked })),
                // Either the layer was made wrong, or we read other bytes than containerd did. It unpacks the blob that it
                // has checked: that tells which.
                Err(problem) => {
                    inner.remove(&key).await?;
                    tracing::warn!("left to containerd, because it was unpacked wrong here: {problem}");
                    Ok(None)
                }
            },
            Err(problem) => {
                inner.remove(&key).await?;
                if let unpack::Error::NoRoom(short) = problem {
                    return Err(self.no_room(index, short).into());
                }
                if problem.is_full() || problem.is_too_big() {
                    let action = format!("keep layer {}", self.wanted.layers[index].digest());
                    return Err(inner.broken(action, problem.to_string(), RuntimeErrorKind::NoSpace).into());
                }
                tracing::warn!("left to containerd, because it could not be unpacked here: {problem}");
                Ok(None)
            }
        }
    }

    /// Moves it to its place.
    pub(super) async fn settle(&self, index: usize, staged: Staged, purse: &Purse) -> Result<(), Error> {
        let inner = &self.containerd.inner;
        let key = self.key("extract", index);
        let mounts = inner.prepare(&self.lease, &key, self.below(index), named(&self.chain[index])).await?;
        let Some(SnapshotPlace { upper, lowers }) = SnapshotPlace::of(&mounts) else {
            inner.remove(&staged.key).await?;
            purse.begin_again();
            return self.apply(index, purse).await;
        };
        let Staged { key: stage, dir, unpacked } = staged;
        let moved = tokio::task::spawn_blocking(move || unpack::settle(&dir, &upper, &lowers, &unpacked)).await;
        let failed = match moved {
            Ok(Ok(())) => None,
            Ok(Err(problem)) => Some(problem.to_string()),
            Err(problem) => Some(problem.to_string()),
        };
        inner.remove(&stage).await?;
        if let Some(problem) = failed {
            tracing::warn!("left to containerd, because it could not be moved to its place: {problem}");
            purse.begin_again();
            return self.apply(index, purse).await;
        }
        inner.commit(&self.lease, &key, &self.chain[index]).await
    }
}

/// What comes from the wire, to be read on a thread.
struct Chunks {
    source: mpsc::Receiver<Bytes>,
    chunk: Bytes,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.source.blocking_recv() {
                Some(chunk) => self.chunk = chunk,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.chunk.len());
        self.chunk.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

//! From the wire to the disk.
//!
//! One body comes in; its bytes go to the writer in order, and how the body ended goes out. A small piece is hashed and
//! written at once; while a large one is hashed and written beside the executor the next one fills. When both buffers are
//! full the wire waits, and so it does while a limit says that enough has come. It never asks for more.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::Error;
use crate::reference::Reference;
use crate::registry::{self, BlobBody, BodyPiece, Broken, ByteOrigin, Party, RequestProblem, passed};
use crate::spool::{self, Core, SpoolWriter};

/// A buffer is written as soon as the disk is free; the wire waits when one has grown to this.
const FULL: usize = 512 * 1024;
/// Up to this much is hashed and written on the executor: that takes some 100 microseconds, about as long as two threads
/// need to wake each other. A larger piece is worth a thread of its own, and the wire is read meanwhile.
const SMALL: usize = 128 * 1024;
/// A disk that takes longer than this for a small piece is busy. Then the executor must not wait for it.
const SLOW: Duration = Duration::from_millis(2);
/// How much is then written beside the executor before a small piece is tried at once again.
const BESIDE: u64 = 16 * 1024 * 1024;

/// How a body ended.
pub(super) enum BodyEnd {
    /// All of the blob's bytes are written; the last came from here.
    Whole(Box<Party>),
    /// Something went wrong; what came before it is written.
    Failed(registry::Error),
    /// The blob is to come from somewhere else; what came before is written.
    Left,
}

type WriterAfter = (SpoolWriter, Vec<u8>, io::Result<()>);

/// Where the writer is.
enum WriterTurn {
    Idle(SpoolWriter, Vec<u8>),
    Busy(JoinHandle<WriterAfter>),
}

/// Whether the disk is quick enough for small pieces to be written at once.
#[derive(Default)]
struct Haste {
    /// Bytes to be written beside the executor before that is tried again.
    beside: u64,
}

impl Haste {
    /// Whether a piece of this length is to be written at once.
    fn is_right(&self, length: usize) -> bool {
        (1..=SMALL).contains(&length) && self.beside == 0
    }

    /// How long a piece took that was written at once.
    fn took(&mut self, time: Duration) {
        if time > SLOW {
            self.beside = BESIDE;
        }
    }

    /// So much is written beside the executor.
    fn beside(&mut self, length: usize) {
        self.beside = self.beside.saturating_sub(length as u64);
    }
}

/// Moves a body to the file, until `leave` says that its sender is to be left. An error is one of the disk, after which the writer is gone.
pub(super) async fn pump(
    core: &Core,
    image: &Reference,
    writer: SpoolWriter,
    body: BlobBody,
    stall_timeout: Duration,
    leave: impl Future<Output = ()>,
) -> Result<(SpoolWriter, BodyEnd), Error> {
    let mut wire = ComingBytes {
        core,
        image,
        skip: writer.length().saturating_sub(body.start),
        left: core.descriptor.size().saturating_sub(body.start),
        who: &body.who,
        origin: body.origin,
        buffer: Vec::new(),
    };
    let mut bytes = body.bytes;
    core.pulse.awaits(body.who.host());
    let mut disk = WriterTurn::Idle(writer, Vec::new());
    let mut end = None;
    let mut deadline = Instant::now() + stall_timeout;
    let mut held: Option<BoxFuture<'static, ()>> = None;
    let mut busy = false;
    let mut haste = Haste::default();
    let mut leave = std::pin::pin!(leave);
    loop {
        disk = match disk {
            WriterTurn::Idle(mut writer, spare)
                if haste.is_right(wire.buffer.len()) && !writer.would_sync(&wire.buffer) =>
            {
                // Not tokio's clock, with which no disk stands still.
                let start = std::time::Instant::now();
                let result = writer.append(&wire.buffer);
                haste.took(start.elapsed());
                wire.buffer.clear();
                let (writer, spare) = landed(core, Ok((writer, spare, result)))?;
                WriterTurn::Idle(writer, spare)
            }
            disk => disk,
        };
        disk = match disk {
            WriterTurn::Idle(writer, spare) if !wire.buffer.is_empty() => {
                haste.beside(wire.buffer.len());
                WriterTurn::Busy(write(writer, std::mem::replace(&mut wire.buffer, spare)))
            }
            WriterTurn::Idle(writer, spare) => match end {
                Some(end) => return Ok((writer, end)),
                None => WriterTurn::Idle(writer, spare),
            },
            busy => busy,
        };
        let reading = end.is_none() && wire.buffer.len() < FULL && held.is_none();
        // While a limit or the disk holds the fetch back, the host is not silent.
        let held_back = end.is_none() && !reading;
        if held_back != std::mem::replace(&mut busy, held_back) {
            match held_back {
                true => core.pulse.rests(),
                false => core.pulse.awaits(body.who.host()),
            }
        }
        tokio::select! {
            // It is a stall only where there is nothing to read, however late we look.
            biased;
            written = finished(&mut disk) => {
                let (writer, spare) = landed(core, written)?;
                disk = WriterTurn::Idle(writer, spare);
                if !reading {
                    // The silence was ours, not the server's.
                    deadline = Instant::now() + stall_timeout;
                }
            }
            () = &mut leave, if end.is_none() => {
                bytes.spoiled();
                end = Some(BodyEnd::Left);
            }
            piece = bytes.next(), if reading => {
                deadline = Instant::now() + stall_timeout;
                let step = match piece {
                    None => wire.over(None),
                    Some(Err(Broken::Cut(cause))) => wire.over(Some(cause)),
                    Some(Err(Broken::Packed(why))) => ControlFlow::Break(wire.failed(RequestProblem::InvalidContent { why })),
                    Some(Ok(piece)) => {
                        held = pay(core, piece.wire);
                        wire.take(piece)
                    }
                };
                if let ControlFlow::Break(how) = step {
                    if let BodyEnd::Failed(_) = how {
                        bytes.spoiled();
                    }
                    end = Some(how);
                }
            }
            () = until(&mut held) => {
                held = None;
                // As above: we did not listen.
                deadline = Instant::now() + stall_timeout;
            }
            () = passed(deadline), if reading => end = Some(wire.stalled(stall_timeout)),
        }
    }
}

/// The time that these bytes cost, where there is a limit. Counted when they have come, so that a limit that changes in
/// the middle of a body holds from the next bytes on; all that share it pay before they read more.
fn pay(core: &Core, bytes: usize) -> Option<BoxFuture<'static, ()>> {
    let mut joined = core.joined.subscribe();
    let tickets: Vec<_> = core.paces().map(|pace| (pace.ask(bytes), pace)).collect();
    if bytes == 0 || tickets.is_empty() {
        return None;
    }
    let wait = async move {
        for (ticket, pace) in tickets {
            tokio::select! {
                () = pace.reached(ticket) => {}
                // Whoever joins may have a more generous limit, and need not wait for what was asked before.
                Ok(()) = joined.changed() => return,
            }
        }
    };
    Some(wait.boxed())
}

/// The end of what holds us back; never, where nothing does.
async fn until(held: &mut Option<BoxFuture<'static, ()>>) {
    match held {
        Some(wait) => wait.await,
        None => std::future::pending().await,
    }
}

fn write(mut writer: SpoolWriter, mut buffer: Vec<u8>) -> JoinHandle<WriterAfter> {
    tokio::task::spawn_blocking(move || {
        let result = writer.append(&buffer);
        buffer.clear();
        (writer, buffer, result)
    })
}

/// The end of the write in hand; never, where there is none.
async fn finished(disk: &mut WriterTurn) -> Result<WriterAfter, tokio::task::JoinError> {
    match disk {
        WriterTurn::Busy(task) => task.await,
        WriterTurn::Idle(..) => std::future::pending().await,
    }
}

fn landed(core: &Core, written: Result<WriterAfter, tokio::task::JoinError>) -> Result<(SpoolWriter, Vec<u8>), Error> {
    let (writer, spare, result) = written.map_err(|_| spool::Error::Stopped)?;
    result.map_err(|e| spool::Error::disk(&core.path, "write", &e))?;
    core.state.send_modify(|state| state.have = writer.length());
    Ok((writer, spare))
}

/// What is still to come, and what came and is not written yet.
struct ComingBytes<'a> {
    core: &'a Core,
    image: &'a Reference,
    /// Bytes to come that the file has already: the server does not do ranges. They are not written again, so that
    /// followers keep what they have, and a connection that is always cut at one place is no progress.
    skip: u64,
    left: u64,
    who: &'a Party,
    origin: ByteOrigin,
    buffer: Vec<u8>,
}

impl ComingBytes<'_> {
    fn take(&mut self, piece: BodyPiece) -> ControlFlow<BodyEnd> {
        let (data, length, wire) = (&piece.bytes, piece.bytes.len() as u64, piece.wire as u64);
        if self.origin == ByteOrigin::Mirror {
            self.core.mirrored.fetch_add(wire, Ordering::Relaxed);
        }
        self.core.tally.received(wire);
        // In this order: who reads this one first never finds too few of a mirror.
        match self.origin {
            ByteOrigin::Peer => self.core.peers.fetch_add(wire, Ordering::Release),
            ByteOrigin::Registry | ByteOrigin::Mirror => self.core.upstream.fetch_add(wire, Ordering::Release),
        };
        if length > self.left {
            let why = format!("it is longer than the {} bytes that its manifest says", self.core.descriptor.size());
            return ControlFlow::Break(self.failed(RequestProblem::InvalidContent { why }));
        }
        self.left -= length;
        let known = self.skip.min(length);
        self.skip -= known;
        self.core.pulse.came(length > known);
        self.buffer.extend_from_slice(&data[known as usize..]);
        ControlFlow::Continue(())
    }

    fn over(&self, cause: Option<String>) -> ControlFlow<BodyEnd> {
        if self.left == 0 {
            return ControlFlow::Break(self.whole());
        }
        let cause = cause.unwrap_or_else(|| format!("the answer ended {} bytes early", self.left));
        ControlFlow::Break(self.failed(RequestProblem::Unreachable { cause }))
    }

    fn stalled(&self, after: Duration) -> BodyEnd {
        if self.left == 0 {
            return self.whole();
        }
        self.failed(RequestProblem::Stalled { after })
    }

    fn whole(&self) -> BodyEnd {
        BodyEnd::Whole(Box::new(self.who.clone()))
    }

    fn failed(&self, problem: RequestProblem) -> BodyEnd {
        BodyEnd::Failed(super::failed(self.core, self.image, self.who, problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_slow_piece_the_next_ones_are_written_beside_the_executor() {
        let mut haste = Haste::default();
        haste.took(SLOW);
        assert!(haste.is_right(SMALL) && !haste.is_right(SMALL + 1) && !haste.is_right(0));
        haste.took(SLOW * 2);
        let mut beside = 0;
        while !haste.is_right(1000) {
            haste.beside(1000);
            beside += 1000;
        }
        assert!((BESIDE..BESIDE + 1000).contains(&beside), "{beside}");
    }
}

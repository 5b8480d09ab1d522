//! The fetch of one blob, from its first byte to its last.
//!
//! A descriptor and its sources come in; a checked file goes out, through any number of cut connections and restarts.
//! A part that is there is hashed and continued, never fetched again. Memory does not depend on the blob's size: one
//! buffer fills from the wire while the other is written. It never decides what to fetch, nor removes anything.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex as WriterLock;
use tokio::time::sleep;

use crate::Error;
use crate::hosts::HostNeed;
use crate::reference::Reference;
use crate::registry::{self, Party, RequestProblem, Walk};
use crate::spool::{self, Core, CurrentSource, SpoolInner, SpoolWriter, on_disk};

mod peers;
mod pump;

use self::peers::PeersEnd;
pub(crate) use self::peers::{BEGINS_WITHIN, COMES_WITHIN, ROUND, SOON};
use self::pump::BodyEnd;

/// How long we wait for a process that is just going down to let go of a file.
const LOCK_TRIES: u32 = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Runs a fetch to its end and publishes how it went.
pub(crate) async fn drive(core: Arc<Core>, spool: Arc<SpoolInner>, lock: Arc<WriterLock<()>>) {
    // Should this be dropped or break in the middle, nobody may wait forever.
    let ended = FetchEnded(core);
    ended.0.tally.doubt(&ended.0.path);
    let outcome = Fetch { core: &ended.0, spool: &spool }.run(lock).await.map_err(|error| match error {
        Error::Spool(problem) => ended.0.disk_failed(problem),
        other => other,
    });
    if let Err(error) = &outcome {
        tracing::debug!(blob = %ended.0.descriptor.digest(), %error, "fetch failed");
    }
    if outcome.is_ok() {
        ended.0.tally.checked(&ended.0.path);
    }
    ended.0.pulse.ended();
    ended.0.state.send_modify(|state| state.outcome = Some(outcome));
}

struct FetchEnded(Arc<Core>);

impl Drop for FetchEnded {
    fn drop(&mut self) {
        self.0.state.send_if_modified(|state| {
            let unknown = state.outcome.is_none();
            if unknown {
                state.outcome = Some(Err(self.0.disk_failed(spool::Error::Stopped)));
            }
            unknown
        });
        self.0.ended.cancel();
    }
}

struct Fetch<'a> {
    core: &'a Core,
    spool: &'a SpoolInner,
}

impl Fetch<'_> {
    async fn run(&self, lock: Arc<WriterLock<()>>) -> Result<(), Error> {
        let _turn = self.spool.turns.take_for(self.core).await.ok_or(spool::Error::Stopped)?;
        let mut writer = self.open(lock).await?;
        let mut chances = Chances { inherited: writer.length() > 0, again: false };
        let mut last = None;
        loop {
            let Some(source) = self.core.source() else {
                return Err(last.map_or_else(|| spool::Error::Stopped.into(), Error::from));
            };
            if let Some(ways) = &source.source.ways {
                match self.read_peers(&source, ways, writer, &mut chances).await? {
                    PeersEnd::Whole => return Ok(()),
                    PeersEnd::Upstream(back) => writer = back,
                    PeersEnd::Nobody(back) => {
                        writer = back;
                        self.core.next_source(source.id);
                        continue;
                    }
                }
            }
            match self.follow(&source, writer, &mut chances).await? {
                UpstreamEnd::Whole => return Ok(()),
                UpstreamEnd::Left(back) => writer = back,
                UpstreamEnd::Failed(back, error) => {
                    writer = back;
                    self.core.source_failed(source.id);
                    last = Some(error);
                }
            }
        }
    }

    /// Fetches from the registry of one source, from whichever of its hosts gives something, for as long as the source may ask it.
    async fn follow(
        &self,
        current: &CurrentSource,
        mut writer: SpoolWriter,
        chances: &mut Chances,
    ) -> Result<UpstreamEnd, Error> {
        let source = &current.source;
        let registry = self.spool.registry.watched(&self.core.pulse).mirrors_only(source.mirrors_only);
        let mut walk = match registry.walk(&source.image, HostNeed::Pull).await {
            Ok(walk) => walk,
            Err(error) => return Ok(UpstreamEnd::Failed(writer, error)),
        };
        let mut packing = None;
        let mut from = Party::new(source.image.registry(), &walk.host().authority);
        loop {
            // Hashing and syncing what arrived is no silence of the host.
            self.core.pulse.rests();
            if writer.length() == self.core.descriptor.size() {
                let BlobCheck::Bad(bad, actual) = self.check(writer).await? else { return Ok(UpstreamEnd::Whole) };
                writer = self.restart(bad).await?;
                if std::mem::take(&mut chances.inherited) {
                    continue;
                }
                // A mirror gets no second chance, the registry itself one.
                if !walk.discard() && std::mem::replace(&mut chances.again, true) {
                    let problem = RequestProblem::DigestMismatch { actual: format!("sha256:{actual}") };
                    return Err(failed(self.core, &source.image, &from, problem).into());
                }
                tracing::warn!(blob = %self.core.descriptor.digest(), actual, "corrupt, fetching it again");
            }
            let before = writer.length();
            let (back, end) = self.attempt(current, &walk, writer, &mut packing).await?;
            writer = back;
            let error = match end {
                BodyEnd::Whole(who) => {
                    from = who;
                    continue;
                }
                BodyEnd::Left => return Ok(UpstreamEnd::Left(writer)),
                // The server's copy ends before ours does: one of the two is wrong, so begin anew, once.
                BodyEnd::Failed(error)
                    if error.status() == Some(416) && before > 0 && walk.is_last() && !chances.again =>
                {
                    chances.again = true;
                    writer = self.restart(writer).await?;
                    continue;
                }
                BodyEnd::Failed(error) => error,
            };
            if writer.length() > before {
                walk.progressed();
            }
            tokio::select! {
                after = walk.after(error) => if let Err(error) = after {
                    return Ok(UpstreamEnd::Failed(writer, error));
                },
                () = current.leaves_upstream() => return Ok(UpstreamEnd::Left(writer)),
            }
        }
    }

    /// Asks the host whose turn it is for what is missing, and writes what comes.
    /// `packing` is a host that compresses the blob, so that a range of its answer is no range of the blob: it is asked for
    /// all of it, and the bytes that the file has already are skipped.
    async fn attempt(
        &self,
        current: &CurrentSource,
        walk: &Walk<'_>,
        writer: SpoolWriter,
        packing: &mut Option<String>,
    ) -> Result<(SpoolWriter, BodyEnd), Error> {
        let (registry, source) = (&self.spool.registry, &current.source);
        let limited = self.core.paces().next().is_some();
        let blob = &self.core.descriptor;
        let host = walk.asked();
        let from = if packing.as_ref() == Some(&host.authority) { 0 } else { writer.length() };
        let opened = tokio::select! {
            opened = registry.open_blob(host, source, blob, from, limited) => opened,
            () = current.leaves_upstream() => return Ok((writer, BodyEnd::Left)),
        };
        match opened {
            Ok(body) => {
                *packing = body.packed.then(|| host.authority.clone());
                let (silence, leave) = (registry.settings().stall_timeout, current.leaves_upstream());
                pump::pump(self.core, &source.image, writer, body, silence, leave).await
            }
            Err(error) => Ok((writer, BodyEnd::Failed(error))),
        }
    }

    /// Gets hold of the file, and hashes what an earlier fetch left in it.
    async fn open(&self, lock: Arc<WriterLock<()>>) -> Result<SpoolWriter, Error> {
        let mut guard = lock.lock_owned().await;
        let mut tries = 0;
        let mut writer = loop {
            let (path, checkpoint) = (self.core.path.clone(), self.spool.settings.checkpoint);
            match self.disk("open", move || SpoolWriter::open(&path, checkpoint, guard)).await? {
                Ok(writer) => break writer,
                Err(_) if tries >= LOCK_TRIES => {
                    return Err(spool::Error::Busy { path: self.core.path.clone() }.into());
                }
                Err(back) => {
                    guard = back;
                    tries += 1;
                    sleep(LOCK_PAUSE).await;
                }
            }
        };
        let size = self.core.descriptor.size();
        loop {
            let (back, more) = self
                .disk("read", move || {
                    let more = writer.take_over(size)?;
                    Ok((writer, more))
                })
                .await?;
            writer = back;
            self.core.state.send_modify(|state| state.have = writer.length());
            if !more {
                return Ok(writer);
            }
        }
    }

    async fn check(&self, mut writer: SpoolWriter) -> Result<BlobCheck, Error> {
        let actual = writer.sha256();
        if actual != self.core.descriptor.digest().digest() {
            return Ok(BlobCheck::Bad(writer, actual));
        }
        // Those who follow get the last byte now: the disk is waited for once, and not by one node after the other.
        self.core.state.send_modify(|state| state.checked = true);
        self.disk("sync", move || writer.sync()).await?;
        Ok(BlobCheck::Good)
    }

    async fn restart(&self, mut writer: SpoolWriter) -> Result<SpoolWriter, Error> {
        // Published first: a follower that reads a truncated file must know why.
        self.core.state.send_modify(|state| {
            (state.have, state.checked) = (0, false);
            state.restarts += 1;
        });
        self.disk("truncate", move || writer.restart().map(|()| writer)).await
    }

    async fn disk<T: Send + 'static>(
        &self,
        action: &'static str,
        work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        Ok(on_disk(work).await?.map_err(|e| spool::Error::disk(&self.core.path, action, &e))?)
    }
}

/// An error about this blob of this image.
fn failed(core: &Core, image: &Reference, who: &Party, problem: RequestProblem) -> registry::Error {
    let what = core.what(image);
    registry::Error::Failed { who: Box::new(who.clone()), what, problem }
}

/// What may still go wrong before a fetch is given up.
struct Chances {
    /// Whether a part of the file is from an earlier fetch. If all of it is wrong, that part may be the reason, and no
    /// host is blamed.
    inherited: bool,
    /// Whether the registry itself has had its second chance.
    again: bool,
}

/// How the fetch from a registry ended. The writer has what came.
enum UpstreamEnd {
    /// Nothing is left to do.
    Whole,
    /// The registry gives no more, for this reason.
    Failed(SpoolWriter, registry::Error),
    /// The registry may not be asked any more, or not for this source.
    Left(SpoolWriter),
}

enum BlobCheck {
    Good,
    Bad(SpoolWriter, String),
}

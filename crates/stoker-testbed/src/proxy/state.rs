//! What a proxy counts, and what is wrong with it now. All connections share one.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// A piece takes at most this share of a second, so that a changed pace is felt soon.
const SHARE: u64 = 20;

#[derive(Debug)]
pub(super) struct Faults {
    pub(super) target: SocketAddr,
    pub(super) cut_every: Option<u64>,
    /// Positions in the stream of all bytes that may pass.
    pub(super) stall_at: Option<u64>,
    /// Bytes that one connection carries before it stalls.
    pub(super) stall_each: Option<u64>,
    pub(super) flip_at: Option<u64>,
    pub(super) pace: Option<u64>,
    /// Bytes that may pass or have passed.
    pub(super) claimed: u64,
    /// When the next bytes may pass, where there is a pace.
    free: Instant,
    wanted_up: bool,
    is_up: bool,
}

#[derive(Debug)]
pub(super) struct State {
    faults: Mutex<Faults>,
    received: AtomicU64,
    sent: AtomicU64,
    connections: AtomicU64,
    changed: watch::Sender<()>,
}

/// Leave for some bytes to pass.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Leave {
    pub(super) bytes: usize,
    pub(super) at: Instant,
    /// Which of them is to be wrong.
    pub(super) flip: Option<usize>,
}

impl State {
    pub(super) fn new(target: SocketAddr) -> Self {
        let faults = Faults {
            target,
            cut_every: None,
            stall_at: None,
            stall_each: None,
            flip_at: None,
            pace: None,
            claimed: 0,
            free: Instant::now(),
            wanted_up: true,
            is_up: true,
        };
        Self {
            faults: Mutex::new(faults),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            changed: watch::Sender::new(()),
        }
    }

    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::SeqCst)
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    pub(super) fn connections(&self) -> u64 {
        self.connections.load(Ordering::SeqCst)
    }

    pub(super) fn is_up(&self) -> bool {
        self.faults().is_up
    }

    pub(super) fn target(&self) -> SocketAddr {
        self.faults().target
    }

    pub(super) fn note_received(&self, bytes: usize) {
        self.note(&self.received, bytes as u64);
    }

    pub(super) fn note_sent(&self, bytes: usize) {
        self.note(&self.sent, bytes as u64);
    }

    pub(super) fn note_connection(&self) {
        self.note(&self.connections, 1);
    }

    fn note(&self, counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::SeqCst);
        self.changed.send_replace(());
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.faults());
        self.changed.send_replace(());
    }

    pub(super) fn want(&self, up: bool) {
        self.change(|faults| faults.wanted_up = up);
    }

    pub(super) fn is(&self, up: bool) {
        self.change(|faults| faults.is_up = up);
    }

    pub(super) async fn wanted(&self, up: bool) {
        self.wait_for(|state| state.faults().wanted_up == up).await;
    }

    pub(super) async fn wait_for(&self, wanted: impl Fn(&Self) -> bool) {
        let mut changed = self.changed.subscribe();
        while !wanted(self) {
            // An error would mean that this state is gone, which we hold.
            let _ = changed.changed().await;
        }
    }

    /// Waits for leave to pass some of these bytes, on a connection that has carried so many; `None`: it must end.
    pub(super) async fn leave(&self, bytes: usize, carried: u64) -> Option<Leave> {
        let mut changed = self.changed.subscribe();
        loop {
            let claim = self.faults().claim(bytes as u64, carried, Instant::now());
            match claim {
                Claim::End => return None,
                Claim::Pass(leave) => return Some(leave),
                Claim::Stall => {
                    let _ = changed.changed().await;
                }
            }
        }
    }

    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Claim {
    End,
    Stall,
    Pass(Leave),
}

impl Faults {
    fn claim(&mut self, bytes: u64, carried: u64, now: Instant) -> Claim {
        let mut most = bytes;
        if let Some(cut) = self.cut_every {
            most = most.min(cut.saturating_sub(carried));
            if most == 0 {
                return Claim::End;
            }
        }
        if let Some(stall) = self.stall_at {
            most = most.min(stall.saturating_sub(self.claimed));
            if most == 0 {
                return Claim::Stall;
            }
        }
        if let Some(each) = self.stall_each {
            most = most.min(each.saturating_sub(carried));
            if most == 0 {
                return Claim::Stall;
            }
        }
        let mut at = now;
        if let Some(pace) = self.pace {
            let pace = pace.max(1);
            most = most.min((pace / SHARE).max(1));
            at = self.free.max(now);
            self.free = at + Duration::from_secs_f64(most as f64 / pace as f64);
        }
        let flip = self.flip_at.filter(|flip| (self.claimed..self.claimed + most).contains(flip));
        if flip.is_some() {
            self.flip_at = None;
        }
        let flip = flip.map(|flip| (flip - self.claimed) as usize);
        self.claimed += most;
        Claim::Pass(Leave { bytes: most as usize, at, flip })
    }
}

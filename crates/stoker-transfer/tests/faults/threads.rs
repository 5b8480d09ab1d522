//! What a small piece wakes: no thread beside the executor, and nobody who waits for the end. A wake-up costs more than the piece.

use std::io::IoSliceMut;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Context;

use futures::StreamExt as _;
use futures::task::{ArcWake, waker};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use stoker_testbed::registry::{Fault, On};

use super::*;

/// What comes while no thread is free.
const REST: u64 = 50_000;

/// One thread for work that blocks, as long as nobody takes it.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap()
}

/// Takes the one thread, until this is dropped.
fn take_the_thread() -> mpsc::Sender<()> {
    let (free, freed) = mpsc::channel();
    tokio::task::spawn_blocking(move || freed.recv());
    free
}

/// Whether the filesystem can say what of a file is in memory.
fn tells_what_is_cached(file: &Path) -> bool {
    let file = std::fs::File::open(file).unwrap();
    preadv2(&file, &mut [IoSliceMut::new(&mut [0])], 0, ReadWriteFlags::NOWAIT) != Err(Errno::OPNOTSUPP)
}

#[test]
fn a_small_piece_is_written_and_followed_while_no_other_thread_is_free() {
    runtime().block_on(async {
        let bench = Bench::new().await;
        let (size, held) = (SIZE as u64, SIZE as u64 - REST);
        bench.registry.fault(On::Blobs, 1, Fault::StallAfter(held));
        let growing = bench.spool.blob(bench.source(), bench.descriptor());
        let (mut follower, mut bytes) = (growing.follow(0), Vec::new());
        while (bytes.len() as u64) < held {
            bytes.extend_from_slice(&follower.next().await.unwrap().unwrap());
        }
        let free = take_the_thread();
        bench.registry.let_go();
        let progress = growing.progress();
        let written = async {
            while progress.have() < size {
                progress.changed(progress.have()).await;
            }
        };
        let patience = Duration::from_secs(60);
        tokio::time::timeout(patience, written).await.expect("the piece is written");
        let file = std::fs::read_dir(bench.dir.path()).unwrap().next().unwrap().unwrap().path();
        if tells_what_is_cached(&file) {
            let followed = async {
                while (bytes.len() as u64) < size {
                    bytes.extend_from_slice(&follower.next().await.unwrap().unwrap());
                }
            };
            tokio::time::timeout(patience, followed).await.expect("the piece is followed");
            assert_eq!(bytes, bench.layer);
        }
        drop(free);
        growing.complete().await.unwrap();
    });
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl ArcWake for Wakes {
    fn wake_by_ref(this: &Arc<Self>) {
        this.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn who_waits_for_the_end_is_not_woken_by_a_piece() {
    let bench = Bench::new().await;
    bench.registry.fault(On::Blobs, 1, Fault::StallAfter(REST));
    let growing = bench.spool.blob(bench.source(), bench.descriptor());
    let (wakes, progress, mut end) = (Arc::<Wakes>::default(), growing.progress(), pin!(growing.complete()));
    assert!(end.as_mut().poll(&mut Context::from_waker(&waker(wakes.clone()))).is_pending());
    while progress.have() < REST {
        progress.changed(progress.have()).await;
    }
    assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
    bench.registry.let_go();
    end.await.unwrap();
}

//! `stoker up --runtime containerd` on a real containerd, of two versions: the images that it brings are those that the
//! kubelet, CRI and `ctr` see, and "fetched again" is counted in bytes at the registry.
//!
//! Each case is a function of the version; `on_both!` makes two tests of it. Quick ones run on Debian's containerd in
//! every `cargo xtask test`; all the others, and all on containerd 2.2, are long ones.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bed;
mod kubelet;
#[path = "../it/bed.rs"]
#[allow(dead_code)]
mod up;

mod by_cri;
mod choosing;
mod damage;
mod disks;
mod faults;
mod kills;
mod kinds;
mod neighbours;
mod others;
mod peers;
mod proxies;
mod pulling;
mod registries;
mod sharing;
mod started;
mod telling;
mod wishes;

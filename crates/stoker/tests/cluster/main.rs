//! Stoker as pods of a real Kubernetes cluster, installed by `stoker install` and holding the rights that this gives it and
//! no others: kube-apiserver, controller-manager, scheduler, and nodes with real kubelets, containerd 1.6 and 2.2.
//!
//! `cargo xtask cluster up` makes the cluster, `cargo xtask cluster exec -- cargo test --test cluster -- --ignored` runs
//! these; `cargo xtask test --all` does both. All share one cluster, so one runs at a time, and each leaves it whole.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bed;
#[path = "../it/bed.rs"]
#[allow(dead_code)]
mod embedded;
mod link;

mod access;
mod agents;
mod away;
mod foreign;
mod installed;
mod kruise;
mod leaders;
mod metrics;
mod nodes;
mod ofen;
mod people;
mod policies;
mod preheated;
mod relayed;
mod rotated;
mod upgraded;

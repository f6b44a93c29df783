//! The fabric passes the suite of its contract, with every way of reading a peer's memory.

use std::os::fd::OwnedFd;

use banyan_shm::{Options, Shm, SingleCopy};
use banyan_transport::{Peer, conformance};

/// Ranks as threads of one process, each with a mapping of its own.
fn ranks(memory: OwnedFd, n: usize, single_copy: SingleCopy) -> Vec<Shm> {
    let peers: Vec<Peer> = (0..n as u32).map(Peer).collect();
    let attach = |me| {
        let memory = memory.try_clone().expect("a descriptor");
        Shm::attach(memory, me, &peers, Options { single_copy }).expect("attached")
    };
    (0..n as u32).map(attach).collect()
}

fn fresh(n: usize, single_copy: SingleCopy) -> Vec<Shm> {
    ranks(Shm::memory(n as u32).expect("memory"), n, single_copy)
}

banyan_transport::conformance!(plain, |n| fresh(n, SingleCopy::Auto));
banyan_transport::conformance!(by_syscall, |n| fresh(n, SingleCopy::Syscall); reads, two_threads);

#[test]
fn a_dead_peer_is_reported() {
    let kill = |all: &mut Vec<Shm>| {
        drop(all.pop());
        all.iter_mut().for_each(|shm| shm.peer_died(Peer(2), "killed by signal 9"));
    };
    conformance::down(&|n| fresh(n, SingleCopy::Auto), kill);
}

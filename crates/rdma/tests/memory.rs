//! What memory a process takes for its peers: those that it knows, and those with which it has a connection. `cargo xtask rdma` runs it
//! where there are RDMA devices.
#![cfg(feature = "verbs")]
#![allow(unsafe_code, reason = "counts what is allocated")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use banyan_rdma::{Options, Rdma};
use banyan_transport::{Fabric, Peer};
use common::pair;

static BYTES: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which counts.
struct Counting;

// SAFETY: all is the system's allocator; the count is beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes of the heap that what `make` gives has.
fn taken<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let before = BYTES.load(Ordering::Relaxed);
    let made = make();
    (made, BYTES.load(Ordering::Relaxed) - before)
}

#[test]
fn memory_grows_with_connections_and_these_are_bounded() {
    let device = banyan_rdma::devices().into_iter().next().expect("no RDMA device here: cargo xtask rdma");
    let options = Options::on(&device, 1, Duration::from_secs(60));
    let rank = |size: u32| {
        taken(|| {
            let (mut rank, card) = Rdma::new(Peer(0), size, 77, [5; 32], &options).expect("a fabric");
            (1..size).for_each(|peer| rank.connect(Peer(peer), &card).expect("a card"));
            rank
        })
    };
    let (_, alone) = rank(2);
    let known = [1_000, 100_000].map(|peers| rank(peers + 1).1 - alone);
    // Two ends in this process: each has one connection.
    let (_ends, both) = taken(pair);
    let connection = both / 2 - alone;
    println!("{alone} bytes with no connection; {connection} more for each connection");
    println!("{known:?} bytes more where cards of 1000 and of 100000 peers are known");
    assert!(alone < 1 << 20 && connection < 140 << 10, "{alone} {connection}");
    assert!(known[0] < 110 * 1_000 && known[1] < 110 * 100_000, "{known:?}");
}

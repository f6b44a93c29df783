//! The fabric passes the conformance suite, also where the system refuses the calls that make it quick.

use crate::common::{self, crowded, fresh, without};
use banyan_memory::HeapBuffer;
use banyan_shm::{Shm, SingleCopy};
use banyan_transport::{Access, Fabric, Kinds, Peer, Port, Token, Transfer, conformance};

banyan_transport::conformance!(plain, |n| conformance::without_cards(fresh(n, SingleCopy::Auto)));
banyan_transport::conformance!(by_syscall, |n| fresh(n, SingleCopy::Syscall); reads, reads_together, puts, two_threads);
banyan_transport::conformance!(rings_only, |n| fresh(n, SingleCopy::Off); reads, reads_together, puts, in_order_once_and_whole);
banyan_transport::conformance!(fencing, |n| crowded(n, true); interleavings, many_peers, two_threads, sleep_misses_nothing);
banyan_transport::conformance!(expedited, |n| crowded(n, false); interleavings, many_peers, two_threads, sleep_misses_nothing);

#[test]
fn cramped() {
    // The least size that suffices: short rings, refused sends.
    let make = |n: usize| {
        let need = match attach_sized(4096, n) {
            Err(banyan_shm::Error::TooSmall { need, .. }) => need,
            other => panic!("a page is too small: {:?}", other.err()),
        };
        attach_sized(need, n).expect("the size that was asked for")
    };
    conformance::run(&make);
}

fn attach_sized(bytes: usize, n: usize) -> Result<Vec<Shm>, banyan_shm::Error> {
    let memory: std::os::fd::OwnedFd = tempfile().into();
    std::fs::File::from(memory.try_clone().expect("a descriptor")).set_len(bytes as u64).expect("a size");
    let one = |me| {
        Shm::attach(memory.try_clone().expect("a descriptor"), me, &common::peers(n), Default::default())
    };
    (0..n as u32).map(one).collect()
}

fn tempfile() -> std::fs::File {
    // SAFETY: a C string.
    let fd = unsafe { libc::memfd_create(c"cramped".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "memfd_create");
    // SAFETY: just made, and ours.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
}

#[test]
fn reading_refused() {
    without(libc::SYS_process_vm_readv, || {
        let all = fresh(2, SingleCopy::Syscall);
        assert!(all[0].caps(Peer(1)).get.has(Kinds::HOST), "not tried yet");
        assert_eq!(all[0].can_get(Peer(1)), Some(false));
        assert!(!all[0].caps(Peer(1)).get.has(Kinds::HOST), "tried");
        conformance::run(&|n| fresh(n, SingleCopy::Syscall));
    });
}

#[test]
fn writing_refused() {
    without(libc::SYS_process_vm_writev, || {
        let mut all = fresh(2, SingleCopy::Syscall);
        let (memory, local) = (HeapBuffer::zeroed(8), [HeapBuffer::zeroed(8)]);
        let remote = all[1].register(Peer(0), &memory, Access::ReadWrite).expect("registered");
        assert_eq!(all[0].put(Peer(1), remote, &local, Token(0)), Transfer::Impossible);
        let readable = all[0].can_get(Peer(1)) == Some(true);
        assert_eq!(all[0].get(Peer(1), remote, &local, Token(1)) == Transfer::Done, readable);
        conformance::puts(&|n| fresh(n, SingleCopy::Syscall));
        conformance::reads(&|n| fresh(n, SingleCopy::Syscall));
        conformance::reads_together(&|n| fresh(n, SingleCopy::Syscall));
    });
}

#[test]
fn membarrier_refused() {
    without(libc::SYS_membarrier, || {
        let make = |n| crowded(n, false);
        conformance::sleep_misses_nothing(&make);
        conformance::interleavings(&make);
        conformance::many_peers(&make);
    });
}

#[test]
fn membarrier_refused_to_one() {
    // One of the two cannot use membarrier: both fence.
    let memory = Shm::memory(2, None).expect("memory");
    let make = |_: usize| {
        let mut all = vec![common::attach(&memory, 0, 2, SingleCopy::Auto)];
        without(libc::SYS_membarrier, || all.push(common::attach(&memory, 1, 2, SingleCopy::Auto)));
        all
    };
    conformance::sleep_misses_nothing(&make);
}

#[test]
fn a_dead_peer_is_reported() {
    let kill = |all: &mut Vec<Shm>| {
        drop(all.pop());
        all.iter_mut().for_each(|shm| shm.peer_died(Peer(2), "killed by signal 9"));
    };
    conformance::down(&|n| fresh(n, SingleCopy::Auto), kill);
    conformance::gone_before_contact(&|n| fresh(n, SingleCopy::Auto), kill);
}

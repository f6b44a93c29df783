//! What the conformance suite does not test: attaching, many peers, lack of room, descriptors, death.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::common::{Inbox, attach, failing, forbid, fresh, head, peers, ranks, say};
use banyan_memory::HeapBuffer;
use banyan_shm::{Error, Options, Shm, SingleCopy};
use banyan_transport::random::Random;
use banyan_transport::{Access, Fabric, Peer, Port, Refusal, Remote, Token, Transfer, Wake};

fn refused(memory: &OwnedFd, me: u32, n: usize) -> Error {
    let memory = memory.try_clone().expect("a descriptor");
    Shm::attach(memory, me, &peers(n), Options::default()).err().expect("refused")
}

#[test]
fn attaching_to_the_wrong_thing_says_why() {
    let memory = Shm::memory(2, None).expect("memory");
    let _one = attach(&memory, 0, 2, SingleCopy::Auto);
    let pid = std::process::id();
    assert!(matches!(refused(&memory, 0, 2), Error::Occupied { me: 0, pid: p } if p == pid));
    assert!(matches!(refused(&memory, 2, 2), Error::Index { me: 2, ranks: 2 }));
    assert!(matches!(refused(&memory, 0, 1), Error::Ranks { found: 2, expected: 1 }));
    assert!(matches!(refused(&memory, 0, 1000), Error::TooSmall { .. }));
    let scribbled = Shm::private().expect("memory");
    std::io::Write::write_all(&mut std::fs::File::from(scribbled.try_clone().expect("dup")), b"something")
        .expect("written");
    assert!(matches!(refused(&scribbled, 0, 1), Error::Foreign { .. }));
    let pipe: OwnedFd = std::io::pipe().expect("a pipe").0.into();
    let message = refused(&pipe, 0, 1).to_string();
    assert!(message.contains("needs"), "{message}");
}

#[test]
fn a_process_alone_can_send_to_itself() {
    let mut shm = attach(&Shm::private().expect("memory"), 0, 1, SingleCopy::Auto);
    let mut inbox = Inbox::default();
    say(&mut shm, 0, 7);
    assert_eq!((shm.peek(Peer(0), 1), shm.poll(&mut inbox)), (true, 1));
    assert_eq!((shm.peek(Peer(0), 1), shm.poll(&mut inbox)), (false, 0));
    assert_eq!(inbox.frames, [(0, 7)]);
}

#[test]
fn a_later_instance_finds_what_was_sent_to_the_one_before() {
    let memory = Shm::memory(2, None).expect("memory");
    let mut sender = attach(&memory, 0, 2, SingleCopy::Auto);
    let mut inbox = Inbox::default();
    for round in 0..200 {
        let mut receiver = attach(&memory, 1, 2, SingleCopy::Auto);
        if round > 0 {
            assert_eq!(receiver.poll(&mut inbox), 1, "round {round}");
        }
        say(&mut sender, 1, 2 * round);
        receiver.poll(&mut inbox);
        say(&mut sender, 1, 2 * round + 1);
        if round % 3 == 0 {
            drop(sender);
            sender = attach(&memory, 0, 2, SingleCopy::Auto);
        }
    }
    attach(&memory, 1, 2, SingleCopy::Auto).poll(&mut inbox);
    assert_eq!(inbox.frames, (0..400).map(|a| (0, a)).collect::<Vec<_>>());
}

/// Bodies to and fro, and what is on its way when a rank leaves: the next instance knows which memory is its turn.
#[test]
fn later_instances_go_on_with_bodies_of_any_length() {
    let seed = 20261124;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let memory = Shm::memory(2, None).expect("memory");
    let mut ends: [Option<Shm>; 2] = [0, 1].map(|me| Some(attach(&memory, me, 2, SingleCopy::Auto)));
    let (mut inboxes, mut sent) = ([Inbox::default(), Inbox::default()], [vec![], vec![]]);
    for number in 0..2000u32 {
        let me = random.below(2);
        if random.below(20) == 0 {
            ends[me] = None;
            ends[me] = Some(attach(&memory, me as u32, 2, SingleCopy::Auto));
        }
        let shm = ends[me].as_mut().expect("it is there");
        for _ in 0..random.below(7) {
            let len = [0, 8, 40, 3000, 16 << 10, 20 << 10][random.below(6)];
            if shm
                .send_bcopy(Peer(1 - me as u32), &head(number), len, &mut |to| to.fill(number as u8))
                .is_ok()
            {
                sent[me].push((number, len));
            }
        }
        shm.poll(&mut inboxes[me]);
    }
    for _ in 0..100 {
        (0..2).for_each(|me| {
            ends[me].as_mut().expect("it is there").poll(&mut inboxes[me]);
        });
    }
    for me in 0..2 {
        let came = inboxes[me].frames.iter().zip(&inboxes[me].bodies);
        let came: Vec<_> = came.map(|(frame, body)| (frame.1, body.len())).collect();
        assert!(came == sent[1 - me], "to {me}: {} of {}", came.len(), sent[1 - me].len());
        for (&(_, number), body) in inboxes[me].frames.iter().zip(&inboxes[me].bodies) {
            assert!(body.iter().all(|&byte| byte == number as u8), "frame {number}");
        }
    }
}

#[test]
fn a_frame_sent_before_the_receiver_comes_waits_for_it() {
    let memory = Shm::memory(2, None).expect("memory");
    let mut sender = attach(&memory, 0, 2, SingleCopy::Auto);
    say(&mut sender, 1, 1);
    sender.send_bcopy(Peer(1), &head(2), 5000, &mut |body| body.fill(9)).expect("room");
    let (mut receiver, mut inbox) = (attach(&memory, 1, 2, SingleCopy::Auto), Inbox::default());
    assert!(receiver.peek(Peer(0), 1));
    receiver.poll(&mut inbox);
    assert_eq!(inbox.frames, [(0, 1), (0, 2)]);
    assert_eq!(inbox.bodies[1], [9; 5000]);
}

#[test]
fn idle_peers_stop_being_polled_and_are_heard_again() {
    const N: usize = 70;
    let mut all = fresh(N, SingleCopy::Auto);
    let mut inbox = Inbox::default();
    for round in 0..4 {
        for from in 1..N {
            say(&mut all[from], 0, round);
            if from % 7 == 0 {
                all[0].poll(&mut inbox);
            }
        }
        while all[0].poll(&mut inbox) > 0 {}
        assert_eq!(inbox.frames.len(), N - 1, "round {round}");
        inbox.frames.sort();
        assert!(inbox.frames.drain(..).map(|(from, _)| from).eq(1..N as u32));
    }
}

#[test]
fn scattered_ids_are_kept_apart() {
    let memory = Shm::memory(2, None).expect("memory");
    let ids = [Peer(41), Peer(7)];
    let one = |me| {
        let memory = memory.try_clone().expect("a descriptor");
        Shm::attach(memory, me, &ids, Options::default()).expect("attached")
    };
    let (mut a, mut b, mut inbox) = (one(0), one(1), Inbox::default());
    say(&mut a, 7, 1);
    b.poll(&mut inbox);
    assert_eq!(inbox.frames, [(41, 1)]);
    assert!(a.connect(Peer(7), &[]).is_ok() && a.connect(Peer(0), &[]).is_err());
    assert_eq!(a.send_short(Peer(0), &head(0), &[]), Err(Refusal::Down));
}

#[test]
fn room_ends_a_sleep() {
    let mut all = fresh(2, SingleCopy::Auto);
    let mut inbox = Inbox::default();
    let mut receiver = all.pop().expect("two");
    let sender = &mut all[0];
    while sender.send_short(Peer(1), &head(0), &[]).is_ok() {}
    sender.arm(Wake::Sleep);
    assert!(!sender.has_news(), "no room yet");
    std::thread::scope(|scope| {
        scope.spawn(|| while receiver.poll(&mut inbox) > 0 {});
        sender.sleep(Some(Instant::now() + Duration::from_secs(30)));
    });
    assert!(sender.has_news());
    sender.disarm();
    assert_eq!(sender.send_short(Peer(1), &head(0), &[]), Ok(()));
    assert!(sender.stats().busy > 0);
}

fn readable(descriptor: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry of our own.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

#[test]
fn a_descriptor_wakes() {
    let mut all = fresh(2, SingleCopy::Auto);
    let mut inbox = Inbox::default();
    let descriptor = all[1].descriptor().expect("a descriptor");
    all[1].arm(Wake::Descriptor);
    assert!(!readable(&descriptor) && !all[1].has_news());
    say(&mut all[0], 1, 5);
    assert!(readable(&descriptor) && all[1].has_news());
    all[1].disarm();
    assert!(!readable(&descriptor), "drained");
    all[1].poll(&mut inbox);
    say(&mut all[0], 1, 6);
    assert!(!readable(&descriptor), "an awake rank gets no datagram");
    all[1].poll(&mut inbox);
    assert_eq!(inbox.frames, [(0, 5), (0, 6)]);
    assert_eq!(all[0].stats().wakes, 1);
}

#[test]
fn strangers_do_not_wake() {
    let mut all = fresh(2, SingleCopy::Auto);
    let descriptor = all[1].descriptor().expect("a descriptor");
    all[1].arm(Wake::Descriptor);
    let bell: std::os::unix::net::UnixDatagram = descriptor.try_clone().expect("a descriptor").into();
    let name = bell.local_addr().expect("a name");
    // Any process of this machine can do this: the names of sockets are no secret.
    let stranger = std::os::unix::net::UnixDatagram::unbound().expect("a socket");
    for len in [0, 1, 4, 8, 9, 100] {
        let _ = stranger.send_to_addr(&[0; 100][..len], &name);
        assert!(!readable(&descriptor) && !all[1].has_news(), "{len} bytes of a stranger woke");
    }
    say(&mut all[0], 1, 5);
    assert!(readable(&descriptor) && all[1].has_news());
}

#[test]
fn ptrace_is_allowed_only_where_peers_read() {
    let memory = Shm::memory(2, None).expect("memory");
    for (copy, asks) in [(SingleCopy::Off, false), (SingleCopy::Auto, true)] {
        // SAFETY: the child attaches, and ends without unwinding or flushing.
        let child = unsafe { libc::fork() };
        if child == 0 {
            forbid(libc::SYS_prctl);
            std::mem::forget(attach(&memory, u32::from(asks), 2, copy));
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: waits for the child just made.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WIFSIGNALED(status), asks, "{copy:?}: {status}");
    }
}

#[test]
fn what_a_lost_peer_sent_is_still_handed_over() {
    let mut all = fresh(3, SingleCopy::Auto);
    let mut inbox = Inbox::default();
    (0..50).for_each(|a| say(&mut all[1], 0, a));
    all[0].peer_died(Peer(1), "exit code 3");
    assert_eq!(all[0].send_short(Peer(1), &head(0), &[]), Err(Refusal::Busy), "not reported yet");
    while all[0].poll(&mut inbox) > 0 {}
    assert_eq!(inbox.frames.len(), 50);
    assert_eq!(inbox.lost, [(1, "exit code 3".to_owned())]);
    assert_eq!(all[0].send_short(Peer(1), &head(0), &[]), Err(Refusal::Down));
    say(&mut all[0], 2, 0);
}

#[test]
fn memory_that_is_not_exposed_by_a_live_peer_is_not_read() {
    for copy in [SingleCopy::Auto, SingleCopy::Syscall] {
        let memory = Shm::memory(2, None).expect("memory");
        let mut all = ranks(&memory, 2, copy);
        let (source, target) = (HeapBuffer::copy_of(&[5; 100]), HeapBuffer::zeroed(100));
        let remote = all[1].register(Peer(0), &source, Access::Read).expect("registered");
        let stale = Remote { key: remote.key ^ 1, ..remote };
        assert_eq!(all[0].get(Peer(1), stale, std::slice::from_ref(&target), Token(0)), Transfer::Impossible);
        assert_eq!(
            all[0].get(Peer(9), remote, std::slice::from_ref(&target), Token(0)),
            Transfer::Impossible
        );
        if all[0].can_get(Peer(1)) == Some(true) {
            assert_eq!(all[0].get(Peer(1), remote, std::slice::from_ref(&target), Token(0)), Transfer::Done);
            assert_eq!(all[0].stats().reads, 1);
        }
        drop(all.pop());
        assert_eq!(
            all[0].get(Peer(1), remote, std::slice::from_ref(&target), Token(0)),
            Transfer::Impossible
        );
        assert_eq!(all[0].can_get(Peer(1)), all[0].can_get(Peer(1)));
    }
    // The system refuses a wild address; other reads still succeed.
    let mut all = fresh(2, SingleCopy::Syscall);
    let (source, target) = (HeapBuffer::copy_of(&[5; 100]), HeapBuffer::zeroed(100));
    let remote = all[1].register(Peer(0), &source, Access::Read).expect("registered");
    let wild = Remote { addr: 8, ..remote };
    assert_eq!(all[0].get(Peer(1), wild, std::slice::from_ref(&target), Token(0)), Transfer::Impossible);
    let again = all[0].get(Peer(1), remote, std::slice::from_ref(&target), Token(0));
    assert_eq!(again == Transfer::Done, all[0].can_get(Peer(1)) == Some(true));
}

#[test]
fn what_was_revoked_is_not_read_and_what_is_exposed_later_is() {
    for copy in [SingleCopy::Auto, SingleCopy::Syscall] {
        let mut all = fresh(2, copy);
        let (source, target) = (HeapBuffer::copy_of(&[5; 100]), HeapBuffer::zeroed(100));
        let remote = all[1].register(Peer(0), &source, Access::Read).expect("registered");
        all[1].revoke(Peer(0), remote);
        assert_eq!(
            all[0].get(Peer(1), remote, std::slice::from_ref(&target), Token(0)),
            Transfer::Impossible
        );
        let again = all[1].register(Peer(0), &source, Access::Read).expect("registered");
        let done = all[0].get(Peer(1), again, std::slice::from_ref(&target), Token(0)) == Transfer::Done;
        assert_eq!(done, all[0].can_get(Peer(1)) == Some(true));
    }
}

#[test]
fn idle_pairs_take_no_memory() {
    const N: usize = 64;
    let memory = Shm::memory(N as u32, None).expect("memory");
    let mut all = ranks(&memory, N, SingleCopy::Auto);
    let mut inbox = Inbox::default();
    all.iter_mut().enumerate().for_each(|(me, shm)| say(shm, ((me + 1) % N) as u32, 0));
    all.iter_mut().for_each(|shm| assert_eq!(shm.poll(&mut inbox), 1));
    let blocks = std::os::unix::fs::MetadataExt::blocks(
        &std::fs::File::from(memory).metadata().expect("a memfd has metadata"),
    );
    assert!(blocks * 512 < N as u64 * 16 * 1024, "{} KiB for {N} ranks", blocks / 2);
}

#[test]
fn memory_grows_with_the_pairs_that_talk() {
    // With so many ranks a ring for each pair would take 24 GB.
    const N: u32 = 1000;
    let memory = Shm::memory(N, None).expect("memory");
    let file = std::fs::File::from(memory.try_clone().expect("a descriptor"));
    let taken =
        || std::os::unix::fs::MetadataExt::blocks(&file.metadata().expect("a memfd has metadata")) * 512;
    let mut some: Vec<Shm> =
        [0, 1, 500, 998, 999].map(|me| attach(&memory, me, N as usize, SingleCopy::Auto)).into();
    let before = taken();
    assert!(before < 32 << 10, "{before} bytes before anybody has talked");
    let mut inbox = Inbox::default();
    for to in [1, 500, 998, 999] {
        say(&mut some[0], to, 7);
    }
    say(&mut some[4], 0, 8);
    assert!(some.iter_mut().all(|shm| shm.poll(&mut inbox) == 1), "{inbox:?}");
    assert_eq!(inbox.frames, [(999, 8), (0, 7), (0, 7), (0, 7), (0, 7)]);
    // The control lines and elements of a ring are two pages; a receiver's row of the table is one.
    let each = (taken() - before) / 5;
    assert!(each <= 16 << 10, "{each} bytes a pair");
}

#[test]
fn a_table_of_rings_that_was_overwritten_does_no_harm() {
    let memory = Shm::memory(2, None).expect("memory");
    let file = std::fs::File::from(memory.try_clone().expect("a descriptor"));
    // The table follows the header and two blocks of 256 bytes: from 0 and from 1, to 0 and to 1.
    const PAIRS: u64 = 4096 + 2 * 256;
    file.write_all_at(&[0xff; 16], PAIRS).expect("written");
    let mut all = ranks(&memory, 2, SingleCopy::Auto);
    let mut inbox = Inbox::default();
    say(&mut all[0], 1, 1);
    assert_eq!(all[1].poll(&mut inbox), 1, "an invalid number is replaced by a ring's");
    // Inbound bits of a sender that has no ring, and of ranks that do not exist.
    file.write_all_at(&[0xff; 16], 4096 + 128).expect("written");
    assert_eq!(all[0].poll(&mut inbox), 0);
    assert_eq!(inbox.frames, [(0, 1)]);
}

#[test]
fn no_rank_can_change_the_size_of_the_memory() {
    let memory = Shm::memory(2, None).expect("memory");
    let mut all = ranks(&memory, 2, SingleCopy::Auto);
    let file = std::fs::File::from(memory.try_clone().expect("a descriptor"));
    let size = file.metadata().expect("a memfd has metadata").len();
    for other in [0, size - 4096, size + 4096] {
        assert!(file.set_len(other).is_err(), "{size} bytes became {other}");
    }
    say(&mut all[0], 1, 1);
    assert_eq!(all[1].poll(&mut Inbox::default()), 1);
}

#[test]
fn lack_of_memory_is_an_error_and_no_fault() {
    let mut all = fresh(3, SingleCopy::Auto);
    let mut inbox = Inbox::default();
    say(&mut all[0], 1, 0);
    failing(libc::SYS_fallocate, libc::ENOSPC, || {
        say(&mut all[0], 1, 1);
        let long = all[0].send_bcopy(Peer(1), &head(0), 4096, &mut |_| panic!("not filled"));
        assert_eq!(long, Err(Refusal::Busy), "the data ring has no pages");
        assert_eq!(all[0].send_short(Peer(2), &head(0), &[]), Err(Refusal::Busy));
        assert_eq!(all[0].arena_alloc(3), None);
        while all[0].poll(&mut inbox) > 0 {}
    });
    inbox.lost.sort();
    assert!(matches!(&inbox.lost[..], [(1, _), (2, _)]), "{:?}", inbox.lost);
    assert!(inbox.lost[0].1.contains("no shared memory"), "{:?}", inbox.lost);
    assert_eq!(all[0].send_short(Peer(2), &head(0), &[]), Err(Refusal::Down));
    assert!(all[0].arena_alloc(3).is_some(), "there is memory again");
    // Where the system refuses the call, pages come when they are touched.
    let mut all = fresh(2, SingleCopy::Auto);
    failing(libc::SYS_fallocate, libc::EPERM, || {
        all[0].send_bcopy(Peer(1), &head(3), 4096, &mut |body| body.fill(1)).expect("room");
    });
    all[1].poll(&mut inbox);
    assert_eq!(inbox.frames, [(0, 3)]);
}

#[test]
fn scribbled_memory_does_no_harm_outside() {
    for seed in 0..30 {
        let memory = Shm::memory(2, None).expect("memory");
        let mut all = ranks(&memory, 2, SingleCopy::Syscall);
        let mut inbox = Inbox::default();
        let mut random = Random::new(seed);
        for round in 0..60 {
            for (me, shm) in all.iter_mut().enumerate() {
                let peer = Peer(1 - me as u32);
                let _ = shm.send_bcopy(peer, &head(0), 40 * round, &mut |body| body.fill(3));
                let _ = shm.send_short(peer, &head(0), &[1; 8]);
                shm.arm(Wake::Sleep);
                shm.has_news();
                shm.poll(&mut inbox);
                shm.sleep(Some(Instant::now()));
                shm.disarm();
            }
            // Blocks, the table of pairs, and the control lines and elements of all four rings; words of all sizes.
            let file = std::fs::File::from(memory.try_clone().expect("a descriptor"));
            for _ in 0..random.below(20) {
                let area = [4096, 8192, 8192 + 534_528, 8192 + 2 * 534_528][random.below(4)];
                let at = area + 8 * random.below(1024) as u64;
                let word = random.word() >> (8 * random.below(8));
                file.write_all_at(&word.to_le_bytes(), at).expect("written");
            }
        }
    }
}

/// Once memory is taken back it is not written any more, though a peer is in the middle of a write when that happens.
#[test]
fn what_was_revoked_is_not_written() {
    const BYTES: usize = 1 << 20;
    for copy in [SingleCopy::Auto, SingleCopy::Syscall] {
        let mut all = fresh(2, copy);
        let (mut owner, mut writer) = (all.remove(1), all.remove(0));
        if writer.can_get(Peer(1)) != Some(true) {
            continue;
        }
        let (tell, told) = std::sync::mpsc::channel::<Remote>();
        let begun = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            let begun = &begun;
            scope.spawn(move || {
                let source = HeapBuffer::copy_of(&[5; BYTES]);
                for remote in told {
                    begun.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    while writer.put(Peer(1), remote, std::slice::from_ref(&source), Token(0))
                        == Transfer::Done
                    {}
                }
            });
            let target = HeapBuffer::zeroed(BYTES);
            for round in 1..200 {
                let remote = owner.register(Peer(0), &target, Access::ReadWrite).expect("registered");
                tell.send(remote).expect("the writer lives");
                while begun.load(std::sync::atomic::Ordering::SeqCst) < round {
                    std::thread::yield_now();
                }
                owner.revoke(Peer(0), remote);
                // The writer may be anywhere in its copy if it is not waited for.
                target.write(0, &[7; BYTES]);
                std::thread::sleep(std::time::Duration::from_micros(200));
                let mut bytes = vec![0; BYTES];
                target.read(0, &mut bytes);
                assert!(bytes.iter().all(|&byte| byte == 7), "{copy:?}, round {round}");
            }
            drop(tell);
        });
    }
}

//! Slots of collectives: what is published is seen, once, by all; sleepers are woken; room is reused.

mod common;

use std::time::{Duration, Instant};

use banyan_memory::{Buffer, Scratch};
use banyan_shm::{Arena, Published, Shm, SingleCopy};
use banyan_transport::Fabric;
use common::{Inbox, fresh};

fn bytes(buffer: &Buffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len()];
    buffer.read(buffer.lo(), &mut out);
    out
}

fn inline(arena: &Arena, rank: u32, stamp: u64) -> Option<Vec<u8>> {
    match arena.look(rank, stamp)? {
        Published::Inline(data) => Some(bytes(&data)),
        Published::Region(_) => panic!("published inline"),
    }
}

fn arenas(all: &[Shm], at: u64) -> Vec<Arena> {
    let n = all.len() as u32;
    let peers: Vec<u32> = (0..n).collect();
    all.iter().zip(0..).map(|(shm, me)| shm.arena(at, me, n, &peers)).collect()
}

#[test]
fn publications_are_seen_by_stamp() {
    let all = fresh(3, SingleCopy::Auto);
    let at = all[0].arena_alloc(3).expect("room");
    let slots = arenas(&all, at);
    assert!(inline(&slots[1], 0, 1).is_none());
    slots[0].publish(1, &Scratch::copy_of(b"one"));
    slots[0].publish(2, &Scratch::copy_of(&[7; 4104]));
    assert_eq!(slots[0].inline_bytes(), 4104);
    for reader in &slots {
        assert_eq!(inline(reader, 0, 1).as_deref(), Some(&b"one"[..]));
        assert_eq!(inline(reader, 0, 2), Some(vec![7; 4104]));
        assert!(inline(reader, 0, 3).is_none() && inline(reader, 1, 1).is_none());
        assert_eq!(reader.released(1), 0);
    }
    slots[1].release(2);
    assert_eq!(slots[2].released(1), 2);
    let again = 1 + Arena::BANKS;
    slots[0].publish(again, &Buffer::empty());
    assert_eq!(inline(&slots[2], 0, again), Some(vec![]));
    assert!(inline(&slots[2], 0, 1).is_none(), "its bank was used again");
    assert_eq!(inline(&slots[2], 0, 2), Some(vec![7; 4104]), "another bank");
    slots[0].bank(4).write(100, b"laid");
    assert!(inline(&slots[1], 0, 4).is_none());
    slots[0].publish_bank(4);
    let seen = inline(&slots[1], 0, 4).expect("it is published");
    assert_eq!((seen.len(), &seen[100..104]), (4104, &b"laid"[..]));
}

#[test]
fn regions_are_pulled_in_parts() {
    for copy in [SingleCopy::Auto, SingleCopy::Syscall, SingleCopy::Off] {
        let all = fresh(2, copy);
        let slots = arenas(&all, all[0].arena_alloc(2).expect("room"));
        let source = Scratch::zeroed(100_000);
        (0..100_000).for_each(|i| source.write(i, &[i as u8]));
        slots[0].publish_region(1, &source);
        assert!(matches!(slots[1].look(0, 1), Some(Published::Region(100_000))));
        let can = slots[1].can_pull(0).expect("rank 0 is there");
        assert!(can || copy != SingleCopy::Auto);
        let part = Scratch::zeroed(5000);
        assert_eq!(slots[1].pull(0, 1, 777, &part), can);
        assert!(!can || bytes(&part).iter().enumerate().all(|(i, &b)| b == (i + 777) as u8));
        assert!(!slots[1].pull(0, 1, 95_001, &part), "past the end");
        assert!(!slots[1].pull(0, 1, u64::MAX, &part), "far past the end");
        assert!(!slots[1].pull(0, 2, 0, &part), "not published");
        slots[0].publish(2, &Scratch::copy_of(b"inline"));
        let part = Scratch::zeroed(3);
        assert!(slots[1].pull(0, 2, 2, &part));
        assert_eq!(bytes(&part), b"lin");
    }
}

#[test]
fn regions_that_were_taken_back_are_not_pulled() {
    let all = fresh(2, SingleCopy::Auto);
    let slots = arenas(&all, all[0].arena_alloc(2).expect("room"));
    let (source, target) = (Scratch::copy_of(&[7; 1000]), Scratch::zeroed(1000));
    (1..=4).for_each(|stamp| slots[0].publish_region(stamp, &source));
    slots[0].publish(5, &Scratch::copy_of(b"inline"));
    slots[0].revoke_regions(2, 5);
    slots[0].publish_region(6, &source);
    let pulled = |stamp| slots[1].pull(0, stamp, 0, &target);
    assert_eq!([1, 2, 3, 4, 6].map(pulled), [true, false, false, false, true]);
    assert!(slots[1].pull(0, 5, 0, &Scratch::zeroed(6)), "what is in the slot stays");
}

#[test]
fn regions_of_who_cannot_be_read_are_copied() {
    // In a child, as it holds for a whole process.
    // SAFETY: the child uses memory of its own, and ends without unwinding or flushing.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: plain numbers.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
        let good = std::panic::catch_unwind(copied);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(good.is_err())) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

fn copied() {
    // Nothing can be read: what is pulled comes by the room.
    let all = fresh(2, SingleCopy::Off);
    let slots = arenas(&all, all[0].arena_alloc(2).expect("room"));
    let part = Scratch::zeroed(5000);
    let mut first = None;
    for stamp in 1..=Arena::BANKS * 4 {
        let source = Scratch::copy_of(&[stamp as u8; 100_000]);
        slots[0].publish_region(stamp, &source);
        assert!(matches!(slots[1].look(0, stamp), Some(Published::Region(100_000))));
        assert!(slots[1].pull(0, stamp, 95_000, &part) && bytes(&part) == [stamp as u8; 5000]);
        assert!(!slots[1].pull(0, stamp, 95_001, &part), "past the end");
        slots.iter().for_each(|rank| rank.release(stamp));
        if stamp == Arena::BANKS * 2 {
            first = all[0].arena_alloc(2);
        }
    }
    // Room for copies is used again: what comes now lies where it would have lain then.
    let second = all[0].arena_alloc(2);
    assert_eq!(second.expect("room") - first.expect("room"), Shm::arena_bytes(2) as u64);
    slots[0].publish_region(100, &Scratch::copy_of(&[1; 1000]));
    slots[0].revoke_regions(100, 100);
    assert!(!slots[1].pull(0, 100, 0, &Scratch::zeroed(10)), "taken back");
}

#[test]
fn room_is_given_back_and_comes_zeroed() {
    let all = fresh(2, SingleCopy::Auto);
    let mut taken = vec![];
    while let Some(at) = all[taken.len() % 2].arena_alloc(2) {
        assert!(at.is_multiple_of(64) && !taken.contains(&at));
        taken.push(at);
        assert!(taken.len() < 10_000, "room is bounded");
    }
    assert!(taken.len() >= 32, "{} arenas", taken.len());
    let slots = arenas(&all, taken[5]);
    slots[0].publish(1, &Scratch::copy_of(b"old"));
    slots[1].release(9);
    drop(slots);
    all[0].arena_free(taken[5], 2);
    all[1].arena_free(taken[6], 2);
    let again = [all[0].arena_alloc(2), all[1].arena_alloc(2)].map(|at| at.expect("given back"));
    assert_eq!(again, [taken[6], taken[5]]);
    assert!(all[0].arena_alloc(2).is_none());
    let slots = arenas(&all, taken[5]);
    assert!(inline(&slots[1], 0, 1).is_none());
    assert_eq!(slots[0].released(1), 0);
}

/// Many allreduces of a count, each rank a thread that sleeps whenever it has to wait.
#[test]
fn no_publication_is_slept_through() {
    const N: u32 = 3;
    let all = fresh(N as usize, SingleCopy::Auto);
    let at = all[0].arena_alloc(N).expect("room");
    std::thread::scope(|scope| {
        for (mut shm, me) in all.into_iter().zip(0..) {
            scope.spawn(move || {
                let slots = shm.arena(at, me, N, &[0, 1, 2]);
                for stamp in 1..=300u64 {
                    until(&mut shm, || (0..N).all(|r| slots.released(r) + Arena::BANKS >= stamp));
                    slots.publish(stamp, &Scratch::copy_of(&(stamp * u64::from(me)).to_le_bytes()));
                    until(&mut shm, || (0..N).all(|r| slots.look(r, stamp).is_some()));
                    let value = |r| inline(&slots, r, stamp).expect("just seen");
                    let sum: u64 =
                        (0..N).map(|r| u64::from_le_bytes(value(r).try_into().expect("8 bytes"))).sum();
                    assert_eq!(sum, stamp * u64::from(N * (N - 1) / 2));
                    slots.release(stamp);
                }
            });
        }
    });
}

fn until(shm: &mut Shm, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        shm.arm();
        shm.poll(&mut Inbox::default());
        if !done() {
            shm.sleep(Some(start + Duration::from_secs(30)));
        }
        shm.disarm();
        assert!(start.elapsed() < Duration::from_secs(30), "slept through");
    }
}

#[test]
fn slots_lie_where_words_are_aligned() {
    let all = fresh(2, SingleCopy::Auto);
    let at = all[0].arena_alloc(2).expect("room");
    for off in [1, 4, 8] {
        let open = || drop(all[0].arena(at + off, 0, 2, &[0, 1]));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(open)).is_err(), "{off}");
    }
}

#[test]
fn a_sleeper_that_no_one_waits_for_is_left_alone() {
    let mut all = fresh(3, SingleCopy::Auto);
    let slots = arenas(&all, all[0].arena_alloc(3).expect("room"));
    assert!(slots[1].look(0, 1).is_none());
    all[1].arm();
    all[2].arm();
    slots[0].publish(1, &Buffer::empty());
    assert_eq!(all[0].stats().wakes, 1, "rank 1 looked for it, rank 2 did not");
    assert!(all[1].has_news() && !all[2].has_news());
    all[1].disarm();
    all[1].arm();
    assert!(!all[1].has_news(), "what was missing has come; nothing else is missed");
}

//! Arenas: what a rank publishes all ranks see, once; ranks that sleep are woken; room is used again.

use std::time::{Duration, Instant};

use crate::common::{Inbox, attach, fresh, without};
use banyan_memory::{Buffer, HeapBuffer};
use banyan_shm::{Arena, Published, Shm, SingleCopy};
use banyan_transport::{Fabric, Wake};

fn bytes(buffer: &Buffer) -> Vec<u8> {
    let mut out = vec![0; buffer.len()];
    buffer.read(buffer.lo(), &mut out);
    out
}

fn inline(arena: &Arena, rank: u32, seq: u64) -> Option<Vec<u8>> {
    match arena.poll(rank, seq, true)? {
        Published::Inline(data) => Some(bytes(&data)),
        Published::Exposed(_) => panic!("published inline"),
    }
}

fn arenas(all: &[Shm], at: u64) -> Vec<Arena> {
    let n = all.len() as u32;
    let peers: Vec<u32> = (0..n).collect();
    all.iter().zip(0..).map(|(shm, me)| shm.arena(at, me, n, &peers)).collect()
}

#[test]
fn publications_are_seen_by_sequence_number() {
    let all = fresh(3, SingleCopy::Auto);
    let at = all[0].arena_alloc(3).expect("room");
    let views = arenas(&all, at);
    assert!(inline(&views[1], 0, 1).is_none());
    views[0].publish(1, &HeapBuffer::copy_of(b"one"));
    views[0].publish(2, &HeapBuffer::copy_of(&[7; 4104]));
    assert_eq!(views[0].inline_bytes(), 4104);
    for reader in &views {
        assert_eq!(inline(reader, 0, 1).as_deref(), Some(&b"one"[..]));
        assert_eq!(inline(reader, 0, 2), Some(vec![7; 4104]));
        assert!(inline(reader, 0, 3).is_none() && inline(reader, 1, 1).is_none());
        assert_eq!(reader.acked(1), 0);
    }
    views[1].ack(2);
    assert_eq!(views[2].acked(1), 2);
    let again = 1 + Arena::cells_for(3);
    views[0].publish(again, &Buffer::empty());
    assert_eq!(inline(&views[2], 0, again), Some(vec![]));
    assert!(inline(&views[2], 0, 1).is_none(), "its cell was used again");
    assert_eq!(inline(&views[2], 0, 2), Some(vec![7; 4104]), "another cell");
    views[0].cell(4).write(100, b"data");
    assert!(inline(&views[1], 0, 4).is_none());
    views[0].publish_cell(4);
    let seen = inline(&views[1], 0, 4).expect("it is published");
    assert_eq!((seen.len(), &seen[100..104]), (4104, &b"data"[..]));
}

/// A rank that publishes as much as before is seen at the first look, whatever others publish: where ranks take turns on a core a second look is a turn
/// later.
#[test]
fn each_rank_is_looked_for_where_it_published_last() {
    let all = fresh(3, SingleCopy::Auto);
    let views = arenas(&all, all[0].arena_alloc(3).expect("room"));
    for seq in 1..=8 {
        views[1].publish(seq, &HeapBuffer::copy_of(b"few"));
        views[2].publish(seq, &HeapBuffer::copy_of(&[7; 100]));
        let seen = [1, 2].map(|rank| views[0].poll(rank, seq, false).is_some());
        assert_eq!(seen, [true, seq > 1], "{seq}");
        assert!(views[0].poll(2, seq, false).is_some(), "at the second look");
        views.iter().for_each(|view| view.ack(seq));
    }
}

#[test]
fn exposed_ranges_are_read_in_parts() {
    for copy in [SingleCopy::Auto, SingleCopy::Syscall, SingleCopy::Off] {
        let all = fresh(2, copy);
        let views = arenas(&all, all[0].arena_alloc(2).expect("room"));
        let source = HeapBuffer::zeroed(100_000);
        (0..100_000).for_each(|i| source.write(i, &[i as u8]));
        views[0].expose(1, &source);
        assert!(matches!(views[1].poll(0, 1, true), Some(Published::Exposed(100_000))));
        let can = views[1].can_get(0).expect("rank 0 is there");
        assert!(can || copy != SingleCopy::Auto);
        let part = HeapBuffer::zeroed(5000);
        assert_eq!(views[1].get(0, 1, 777, &part), can);
        assert!(!can || bytes(&part).iter().enumerate().all(|(i, &b)| b == (i + 777) as u8));
        assert!(!views[1].get(0, 1, 95_001, &part), "past the end");
        assert!(!views[1].get(0, 1, u64::MAX, &part), "far past the end");
        assert!(!views[1].get(0, 2, 0, &part), "not published");
        views[0].publish(2, &HeapBuffer::copy_of(b"inline"));
        let part = HeapBuffer::zeroed(3);
        assert!(views[1].get(0, 2, 2, &part));
        assert_eq!(bytes(&part), b"lin");
    }
}

#[test]
fn exposed_ranges_that_were_taken_back_are_not_read() {
    let all = fresh(2, SingleCopy::Auto);
    let views = arenas(&all, all[0].arena_alloc(2).expect("room"));
    let (source, target) = (HeapBuffer::copy_of(&[7; 1000]), HeapBuffer::zeroed(1000));
    (1..=4).for_each(|seq| views[0].expose(seq, &source));
    views[0].publish(5, &HeapBuffer::copy_of(b"inline"));
    views[0].revoke_exposed(2, 5);
    views[0].expose(6, &source);
    let got = |seq| views[1].get(0, seq, 0, &target);
    assert_eq!([1, 2, 3, 4, 6].map(got), [true, false, false, false, true]);
    assert!(views[1].get(0, 5, 0, &HeapBuffer::zeroed(6)), "what is in a cell stays");
}

#[test]
fn exposed_ranges_of_a_process_that_cannot_be_read_are_copied() {
    // In a child, as prctl holds for a whole process.
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
    // No rank can read another's memory: all data come from copies in the segment.
    let all = fresh(2, SingleCopy::Off);
    let views = arenas(&all, all[0].arena_alloc(2).expect("room"));
    let part = HeapBuffer::zeroed(5000);
    let mut first = None;
    // The upper 16 bits of a sequence number are in no order.
    let tagged = |seq: u64| (seq * 7 % 5) << 48 | seq;
    for seq in (1..=Arena::CELLS * 4).step_by(2) {
        let both = [tagged(seq), tagged(seq + 1)];
        for seq in both {
            views[0].expose(seq, &HeapBuffer::copy_of(&[seq as u8; 100_000]));
        }
        for seq in both {
            assert!(matches!(views[1].poll(0, seq, true), Some(Published::Exposed(100_000))));
            assert!(views[1].get(0, seq, 95_000, &part) && bytes(&part) == [seq as u8; 5000]);
            assert!(!views[1].get(0, seq, 95_001, &part), "past the end");
        }
        views.iter().for_each(|rank| rank.ack(seq + 1));
        if seq == Arena::CELLS * 2 + 1 {
            first = all[0].arena_alloc(2);
        }
    }
    // The room of copies is used again: this arena lies right behind the first one.
    let second = all[0].arena_alloc(2);
    assert_eq!(second.expect("room") - first.expect("room"), Shm::arena_bytes(2) as u64);
    views[0].expose(100, &HeapBuffer::copy_of(&[1; 1000]));
    views[0].revoke_exposed(100, 100);
    assert!(!views[1].get(0, 100, 0, &HeapBuffer::zeroed(10)), "taken back");
    // A block that is given is there, and one that is to be put is kept for the other rank to get.
    views.iter().for_each(|rank| rank.ack(100));
    let [given, place] = [[1; 5000], [0; 5000]].map(|bytes| HeapBuffer::copy_of(&bytes));
    views[0].offer(101, 0, &given);
    views[0].offer(101, 24, &place);
    views[0].publish_cell(101);
    assert!(views[1].take(0, 101, 0, &part) && bytes(&part) == [1; 5000]);
    views[1].put(0, 101, Some(24), &HeapBuffer::copy_of(&[2; 5000]));
    assert!(matches!(views[0].poll(1, 101, true), Some(Published::Exposed(5000))));
    assert!(views[0].get(1, 101, 0, &part) && bytes(&part) == [2; 5000] && bytes(&place) == [0; 5000]);
}

/// Where the system lets a rank read and not write, its blocks are kept.
#[test]
fn blocks_are_kept_where_the_system_forbids_to_write() {
    const LEN: usize = 70_000;
    let memory = Shm::memory(2, None).expect("memory");
    let root = attach(&memory, 0, 2, SingleCopy::Syscall);
    let at = root.arena_alloc(2).expect("room");
    let [mine, place] = [[3u8; LEN], [0; LEN]].map(|bytes| HeapBuffer::copy_of(&bytes));
    let arena = root.arena(at, 0, 2, &[0, 1]);
    for (seq, forbidden) in [(1, false), (2, true)] {
        place.write(0, &[0; LEN]);
        arena.offer(seq, 8, &place);
        arena.publish_cell(seq);
        let put = || {
            let leaf = attach(&memory, 1, 2, SingleCopy::Syscall);
            let arena = leaf.arena(at, 1, 2, &[0, 1]);
            assert!(arena.poll(0, seq, true).is_some());
            arena.put(0, seq, Some(8), &mine);
        };
        if forbidden {
            without(libc::SYS_process_vm_writev, put)
        } else {
            put()
        }
        match arena.poll(1, seq, true) {
            Some(Published::Inline(none)) if !forbidden => assert!(none.is_empty()),
            Some(Published::Exposed(len)) if forbidden => {
                assert!(len == LEN as u64 && arena.get(1, seq, 0, &place));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(bytes(&place), [3; LEN]);
    }
}

#[test]
fn room_is_given_back_and_comes_zeroed() {
    let all = fresh(2, SingleCopy::Auto);
    let mut offsets = vec![];
    while let Some(at) = all[offsets.len() % 2].arena_alloc(2) {
        assert!(at.is_multiple_of(64) && !offsets.contains(&at));
        offsets.push(at);
        assert!(offsets.len() < 10_000, "room is bounded");
    }
    assert!(offsets.len() >= 32, "{} arenas", offsets.len());
    let views = arenas(&all, offsets[5]);
    views[0].publish(1, &HeapBuffer::copy_of(b"old"));
    views[1].ack(9);
    drop(views);
    all[0].arena_free(offsets[5], 2);
    all[1].arena_free(offsets[6], 2);
    let again = [all[0].arena_alloc(2), all[1].arena_alloc(2)].map(|at| at.expect("given back"));
    assert_eq!(again, [offsets[6], offsets[5]]);
    assert!(all[0].arena_alloc(2).is_none());
    let views = arenas(&all, offsets[5]);
    assert!(inline(&views[1], 0, 1).is_none());
    assert_eq!(views[0].acked(1), 0);
}

/// Many allreduces of one number; each rank is a thread that sleeps whenever it has to wait.
#[test]
fn no_publication_is_missed_in_sleep() {
    const N: u32 = 3;
    let all = fresh(N as usize, SingleCopy::Auto);
    let at = all[0].arena_alloc(N).expect("room");
    std::thread::scope(|scope| {
        for (mut shm, me) in all.into_iter().zip(0..) {
            scope.spawn(move || {
                let arena = shm.arena(at, me, N, &[0, 1, 2]);
                for seq in 1..=300u64 {
                    until(&mut shm, || (0..N).all(|r| arena.acked(r) + Arena::CELLS >= seq));
                    arena.publish(seq, &HeapBuffer::copy_of(&(seq * u64::from(me)).to_le_bytes()));
                    until(&mut shm, || (0..N).all(|r| arena.poll(r, seq, false).is_some()));
                    let value = |r| inline(&arena, r, seq).expect("just seen");
                    let sum: u64 =
                        (0..N).map(|r| u64::from_le_bytes(value(r).try_into().expect("8 bytes"))).sum();
                    assert_eq!(sum, seq * u64::from(N * (N - 1) / 2));
                    arena.ack(seq);
                }
            });
        }
    });
}

/// A rank that gets on after it has asked to be woken, and then misses something else, asks again before it sleeps.
#[test]
fn a_rank_does_not_sleep_for_what_it_has_asked_nobody_for() {
    let mut all = fresh(3, SingleCopy::Auto);
    let views = arenas(&all, all[0].arena_alloc(3).expect("room"));
    let missed = |rank| inline(&views[0], rank, 1).is_none();
    assert!(missed(1));
    views[1].publish(1, &Buffer::empty());
    all[0].arm(Wake::Sleep);
    assert!(!missed(1) && missed(2));
    assert!(all[0].has_news(), "rank 2 does not know that this one waits");
    all[0].disarm();
    all[0].arm(Wake::Sleep);
    assert!(missed(2) && !all[0].has_news());
    views[2].publish(1, &Buffer::empty());
    assert!(all[0].has_news());
    all[0].disarm();
}

fn until(shm: &mut Shm, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        shm.arm(Wake::Sleep);
        shm.poll(&mut Inbox::default());
        if !done() {
            shm.sleep(Some(start + Duration::from_secs(30)));
        }
        shm.disarm();
        assert!(start.elapsed() < Duration::from_secs(30), "missed in sleep");
    }
}

#[test]
fn an_arena_must_be_aligned() {
    let all = fresh(2, SingleCopy::Auto);
    let at = all[0].arena_alloc(2).expect("room");
    for off in [1, 4, 8] {
        let open = || drop(all[0].arena(at + off, 0, 2, &[0, 1]));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(open)).is_err(), "{off}");
    }
}

#[test]
fn a_sleeper_that_waits_for_something_else_is_not_woken() {
    let mut all = fresh(3, SingleCopy::Auto);
    let views = arenas(&all, all[0].arena_alloc(3).expect("room"));
    assert!(views[1].poll(0, 1, true).is_none());
    all[1].arm(Wake::Sleep);
    all[2].arm(Wake::Sleep);
    views[0].publish(1, &Buffer::empty());
    assert_eq!(all[0].stats().wakes, 1, "rank 1 looked for it, rank 2 did not");
    assert!(all[1].has_news() && !all[2].has_news());
    all[1].disarm();
    all[1].arm(Wake::Sleep);
    assert!(!all[1].has_news(), "what was missing has come; nothing else is missed");
}

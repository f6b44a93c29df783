//! Tests of the ring on memory of the test's own: interleavings under loom; order, wrapping and errors without it.

use super::*;
use crate::swap::BLOCK;
use crate::sync::AtomicU32;

#[cfg(loom)]
use loom::{cell::UnsafeCell, sync::Arc};
#[cfg(not(loom))]
use std::{cell::UnsafeCell, sync::Arc};

const DATA: u64 = 256;

/// A ring whose every element and line of data is an `UnsafeCell` of its own, so that loom sees who touches it.
struct TestRing {
    control: Control,
    words: Vec<AtomicU64>,
    elements: Vec<UnsafeCell<[u8; LINE - 8]>>,
    data: Vec<UnsafeCell<[u8; LINE]>>,
}

// SAFETY: the `UnsafeCell`s are reached by the ring's own rules, which is what these tests are about.
unsafe impl Sync for TestRing {}
// SAFETY: as above.
unsafe impl Send for TestRing {}

fn ring(elements: u32, sent: u64) -> Arc<TestRing> {
    let word = AtomicU64::new;
    let flag = AtomicU32::new;
    let receiver = ReceiverLine { acked: word(sent), data_acked: word(0), blocks: flag(0), span: word(0) };
    let (wake_requested, hot, blocks) = (flag(0), flag(1), flag(0));
    let (data, span, since) = (word(0), word(0), word(0));
    let sender = SenderLine { wake_requested, sent: word(sent), data, hot, blocks, span, since };
    Arc::new(TestRing {
        control: Control { receiver, sender },
        words: (0..elements).map(|_| word(0)).collect(),
        elements: (0..elements).map(|_| UnsafeCell::new([0; LINE - 8])).collect(),
        data: (0..DATA / LINE as u64).map(|_| UnsafeCell::new([0; LINE])).collect(),
    })
}

fn cell_mut<T>(cell: &UnsafeCell<T>, f: impl FnOnce(*mut u8)) {
    #[cfg(loom)]
    cell.with_mut(|bytes| f(bytes.cast()));
    #[cfg(not(loom))]
    f(cell.get().cast());
}

fn cell_ref<T, R>(cell: &UnsafeCell<T>, f: impl FnOnce(*const u8) -> R) -> R {
    #[cfg(loom)]
    return cell.with(|bytes| f(bytes.cast()));
    #[cfg(not(loom))]
    f(cell.get().cast())
}

impl RingMemory for Arc<TestRing> {
    fn elements(&self) -> u32 {
        self.words.len() as u32
    }
    fn data_bytes(&self) -> u64 {
        DATA
    }
    fn first_span(&self) -> u64 {
        DATA / 4
    }
    fn control(&self) -> &Control {
        &self.control
    }
    fn word(&self, element: u32) -> &AtomicU64 {
        &self.words[element as usize]
    }
    unsafe fn fill_element(&self, element: u32, f: impl FnOnce(*mut u8)) {
        cell_mut(&self.elements[element as usize], f);
    }
    unsafe fn read_element<R>(&self, element: u32, f: impl FnOnce(*const u8) -> R) -> R {
        cell_ref(&self.elements[element as usize], f)
    }
    fn prefetch(&self, _element: u32) {}
    unsafe fn fill_data(&self, at: u64, len: usize, f: impl FnOnce(*mut u8)) {
        assert!(len <= LINE && at.is_multiple_of(LINE as u64), "one line a body");
        cell_mut(&self.data[at as usize / LINE], f);
    }
    unsafe fn read_data<R>(&self, at: u64, len: usize, f: impl FnOnce(*const u8) -> R) -> R {
        assert!(len <= LINE && at.is_multiple_of(LINE as u64), "one line a body");
        cell_ref(&self.data[at as usize / LINE], f)
    }
}

/// Swap blocks, each an `UnsafeCell`.
struct TestBlocks([UnsafeCell<[u8; LINE]>; 3]);

// SAFETY: as for `TestRing`.
unsafe impl Sync for TestBlocks {}
// SAFETY: as above.
unsafe impl Send for TestBlocks {}

impl BlockMemory for Arc<TestBlocks> {
    fn blocks(&self) -> usize {
        self.0.len()
    }
    unsafe fn fill_block(&self, block: u8, len: usize, f: impl FnOnce(*mut u8)) {
        assert!(len <= LINE, "one line a body");
        cell_mut(&self.0[usize::from(block)], f);
    }
    unsafe fn read_block(&self, block: u8, len: usize, f: impl FnOnce(*const u8)) {
        assert!(len <= LINE, "one line a body");
        cell_ref(&self.0[usize::from(block)], f);
    }
    fn prefetch(&self, _block: u8, _len: usize) {}
}

type TestSwap = Swap<Arc<TestBlocks>>;

/// The blocks of two ranks, of which the first one holds `mask`.
fn swaps(mask: u32) -> (TestSwap, TestSwap) {
    let blocks = Arc::new(TestBlocks(std::array::from_fn(|_| UnsafeCell::new([0; LINE]))));
    (Swap::new(blocks.clone(), mask), Swap::new(blocks, 0))
}

fn send(to: &mut Producer<Arc<TestRing>>, number: u8, len: usize) -> bool {
    send_in(to, number, len, &mut TestSwap::default())
}

/// Sends in a swap block, if one is at hand.
fn send_in(to: &mut Producer<Arc<TestRing>>, number: u8, len: usize, swap: &mut TestSwap) -> bool {
    to.push(&[number; HEAD], len, &mut |body| body.fill(number), swap)
}

fn receive(from: &mut Consumer<Arc<TestRing>>, number: u8, len: usize) -> bool {
    receive_in(from, number, len, &mut TestSwap::default())
}

fn receive_in(from: &mut Consumer<Arc<TestRing>>, number: u8, len: usize, swap: &mut TestSwap) -> bool {
    let mut check = |head: &[u8; HEAD], body: &[u8]| {
        assert_eq!(head, &[number; HEAD]);
        assert!(body.len() == len && body.iter().all(|&b| b == number), "{body:?}");
    };
    from.consume(&mut check, swap).expect("a valid frame")
}

#[cfg(not(loom))]
mod alone {
    use super::*;
    use banyan_transport::random::Random;

    #[test]
    fn frames_come_in_order_until_the_ring_is_full() {
        let ring = ring(4, 0);
        let (mut to, mut from) = (Producer::new(ring.clone(), 1), Consumer::new(ring, 1));
        for lap in 0..50u8 {
            assert!((0..4).all(|i| send(&mut to, lap + i, 3 * i as usize)));
            assert!(!send(&mut to, 0, 0) && to.is_starved() && !to.has_news());
            assert!((0..4).all(|i| receive(&mut from, lap + i, 3 * i as usize)));
            assert!(!from.ready() && !from.ack(true) && to.has_news(), "the sender did not ask");
            to.request_wake();
            assert!(from.ack(true));
        }
    }

    #[test]
    fn bodies_of_any_length_go_around_the_data_ring() {
        let ring = ring(8, 0);
        let (mut to, mut from) = (Producer::new(ring.clone(), 0), Consumer::new(ring, 0));
        for n in 0..200u8 {
            let len = usize::from(n) % (max_body(DATA) + 1);
            assert!(send(&mut to, n, len), "frame {n}");
            assert!(receive(&mut from, n, len), "frame {n}");
            from.ack_some(true);
        }
    }

    #[test]
    fn the_count_of_frames_wraps() {
        const SLOTS: u64 = 4;
        let start = (1 << 32) - 3 * SLOTS;
        let ring = ring(SLOTS as u32, start);
        let (mut to, mut from) = (Producer::new(ring.clone(), 0), Consumer::new(ring, 0));
        for n in 0..6 * SLOTS {
            assert!(
                !from.ready() && send(&mut to, n as u8, 0) && receive(&mut from, n as u8, 0),
                "frame {n}"
            );
            from.ack_some(true);
        }
    }

    #[test]
    fn a_length_that_no_sender_writes_is_an_error() {
        let ring = ring(4, 0);
        let refused = |word: u64, mask: u32| {
            ring.words[0].store(word, Ordering::Relaxed);
            let (mut swap, _) = swaps(mask);
            let consumed = Consumer::new(ring.clone(), 0).consume(&mut |_, _| panic!("no frame"), &mut swap);
            assert_eq!(consumed, Err(Corrupt), "{word:x}");
        };
        refused(1 | 65 << 32, 0);
        let in_block = |block: u64, len: u64| 1 | len << 32 | (block + 1) << PLACE_SHIFT;
        refused(in_block(3, 64), 0);
        refused(in_block(126, 64), 0);
        // Not wider, wider than the ring, and than any.
        let widened = |exponent: u64| 1 | 64 << 32 | (128 | exponent) << PLACE_SHIFT;
        [6, 9, 127].into_iter().for_each(|exponent| refused(widened(exponent), 0));
        refused(in_block(0, BLOCK as u64 + 1), 0);
        // The receiver itself holds it.
        refused(in_block(0, 64), 1);
        ring.words[0].store(in_block(0, 64), Ordering::Relaxed);
        let consumed =
            Consumer::new(ring, 0).consume(&mut |_, _| panic!("no frame"), &mut TestSwap::default());
        assert_eq!(consumed, Err(Corrupt), "no blocks are known");
    }

    #[test]
    fn the_data_ring_is_used_as_far_as_it_is_needed() {
        let ring = ring(8, 0);
        let (mut to, mut from) = (Producer::new(ring.clone(), 0), Consumer::new(ring, 0));
        for n in 0..LAPS as u8 - 1 {
            assert!(send(&mut to, n, 64) && receive(&mut from, n, 64));
            from.ack(true);
            assert_eq!((to.data_end(64), to.span.bytes), (Some(64), 64), "one at a time");
        }
        // Nothing of what waits is overwritten, and each half is used from its start on.
        for (n, (span, offset)) in (0..).zip([(64, 0), (128, 64), (256, 128), (256, 192)]) {
            assert!(send(&mut to, n, 64));
            assert_eq!((to.span.bytes, to.span.offset(to.data - 1)), (span, offset + 63), "frame {n}");
        }
        assert!(!send(&mut to, 4, 64) && to.is_starved() && !to.has_news());
        assert!((0..4).all(|n| receive(&mut from, n, 64)) && from.span.bytes == 256);
        from.ack(true);
        assert!(to.has_news() && (4..8).all(|n| send(&mut to, n, 64)) && !send(&mut to, 8, 64));
    }

    #[test]
    fn a_ring_that_is_gone_around_often_is_used_whole() {
        let ring = ring(8, 0);
        let (mut to, mut from) = (Producer::new(ring.clone(), 0), Consumer::new(ring, 0));
        let mut laps = std::collections::BTreeMap::new();
        for n in 0..8 * LAPS {
            assert!(send(&mut to, n as u8, 64) && receive(&mut from, n as u8, 64));
            from.ack(true);
            *laps.entry(to.span.bytes).or_insert(0) += 1;
        }
        // The sender looks once in a lap.
        let [first, second] = [64, 128].map(|span| laps[&span] * 64 / span);
        assert!((LAPS..LAPS + 2).contains(&first) && (LAPS..LAPS + 2).contains(&second), "{laps:?}");
        assert!(Vec::from_iter(laps.keys()) == [&64, &128, &256] && to.span.bytes == 256);
    }

    /// Whatever is sent when, with instances that follow each other at any time, what waits is read as it was written.
    #[test]
    fn bodies_come_as_they_were_sent_while_the_span_grows() {
        for seed in 0..300_u64 {
            let mut random = Random::new(seed);
            let ring = ring(8, 0);
            let (mut to, mut from) = (Producer::new(ring.clone(), 0), Consumer::new(ring.clone(), 0));
            let mut waiting = std::collections::VecDeque::new();
            let (mut number, bursts) = (0_u8, 1 + random.below(8));
            for _ in 0..200 {
                for _ in 0..random.below(bursts + 1) {
                    let len = random.below(max_body(DATA) + 1);
                    if send(&mut to, number, len) {
                        waiting.push_back((number, len));
                        number = number.wrapping_add(1);
                    } else {
                        assert!(!waiting.is_empty() || to.has_news(), "seed {seed}: refused for ever");
                    }
                }
                for _ in 0..random.below(bursts + 1) {
                    let Some((number, len)) = waiting.pop_front() else { break };
                    assert!(receive(&mut from, number, len), "seed {seed}");
                    from.ack_some(true);
                }
                if random.once_in(10) {
                    // Room may have been made for a body that is not sent.
                    to.data_end(64);
                    to.save();
                    to = Producer::new(ring.clone(), 0);
                }
                if random.once_in(10) {
                    from.ack(true);
                    from = Consumer::new(ring.clone(), 0);
                }
            }
        }
    }

    /// Bodies to and fro lie in the blocks; what is more than there are blocks goes through the data ring, in order.
    #[test]
    fn blocks_go_to_and_fro_with_bodies() {
        let (there, back) = (ring(8, 0), ring(8, 0));
        let (mut one, mut other) = swaps(u32::MAX);
        let (mut to, mut at) = (Producer::new(there.clone(), 0), Consumer::new(there, 0));
        let (mut reply, mut replied) = (Producer::new(back.clone(), 0), Consumer::new(back, 0));
        for n in 0..100u8 {
            let before = to.data;
            // A short body and a long one take no block, and no data ring.
            assert!(send_in(&mut to, n, INLINE, &mut one) && one.mask() == 0b111);
            assert!((1..=3).all(|i| send_in(&mut to, n + i, 40, &mut one)));
            assert_eq!((to.data, one.mask()), (before, 0));
            assert!(send_in(&mut to, n + 4, 64, &mut one), "no block is left");
            assert!(to.data > before);
            assert!(receive_in(&mut at, n, INLINE, &mut other));
            assert!((1..=3).all(|i| receive_in(&mut at, n + i, 40, &mut other)));
            assert!(receive_in(&mut at, n + 4, 64, &mut other));
            assert_eq!((one.mask(), other.mask()), (0, 0b111));
            assert!((0..3).all(|i| send_in(&mut reply, n + i, 64, &mut other)));
            assert!((0..3).all(|i| receive_in(&mut replied, n + i, 64, &mut one)));
            assert_eq!((reply.data, one.mask(), other.mask()), (0, 0b111, 0));
            at.ack_some(true);
            replied.ack_some(true);
        }
    }

    #[test]
    fn a_full_ring_gives_no_block_away() {
        let ring = ring(1, 0);
        let (mut one, mut other) = swaps(1);
        let (mut to, mut from) = (Producer::new(ring.clone(), 0), Consumer::new(ring, 0));
        assert!(send(&mut to, 0, 0) && !send_in(&mut to, 1, 64, &mut one) && one.mask() == 1);
        assert!(receive(&mut from, 0, 0));
        from.ack(true);
        assert!(send_in(&mut to, 1, 64, &mut one) && receive_in(&mut from, 1, 64, &mut other));
    }

    #[test]
    fn a_later_instance_goes_on_where_the_first_one_left() {
        let ring = ring(4, 0);
        let mut to = Producer::new(ring.clone(), 0);
        assert!(send(&mut to, 1, 50) && send(&mut to, 2, 0) && send(&mut to, 3, 60));
        let mut from = Consumer::new(ring.clone(), 0);
        assert!(receive(&mut from, 1, 50));
        from.ack(true);
        to.save();
        let (mut to, mut from) = (Producer::new(ring.clone(), 0), Consumer::new(ring, 0));
        assert!(send(&mut to, 4, 64));
        assert!(receive(&mut from, 2, 0) && receive(&mut from, 3, 60) && receive(&mut from, 4, 64));
    }
}

#[cfg(loom)]
mod interleaved {
    use super::*;
    use crate::doorbell::{Doorbell, SleepMode};
    use crate::interleaved::explore;
    use crate::sync::fence;
    use loom::thread;

    #[test]
    fn elements_are_handed_over_whole_and_reused_safely() {
        explore(|| {
            let ring = ring(2, 0);
            let (mut to, mut from) = (Producer::new(ring.clone(), 0), Consumer::new(ring, 0));
            let sender = thread::spawn(move || {
                for n in 0..3 {
                    while !send(&mut to, n, 8) {
                        thread::yield_now();
                    }
                }
            });
            for n in 0..3 {
                while !receive(&mut from, n, 8) {
                    thread::yield_now();
                }
                from.ack_some(true);
            }
            sender.join().expect("the sender ends");
        });
    }

    #[test]
    fn data_is_handed_over_whole_and_reused_safely() {
        explore(|| {
            let ring = ring(8, 0);
            let (mut to, mut from) = (Producer::new(ring.clone(), 0), Consumer::new(ring, 0));
            // All but one line of the data ring are in use.
            assert!((0..3).all(|n| send(&mut to, n, 64)));
            let sender = thread::spawn(move || {
                for n in 3..5 {
                    while !send(&mut to, n, 64) {
                        thread::yield_now();
                    }
                }
            });
            for n in 0..5 {
                while !receive(&mut from, n, 64) {
                    thread::yield_now();
                }
                from.ack_some(true);
            }
            sender.join().expect("the sender ends");
        });
    }

    #[test]
    fn blocks_are_handed_over_whole_and_back() {
        explore(|| {
            let (there, back) = (ring(4, 0), ring(4, 0));
            let (mut one, mut other) = swaps(1);
            let (mut to, mut replied) = (Producer::new(there.clone(), 0), Consumer::new(back.clone(), 0));
            let (mut at, mut reply) = (Consumer::new(there, 0), Producer::new(back, 0));
            let peer = thread::spawn(move || {
                for n in 0..2 {
                    while !receive_in(&mut at, n, 64, &mut other) {
                        thread::yield_now();
                    }
                    assert!(send_in(&mut reply, n, 64, &mut other) && other.mask() == 0);
                }
            });
            for n in 0..2 {
                assert!(send_in(&mut to, n, 64, &mut one) && one.mask() == 0);
                while !receive_in(&mut replied, n, 64, &mut one) {
                    thread::yield_now();
                }
            }
            peer.join().expect("the peer ends");
        });
    }

    /// What `Shm` does after a send, with the fence that is otherwise the sleeper's barrier.
    fn wake(bell: &Doorbell) {
        fence(Ordering::SeqCst);
        if !bell.is_awake() {
            bell.claim();
        }
    }

    /// What `Shm` does to sleep: it ends only if the rank is woken, or if there is news.
    fn sleep_unless(bell: &Doorbell, news: impl FnOnce() -> bool) {
        bell.arm(SleepMode::Futex);
        fence(Ordering::SeqCst);
        if !news() {
            while bell.is_armed() {
                thread::yield_now();
            }
        }
        bell.awake();
    }

    #[test]
    fn no_frame_is_missed_in_sleep() {
        explore(|| {
            let (ring, bell) = (ring(2, 0), Arc::new(Doorbell::new()));
            let (mut to, mut from) = (Producer::new(ring.clone(), 0), Consumer::new(ring, 0));
            let theirs = bell.clone();
            let sender = thread::spawn(move || {
                assert!(send(&mut to, 1, 0));
                wake(&theirs);
            });
            sleep_unless(&bell, || from.ready());
            assert!(receive(&mut from, 1, 0), "woken, so it is there");
            sender.join().expect("the sender ends");
        });
    }

    #[test]
    fn no_room_is_missed_in_sleep() {
        explore(|| {
            let (ring, bell) = (ring(1, 0), Arc::new(Doorbell::new()));
            let (mut to, mut from) = (Producer::new(ring.clone(), 0), Consumer::new(ring, 0));
            assert!(send(&mut to, 1, 0));
            let theirs = bell.clone();
            let receiver = thread::spawn(move || {
                assert!(receive(&mut from, 1, 0));
                if from.ack_some(true) {
                    wake(&theirs);
                }
            });
            if !send(&mut to, 2, 0) {
                to.request_wake();
                sleep_unless(&bell, || to.has_news());
                assert!(send(&mut to, 2, 0), "woken, so there is room");
            }
            receiver.join().expect("the receiver ends");
        });
    }

    #[test]
    fn a_frame_in_a_ring_that_is_not_polled_any_more_is_announced() {
        explore(|| {
            let ring = ring(2, 0);
            let (mut to, from) = (Producer::new(ring.clone(), 0), Consumer::new(ring, 0));
            let sender = thread::spawn(move || {
                assert!(send(&mut to, 1, 0));
                fence(Ordering::SeqCst);
                !to.is_hot()
            });
            from.set_hot(false);
            fence(Ordering::SeqCst);
            let seen = from.ready();
            let announced = sender.join().expect("the sender ends");
            assert!(seen || announced, "the frame would be forgotten");
        });
    }
}

//! The suite that every fabric passes: each invariant of the [contract](crate) as one test.
//!
//! A fabric's own tests say `banyan_transport::conformance!(shm, |n| make(n))`, where the factory gives `n`
//! endpoints that do not know each other yet, endpoint `i` being `Peer(i)`, each with its business card, which is empty if peers
//! need none. Single tests take factories of endpoints that know each other. Tests that depend on chance print their seed.

mod contact;
mod handovers;
mod lent;
mod one_sided;
mod sleeps;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use banyan_memory::{Buffer, HeapBuffer, SimulatedDevice};

pub use contact::{business_cards, down, gone_before_contact, introduced, without_cards};
pub use handovers::handovers;
pub use lent::memory_is_lent_until_told;
pub use one_sided::{atomics, puts, reads, reads_together};
pub use sleeps::{
    a_sleep_on_the_descriptor_misses_nothing, polls_only_when_woken, sleep_ends_at_the_deadline,
    sleep_misses_nothing,
};

use crate::random::Random;
use crate::{Class, Fabric, Head, Order, Outcome, Peer, Refusal, Sent, Sink, Token, Wake};

/// Makes a module of tests, one for each invariant, from a name and a factory `Fn(usize) -> Vec<(impl Fabric, Vec<u8>)>`; or of some
/// of them, from a factory `Fn(usize) -> Vec<impl Fabric>` of endpoints that know each other.
#[macro_export]
macro_rules! conformance {
    ($name:ident, $strangers:expr) => {
        mod $name {
            use super::*;
            #[test] fn business_cards() { $crate::conformance::business_cards(&$strangers); }
            $crate::conformance!(all, |n| $crate::conformance::introduced(($strangers)(n)); in_order_once_and_whole, back_pressure,
                many_peers, interleavings, two_threads, memory_is_lent_until_told, handovers, reads, reads_together, puts, atomics,
                sleep_misses_nothing, a_sleep_on_the_descriptor_misses_nothing, sleep_ends_at_the_deadline, polls_only_when_woken, unsent);
        }
    };
    ($name:ident, $factory:expr; $($test:ident),+) => {
        mod $name {
            #[allow(unused_imports, reason = "what the factory needs is named in the module around")]
            use super::*;
            $(#[test] fn $test() { $crate::conformance::$test(&$factory); })+
        }
    };
}

/// Runs the whole suite, for programs without a test harness.
pub fn run<F: Fabric + Send>(make: &impl Fn(usize) -> Vec<F>) {
    in_order_once_and_whole(make);
    back_pressure(make);
    many_peers(make);
    interleavings(make);
    two_threads(make);
    memory_is_lent_until_told(make);
    handovers(make);
    reads(make);
    reads_together(make);
    puts(make);
    atomics(make);
    sleep_misses_nothing(make);
    a_sleep_on_the_descriptor_misses_nothing(make);
    sleep_ends_at_the_deadline(make);
    polls_only_when_woken(make);
    unsent(make);
}

/// The time that a step may take before the suite calls it stuck.
const PATIENCE: Duration = Duration::from_secs(120);

/// The bit of a frame's seed that says that it is sent by [`crate::Port::send_from`].
const FROM_MEMORY: u64 = 1 << 40;
/// The bit of a frame's seed that says that its sink names memory for the body.
const LANDED: u64 = 1 << 41;
/// The bit of a frame's seed that says that it need not keep its place, if it is sent from memory.
const UNORDERED: u64 = 1 << 45;
/// Bits of a frame's seed: if all are set, the memory of the two above is a device's.
const ON_DEVICE: u64 = 7 << 42;

/// Memory that frames go from or to, for a frame of this seed.
fn memory(seed: u64, len: usize) -> Buffer {
    match seed & ON_DEVICE {
        ON_DEVICE => SimulatedDevice::new(len, seed).alloc(len),
        _ => HeapBuffer::zeroed(len),
    }
}

/// The sending half of a check: numbers the frames to each receiver and fills them from a seed that they carry.
struct Outbox {
    /// Number of frames sent so far.
    next: Vec<u32>,
    /// Number of those that need not keep their place.
    unordered: Vec<u32>,
    random: Random,
}

impl Outbox {
    fn new(peers: usize, seed: u64) -> Self {
        Self { next: vec![0; peers], unordered: vec![0; peers], random: Random::new(seed) }
    }

    /// The head of the next frame, which tells the frame's number among those of its order.
    fn head(&self, to: usize, len: usize, seed: u64, order: Order) -> Head {
        let class = Class::from_u8((seed % 4) as u8).expect("four classes");
        let (kind, aux) = ((seed >> 8) as u8, (seed >> 16) as u32 & 0xffff);
        let a = match order {
            Order::Ordered => self.next[to] - self.unordered[to],
            Order::Unordered => ANY_PLACE | self.unordered[to],
        };
        Head { class, kind, aux, a, b: len as u32, ctx: seed }
    }

    /// Sends a frame of `len` bytes from memory, which is given back.
    fn send_from(
        &mut self,
        via: &mut impl Fabric,
        to: usize,
        len: usize,
        token: Option<Token>,
    ) -> Result<(Buffer, Sent), Refusal> {
        let seed = self.random.word();
        let order = if seed & UNORDERED == 0 { Order::Ordered } else { Order::Unordered };
        let mut body = vec![0; len];
        pattern(seed, &mut body);
        let memory = memory(seed, len + 3);
        memory.write(2, &body);
        let head = self.head(to, len, seed, order);
        let sent = via.send_from(Peer(to as u32), &head, (&memory, 2, len), token, order)?;
        self.next[to] += 1;
        self.unordered[to] += u32::from(order == Order::Unordered);
        Ok((memory, sent))
    }

    /// Sends one frame of `len` bytes, by `send_short` if it is short enough and `short` is true.
    fn send(&mut self, via: &mut impl Fabric, to: usize, len: usize, short: bool) -> Result<(), Refusal> {
        let (peer, seed) = (Peer(to as u32), self.random.word());
        let head = self.head(to, len, seed, Order::Ordered);
        let sent = if short && len <= via.caps(peer).max_short {
            let mut body = vec![0; len];
            pattern(seed, &mut body);
            via.send_short(peer, &head, &body)
        } else if seed & FROM_MEMORY != 0 {
            let (memory, sent) = self.send_from(via, to, len, None)?;
            assert_eq!(sent, Sent::Done, "without a token the memory is free at once");
            memory.write(2, &vec![0xee; len]);
            return Ok(());
        } else {
            let mut fills = 0;
            let sent = via.send_bcopy(peer, &head, len, &mut |body| {
                assert_eq!(body.len(), len, "the slice to fill has the length asked for");
                pattern(seed, body);
                fills += 1;
            });
            assert_eq!(fills, usize::from(sent.is_ok()), "fill runs once if the send is taken, else never");
            sent
        };
        self.next[to] += u32::from(sent.is_ok());
        sent
    }
}

/// The bit of a frame's number that says that it need not keep its place.
const ANY_PLACE: u32 = 1 << 31;

/// The receiving half: checks number, length and bytes of each frame.
#[derive(Default)]
struct Inbox {
    /// Number of frames that keep their place, by sender.
    next: Vec<u32>,
    /// Numbers of those that need not, by sender.
    unordered: HashMap<usize, HashSet<u32>>,
    frames: usize,
    got: Vec<(Token, Outcome)>,
    sent: Vec<Token>,
    lost: Vec<Peer>,
    wanted: Vec<Peer>,
    /// Memory for the bodies under way, by sender and seed.
    bodies: HashMap<(Peer, u64), Buffer>,
}

impl Inbox {
    fn from(&self, peer: usize) -> u32 {
        let unordered = self.unordered.get(&peer).map_or(0, HashSet::len);
        self.next.get(peer).copied().unwrap_or(0) + unordered as u32
    }
}

impl Sink for Inbox {
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        assert!(!self.lost.contains(&peer), "a frame of {peer:?}, which was reported gone");
        let from = peer.0 as usize;
        self.next.resize(self.next.len().max(from + 1), 0);
        if head.a & ANY_PLACE != 0 {
            let fresh = self.unordered.entry(from).or_default().insert(head.a);
            assert!(fresh, "frame of {peer:?} doubled");
        } else {
            assert_eq!(head.a, self.next[from], "frame of {peer:?} out of order, doubled or lost");
            self.next[from] += 1;
        }
        assert_eq!(head.b as usize, body.len(), "length of frame {} of {peer:?}", head.a);
        assert_eq!(head.class, Class::from_u8((head.ctx % 4) as u8).expect("four classes"));
        assert_eq!((head.kind, head.aux), ((head.ctx >> 8) as u8, (head.ctx >> 16) as u32 & 0xffff));
        let mut expected = vec![0; body.len()];
        pattern(head.ctx, &mut expected);
        assert!(body == expected, "bytes of frame {} of {peer:?} ({} bytes)", head.a, body.len());
        self.frames += 1;
    }

    fn landing(&mut self, peer: Peer, head: &Head, len: usize) -> Option<Buffer> {
        assert_eq!(head.b as usize, len);
        let memory = || self.bodies.entry((peer, head.ctx)).or_insert_with(|| memory(head.ctx, len)).clone();
        (head.ctx & LANDED != 0).then(memory)
    }

    fn landed(&mut self, peer: Peer, head: &Head, len: usize) {
        let mut body = vec![0; len];
        self.bodies.remove(&(peer, head.ctx)).expect("it was asked for").read(0, &mut body);
        self.frame(peer, head, &body);
    }

    fn sent(&mut self, token: Token) {
        assert!(self.got.iter().all(|done| done.0 != token), "local completion does not come last");
        self.sent.push(token);
    }

    fn completed(&mut self, token: Token, outcome: Outcome) {
        self.got.push((token, outcome));
    }

    fn down(&mut self, peer: Peer, cause: &str) {
        assert!(!cause.is_empty(), "a cause is given");
        self.lost.push(peer);
    }

    fn wanted(&mut self, peer: Peer) {
        self.wanted.push(peer);
    }
}

fn pattern(seed: u64, bytes: &mut [u8]) {
    let mut random = Random::new(seed);
    for piece in bytes.chunks_mut(8) {
        piece.copy_from_slice(&random.word().to_le_bytes()[..piece.len()]);
    }
}

/// Lengths at which a fabric may change its way: around 0, a cache line, the short limit, powers of two, the largest.
fn lengths(via: &impl Fabric, peer: usize) -> Vec<usize> {
    let caps = via.caps(Peer(peer as u32));
    assert!(caps.max_bcopy >= 4096 && caps.max_short <= caps.max_bcopy, "{caps:?}");
    let mut all: Vec<usize> = (0..130).collect();
    for mark in [caps.max_short, 256, 512, 1024, 2048, 4096, caps.max_bcopy / 2, caps.max_bcopy] {
        all.extend(mark.saturating_sub(2)..=mark + 2);
    }
    all.retain(|&len| len <= caps.max_bcopy);
    all
}

/// A random length, small ones more often.
fn some_length(random: &mut Random, max: usize) -> usize {
    let bits = random.below(usize::BITS as usize - max.leading_zeros() as usize + 1);
    random.below((1 << bits) + 1).min(max)
}

/// Calls `step` until it returns true.
fn until(what: &str, mut step: impl FnMut() -> bool) {
    let start = Instant::now();
    while !step() {
        assert!(start.elapsed() < PATIENCE, "{what}: stuck");
        std::thread::yield_now();
    }
}

/// Frames of all lengths, short and copied, both ways at once, arrive in order, once and whole.
pub fn in_order_once_and_whole<F: Fabric>(make: &impl Fn(usize) -> Vec<F>) {
    let mut ends = make(2);
    let lengths = lengths(&ends[0], 1);
    let total = lengths.len() * 2;
    let mut out = [Outbox::new(2, 1), Outbox::new(2, 2)];
    let mut inbox = [Inbox::default(), Inbox::default()];
    until("frames of all lengths", || {
        for me in 0..2 {
            let sent = out[me].next[1 - me] as usize;
            if sent < total {
                let _ = out[me].send(&mut ends[me], 1 - me, lengths[sent / 2], sent.is_multiple_of(2));
            }
            ends[me].poll(&mut inbox[me]);
        }
        inbox[0].frames == total && inbox[1].frames == total
    });
    for me in 0..2 {
        assert_nothing_more(&mut ends[me], &mut inbox[me]);
    }
}

/// What a process sends to itself arrives, and it reaches its own memory: for fabrics that carry that. `make` gives
/// `Peer(0)`.
pub fn to_itself<F: Fabric>(make: &impl Fn() -> F) {
    let mut ends = [make()];
    assert!(ends[0].reaches(Peer(0)));
    let lengths = lengths(&ends[0], 0);
    let (mut out, mut inbox) = (Outbox::new(1, 12), Inbox::default());
    until("frames to oneself", || {
        let sent = out.next[0] as usize;
        let more = sent < 2 * lengths.len();
        let sends = more && out.send(&mut ends[0], 0, lengths[sent / 2], sent.is_multiple_of(2)).is_ok();
        if !sends || sent.is_multiple_of(7) {
            ends[0].poll(&mut inbox);
        }
        inbox.frames == 2 * lengths.len()
    });
    assert_nothing_more(&mut ends[0], &mut inbox);
    one_sided::reads_between(&mut ends, 0);
    one_sided::puts_between(&mut ends, 0);
    one_sided::atomics_between(&mut ends, 0);
}

fn assert_nothing_more(end: &mut impl Fabric, inbox: &mut Inbox) {
    let before = inbox.frames;
    for _ in 0..100 {
        end.poll(inbox);
    }
    assert_eq!(inbox.frames, before, "no frame arrives that was not sent");
    assert!(inbox.lost.is_empty(), "no peer is lost that lives");
}

/// Sends to a receiver that does not poll may be refused in the end; no frame is lost either way.
pub fn back_pressure<F: Fabric>(make: &impl Fn(usize) -> Vec<F>) {
    for len in [0, 36, 4096, usize::MAX] {
        let mut ends = make(2);
        let len = len.min(ends[0].caps(Peer(1)).max_bcopy);
        let (mut out, mut inbox, mut idle) = (Outbox::new(2, 3), Inbox::default(), Inbox::default());
        let mut refused = 0;
        let most = (64 << 20) / (len + 64);
        while refused < 1000 && (out.next[1] as usize) < most.min(200_000) {
            match out.send(&mut ends[0], 1, len, true) {
                Ok(()) => {}
                Err(Refusal::Busy) => {
                    refused += 1;
                    ends[0].poll(&mut idle);
                }
                Err(Refusal::Down) => panic!("the peer is not gone"),
            }
        }
        let goal = out.next[1] + 100;
        until("a slow receiver", || {
            if out.next[1] < goal {
                let _ = out.send(&mut ends[0], 1, len, true);
            }
            ends[0].poll(&mut idle);
            ends[1].poll(&mut inbox);
            inbox.from(0) == goal
        });
        assert_nothing_more(&mut ends[1], &mut inbox);
    }
}

/// All endpoints send to all others.
pub fn many_peers<F: Fabric>(make: &impl Fn(usize) -> Vec<F>) {
    const N: usize = 9;
    const EACH: u32 = 40;
    let mut ends = make(N);
    let mut out: Vec<Outbox> = (0..N).map(|i| Outbox::new(N, 10 + i as u64)).collect();
    let mut inbox: Vec<Inbox> = (0..N).map(|_| Inbox::default()).collect();
    until("all to all", || {
        for me in 0..N {
            for to in (0..N).filter(|&to| to != me) {
                if out[me].next[to] < EACH {
                    let _ = out[me].send(&mut ends[me], to, (to * 97) % 1500, true);
                }
            }
            ends[me].poll(&mut inbox[me]);
        }
        inbox.iter().all(|i| i.frames == (N - 1) * EACH as usize)
    });
    for me in 0..N {
        assert_nothing_more(&mut ends[me], &mut inbox[me]);
    }
}

/// Sends and polls of three endpoints in random order, under some fixed seeds and a fresh one.
pub fn interleavings<F: Fabric>(make: &impl Fn(usize) -> Vec<F>) {
    let fresh = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    for seed in [1, 2, 3, 4, fresh] {
        println!("interleavings: seed {seed}");
        interleave(make(3), seed);
    }
}

fn interleave<F: Fabric>(mut ends: Vec<F>, seed: u64) {
    let n = ends.len();
    let mut random = Random::new(seed);
    let mut out: Vec<Outbox> = (0..n).map(|_| Outbox::new(n, random.word())).collect();
    let mut inbox: Vec<Inbox> = (0..n).map(|_| Inbox::default()).collect();
    for _ in 0..1500 {
        let me = random.below(n);
        let to = (me + 1 + random.below(n - 1)) % n;
        match random.below(5) {
            0 => {
                let nothing = ends[me].nothing_to_poll();
                assert!(
                    ends[me].poll(&mut inbox[me]) == 0 || !nothing,
                    "it was certain that nothing is there"
                );
            }
            1 => {
                ends[me].arm(Wake::Sleep);
                ends[me].poll(&mut inbox[me]);
                ends[me].disarm();
            }
            _ => {
                let max = ends[me].caps(Peer(to as u32)).max_bcopy;
                let _ = out[me].send(&mut ends[me], to, some_length(&mut random, max), random.once_in(2));
            }
        }
    }
    until(&format!("interleavings, seed {seed}"), || {
        for me in 0..n {
            ends[me].poll(&mut inbox[me]);
        }
        (0..n).all(|me| (0..n).all(|from| inbox[me].from(from) == out[from].next[me]))
    });
    for me in 0..n {
        assert_nothing_more(&mut ends[me], &mut inbox[me]);
    }
}

/// Two threads send to each other as quickly as they can.
pub fn two_threads<F: Fabric + Send>(make: &impl Fn(usize) -> Vec<F>) {
    const FRAMES: u32 = 20_000;
    let ends = make(2);
    std::thread::scope(|scope| {
        for (me, mut end) in ends.into_iter().enumerate() {
            scope.spawn(move || {
                let (mut out, mut inbox) = (Outbox::new(2, 7), Inbox::default());
                let mut random = Random::new(me as u64);
                let max = end.caps(Peer(1 - me as u32)).max_bcopy;
                until("two threads", || {
                    for _ in 0..random.below(20) {
                        let len = if random.once_in(20) { some_length(&mut random, max) } else { 8 };
                        if out.next[1 - me] == FRAMES || out.send(&mut end, 1 - me, len, true).is_err() {
                            break;
                        }
                    }
                    end.poll(&mut inbox);
                    inbox.from(1 - me) == FRAMES && out.next[1 - me] == FRAMES && !end.unsent()
                });
            });
        }
    });
}

/// Once `unsent` is false the sender may stop polling: every frame arrives. At first a few frames leave; then, while nobody receives,
/// as many as the fabric takes.
pub fn unsent<F: Fabric>(make: &impl Fn(usize) -> Vec<F>) {
    const MOST: u32 = 1000;
    let mut ends = make(2);
    let (mut out, mut inbox, mut idle) = (Outbox::new(2, 9), Inbox::default(), Inbox::default());
    for len in [0, 8, 100, 4096, 4096, 1, 2000] {
        until("a send", || {
            let sent = out.send(&mut ends[0], 1, len, false).is_ok();
            ends[0].poll(&mut idle);
            ends[1].poll(&mut inbox);
            sent
        });
    }
    let max = ends[0].caps(Peer(1)).max_bcopy;
    for fills in [false, true] {
        while fills && out.next[1] < MOST && out.send(&mut ends[0], 1, max, false).is_ok() {}
        until("all leaves", || {
            ends[0].poll(&mut idle);
            ends[1].poll(&mut inbox);
            !ends[0].unsent()
        });
        until("all arrives, with a silent sender", || {
            ends[1].poll(&mut inbox);
            inbox.from(0) == out.next[1]
        });
    }
}

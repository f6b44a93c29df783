//! One-sided transfers, as far as a fabric has them: what it lacks it refuses.

use banyan_memory::{Buffer, HeapBuffer, MemoryKind, SimulatedDevice};

use super::{Inbox, pattern, some_length, until};
use crate::random::Random;
use crate::{Access, Atomic, Fabric, Fetch, Kinds, Outcome, Peer, RegisterError, Remote, Token, Transfer};

/// Bytes of the memory that transfers go from and to.
const BYTES: usize = 1 << 20;

/// Reads: odd lengths and alignments, parts of the registered range, local memory in pieces, and nothing written beside it. A
/// fabric without them refuses.
pub fn reads<F: Fabric>(make: &impl Fn(usize) -> Vec<F>) {
    reads_between(&mut make(2), 1);
}

/// [`reads`] by endpoint 0 in the memory of endpoint `of`.
pub(super) fn reads_between<F: Fabric>(ends: &mut [F], of: usize) {
    let peer = Peer(of as u32);
    let (readable, device) = (ends[0].caps(peer).get, SimulatedDevice::new(BYTES, 1));
    if !readable.has(Kinds::of(MemoryKind::Device)) {
        let refused = ends[of].register(Peer(0), &device.alloc(64), Access::Read);
        assert_eq!(refused, Err(RegisterError::Unsupported), "as the capabilities say");
    }
    if !readable.has(Kinds::HOST) {
        let get = ends[0].get(peer, nowhere(8), &[HeapBuffer::zeroed(8)], Token(0));
        return assert_eq!(get, Transfer::Impossible, "as the capabilities say");
    }
    let (source, bytes) = filled(6);
    let target = HeapBuffer::zeroed(BYTES);
    let mut random = Random::new(5);
    for round in 0..200 {
        let Range { at, to, len, skip } = Range::any(&mut random, round);
        let Some(whole) = register(&mut ends[of], &source.slice(at as isize, len), Access::Read) else {
            continue;
        };
        let mut expected = contents(&target);
        let local = pieces(&mut random, &target, to, len - skip);
        let part = Remote { addr: whole.addr + skip as u64, len: (len - skip) as u64, key: whole.key };
        let over = run(ends, Token(round), |end, token| end.get(peer, part, &local, token));
        ends[of].withdraw(Peer(0), whole);
        if over {
            expected[to..to + len - skip].copy_from_slice(&bytes[at + skip..at + len]);
            assert!(contents(&target) == expected, "read {round}: {len} bytes less {skip} from {at} to {to}");
        }
    }
}

/// Reads of several ranges at once: as many as the fabric says are there, and nothing beside all of them is written. None of what was revoked.
pub fn reads_together<F: Fabric>(make: &impl Fn(usize) -> Vec<F>) {
    let (mut ends, peer) = (make(2), Peer(1));
    let (source, bytes) = filled(10);
    let target = HeapBuffer::zeroed(BYTES);
    let mut random = Random::new(11);
    for round in 0..200 {
        let Range { at, to, len, .. } = Range::any(&mut random, round);
        let Some(whole) = register(&mut ends[1], &source.slice(at as isize, len), Access::Read) else {
            return;
        };
        let mut addr = whole.addr;
        let mut part = |local: Buffer| {
            let remote = Remote { addr, len: local.len() as u64, key: whole.key };
            addr += remote.len;
            (remote, local)
        };
        let gets: Vec<_> = pieces(&mut random, &target, to, len).into_iter().map(&mut part).collect();
        let mut expected = contents(&target);
        let read = ends[0].get_together(peer, &mut gets.iter().cloned());
        let end = to + gets[..read].iter().map(|(_, local)| local.len()).sum::<usize>();
        expected[to..end].copy_from_slice(&bytes[at..at + end - to]);
        let found = contents(&target);
        assert!(found[..end] == expected[..end], "{read} of {} reads, round {round}", gets.len());
        assert!(found[to + len..] == expected[to + len..], "beside the reads of round {round}");
        ends[1].revoke(Peer(0), whole);
        let read = ends[0].get_together(peer, &mut gets.iter().take(usize::from(len > 0)).cloned());
        assert_eq!(read, 0, "revoked, round {round}");
    }
}

/// Puts, like [`reads`] the other way around; a local completion comes once, and not after the end.
pub fn puts<F: Fabric>(make: &impl Fn(usize) -> Vec<F>) {
    puts_between(&mut make(2), 1);
}

/// [`puts`] by endpoint 0 in the memory of endpoint `of`.
pub(super) fn puts_between<F: Fabric>(ends: &mut [F], of: usize) {
    let peer = Peer(of as u32);
    if !ends[0].caps(peer).put.has(Kinds::HOST) {
        let put = ends[0].put(peer, nowhere(8), &[HeapBuffer::zeroed(8)], Token(0));
        return assert_eq!(put, Transfer::Impossible, "as the capabilities say");
    }
    let (source, bytes) = filled(8);
    let target = HeapBuffer::zeroed(BYTES);
    let mut random = Random::new(7);
    for round in 0..200 {
        let Range { at, to, len, skip } = Range::any(&mut random, round);
        let Some(whole) = register(&mut ends[of], &target.slice(to as isize, len), Access::ReadWrite) else {
            continue;
        };
        let mut expected = contents(&target);
        let local = pieces(&mut random, &source, at, len - skip);
        let part = Remote { addr: whole.addr + skip as u64, len: (len - skip) as u64, key: whole.key };
        let over = run(ends, Token(round), |end, token| end.put(peer, part, &local, token));
        ends[of].withdraw(Peer(0), whole);
        if over {
            expected[to + skip..to + len].copy_from_slice(&bytes[at..at + len - skip]);
            assert!(contents(&target) == expected, "put {round}: {len} bytes less {skip} from {at} to {to}");
        }
    }
}

/// Operations on a word give its old value and change it, and nothing beside it.
pub fn atomics<F: Fabric>(make: &impl Fn(usize) -> Vec<F>) {
    atomics_between(&mut make(2), 1);
}

/// [`atomics`] by endpoint 0 in the memory of endpoint `of`.
pub(super) fn atomics_between<F: Fabric>(ends: &mut [F], of: usize) {
    let peer = Peer(of as u32);
    if !ends[0].caps(peer).atomics.has(Kinds::HOST) {
        let op = Atomic::Fetch(Fetch::Add, 1);
        let done = ends[0].atomic(peer, nowhere(8), op, &HeapBuffer::zeroed(8), Token(0));
        return assert_eq!(done, Transfer::Impossible, "as the capabilities say");
    }
    let (memory, result) = (HeapBuffer::zeroed(24), HeapBuffer::zeroed(8));
    let Some(whole) = register(&mut ends[of], &memory, Access::ReadWrite) else { return };
    let word = Remote { addr: whole.addr + 8, len: 8, key: whole.key };
    let mut random = Random::new(9);
    let mut value = 0u64;
    for round in 0..500 {
        let operand = random.word();
        let fetch = [Fetch::Add, Fetch::And, Fetch::Or, Fetch::Xor, Fetch::Swap];
        let op = match random.below(7) {
            5 => Atomic::CompareSwap { old: value, new: operand },
            6 => Atomic::CompareSwap { old: value ^ 1, new: operand },
            kind => Atomic::Fetch(fetch[kind], operand),
        };
        if run(ends, Token(round), |end, token| end.atomic(peer, word, op, &result, token)) {
            assert_eq!(u64::from_ne_bytes(contents(&result).try_into().expect("8 bytes")), value, "{op:?}");
            value = op.apply(value);
        }
        let expected = [[0; 8], value.to_ne_bytes(), [0; 8]].concat();
        assert_eq!(contents(&memory), expected, "round {round}: {op:?}");
    }
}

/// A part of a range: `len` bytes at `at` here and at `to` there, of which the first `skip` are left out.
struct Range {
    at: usize,
    to: usize,
    len: usize,
    skip: usize,
}

impl Range {
    fn any(random: &mut Random, round: u64) -> Self {
        let len = match round {
            0 => 0,
            1 => BYTES,
            _ => some_length(random, BYTES / 4),
        };
        let skip = if round.is_multiple_of(2) { 0 } else { len / 3 };
        Self { at: random.below(BYTES - len + 1), to: random.below(BYTES - len + 1), len, skip }
    }
}

/// Memory that an endpoint registers for endpoint 0; `None`: there is no room after many tries.
fn register<F: Fabric>(end: &mut F, memory: &Buffer, access: Access) -> Option<Remote> {
    let remote = (0..100).find_map(|_| end.register(Peer(0), memory, access).ok())?;
    assert_eq!(remote.len, memory.len() as u64);
    Some(remote)
}

/// A range that nobody registered.
fn nowhere(len: u64) -> Remote {
    Remote { addr: 4096, len, key: u64::MAX }
}

/// One transfer by endpoint 0, until it is over; false if the fabric finds it impossible.
fn run<F: Fabric>(ends: &mut [F], token: Token, mut start: impl FnMut(&mut F, Token) -> Transfer) -> bool {
    let mut inbox: Vec<Inbox> = ends.iter().map(|_| Inbox::default()).collect();
    let mut started = Transfer::Busy;
    until("the start of a transfer", || {
        started = start(&mut ends[0], token);
        if started == Transfer::Busy {
            poll_all(ends, &mut inbox);
        }
        started != Transfer::Busy
    });
    if started != Transfer::Started {
        return started == Transfer::Done;
    }
    until("a transfer", || {
        poll_all(ends, &mut inbox);
        !inbox[0].got.is_empty()
    });
    assert!(inbox[0].got.len() == 1 && inbox[0].got[0].0 == token, "one answer, with its token");
    assert!(
        inbox[0].sent.iter().all(|&sent| sent == token) && inbox[0].sent.len() < 2,
        "one local completion"
    );
    inbox[0].got[0].1 == Outcome::Done
}

fn poll_all<F: Fabric>(ends: &mut [F], inbox: &mut [Inbox]) {
    for (end, inbox) in ends.iter_mut().zip(inbox) {
        end.poll(inbox);
    }
}

/// The `len` bytes at `at`, in up to 40 pieces, empty ones among them.
fn pieces(random: &mut Random, memory: &Buffer, at: usize, len: usize) -> Vec<Buffer> {
    let mut cuts: Vec<usize> = (0..random.below(40)).map(|_| random.below(len + 1)).collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    cuts.windows(2).map(|cut| memory.slice((at + cut[0]) as isize, cut[1] - cut[0])).collect()
}

fn filled(seed: u64) -> (Buffer, Vec<u8>) {
    let mut bytes = vec![0; BYTES];
    pattern(seed, &mut bytes);
    (HeapBuffer::copy_of(&bytes), bytes)
}

fn contents(memory: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    bytes
}

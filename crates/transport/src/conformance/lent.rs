//! Frames sent from memory that the fabric may need after the call.

use std::collections::HashMap;

use banyan_memory::Buffer;

use super::{Inbox, Outbox, assert_nothing_more, some_length, until};
use crate::random::Random;
use crate::{Fabric, Peer, Refusal, Sent, Token};

/// Memory is written to as soon as a fabric has told that it needs it no more, or after it was taken back: each frame arrives
/// with the bytes that it was sent with, and what was lent is told of once. The receiver is slow, so that there is much to lend.
pub fn memory_is_lent_until_told<F: Fabric>(make: &impl Fn(usize) -> Vec<F>) {
    let fresh = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    for seed in [1, 2, fresh] {
        println!("memory lent: seed {seed}");
        lend(make(2), seed);
    }
}

fn lend<F: Fabric>(mut ends: Vec<F>, seed: u64) {
    const FRAMES: u32 = 400;
    let mut random = Random::new(seed);
    let max = ends[0].caps(Peer(1)).max_bcopy;
    let (mut out, mut inbox, mut idle) = (Outbox::new(2, seed), Inbox::default(), Inbox::default());
    let mut lent: HashMap<Token, Buffer> = HashMap::new();
    let mut reclaimed = Vec::new();
    until(&format!("lent memory, seed {seed}"), || {
        if out.next[1] < FRAMES {
            let len = if random.once_in(2) { max } else { some_length(&mut random, max) };
            let token = Token(u64::from(out.next[1]));
            match out.send_from(&mut ends[0], 1, len, Some(token)) {
                Ok((memory, Sent::Started)) => drop(lent.insert(token, memory)),
                Ok((memory, Sent::Done)) => scribble(&memory),
                Err(Refusal::Busy) => {}
                Err(Refusal::Down) => panic!("the peer is not gone"),
            }
        }
        let some = lent.keys().next().copied().filter(|_| random.once_in(4));
        if let Some((token, memory)) = some.and_then(|token| lent.remove_entry(&token)) {
            ends[0].reclaim(Peer(1), token);
            scribble(&memory);
            reclaimed.push(token);
        }
        if random.once_in(2) {
            ends[0].poll(&mut idle);
        }
        for token in idle.sent.drain(..) {
            assert!(!reclaimed.contains(&token), "{token:?} was taken back, and is told of no more");
            scribble(&lent.remove(&token).expect("what is told of was lent, and is told of once"));
        }
        if out.next[1] == FRAMES || random.once_in(6) {
            ends[1].poll(&mut inbox);
        }
        inbox.from(0) == FRAMES && lent.is_empty()
    });
    assert_nothing_more(&mut ends[1], &mut inbox);
}

/// What its owner does with memory that is theirs again.
fn scribble(memory: &Buffer) {
    memory.write(0, &vec![0xee; memory.len()]);
}

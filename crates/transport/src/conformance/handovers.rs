//! Memory that one process fills and another one empties, for fabrics that have such.

use std::collections::HashSet;

use banyan_memory::{BOUNCE_BUFFER, Buffer, HeapBuffer, SimulatedDevice};

use super::{pattern, until};
use crate::random::Random;
use crate::{Class, Fabric, Handed, Handover, Head, Outcome, Peer, Sink, Token};

/// What is handed over arrives with the bytes that were there, and stays as it is until whoever got it drops it: only then is it returned, and only what is
/// returned, and dropped by whoever filled it, is given out again. What was never handed over, or to somebody else, is not found.
pub fn handovers<F: Fabric>(make: &impl Fn(usize) -> Vec<F>) {
    let fresh = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    for seed in [1, 2, fresh] {
        println!("handovers: seed {seed}");
        for near in [HeapBuffer::zeroed(1), SimulatedDevice::new(64, seed).alloc(1)] {
            pass(make(3), &near, seed);
        }
    }
}

/// Frames that came, as they are.
#[derive(Default)]
struct Frames(Vec<(Peer, Head, Vec<u8>)>);

impl Sink for Frames {
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        self.0.push((peer, *head, body.to_vec()));
    }

    fn sent(&mut self, _token: Token) {}

    fn completed(&mut self, _token: Token, _outcome: Outcome) {}

    fn down(&mut self, peer: Peer, cause: &str) {
        panic!("{peer:?} is gone: {cause}");
    }
}

/// Memory that the first end has filled from a seed.
struct Filled {
    handover: Handover,
    seed: u64,
    len: usize,
    handed: bool,
    /// It was taken from the second end, and was dropped there.
    over: bool,
}

/// Memory that the second end has got.
struct Got {
    memory: Buffer,
    seed: u64,
}

fn is_filled(memory: &Buffer, seed: u64) -> bool {
    let (mut bytes, mut expected) = (vec![0; memory.len()], vec![0; memory.len()]);
    memory.read(0, &mut bytes);
    pattern(seed, &mut expected);
    bytes == expected
}

fn pass<F: Fabric>(mut ends: Vec<F>, near: &Buffer, seed: u64) {
    const ROUNDS: usize = 60;
    let (mut random, to) = (Random::new(seed), Peer(1));
    let all: Vec<Handover> = std::iter::from_fn(|| ends[0].handover(to, near)).collect();
    if all.is_empty() {
        return;
    }
    let numbers: HashSet<u32> = all.iter().map(|handover| handover.number).collect();
    assert!(numbers.len() == all.len() && all.iter().all(|one| one.memory.len() == BOUNCE_BUFFER));
    assert!(!all[0].scarce && all.last().is_some_and(|last| last.scarce || all.len() == 1));
    let none = Handed { number: all[0].number, len: 1 };
    assert!(ends[1].handed(Peer(0), none, near).is_none(), "it was not handed over");
    let count = all.len();
    drop(all);
    let (mut filled, mut got, mut frames): (Vec<Filled>, Vec<Got>, _) = (vec![], vec![], Frames::default());
    let (mut begun, mut ended) = (0, 0);
    until(&format!("handovers, seed {seed}"), || {
        if begun < ROUNDS
            && random.once_in(2)
            && let Some(handover) = ends[0].handover(to, near)
        {
            let (seed, len) = (random.word(), 1 + random.below(3000));
            let mut bytes = vec![0; len];
            pattern(seed, &mut bytes);
            handover.memory.write(0, &bytes);
            filled.push(Filled { handover, seed, len, handed: false, over: false });
            begun += 1;
        }
        for one in filled.iter_mut().filter(|one| !one.handed) {
            let head = Head { class: Class::P2p, kind: 0, aux: 0, a: 0, b: 0, ctx: one.seed };
            one.handed = ends[0].hand_over(to, &head, &one.handover, one.len).is_ok();
        }
        ends[0].poll(&mut Frames::default());
        ends[1].poll(&mut frames);
        for (peer, head, body) in frames.0.drain(..) {
            let handed = Handed::decode(&body).expect("what was sent");
            let longer = Handed { len: BOUNCE_BUFFER as u32 + 1, ..handed };
            assert!(
                ends[1].handed(peer, longer, near).is_none()
                    && ends[2].handed(Peer(1), handed, near).is_none()
            );
            let memory = ends[1].handed(peer, handed, near).expect("it was handed over");
            assert_eq!(memory.len(), handed.len as usize);
            got.push(Got { memory, seed: head.ctx });
        }
        assert!(got.iter().all(|got| is_filled(&got.memory, got.seed)), "it stays until it is dropped");
        let returned = |ends: &mut Vec<F>, one: &Filled| ends[0].is_returned(to, one.handover.number);
        assert!(filled.iter().filter(|one| one.handed).all(|one| returned(&mut ends, one) == one.over));
        if !got.is_empty() && random.once_in(3) {
            let dropped = got.swap_remove(random.below(got.len()));
            filled.iter_mut().filter(|one| one.seed == dropped.seed).for_each(|one| one.over = true);
            ended += 1;
        }
        if !filled.is_empty() && random.once_in(3) {
            let one = random.below(filled.len());
            if filled[one].handed {
                filled.swap_remove(one);
            }
        }
        begun == ROUNDS && ended == ROUNDS
    });
    drop(filled);
    let again: Vec<Handover> = std::iter::from_fn(|| ends[0].handover(to, near)).collect();
    assert_eq!(again.len(), count, "none is lost");
}

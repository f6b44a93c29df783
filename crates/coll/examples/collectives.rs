//! What an allreduce of 8 bytes costs two ranks in instructions, for `cargo xtask test`: both ranks in one thread, over
//! slots in shared memory, each step scripted, so that nothing waits. The instructions inside `counted` are to be
//! counted; it says how many calls that were.

use banyan_coll::{
    Advance, Attempt, Call, Facts, Fault, Key, Kind, Memory, Messenger, Op, OpId, PlanCache, Published,
    SlotFacts, Slots, Tuning, attempt,
};
use banyan_datatype::op::Builtin;
use banyan_datatype::{Data, Datatype, TypeArc};
use banyan_memory::{Buffer, Scratch};
use banyan_shm::{Arena, Options, Shm};
use banyan_transport::Peer;

/// A rank's slots, and no messages.
struct Port(Arena);

impl Slots for Port {
    fn banks(&self) -> u64 {
        Arena::BANKS
    }

    fn inline_bytes(&self) -> usize {
        self.0.inline_bytes()
    }

    fn publish(&mut self, stamp: u64, data: &Buffer, at: isize, len: usize) {
        self.0.publish_part(stamp, data, at, len);
    }

    fn bank(&mut self, stamp: u64) -> Buffer {
        self.0.bank(stamp)
    }

    fn publish_bank(&mut self, stamp: u64) {
        self.0.publish_bank(stamp);
    }

    fn publish_region(&mut self, stamp: u64, data: &Buffer) {
        self.0.publish_region(stamp, data);
    }

    fn revoke_regions(&mut self, first: u64, last: u64) {
        self.0.revoke_regions(first, last);
    }

    fn look(&mut self, rank: u32, stamp: u64) -> Option<Published> {
        self.0.look(rank, stamp).map(|published| match published {
            banyan_shm::Published::Inline(bytes) => Published::Inline(bytes),
            banyan_shm::Published::Region(len) => Published::Region(len),
        })
    }

    fn pull(&mut self, rank: u32, stamp: u64, at: u64, into: &Buffer) -> bool {
        self.0.pull(rank, stamp, at, into)
    }

    fn release(&mut self, stamp: u64) {
        self.0.release(stamp);
    }

    fn released(&mut self, rank: u32) -> u64 {
        self.0.released(rank)
    }

    fn void(&mut self, first: u64, last: u64) {
        self.0.void(first, last);
    }

    fn reached(&mut self, rank: u32, stamp: u64) -> bool {
        self.0.reached(rank, stamp)
    }

    fn board(&mut self) -> Buffer {
        self.0.board()
    }

    fn can_pull_regions(&self) -> bool {
        false
    }
}

impl Messenger for Port {
    fn send(&mut self, _: u32, _: Key, _: &Data) -> Option<OpId> {
        unreachable!("8 bytes go through slots")
    }

    fn recv(&mut self, _: u32, _: Key, _: &Data) -> OpId {
        unreachable!("8 bytes go through slots")
    }

    fn poll(&mut self, _: OpId) -> Option<Result<u64, Fault>> {
        unreachable!("8 bytes go through slots")
    }

    fn met(&mut self, _: OpId) -> bool {
        unreachable!("no messages")
    }

    fn cancel(&mut self, _: OpId) {}

    fn slots(&mut self) -> Option<&mut dyn Slots> {
        Some(self)
    }
}

struct Rank {
    port: Port,
    plans: PlanCache,
    call: Call,
    result: Buffer,
}

impl Rank {
    fn attempt(&mut self, tuning: &Tuning) -> Option<Attempt> {
        attempt(&self.call, None, &mut self.plans, tuning, &mut self.port, &mut || false)
    }
}

/// The first rank begins, the second finds it there, the first finds the second.
#[inline(always)]
fn allreduce(ranks: &mut [Rank; 2], tuning: &Tuning) {
    let [first, second] = ranks;
    let Some(Attempt::Begun(mut execution)) = first.attempt(tuning) else {
        panic!("the second rank is not there yet")
    };
    assert!(matches!(second.attempt(tuning), Some(Attempt::Over(Ok(())))), "the first rank is there");
    assert!(matches!(execution.advance(&mut first.port), Advance::Done(Ok(()))), "both are there");
    first.plans.recycle(execution);
}

#[inline(never)]
fn counted(ranks: &mut [Rank; 2], tuning: &Tuning) {
    (0..500).for_each(|_| allreduce(ranks, tuning));
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (memory, peers) = (Shm::memory(2)?, [Peer(0), Peer(1)]);
    let shms =
        [0, 1].map(|me| Shm::attach(memory.try_clone()?, me, &peers, Options::default()).map_err(Into::into));
    let [first, second]: [Result<Shm, Box<dyn std::error::Error>>; 2] = shms;
    let (first, second) = (first?, second?);
    let at = first.arena_join(1, 2).ok_or("there is room")?;
    second.arena_join(1, 2);
    let double = TypeArc::Predefined(Datatype::builtin(0x214).ok_or("there is a double")?);
    let facts = |arena: &Arena| Facts {
        ranks: 2,
        shared: true,
        cores: 2,
        per_node: 2,
        slots: Some(SlotFacts { inline: arena.inline_bytes() as u64, regions: false, board: 0 }),
    };
    let rank = |me: u32, shm: &Shm| {
        let arena = shm.arena(at, me, 2, &[0, 1]);
        let memory = |value: f64| {
            let base = Scratch::copy_of(&value.to_ne_bytes());
            (base.clone(), Memory::Uniform { base, count: 1, ty: double.clone() })
        };
        let ((_, send), (result, recv)) = (memory(f64::from(me) + 1.0), memory(0.0));
        let call = Call::reducing(Kind::Allreduce, send, recv, Op::Builtin(Builtin::Sum), 0);
        Rank { plans: PlanCache::new(me, facts(&arena)), port: Port(arena), call, result }
    };
    let mut ranks = [rank(0, &first), rank(1, &second)];
    let tuning = Tuning::default();
    allreduce(&mut ranks, &tuning);
    counted(&mut ranks, &tuning);
    for rank in &ranks {
        let mut sum = [0; 8];
        rank.result.read(0, &mut sum);
        assert_eq!(f64::from_ne_bytes(sum), 3.0);
    }
    println!("calls 1000");
    Ok(())
}

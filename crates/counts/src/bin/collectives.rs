//! What an allreduce of 8 bytes costs two ranks in instructions, for `cargo xtask test`: both ranks run in one thread, over
//! CICO buffers in shared memory, each step scripted, so that no rank waits. The caller counts the instructions inside
//! `counted`; the program prints how many calls those were.

use banyan_coll::{
    Advance, ArgKind, Attempt, Call, Fault, Groups, Key, Kind, Lists, Messenger, Op, OpId, Operand,
    PlanCache, Published, SharedBuffers, SharedCaps, Signature, Topology, Tuning, begin, replay,
};
use banyan_datatype::op::Builtin;
use banyan_datatype::{Data, Datatype, TypeArc};
use banyan_memory::{Buffer, HeapBuffer, MemoryKind};
use banyan_shm::{Arena, Options, Shm};
use banyan_transport::Peer;

/// A rank's access to the CICO buffers; it sends no messages.
struct Port(Arena);

impl SharedBuffers for Port {
    fn cells(&self) -> u64 {
        Arena::CELLS
    }

    fn cells_for(&self, bytes: u64) -> u64 {
        Arena::cells_for(bytes)
    }

    fn inline_bytes(&self) -> usize {
        self.0.inline_bytes()
    }

    fn publish(&mut self, seq: u64, data: &Buffer, at: isize, len: usize) {
        self.0.publish_part(seq, data, at, len);
    }

    fn cell(&mut self, seq: u64) -> Buffer {
        self.0.cell(seq)
    }

    fn publish_cell(&mut self, seq: u64) {
        self.0.publish_cell(seq);
    }

    fn expose(&mut self, seq: u64, data: &Buffer) {
        self.0.expose(seq, data);
    }

    fn revoke_exposed(&mut self, first: u64, last: u64) {
        self.0.revoke_exposed(first, last);
    }

    fn poll(&mut self, rank: u32, seq: u64, at_once: bool) -> Option<Published> {
        self.0.poll(rank, seq, at_once).map(|published| match published {
            banyan_shm::Published::Inline(bytes) => Published::Inline(bytes),
            banyan_shm::Published::Exposed(len) => Published::Exposed(len),
        })
    }

    fn get(&mut self, rank: u32, seq: u64, at: u64, into: &Buffer) -> bool {
        self.0.get(rank, seq, at, into)
    }

    fn ack(&mut self, seq: u64) {
        self.0.ack(seq);
    }

    fn offer(&mut self, seq: u64, at: u64, range: &Buffer) {
        self.0.offer(seq, at, range);
    }

    fn take(&mut self, rank: u32, seq: u64, at: u64, into: &Buffer) -> bool {
        self.0.take(rank, seq, at, into)
    }

    fn put(&mut self, rank: u32, seq: u64, at: Option<u64>, data: &Buffer) {
        self.0.put(rank, seq, at, data);
    }

    fn acked(&mut self, rank: u32) -> u64 {
        self.0.acked(rank)
    }

    fn void(&mut self, first: u64, last: u64) {
        self.0.void(first, last);
    }

    fn reached(&mut self, rank: u32, seq: u64) -> bool {
        self.0.reached(rank, seq)
    }

    fn scratch(&mut self) -> Buffer {
        self.0.scratch()
    }

    fn single_copy(&self) -> bool {
        false
    }
}

impl Messenger for Port {
    type Shared = Self;

    fn send(&mut self, _: u32, _: Key, _: &Data) -> Option<OpId> {
        unreachable!("8 bytes go through CICO buffers")
    }

    fn recv(&mut self, _: u32, _: Key, _: &Data) -> OpId {
        unreachable!("8 bytes go through CICO buffers")
    }

    fn poll(&mut self, _: OpId) -> Option<Result<u64, Fault>> {
        unreachable!("8 bytes go through CICO buffers")
    }

    fn met(&mut self, _: OpId) -> bool {
        unreachable!("no messages")
    }

    fn cancel(&mut self, _: OpId) {}

    fn shared(&mut self) -> Option<&mut Self> {
        Some(self)
    }
}

struct Rank {
    port: Port,
    plans: PlanCache,
    call: Call,
    signature: Signature,
    result: Buffer,
}

/// MPI_Allreduce takes no lists.
struct NoLists;

impl Lists for NoLists {
    fn is(&self, _: usize, _: &[i64]) -> bool {
        false
    }
}

impl Rank {
    /// As the C layer does it: by the plan that is kept for the same arguments, if there is one.
    fn attempt(&mut self, tuning: &Tuning) -> Attempt {
        let Rank { plans, port, call, signature, .. } = self;
        match plans.replayable(*signature, &NoLists) {
            Some((plan, bounds)) => {
                let within = |side: usize| {
                    // SAFETY: both buffers live as long as the rank, and have the 8 bytes of all calls with this signature.
                    unsafe { Buffer::within(signature.buffers[side].0 as *mut u8, bounds[side]) }
                };
                replay(plan, &[within(0), within(1)], plans, port, &mut |_| false).expect("it is kept")
            }
            None => {
                begin(call.clone(), Some((*signature, &NoLists)), plans, tuning, Some(port), &mut |_| false)
            }
        }
    }
}

/// The first rank publishes; the second finds that and completes; then the first finds what the second has published.
#[inline(always)]
fn allreduce(ranks: &mut [Rank; 2], tuning: &Tuning) {
    let [first, second] = ranks;
    let Attempt::Pending(mut execution) = first.attempt(tuning) else {
        panic!("the second rank is not there yet")
    };
    assert!(matches!(second.attempt(tuning), Attempt::Over(Ok(()))), "the first rank is there");
    assert!(matches!(execution.advance(&mut first.port), Advance::Done(Ok(()))), "both are there");
    first.plans.recycle(execution);
}

#[inline(never)]
fn counted(ranks: &mut [Rank; 2], tuning: &Tuning) {
    (0..500).for_each(|_| allreduce(ranks, tuning));
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (memory, peers) = (Shm::memory(2, None)?, [Peer(0), Peer(1)]);
    let shms =
        [0, 1].map(|me| Shm::attach(memory.try_clone()?, me, &peers, Options::default()).map_err(Into::into));
    let [first, second]: [Result<Shm, Box<dyn std::error::Error>>; 2] = shms;
    let (first, second) = (first?, second?);
    let at = first.arena_join(1, 2).ok_or("there is no room for an arena")?;
    second.arena_join(1, 2);
    let double = TypeArc::Predefined(Datatype::builtin(0x214).ok_or("there is no MPI_DOUBLE")?);
    let topology = |arena: &Arena| Topology {
        ranks: 2,
        cores: 2,
        levels: Groups::on_nodes(1, 2),
        shared: Some(SharedCaps { inline: arena.inline_bytes() as u64, single_copy: false, scratch: 0 }),
    };
    let rank = |me: u32, shm: &Shm| {
        let arena = shm.arena(at, me, 2, &[0, 1]);
        let operand = |value: f64| {
            let base = HeapBuffer::copy_of(&value.to_ne_bytes());
            (base.clone(), Operand::Uniform { base, count: 1, ty: double.clone() })
        };
        let ((given, send), (result, recv)) = (operand(f64::from(me) + 1.0), operand(0.0));
        let buffers = [&given, &result].map(|buffer| (buffer.address(0), ArgKind::Data(MemoryKind::Host)));
        let signature = Signature { kind: Kind::Allreduce, numbers: [1, 0x214, 0x21, 0, 0], buffers };
        let call = Call::reduction(Kind::Allreduce, send, recv, Op::Builtin(Builtin::Sum), 0);
        Rank { plans: PlanCache::new(me, topology(&arena)), port: Port(arena), call, signature, result }
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

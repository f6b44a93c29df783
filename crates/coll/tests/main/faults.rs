//! A fault in a collective ends it, and leaves nothing under way.

use crate::world::{Net, Port, run, run_asking};
use banyan_coll::{
    Advance, Call, Difference, Execution, Fault, Groups, Key, Kind, Messenger, Op, OpId, Operand, Overrides,
    PlanCache, SharedCaps, Topology, Tuning, difference, start,
};
use banyan_datatype::op::Builtin;
use banyan_datatype::{Data, Datatype};
use banyan_memory::{Buffer, HeapBuffer, SimulatedDevice};

fn bytes(len: u64) -> Operand {
    let ty = Datatype::builtin(0x259).unwrap().clone();
    Operand::Uniform { base: HeapBuffer::zeroed(8 * len as usize), count: len, ty: ty.into() }
}

fn plans(ranks: u32, shared: Option<SharedCaps>) -> Vec<PlanCache> {
    let topology = Topology {
        ranks,
        cores: 8,
        shared,
        levels: Groups::on_nodes(if shared.is_some() { 1 } else { ranks }, ranks),
    };
    (0..ranks).map(|rank| PlanCache::new(rank, topology)).collect()
}

fn begin(plans: &mut [PlanCache], call: impl Fn(u32) -> Call) -> Vec<Vec<Execution>> {
    let tuning = Tuning::default();
    (0..).zip(plans).map(|(rank, plans)| vec![start(call(rank), plans, &tuning)]).collect()
}

#[test]
fn lengths_that_differ_are_an_error_of_the_receiver() {
    for short in [true, false] {
        let mut net = Net::new(2, 1, 0, false);
        let mut plans = plans(2, None);
        let root_has = if short { 1 } else { 3 };
        let call = |rank: u32| Call::bcast(bytes(if rank == 0 { root_has } else { 2 }), 0);
        let mut executions = begin(&mut plans, call);
        let results = run_asking(&mut net, &mut plans, &mut executions);
        // The root may have noticed the difference, or not.
        assert!(results[0][0].is_ok() || results[0] == results[1], "{results:?}");
        let Err(fault @ Fault::Differ { said }) = &results[1][0] else {
            panic!("{results:?}, short: {short}")
        };
        assert_eq!(difference(said), Difference::Count);
        let text = fault.to_string();
        assert!(
            text.contains(&format!("rank 0 called MPI_Bcast with root 0 and {} bytes", 8 * root_has)),
            "{text}"
        );
        assert!(text.contains("rank 1 called MPI_Bcast with root 0 and 16 bytes"), "{text}");
    }
}

#[test]
fn a_rank_that_fails_takes_back_the_ranges_it_exposed() {
    let overrides = Overrides::parse("allreduce=single_copy").unwrap();
    let tuning = Tuning { overrides, ..Tuning::default() };
    for seed in 0..20 {
        let mut net = Net::new(3, seed, 64, true);
        net.differ = true;
        let mut plans = plans(3, Some(SharedCaps { inline: 64, single_copy: true, scratch: 0 }));
        let op = |rank: u32| if rank == 2 { Builtin::Max } else { Builtin::Sum };
        let call =
            |rank: u32| Call::reduction(Kind::Allreduce, bytes(100), bytes(100), Op::Builtin(op(rank)), 0);
        let mut executions: Vec<Vec<Execution>> =
            (0..).zip(&mut plans).map(|(rank, plans)| vec![start(call(rank), plans, &tuning)]).collect();
        let mut port = Port { net: &mut net, rank: 0 };
        while port.net.exposed(0) == 0 {
            assert!(matches!(executions[0][0].advance(&mut port), Advance::Pending));
        }
        let results = run_asking(&mut net, &mut plans, &mut executions);
        for rank in 0..3 {
            assert!(matches!(results[rank][0], Err(Fault::Differ { .. })), "{results:?}, seed {seed}");
            assert_eq!(net.exposed(rank as u32), 0, "rank {rank}, seed {seed}");
        }
    }
}

/// Blocks of words, one after the other.
fn blocks(counts: &[u64]) -> Operand {
    let ty = Datatype::builtin(0x259).unwrap().clone();
    let base = HeapBuffer::zeroed(8 * counts.iter().sum::<u64>() as usize);
    Operand::Vector { base, counts: counts.to_vec(), displs: vec![], ty: ty.into() }
}

#[test]
fn lengths_that_differ_are_an_error_also_where_only_two_ranks_know_them() {
    // In a CICO buffer of 512 bytes 4 words fit into a sub-buffer; 100 words go by message, or the first 64 by the shared scratch.
    let lengths = [(2, 1), (1, 2), (100, 2), (2, 100), (100, 99), (0, 1)];
    for ((sent, room), scratch) in lengths.into_iter().flat_map(|pair| [(pair, 0), (pair, 4096)]) {
        let fault = Err(Fault::Length { from: 0, sent: 8 * sent, room: 8 * room });
        for kind in [Kind::Gatherv, Kind::Scatterv, Kind::Alltoallv] {
            let mut net = Net::new(3, 1, 512, true);
            net.scratch = HeapBuffer::zeroed(scratch);
            let caps = SharedCaps { inline: 512, single_copy: true, scratch: scratch as u64 };
            let mut plans = plans(3, Some(caps));
            // Rank 0 sends rank 1 another length than rank 1 expects.
            let call = |rank: u32| match (kind, rank) {
                (Kind::Gatherv, 1) => Call::data_movement(kind, bytes(0), blocks(&[room, 0, 0]), 1),
                (Kind::Gatherv, 0) => Call::data_movement(kind, bytes(sent), Operand::Nothing, 1),
                (Kind::Gatherv, _) => Call::data_movement(kind, bytes(0), Operand::Nothing, 1),
                (Kind::Scatterv, 0) => Call::data_movement(kind, blocks(&[0, sent, 0]), bytes(0), 0),
                (Kind::Scatterv, 1) => Call::data_movement(kind, Operand::Nothing, bytes(room), 0),
                (Kind::Scatterv, _) => Call::data_movement(kind, Operand::Nothing, bytes(0), 0),
                (_, 0) => Call::data_movement(kind, blocks(&[0, sent, 1]), blocks(&[0, 0, 0]), 0),
                (_, 1) => Call::data_movement(kind, blocks(&[0, 0, 0]), blocks(&[room, 0, 0]), 0),
                _ => Call::data_movement(kind, blocks(&[0, 0, 0]), blocks(&[1, 0, 0]), 0),
            };
            if sent == 0 && kind != Kind::Alltoallv {
                // A rank that sends nothing does not even publish.
                continue;
            }
            let mut executions = begin(&mut plans, call);
            assert!(executions.iter().all(|mine| mine[0].algorithm().name == "cico"));
            let mut results = vec![];
            // The sender of a message that nobody receives may wait for ever: only rank 1 must end.
            for _ in 0..10_000 {
                for (rank, execution) in executions.iter_mut().enumerate() {
                    let mut port = Port { net: &mut net, rank: rank as u32 };
                    if let Advance::Done(result) = execution[0].advance(&mut port)
                        && rank == 1
                    {
                        results.push(result);
                    }
                }
            }
            assert_eq!(
                results.first(),
                Some(&fault),
                "{kind:?}, {sent} sent, {room} expected, {scratch} of scratch"
            );
        }
    }
}

#[test]
fn a_rank_that_disagrees_with_itself_is_told() {
    let mut net = Net::new(1, 1, 0, false);
    let mut plans = plans(1, None);
    let call = |_| Call::data_movement(Kind::Gather, bytes(2), bytes(1), 0);
    let results = run(&mut net, &mut begin(&mut plans, call));
    assert_eq!(results[0][0], Err(Fault::Length { from: 0, sent: 16, room: 8 }));
}

#[test]
fn a_collective_after_a_refused_call_is_carried_out() {
    let mut net = Net::new(2, 1, 512, true);
    let mut plans = plans(2, Some(SharedCaps { inline: 512, single_copy: true, scratch: 0 }));
    let wrong = |rank: u32| match rank {
        0 => {
            let ty = Datatype::builtin(0x259).unwrap().clone();
            let recv = Operand::Uniform { base: HeapBuffer::zeroed(32), count: 2, ty: ty.into() };
            Call::data_movement(Kind::Gather, bytes(3), recv, 0)
        }
        _ => Call::data_movement(Kind::Gather, bytes(2), Operand::Nothing, 0),
    };
    let mut executions = begin(&mut plans, wrong);
    for (first, second) in executions.iter_mut().zip(begin(&mut plans, |_| Call::barrier())) {
        first.extend(second);
    }
    let results = run(&mut net, &mut executions);
    let fault = Err(Fault::Length { from: 0, sent: 24, room: 16 });
    assert_eq!(results, [[fault, Ok(())], [Ok(()), Ok(())]]);
}

#[test]
fn an_operation_that_is_not_defined_on_the_type_is_an_error() {
    let mut net = Net::new(2, 1, 512, true);
    let mut plans = plans(2, Some(SharedCaps { inline: 512, single_copy: true, scratch: 0 }));
    let double = Datatype::builtin(0x214).unwrap();
    let vector =
        |len: u64| Operand::Uniform { base: HeapBuffer::zeroed(64), count: len, ty: double.clone().into() };
    let bad = |_| Call::reduction(Kind::Allreduce, vector(1), vector(1), Op::Builtin(Builtin::Band), 0);
    let results = run(&mut net, &mut begin(&mut plans, bad));
    assert!(results.iter().flatten().all(|result| matches!(result, Err(Fault::Operator(_)))), "{results:?}");
    // The CICO buffers can still be used: the next collective goes through them.
    let good = |_| Call::reduction(Kind::Allreduce, vector(1), vector(1), Op::Builtin(Builtin::Sum), 0);
    let mut executions = begin(&mut plans, good);
    assert_eq!(executions[0][0].algorithm().name, "cico");
    let results = run(&mut net, &mut executions);
    assert!(results.iter().flatten().all(Result::is_ok), "{results:?}");
}

#[test]
fn a_call_of_no_data_leaves_nothing_for_the_next_one() {
    // The shape of a call of no data on one rank is that of no call at all.
    let (mut net, mut plans) = (Net::new(1, 1, 0, false), plans(1, None));
    let byte = || Datatype::builtin(0x247).unwrap().clone().into();
    let operand =
        |base: &Buffer| Operand::Uniform { base: base.clone(), count: base.len() as u64, ty: byte() };
    for data in [&[][..], &[7, 8]] {
        let (send, recv) = (HeapBuffer::copy_of(data), HeapBuffer::zeroed(data.len()));
        let call = |_| Call::data_movement(Kind::Gather, operand(&send), operand(&recv), 0);
        let mut executions = begin(&mut plans, call);
        assert_eq!(run(&mut net, &mut executions).concat(), [Ok(())]);
        executions.into_iter().flatten().for_each(|execution| plans[0].recycle(execution));
        let mut got = vec![0; data.len()];
        recv.read(0, &mut got);
        assert_eq!(got, data);
    }
}

#[test]
fn types_of_one_size_that_lie_elsewhere_have_plans_of_their_own() {
    let mut net = Net::new(2, 1, 512, true);
    let mut plans = plans(2, Some(SharedCaps { inline: 512, single_copy: true, scratch: 0 }));
    let byte = Datatype::builtin(0x247).unwrap();
    for at in [8, 16, 0, 8] {
        let ty = Datatype::hindexed_block(4, &[at], byte).unwrap();
        let buffers = [1, 0].map(|value| HeapBuffer::copy_of(&[value; 32]));
        let operand = |rank: u32| {
            let base = buffers[rank as usize].clone();
            Operand::Uniform { base, count: 1, ty: ty.clone().into() }
        };
        let mut executions = begin(&mut plans, |rank| Call::bcast(operand(rank), 0));
        assert!(run(&mut net, &mut executions).concat().iter().all(Result::is_ok));
        for (plans, executions) in plans.iter_mut().zip(executions) {
            executions.into_iter().for_each(|execution| plans.recycle(execution));
        }
        let mut got = [0; 32];
        buffers[1].read(0, &mut got);
        let expected: Vec<u8> = (0..32).map(|i| u8::from((at..at + 4).contains(&i))).collect();
        assert_eq!(got[..], expected);
    }
}

/// A messenger whose peers are gone.
struct Gone {
    started: u64,
    cancelled: u64,
}

impl Messenger for Gone {
    type Shared = Port<'static>;

    fn send(&mut self, _: u32, _: Key, _: &Data) -> Option<OpId> {
        self.started += 1;
        Some(OpId(self.started))
    }

    fn recv(&mut self, _: u32, _: Key, _: &Data) -> OpId {
        self.started += 1;
        OpId(self.started)
    }

    fn poll(&mut self, op: OpId) -> Option<Result<u64, Fault>> {
        // The other messages stay under way.
        (op.0 == 3).then(|| Err(Fault::Gone { rank: 3, cause: "killed".into() }))
    }

    fn met(&mut self, _: OpId) -> bool {
        false
    }

    fn cancel(&mut self, _: OpId) {
        self.cancelled += 1;
    }

    fn shared(&mut self) -> Option<&mut Self::Shared> {
        None
    }
}

#[test]
fn when_a_rank_is_gone_the_other_messages_are_given_up() {
    let mut plans = plans(6, None);
    let mut io = Gone { started: 0, cancelled: 0 };
    let call = Call::data_movement(Kind::Gatherv, bytes(1), vector_of(6), 0);
    let mut execution = start(call, &mut plans[0], &Tuning::default());
    let Advance::Done(result) = execution.advance(&mut io) else { panic!("a fault ends a collective") };
    assert_eq!(result, Err(Fault::Gone { rank: 3, cause: "killed".into() }));
    assert_eq!((io.started, io.cancelled), (3, 2));
    plans[0].recycle(execution);
}

fn vector_of(ranks: u64) -> Operand {
    let ty = Datatype::builtin(0x259).unwrap().clone();
    let base = HeapBuffer::zeroed(8 * ranks as usize);
    Operand::Vector { base, counts: vec![1; ranks as usize], displs: vec![], ty: ty.into() }
}

#[test]
fn a_cancelled_collective_leaves_nothing_under_way() {
    let mut net = Net::new(3, 5, 0, false);
    let mut plans = plans(3, None);
    let ty = Datatype::builtin(0x259).unwrap().clone();
    let recv = Operand::Uniform { base: HeapBuffer::zeroed(3 * 800), count: 100, ty: ty.into() };
    let call = Call::data_movement(Kind::Allgather, bytes(100), recv, 0);
    let mut execution = start(call, &mut plans[0], &Tuning::default());
    let mut port = Port { net: &mut net, rank: 0 };
    assert!(matches!(execution.advance(&mut port), Advance::Pending));
    execution.cancel(&mut port);
}

#[test]
fn without_single_copy_large_vectors_go_by_messages() {
    let mut net = Net::new(4, 5, 512, false);
    let mut plans = plans(4, Some(SharedCaps { inline: 512, single_copy: false, scratch: 0 }));
    let vector = || bytes(5000);
    let call = |_| Call::reduction(Kind::Allreduce, vector(), vector(), Op::Builtin(Builtin::Sum), 0);
    let results = run(&mut net, &mut begin(&mut plans, call));
    assert!(results.iter().flatten().all(Result::is_ok), "{results:?}");
    net.assert_empty();
}

/// A call whose operands at one rank are a device's.
fn on_device(kind: Kind, ranks: u64, device: Option<&SimulatedDevice>) -> Call {
    let ty = || Datatype::builtin(0x259).unwrap().clone().into();
    let room = |words: u64| {
        device
            .map_or_else(|| HeapBuffer::zeroed(8 * words as usize), |device| device.alloc(8 * words as usize))
    };
    let operand =
        |words: u64, blocks: u64| Operand::Uniform { base: room(words * blocks), count: words, ty: ty() };
    match kind {
        Kind::Bcast => Call::bcast(operand(500, 1), 1),
        Kind::Allreduce => {
            Call::reduction(kind, operand(500, 1), operand(500, 1), Op::Builtin(Builtin::Sum), 0)
        }
        Kind::Alltoall => Call::data_movement(kind, Operand::InPlace, operand(60, ranks), 0),
        _ => Call::data_movement(kind, operand(60, 1), operand(60, ranks), 0),
    }
}

/// A device that fails at any time ends the collective that it works for, at its rank and where that rank's part is missing, and no other one.
#[test]
fn a_device_that_fails_ends_one_collective() {
    const RANKS: u32 = 3;
    let tuning = Tuning::default();
    let kinds = [Kind::Bcast, Kind::Allreduce, Kind::Alltoall, Kind::Allgather];
    let shared = [None, Some(SharedCaps { inline: 512, single_copy: false, scratch: 4096 })];
    let (mut failed, mut went_on) = (0, 0);
    for seed in 0..120 {
        let (kind, caps) = (kinds[seed as usize % 4], shared[seed as usize / 4 % 2]);
        let (bad, turns) = (seed as u32 % RANKS, seed / 8);
        let device = SimulatedDevice::new(1 << 20, seed);
        let mut net = Net::new(RANKS, seed, 512, false);
        net.scratch = HeapBuffer::zeroed(4096);
        let mut plans = plans(RANKS, caps);
        let begin = |on: &dyn Fn(u32) -> bool, plans: &mut PlanCache, rank: u32| {
            start(on_device(kind, RANKS.into(), on(rank).then_some(&device)), plans, &tuning)
        };
        // The second one, which is under way at the same time, has nothing to do with devices.
        let mut executions: Vec<Vec<Execution>> = (0..)
            .zip(&mut plans)
            .map(|(rank, plans)| {
                vec![begin(&|rank| rank == bad, plans, rank), begin(&|_| false, plans, rank)]
            })
            .collect();
        for _ in 0..turns {
            for (rank, mine) in (0..).zip(&mut executions) {
                mine.iter_mut()
                    .for_each(|execution| drop(execution.advance(&mut Port { net: &mut net, rank })));
            }
        }
        device.fail();
        let results = run_asking(&mut net, &mut plans, &mut executions);
        for (rank, result) in (0..).zip(&results) {
            match &result[0] {
                Ok(()) => went_on += 1,
                Err(fault @ Fault::Device { said, .. }) => {
                    assert_eq!((said.rank, rank), (bad, bad), "{fault}");
                    let (text, name) = (fault.to_string().to_lowercase(), kind.name());
                    assert!(text.starts_with(&format!("mpi_{name} with ")), "{text}");
                    assert!(
                        text.contains(&format!(" at rank {bad}")) && text.contains("simulated device"),
                        "{text}"
                    );
                    failed += 1;
                }
                Err(Fault::Left { rank: who }) => assert!(*who == bad && rank != bad, "{results:?}"),
                other => panic!("{other:?} at {rank}, seed {seed}"),
            }
            assert_eq!(result[1], Ok(()), "rank {rank}, seed {seed}");
        }
        assert_eq!(device.copies().1, 0, "copies are under way after the collective, seed {seed}");
        // Later ones go on.
        (0..).zip(executions).for_each(|(rank, mine): (usize, _)| {
            mine.into_iter().for_each(|execution| plans[rank].recycle(execution));
        });
        let mut later: Vec<Vec<Execution>> =
            (0..).zip(&mut plans).map(|(rank, plans)| vec![begin(&|_| false, plans, rank)]).collect();
        let results = run_asking(&mut net, &mut plans, &mut later);
        assert!(results.iter().all(|result| result[0].is_ok()), "{results:?}, seed {seed}");
    }
    assert!(failed > 20 && went_on > 20, "{failed} have failed, {went_on} have not");
}

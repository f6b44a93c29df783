//! Whole runtimes in one process, over a simulated network: every layer but the fabrics of real machines.

mod world;

use std::sync::Arc;

use banyan_memory::{Buffer, HeapBuffer};
use banyan_runtime::{Call, Comm, Dest, Kind, Operand, Result, Runtime, SendMode, Source, Threads};
use banyan_transport::sim::{Net, OneSided, Options};
use world::{filled, fresh_seed, integers, job, message, read, run, run_with, sum};

/// Lengths on both sides of what is short, eager and a rendezvous on the simulated network, in integers.
const LENGTHS: [u64; 5] = [0, 1, 5, 600, 5000];

/// Each rank passes messages to its right neighbour.
fn ring(comm: &Comm) -> Result<()> {
    let (me, size) = (i64::from(comm.rank()), i64::from(comm.size()));
    let (left, right) = ((me + size - 1) % size, (me + 1) % size);
    for count in LENGTHS {
        let data = |rank: i64| filled((0..count as i64).map(|i| rank * 100_000 + i));
        let room = HeapBuffer::zeroed(8 * count as usize);
        let send = (&message(&data(me)), Dest::Rank(right as i32), 7);
        let status =
            comm.sendrecv(send, (&message(&room), Source::Rank(left as i32), Some(7))).into_result()?;
        assert_eq!((status.source, status.bytes), (left as i32, 8 * count));
        assert_eq!(read(&room), read(&data(left)));
    }
    Ok(())
}

/// Rank 0 receives from all the others, in whatever order they come, synchronous sends among them.
fn gather_by_wildcard(comm: &Comm) -> Result<()> {
    let me = comm.rank();
    if me > 0 {
        let mode = if me.is_multiple_of(2) { SendMode::Sync } else { SendMode::Standard };
        return comm.send(&message(&filled([i64::from(me)].into_iter())), Dest::Rank(0), 9, mode);
    }
    let mut heard = vec![];
    for _ in 1..comm.size() {
        let room = HeapBuffer::zeroed(8);
        let status = comm.recv(&message(&room), Source::Any, Some(9)).into_result()?;
        assert_eq!(read(&room), [i64::from(status.source)]);
        heard.push(status.source);
    }
    heard.sort_unstable();
    assert!(heard.into_iter().eq(1..comm.size() as i32), "each rank is heard once");
    Ok(())
}

fn allreduce(comm: &Comm) -> Result<()> {
    let (me, size) = (i64::from(comm.rank()), i64::from(comm.size()));
    for count in LENGTHS {
        let mine = filled((0..count as i64).map(|i| me + i));
        let all = HeapBuffer::zeroed(8 * count as usize);
        let operands = (integers(&mine, count), integers(&all, count));
        comm.run(Call::reduction(Kind::Allreduce, operands.0, operands.1, sum(), 0))?;
        let expected: Vec<i64> = (0..count as i64).map(|i| size * i + size * (size - 1) / 2).collect();
        assert_eq!(read(&all), expected);
    }
    Ok(())
}

fn bcast(comm: &Comm) -> Result<()> {
    for root in [0, comm.size() / 2, comm.size() - 1] {
        for count in LENGTHS {
            let data = || filled((0..count as i64).map(|i| i * i + i64::from(root)));
            let memory: Buffer =
                if comm.rank() == root { data() } else { HeapBuffer::zeroed(8 * count as usize) };
            comm.run(Call::bcast(integers(&memory, count), root))?;
            assert_eq!(read(&memory), read(&data()));
        }
    }
    Ok(())
}

/// Splits by the remainder of the rank, in reverse order; the parts then work by themselves.
fn split(comm: &Arc<Comm>) -> Result<()> {
    let (me, size) = (comm.rank(), comm.size());
    let part = comm.split((me % 3) as i32, -(me as i32))?.expect("every rank has a colour");
    let members: Vec<u32> = (0..size).filter(|rank| rank % 3 == me % 3).rev().collect();
    assert_eq!(part.size(), members.len() as u32);
    assert_eq!(members[part.rank() as usize], me);
    allreduce(&part)?;
    bcast(&part)?;
    ring(&part)
}

fn everything(_: &Arc<Runtime>, world: &Arc<Comm>) -> Result<()> {
    ring(world)?;
    gather_by_wildcard(world)?;
    allreduce(world)?;
    bcast(world)?;
    split(world)?;
    world.run(world.barrier()?)
}

#[test]
fn two_ranks() {
    for options in
        [Options::default(), Options::cramped(), Options { get: OneSided::Mixed, ..Options::cramped() }]
    {
        run(&[2], fresh_seed(), &options, everything);
        run(&[1, 1], fresh_seed(), &options, everything);
    }
}

#[test]
fn three_ranks() {
    run(&[3], fresh_seed(), &Options { get: OneSided::Later, ..Options::default() }, everything);
    run(&[2, 1], fresh_seed(), &Options::cramped(), everything);
}

#[test]
fn eight_ranks() {
    run(&[8], fresh_seed(), &Options { get: OneSided::Mixed, ..Options::default() }, everything);
    run(&[1, 4, 3], fresh_seed(), &Options { holds: true, ..Options::default() }, everything);
}

#[test]
fn sixty_four_ranks() {
    run(&[31, 1, 32], fresh_seed(), &Options::default(), everything);
}

/// The result of a reduction at each root.
fn reduce(comm: &Comm) -> Result<()> {
    let (me, size) = (i64::from(comm.rank()), i64::from(comm.size()));
    for (root, count) in (0..comm.size()).zip(LENGTHS.into_iter().cycle()) {
        let mine = filled((0..count as i64).map(|i| me + i));
        let all = HeapBuffer::zeroed(8 * count as usize);
        let recv = if comm.rank() == root { integers(&all, count) } else { Operand::Nothing };
        comm.run(Call::reduction(Kind::Reduce, integers(&mine, count), recv, sum(), root))?;
        let expected: Vec<i64> = (0..count as i64).map(|i| size * i + size * (size - 1) / 2).collect();
        assert!(comm.rank() != root || read(&all) == expected);
    }
    Ok(())
}

#[test]
fn collectives_by_way_of_leaders_give_what_flat_ones_give() {
    let composed = "barrier=nodes,bcast=nodes,reduce=nodes,allreduce=nodes";
    let ring = "barrier=nodes,bcast=nodes,reduce=nodes,allreduce=nodes_ring";
    let flat = "barrier=dissemination,bcast=binomial,reduce=binomial,allreduce=doubling";
    for nodes in [&[2, 1][..], &[3, 1, 4], &[1, 5, 2, 2], &[2, 2, 2, 2, 2], &[4, 1, 1, 3, 2, 1, 1, 2]] {
        for coll in [composed, ring, flat] {
            run_with(nodes, &[("BANYAN_COLL", coll)], fresh_seed(), &Options::default(), |_, world| {
                allreduce(world)?;
                bcast(world)?;
                reduce(world)?;
                // Its parts have members on some of the nodes.
                split(world)?;
                world.run(world.barrier()?)
            });
        }
    }
}

#[test]
fn a_rank_that_no_fabric_reaches_is_an_error() {
    let one = Net::new(1, 1, Options::default()).endpoint(0);
    let refused = Runtime::open_over(one, &job(0, &[2]), Threads::Multiple, None);
    assert!(refused.err().expect("rank 1 is not there").to_string().contains("no fabric reaches rank 1"));
}

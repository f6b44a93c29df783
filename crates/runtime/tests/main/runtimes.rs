//! Whole runtimes in one process, over a simulated network: every layer but the fabrics of real machines.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::world::{
    DEVICE, clock, filled, fresh_seed, integer, integers, job, message, read, room, run, run_with, sum,
};
use banyan_coll::{Algorithm, Operand, all};
use banyan_memory::{Buffer, SimulatedDevice};
use banyan_runtime::{Class, Comm, Dest, Kind, Result, Root, Runtime, SendMode, Source, Started, Threads};
use banyan_transport::sim::{Net, OneSided, Options};

/// Lengths on both sides of what is short, eager and a rendezvous on the simulated network, in integers.
const LENGTHS: [u64; 5] = [0, 1, 5, 600, 5000];

/// Each rank passes messages to its right neighbour.
fn ring(comm: &Comm) -> Result<()> {
    let (me, size) = (i64::from(comm.rank()), i64::from(comm.size()));
    let (left, right) = ((me + size - 1) % size, (me + 1) % size);
    for count in LENGTHS {
        let data = |rank: i64| filled((0..count as i64).map(|i| rank * 100_000 + i));
        let space = room(8 * count as usize);
        let send = (&message(&data(me)), Dest::Rank(right as i32), 7);
        let status =
            comm.sendrecv(send, (&message(&space), Source::Rank(left as i32), Some(7))).into_result()?;
        assert_eq!((status.source(), status.bytes()), (Source::Rank(left as i32), 8 * count));
        assert_eq!(read(&space), read(&data(left)));
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
        let space = room(8);
        let status = comm.recv(&message(&space), Source::Any, Some(9)).into_result()?;
        let Source::Rank(source) = status.source() else { panic!("{status:?}") };
        assert_eq!(read(&space), [i64::from(source)]);
        heard.push(source);
    }
    heard.sort_unstable();
    assert!(heard.into_iter().eq(1..comm.size() as i32), "each rank is heard once");
    Ok(())
}

fn allreduce(comm: &Comm) -> Result<()> {
    LENGTHS.into_iter().try_for_each(|count| allreduce_of(comm, count))
}

/// An allreduce of so many integers, with a check of its result.
fn allreduce_of(comm: &Comm, count: u64) -> Result<()> {
    let (me, size) = (i64::from(comm.rank()), i64::from(comm.size()));
    let mine = filled((0..count as i64).map(|i| me + i));
    let all = room(8 * count as usize);
    comm.run(comm.allreduce(Kind::Allreduce, (&mine, &all), (count, integer(), sum()))?)?;
    let expected: Vec<i64> = (0..count as i64).map(|i| size * i + size * (size - 1) / 2).collect();
    assert_eq!(read(&all), expected);
    Ok(())
}

fn bcast(comm: &Comm) -> Result<()> {
    for root in [0, comm.size() / 2, comm.size() - 1] {
        for count in LENGTHS {
            let data = || filled((0..count as i64).map(|i| i * i + i64::from(root)));
            let memory: Buffer = if comm.rank() == root { data() } else { room(8 * count as usize) };
            comm.run(comm.bcast(Root::Rank(root as i32), &integers(&memory, count))?)?;
            assert_eq!(read(&memory), read(&data()));
        }
    }
    Ok(())
}

/// Splits by the remainder of the rank, in reverse order; the parts then work by themselves.
fn split(comm: &Arc<Comm>) -> Result<()> {
    let (me, size) = (comm.rank(), comm.size());
    let part = comm.split(Some((me % 3) as i32), -(me as i32))?.expect("every rank has a colour");
    let members: Vec<u32> = (0..size).filter(|rank| rank % 3 == me % 3).rev().collect();
    assert_eq!(part.size(), members.len() as u32);
    assert_eq!(members[part.rank() as usize], me);
    allreduce(&part)?;
    allgather(&part)?;
    gather_and_scatter(&part)?;
    alltoall_and_reduce_scatter(&part)?;
    bcast(&part)?;
    ring(&part)
}

/// Rank 0 is one group, all others the other one: who may be root, what may be in place, and which arguments matter.
fn between_groups(world: &Arc<Comm>) -> Result<()> {
    let me = world.rank();
    let own = world.split(Some(i32::from(me > 0)), 0)?.expect("every rank has a colour");
    let bridge = (own.rank() == 0).then_some((&**world, Dest::Rank(i32::from(me == 0))));
    let inter = own.intercomm_create(0, bridge, 5)?;
    let (mine, theirs) = (filled([i64::from(me)].into_iter()), room(8 * world.size() as usize));
    let refused = |call: Result<_>| call.err().map(|error| error.class);
    let bad_root = inter.bcast(Root::Rank(inter.remote_group().unwrap().size() as i32), &integers(&mine, 1));
    assert_eq!(refused(bad_root), Some(Class::ERR_ROOT));
    let alone = inter.bcast(Root::ProcNull, &integers(&mine, 1));
    assert_eq!(refused(alone), (own.size() == 1).then_some(Class::ERR_ROOT));
    let scan = inter.allreduce(Kind::Scan, (&mine, &theirs), (1, integer(), sum()));
    assert_eq!(refused(scan), Some(Class::ERR_COMM));

    // Process 1 gathers from process 0; what does not matter at a rank is too short for what it says.
    let (nothing, much) = (integers(&mine, u64::MAX), integers(&theirs, 1));
    let call = match me {
        0 => inter.data_movement(Kind::Gather, Some(Root::Rank(0)), &integers(&mine, 1), &nothing)?,
        1 => inter.data_movement(Kind::Gather, Some(Root::Here), &nothing, &much)?,
        _ => inter.data_movement(Kind::Gather, Some(Root::ProcNull), &nothing, &nothing)?,
    };
    inter.run(call)?;
    assert_eq!(read(&theirs)[0], 0);
    inter.run(inter.data_movement(Kind::Allgather, None, &integers(&mine, 1), &integers(&theirs, 1))?)?;
    let others = if me == 0 { 1..i64::from(world.size()) } else { 0..1 };
    assert!(read(&theirs).into_iter().zip(others).all(|(got, rank)| got == rank));
    Ok(())
}

/// A collective whose request is dropped is waited for: the others count on it, and its memory is in use.
fn dropped(world: &Arc<Comm>) -> Result<()> {
    let (me, size) = (i64::from(world.rank()), i64::from(world.size()));
    let (mine, all) = (filled((0..5000).map(|i| me + i)), room(40_000));
    drop(world.start(world.allreduce(Kind::Allreduce, (&mine, &all), (5000, integer(), sum()))?)?);
    assert_eq!(read(&all)[4999], 4999 * size + size * (size - 1) / 2);
    let again =
        world.persist(world.allreduce(Kind::Allreduce, (&mine, &all), (5000, integer(), sum()))?)?;
    all.write(0, &[0; 40_000]);
    again.start()?;
    drop(again);
    assert_eq!(read(&all)[0], size * (size - 1) / 2);
    Ok(())
}

fn everything(_: &Arc<Runtime>, world: &Arc<Comm>) -> Result<()> {
    ring(world)?;
    gather_by_wildcard(world)?;
    allreduce(world)?;
    bcast(world)?;
    split(world)?;
    between_groups(world)?;
    dropped(world)?;
    world.run(world.barrier())
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
        let all = room(8 * count as usize);
        let elements = || Ok((count, integer(), sum()));
        comm.run(comm.reduce(Root::Rank(root as i32), (&mine, &all), elements)?)?;
        let expected: Vec<i64> = (0..count as i64).map(|i| size * i + size * (size - 1) / 2).collect();
        assert!(comm.rank() != root || read(&all) == expected);
    }
    Ok(())
}

/// The blocks of all ranks, everywhere.
fn allgather(comm: &Comm) -> Result<()> {
    let (me, size) = (i64::from(comm.rank()), i64::from(comm.size()));
    for count in LENGTHS {
        let block = |rank: i64| (0..count as i64).map(move |i| rank * 100_000 + i);
        let mine = filled(block(me));
        let all = room(8 * (count as i64 * size) as usize);
        comm.run(comm.data_movement(
            Kind::Allgather,
            None,
            &integers(&mine, count),
            &integers(&all, count),
        )?)?;
        assert!(read(&all).into_iter().eq((0..size).flat_map(block)));
    }
    Ok(())
}

/// The blocks of all ranks at each root, and back again.
fn gather_and_scatter(comm: &Comm) -> Result<()> {
    let (me, size) = (i64::from(comm.rank()), i64::from(comm.size()));
    for (root, count) in (0..comm.size()).rev().zip(LENGTHS.into_iter().cycle()) {
        let block = |rank: i64| (0..count as i64).map(move |i| rank * 100_000 + i);
        let (mine, all) = (filled(block(me)), room(8 * (count as i64 * size) as usize));
        let (to, one, each) = (Root::Rank(root as i32), integers(&mine, count), integers(&all, count));
        comm.run(comm.data_movement(Kind::Gather, Some(to), &one, &each)?)?;
        assert!(comm.rank() != root || read(&all).into_iter().eq((0..size).flat_map(block)));
        mine.write(0, &vec![0; mine.len()]);
        comm.run(comm.data_movement(Kind::Scatter, Some(to), &each, &one)?)?;
        assert!(read(&mine).into_iter().eq(block(me)));
    }
    Ok(())
}

/// A block of each rank for each other one, and a block of the sum for each.
fn alltoall_and_reduce_scatter(comm: &Comm) -> Result<()> {
    let (me, size) = (i64::from(comm.rank()), i64::from(comm.size()));
    for count in LENGTHS {
        let block = |from: i64, to: i64| (0..count as i64).map(move |i| (from * 100 + to) * 10_000 + i);
        let mine = filled((0..size).flat_map(|to| block(me, to)));
        let all = room(mine.len());
        comm.run(comm.data_movement(
            Kind::Alltoall,
            None,
            &integers(&mine, count),
            &integers(&all, count),
        )?)?;
        assert!(read(&all).into_iter().eq((0..size).flat_map(|from| block(from, me))));
        let (part, result) = (room(8 * count as usize), Operand::uniform(count, integer()));
        comm.run(comm.reduce_scatter((&mine, &part), (result, sum()))?)?;
        let sums = |i: i64| (0..size).map(|from| (from * 100 + me) * 10_000 + i).sum::<i64>();
        assert!(read(&part).into_iter().eq((0..count as i64).map(sums)));
    }
    Ok(())
}

/// All compositions, as values of BANYAN_COLL, each of which has one for a collective.
fn compositions() -> Vec<String> {
    let mut lists: Vec<Vec<&Algorithm>> = vec![];
    for row in all().filter(|row| !row.stages.is_empty()) {
        match lists.iter_mut().find(|list| list.iter().all(|other| other.kind != row.kind)) {
            Some(list) => list.push(row),
            None => lists.push(vec![row]),
        }
    }
    lists.iter().map(|list| list.iter().map(|row| format!("{row:?}")).collect::<Vec<_>>().join(",")).collect()
}

/// Ranks of a node share memory, or not, and know their sockets, or not.
#[test]
fn collectives_by_way_of_leaders_give_what_flat_ones_give() {
    let composed = compositions();
    let flat = "barrier=dissemination,bcast=binomial,reduce=binomial,allreduce=doubling";
    for nodes in [&[2, 1][..], &[9], &[3, 1, 4], &[1, 5, 2, 2], &[2, 2, 2, 2, 2], &[4, 1, 1, 3, 2, 1, 1, 2]] {
        let composed = composed.iter().flat_map(|coll| [1, 0, 2, 3].map(|sharing| (&**coll, sharing)));
        for (coll, sharing) in composed.chain([(flat, 1)]) {
            let seed = fresh_seed() & !3 | sharing;
            run_with(nodes, &[("BANYAN_COLL", coll)], seed, &Options::default(), |_, world| {
                for _ in 0..3 {
                    allreduce(world)?;
                    bcast(world)?;
                    reduce(world)?;
                    allgather(world)?;
                    gather_and_scatter(world)?;
                    alltoall_and_reduce_scatter(world)?;
                }
                // Its parts have members on some of the nodes, in the reverse order.
                split(world)?;
                world.run(world.barrier())
            });
        }
    }
}

/// Simulated time of an allreduce of so many integers by this algorithm, on nodes of these sizes; its result is checked.
fn timed_allreduce(algorithm: &str, nodes: &[u32], count: u64) -> Duration {
    let options = Options { clock: Some(clock(nodes)), ..Options::default() };
    let coll = format!("barrier=dissemination,allreduce={algorithm}");
    run_with(nodes, &[("BANYAN_COLL", &coll)], fresh_seed(), &options, |_, world| allreduce_of(world, count))
}

#[test]
fn an_allreduce_by_way_of_leaders_is_cheaper_in_simulated_time() {
    for nodes in [&[5, 3][..], &[5, 1, 4], &[1, 5, 2, 2], &[3, 2, 4, 2, 2], &[4, 1, 1, 3, 2, 1, 1, 2]] {
        // Of 20,000 integers each node sends its own sum, and not one for each of its ranks.
        let [flat, composed] =
            ["doubling", "nodes"].map(|algorithm| timed_allreduce(algorithm, nodes, 20_000));
        println!("flat {flat:?}, by way of leaders {composed:?}");
        assert!(composed < flat, "nodes {nodes:?}");
    }
}

#[test]
fn simulated_time_is_the_same_in_every_run() {
    for (algorithm, nodes) in [("nodes", &[4, 1, 2][..]), ("doubling", &[1, 5, 2, 2])] {
        let times: Vec<Duration> = (0..3).map(|_| timed_allreduce(algorithm, nodes, 20_000)).collect();
        assert!(times[0] > Duration::ZERO && times.iter().all(|time| *time == times[0]), "{times:?}");
    }
}

#[test]
fn memory_of_devices_is_as_good_as_the_host_s() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let kernels = cuda_double::compile::library(banyan_datatype::device::FOR_THE_PROCESSOR, folder);
    let kernels = kernels.inspect_err(|why| eprintln!("devices run no kernels: {why}")).ok();
    for options in [Options::cramped(), Options { get: OneSided::Later, ..Options::default() }] {
        let seed = fresh_seed();
        run(&[2, 3], seed, &options, |_, world| {
            let rank = world.rank();
            // Host and devices meet; the last rank has host memory.
            let device = (rank < 4).then(|| SimulatedDevice::new(1 << 24, seed + u64::from(rank)));
            // One device runs no kernels.
            let runs = device.clone().zip(kernels.as_ref()).filter(|_| rank != 2);
            runs.iter().for_each(|(device, kernels)| device.run_kernels_of(kernels));
            DEVICE.set(device.clone());
            ring(world)?;
            gather_by_wildcard(world)?;
            allreduce(world)?;
            bcast(world)?;
            reduce(world)?;
            dropped(world)?;
            DEVICE.set(None);
            if let Some(device) = device {
                let (started, under_way) = device.copies();
                assert!(started > 20 && under_way == 0, "{started} copies, {under_way} under way");
                let reduced = device.kernels();
                assert!(runs.is_none() || reduced > 0, "the device of rank {rank} has run no kernel");
            }
            Ok(())
        });
    }
}

#[test]
fn a_rank_that_no_fabric_reaches_is_an_error() {
    let one = Net::new(1, 1, Options::default()).endpoint(0);
    let refused = Runtime::open_over(one, None, &job(0, &[2], false), Threads::Multiple, None);
    assert!(refused.err().expect("rank 1 is not there").to_string().contains("no fabric reaches rank 1"));
}

/// A request of MPI_Isendrecv is over when both its messages are, and gives the receive's status.
#[test]
fn a_send_and_a_receive_are_over_together() {
    run(&[1, 1], fresh_seed(), &Options::default(), |_, world| {
        let (long, word) = (filled(0..5000), filled([7].into_iter()));
        let (short_room, long_room) = (room(8), room(40_000));
        if world.rank() == 1 {
            world.send(&message(&word), Dest::Rank(0), 1, SendMode::Standard)?;
            world.send(&message(&word), Dest::Rank(0), 2, SendMode::Standard)?;
            world.recv(&message(&short_room), Source::Rank(0), Some(3)).into_result()?;
            world.recv(&message(&long_room), Source::Rank(0), Some(4)).into_result()?;
            assert_eq!(read(&long_room), read(&long));
            return Ok(());
        }
        let send = (&message(&long), Dest::Rank(1), 4);
        let started = world.isendrecv(send, (&message(&short_room), Source::Rank(1), Some(1)))?;
        let Started::Pending(both) = started else { panic!("rank 1 has not received the long message") };
        // When the second message is here so is the first; the long one waits for its receive.
        let other = room(8);
        world.recv(&message(&other), Source::Rank(1), Some(2)).into_result()?;
        assert!(both.test().is_none() && read(&short_room) == [7]);
        world.send(&message(&word), Dest::Rank(1), 3, SendMode::Standard)?;
        let status = both.wait().into_result()?;
        assert_eq!((status.source(), status.tag(), status.bytes()), (Source::Rank(1), Some(1), 8));
        Ok(())
    });
}

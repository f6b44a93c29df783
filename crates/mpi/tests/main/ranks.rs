//! What ranks do together through the Rust interface, on 1 to 5 ranks: of mpirun, and simulated ones.

use std::sync::LazyLock;

use crate::common::everywhere;
use mpi::collective::{SystemOperation, UserOperation};
use mpi::datatype::{DatatypeRef, MutView, Partition, PartitionMut, UserDatatype, View};
use mpi::point_to_point as p2p;
use mpi::topology::{Color, CommunicatorRelation, SimpleCommunicator};
use mpi::traits::*;
use mpi::{Count, ErrorClass, Rank};

const RANKS: &[u32] = &[1, 2, 3, 5];

/// The number that a rank gives for an element, unlike those of others.
fn number(rank: Rank, at: usize) -> u64 {
    rank as u64 * 1_000_003 + at as u64
}

fn numbers(rank: Rank, len: usize) -> Vec<u64> {
    (0..len).map(|at| number(rank, at)).collect()
}

/// The function `x -> .0 x + .1`, in numbers that wrap around.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
struct Affine(u64, u64);

impl Affine {
    fn after(self, first: Affine) -> Affine {
        Affine(self.0.wrapping_mul(first.0), self.0.wrapping_mul(first.1).wrapping_add(self.1))
    }
}

// SAFETY: the type is two numbers side by side.
unsafe impl Equivalence for Affine {
    type Out = DatatypeRef<'static>;

    fn equivalent_datatype() -> Self::Out {
        static DATATYPE: LazyLock<UserDatatype> =
            LazyLock::new(|| UserDatatype::contiguous(2, &u64::equivalent_datatype()));
        DATATYPE.as_ref()
    }
}

fn neighbours(world: &SimpleCommunicator) -> (Rank, Rank) {
    ((world.rank() + world.size() - 1) % world.size(), (world.rank() + 1) % world.size())
}

#[test]
fn messages_go_round_in_every_mode() {
    everywhere("main::ranks::messages_go_round_in_every_mode", RANKS, |universe| {
        universe.set_buffer_size(1 << 20);
        let world = universe.world();
        let (before, after) = neighbours(&world);
        let (source, target) = (world.process_at_rank(before), world.process_at_rank(after));
        for len in [0, 1, 100, 100_000] {
            let mine = numbers(world.rank(), len);
            let mut got = vec![0; len];
            mpi::request::scope(|scope| {
                let requests = [
                    target.immediate_send_with_tag(scope, &mine[..], 1),
                    target.immediate_synchronous_send_with_tag(scope, &mine[..], 2),
                ];
                let (standard, status) = source.receive_vec_with_tag::<u64>(1);
                assert_eq!(
                    (&standard, status.source_rank(), status.tag()),
                    (&numbers(before, len), before, 1)
                );
                assert_eq!(status.elements(u64::equivalent_datatype()), Some(len as u64));
                let probed = source.probe_with_tag(2);
                assert_eq!(probed.count(u64::equivalent_datatype()) as usize, len);
                source.receive_into_with_tag(&mut got[..], 2);
                assert_eq!(got, standard);
                requests.into_iter().for_each(|request| request.wait_without_status());
            });
            if len < 10_000 {
                target.buffered_send(&mine[..]);
                assert_eq!(source.receive_vec::<u64>().0, got);
            }
            let status = p2p::send_receive_into(&mine[..], &target, &mut got[..], &source);
            assert_eq!((got, status.source_rank()), (numbers(before, len), before));
        }
        let (value, _): (u64, _) = p2p::send_receive(&number(world.rank(), 0), &target, &source);
        assert_eq!(value, number(before, 0));
        let mut value = number(world.rank(), 1);
        p2p::send_receive_replace_into(&mut value, &target, &source);
        assert_eq!(value, number(before, 1));
    });
}

#[test]
fn requests_end_with_their_scope_however_they_are_let_go() {
    everywhere("main::ranks::requests_end_with_their_scope_however_they_are_let_go", RANKS, |universe| {
        let world = universe.world();
        let (before, after) = neighbours(&world);
        let (source, target) = (world.process_at_rank(before), world.process_at_rank(after));
        {
            // A send that is dropped goes on from a copy, of which the sender's memory is no part.
            let mut mine = numbers(world.rank(), 300_000);
            mpi::request::scope(|scope| drop(target.immediate_synchronous_send(scope, &mine[..])));
            mine.fill(u64::MAX);
            world.barrier();
            assert_eq!(source.receive_vec::<u64>().0, numbers(before, 300_000));
        }
        // A receive that is dropped takes nothing: the next one gets the message.
        let mut never = [7u64; 4];
        mpi::request::scope(|scope| drop(source.immediate_receive_into(scope, &mut never)));
        drop(source.immediate_receive::<u64>());
        let (mine, mut all) = (number(world.rank(), 0), vec![0u64; world.size() as usize]);
        mpi::request::scope(|scope| {
            // A collective that is dropped is waited for.
            drop(world.immediate_all_gather_into(scope, &mine, &mut all[..]));
        });
        assert_eq!(all, (0..world.size()).map(|rank| number(rank, 0)).collect::<Vec<_>>());
        target.send(&numbers(world.rank(), 4)[..]);
        let (got, _) = source.receive_vec::<u64>();
        assert_eq!((got, never), (numbers(before, 4), [7; 4]));
        let mine = numbers(world.rank(), 50);
        let mut got = [0; 50];
        mpi::request::multiple_scope(100, |scope, requests| {
            for (given, got) in mine.iter().zip(&mut got) {
                requests.add(target.immediate_send(scope, given));
                requests.add(source.immediate_receive_into(scope, got));
            }
            let (mut over, mut some) = (vec![], vec![]);
            over.extend(requests.wait_any().map(|(index, ..)| index));
            requests.wait_some(&mut some);
            over.extend(some.iter().map(|(index, ..)| *index));
            requests.test_some(&mut some);
            over.extend(some.iter().map(|(index, ..)| *index));
            over.extend(requests.test_any().map(|(index, ..)| index));
            assert_eq!(over.len() + requests.incomplete(), 100);
            requests.wait_all(&mut some);
            over.extend(some.iter().map(|(index, ..)| *index));
            over.sort_unstable();
            assert_eq!((over, requests.incomplete()), ((0..100).collect(), 0));
        });
        assert_eq!(got[..], numbers(before, 50));
    });
}

#[test]
fn collectives_without_a_root() {
    everywhere("main::ranks::collectives_without_a_root", RANKS, |universe| {
        let world = universe.world();
        let (rank, size) = (world.rank(), world.size());
        for len in [0, 1, 7, 20_000] {
            let ranks = size as usize;
            let mut all = vec![0; len * ranks];
            world.all_gather_into(&numbers(rank, len)[..], &mut all[..]);
            let everything: Vec<u64> = (0..size).flat_map(|rank| numbers(rank, len)).collect();
            assert_eq!(all, everything);
            let mut crossed = vec![0; len * ranks];
            world.all_to_all_into(&all[..], &mut crossed[..]);
            assert_eq!(crossed, (0..size).flat_map(|_| numbers(rank, len)).collect::<Vec<_>>());
            let sum = |at| (0..size).map(|rank| number(rank, at)).sum::<u64>();
            let mut sums = vec![0; len];
            world.all_reduce_into(&numbers(rank, len)[..], &mut sums[..], SystemOperation::sum());
            assert_eq!(sums, (0..len).map(sum).collect::<Vec<_>>());
            let mut part = vec![0; len];
            world.reduce_scatter_block_into(&all[..], &mut part[..], SystemOperation::max());
            assert_eq!(part, numbers(rank, len));
            world.scan_into(&numbers(rank, len)[..], &mut part[..], SystemOperation::min());
            assert_eq!(part, numbers(0, len));
            // Functions x -> f x + g, as pairs of numbers: to compose them does not commute.
            let compose = UserOperation::associative(|given, so_far| {
                let (given, so_far) =
                    (given.downcast::<Affine>().unwrap(), so_far.downcast::<Affine>().unwrap());
                given.iter().zip(so_far).for_each(|(first, then)| *then = then.after(*first));
            });
            let mine: Vec<Affine> = (0..len).map(|at| Affine(number(rank, at), 1 + at as u64)).collect();
            let mut composed = vec![Affine(0, 0); len];
            world.all_reduce_into(&mine[..], &mut composed[..], &compose);
            let all = |at| (0..size).map(move |rank| Affine(number(rank, at), 1 + at as u64));
            let right = |at: usize| all(at).reduce(|first, then| then.after(first)).unwrap();
            assert_eq!(composed, (0..len).map(right).collect::<Vec<_>>());
            let refused = world.try_all_reduce_into(&mine[..], &mut part[..], &compose);
            assert_eq!(refused.unwrap_err().class, ErrorClass::ERR_TYPE);
        }
        let (counts, displs): (Vec<Count>, Vec<Count>) =
            (0..size).map(|rank| (rank, rank * (rank - 1) / 2)).unzip();
        let mut staircase = vec![u64::MAX; (size * (size - 1) / 2) as usize];
        let mut partition = PartitionMut::new(&mut staircase[..], &counts[..], &displs[..]);
        world.all_gather_varcount_into(&numbers(rank, rank as usize)[..], &mut partition);
        assert_eq!(staircase, (0..size).flat_map(|rank| numbers(rank, rank as usize)).collect::<Vec<_>>());
        world.immediate_barrier().wait();
    });
}

/// Calls with the arguments of an earlier one go by what is kept of that; those that differ in anything do not.
#[test]
fn calls_that_come_again_mean_what_their_arguments_say() {
    everywhere("main::ranks::calls_that_come_again_mean_what_their_arguments_say", RANKS, |universe| {
        let world = universe.world();
        let (rank, size) = (world.rank(), world.size());
        for round in 0..4 {
            // Each round has memory of its own.
            let (mine, mut got) = (numbers(rank + round, 12), vec![0; 12]);
            let all = |at: usize| (0..size).map(move |rank| number(rank + round, at));
            for len in [1, 5, 12] {
                world.all_reduce_into(&mine[..len], &mut got[..len], SystemOperation::sum());
                assert!((0..len).all(|at| got[at] == all(at).sum::<u64>()));
                world.all_reduce_into(&mine[..len], &mut got[..len], SystemOperation::max());
                assert!((0..len).all(|at| got[at] == all(at).max().unwrap()));
                let signed: Vec<i64> = mine[..len].iter().map(|&number| -(number as i64)).collect();
                let mut smallest = vec![0i64; len];
                world.all_reduce_into(&signed[..], &mut smallest[..], SystemOperation::min());
                assert!((0..len).all(|at| smallest[at] == -(all(at).max().unwrap() as i64)));
                world.scan_into(&mine[..len], &mut got[..len], SystemOperation::min());
                assert_eq!(got[..len], numbers(round, len));
                let refused =
                    world.try_all_reduce_into(&mine[..len], &mut got[..len - 1], SystemOperation::sum());
                assert_eq!(refused.unwrap_err().class, ErrorClass::ERR_COUNT);
                mpi::request::scope(|scope| {
                    world
                        .immediate_all_reduce_into(
                            scope,
                            &mine[..len],
                            &mut got[..len],
                            SystemOperation::sum(),
                        )
                        .wait();
                });
                assert!((0..len).all(|at| got[at] == all(at).sum::<u64>()));
                for root_rank in 0..size {
                    let root = world.process_at_rank(root_rank);
                    let mut told = if root.is_self() { numbers(rank + round, len) } else { vec![0; len] };
                    root.broadcast_into(&mut told[..]);
                    assert_eq!(told, numbers(root_rank + round, len));
                    if root.is_self() {
                        let mut gathered = vec![0; len * size as usize];
                        root.gather_into_root(&mine[..len], &mut gathered[..]);
                        let right: Vec<u64> = (0..size).flat_map(|rank| numbers(rank + round, len)).collect();
                        assert_eq!(gathered, right);
                        root.reduce_into_root(&mine[..len], &mut got[..len], SystemOperation::sum());
                        assert!((0..len).all(|at| got[at] == all(at).sum::<u64>()));
                    } else {
                        root.gather_into(&mine[..len]);
                        root.reduce_into(&mine[..len], SystemOperation::sum());
                    }
                }
            }
        }
    });
}

#[test]
fn collectives_with_a_root() {
    everywhere("main::ranks::collectives_with_a_root", RANKS, |universe| {
        let world = universe.world();
        let (rank, size) = (world.rank(), world.size());
        for root_rank in [0, size - 1] {
            let root = world.process_at_rank(root_rank);
            let mut data = if root.is_self() { numbers(42, 1000) } else { vec![0; 1000] };
            root.broadcast_into(&mut data[..]);
            assert_eq!(data, numbers(42, 1000));
            let everything: Vec<u64> = (0..size).flat_map(|rank| numbers(rank, 3)).collect();
            let mut part = [0; 3];
            let (counts, displs): (Vec<Count>, Vec<Count>) = (0..size).map(|rank| (3, 3 * rank)).unzip();
            if root.is_self() {
                let mut all = vec![0; 3 * size as usize];
                root.gather_into_root(&numbers(rank, 3)[..], &mut all[..]);
                assert_eq!(all, everything);
                root.scatter_into_root(&everything[..], &mut part[..]);
                let mut sums = [0; 3];
                root.reduce_into_root(&part, &mut sums, SystemOperation::sum());
                assert_eq!(sums[0], (0..size).map(|rank| number(rank, 0)).sum::<u64>());
                let mut partition = PartitionMut::new(&mut all[..], &counts[..], &displs[..]);
                root.gather_varcount_into_root(&part, &mut partition);
                root.scatter_varcount_into_root(
                    &Partition::new(&all[..], &counts[..], &displs[..]),
                    &mut part,
                );
            } else {
                root.gather_into(&numbers(rank, 3)[..]);
                root.scatter_into(&mut part[..]);
                root.reduce_into(&part, SystemOperation::sum());
                root.gather_varcount_into(&part);
                part.fill(0);
                root.scatter_varcount_into(&mut part);
            }
            assert_eq!(part[..], numbers(rank, 3));
        }
        let wrong = world.process_at_rank(if rank == 0 { size - 1 } else { 0 });
        if size > 1 {
            let error = wrong.try_gather_into_root(&1u64, &mut vec![0u64; size as usize][..]).unwrap_err();
            assert_eq!(error.class, ErrorClass::ERR_ROOT);
            assert!(error.what.contains("without _root"), "{error}");
        }
    });
}

#[test]
fn communicators_are_split_and_compared() {
    everywhere("main::ranks::communicators_are_split_and_compared", RANKS, |universe| {
        let world = universe.world();
        let (rank, size) = (world.rank(), world.size());
        let part = world.split_by_color_with_key(Color::with_value(rank % 2), -rank).unwrap();
        assert_eq!(part.size(), (size + 1 - rank % 2) / 2);
        assert_eq!(part.group().translate_rank(part.rank(), &world.group()), Some(rank));
        let mut sum = 0;
        part.all_reduce_into(&rank, &mut sum, SystemOperation::sum());
        assert_eq!(sum, (0..size).filter(|other| other % 2 == rank % 2).sum::<Rank>());
        assert!(world.split_by_color(Color::undefined()).is_none());
        let evens: Vec<Rank> = (0..size).step_by(2).collect();
        let evens = world.group().include(&evens);
        let subgroup = world.split_by_subgroup_collective(&evens);
        assert_eq!(subgroup.is_some(), rank % 2 == 0);
        assert_eq!(
            world.split_by_subgroup(&evens).map(|comm| comm.size()),
            evens.rank().map(|_| evens.size())
        );
        assert_eq!(world.compare(&world.duplicate()), CommunicatorRelation::Congruent);
        assert_eq!(world.compare(&universe.world()), CommunicatorRelation::Identical);
        let grid = world.create_cartesian_communicator(&[size, 1], &[true, false], false).unwrap();
        assert_eq!(grid.get_layout().coords, [rank, 0]);
        assert_eq!(grid.shift(0, 1), (Some((rank + size - 1) % size), Some((rank + 1) % size)));
        assert_eq!((grid.shift(1, 1), grid.coordinates_to_rank(&[rank, 0])), ((None, None), rank));
        assert_eq!(grid.subgroup(&[false, true]).size(), 1);
    });
}

#[test]
fn views_pick_elements_from_memory() {
    everywhere("main::ranks::views_pick_elements_from_memory", &[2], |universe| {
        let world = universe.world();
        let column = UserDatatype::vector(3, 1, 4, &u64::equivalent_datatype());
        let mut matrix = numbers(world.rank(), 12);
        if world.rank() == 0 {
            // SAFETY: the type reaches over three rows of four numbers.
            let view = unsafe { View::with_count_and_datatype(&matrix[1..], 1, &column) };
            world.process_at_rank(1).send(&view);
        } else {
            let mut expected = matrix.clone();
            (0..3).for_each(|row| expected[4 * row + 2] = number(0, 4 * row + 1));
            // SAFETY: as above.
            let mut view = unsafe { MutView::with_count_and_datatype(&mut matrix[2..], 1, &column) };
            world.process_at_rank(0).receive_into(&mut view);
            assert_eq!(matrix, expected);
        }
    });
}

#[test]
fn values_of_any_length_are_sent_and_gathered() {
    everywhere("main::ranks::values_of_any_length_are_sent_and_gathered", RANKS, |universe| {
        let world = universe.world();
        let (rank, size) = (world.rank(), world.size());
        let of =
            |rank: Rank| (format!("{rank}").repeat(1000 * rank as usize), Some(vec![rank; rank as usize]));
        let right: Vec<_> = (0..size).map(of).collect();
        assert_eq!(world.all_gather_values(&of(rank)), right);
        for root in 0..size {
            let root = world.process_at_rank(root);
            assert_eq!(root.broadcast_value(root.is_self().then(|| of(rank)).as_ref()), of(root.rank()));
            assert_eq!(root.gather_values(&of(rank)), root.is_self().then(|| right.clone()));
        }
        let (before, after) = neighbours(&world);
        if rank % 2 == 0 || before == rank {
            mpi::request::scope(|scope| {
                let early = world.this_process().immediate_send(scope, &[1u8]);
                let wrong = world.this_process().try_receive_value_with_tag::<String>(0).unwrap_err();
                assert_eq!(wrong.class, ErrorClass::ERR_CONVERSION);
                early.wait();
            });
        }
        if size > 1 {
            if rank == 0 {
                world.process_at_rank(after).send_value(&of(7));
            } else {
                let (value, _) = world.process_at_rank(before).receive_value::<(String, Option<Vec<Rank>>)>();
                assert_eq!(value, of(7));
                if after != 0 {
                    world.process_at_rank(after).send_value(&value);
                }
            }
        }
    });
}

#[test]
fn errors_are_told_by_calls_that_return_them() {
    everywhere("main::ranks::errors_are_told_by_calls_that_return_them", &[2], |universe| {
        let world = universe.world();
        let peer = world.process_at_rank(1 - world.rank());
        let class = |result: mpi::Result<()>| result.unwrap_err().class;
        assert_eq!(class(peer.try_send_with_tag(&1, -7)), ErrorClass::ERR_TAG);
        peer.send(&[1u8, 2, 3]);
        peer.send(&[1u8, 2, 3]);
        assert_eq!(class(peer.try_receive_vec_with_tag::<u16>(0).map(drop)), ErrorClass::ERR_TRUNCATE);
        let mut small = [0u8; 2];
        assert_eq!(class(peer.try_receive_into_with_tag(&mut small, 0).map(drop)), ErrorClass::ERR_TRUNCATE);
        let send = std::panic::AssertUnwindSafe(|| world.this_process().send_with_tag(&1, -7));
        let panic = std::panic::catch_unwind(send).unwrap_err();
        assert!(panic.downcast::<String>().unwrap().contains("MPI_ERR_TAG: tag is -7"));
    });
}

#[mpi::test(ranks = 2)]
#[should_panic(expected = "on purpose")]
fn a_panic_ends_the_job(world: SimpleCommunicator) {
    assert_eq!(world.rank(), 0, "on purpose");
    world.process_at_rank(1).receive::<u8>();
}

#[mpi::test(ranks = 1)]
#[should_panic(expected = "a request of it is under way")]
fn a_request_that_is_leaked_ends_the_process(world: SimpleCommunicator) {
    let mut got = 0u8;
    mpi::request::scope(|scope| {
        std::mem::forget(world.any_process().immediate_receive_into(scope, &mut got))
    });
}

#[mpi::test(ranks = 2, threading = Funneled)]
fn threads_are_let_in_by_the_level(world: SimpleCommunicator) {
    assert_eq!(mpi::environment::threading_support(), mpi::Threading::Funneled);
    let refused = std::thread::scope(|scope| scope.spawn(|| world.size()).join()).unwrap_err();
    assert!(refused.downcast::<String>().is_ok_and(|text| text.contains("Threading::Multiple")));
    assert_eq!(world.size(), 2);
}

#[mpi::test(ranks = 2, threading = Multiple)]
fn threads_talk_at_once_with_the_highest_level(world: SimpleCommunicator) {
    let peer = 1 - world.rank();
    std::thread::scope(|scope| {
        for tag in 0..4 {
            let world = &world;
            scope.spawn(move || {
                for round in 0..50 {
                    let mine = (world.rank(), round);
                    let (given, mut got) = ([mine.0, mine.1], [0, 0]);
                    let peer = world.process_at_rank(peer);
                    p2p::send_receive_into_with_tags(&given, &peer, tag, &mut got, &peer, tag);
                    assert_eq!(got, [1 - mine.0, round]);
                }
            });
        }
    });
}

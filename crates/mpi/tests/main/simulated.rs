//! How simulated universes end: well, or by a panic of one rank, wherever the others are.

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU32, Ordering};

use mpi::Rank;
use mpi::collective::{SystemOperation, UserOperation};
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;

/// What a rank does while another one panics.
type Wait = fn(&SimpleCommunicator);

/// What a universe of three ranks panics with, if rank 2 panics after all have met, and the others do this.
fn ends(others: impl Fn(&SimpleCommunicator) + Sync + std::panic::RefUnwindSafe) -> String {
    let reached = AtomicU32::new(0);
    let run = || {
        Universe::simulated(3, |universe| {
            let world = universe.world();
            world.barrier();
            if world.rank() == 2 {
                panic!("the bug of rank {}", world.rank());
            }
            others(&world);
            reached.fetch_add(1, Ordering::Relaxed);
        })
    };
    let text = *catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_err().downcast::<String>().unwrap();
    assert_eq!(reached.into_inner(), 0, "ranks go on");
    text
}

#[test]
fn a_panic_ends_the_ranks_that_wait() {
    let waits: [(&str, Wait); 12] = [
        ("barrier", |world| world.barrier()),
        ("receive", |world| _ = world.process_at_rank(2).receive::<u8>()),
        ("receive from any", |world| drop(world.any_process().receive_vec::<u8>())),
        ("receive from itself", |world| _ = world.this_process().receive::<u8>()),
        ("receive from one that waits", |world| _ = world.process_at_rank(1 - world.rank()).receive::<u8>()),
        ("probe", |world| _ = world.any_process().probe()),
        ("synchronous send", |world| world.process_at_rank(2).synchronous_send(&1)),
        ("long send", |world| world.process_at_rank(2).send(&vec![1u8; 1 << 20][..])),
        ("polls", |world| while world.any_process().immediate_probe().is_none() {}),
        ("errors that are ignored", |world| {
            while world.process_at_rank(2).try_receive_vec_with_tag::<u8>(0).is_err() {}
        }),
        ("reduction", |world| {
            let mut all = vec![0; 100_000];
            world.all_reduce_into(&vec![1; 100_000][..], &mut all[..], SystemOperation::sum());
        }),
        ("requests", |world| {
            let (mine, mut got, mut all) = (vec![1u8; 1 << 20], [0; 9], [0; 3]);
            let rank = world.rank();
            mpi::request::scope(|scope| {
                let send = world.process_at_rank(2).immediate_send(scope, &mine[..]);
                let receive = world.any_process().immediate_receive_into(scope, &mut got);
                let gather = world.immediate_all_gather_into(scope, &rank, &mut all);
                receive.wait();
                gather.wait();
                send.wait();
            });
        }),
    ];
    for (what, wait) in waits {
        assert_eq!(ends(wait), "rank 2 of 3 panicked: the bug of rank 2", "{what}");
    }
}

#[test]
fn a_panic_among_requests_waits_for_nobody() {
    let run = || {
        Universe::simulated(2, |universe| {
            let world = universe.world();
            let (mine, mut got, mut all) = (vec![1u8; 1 << 20], [0; 9], [0; 2]);
            let rank = world.rank();
            mpi::request::scope(|scope| {
                let peer = world.process_at_rank(1 - rank);
                let _send = peer.immediate_synchronous_send(scope, &mine[..]);
                let _receive = peer.immediate_receive_into_with_tag(scope, &mut got, 5);
                if rank == 0 {
                    let _gather = world.immediate_all_gather_into(scope, &rank, &mut all);
                    panic!("on purpose");
                }
                world.barrier();
            });
        })
    };
    let text = *catch_unwind(run).unwrap_err().downcast::<String>().unwrap();
    assert_eq!(text, "rank 0 of 2 panicked: on purpose");
}

#[test]
fn a_panic_in_an_operation_ends_the_universe() {
    let run = || {
        Universe::simulated(3, |universe| {
            let world = universe.world();
            let mut result = 0;
            let operation = UserOperation::commutative(|_, _| panic!("the operation's bug"));
            world.all_reduce_into(&world.rank(), &mut result, &operation);
        })
    };
    let text = *catch_unwind(run).unwrap_err().downcast::<String>().unwrap();
    assert!(text.ends_with("of 3 panicked: the operation's bug"), "{text}");
}

#[test]
fn universes_are_there_side_by_side_and_one_after_the_other() {
    // A real universe of this process is another one.
    let real = mpi::initialize().unwrap();
    std::thread::scope(|scope| {
        for size in [1, 2, 3, 4] {
            scope.spawn(move || {
                for round in 0..20 {
                    let sums = Universe::simulated(size, |universe| {
                        assert!(mpi::initialize().is_none(), "there is one");
                        let (world, mut sum) = (universe.world(), 0);
                        assert_eq!((world.size(), universe.size()), (size as Rank, None));
                        world.all_reduce_into(&(world.rank() + round), &mut sum, SystemOperation::sum());
                        sum
                    });
                    let size = size as i32;
                    assert_eq!(sums, vec![size * (size - 1) / 2 + size * round; size as usize]);
                }
            });
        }
    });
    assert_eq!(real.world().size(), 1);
}

#[test]
fn results_come_in_the_order_of_ranks() {
    let ranks = Universe::simulated(16, |universe| universe.world().rank());
    assert_eq!(ranks, (0..16).collect::<Vec<_>>());
}

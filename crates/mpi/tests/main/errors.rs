//! `mpi::attempt`: the errors of calls that return none, of each family, on simulated ranks and on processes.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::everywhere;
use banyan_memory::DeviceFailure;
use mpi::collective::{SystemOperation, UserOperation};
use mpi::datatype::{DynBuffer, DynBufferMut, Partition, UserDatatype};
use mpi::point_to_point as p2p;
use mpi::request::{multiple_scope, scope};
use mpi::topology::{Color, SimpleCommunicator};
use mpi::traits::*;
use mpi::{ErrorClass, attempt};

type Case = (&'static str, ErrorClass, fn(&SimpleCommunicator));

/// A message to oneself that is longer than what waits for it.
fn too_long(world: &SimpleCommunicator) {
    world.this_process().send(&[1u16, 2, 3]);
}

const MESSAGES: &[Case] = &[
    ("send_with_tag", ErrorClass::ERR_TAG, |world| world.this_process().send_with_tag(&1, -7)),
    ("buffered_send", ErrorClass::ERR_BUFFER, |world| world.this_process().buffered_send(&1)),
    ("receive_with_tag", ErrorClass::ERR_TAG, |world| {
        let _ = world.any_process().receive_with_tag::<u8>(-7);
    }),
    ("receive", ErrorClass::ERR_TRUNCATE, |world| {
        too_long(world);
        world.any_process().receive::<u16>();
    }),
    ("receive_into", ErrorClass::ERR_TRUNCATE, |world| {
        too_long(world);
        world.any_process().receive_into(&mut [0u16; 2]);
    }),
    ("receive_vec", ErrorClass::ERR_TRUNCATE, |world| {
        too_long(world);
        world.any_process().receive_vec::<u32>();
    }),
    ("receive_value", ErrorClass::ERR_CONVERSION, |world| {
        world.this_process().send(&255u8);
        world.any_process().receive_value::<bool>();
    }),
    ("probe_with_tag", ErrorClass::ERR_TAG, |world| {
        let _ = world.any_process().probe_with_tag(-7);
    }),
    ("immediate_probe_with_tag", ErrorClass::ERR_TAG, |world| {
        world.any_process().immediate_probe_with_tag(-7);
    }),
    ("immediate_matched_probe_with_tag", ErrorClass::ERR_TAG, |world| {
        drop(world.any_process().immediate_matched_probe_with_tag(-7));
    }),
    ("send_receive", ErrorClass::ERR_COMM, |world| {
        let other = SimpleCommunicator::self_comm();
        p2p::send_receive::<u8, u8, _, _>(&1, &world.this_process(), &other.this_process());
    }),
];

const REQUESTS: &[Case] = &[
    ("immediate_send_with_tag", ErrorClass::ERR_TAG, |world| {
        scope(|scope| drop(world.this_process().immediate_send_with_tag(scope, &1, -7)));
    }),
    ("immediate_receive_with_tag", ErrorClass::ERR_TAG, |world| {
        drop(world.any_process().immediate_receive_with_tag::<u8>(-7));
    }),
    ("get", ErrorClass::ERR_TRUNCATE, |world| {
        too_long(world);
        world.any_process().immediate_receive::<u16>().get();
    }),
    ("wait", ErrorClass::ERR_TRUNCATE, |world| {
        too_long(world);
        let mut got = [0u16; 2];
        scope(|scope| world.any_process().immediate_receive_into(scope, &mut got).wait());
    }),
    ("wait_all", ErrorClass::ERR_TRUNCATE, |world| {
        too_long(world);
        let mut got = [0u16; 2];
        multiple_scope(1, |scope, requests| {
            requests.add(world.any_process().immediate_receive_into(scope, &mut got));
            requests.wait_all(&mut vec![]);
        });
    }),
    ("send_init_with_tag", ErrorClass::ERR_TAG, |world| {
        drop(world.this_process().send_init_with_tag(&mut 1, -7));
    }),
    ("receive_init_with_tag", ErrorClass::ERR_TAG, |world| {
        drop(world.any_process().receive_init_with_tag(&mut 1, -7));
    }),
    ("start", ErrorClass::ERR_BUFFER, |world| {
        let mut value = 1;
        let mut send = world.this_process().buffered_send_init(&mut value);
        scope(|scope| send.start(scope).wait());
    }),
];

const COLLECTIVES: &[Case] = &[
    ("all_reduce_into", ErrorClass::ERR_COUNT, |world| {
        world.all_reduce_into(&[1, 2], &mut 0, SystemOperation::sum());
    }),
    ("scan_into", ErrorClass::ERR_OP, |world| {
        world.scan_into(&1.5, &mut 0.0, SystemOperation::bitwise_and());
    }),
    ("reduce_scatter_block_into", ErrorClass::ERR_COUNT, |world| {
        let given = vec![1; world.size() as usize + 1];
        world.reduce_scatter_block_into(&given[..], &mut 0, SystemOperation::sum());
    }),
    ("immediate_all_reduce_into", ErrorClass::ERR_TYPE, |world| {
        let (given, mut got) = (1u8, 0i8);
        let sum = SystemOperation::sum();
        scope(|scope| drop(world.immediate_all_reduce_into(scope, &given, &mut got, sum)));
    }),
    ("all_reduce_init", ErrorClass::ERR_COUNT, |world| {
        drop(world.all_reduce_init(&mut [1, 2], &mut [0], SystemOperation::sum()));
    }),
    ("gather_into", ErrorClass::ERR_ROOT, |world| match world.rank() {
        0 => world.process_at_rank(0).gather_into(&1),
        _ => world.process_at_rank(0).gather_into_root(&1, &mut vec![0; world.size() as usize]),
    }),
    ("all_to_all_varcount_into", ErrorClass::ERR_ARG, |world| {
        let (given, mut got) = ([1, 2], [0, 0]);
        let counts = vec![0; world.size() as usize + 1];
        let given = Partition::new(&given[..], &counts[..], &counts[..]);
        let mut got = mpi::datatype::PartitionMut::new(&mut got[..], &counts[..], &counts[..]);
        world.all_to_all_varcount_into(&given, &mut got);
    }),
    ("reduce_local_into", ErrorClass::ERR_COUNT, |_| {
        mpi::collective::reduce_local_into(&[1, 2], &mut 0, SystemOperation::sum());
    }),
];

const OBJECTS: &[Case] = &[
    ("process_at_rank", ErrorClass::ERR_RANK, |world| {
        let _ = world.process_at_rank(world.size()).rank();
    }),
    ("Color::with_value", ErrorClass::ERR_ARG, |_| {
        let _ = Color::with_value(-1);
    }),
    ("include", ErrorClass::ERR_RANK, |world| drop(world.group().include(&[world.size()]))),
    ("exclude", ErrorClass::ERR_RANK, |world| drop(world.group().exclude(&[-1]))),
    ("create_cartesian_communicator", ErrorClass::ERR_DIMS, |world| {
        drop(world.create_cartesian_communicator(&[world.size() + 1], &[true], false));
    }),
    ("get_layout_into", ErrorClass::ERR_DIMS, |world| {
        let row = world.create_cartesian_communicator(&[world.size()], &[true], false).unwrap();
        row.get_layout_into(&mut [0; 2], &mut [false; 2], &mut [0; 2]);
    }),
    ("coordinates_to_rank", ErrorClass::ERR_ARG, |world| {
        let row = world.create_cartesian_communicator(&[world.size()], &[false], false).unwrap();
        row.coordinates_to_rank(&[-1]);
    }),
    ("shift", ErrorClass::ERR_DIMS, |world| {
        let row = world.create_cartesian_communicator(&[world.size()], &[false], false).unwrap();
        row.shift(7, 1);
    }),
    ("vector", ErrorClass::ERR_COUNT, |_| {
        drop(UserDatatype::vector(-1, 1, 1, &i32::equivalent_datatype()));
    }),
    ("Partition::new", ErrorClass::ERR_ARG, |_| drop(Partition::new(&[1, 2][..], vec![3], vec![0]))),
    ("pack_into", ErrorClass::ERR_TRUNCATE, |world| {
        let _ = world.pack_into(&[1u8, 2], &mut [0; 3], 2);
    }),
];

#[test]
fn calls_of_each_family_give_their_errors() {
    everywhere("main::errors::calls_of_each_family_give_their_errors", &[1, 2, 3], |universe| {
        let world = universe.world();
        for (name, class, call) in [MESSAGES, REQUESTS, COLLECTIVES, OBJECTS].concat() {
            let error = attempt(|| call(&world)).expect_err(name);
            assert_eq!(error.class, class, "{name}: {error}");
            // The sentence says more than the class.
            assert!(error.to_string().len() > 40, "{name}: {error}");
        }
        // All is as it was.
        let mut sum = 0;
        let good = attempt(|| world.all_reduce_into(&1, &mut sum, SystemOperation::sum()));
        assert_eq!((good.is_ok(), sum), (true, world.size()));
        assert!(world.any_process().immediate_probe().is_none());
    });
}

#[test]
fn what_was_under_way_is_taken_back() {
    everywhere("main::errors::what_was_under_way_is_taken_back", &[2], |universe| {
        let world = universe.world();
        let peer = world.process_at_rank(1 - world.rank());
        // By an error of a call, or as a device fails in the middle of one.
        for (len, by_device) in [(1, false), (1_000_000, false), (1, true), (1_000_000, true)] {
            let (mut mine, mut got) = (vec![world.rank(); len], vec![-1; len]);
            let mut theirs = vec![-1; len];
            let mut receive = peer.receive_init_with_tag(&mut theirs[..], 3);
            let failed = attempt(|| {
                scope(|scope| {
                    let _received = peer.immediate_receive_into_with_tag(scope, &mut got[..], 1);
                    let _started = receive.start(scope);
                    let _sent = peer.immediate_send_with_tag(scope, &mine[..], 2);
                    let _value = peer.immediate_receive_with_tag::<u64>(1);
                    if by_device {
                        DeviceFailure { what: "a copy has failed".to_owned() }.unwind();
                    }
                    peer.send_with_tag(&1, -7);
                });
            });
            let error = failed.unwrap_err();
            match by_device {
                true => assert!(
                    error.class == ErrorClass::ERR_OTHER && error.what == "a copy has failed",
                    "{error}"
                ),
                false => assert_eq!(error.class, ErrorClass::ERR_TAG),
            }
            mine.fill(-2);
            world.barrier();
            peer.send_with_tag(&mine[..1], 1);
            assert_eq!(peer.receive_with_tag::<i32>(1).0, -2);
            let (copied, _) = peer.receive_vec_with_tag::<i32>(2);
            scope(|scope| {
                let received = receive.start(scope);
                peer.send_with_tag(&copied, 3);
                received.wait();
            });
            assert!(
                receive.data().iter().all(|element| *element == world.rank()),
                "the send went on from a copy"
            );
            assert!(got.iter().all(|element| *element == -1), "the receive was withdrawn");
        }
    });
}

/// Calls MPI when it is dropped, also while an error unwinds.
struct Calls<'c>(&'c SimpleCommunicator, &'c Cell<u32>);

impl Drop for Calls<'_> {
    fn drop(&mut self) {
        let inner = attempt(|| self.0.process_at_rank(-1).rank());
        assert_eq!(inner.unwrap_err().class, ErrorClass::ERR_RANK);
        self.0.this_process().send(&7);
        assert_eq!(self.0.any_process().receive::<i32>().0, 7);
        self.1.set(self.1.get() + 1);
    }
}

#[test]
fn attempts_lie_within_each_other() {
    everywhere("main::errors::attempts_lie_within_each_other", &[2], |universe| {
        let (world, calls) = (universe.world(), Cell::new(0));
        let outer = attempt(|| {
            let inner = attempt(|| world.this_process().send_with_tag(&1, -7));
            assert_eq!(inner.unwrap_err().class, ErrorClass::ERR_TAG);
            let _calls = Calls(&world, &calls);
            let mut got = 0;
            scope(|scope| {
                let _taken_back = world.any_process().immediate_receive_into_with_tag(scope, &mut got, 1);
                let _calls = Calls(&world, &calls);
                world.process_at_rank(-1).rank()
            })
        });
        assert_eq!((outer.unwrap_err().class, calls.get()), (ErrorClass::ERR_RANK, 2));
        let add = |given: DynBuffer<'_>, mut so_far: DynBufferMut<'_>| {
            let refused = attempt(|| Color::with_value(-1)).is_err();
            let so_far = so_far.reborrow_mut().downcast::<i32>().unwrap();
            so_far[0] += given.downcast::<i32>().unwrap()[0] + i32::from(refused);
        };
        let mut sum = 0;
        world.all_reduce_into(&10, &mut sum, &UserOperation::commutative(add));
        assert_eq!(sum, 21);
    });
}

#[test]
fn a_panic_goes_on_and_an_error_outside_is_one() {
    everywhere("main::errors::a_panic_goes_on_and_an_error_outside_is_one", &[1], |universe| {
        let world = universe.world();
        let panic = catch_unwind(AssertUnwindSafe(|| attempt(|| panic!("of the program")))).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the program"));
        let panic = catch_unwind(AssertUnwindSafe(|| world.process_at_rank(7).rank())).unwrap_err();
        assert!(panic.downcast::<String>().unwrap().contains("MPI_ERR_RANK: there is no rank 7"));
    });
}

#[mpi::test(ranks = 1)]
fn a_thread_that_may_not_call_gets_an_error() {
    let refused = std::thread::scope(|threads| {
        threads.spawn(|| attempt(SimpleCommunicator::world).map(drop).unwrap_err()).join().unwrap()
    });
    assert!(refused.class == ErrorClass::ERR_OTHER && refused.to_string().contains("Threading::Multiple"));
}

//! Persistent requests: started again and again with other data, completed in every way, on simulated ranks and on processes.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::common::everywhere;
use mpi::collective::{SystemOperation, UserOperation};
use mpi::datatype::{DynBuffer, DynBufferMut, MutView, PartitionMut, UserDatatype};
use mpi::request::{PersistentRequest, multiple_scope, scope};
use mpi::topology::{Rank, SimpleCommunicator};
use mpi::traits::*;
use mpi::{Count, ErrorClass};

const RANKS: &[u32] = &[1, 2, 3, 5];

/// The number that a rank gives for an element in a round, unlike all others.
fn number(rank: Rank, round: usize, at: usize) -> i64 {
    i64::from(rank) * 1_000_003 + round as i64 * 1_009 + at as i64
}

fn fill(data: &mut [i64], rank: Rank, round: usize) {
    data.iter_mut().enumerate().for_each(|(at, element)| *element = number(rank, round, at));
}

fn is_filled(data: &[i64], rank: Rank, round: usize) -> bool {
    data.iter().enumerate().all(|(at, element)| *element == number(rank, round, at))
}

fn neighbours(world: &SimpleCommunicator) -> (Rank, Rank) {
    ((world.rank() + world.size() - 1) % world.size(), (world.rank() + 1) % world.size())
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let (mut future, waker) = (pin!(future), Waker::from(Arc::new(Unpark(thread::current()))));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn messages_go_round_again_and_again() {
    everywhere("main::persistent::messages_go_round_again_and_again", RANKS, |universe| {
        universe.set_buffer_size(1 << 20);
        let world = universe.world();
        let (before, after) = neighbours(&world);
        let (source, target) = (world.process_at_rank(before), world.process_at_rank(after));
        for len in [0, 1, 1000, 50_000] {
            let (mut given, mut got) = (vec![vec![0; len]; 3], vec![vec![0; len]; 3]);
            let [first, second, third] = &mut given[..] else { unreachable!() };
            let mut sends = [
                target.send_init_with_tag(&mut first[..], 1),
                target.synchronous_send_init_with_tag(&mut second[..], 2),
                match len {
                    ..10_000 => target.buffered_send_init_with_tag(&mut third[..], 3),
                    _ => target.send_init_with_tag(&mut third[..], 3),
                },
            ];
            let mut receives: Vec<_> = (1..)
                .zip(&mut got)
                .map(|(tag, got)| source.receive_init_with_tag(&mut got[..], tag))
                .collect();
            for round in 0..6 {
                for send in &mut sends {
                    fill(send.data(), world.rank(), round);
                }
                start_and_complete(&mut sends, &mut receives, round);
                for receive in &mut receives {
                    assert!(is_filled(receive.data(), before, round), "{len} elements, round {round}");
                    receive.data().fill(-1);
                }
            }
        }
    });
}

/// Starts all requests and completes them, each round in another way.
fn start_and_complete<'a>(
    sends: &mut [PersistentRequest<'a, [i64]>],
    receives: &mut [PersistentRequest<'a, [i64]>],
    round: usize,
) {
    let first_send = receives.len();
    let all = receives.iter_mut().chain(sends);
    match round {
        0 => scope(|scope| {
            let requests: Vec<_> = all.map(|request| request.start(scope)).collect();
            requests.into_iter().for_each(|request| request.wait_without_status());
        }),
        1 => multiple_scope(6, |scope, requests| {
            for request in all {
                requests.add(request.start(scope));
            }
            let mut over = vec![];
            requests.wait_all(&mut over);
            assert_eq!(over.len(), 6);
        }),
        2 => scope(|scope| {
            let mut requests: Vec<_> = all.map(|request| request.start(scope)).collect();
            while mpi::request::wait_any(&mut requests).is_some() {}
        }),
        3 => scope(|scope| {
            let requests: Vec<_> = all.map(|request| request.start(scope)).collect();
            block_on(async {
                for request in requests {
                    request.await.unwrap();
                }
            });
        }),
        4 => scope(|scope| {
            for mut request in all.map(|request| request.start(scope)).collect::<Vec<_>>() {
                while let Err(again) = request.test() {
                    request = again;
                }
            }
        }),
        // What is dropped is taken back: sends go on from a copy.
        _ => scope(|scope| {
            let mut requests: Vec<_> = all.map(|request| request.start(scope)).collect();
            drop(requests.split_off(first_send));
            requests.into_iter().for_each(|request| request.wait_without_status());
        }),
    }
}

#[test]
fn a_receive_that_is_dropped_is_withdrawn_and_started_again() {
    const NAME: &str = "main::persistent::a_receive_that_is_dropped_is_withdrawn_and_started_again";
    everywhere(NAME, &[2], |universe| {
        let world = universe.world();
        let peer = world.process_at_rank(1 - world.rank());
        let mut got = 0u32;
        let mut receive = peer.receive_init(&mut got);
        for round in 0..20 {
            scope(|scope| drop(receive.start(scope)));
            *receive.data() = 1000;
            world.barrier();
            peer.send(&round);
            world.barrier();
            assert_eq!(*receive.data(), 1000, "the message waits for the next start");
            assert_eq!(scope(|scope| receive.start(scope).wait()).source_rank(), peer.rank());
            assert_eq!(*receive.data(), round);
        }
    });
}

fn add(given: DynBuffer<'_>, mut so_far: DynBufferMut<'_>) {
    let so_far = so_far.reborrow_mut().downcast::<i64>().unwrap();
    so_far.iter_mut().zip(given.downcast::<i64>().unwrap()).for_each(|(sum, more)| *sum += more);
}

/// Starts a persistent collective twice, with other data each time, and gives what it gets.
fn twice(request: &mut PersistentRequest<'_, [i64], [i64]>, rank: Rank) -> [Vec<i64>; 2] {
    [0, 1].map(|round| {
        fill(request.given(), rank, round);
        request.data().fill(-1);
        scope(|scope| request.start(scope).wait());
        request.data().to_vec()
    })
}

/// The same by calls that are no persistent ones.
fn likewise(given: usize, got: usize, rank: Rank, call: impl Fn(&[i64], &mut [i64])) -> [Vec<i64>; 2] {
    [0, 1].map(|round| {
        let (mut given, mut got) = (vec![0; given], vec![-1; got]);
        fill(&mut given, rank, round);
        call(&given, &mut got);
        got
    })
}

/// Compares persistent collectives of two buffers with the blocking ones of these names.
macro_rules! compare {
    ($on:expr, $rank:expr; $($init:ident $blocking:ident ($given:expr => $got:expr $(; $op:expr)?);)*) => {$({
        let (mut given, mut got) = (vec![0; $given], vec![0; $got]);
        let mut request = $on.$init(&mut given[..], &mut got[..] $(, $op)?);
        let expected = likewise($given, $got, $rank, |given, got| $on.$blocking(given, got $(, $op)?));
        assert_eq!(twice(&mut request, $rank), expected, stringify!($init));
    })*};
}

#[test]
fn collectives_do_what_the_blocking_ones_do() {
    everywhere("main::persistent::collectives_do_what_the_blocking_ones_do", RANKS, |universe| {
        let world = universe.world();
        let (rank, size) = (world.rank(), world.size() as usize);
        let own = UserOperation::commutative(add);
        let sum = SystemOperation::sum();
        for len in [1, 100, 20_000] {
            compare! { world, rank;
                all_gather_init all_gather_into (len => len * size);
                all_to_all_init all_to_all_into (len * size => len * size);
                all_reduce_init all_reduce_into (len => len; sum);
                all_reduce_init all_reduce_into (len => len; &own);
                reduce_scatter_block_init reduce_scatter_block_into (len * size => len; sum);
                scan_init scan_into (len => len; sum);
                exclusive_scan_init exclusive_scan_into (len => len; sum);
            }
            for root in 0..world.size() {
                with_root(&world, root, len);
            }
        }
        let mut barrier = world.barrier_init();
        for _ in 0..3 {
            scope(|scope| barrier.start(scope).wait());
        }
    });
}

fn with_root(world: &SimpleCommunicator, root: Rank, len: usize) {
    let (rank, size, process) = (world.rank(), world.size() as usize, world.process_at_rank(root));
    let sum = SystemOperation::sum();
    if process.is_self() {
        compare! { process, rank;
            gather_init_root gather_into_root (len => len * size);
            scatter_init_root scatter_into_root (len * size => len);
            reduce_init_root reduce_into_root (len => len; sum);
        }
    } else {
        let mut mine = vec![0; len];
        // All ranks make a persistent one, call the blocking one, and start the persistent one.
        let mut gather = process.gather_init(&mut mine[..]);
        likewise(len, 0, rank, |given, _| process.gather_into(given));
        alone(&mut gather, rank);
        drop(gather);
        let mut scatter = process.scatter_init(&mut mine[..]);
        let expected = likewise(0, len, rank, |_, got| process.scatter_into(got));
        let got = [0, 1].map(|_| {
            scope(|scope| scatter.start(scope).wait());
            scatter.data().to_vec()
        });
        assert_eq!(got, expected);
        drop(scatter);
        let mut reduce = process.reduce_init(&mut mine[..], sum);
        likewise(len, 0, rank, |given, _| process.reduce_into(given, sum));
        alone(&mut reduce, rank);
    }
    let mut text = vec![0; len];
    let mut broadcast = process.broadcast_init(&mut text[..]);
    for round in 0..3 {
        if process.is_self() {
            fill(broadcast.data(), root, round);
        }
        scope(|scope| broadcast.start(scope).wait());
        assert!(is_filled(broadcast.data(), root, round));
    }
}

/// Starts twice what only gives.
fn alone(request: &mut PersistentRequest<'_, [i64]>, rank: Rank) {
    for round in [0, 1] {
        fill(request.data(), rank, round);
        scope(|scope| request.start(scope).wait());
    }
}

#[test]
fn collectives_are_started_in_any_order() {
    everywhere("main::persistent::collectives_are_started_in_any_order", RANKS, |universe| {
        let world = universe.world();
        let (mut mine, mut sums) = ([[0i64; 1]; 3], [[0i64; 1]; 3]);
        let sum = SystemOperation::sum();
        let mut requests: Vec<_> =
            mine.iter_mut().zip(&mut sums).map(|(a, b)| world.all_reduce_init(a, b, sum)).collect();
        for round in 0..9 {
            for (at, request) in requests.iter_mut().enumerate() {
                request.given()[0] = number(world.rank(), round, at);
            }
            scope(|scope| {
                let mut order: Vec<_> = requests.iter_mut().collect();
                order.rotate_left((round + world.rank() as usize) % 3);
                let started: Vec<_> = order.into_iter().map(|request| request.start(scope)).collect();
                started.into_iter().for_each(|request| request.wait_without_status());
            });
            for (at, request) in requests.iter_mut().enumerate() {
                let all: i64 = (0..world.size()).map(|rank| number(rank, round, at)).sum();
                assert_eq!(request.data()[0], all);
            }
        }
    });
}

/// The columns at the edges of a grid go to the neighbours, blocks of different lengths to all.
#[test]
fn views_and_partitions_lend_what_they_lie_over() {
    everywhere("main::persistent::views_and_partitions_lend_what_they_lie_over", RANKS, |universe| {
        let world = universe.world();
        let (before, after) = neighbours(&world);
        let column = UserDatatype::vector(4, 1, 3, &i64::equivalent_datatype());
        let (mut mine, mut theirs) = ([0i64; 12], [0i64; 12]);
        // SAFETY: the type reaches over ten of twelve numbers.
        let (mut left, mut right) = unsafe {
            (
                MutView::with_count_and_datatype(&mut mine, 1, &column),
                MutView::with_count_and_datatype(&mut theirs, 1, &column),
            )
        };
        let mut send = world.process_at_rank(after).send_init(&mut left);
        let mut receive = world.process_at_rank(before).receive_init(&mut right);
        for round in 0..3 {
            fill(send.data(), world.rank(), round);
            *receive.data() = [-1; 12];
            scope(|scope| [receive.start(scope), send.start(scope)].map(|request| request.wait()));
            for (at, got) in receive.data().iter().enumerate() {
                let expected = if at % 3 == 0 { number(before, round, at) } else { -1 };
                assert_eq!(*got, expected);
            }
        }
        let size = world.size();
        let counts: Vec<Count> = (1..=size).collect();
        let displs: Vec<Count> = (0..size).map(|rank| rank * (rank + 1) / 2).collect();
        let mut mine = vec![0; counts[world.rank() as usize] as usize];
        let mut all = vec![0; (size * (size + 1) / 2) as usize];
        let mut all = PartitionMut::new(&mut all[..], &counts[..], &displs[..]);
        let mut gather = world.all_gather_varcount_init(&mut mine[..], &mut all);
        for round in 0..3 {
            fill(gather.given(), world.rank(), round);
            scope(|scope| gather.start(scope).wait());
            for (rank, (count, displ)) in (0..).zip(counts.iter().zip(&displs)) {
                assert!(is_filled(&gather.data()[*displ as usize..][..*count as usize], rank, round));
            }
        }
    });
}

#[test]
fn what_is_forgotten_or_wrong_does_no_harm() {
    everywhere("main::persistent::what_is_forgotten_or_wrong_does_no_harm", &[1, 2], |universe| {
        let world = universe.world();
        let this = world.this_process();
        let mut value = 1;
        let mut send = this.send_init(&mut value);
        scope(|scope| drop(send.start(scope)));
        // What it has started is over; nothing starts it again.
        std::mem::forget(send);
        value += 1;
        assert_eq!((value, this.receive::<i32>().0), (2, 1));
        // An error comes with the message that it is about, and the next one is as good as any.
        let mut small = [0u8; 2];
        let mut receive = this.receive_init(&mut small);
        for len in [3, 1, 2] {
            let failed = scope(|scope| {
                this.send(&vec![7u8; len][..]);
                receive.start(scope).try_wait().err()
            });
            assert_eq!(failed.map(|error| error.class), (len == 3).then_some(ErrorClass::ERR_TRUNCATE));
        }
    });
}

#[mpi::test(ranks = 1)]
#[should_panic(expected = "a request of it is under way")]
fn a_start_that_is_forgotten_ends_the_process(world: SimpleCommunicator) {
    let mut got = 0u8;
    let mut receive = world.any_process().receive_init(&mut got);
    scope(|scope| std::mem::forget(receive.start(scope)));
}

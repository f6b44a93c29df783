//! Requests that are awaited: on an executor that is made of the standard library alone, and on tokio.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use mpi::collective::{SystemOperation, UserOperation};
use mpi::datatype::{DynBuffer, DynBufferMut};
use mpi::environment::Universe;
use mpi::request::scope;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;

/// Wakes the thread that waits for a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A plain executor: waits for one future on this thread.
fn plain<T>(future: impl Future<Output = T>) -> T {
    let (mut future, waker) = (pin!(future), Waker::from(Arc::new(Unpark(thread::current()))));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

fn tokio<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// Counts how often a future is polled.
struct Counted<'c, F>(F, &'c Cell<u64>);

impl<F: Future + Unpin> Future for Counted<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.1.set(self.1.get() + 1);
        Pin::new(&mut self.0).poll(context)
    }
}

/// Messages of these lengths go round, and sums are made of them, all of it awaited.
async fn go_round(world: &SimpleCommunicator, len: usize) -> mpi::Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let target = world.process_at_rank((rank + 1) % size);
    let source = world.process_at_rank((rank + size - 1) % size);
    // What is awaited in a future of the program's own has buffers that are borrowed for good.
    let mine: &'static [i32] = vec![rank; len].leak();
    let got: &'static mut [i32] = vec![-1; len].leak();
    let (send, receive) = (
        target.immediate_synchronous_send(mpi::request::StaticScope, mine),
        source.immediate_receive_into(mpi::request::StaticScope, got),
    );
    assert_eq!(receive.await?.source_rank(), source.rank());
    send.await?;
    let (value, _) = {
        let value = source.immediate_receive_with_tag::<i32>(1);
        target.send_with_tag(&rank, 1);
        value.await?
    };
    assert_eq!(value, source.rank());
    world.immediate_barrier().await?;
    Ok(())
}

fn add(given: DynBuffer<'_>, mut so_far: DynBufferMut<'_>) {
    let so_far = so_far.reborrow_mut().downcast::<i64>().unwrap();
    so_far.iter_mut().zip(given.downcast::<i64>().unwrap()).for_each(|(sum, more)| *sum += more);
}

/// Runs a future to its end.
type Executor = fn(Pin<Box<dyn Future<Output = ()> + '_>>);

fn sums(world: &SimpleCommunicator, len: usize, executor: Executor) {
    let (rank, size) = (i64::from(world.rank()), i64::from(world.size()));
    let own = UserOperation::commutative(add);
    let mine = vec![rank; len];
    let (mut first, mut second, mut all) = (vec![0; len], vec![0; len], vec![0; len * size as usize]);
    scope(|scope| {
        let requests = [
            world.immediate_all_reduce_into(scope, &mine[..], &mut first[..], SystemOperation::sum()),
            world.immediate_all_reduce_into(scope, &mine[..], &mut second[..], &own),
            world.immediate_all_gather_into(scope, &mine[..], &mut all[..]),
        ];
        executor(Box::pin(async {
            for request in requests {
                request.await.unwrap();
            }
        }));
    });
    let sum = size * (size - 1) / 2;
    assert!(first.iter().chain(&second).all(|number| *number == sum));
    assert!((0..).zip(all.chunks(len.max(1))).all(|(from, part)| part.iter().all(|number| *number == from)));
}

/// Messages and collectives of several lengths.
fn await_all(universe: &Universe) {
    let world = universe.world();
    for len in [0, 1, 1000, 100_000] {
        plain(go_round(&world, len)).unwrap();
        tokio(go_round(&world, len)).unwrap();
        sums(&world, len, |future| plain(future));
        sums(&world, len, |future| tokio(future));
    }
}

#[mpi::test(ranks = [1, 2, 3, 5])]
fn requests_are_awaited_on_a_plain_executor_and_on_tokio(universe: &Universe) {
    await_all(universe);
}

/// All the other tests of this file once more.
#[test]
fn over_tcp() {
    let mut again = Command::new(std::env::current_exe().unwrap());
    again
        .args(["futures::", "--skip", "over_tcp", "--skip", "simulated"])
        .env("BANYAN_FABRICS", "tcp")
        .stdin(Stdio::null());
    let done = again.output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && text.contains("6 passed"), "{text}");
}

#[test]
fn simulated_ranks_await_requests() {
    for ranks in [1, 2, 3, 5] {
        Universe::simulated(ranks, |universe| await_all(universe));
    }
}

/// Each message is awaited by a rank that sleeps. If the doorbell did not wake it, each would take until the end of a sleep, 100 ms, and
/// all of them longer than mpirun lets them.
#[mpi::test(ranks = 2, timeout = 60)]
fn the_doorbell_wakes_a_rank_that_awaits(world: SimpleCommunicator) {
    let peer = world.process_at_rank(1 - world.rank());
    plain(async {
        for round in 0..700 {
            if world.rank() == 0 {
                peer.send(&round);
            }
            assert_eq!(peer.immediate_receive::<i32>().await.unwrap().0, round);
            if world.rank() == 1 {
                peer.send(&round);
            }
        }
    });
}

#[mpi::test(ranks = 2)]
fn a_rank_that_awaits_polls_seldom(world: SimpleCommunicator) {
    let (peer, begin) = (world.process_at_rank(1 - world.rank()), Instant::now());
    world.barrier();
    if world.rank() == 1 {
        thread::sleep(Duration::from_millis(200));
        return peer.send(&7);
    }
    let polls = Cell::new(0);
    assert_eq!(plain(Counted(peer.immediate_receive::<i32>(), &polls)).unwrap().0, 7);
    // Two for each 100 ms, and some for what else comes. A busy loop polls a million times a second.
    let (polls, bound) = (polls.get(), 20 + begin.elapsed().as_millis() / 10);
    println!("{polls} polls");
    assert!(u128::from(polls) < bound, "{polls} polls, where {bound} are allowed");
}

/// A task is woken also if its message comes while the thread is in a blocking call of another task, or another thread polls.
#[mpi::test(ranks = 2, threading = Multiple)]
fn tasks_are_woken_by_what_blocking_calls_bring(world: SimpleCommunicator) {
    let peer = world.process_at_rank(1 - world.rank());
    for round in 0..200 {
        thread::scope(|threads| {
            let (awaited, blocking) = (&world.duplicate(), &world);
            threads.spawn(move || {
                let peer = blocking.process_at_rank(1 - blocking.rank());
                assert_eq!(peer.receive_with_tag::<i32>(1).0, round);
            });
            plain(async {
                let first = awaited.process_at_rank(peer.rank()).immediate_receive::<i32>();
                let mut second = pin!(peer.immediate_receive_with_tag::<i32>(2));
                // Under way, and watched for, before the blocking call.
                let pending = std::future::poll_fn(|context| Poll::Ready(second.as_mut().poll(context)));
                let early = pending.await;
                awaited.process_at_rank(peer.rank()).send(&round);
                peer.send_with_tag(&round, 2);
                peer.send_with_tag(&round, 1);
                awaited.barrier();
                let second = match early {
                    Poll::Ready(second) => second,
                    Poll::Pending => second.await,
                };
                assert_eq!((first.await.unwrap().0, second.unwrap().0), (round, round));
            });
        });
    }
}

#[mpi::test(ranks = 1)]
#[should_panic(expected = "a request of it is under way")]
fn a_future_that_is_forgotten_ends_the_process(world: SimpleCommunicator) {
    let mut got = 0u8;
    scope(|scope| {
        let receive = world.any_process().immediate_receive_into(scope, &mut got);
        let mut future = Box::pin(async { receive.await.map(drop) });
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        std::mem::forget(future);
    });
}

#[mpi::test(ranks = 2)]
fn a_future_that_is_dropped_takes_nothing(world: SimpleCommunicator) {
    let peer = world.process_at_rank(1 - world.rank());
    let mut receive = peer.immediate_receive::<i32>();
    assert!(Pin::new(&mut receive).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(receive);
    world.barrier();
    peer.send(&world.rank());
    assert_eq!(plain(peer.immediate_receive::<i32>()).unwrap().0, peer.rank());
}

//! The bench in Rust: `rust latency SIZE,SIZE` and `rust allreduce SIZE,SIZE`, in bytes, on two ranks.
//!
//! The loops, buffers and cells are those of bench.h, latency.c and coll.c, so that the figures compare. It is built with the crate of
//! this repository, and with the crate `mpi` of Rust's registry, whose names are the same.

use std::time::Instant;

use mpi::collective::SystemOperation;
use mpi::topology::{Process, SimpleCommunicator};
use mpi::traits::*;

/// How long the measured loop of a cell takes, about, in seconds; more where ranks take turns.
fn measured(world: &SimpleCommunicator) -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    if world.size() as usize > cores { 0.1 } else { 0.02 }
}

/// Seconds for one call of `once` on the buffers, as this rank sees it. `spoil` runs before the measured calls.
fn seconds_each<B>(
    world: &SimpleCommunicator,
    buffers: &mut B,
    once: impl Fn(&mut B),
    spoil: impl Fn(&mut B),
) -> f64 {
    let mut calls = 1;
    once(buffers);
    loop {
        let start = Instant::now();
        for _ in 0..calls {
            once(buffers);
        }
        let (took, enough) = (start.elapsed().as_secs_f64(), measured(world));
        // A tenth of the time is enough to know the rest, which a negative number tells the other rank.
        let done = took >= enough / 10.0;
        let mut next = if done { -((enough / took * calls as f64) as i64 + 1) } else { calls * 4 };
        world.process_at_rank(0).broadcast_into(&mut next);
        calls = next.abs();
        if next < 0 {
            break;
        }
    }
    spoil(buffers);
    world.barrier();
    let start = Instant::now();
    for _ in 0..calls {
        once(buffers);
    }
    start.elapsed().as_secs_f64() / calls as f64
}

/// Prints the largest time of all ranks, or that what one of them got was wrong.
fn cell(world: &SimpleCommunicator, name: &str, seconds: f64, wrong: bool) {
    let mine = [seconds * 1e6, f64::from(u8::from(wrong))];
    let root = world.process_at_rank(0);
    if world.rank() != 0 {
        return root.reduce_into(&mine[..], SystemOperation::max());
    }
    let mut all = [0.0; 2];
    root.reduce_into_root(&mine[..], &mut all[..], SystemOperation::max());
    match all {
        [us, 0.0] => println!("CELL {name} {us:.6} us"),
        _ => println!("FAIL {name} wrong data"),
    }
}

/// Elements on pages of their own, touched.
fn pages<T: Copy>(room: &mut Vec<T>, elements: usize, value: T) -> &mut [T] {
    const PAGE: usize = 4096;
    room.resize(elements + PAGE / size_of::<T>(), value);
    let start = room.as_ptr().align_offset(PAGE);
    &mut room[start..start + elements]
}

/// A byte of what a rank sends.
fn pattern(place: usize, rank: i32) -> u8 {
    (place.wrapping_mul(2_654_435_761) >> 8) as u8 ^ rank as u8
}

fn ping(peer: &Process<'_>, rank: i32, out: &[u8], into: &mut [u8]) {
    if rank == 0 {
        peer.send_with_tag(out, 0);
        peer.receive_into_with_tag(into, 0);
    } else {
        peer.receive_into_with_tag(into, 0);
        peer.send_with_tag(out, 0);
    }
}

/// Time of a message, one way.
fn latency(world: &SimpleCommunicator, bytes: usize) {
    let (rank, peer) = (world.rank(), world.process_at_rank(1 - world.rank()));
    let (mut out, mut into) = (vec![], vec![]);
    let mut buffers = (pages(&mut out, bytes, 0u8), pages(&mut into, bytes, 0u8));
    buffers.0.iter_mut().enumerate().for_each(|(place, byte)| *byte = pattern(place, rank));
    let once = |(out, into): &mut (&mut [u8], &mut [u8])| ping(&peer, rank, out, into);
    let seconds = seconds_each(world, &mut buffers, once, |(_, into)| into.fill(0xee));
    let wrong = buffers.1.iter().enumerate().any(|(place, byte)| *byte != pattern(place, 1 - rank));
    cell(world, &bytes.to_string(), seconds / 2.0, wrong);
}

/// The sum of vectors of doubles.
fn allreduce(world: &SimpleCommunicator, bytes: usize) {
    let (mut out, mut into) = (vec![], vec![]);
    let elements = bytes / size_of::<f64>();
    let mut buffers = (pages(&mut out, elements, 0.0), pages(&mut into, elements, 0.0));
    let value = |place: usize, rank: i32| (place & 63) as f64 + f64::from(rank);
    buffers.0.iter_mut().enumerate().for_each(|(place, number)| *number = value(place, world.rank()));
    let once = |(out, into): &mut (&mut [f64], &mut [f64])| {
        world.all_reduce_into(&**out, &mut **into, SystemOperation::sum());
    };
    let seconds = seconds_each(world, &mut buffers, once, |(_, into)| into.fill(-1.0));
    let sum = |place| (0..world.size()).map(|rank| value(place, rank)).sum::<f64>();
    let wrong = buffers.1.iter().enumerate().any(|(place, number)| *number != sum(place));
    cell(world, &format!("allreduce/{bytes}"), seconds, wrong);
}

fn main() {
    let universe = mpi::initialize().expect("MPI is initialized once");
    let world = universe.world();
    let args: Vec<String> = std::env::args().collect();
    let measure = match args.get(1).map(String::as_str) {
        Some("latency") => latency,
        Some("allreduce") => allreduce,
        _ => panic!("rust latency|allreduce SIZE,SIZE"),
    };
    for size in args[2].split(',') {
        measure(&world, size.parse().expect("a size is a number of bytes"));
    }
}

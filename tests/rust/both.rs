//! One program in two languages: this is the part of Rust, both.c that of C. Ranks of both are in one job, at any places.

use mpi::collective::SystemOperation;
use mpi::point_to_point::send_receive_into_with_tags;
use mpi::topology::{Color, SimpleCommunicator};
use mpi::traits::*;

#[derive(Equivalence, Clone, Copy, Default, PartialEq, Debug)]
struct Particle {
    position: [f64; 3],
    spin: u8,
    mass: i32,
}

/// Numbers go round.
fn round_trip(world: &SimpleCommunicator, count: usize) {
    let numbers =
        |rank: i32| -> Vec<f64> { (0..count).map(|at| rank as f64 * 1000003.0 + at as f64).collect() };
    let (rank, ranks) = (world.rank(), world.size());
    let before = (rank + ranks - 1) % ranks;
    let (next, source) = (world.process_at_rank((rank + 1) % ranks), world.process_at_rank(before));
    let mut got = vec![0.0; count];
    let status = send_receive_into_with_tags(&numbers(rank)[..], &next, 7, &mut got[..], &source, 7);
    assert_eq!((status.source_rank(), status.count(f64::equivalent_datatype())), (before, count as i32));
    assert_eq!(got, numbers(before));
}

/// Each rank in turn broadcasts a particle.
fn particles(world: &SimpleCommunicator) {
    for root in 0..world.size() {
        let particle = |at: u8| Particle {
            position: [root.into(), at.into(), 0.5],
            spin: 200 + root as u8,
            mass: -root,
        };
        let expected = [particle(0), particle(1)];
        let mut all = if world.rank() == root { expected } else { Default::default() };
        world.process_at_rank(root).broadcast_into(&mut all[..]);
        assert_eq!(all, expected);
    }
}

/// Sums over all ranks, and over every other one.
fn sums(world: &SimpleCommunicator) {
    let (rank, ranks) = (i64::from(world.rank()), i64::from(world.size()));
    let mine: Vec<i64> = (0..50_000).map(|at| rank * at).collect();
    let mut all = vec![0; mine.len()];
    world.all_reduce_into(&mine[..], &mut all[..], SystemOperation::sum());
    assert!(all.iter().zip(0..).all(|(sum, at)| *sum == ranks * (ranks - 1) / 2 * at));
    let half = world.split_by_color(Color::with_value(world.rank() % 2)).expect("this rank has a color");
    let mut sum = -1;
    half.all_reduce_into(&world.rank(), &mut sum, SystemOperation::sum());
    assert_eq!(sum, (world.rank() % 2..world.size()).step_by(2).sum());
}

fn everything(world: &SimpleCommunicator) {
    for count in [0, 1, 5, 500, 8000, 200_001] {
        round_trip(world, count);
    }
    particles(world);
    sums(world);
    let mut failures = -1;
    world.all_reduce_into(&0, &mut failures, SystemOperation::sum());
    println!("rank {} of {} in Rust: {failures} wrong", world.rank(), world.size());
    assert_eq!(failures, 0);
}

#[mpi::main]
fn main(world: SimpleCommunicator) {
    everything(&world);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[mpi::test(ranks = [1, 3])]
    fn ranks_in_rust_agree(world: SimpleCommunicator) {
        everything(&world);
    }
}

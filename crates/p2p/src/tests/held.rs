//! How much a receiver that does not receive is made to keep, and that it finds every message all the same.

use super::*;
use crate::credit;

/// Messages that have come to process 1 unexpected.
fn unexpected(world: &World) -> u64 {
    world.ends[1].p2p.stats().unexpected
}

/// A network of two, `count` messages of 8 bytes sent by process 0 with tags 0, 1, 2, ..., and nothing received.
fn flooded(seed: u64, budget: usize, count: i32) -> (World, Vec<Started>) {
    let options = Options {
        depth: 7,
        max_delay: seed % 5,
        get: banyan_transport::sim::OneSided::Off,
        ..Options::default()
    };
    let mut world = World::new(2, seed, options, Config::new(budget, 2));
    let sends = (0..count)
        .map(|tag| world.send(0, 1, tag, Mode::Standard, &filled(&i64::from(tag).to_le_bytes())))
        .collect();
    world.settle();
    (world, sends)
}

/// The most messages that a process in a job of two may be made to keep.
fn bound(budget: usize) -> u64 {
    let credit_pool = credit::CreditPool::new(&Config::new(budget, 2));
    (budget / credit::UNIT) as u64 / u64::from(credit::cost(8)) + u64::from(credit_pool.window())
}

#[test]
fn what_nobody_receives_stays_with_its_sender() {
    for (seed, budget) in [(1, 0), (2, 10_000), (3, 100_000)] {
        let (world, _) = flooded(seed, budget, 5000);
        let count = unexpected(&world);
        assert!(count <= bound(budget), "{count} messages of 8 bytes for a budget of {budget} bytes");
        assert!(count >= 16, "some are announced in any case");
    }
}

#[test]
fn the_last_of_many_is_found_by_a_receive_and_by_a_probe() {
    for seed in 0..6 {
        let (mut world, sends) = flooded(seed, 4000, 2000);
        let from = [Some(0), None][seed as usize % 2];
        if seed < 3 {
            let data = room(8);
            let received = world.recv(1, from, Some(1999), &data);
            assert_eq!(world.wait(1, received).tag, 1999);
            assert_eq!(contents(&data, 8), 1999i64.to_le_bytes());
        } else {
            let src = from.map(|from| (from as u32, Peer(from as u32)));
            world.run(|world| world.ends[1].p2p.probe(1, src, Some(1999)).is_some());
        }
        // All others are received in the order they were sent.
        for tag in 0..if seed < 3 { 1999 } else { 2000 } {
            let data = room(8);
            let received = world.recv(1, from, None, &data);
            assert_eq!(world.wait(1, received).tag, tag, "seed {seed}");
        }
        for sent in sends {
            assert_eq!(world.wait(0, sent).fault, None);
        }
        world.settle();
        assert!(world.ends.iter().all(|end| end.p2p.idle() && end.p2p.waits().next().is_none()));
    }
}

#[test]
fn a_receive_from_somebody_else_asks_for_nothing() {
    let options = Options { get: banyan_transport::sim::OneSided::Off, ..Options::default() };
    let mut world = World::new(3, 1, options, Config::new(4000, 3));
    let data = filled(&[1; 8]);
    let sends: Vec<_> = (0..1000).map(|tag| world.send(0, 1, tag, Mode::Standard, &data)).collect();
    let other = world.recv(1, Some(2), None, &room(8));
    world.settle();
    let before = unexpected(&world);
    assert!(before <= bound(4000));
    assert_eq!(world.ends[1].p2p.probe(1, Some((2, Peer(2))), None), None);
    world.settle();
    assert_eq!(unexpected(&world), before);
    // Messages with keys are not held behind those with tags.
    let (out, into) = (filled(b"key"), room(3));
    let End { p2p, port } = &mut world.ends[0];
    let sent = p2p.send_keyed(port, Peer(1), 1, 5, &out);
    let sent = settled(p2p, sent, &out);
    let End { p2p, port } = &mut world.ends[1];
    let received = p2p.recv_keyed(port, Peer(0), 1, 5, &into);
    assert_eq!(world.wait(1, received).fault, None);
    assert_eq!(world.wait(0, sent).fault, None);
    assert_eq!(contents(&into, 3), b"key");
    // A held message that is cancelled leaves no gap between the others.
    let End { p2p, port } = &mut world.ends[0];
    let cancelled = pending(sends[999].clone());
    p2p.cancel(cancelled);
    p2p.progress(port);
    assert!(p2p.test(cancelled).unwrap().cancelled);
    for tag in 0..999 {
        let data = room(8);
        let received = world.recv(1, Some(0), None, &data);
        assert_eq!(world.wait(1, received).tag, tag);
    }
    drop(other);
}

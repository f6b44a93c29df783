//! Peers that go, and links that break: what needs them ends, and nothing else.

use super::*;
use crate::Fault;

/// A message whose fragments have all come can be received though its sender is gone; one of which more is to come
/// cannot.
#[test]
fn fragments_of_a_dead_peer() {
    let options = Options { get: OneSided::Off, eager: 30_000, piece: 4000, ..Options::default() };
    let mut world = two(options);
    let (short, long) = (pattern(7, 20_000), pattern(8, 50_000));
    world.send(0, 1, 1, Mode::Standard, &filled(&short));
    world.settle();
    world.send(0, 1, 2, Mode::Standard, &filled(&long));
    world.settle();
    world.net.kill(0, "gone");
    world.settle();
    let to = room(50_000);
    let got = world.recv(1, Some(0), Some(1), &to);
    assert_eq!(world.wait(1, got).fault, None);
    assert!(contents(&to, short.len()) == short);
    let got = world.recv(1, Some(0), Some(2), &to);
    assert!(matches!(world.wait(1, got).fault.as_deref(), Some(Fault::PeerDown { .. })));
    assert_eq!(world.ends[1].p2p.stats().buffered, 0);
}

#[test]
fn a_dead_peer_ends_what_needs_it_and_nothing_else() {
    for (get, number) in OneSided::ALL.into_iter().flat_map(|get| (0..CHOICES).map(move |n| (get, n))) {
        let config = Config { choice: choice(number), ..Config::new(1 << 20, 3) };
        let mut world = World::new(3, 4, Options { get, put: get, ..Options::default() }, config);
        let long = room(100_000);
        let whole = world.send(1, 0, 9, Mode::Standard, &filled(b"last words"));
        world.wait(1, whole);
        let announced = world.send(1, 0, 8, Mode::Standard, &long);
        world.settle();
        let doomed = [
            world.send(0, 1, 0, Mode::Standard, &long),
            world.send(0, 1, 0, Mode::Sync, &room(1)),
            world.recv(0, Some(1), Some(0), &long),
            world.recv(0, Some(1), Some(8), &long),
        ];
        let (any, other) = (world.recv(0, None, Some(77), &room(4)), world.recv(0, Some(2), None, &long));
        world.net.kill(1, "killed by signal 9");
        world.ends[1].p2p.cancel(pending(announced));
        // Where reading takes no time, the announced message was received before its sender died.
        let doomed = doomed.into_iter().filter(|s| !matches!(s, Started::Done(c) if c.fault.is_none()));
        for started in doomed {
            match world.wait(0, started).fault.as_deref() {
                Some(Fault::PeerDown { peer: Peer(1), cause }) => assert_eq!(&**cause, "killed by signal 9"),
                fault => panic!("{fault:?}"),
            }
        }
        let to = room(10);
        assert!(matches!(world.recv(0, Some(1), Some(9), &to), Started::Done(c) if c.fault.is_none()));
        assert_eq!(contents(&to, 10), b"last words");
        for late in [world.send(0, 1, 0, Mode::Ready, &long), world.recv(0, Some(1), None, &long)] {
            let Started::Done(Completion { fault, .. }) = late else { panic!("it waits") };
            assert!(matches!(fault.as_deref(), Some(Fault::PeerDown { .. })));
        }
        let sent = [world.send(2, 0, 77, Mode::Sync, &room(4)), world.send(2, 0, 1, Mode::Standard, &long)];
        sent.into_iter().for_each(|s| assert_eq!(world.wait(2, s).fault, None));
        assert_eq!(world.wait(0, any).source, 2);
        assert_eq!(world.wait(0, other).bytes, 100_000);
        assert!(world.ends[0].p2p.idle());
    }
}

#[test]
fn links_that_break_leave_nobody_waiting() {
    for seed in 0..40 {
        let n = 4;
        let options = Options {
            break_once_in: 300,
            depth: 3,
            get: OneSided::ALL[seed as usize % 6],
            ..Options::default()
        };
        let mut world = World::new(n, seed, options, Config::new(32 << 10, n as u32));
        let mut random = Random::new(seed);
        let mut open = Vec::new();
        for round in 0..150 {
            let (from, to) = (random.below(n), random.below(n));
            let data = if random.once_in(2) { room(random.below(300)) } else { holey(random.below(60_000)) };
            let mode = if random.once_in(2) { Mode::Sync } else { Mode::Standard };
            open.push((from, world.send(from, to, round, mode, &data)));
            open.push((to, world.recv(to, Some(from), Some(round), &data)));
            world.turn();
        }
        for (at, started) in open {
            let fault = world.wait(at, started).fault;
            assert!(
                matches!(fault.as_deref(), None | Some(Fault::PeerDown { .. })),
                "seed {seed}: {fault:?}"
            );
        }
        world.settle();
        assert!(world.ends.iter().all(|e| e.p2p.idle() && e.p2p.stats().misbehaved == 0), "seed {seed}");
    }
}

//! Credit: floods stay within the budget, and what is lent comes back.

use super::*;
use crate::Stats;

#[test]
fn a_flood_stays_within_the_budget_and_loses_nothing() {
    for (budget, senders) in [(64 << 10, 3), (1 << 20, 3), (0, 2)] {
        let config = Config::new(budget, senders as u32 + 1);
        let mut world = World::new(senders + 1, 3, Options::default(), config);
        let mut sends = Vec::new();
        for i in 0..2000u32 {
            let data = filled(&i.to_le_bytes().repeat((i as usize * 37 % 1000).max(1)));
            for from in 0..senders {
                sends.push((from, world.send(from, senders, from as i32, Mode::Standard, &data)));
            }
            if i % 16 == 0 {
                world.turn();
            }
        }
        world.settle();
        let at = |world: &World| world.ends[senders].p2p.stats();
        assert!(at(&world).buffered_most <= budget as u64, "{:?} of {budget}", at(&world));
        assert!(budget == 0 || at(&world).buffered > budget as u64 / 4, "{:?} of {budget}", at(&world));
        for from in 0..senders {
            for i in 0..2000u32 {
                let to = room(4);
                let received = world.recv(senders, Some(from), Some(from as i32), &to);
                world.wait(senders, received);
                assert_eq!(contents(&to, 4), i.to_le_bytes());
            }
        }
        sends.into_iter().for_each(|(from, sent)| drop(world.wait(from, sent)));
        world.settle();
        assert_eq!(at(&world).buffered, 0);
        assert_eq!(at(&world).misbehaved, 0);
    }
}

#[test]
fn credit_moves_to_those_that_need_it() {
    let mut world = World::new(9, 5, Options::default(), Config::new(256 << 10, 64));
    let data = room(1000);
    // Each process in turn sends for a while, and then is quiet: all of them come to send eagerly.
    for from in 1..9 {
        let mut starved = Stats::default();
        for round in 0..600 {
            let sent = world.send(from, 0, 0, Mode::Standard, &data);
            if round == 400 {
                starved = world.ends[from].p2p.stats();
            }
            let received = world.recv(0, Some(from), Some(0), &data);
            world.wait(0, received);
            world.wait(from, sent);
        }
        let end = world.ends[from].p2p.stats();
        assert!(end.starved - starved.starved < 40, "{from}: {starved:?} {end:?}");
    }
}

#[test]
fn a_stream_of_small_messages_needs_few_frames_for_credit() {
    let mut world = two(Options::default());
    for _ in 0..20_000 {
        assert!(matches!(world.recv(1, Some(0), Some(0), &room(8)), Started::Pending(_)));
        let sent = world.send(0, 1, 0, Mode::Standard, &room(8));
        world.wait(0, sent);
        world.settle();
    }
    assert_eq!(world.ends[0].p2p.stats().starved, 0);
    assert!(world.net.sent() < 20_200, "{}", world.net.sent());
}

#[test]
fn rings_of_full_links_do_not_stop_the_job() {
    for (get, len) in
        [(OneSided::Off, 200_000), (OneSided::AtOnce, 100), (OneSided::Off, 100), (OneSided::Later, 9000)]
    {
        let n = 5;
        let mut options = Options { get, ..Options::cramped() };
        options.depth = 1;
        let mut world = World::new(n, 11, options, Config::new(8 << 10, n as u32));
        let data = filled(&pattern(3, len));
        let mut sends = Vec::new();
        // All send around the ring, and to everyone, before anyone receives.
        for round in 0..8 {
            for from in 0..n {
                for to in [(from + 1) % n, (from + round) % n] {
                    sends.push((from, world.send(from, to, round as i32, Mode::Standard, &data)));
                }
            }
        }
        (0..50).for_each(|_| world.turn());
        let mut receives = Vec::new();
        for round in 0..8 {
            for at in 0..n {
                receives.push((at, world.recv(at, None, Some(round), &room(len))));
                receives.push((at, world.recv(at, None, Some(round), &room(len))));
            }
        }
        receives.into_iter().for_each(|(at, r)| assert_eq!(world.wait(at, r).bytes, len as u64));
        sends.into_iter().for_each(|(from, s)| drop(world.wait(from, s)));
        world.settle();
        assert!(world.ends.iter().all(|e| e.p2p.idle() && e.p2p.stats().misbehaved == 0));
    }
}

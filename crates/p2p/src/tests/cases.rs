//! Single situations: each protocol, truncation, cancel, flood, cycles, deaths, misbehaviour.

use banyan_transport::sim::OneSided;
use banyan_transport::{Class, Head, Sink};

use super::*;
use crate::misbehaved::Misbehaved;
use crate::wire::{self, Cts, Kind, Rts};
use crate::{Fault, ReceiveBypass, Stats};

fn two(options: Options) -> World {
    World::new(2, 1, options, Config::new(1 << 20, 2))
}

#[test]
fn every_length_arrives_by_every_protocol() {
    for get in OneSided::ALL {
        let mut world = two(Options { get, ..Options::default() });
        for len in [0, 1, 36, 37, 64, 65, 4096, 8184, 8185, 8192, 100_000, 700_001] {
            for (posted_first, holes) in [(false, false), (true, false), (false, true), (true, true)] {
                let bytes = pattern(len as u64, len);
                let from = if holes { holey_with(&bytes) } else { filled(&bytes) };
                for to in [room(len), holey(len)] {
                    let mut received = posted_first.then(|| world.recv(1, Some(0), Some(5), &to));
                    let sent = world.send(0, 1, 5, Mode::Standard, &from);
                    if !posted_first {
                        world.settle();
                    }
                    let received = received.take().unwrap_or_else(|| world.recv(1, Some(0), Some(5), &to));
                    let got = world.wait(1, received);
                    assert_eq!((got.source, got.tag, got.bytes, got.fault), (0, 5, len as u64, None));
                    assert!(
                        contents(&to, len) == bytes,
                        "{len} bytes, {get:?}, posted first {posted_first}, holes {holes}"
                    );
                    assert_eq!(world.wait(0, sent).bytes, len as u64);
                }
            }
        }
        world.settle();
        let stats = world.ends[1].p2p.stats();
        assert_eq!((stats.buffered, stats.misbehaved), (0, 0));
        if get != OneSided::Mixed {
            assert_eq!(stats.gets > 0, matches!(get, OneSided::AtOnce | OneSided::Later), "{get:?}");
        }
        assert!(world.ends.iter().all(|e| e.p2p.idle()));
    }
}

#[test]
fn what_does_not_fit_is_cut_off() {
    for get in [OneSided::Off, OneSided::AtOnce, OneSided::Impossible] {
        let mut world = two(Options { get, ..Options::default() });
        for len in [10, 5000, 50_000] {
            for have in [0, 9, 4999] {
                if have >= len {
                    continue;
                }
                for (posted_first, mode) in
                    [(true, Mode::Standard), (false, Mode::Standard), (false, Mode::Sync)]
                {
                    let (bytes, to) = (pattern(1, len), room(have));
                    let first = posted_first.then(|| world.recv(1, None, None, &to));
                    let sent = world.send(0, 1, 0, mode, &filled(&bytes));
                    world.turn();
                    let received = first.unwrap_or_else(|| world.recv(1, None, None, &to));
                    let got = world.wait(1, received);
                    let fault = Fault::Truncated { sent: len as u64, room: have as u64 };
                    assert_eq!((got.bytes, got.fault), (have as u64, Some(fault)));
                    assert_eq!(contents(&to, have), bytes[..have]);
                    assert_eq!(world.wait(0, sent).fault, None);
                }
            }
        }
    }
}

#[test]
fn a_synchronous_send_waits_for_its_receive() {
    let mut world = two(Options::default());
    for len in [0, 100, 50_000] {
        let sent = pending(world.send(0, 1, 1, Mode::Sync, &room(len)));
        world.settle();
        assert!(!world.ends[0].p2p.is_done(sent));
        assert_eq!(world.ends[1].p2p.probe(1, Some((0, Peer(0))), None).unwrap().bytes, len as u64);
        let received = world.recv(1, None, Some(1), &room(len));
        world.wait(1, received);
        world.wait(0, Started::Pending(sent));
    }
}

#[test]
fn an_expected_or_short_message_needs_no_request() {
    let mut world = two(Options { max_delay: 0, ..Options::default() });
    assert!(matches!(world.send(0, 1, 1, Mode::Standard, &filled(b"hello")), Started::Done(_)));
    world.settle();
    let to = room(5);
    assert!(matches!(world.recv(1, Some(0), Some(1), &to), Started::Done(c) if c.bytes == 5));
    assert_eq!(contents(&to, 5), b"hello");
}

#[test]
fn a_probed_message_is_out_of_matching() {
    let mut world = two(Options::default());
    for len in [3, 30_000] {
        let sends: Vec<_> =
            (0..2u8).map(|i| world.send(0, 1, 7, Mode::Standard, &filled(&vec![i; len]))).collect();
        world.settle();
        let p2p = &mut world.ends[1].p2p;
        assert_eq!(p2p.mprobe(1, Some((1, Peer(1))), None), None);
        let (message, envelope) = p2p.mprobe(1, None, Some(7)).unwrap();
        assert_eq!((envelope.source, envelope.tag, envelope.bytes), (0, 7, len as u64));
        let (first, second) = (room(len), room(len));
        let received = world.recv(1, None, None, &second);
        world.wait(1, received);
        let End { p2p, port } = &mut world.ends[1];
        let received = p2p.mrecv(port, message, &first).unwrap();
        assert_eq!(p2p.mrecv(port, message, &first), None);
        world.wait(1, received);
        sends.into_iter().for_each(|s| drop(world.wait(0, s)));
        assert_eq!((contents(&first, len), contents(&second, len)), (vec![0; len], vec![1; len]));
    }
}

#[test]
fn cancelled_receives_and_sends() {
    let mut world = two(Options::default());
    let received = pending(world.recv(1, None, None, &room(8)));
    world.ends[1].p2p.cancel(received);
    assert!(world.ends[1].p2p.test(received).unwrap().cancelled);
    for (len, mode) in [(0, Mode::Sync), (50_000, Mode::Standard), (50_000, Mode::Sync)] {
        let data = filled(&pattern(2, len));
        let sent = pending(world.send(0, 1, 0, mode, &data));
        world.settle();
        world.ends[0].p2p.cancel(sent);
        assert!(world.wait(0, Started::Pending(sent)).cancelled);
        assert_eq!(world.ends[1].p2p.probe(1, None, None), None);
        let sent = pending(world.send(0, 1, 0, mode, &data));
        world.settle();
        let received = world.recv(1, None, None, &room(len));
        world.ends[0].p2p.cancel(sent);
        assert!(!world.wait(0, Started::Pending(sent)).cancelled);
        assert!(!world.wait(1, received).cancelled);
    }
    world.settle();
    assert_eq!(world.ends[1].p2p.stats().buffered, 0);
}

/// The fragments of an RTS are kept within the credit, and found by the receive or probe that takes the message, whether
/// all have come or not.
#[test]
fn the_first_bytes_of_a_long_message_follow_its_rts() {
    for (len, eager) in [(20_000, 30_000), (50_000, 30_000)] {
        for (turns, room_for) in [(0, len), (1, len), (2, 9000), (9, len), (9, 9000), (9, 0)] {
            let options = Options { get: OneSided::Off, eager, piece: 4000, ..Options::default() };
            let mut world = two(options);
            let bytes = pattern(6, len);
            for mode in [Mode::Standard, Mode::Sync] {
                let sent = world.send(0, 1, 4, mode, &filled(&bytes));
                let done = matches!(sent, Started::Done(_));
                assert_eq!(done, len < eager && mode == Mode::Standard);
                (0..turns).for_each(|_| world.turn());
                let probed = world.ends[1].p2p.mprobe(1, None, None);
                let to = room(room_for);
                let received = match probed {
                    Some((message, envelope)) => {
                        assert_eq!(envelope.bytes, len as u64);
                        (0..turns % 3).for_each(|_| world.turn());
                        let End { p2p, port } = &mut world.ends[1];
                        p2p.mrecv(port, message, &to).unwrap()
                    }
                    None => world.recv(1, Some(0), Some(4), &to),
                };
                let got = world.wait(1, received);
                assert_eq!((got.bytes, got.fault.is_some()), (room_for as u64, room_for < len));
                assert!(contents(&to, room_for) == bytes[..room_for], "{len} {turns} {room_for}");
                world.wait(0, sent);
                world.settle();
            }
            // Two that nobody receives: one is cancelled, one goes with its context.
            let sent = pending(world.send(0, 1, 4, Mode::Sync, &filled(&bytes)));
            world.settle();
            let buffered = world.ends[1].p2p.stats().buffered;
            assert_eq!(buffered, 20_000 + if len < eager { 0 } else { 12_000 });
            world.ends[0].p2p.cancel(sent);
            assert!(world.wait(0, Started::Pending(sent)).cancelled);
            let sent = world.send(0, 1, 4, Mode::Standard, &filled(&bytes));
            world.run(|world| world.ends[1].p2p.probe(1, None, None).is_some());
            (0..turns).for_each(|_| world.turn());
            world.ends[1].p2p.close_context(1);
            world.settle();
            assert_eq!(world.ends[1].p2p.stats().buffered, 0);
            assert_eq!(world.wait(0, sent).fault, None);
            assert!(world.ends.iter().all(|end| end.p2p.stats().misbehaved == 0));
        }
    }
}

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
    assert!(matches!(world.wait(1, got).fault, Some(Fault::PeerDown { .. })));
    assert_eq!(world.ends[1].p2p.stats().buffered, 0);
}

#[test]
fn keyed_messages_find_their_receive_in_any_order_and_context() {
    let mut world = two(Options::default());
    let keys = [1, u64::MAX, 1 << 40, 7, 0];
    for (i, &key) in keys.iter().enumerate() {
        let End { p2p, port } = &mut world.ends[0];
        let len = if i % 2 == 0 { 16 } else { 20_000 };
        p2p.send_keyed(port, Peer(1), 99, key, &filled(&vec![i as u8; len]));
    }
    world.settle();
    world.ends[1].p2p.open_context(99);
    for (i, &key) in keys.iter().enumerate().rev() {
        let to = room(if i % 2 == 0 { 16 } else { 20_000 });
        let End { p2p, port } = &mut world.ends[1];
        let received = p2p.recv_keyed(port, Peer(0), 99, key, &to);
        world.wait(1, received);
        assert_eq!(contents(&to, 3), [i as u8; 3]);
    }
    world.settle();
    assert!(world.ends[0].p2p.idle());
}

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

#[test]
fn a_dead_peer_ends_what_needs_it_and_nothing_else() {
    for get in OneSided::ALL {
        let mut world = World::new(3, 4, Options { get, ..Options::default() }, Config::new(1 << 20, 3));
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
            match world.wait(0, started).fault {
                Some(Fault::PeerDown { peer: Peer(1), cause }) => assert_eq!(&*cause, "killed by signal 9"),
                fault => panic!("{fault:?}"),
            }
        }
        let to = room(10);
        assert!(matches!(world.recv(0, Some(1), Some(9), &to), Started::Done(c) if c.fault.is_none()));
        assert_eq!(contents(&to, 10), b"last words");
        for late in [world.send(0, 1, 0, Mode::Ready, &long), world.recv(0, Some(1), None, &long)] {
            assert!(matches!(late, Started::Done(Completion { fault: Some(Fault::PeerDown { .. }), .. })));
        }
        let sent = [world.send(2, 0, 77, Mode::Sync, &room(4)), world.send(2, 0, 1, Mode::Standard, &long)];
        sent.into_iter().for_each(|s| assert_eq!(world.wait(2, s).fault, None));
        assert_eq!(world.wait(0, any).source, 2);
        assert_eq!(world.wait(0, other).bytes, 100_000);
        assert!(world.ends[0].p2p.idle());
    }
}

#[test]
fn a_detached_request_goes_by_itself() {
    let mut world = two(Options::default());
    let sent = pending(world.send(0, 1, 0, Mode::Standard, &room(50_000)));
    world.ends[0].p2p.detach(sent);
    assert!(!world.ends[0].p2p.idle());
    let received = world.recv(1, None, None, &room(50_000));
    world.wait(1, received);
    world.settle();
    assert!(world.ends[0].p2p.idle());
    assert_eq!(world.ends[0].p2p.test(sent), None);
}

#[test]
fn a_context_that_is_closed_frees_what_was_sent_to_it() {
    let mut world = two(Options::default());
    let sends = [10, 50_000].map(|len| {
        pending(world.send(0, 1, 0, if len == 10 { Mode::Sync } else { Mode::Standard }, &room(len)))
    });
    world.settle();
    let received = pending(world.recv(1, None, Some(1), &room(1)));
    world.ends[1].p2p.close_context(1);
    assert!(world.ends[1].p2p.test(received).unwrap().cancelled);
    sends.into_iter().for_each(|s| drop(world.wait(0, Started::Pending(s))));
    assert_eq!(world.ends[1].p2p.stats().buffered, 0);
}

#[test]
fn waits_say_who_waits_for_whom() {
    let mut world = two(Options::default());
    world.send(0, 1, 3, Mode::Standard, &room(50_000));
    world.recv(0, Some(1), None, &room(8));
    world.settle();
    let waits: Vec<_> = world.ends[0].p2p.waits().map(|w| (w.peer, w.tag, w.bytes, w.state)).collect();
    assert_eq!(waits[0], (Some(Peer(1)), Some(3), 50_000, "send: waits for a matching receive"));
    assert_eq!(waits[1], (Some(Peer(1)), None, 8, "receive: waits for a matching message"));
}

#[test]
fn random_frames_end_the_peer_and_nothing_else() {
    let mut random = Random::new(17);
    for round in 0..3000 {
        let mut world = World::new(3, round, Options::default(), Config::new(64 << 10, 3));
        let long = room(20_000);
        let sent = world.send(0, 1, 0, Mode::Standard, &long);
        let received = world.recv(0, Some(1), Some(0), &long);
        for _ in 0..8 {
            let ids = [0, 1, 1 << 32, (1 << 32) + 1, random.word()];
            let head = Head {
                class: [Class::P2p, Class::P2p, Class::Coll, Class::Rma][random.below(4)],
                kind: random.below(13) as u8,
                aux: [0, 1, u16::MAX][random.below(3)],
                a: [0, 1, u32::MAX][random.below(3)],
                b: [0, 1, u32::MAX][random.below(3)],
                ctx: ids[random.below(5)],
            };
            let mut body: Vec<u8> = (0..4).flat_map(|_| ids[random.below(5)].to_le_bytes()).collect();
            body.resize([0, 7, 16, 20, 36, 40, 70_000][random.below(7)], 0);
            world.ends[0].p2p.frame(Peer(1), &head, &body);
        }
        world.ends[0].p2p.peer_down(Peer(1), "enough");
        for started in [sent, received] {
            if let Started::Pending(id) = started {
                assert!(world.ends[0].p2p.is_done(id));
            }
        }
        let sent = world.send(2, 0, 0, Mode::Sync, &room(8));
        let received = world.recv(0, Some(2), Some(0), &room(8));
        assert_eq!(world.wait(0, received).fault, None);
        world.wait(2, sent);
    }
}

#[test]
fn a_bypass_hands_over_frames_that_are_not_of_messages() {
    let mut world = two(Options::default());
    let p2p = &mut world.ends[0].p2p;
    let (data, mut others) = (room(1), Vec::new());
    let args = RecvArgs { ctx: 1, src: Some((1, Peer(1))), tag: Some(0), data: &data };
    let mut bypass = ReceiveBypass::new(p2p, args, |peer, head: &Head, body: &[u8]| {
        others.push((peer, *head, body.len()))
    })
    .unwrap();
    let message = wire::tagged(Kind::Eager, 1, 0, 1);
    let note = Head { class: Class::Control, ..message };
    bypass.frame(Peer(1), &note, &[7; 3]);
    assert!(bypass.end().is_none() && bypass.is_open());
    bypass.frame(Peer(1), &message, &[7]);
    assert!(bypass.end().is_some());
    assert_eq!(others, [(Peer(1), note, 3)]);
}

#[test]
fn credit_that_was_not_lent_cannot_be_used() {
    let mut world = two(Options::default());
    let p2p = &mut world.ends[0].p2p;
    let head = wire::tagged(Kind::Eager, 1, 0, 1);
    (0..1000).for_each(|_| p2p.frame(Peer(1), &head, &[0; 8000]));
    assert!(p2p.stats().buffered_most <= 1 << 20);
    assert_eq!(p2p.stats().misbehaved, 1);
    assert!(matches!(world.send(0, 1, 0, Mode::Standard, &room(1)), Started::Done(c) if c.fault.is_some()));
}

/// Each of these frames of peer 1 ends it, with its own cause.
#[test]
fn a_peer_that_misbehaves_is_down_with_its_cause() {
    let data = |id: u64, at: u64| wire::control(Kind::Data, id, at);
    let rts = |id: u64, total: u64, readable: bool| {
        let rts = Rts { total, id, starved: false, pushed: false, last: false, readable, exposed: (0, 0) };
        let mut body = [0; Rts::MOST];
        let len = rts.encode(&mut body);
        (wire::tagged(Kind::Rts, 1, 5, 1), body[..len].to_vec())
    };
    let cts =
        |send: u64, room: u64| (wire::control(Kind::Cts, send, 0), Cts { id: 1, room }.encode().to_vec());
    // Ids of process 0: a send to 1, a send to 2, a posted receive of anything from 1.
    let [to_1, to_2, posted] = [0, 1, 2].map(|at: u64| (1 << 32) | at);
    let fin = |id: u64| (wire::control(Kind::Fin, id, 0), vec![]);
    let fragment = |id: u64, at: u64, len: usize| (wire::fragment(Class::P2p, id, at), vec![0; len]);
    let matched = || rts(9, 1000, false);
    let next = || rts(8, 1000, false);
    let eager = || wire::tagged(Kind::Eager, 1, 5, 1);
    type Frames = Vec<(Head, Vec<u8>)>;
    let cases: Vec<(Misbehaved, Frames)> = vec![
        (Misbehaved::UnknownKind, vec![(Head { kind: 13, ..eager() }, vec![])]),
        (Misbehaved::WrongClass, vec![(Head { class: Class::Coll, ..fin(to_1).0 }, vec![])]),
        (Misbehaved::ShortBody, vec![(wire::control(Kind::Cts, to_1, 0), vec![0; 15])]),
        (Misbehaved::TooLong, vec![rts(9, wire::LONGEST + 1, false)]),
        (Misbehaved::CreditOverrun, vec![(eager(), vec![0; 1 << 20])]),
        (
            Misbehaved::CreditFlood,
            vec![(Head { aux: u16::MAX, ..wire::control(Kind::Credit, 0, 0) }, vec![]); 5000],
        ),
        (Misbehaved::CreditNotLent, vec![(wire::control(Kind::ReturnCredit, 0, 1 << 30), vec![])]),
        (Misbehaved::StrayFragment, vec![fragment(9, 0, 10)]),
        (Misbehaved::FragmentOrder, vec![matched(), next(), fragment(8, 10, 10)]),
        (Misbehaved::FragmentOfRead, vec![rts(9, 1000, true), fragment(9, 0, 10)]),
        (Misbehaved::BeyondEnd, vec![matched(), next(), fragment(8, 0, 1001)]),
        (Misbehaved::BeyondEnd, vec![matched(), fragment(9, 10, 1000)]),
        (Misbehaved::DataUnasked, vec![(data(posted, 0), vec![0; 10])]),
        (Misbehaved::DataOverrun, vec![matched(), (data(posted, 0), vec![0; 101])]),
        (Misbehaved::DataOverrun, vec![matched(), fragment(9, 0, 60), fragment(9, 0, 60)]),
        (Misbehaved::ForeignSend, vec![fin(to_2)]),
        (Misbehaved::GrantTooLong, vec![cts(to_1, 50_001)]),
        (Misbehaved::ReplyUnasked, vec![cts(to_1, 50_000), fin(to_1)]),
    ];
    for (cause, frames) in cases {
        let mut world = World::new(3, 1, Options::default(), Config::new(256 << 10, 3));
        let (long, short) = (room(50_000), room(100));
        for to in [1, 2] {
            assert_eq!(pending(world.send(0, to, 0, Mode::Standard, &long)).0, [to_1, to_2][to - 1]);
        }
        let received = world.recv(0, Some(1), None, &short);
        assert_eq!(pending(received.clone()).0, posted);
        let p2p = &mut world.ends[0].p2p;
        for (head, body) in &frames {
            assert_eq!(p2p.stats().misbehaved, u64::from(p2p.is_done(ReqId(posted))), "{cause:?}");
            p2p.frame(Peer(1), head, body);
        }
        assert_eq!(p2p.stats().misbehaved, 1, "{cause:?}");
        match world.wait(0, received).fault {
            Some(Fault::PeerDown { peer: Peer(1), cause: text }) => assert_eq!(&*text, cause.text()),
            fault => panic!("{cause:?}: {fault:?}"),
        }
        let alive = world.recv(0, Some(2), None, &short);
        assert!(matches!(alive, Started::Pending(_)), "{cause:?}");
    }
}

/// DATA that peer 2 sends to a receive that is matched with a message of peer 1.
#[test]
fn data_for_the_receive_of_another_process_end_their_sender() {
    let mut world = World::new(3, 1, Options::default(), Config::new(1 << 20, 3));
    let id = pending(world.recv(0, Some(1), None, &room(100)));
    let p2p = &mut world.ends[0].p2p;
    let rts = Rts {
        total: 100,
        id: 9,
        starved: false,
        pushed: false,
        last: false,
        readable: false,
        exposed: (0, 0),
    };
    let mut body = [0; Rts::MOST];
    let len = rts.encode(&mut body);
    p2p.frame(Peer(1), &wire::tagged(Kind::Rts, 1, 5, 1), &body[..len]);
    p2p.frame(Peer(2), &wire::control(Kind::Data, id.0, 0), &[0; 100]);
    assert!(p2p.is_pending(id));
    let late = world.recv(0, Some(2), None, &room(1));
    match world.wait(0, late).fault {
        Some(Fault::PeerDown { peer: Peer(2), cause }) => {
            assert_eq!(&*cause, Misbehaved::ForeignReceive.text());
        }
        fault => panic!("{fault:?}"),
    }
}

#[test]
fn requests_stay_small() {
    use crate::request::{Message, Request};
    assert!(size_of::<Request>() <= 144 && size_of::<Message>() <= 72, "{} bytes", size_of::<Request>());
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
            assert!(matches!(fault, None | Some(Fault::PeerDown { .. })), "seed {seed}: {fault:?}");
        }
        world.settle();
        assert!(world.ends.iter().all(|e| e.p2p.idle() && e.p2p.stats().misbehaved == 0), "seed {seed}");
    }
}

//! Single situations: each protocol, truncation, cancel, probes, requests that nobody tests, bypasses.

use banyan_transport::sim::OneSided;
use banyan_transport::{Class, Head, Sink};

use super::*;
use crate::wire::{self, Kind};
use crate::{Fault, ReceiveBypass};

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
                    assert_eq!((got.bytes, got.fault), (have as u64, Some(fault.into())));
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
    assert!(bypass.is_open());
    bypass.frame(Peer(1), &message, &[7]);
    assert!(bypass.end().is_some());
    assert_eq!(others, [(Peer(1), note, 3)]);
}

#[test]
fn requests_stay_small() {
    use crate::request::{Message, Request};
    assert!(size_of::<Request>() <= 144 && size_of::<Message>() <= 72, "{} bytes", size_of::<Request>());
}

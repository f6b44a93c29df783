//! Long messages whose memory is a device's, at either end or at both: nothing waits for a device inside a call.

use std::sync::{Mutex, PoisonError};

use banyan_memory::SimulatedDevice;

use super::*;
use crate::Fault;

/// Held by tests to which it matters how many bounce buffers are free.
static BOUNCE_BUFFERS: Mutex<()> = Mutex::new(());

/// A network by which nothing is read, so that all goes in frames.
fn frames() -> Options {
    let (get, put) = (OneSided::Off, OneSided::Off);
    Options { get, put, eager: 16_384, piece: 4096, max_delay: 0, ..Options::default() }
}

/// The same, and both processes share memory, which one hands to the other.
fn sharing() -> Options {
    Options { handovers: 8, ..frames() }
}

fn on(device: &SimulatedDevice, bytes: &[u8]) -> Data {
    let data = Data::bytes(device.alloc(bytes.len()));
    data.cursor().unpack(&data, bytes);
    data
}

#[test]
fn copies_run_ahead_of_frames_and_are_not_waited_for() {
    let _turn = BOUNCE_BUFFERS.lock().unwrap_or_else(PoisonError::into_inner);
    const LEN: usize = 3 << 20;
    let device = SimulatedDevice::new(8 << 20, 7);
    let mut world = two(frames());
    let bytes = pattern(1, LEN);
    let (from, to) = (on(&device, &bytes), on(&device, &vec![0; LEN]));
    let (before, _) = device.copies();
    let send = pending(world.send(0, 1, 3, Mode::Standard, &from));
    let (started, under_way) = device.copies();
    assert_eq!((started - before, under_way), (1, 1), "the first bytes are fetched before an answer comes");
    let receive = pending(world.recv(1, Some(0), Some(3), &to));
    let mut most = 0;
    world.run(|world| {
        most = most.max(device.copies().1);
        world.ends[0].p2p.is_done(send) && world.ends[1].p2p.is_done(receive)
    });
    assert!(most > 1, "{most} copies at a time at most");
    assert_eq!(contents(&to, LEN), bytes);
    // 512 KiB at a time, at both ends.
    let copies = device.copies().0 - before - 1;
    assert!(copies <= 6 + 8, "{copies} copies");
    assert_eq!(device.copies().1, 0);
}

/// Each end is a device, or the host; and the sender's memory in pieces, or the receiver's.
#[test]
fn what_is_handed_over_is_in_no_frame() {
    const LEN: usize = 3 << 20;
    let device = SimulatedDevice::new(64 << 20, 7);
    let there = |len| device.alloc(len);
    let bytes = pattern(1, LEN);
    let fill = |data: Data| {
        data.cursor().unpack(&data, &bytes);
        data
    };
    let ends = || [room(LEN), on(&device, &vec![0; LEN]), holey(LEN), holey_in(LEN, there)];
    for (from, to) in ends().iter().flat_map(|from| ends().map(|to| (from.clone(), to))) {
        let mut world = two(sharing());
        let from = fill(from);
        let on_device = [&from, &to].map(|data| usize::from(crate::staging::is_staged(data)));
        let receive = pending(world.recv(1, Some(0), Some(3), &to));
        let send = pending(world.send(0, 1, 3, Mode::Standard, &from));
        let mut most = 0;
        world.run(|world| {
            most = most.max(world.net.handovers());
            world.ends[0].p2p.is_done(send) && world.ends[1].p2p.is_done(receive)
        });
        assert_eq!(contents(&to, LEN), bytes);
        world.settle();
        assert_eq!(world.net.handovers(), 0);
        match on_device {
            // What follows an RTS, and DATA.
            [0, 0] => assert!(most == 0 && world.net.sent() > 100),
            // RTS, what may follow it, CTS and six pieces.
            _ => assert!((2..=6).contains(&most) && world.net.sent() < 16, "{most}, {}", world.net.sent()),
        }
    }
}

/// A message that came whole before its receive: the receive does not wait until the device has copied it.
#[test]
fn a_long_message_that_came_early_is_copied_while_its_receive_is_pending() {
    let _turn = BOUNCE_BUFFERS.lock().unwrap_or_else(PoisonError::into_inner);
    let (device, mut pending) = (SimulatedDevice::new(1 << 20, 7), 0);
    for (len, room, waited) in
        [(100, 100, true), (60_000, 60_000, false), (60_000, 500, false), (60_000, 70_000, false)]
    {
        for mode in [Mode::Standard, Mode::Sync] {
            let mut world = two(Options { max_bcopy: 100_000, eager: 100_000, piece: 100_000, ..frames() });
            let bytes = pattern(len as u64, len);
            let sent = world.send(0, 1, 3, mode, &filled(&bytes));
            world.settle();
            let to = on(&device, &vec![0; room]);
            let receive = world.recv(1, Some(0), Some(3), &to);
            assert!(!waited || matches!(receive, Started::Done(_)));
            pending += usize::from(matches!(receive, Started::Pending(_)));
            let done = world.wait(1, receive);
            let fits = len.min(room);
            assert_eq!((done.bytes, done.fault.is_some()), (fits as u64, len > room));
            assert_eq!(contents(&to, fits), bytes[..fits]);
            assert_eq!(world.wait(0, sent).fault, None);
        }
    }
    // Some copies are over when they are asked about first.
    assert!(pending > 2, "{pending} of 6 receives were pending");
}

/// Two buffers are all that there is: one message has them, and others go by frames.
#[test]
fn where_handover_buffers_are_few_messages_go_by_frames() {
    const LEN: usize = 1 << 20;
    let _turn = BOUNCE_BUFFERS.lock().unwrap_or_else(PoisonError::into_inner);
    let device = SimulatedDevice::new(32 << 20, 7);
    let mut world = two(Options { handovers: 2, ..frames() });
    let bytes: Vec<_> = (0..6).map(|seed| pattern(seed, LEN)).collect();
    let from: Vec<_> = bytes.iter().map(|bytes| on(&device, bytes)).collect();
    let to: Vec<_> = bytes.iter().map(|_| on(&device, &vec![0; LEN])).collect();
    let sends: Vec<_> =
        (0..6).map(|tag| world.send(0, 1, tag, Mode::Standard, &from[tag as usize])).collect();
    // The last one is received first.
    let receives: Vec<_> =
        (0..6).rev().map(|tag| world.recv(1, Some(0), Some(tag), &to[tag as usize])).collect();
    receives.into_iter().for_each(|receive| drop(world.wait(1, receive)));
    sends.into_iter().for_each(|send| drop(world.wait(0, send)));
    assert!(to.iter().zip(&bytes).all(|(to, bytes)| contents(to, LEN) == *bytes));
    assert_eq!(world.net.handovers(), 0);
}

/// A receive with room for a part of the message gets that.
#[test]
fn what_is_too_long_is_cut_off() {
    const LEN: usize = 1 << 20;
    let device = SimulatedDevice::new(32 << 20, 7);
    for room in [1, 70_000, 500_000, LEN - 1] {
        let mut world = two(sharing());
        let bytes = pattern(1, LEN);
        let (from, to) = (on(&device, &bytes), on(&device, &vec![0; room]));
        let receive = world.recv(1, Some(0), Some(3), &to);
        let send = world.send(0, 1, 3, Mode::Standard, &from);
        let done = world.wait(1, receive);
        assert_eq!(done.fault, Some(Fault::Truncated { sent: LEN as u64, room: room as u64 }.into()));
        assert_eq!(world.wait(0, send).fault, None);
        assert_eq!(contents(&to, room), bytes[..room]);
        world.settle();
        assert_eq!(world.net.handovers(), 0);
    }
}

#[test]
fn a_receive_is_over_when_the_device_has_copied_all_though_the_sender_is_gone() {
    const LEN: usize = 100_000;
    for options in [frames(), sharing()] {
        let goes = |&seed: &u64| sender_goes_while_the_device_copies(options.clone(), seed, LEN);
        let seen = (1..20).filter(goes).count();
        assert!(seen > 2, "{seen} times of 19 the device was at work");
    }
}

/// True if the device was at work when the sender went.
fn sender_goes_while_the_device_copies(options: Options, seed: u64, len: usize) -> bool {
    let device = SimulatedDevice::new(1 << 20, seed);
    let mut world = two(options);
    let bytes = pattern(2, len);
    let to = on(&device, &vec![0; len]);
    let receive = pending(world.recv(1, Some(0), Some(3), &to));
    let send = pending(world.send(0, 1, 3, Mode::Standard, &filled(&bytes)));
    world.run(|world| world.ends[0].p2p.is_done(send) && world.net.is_idle());
    let copies = device.copies().1 > 0;
    world.ends[1].p2p.peer_down(Peer(0), "test");
    let End { p2p, port } = &mut world.ends[1];
    while !p2p.is_done(receive) {
        assert!(p2p.has_work() && p2p.progress(port) > 0, "nobody sleeps while the device copies");
    }
    assert_eq!(p2p.test(receive).expect("it is done").fault, None);
    assert_eq!(contents(&to, len), bytes);
    copies
}

#[test]
fn without_bounce_buffers_bytes_go_as_they_come() {
    let _turn = BOUNCE_BUFFERS.lock().unwrap_or_else(PoisonError::into_inner);
    const LEN: usize = 300_000;
    let device = SimulatedDevice::new(8 << 20, 5);
    let spare = device.alloc(1);
    let held: Vec<_> = std::iter::from_fn(|| spare.bounce_buffer()).collect();
    let mut world = two(frames());
    for len in [LEN, 20_000] {
        let bytes = pattern(4, len);
        let (from, to) = (on(&device, &bytes), on(&device, &vec![0; len]));
        let receive = world.recv(1, Some(0), Some(3), &to);
        let send = world.send(0, 1, 3, Mode::Standard, &from);
        assert_eq!(world.wait(1, receive).bytes, len as u64);
        world.wait(0, send);
        assert_eq!(contents(&to, len), bytes);
    }
    drop(held);
}

/// A network whose devices go to memory of devices, each to that of its side, unless it refuses some.
fn by_network(refuse_registration_once_in: u32) -> Options {
    let get = OneSided::Later;
    Options { get, refuse_registration_once_in, moves_devices: true, eager: 4096, ..Options::default() }
}

/// Long messages between memory of a device and of the host, or of devices, that the network moves by itself: one read for all of it, and no copy at either
/// end.
#[test]
fn a_network_goes_to_memory_of_devices_by_itself() {
    const LEN: usize = 2 << 20;
    for (of_device, to_device) in [(true, true), (true, false), (false, true)] {
        let device = SimulatedDevice::new(8 << 20, 3);
        let mut world = two(by_network(0));
        let bytes = pattern(6, LEN);
        let from = if of_device { on(&device, &bytes) } else { filled(&bytes) };
        let to = if to_device { on(&device, &vec![0; LEN]) } else { room(LEN) };
        let before = device.copies().0;
        let receive = world.recv(1, Some(0), Some(3), &to);
        let send = world.send(0, 1, 3, Mode::Standard, &from);
        assert_eq!(world.wait(1, receive).bytes, LEN as u64);
        world.wait(0, send);
        assert_eq!(device.copies().0 - before, 1, "the network's own");
        assert_eq!(contents(&to, LEN), bytes);
        assert_eq!(world.ends[1].p2p.stats().gets, 1);
    }
}

/// What the network refuses, at either end, is staged there, and only there.
#[test]
fn what_a_network_refuses_is_staged() {
    let [mut gets, mut refused] = [0; 2];
    for seed in 0..60 {
        let len = 9000 + 17_000 * seed as usize;
        let device = SimulatedDevice::new(8 << 20, seed);
        let mut world = World::new(2, seed, by_network(2), Config::new(1 << 20, 2));
        let bytes = pattern(seed, len);
        let (from, to) = (on(&device, &bytes), on(&device, &vec![0; len]));
        let receive = world.recv(1, Some(0), Some(3), &to);
        let send = world.send(0, 1, 3, Mode::Standard, &from);
        assert_eq!(world.wait(1, receive).fault, None);
        assert_eq!(world.wait(0, send).fault, None);
        assert_eq!(contents(&to, len), bytes, "seed {seed}");
        gets += world.ends[1].p2p.stats().gets;
        refused += world.ends[0].p2p.stats().registrations_refused;
        assert_eq!(world.ends[1].p2p.stats().get_refused, 0, "a get that is refused goes by the host");
    }
    assert!(gets > 10 && refused > 10 && gets + refused == 60, "{gets} read, {refused} not registered");
}

/// A send that is given up in the middle goes on from a copy, and its memory is the user's again.
#[test]
fn what_is_given_up_touches_memory_no_more() {
    const LEN: usize = 400_000;
    for (turns, options) in
        (0..80).map(|round| (round / 2, [frames(), sharing()][round as usize % 2].clone()))
    {
        let device = SimulatedDevice::new(2 << 20, turns);
        let mut world = two(options);
        let bytes = pattern(turns, LEN);
        let (from, to) = (on(&device, &bytes), on(&device, &vec![0; LEN]));
        let receive = pending(world.recv(1, Some(0), Some(3), &to));
        let send = pending(world.send(0, 1, 3, Mode::Standard, &from));
        (0..turns).for_each(|_| world.turn());
        let End { p2p, port } = &mut world.ends[0];
        p2p.disown(port, send);
        from.cursor().unpack(&from, &vec![9; LEN]);
        if turns % 2 == 0 {
            assert_eq!(world.wait(1, Started::Pending(receive)).bytes, LEN as u64);
            assert_eq!(contents(&to, LEN), bytes);
        } else {
            let End { p2p, port } = &mut world.ends[1];
            p2p.abandon(port, receive);
            to.cursor().unpack(&to, &vec![5; LEN]);
            (0..300).for_each(|_| world.turn());
            assert_eq!(contents(&to, LEN), vec![5; LEN]);
        }
        world.settle();
        assert_eq!(world.net.handovers(), 0, "all is returned");
    }
}

/// A device that fails in the middle of a long message ends that message at both ends, at any time, and nothing else.
#[test]
fn a_device_that_fails_ends_the_message_at_both_ends() {
    const LEN: usize = 400_000;
    let mut outcomes = [[0; 2]; 2];
    for turns in 0..120 {
        let by_sender = turns % 2 == 0;
        let device = SimulatedDevice::new(2 << 20, turns);
        let mut world = two(if turns % 4 < 2 { frames() } else { sharing() });
        let (bytes, host) = (pattern(turns, LEN), room(LEN));
        let there = on(&device, &bytes);
        let (from, to) = if by_sender { (&there, &host) } else { (&host, &there) };
        let receive = pending(world.recv(1, Some(0), Some(3), to));
        let send = pending(world.send(0, 1, 3, Mode::Standard, from));
        (0..turns / 4).for_each(|_| world.turn());
        device.fail();
        let sent = world.wait(0, Started::Pending(send)).fault;
        let received = world.wait(1, Started::Pending(receive)).fault;
        match (by_sender, sent.as_deref(), received.as_deref()) {
            (true, Some(Fault::Device { .. }), Some(Fault::Unsent { peer: Peer(0) }))
            | (false, None, Some(Fault::Device { .. })) => outcomes[usize::from(by_sender)][0] += 1,
            // All was copied before.
            (_, None, None) => outcomes[usize::from(by_sender)][1] += 1,
            other => panic!("after {turns} turns: {other:?}"),
        }
        // Short messages fail as they are copied; others go on.
        let short = world.recv(1, Some(0), Some(4), &there);
        let sent = world.send(0, 1, 4, Mode::Standard, &filled(&[1; 100]));
        assert_eq!(world.wait(0, sent).fault, None);
        assert!(matches!(world.wait(1, short).fault.as_deref(), Some(Fault::Device { .. })));
        let good = room(LEN);
        let (receive, sent) =
            (world.recv(1, Some(0), Some(5), &good), world.send(0, 1, 5, Mode::Standard, &filled(&bytes)));
        world.wait(0, sent);
        assert_eq!(world.wait(1, receive).fault, None);
        assert_eq!(contents(&good, LEN), bytes);
        assert_eq!(world.ends.iter().map(|end| end.p2p.stats().misbehaved).sum::<u64>(), 0);
    }
    assert!(outcomes.as_flattened().iter().all(|&seen| seen > 2), "{outcomes:?}");
}

//! Fabrics that refuse to register memory, or have no room for a read: the message arrives all the same.

use banyan_topo::KnownWay;
use banyan_transport::sim::{OneSided, Options};

use super::*;
use crate::{Found, Known, Traffic};

/// One long message from 0 to 1 on a network like this; the counters of both.
fn one_message(options: Options) -> [crate::Stats; 2] {
    let mut world = World::new(2, 11, options, Config::new(1 << 20, 2));
    let bytes = pattern(3, 100_000);
    let (data, room) = (filled(&bytes), room(bytes.len()));
    let received = world.recv(1, Some(0), Some(4), &room);
    let sent = world.send(0, 1, 4, Mode::Standard, &data);
    assert_eq!(world.wait(1, received).bytes, bytes.len() as u64);
    world.wait(0, sent);
    assert_eq!(contents(&room, bytes.len()), bytes);
    [world.ends[0].p2p.stats(), world.ends[1].p2p.stats()]
}

#[test]
fn memory_that_is_not_registered_leaves_in_pieces() {
    let [sender, receiver] = one_message(Options { refuse_registration_once_in: 1, ..Options::default() });
    assert_eq!((sender.registrations_refused, receiver.gets), (1, 0));
}

#[test]
fn a_read_without_room_is_tried_again() {
    for get in [OneSided::AtOnce, OneSided::Later] {
        let options = Options { get, refuse_once_in: 2, ..Options::default() };
        let [sender, receiver] = one_message(options);
        assert_eq!((sender.registrations_refused, receiver.gets, receiver.get_refused), (0, 1, 0));
        assert!(receiver.busy > 0, "the seed refuses the read at least once");
    }
}

/// Each way carries long messages of all lengths, to receives that are posted before and after, and to ones that are too short;
/// also where the fabric refuses one of its parts.
#[test]
fn each_way_carries_long_messages() {
    for (way, get, put) in Way::ALL
        .into_iter()
        .flat_map(|way| OneSided::ALL.map(|get| (way, get)))
        .flat_map(|(way, get)| OneSided::ALL.map(|put| (way, get, put)))
    {
        let options = Options { get, put, eager: 20_000, piece: 4096, ..Options::default() };
        let config = Config { choice: Choice::Fixed(way), ..Config::new(1 << 20, 2) };
        let mut world = World::new(2, 5, options, config);
        let mut messages = 0;
        for (seed, len) in (0..).zip([16_384, 16_385, 20_000, 40_000, 65_537, 300_000]) {
            for (posted, less) in [(true, 0), (false, 0), (true, 9), (false, len - 100)] {
                let bytes = pattern(seed, len);
                let (data, room) = (filled(&bytes), room(len - less));
                let early = posted.then(|| world.recv(1, Some(0), Some(4), &room));
                let sent = world.send(0, 1, 4, Mode::Standard, &data);
                (0..4 * usize::from(!posted)).for_each(|_| world.turn());
                let received = early.unwrap_or_else(|| world.recv(1, Some(0), Some(4), &room));
                assert_eq!(world.wait(1, received).bytes, (len - less) as u64);
                assert_eq!(world.wait(0, sent).fault, None);
                assert!(contents(&room, len - less) == bytes[..len - less], "{way:?} {get:?} {put:?} {len}");
                messages += 1;
            }
        }
        world.settle();
        let [sender, receiver] = [0, 1].map(|end| world.ends[end].p2p.stats());
        let carried = [OneSided::AtOnce, OneSided::Later];
        // Of 24 messages 8 have room for too few bytes to write them.
        match way {
            Way::Ring => assert_eq!((sender.puts, receiver.gets), (0, 0)),
            Way::Read if carried.contains(&get) => assert_eq!((sender.puts, receiver.gets), (0, messages)),
            Way::Write if carried.contains(&get) && carried.contains(&put) => {
                assert_eq!((sender.puts, receiver.gets), (16, 8));
            }
            Way::Both if carried.contains(&get) && carried.contains(&put) => {
                assert_eq!((sender.puts, receiver.gets), (16, 24));
            }
            _ => {}
        }
        assert_eq!((sender.misbehaved, receiver.misbehaved), (0, 0), "{way:?} {get:?} {put:?}");
    }
}

/// Sends messages of `len` bytes, one after the other, which all arrive.
fn send_some(world: &mut World, len: usize, messages: u64) {
    let bytes = pattern(1, len);
    let (data, room) = (filled(&bytes), room(bytes.len()));
    for _ in 0..messages {
        let received = world.recv(1, Some(0), Some(4), &room);
        let sent = world.send(0, 1, 4, Mode::Standard, &data);
        world.wait(1, received);
        world.wait(0, sent);
        assert!(contents(&room, bytes.len()) == bytes);
    }
}

/// Where messages are measured all ways are tried, and the sender does as it is told.
#[test]
fn a_measured_choice_tries_all_ways() {
    let config = Config { choice: choice(CHOICES), ..Config::new(1 << 20, 2) };
    let mut world = World::new(2, 3, Options { eager: 16_384, piece: 4096, ..Options::default() }, config);
    send_some(&mut world, 100_000, 200);
    let [sender, receiver] = [0, 1].map(|end| world.ends[end].p2p.stats());
    assert!(sender.puts > 6 && receiver.gets > 6, "{sender:?} {receiver:?}");
}

/// A fabric that knows gets to be best has all long messages read, and nobody looks for a better way.
#[test]
fn where_gets_are_best_no_way_is_looked_for() {
    const MESSAGES: u64 = 200;
    let config = Config { choice: choice(CHOICES), ..Config::new(1 << 20, 2) };
    let options = Options { prefers_get: true, ..Options::default() };
    let mut world = World::new(2, 3, options, config);
    send_some(&mut world, 100_000, MESSAGES);
    let [sender, receiver] = [0, 1].map(|end| world.ends[end].p2p.stats());
    assert_eq!((sender.puts, receiver.gets), (0, MESSAGES));
    assert_eq!(world.ends[1].p2p.measured().count(), 0);
}

/// What an earlier job has found both ends do from the first message on, and nobody has to be told.
#[test]
fn what_is_known_needs_no_look() {
    let rows = [1, 3].map(|class| KnownWay {
        distance: 2,
        class,
        traffic: Traffic::OneWay,
        way: if class == 1 { Way::Ring } else { Way::Write },
        times: [Some(1e-10); Way::ALL.len()],
    });
    let known = Known::by(move |_| rows.iter().map(|row| (*row, Found::Before)).collect());
    let config = Config { choice: choice(CHOICES), known, ..Config::new(1 << 20, 2) };
    let mut world = World::new(2, 3, Options { eager: 65_536, piece: 4096, ..Options::default() }, config);
    let mut sent_by_write_and_eagerly = |len: usize| {
        let before = world.ends[0].p2p.stats();
        send_some(&mut world, len, 4);
        let after = world.ends[0].p2p.stats();
        (after.puts - before.puts, after.eager - before.eager)
    };
    assert_eq!(sent_by_write_and_eagerly(200_000), (4, 0));
    // These go whole, as the ring is known to be best.
    assert_eq!(sent_by_write_and_eagerly(40_000), (0, 4));
}

/// Messages that go whole in a frame of the ring, as the machine's profile says, are heard of by samples: so other ways are looked at.
#[test]
fn what_goes_whole_is_looked_at_by_samples() {
    let row = KnownWay {
        distance: 2,
        class: 1,
        traffic: Traffic::OneWay,
        way: Way::Ring,
        times: [Some(1e-10); Way::ALL.len()],
    };
    let known = Known::by(move |_| vec![(row, Found::NotYet)]);
    let config = Config { choice: choice(CHOICES), known, ..Config::new(16 << 20, 2) };
    let options = Options { eager: 65_536, max_bcopy: 65_536, piece: 65_536, ..Options::default() };
    let mut world = World::new(2, 3, options, config);
    let mut single_copies = |messages| {
        send_some(&mut world, 40_000, messages);
        world.ends[0].p2p.stats().puts + world.ends[1].p2p.stats().gets
    };
    assert_eq!(single_copies(60), 0);
    assert!(single_copies(300) > 0);
}

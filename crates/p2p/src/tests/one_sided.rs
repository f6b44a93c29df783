//! Fabrics that refuse to register memory, or have no room for a read: the message arrives all the same.

use banyan_transport::sim::{OneSided, Options};

use super::*;

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

//! Bodies that arrive in parts, and what may happen between the parts.

use banyan_transport::{Class, Head, Peer, Sink};

use super::*;
use crate::Fault;
use crate::wire::{self, Kind};

const FROM: Peer = Peer(1);

fn engine() -> (Engine, SimFabric) {
    let port = Net::new(2, 1, Options::default()).endpoints().remove(0);
    let mut engine = Engine::new(Config::default());
    engine.open_context(1);
    (engine, port)
}

fn receive(engine: &mut Engine, port: &mut SimFabric, tag: Option<i32>, data: &Data) -> ReqId {
    pending(engine.recv(port, RecvArgs { ctx: 1, src: Some((1, FROM)), tag, data }))
}

fn envelope(tag: i32) -> Head {
    wire::tagged(Kind::Eager, 1, tag, 1)
}

#[test]
fn a_message_is_matched_when_it_begins() {
    let (mut engine, mut port) = engine();
    let (first, second) = (room(100), room(100));
    let one = receive(&mut engine, &mut port, None, &first);
    let two = receive(&mut engine, &mut port, None, &second);
    let bytes = pattern(3, 60);
    engine.place(FROM, &envelope(7), 60).unwrap().write(0, &bytes[..20]);
    // What is matched cannot be cancelled, and what comes from others does not go there.
    engine.cancel(one);
    let keyed = wire::keyed(Kind::Eager, 1, 9);
    assert!(engine.place(FROM, &Head { class: Class::Rma, ..keyed }, 60).is_none());
    assert!(!engine.is_done(one));
    engine.place(FROM, &envelope(7), 60).unwrap().write(20, &bytes[20..]);
    engine.placed(FROM, &envelope(7), 60);
    let done = engine.test(one).unwrap();
    assert_eq!((done.source, done.tag, done.bytes, done.fault), (1, 7, 60, None));
    assert_eq!(contents(&first, 60), bytes);
    assert!(engine.is_pending(two));
    engine.frame(FROM, &envelope(8), &bytes);
    assert_eq!(engine.test(two).unwrap().tag, 8);
    assert_eq!(engine.stats().nonsense, 0);
}

#[test]
fn what_does_not_fit_or_is_scattered_has_no_place() {
    let (mut engine, mut port) = engine();
    assert!(engine.place(FROM, &envelope(1), 60).is_none(), "nobody waits");
    for data in [room(59), holey(60)] {
        let id = receive(&mut engine, &mut port, Some(1), &data);
        assert!(engine.place(FROM, &envelope(1), 60).is_none());
        engine.frame(FROM, &envelope(1), &pattern(4, 60));
        let done = engine.test(id).unwrap();
        assert_eq!(done.fault.is_some(), data.len() < 60);
    }
    let data = room(1 << 20);
    let id = receive(&mut engine, &mut port, Some(1), &data);
    let beyond = Config::default().initial_credit + 1;
    assert!(engine.place(FROM, &envelope(1), beyond).is_none(), "more than was lent");
    assert!(engine.is_pending(id));
}

#[test]
fn a_peer_that_dies_between_the_parts() {
    let (mut engine, mut port) = engine();
    let data = room(60);
    let id = receive(&mut engine, &mut port, Some(1), &data);
    engine.place(FROM, &envelope(1), 60).unwrap().write(0, &pattern(5, 30));
    engine.down(FROM, "test");
    assert!(matches!(engine.test(id).unwrap().fault, Some(Fault::PeerDown { .. })));
    assert!(engine.place(FROM, &envelope(1), 60).is_none());
    engine.placed(FROM, &envelope(1), 60);
    assert!(engine.test(id).is_none());
}

//! Bodies that arrive in parts, and what may happen between the parts.

use banyan_transport::{Class, Head, Peer, Sink};

use super::*;
use crate::Fault;
use crate::wire::{self, Kind};

const FROM: Peer = Peer(1);

fn p2p() -> (P2p, SimFabric) {
    let port = Net::new(2, 1, Options::default()).endpoints().remove(0);
    let mut p2p = P2p::new(Config::default());
    p2p.open_context(1);
    (p2p, port)
}

fn receive(p2p: &mut P2p, port: &mut SimFabric, tag: Option<i32>, data: &Data) -> ReqId {
    pending(p2p.recv(port, RecvArgs { ctx: 1, src: Some((1, FROM)), tag, data }))
}

fn envelope(tag: i32) -> Head {
    wire::tagged(Kind::Eager, 1, tag, 1)
}

#[test]
fn a_message_is_matched_when_it_begins() {
    let (mut p2p, mut port) = p2p();
    let (first, second) = (room(100), room(100));
    let one = receive(&mut p2p, &mut port, None, &first);
    let two = receive(&mut p2p, &mut port, None, &second);
    let bytes = pattern(3, 60);
    p2p.landing(FROM, &envelope(7), 60).unwrap().write(0, &bytes[..20]);
    // The receive is matched and cannot be cancelled; frames of another class do not go there.
    p2p.cancel(one);
    let keyed = wire::keyed(Kind::Eager, 1, 9);
    assert!(p2p.landing(FROM, &Head { class: Class::Rma, ..keyed }, 60).is_none());
    assert!(!p2p.is_done(one));
    p2p.landing(FROM, &envelope(7), 60).unwrap().write(20, &bytes[20..]);
    p2p.landed(FROM, &envelope(7), 60);
    let done = p2p.test(one).unwrap();
    assert_eq!((done.source, done.tag, done.bytes, done.fault), (1, 7, 60, None));
    assert_eq!(contents(&first, 60), bytes);
    assert!(p2p.is_pending(two));
    p2p.frame(FROM, &envelope(8), &bytes);
    assert_eq!(p2p.test(two).unwrap().tag, 8);
    assert_eq!(p2p.stats().misbehaved, 0);
}

#[test]
fn no_memory_is_named_for_a_body_that_does_not_fit_or_is_scattered() {
    let (mut p2p, mut port) = p2p();
    assert!(p2p.landing(FROM, &envelope(1), 60).is_none(), "nobody waits");
    for data in [room(59), holey(60)] {
        let id = receive(&mut p2p, &mut port, Some(1), &data);
        assert!(p2p.landing(FROM, &envelope(1), 60).is_none());
        p2p.frame(FROM, &envelope(1), &pattern(4, 60));
        let done = p2p.test(id).unwrap();
        assert_eq!(done.fault.is_some(), data.len() < 60);
    }
    let data = room(1 << 20);
    let id = receive(&mut p2p, &mut port, Some(1), &data);
    let beyond = Config::default().initial_credit + 1;
    assert!(p2p.landing(FROM, &envelope(1), beyond).is_none(), "more than was lent");
    assert!(p2p.is_pending(id));
}

#[test]
fn a_peer_that_dies_between_the_parts() {
    let (mut p2p, mut port) = p2p();
    let data = room(60);
    let id = receive(&mut p2p, &mut port, Some(1), &data);
    p2p.landing(FROM, &envelope(1), 60).unwrap().write(0, &pattern(5, 30));
    p2p.down(FROM, "test");
    assert!(matches!(p2p.test(id).unwrap().fault.as_deref(), Some(Fault::PeerDown { .. })));
    assert!(p2p.landing(FROM, &envelope(1), 60).is_none());
    p2p.landed(FROM, &envelope(1), 60);
    assert!(p2p.test(id).is_none());
}

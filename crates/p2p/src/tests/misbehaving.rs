//! Peers that misbehave: each frame that no peer sends ends it, with its own cause, and nothing else.

use banyan_transport::{Class, Handed, Head, Sink};

use super::*;
use crate::Fault;
use crate::misbehaved::Misbehaved;
use crate::ways::{CLASSES, Way};
use crate::wire::{self, Cts, Grant, Kind, Offer, Rts};

const UNREADABLE: Rts = Rts {
    total: 0,
    id: 0,
    starved: false,
    pushed: false,
    last: false,
    way: Way::Ring,
    offer: Offer::Fixed,
    seen: 0,
    number: 0,
    exposed: (0, 0),
};

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
                kind: random.below(17) as u8,
                aux: [0, 1, u16::MAX.into()][random.below(3)],
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
        let way = if readable { Way::Read } else { Way::Ring };
        let rts = Rts { total, id, way, ..UNREADABLE };
        let mut body = [0; Rts::MOST];
        let len = rts.encode(&mut body);
        (wire::tagged(Kind::Rts, 1, 5, 1), body[..len].to_vec())
    };
    let granted = |send: u64, room: u64, grant: Option<Grant>| {
        let reply = Cts { id: 1, room, grant, to_device: false }.reply(send);
        (reply.head, reply.body().to_vec())
    };
    let cts = |send: u64, room: u64| granted(send, room, None);
    let grant = |from: u64| Some(Grant { from, exposed: (0, 0) });
    // Ids of process 0: a send to 1, a send to 2, a posted receive of anything from 1.
    let [to_1, to_2, posted] = [0, 1, 2].map(|at: u64| (1 << 32) | at);
    let fin = |id: u64| (wire::control(Kind::Fin, id, 0), vec![]);
    let fragment = |id: u64, at: u64, len: usize| (wire::fragment(Class::P2p, id, at), vec![0; len]);
    let handed = |at: u64, len: u32| {
        (wire::control(Kind::Handed, posted, at), Handed { number: 3, len }.encode().to_vec())
    };
    let matched = || rts(9, 1000, false);
    let next = || rts(8, 1000, false);
    let eager = || wire::tagged(Kind::Eager, 1, 5, 1);
    type Frames = Vec<(Head, Vec<u8>)>;
    let cases: Vec<(Misbehaved, Frames)> = vec![
        (Misbehaved::UnknownKind, vec![(Head { kind: 17, ..eager() }, vec![])]),
        (Misbehaved::WrongClass, vec![(Head { class: Class::Coll, ..fin(to_1).0 }, vec![])]),
        (Misbehaved::ShortBody, vec![(wire::control(Kind::Cts, to_1, 0), vec![0; 15])]),
        (Misbehaved::TooLong, vec![rts(9, wire::LONGEST + 1, false)]),
        (Misbehaved::CreditOverrun, vec![(eager(), vec![0; 1 << 20])]),
        (
            Misbehaved::CreditFlood,
            vec![(Head { aux: u16::MAX.into(), ..wire::control(Kind::Credit, 0, 0) }, vec![]); 5000],
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
        (Misbehaved::GrantTooLong, vec![granted(to_1, 50_000, grant(50_001))]),
        (Misbehaved::DataUnasked, vec![(wire::control(Kind::Written, posted, 0), vec![])]),
        (Misbehaved::DataUnasked, vec![matched(), (wire::control(Kind::Written, posted, 0), vec![])]),
        (Misbehaved::ShortBody, vec![matched(), (wire::control(Kind::Handed, posted, 0), vec![0; 7])]),
        (Misbehaved::DataUnasked, vec![handed(0, 10)]),
        (Misbehaved::DataOverrun, vec![matched(), handed(0, 50), handed(50, 51)]),
        (Misbehaved::NotHanded, vec![matched(), handed(0, 50)]),
        (Misbehaved::NotHanded, vec![matched(), handed(0, 100)]),
        (Misbehaved::DataOverrun, vec![matched(), handed(0, 100), handed(0, 1)]),
        (
            Misbehaved::UnknownWay,
            vec![(wire::control(Kind::Prefer, 0, (Way::ALL.len() as u64) << 32), vec![])],
        ),
        (Misbehaved::UnknownWay, vec![(wire::control(Kind::Prefer, 0, CLASSES as u64), vec![])]),
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
        world.turn();
        assert_eq!(world.ends[0].p2p.stats().misbehaved, 1, "{cause:?}");
        match world.wait(0, received).fault.as_deref() {
            Some(Fault::PeerDown { peer: Peer(1), cause: text }) => assert_eq!(&**text, cause.text()),
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
    let rts = Rts { total: 100, id: 9, ..UNREADABLE };
    let mut body = [0; Rts::MOST];
    let len = rts.encode(&mut body);
    p2p.frame(Peer(1), &wire::tagged(Kind::Rts, 1, 5, 1), &body[..len]);
    p2p.frame(Peer(2), &wire::control(Kind::Data, id.0, 0), &[0; 100]);
    assert!(p2p.is_pending(id));
    let late = world.recv(0, Some(2), None, &room(1));
    match world.wait(0, late).fault.as_deref() {
        Some(Fault::PeerDown { peer: Peer(2), cause }) => {
            assert_eq!(&**cause, Misbehaved::ForeignReceive.text());
        }
        fault => panic!("{fault:?}"),
    }
}

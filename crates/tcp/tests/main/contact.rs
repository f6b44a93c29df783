//! First contact: crossing attempts, late proofs, business cards that come late, farewells, and watched descriptors.

use std::time::Duration;

use crate::common::{self, until};
use banyan_memory::HeapBuffer;
use banyan_tcp::{Options, Tcp};
use banyan_topo::NicAddress;
use banyan_transport::{Class, Fabric, Head, Order, Peer, Port, Refusal};
use proptest::prelude::*;

const HEAD: Head = Head { class: Class::P2p, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };

type Inbox = common::Inbox<Vec<(Peer, Vec<u8>)>>;

fn pair(options: &Options) -> ([Tcp; 2], [Vec<u8>; 2]) {
    let make = |me| Tcp::new(Peer(me), 2, 1, [9; 32], options.clone()).unwrap();
    let ((a, business_card_a), (b, business_card_b)) = (make(0), make(1));
    ([a, b], [business_card_a, business_card_b])
}

fn introduced(options: &Options) -> [Tcp; 2] {
    let ([mut a, mut b], [business_card_a, business_card_b]) = pair(options);
    a.connect(Peer(1), &business_card_b).unwrap();
    b.connect(Peer(0), &business_card_a).unwrap();
    [a, b]
}

/// Both ends send to each other, first in the order of `turns`, until 20 frames have arrived each way.
fn cross(options: &Options, turns: &[(usize, bool)]) {
    let mut ends = introduced(options);
    let mut inbox = [Inbox::default(), Inbox::default()];
    let mut sent = [0u8; 2];
    let mut send = |ends: &mut [Tcp; 2], me: usize| {
        if sent[me] < 20 && ends[me].send_short(Peer(1 - me as u32), &HEAD, &[sent[me]]).is_ok() {
            sent[me] += 1;
        }
        sent[me] == 20
    };
    for &(me, sending) in turns {
        if sending {
            send(&mut ends, me);
        }
        ends[me].poll(&mut inbox[me]);
    }
    until("one connection", || {
        let done = [0, 1].map(|me| send(&mut ends, me));
        for me in 0..2 {
            ends[me].poll(&mut inbox[me]);
        }
        done == [true; 2] && inbox.iter().all(|inbox| inbox.frames.len() == 20)
    });
    for inbox in inbox {
        assert!(inbox.frames.iter().map(|(_, body)| body[0]).eq(0..20));
        assert_eq!(inbox.lost, []);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn attempts_that_cross_become_one_connection(turns in proptest::collection::vec((0usize..2, any::<bool>()), 0..40)) {
        cross(&Options::default(), &turns);
        // Pending connections that are dropped at any moment only cost another attempt.
        let proof = Duration::from_micros(500);
        cross(&Options { proof, patience: Duration::from_secs(60), ..Options::default() }, &turns);
        // All addresses are tried at once.
        let address = |last| NicAddress { ip: [127, 0, 0, last].into(), ..NicAddress::loopback() };
        let listen = [1, 2, 3].map(address).to_vec();
        cross(&Options { listen, stagger: Duration::ZERO, ..Options::default() }, &turns);
    }
}

#[test]
fn a_business_card_is_asked_for_once_and_used_when_it_comes() {
    let ([mut a, mut b], [_, business_card_b]) = pair(&Options::default());
    let (mut inbox, mut idle) = (Inbox::default(), Inbox::default());
    for _ in 0..3 {
        assert_eq!(a.send_short(Peer(1), &HEAD, b"x"), Err(Refusal::Busy));
        a.poll(&mut idle);
    }
    assert_eq!(idle.wanted, [Peer(1)]);
    assert!(a.connect(Peer(1), b"nonsense").unwrap_err().contains("peer 1"));
    a.connect(Peer(1), &business_card_b).unwrap();
    until("a frame", || {
        a.poll(&mut idle);
        b.poll(&mut inbox);
        if inbox.frames.is_empty() {
            let _ = a.send_short(Peer(1), &HEAD, b"x");
        }
        !inbox.frames.is_empty()
    });
    // The other side needs no business card to answer.
    b.send_short(Peer(0), &HEAD, b"y").unwrap();
    b.poll(&mut inbox);
    assert_eq!(inbox.wanted, []);
}

#[test]
fn a_peer_that_computes_during_the_handshake_connects_later() {
    let options = Options { proof: Duration::from_millis(100), ..Options::default() };
    let [mut a, mut b] = introduced(&options);
    let (mut inbox, mut idle) = (Inbox::default(), Inbox::default());
    assert_eq!(a.send_short(Peer(1), &HEAD, b"x"), Err(Refusal::Busy));
    until("b has answered the opening", || {
        a.poll(&mut idle);
        b.poll(&mut inbox);
        b.next_deadline().is_some()
    });
    until("b has dropped the silent connection", || {
        b.poll(&mut inbox);
        b.next_deadline().is_none()
    });
    until("a frame", || {
        if inbox.frames.is_empty() {
            let _ = a.send_short(Peer(1), &HEAD, b"x");
        }
        a.poll(&mut idle);
        b.poll(&mut inbox);
        !inbox.frames.is_empty()
    });
    assert_eq!((idle.lost, inbox.lost), (vec![], vec![]));
}

#[test]
fn a_peer_that_is_not_there_is_given_up() {
    let ([mut a, b], [_, business_card]) =
        pair(&Options { patience: Duration::from_millis(20), ..Options::default() });
    drop(b);
    a.connect(Peer(1), &business_card).unwrap();
    let mut inbox = Inbox::default();
    until("it is given up", || {
        a.poll(&mut inbox);
        a.send_short(Peer(1), &HEAD, &[]) == Err(Refusal::Down)
    });
    assert_eq!(inbox.lost.len(), 1);
    assert!(
        inbox.lost[0].1.contains("127.0.0.1:") && inbox.lost[0].1.contains("refused"),
        "{:?}",
        inbox.lost
    );
}

#[test]
fn all_that_was_accepted_arrives_before_the_farewell() {
    for streams in [1, 4] {
        let [mut a, mut b] = introduced(&Options { streams, ..Options::default() });
        let (mut inbox, mut idle) = (Inbox::default(), Inbox::default());
        let memory = HeapBuffer::zeroed(a.caps(Peer(1)).max_bcopy);
        for _ in 0..20 {
            until("a send", || {
                let body = (&memory, 0, memory.len());
                let sent = a.send_from(Peer(1), &HEAD, body, None, Order::Unordered).is_ok();
                a.poll(&mut idle);
                b.poll(&mut inbox);
                sent
            });
        }
        // B says something that A will not read.
        b.send_short(Peer(0), &HEAD, b"unread").unwrap();
        until("all has left", || {
            a.poll(&mut idle);
            b.poll(&mut inbox);
            !a.unsent()
        });
        assert_eq!((a.connections(), b.connections()), (streams.into(), streams.into()));
        drop(a);
        until("the farewell", || {
            b.poll(&mut inbox);
            !inbox.lost.is_empty()
        });
        assert_eq!(inbox.frames.len(), 20);
        assert!(
            inbox.lost.len() == 1 && inbox.lost[0].1.ends_with("it has left the job"),
            "{:?}",
            inbox.lost
        );
    }
}

#[test]
fn frames_that_keep_their_order_need_one_connection() {
    let [mut a, mut b] = introduced(&Options { streams: 4, ..Options::default() });
    let (mut inbox, mut idle) = (Inbox::default(), Inbox::default());
    until("frames", || {
        let _ = a.send_short(Peer(1), &HEAD, b"x");
        a.poll(&mut idle);
        b.poll(&mut inbox);
        inbox.frames.len() >= 1000
    });
    assert_eq!((a.connections(), b.connections()), (1, 1));
}

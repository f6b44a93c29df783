//! First contact, and the end of it: business cards, and peers that go.

use super::sleeps::nap;
use super::{Inbox, Outbox, until};
use crate::{Class, Fabric, Head, Peer, Refusal, Wake};

/// Endpoints that know each other, of those that `strangers` are with their business cards.
pub fn introduced<F: Fabric>(strangers: Vec<(F, Vec<u8>)>) -> Vec<F> {
    let (mut ends, cards): (Vec<F>, Vec<Vec<u8>>) = strangers.into_iter().unzip();
    for (me, end) in ends.iter_mut().enumerate() {
        for (peer, card) in cards.iter().enumerate().filter(|(peer, card)| *peer != me && !card.is_empty()) {
            end.connect(Peer(peer as u32), card).expect("a card");
        }
    }
    ends
}

/// Endpoints whose peers need no business cards, as [`crate::conformance!`] takes them.
pub fn without_cards<F: Fabric>(ends: Vec<F>) -> Vec<(F, Vec<u8>)> {
    ends.into_iter().map(|end| (end, Vec::new())).collect()
}

/// Without a peer's business card, where it needs one, sends are refused, and the peer is wanted once. What is no business card is
/// refused. With the card frames arrive, and other peers are still strangers. The answer needs a card, too, or none.
pub fn business_cards<F: Fabric>(strangers: &impl Fn(usize) -> Vec<(F, Vec<u8>)>) {
    let (mut ends, cards): (Vec<F>, Vec<Vec<u8>>) = strangers(3).into_iter().unzip();
    let mut out: Vec<Outbox> = (0..3).map(|seed| Outbox::new(3, seed)).collect();
    let mut inbox: Vec<Inbox> = (0..3).map(|_| Inbox::default()).collect();
    let needed = cards.iter().all(|card| !card.is_empty());
    for _ in 0..20 {
        for to in [1, 2].into_iter().filter(|_| needed) {
            assert_eq!(out[0].send(&mut ends[0], to, 8, true), Err(Refusal::Busy), "to a stranger");
        }
        ends[0].poll(&mut inbox[0]);
    }
    let mut wanted = std::mem::take(&mut inbox[0].wanted);
    wanted.sort();
    assert_eq!(wanted, if needed { vec![Peer(1), Peer(2)] } else { vec![] }, "each once");
    for to in [2, 1] {
        if needed {
            ends[0].connect(Peer(to as u32), &cards[to][1..]).expect_err("no business card");
            ends[0].connect(Peer(to as u32), &cards[to]).expect("a business card");
        }
        until("first frames", || {
            for (me, peer) in [(0, to), (to, 0)] {
                if out[me].next[peer] < 10 {
                    let _ = out[me].send(&mut ends[me], peer, 8, true);
                }
                ends[me].poll(&mut inbox[me]);
                while let Some(peer) = inbox[me].wanted.pop() {
                    assert!(needed && me != 0, "the card is there");
                    ends[me].connect(peer, &cards[peer.0 as usize]).expect("a business card");
                }
            }
            inbox[to].from(0) == 10 && inbox[0].from(to) == 10
        });
        let stranger = needed && to == 2;
        assert!(!stranger || out[0].send(&mut ends[0], 1, 8, true) == Err(Refusal::Busy), "still a stranger");
    }
    assert_eq!(inbox[0].wanted, []);
}

/// A peer that is gone before it was ever talked to is reported to an endpoint that polls only when something wakes it: if nothing
/// arrives that tells, the fabric says when it wants to be polled. It may also refuse that peer, so that another fabric is tried. `kill` is that
/// of [`down`].
pub fn gone_before_contact<F: Fabric>(make: &impl Fn(usize) -> Vec<F>, kill: impl FnOnce(&mut Vec<F>)) {
    let mut ends = make(3);
    kill(&mut ends);
    let (end, mut inbox, mut out) = (&mut ends[0], Inbox::default(), Outbox::new(3, 14));
    let descriptor = end.descriptor().expect("a descriptor");
    while inbox.lost.is_empty() {
        end.arm(Wake::Descriptor);
        let _ = out.send(end, 2, 8, true);
        let work = end.poll(&mut inbox);
        if let Some(refused) = inbox.wanted.pop() {
            assert!(end.connect(refused, &[]).is_err_and(|why| !why.is_empty()));
            inbox.lost.push(refused);
        } else if work == 0 {
            nap(end, &descriptor, Wake::Descriptor);
        }
        end.disarm();
    }
    assert_eq!(inbox.lost, [Peer(2)]);
    assert_eq!(out.send(end, 2, 8, true), Err(Refusal::Down));
}

/// Sends frames, short and long ones, while they leave though nobody reads them, so many at most; how many it sent.
fn leave_unread<F: Fabric>(end: &mut F, out: &mut Outbox, to: usize, most: usize) -> usize {
    let lengths = [100, end.caps(Peer(to as u32)).max_bcopy].into_iter().cycle().take(most);
    let leaves = |&len: &usize| {
        end.poll(&mut Inbox::default());
        !end.unsent() && out.send(end, to, len, false).is_ok()
    };
    lengths.take_while(leaves).count()
}

/// A peer that dies is reported once to each endpoint that has talked to it, after all that it had sent; sends to it are then refused
/// with `Down`, and the others go on. `kill` makes endpoint 2 of 3 die, as far as this fabric can see.
pub fn down<F: Fabric>(make: &impl Fn(usize) -> Vec<F>, kill: impl FnOnce(&mut Vec<F>)) {
    let mut ends = make(3);
    let mut out: Vec<Outbox> = (0..3).map(|i| Outbox::new(3, i)).collect();
    let mut inbox: Vec<Inbox> = (0..3).map(|_| Inbox::default()).collect();
    let exchange = |out: &mut Vec<Outbox>, ends: &mut Vec<F>, inbox: &mut Vec<Inbox>, goal: u32, n: usize| {
        until("an exchange", || {
            for me in 0..n {
                for to in (0..n).filter(|&to| to != me) {
                    if out[me].next[to] < goal {
                        let _ = out[me].send(&mut ends[me], to, 100, false);
                    }
                }
                ends[me].poll(&mut inbox[me]);
            }
            (0..n).all(|me| (0..n).all(|from| from == me || inbox[me].from(from) == goal))
        });
    };
    exchange(&mut out, &mut ends, &mut inbox, 30, 3);
    // Its last frames, which nobody reads before it dies: half of those that there is room for, more than one poll takes.
    for to in [0, 1] {
        let mut leave = |ends: &mut Vec<F>, most| leave_unread(&mut ends[2], &mut out[2], to, most);
        let room = leave(&mut ends, 200);
        // Whether there is room again may be heard of later than that all has come.
        until("room again", || {
            ends[2].poll(&mut inbox[2]);
            ends[to].poll(&mut inbox[to]);
            let read = !ends[2].unsent() && inbox[to].from(2) as usize == 30 + room;
            read && leave(&mut ends, (room / 2).max(1)) > 0
        });
    }
    until("the last frames to leave", || {
        ends[2].poll(&mut inbox[2]);
        !ends[2].unsent()
    });
    kill(&mut ends);
    for me in 0..2 {
        until("the news", || {
            ends[me].poll(&mut inbox[me]);
            inbox[me].lost == [Peer(2)]
        });
        assert_eq!(inbox[me].from(2), out[2].next[me], "it is reported gone after its last frame");
        let head = Head { class: Class::P2p, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };
        assert_eq!(ends[me].send_short(Peer(2), &head, &[]), Err(Refusal::Down));
    }
    exchange(&mut out, &mut ends, &mut inbox, 50, 2);
    assert!((0..2).all(|me| inbox[me].lost == [Peer(2)]), "said once");
}

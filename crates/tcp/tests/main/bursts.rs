//! Small frames that share packets: they arrive without their sender's help, and soon.

use std::time::{Duration, Instant};

use banyan_tcp::{Options, Tcp};
use banyan_transport::{Class, Fabric, Head, Outcome, Peer, Port, Sink, Token, Wake};

const HEAD: Head = Head { class: Class::P2p, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };

/// Checks that numbers come in order.
#[derive(Default)]
struct Counter(u32);

impl Sink for Counter {
    fn frame(&mut self, _: Peer, _: &Head, body: &[u8]) {
        assert_eq!(body, self.0.to_le_bytes());
        self.0 += 1;
    }
    fn sent(&mut self, _: Token) {}
    fn completed(&mut self, _: Token, _: Outcome) {}
    fn down(&mut self, peer: Peer, cause: &str) {
        panic!("{peer:?}: {cause}");
    }
}

struct End {
    fabric: Tcp,
    other: Peer,
    sent: u32,
    inbox: Counter,
}

impl End {
    fn send(&mut self) -> bool {
        let sent = self.fabric.send_short(self.other, &HEAD, &self.sent.to_le_bytes()).is_ok();
        self.sent += u32::from(sent);
        sent
    }

    fn poll(&mut self) {
        if self.fabric.poll(&mut self.inbox) == 0 {
            std::thread::yield_now();
        }
    }

    /// As a rank that waits: sleeps unless something is there, for ten seconds unless it has something to do before.
    fn poll_or_sleep(&mut self) {
        self.fabric.arm(Wake::Sleep);
        if self.fabric.poll(&mut self.inbox) == 0 {
            self.fabric.sleep(Some(Instant::now() + Duration::from_secs(10)));
        }
        self.fabric.disarm();
    }
}

/// Two ends that have sent to each other, so that their systems delay acknowledgements.
fn talking(resume: bool) -> [End; 2] {
    let make = |me| Tcp::new(Peer(me), 2, 1, [9; 32], Options { resume, ..Options::default() }).unwrap();
    let ((a, _), (b, business_card)) = (make(0), make(1));
    let end = |fabric, other| End { fabric, other: Peer(other), sent: 0, inbox: Counter::default() };
    let mut ends = [end(a, 1), end(b, 0)];
    ends[0].fabric.connect(Peer(1), &business_card).unwrap();
    for turn in 0..40 {
        while !ends[turn % 2].send() {
            ends.iter_mut().for_each(End::poll);
        }
        let heard = ends[1 - turn % 2].inbox.0;
        while ends[1 - turn % 2].inbox.0 == heard {
            ends.iter_mut().for_each(End::poll);
        }
    }
    ends
}

#[test]
fn a_burst_arrives_soon_while_its_sender_computes() {
    // Where the system delays acknowledgements as it likes, no burst at all comes soon. On a busy machine many come late in any case:
    // a few that come soon are enough.
    const MOST: u32 = 100;
    const ENOUGH: u32 = 5;
    let mut soon = 0;
    let [mut a, mut b] = talking(false);
    for round in 0..MOST {
        let start = Instant::now();
        // From a few frames to long bursts; B reads while A sends.
        for _ in 0..7 + round % 20 * 5 {
            assert!(a.send());
            b.poll();
        }
        while b.inbox.0 < a.sent {
            assert!(start.elapsed() < Duration::from_secs(30), "{} of {} came", b.inbox.0, a.sent);
            b.poll();
        }
        // The least time that a system delays acknowledgements that are not asked for.
        soon += u32::from(start.elapsed() < Duration::from_millis(40));
        if soon == ENOUGH {
            return;
        }
        // B sends a frame, so its system may delay acknowledgements again.
        assert!(b.send());
        while a.inbox.0 < b.sent {
            a.poll();
        }
    }
    panic!("only {soon} of {MOST} bursts came soon");
}

#[test]
fn a_burst_ends_with_the_next_poll() {
    let [mut a, mut b] = talking(false);
    for _ in 0..50 {
        assert!(a.send());
    }
    a.poll();
    // All frames have left A now, whether or not B acknowledges any.
    let start = Instant::now();
    while b.inbox.0 < a.sent {
        assert!(start.elapsed() < Duration::from_secs(30), "{} of {} came", b.inbox.0, a.sent);
        b.poll();
    }
}

#[test]
fn a_rank_acknowledges_before_it_sleeps() {
    let [mut a, mut b] = talking(false);
    for _ in 0..3 {
        assert!(a.send());
    }
    let start = Instant::now();
    while b.inbox.0 < a.sent {
        b.poll_or_sleep();
        assert!(start.elapsed() < Duration::from_secs(5), "slept with {} of {} there", b.inbox.0, a.sent);
    }
}

#[test]
fn a_rank_that_sleeps_acknowledges_what_nothing_else_does() {
    let [mut a, mut b] = talking(true);
    assert!(a.send());
    let start = Instant::now();
    while b.inbox.0 < a.sent {
        b.poll_or_sleep();
    }
    b.poll_or_sleep();
    b.poll();
    while a.fabric.unsent() {
        a.poll();
        assert!(start.elapsed() < Duration::from_secs(5), "it slept, and told nothing");
    }
}

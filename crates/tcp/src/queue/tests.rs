//! Tests of `queue.rs`.

use banyan_memory::HeapBuffer;
use banyan_transport::{Class, Head};
use proptest::prelude::*;

use super::*;
use crate::frame::{Decoded, OVERHEAD};

/// One end of a stream; what it has written is in flight until the other end takes it, or a cut loses it.
#[derive(Default)]
struct End {
    queue: Queue,
    arrivals: Arrivals,
    pool: Pool,
    input: Vec<u8>,
    flight: Vec<u8>,
    sent: u32,
    received: u32,
    lent: Vec<Buffer>,
}

impl End {
    /// Sends the next frame with `len` bytes that follow from its number, from a copy or from memory that is lent.
    fn send(&mut self, len: usize, lend: bool) {
        if self.arrivals.has_news() {
            self.queue.append_ack(&self.arrivals.acknowledge(), &mut self.pool);
        }
        let number = self.sent;
        let head = Head { class: Class::Coll, kind: 0, aux: 0, a: number, b: 0, ctx: 0 };
        self.queue.append(&frame::prefix(&head, len), &mut self.pool);
        let body = vec![number as u8; len];
        if lend && len > 0 {
            let memory = HeapBuffer::copy_of(&body);
            self.queue.lend(memory.clone(), 0, len, Token(number.into()));
            self.lent.push(memory);
        } else {
            self.queue.append(&body, &mut self.pool);
            self.lent.push(Buffer::empty());
        }
        self.sent += 1;
    }

    fn reclaim(&mut self, number: u32) {
        let token = Token(number.into());
        self.queue.reclaim(token, &mut self.pool);
        scribble(&self.lent, token);
    }

    /// Writes up to `most` bytes: all that `next` gives at once, or through `take`.
    fn write(&mut self, mut most: usize) {
        if !most.is_multiple_of(2) {
            let mut out = vec![0; most.min(1 << 20)];
            let taken = self.queue.take(&mut out);
            return self.flight.extend(&out[..taken]);
        }
        while most > 0
            && let Some(next) = self.queue.next()
        {
            let mut bytes = match next {
                Next::Copied(pieces, count) => pieces[..count].iter().flat_map(|p| p.to_vec()).collect(),
                Next::Lent(before, memory, at, len) => {
                    let mut lent = vec![0; len];
                    memory.read(at, &mut lent);
                    [before, &lent].concat()
                }
            };
            bytes.truncate(most);
            most -= bytes.len();
            self.queue.advance(bytes.len());
            self.flight.extend(bytes);
        }
    }

    /// Takes up to `most` bytes that `other` has written.
    fn take(&mut self, other: &mut End, most: usize) {
        let bytes: Vec<u8> = other.flight.drain(..most.min(other.flight.len())).collect();
        self.arrivals.count(bytes.len());
        self.input.extend(bytes);
        loop {
            let used = match frame::decode(&self.input).expect("what was sent") {
                Decoded::Need(_) => return,
                Decoded::Bye => panic!("nobody leaves"),
                Decoded::Ack(to) => {
                    let (queue, lent) = (&mut self.queue, &self.lent);
                    queue.forget(to, &mut self.pool, |token| scribble(lent, token)).expect("sent bytes");
                    frame::ACK
                }
                Decoded::Frame(head, body) => {
                    assert_eq!(head.a, self.received, "lost, doubled or out of order");
                    assert!(body.iter().all(|&byte| byte == head.a as u8), "frame {} is damaged", head.a);
                    self.received += 1;
                    self.arrivals.note(OVERHEAD + body.len());
                    OVERHEAD + body.len()
                }
            };
            self.input.drain(..used);
        }
    }

    fn resume(&mut self, received: u64) {
        self.flight.clear();
        let lent = &self.lent;
        self.queue.rewind(received, &mut self.pool, |token| scribble(lent, token)).expect("it was sent");
    }
}

/// What its owner does with memory that is theirs again.
fn scribble(lent: &[Buffer], Token(number): Token) {
    let memory = &lent[number as usize];
    memory.write(0, &vec![0xee; memory.len()]);
}

/// The connection breaks, and is made again.
fn cut(a: &mut End, b: &mut End) {
    a.resume(b.arrivals.bytes());
    b.resume(a.arrivals.bytes());
}

/// All that was sent arrives, and is acknowledged.
fn settle(a: &mut End, b: &mut End) {
    while a.received < b.sent || b.received < a.sent || a.queue.awaits_ack() || b.queue.awaits_ack() {
        for end in [&mut *a, &mut *b] {
            if end.arrivals.has_news() {
                end.queue.append_ack(&end.arrivals.acknowledge(), &mut end.pool);
            }
            end.write(usize::MAX);
        }
        a.take(b, usize::MAX);
        b.take(a, usize::MAX);
    }
    assert_eq!((a.received, b.received), (b.sent, a.sent));
}

#[test]
fn cuts_after_any_number_of_bytes_lose_and_double_nothing() {
    for at in 0.. {
        let (mut a, mut b) = (End::default(), End::default());
        let mut bytes = 0;
        for step in 0..6 {
            a.send(step * 7, step % 2 == 0);
            b.send(5, step == 3);
            for _ in 0..80 {
                for (from, to) in [(0, 1), (1, 0)] {
                    let mut ends = [&mut a, &mut b];
                    let [from, to] = ends.get_disjoint_mut([from, to]).expect("two ends");
                    from.write(1);
                    bytes += from.flight.len();
                    to.take(from, 1);
                }
                if bytes >= at {
                    // What is in flight is lost; also what the system has taken and the peer has not.
                    a.write(3);
                    cut(&mut a, &mut b);
                    bytes = 0;
                }
                if at == 0 {
                    break;
                }
            }
        }
        settle(&mut a, &mut b);
        if at > 700 {
            return;
        }
    }
}

#[test]
fn what_was_not_written_cannot_be_acknowledged() {
    let mut end = End::default();
    end.send(10, false);
    end.write(4);
    assert_eq!(end.queue.forget(5, &mut end.pool, |_| ()), Err(Impossible));
    assert_eq!(end.queue.forget(4, &mut end.pool, |_| ()), Ok(()));
    assert_eq!(end.queue.rewind(3, &mut end.pool, |_| ()), Err(Impossible));
    assert_eq!(end.queue.forget(u64::MAX, &mut end.pool, |_| ()), Err(Impossible));
}

proptest! {
    #[test]
    fn any_cuts_lose_and_double_nothing(
        steps in proptest::collection::vec((0u8..12, any::<bool>(), 0usize..200_000, any::<bool>()), 1..60)
    ) {
        let (mut one, mut other) = (End::default(), End::default());
        for (what, swap, bytes, lend) in steps {
            let (a, b) = if swap { (&mut other, &mut one) } else { (&mut one, &mut other) };
            match what {
                0..4 => a.send(bytes, lend),
                4 => a.send(bytes % 300, lend),
                5..7 => a.write(bytes),
                7 => a.write(bytes % 50),
                8 => a.take(b, bytes),
                9 => a.take(b, usize::MAX),
                10 if a.sent > 0 => a.reclaim(bytes as u32 % a.sent),
                _ => cut(a, b),
            }
        }
        settle(&mut one, &mut other);
        prop_assert!(!one.queue.awaits_ack() && one.queue.unwritten() == 0);
    }
}

//! The network between emulated hosts, as a pure machine: frames go in with the time, and come out when they are due.
//!
//! A frame passes the sender's network card, a link, and the receiver's card. A card takes frames one after the other at
//! its rate, and holds [`QUEUE`] of waiting time at most; what finds it full is lost. A link has a delay, and loses,
//! duplicates and reorders frames by chance, from a seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use banyan_transport::random::Random;

use super::orders::{Change, Order, Which};

/// How much later than its successors a reordered frame comes, beside its delay: 2 ms.
const LATE: u64 = 2_000_000;
/// The longest time that a frame waits for a card: 50 ms, at 1 Gbit/s 6 MB.
const QUEUE: u64 = 50_000_000;

/// A link between two hosts.
#[derive(Clone, Copy, Default)]
struct Link {
    cut: bool,
    delay: u64,
    loss: f64,
    duplicate: f64,
    reorder: f64,
}

/// A network card: when it is free again, for each direction, and how long a byte takes.
#[derive(Clone, Copy, Default)]
struct Card {
    free_out: u64,
    free_in: u64,
    byte: f64,
}

/// When, in what order, where to.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    due: u64,
    number: u64,
    to: usize,
    frame: Vec<u8>,
}

/// The network. Times are nanoseconds from any beginning.
pub(super) struct Switch {
    cards: Vec<Card>,
    /// One for each pair; that of hosts i and j is at (i, j) with i < j.
    links: Vec<Link>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    number: u64,
    random: Random,
    /// Memory of frames that are gone.
    spare: Vec<Vec<u8>>,
}

/// The hardware address of a host, by which frames find it.
pub(super) fn address(host: usize) -> String {
    let [.., high, low] = (host + 1).to_be_bytes();
    format!("02:00:00:00:{high:02x}:{low:02x}")
}

impl Switch {
    /// A network that only passes frames on.
    pub(super) fn new(hosts: usize, seed: u64) -> Switch {
        Switch {
            cards: vec![Card::default(); hosts],
            links: vec![Link::default(); hosts * hosts],
            waiting: BinaryHeap::new(),
            number: 0,
            random: Random::new(seed),
            spare: Vec::new(),
        }
    }

    /// Carries out an order.
    pub(super) fn obey(&mut self, order: Order) {
        let hosts = self.cards.len();
        match order {
            Order::Clear => {
                self.links.fill(Link::default());
                self.cards.iter_mut().for_each(|card| card.byte = 0.0);
            }
            Order::Rate(host, bits) => {
                let of = host.map_or(0..hosts, |host| host..host + 1);
                let byte = if bits > 0.0 { 8e9 / bits } else { 0.0 };
                self.cards[of].iter_mut().for_each(|card| card.byte = byte);
            }
            Order::Links(which, change) => {
                for (a, b) in (0..hosts).flat_map(|a| (a + 1..hosts).map(move |b| (a, b))) {
                    let named = match which {
                        Which::All => true,
                        Which::Of(host) => a == host || b == host,
                        Which::Between(one, other) => (a, b) == (one.min(other), one.max(other)),
                    };
                    if named {
                        self.links[a * hosts + b].apply(change);
                    }
                }
            }
        }
    }

    /// A frame leaves a host.
    pub(super) fn offer(&mut self, now: u64, from: usize, frame: &[u8]) {
        let Some(header) = frame.first_chunk::<6>() else { return };
        let Some(sent) = self.cards[from].leave(now, frame.len()) else { return };
        let hosts = self.cards.len();
        let to = match *header {
            [first, ..] if first & 1 == 1 => 0..hosts,
            [2, 0, 0, 0, high, low] => {
                let number = usize::from(u16::from_be_bytes([high, low]));
                if !(1..=hosts).contains(&number) {
                    return;
                }
                number - 1..number
            }
            _ => return,
        };
        for to in to.filter(|to| *to != from) {
            self.pass(sent, from, to, frame);
        }
    }

    fn pass(&mut self, sent: u64, from: usize, to: usize, frame: &[u8]) {
        let link = self.links[from.min(to) * self.cards.len() + from.max(to)];
        if link.cut || self.happens(link.loss) {
            return;
        }
        let copies = if self.happens(link.duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            let Some(arrived) = self.cards[to].arrive(sent + link.delay, frame.len()) else { return };
            let due = if self.happens(link.reorder) { arrived + LATE } else { arrived };
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(frame);
            self.number += 1;
            self.waiting.push(Reverse(Waiting { due, number: self.number, to, frame: bytes }));
        }
    }

    /// When the next frame is due.
    pub(super) fn due(&self) -> Option<u64> {
        self.waiting.peek().map(|Reverse(waiting)| waiting.due)
    }

    /// A frame that is due, and where to.
    pub(super) fn take(&mut self, now: u64) -> Option<(usize, Vec<u8>)> {
        if self.due()? > now {
            return None;
        }
        let Reverse(waiting) = self.waiting.pop()?;
        Some((waiting.to, waiting.frame))
    }

    /// Gives the memory of a frame back.
    pub(super) fn reuse(&mut self, frame: Vec<u8>) {
        if self.spare.len() < 4096 {
            self.spare.push(frame);
        }
    }

    /// Whether something happens that does so with this chance.
    fn happens(&mut self, chance: f64) -> bool {
        chance > 0.0 && ((self.random.word() >> 11) as f64) < chance * (1u64 << 53) as f64
    }
}

impl Link {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Cut(cut) => self.cut = cut,
            Change::Delay(delay) => self.delay = delay,
            Change::Loss(share) => self.loss = share,
            Change::Duplicate(share) => self.duplicate = share,
            Change::Reorder(share) => self.reorder = share,
        }
    }
}

impl Card {
    /// When a frame has left; none if the card is full.
    fn leave(&mut self, now: u64, bytes: usize) -> Option<u64> {
        let begin = self.free_out.max(now);
        self.free_out = begin + self.time(bytes);
        Self::unless_full(&mut self.free_out, now, begin)
    }

    /// When a frame has arrived whose end comes at `now`: its beginning was here earlier, unless others came at that time.
    fn arrive(&mut self, now: u64, bytes: usize) -> Option<u64> {
        let begin = self.free_in;
        self.free_in = now.max(begin + self.time(bytes));
        Self::unless_full(&mut self.free_in, now, begin)
    }

    fn time(&self, bytes: usize) -> u64 {
        (bytes as f64 * self.byte) as u64
    }

    fn unless_full(free: &mut u64, now: u64, before: u64) -> Option<u64> {
        if *free - now > QUEUE {
            *free = before;
            return None;
        }
        Some(*free)
    }
}

#[cfg(test)]
mod tests {
    use super::super::orders;
    use super::*;

    /// A frame of `bytes` to a host, or to all.
    fn frame(to: Option<u8>, bytes: usize) -> Vec<u8> {
        let mut frame = to.map_or([0xff; 6], |to| [2, 0, 0, 0, 0, to + 1]).to_vec();
        frame.resize(bytes, 0);
        frame
    }

    fn network(orders: &[&str]) -> Switch {
        let mut switch = Switch::new(3, 7);
        orders.iter().for_each(|order| switch.obey(orders::read(order, 3).unwrap()));
        switch
    }

    /// All that comes out: when it was due, and where to.
    fn all(switch: &mut Switch) -> Vec<(u64, usize)> {
        std::iter::from_fn(|| {
            let due = switch.due()?;
            let (to, frame) = switch.take(due)?;
            switch.reuse(frame);
            Some((due, to))
        })
        .collect()
    }

    #[test]
    fn frames_go_where_they_are_sent() {
        assert_eq!(address(0x1ff), "02:00:00:00:02:00");
        let mut switch = network(&[]);
        switch.offer(5, 0, &frame(Some(2), 60));
        switch.offer(6, 1, &frame(None, 60));
        switch.offer(7, 1, &frame(Some(9), 60));
        switch.offer(7, 1, &[2, 0]);
        assert_eq!(all(&mut switch), [(5, 2), (6, 0), (6, 2)]);
    }

    #[test]
    fn delay_and_rate_add_up_and_cards_are_shared() {
        let mut switch = network(&["delay 0.1ms", "rate 1gbit"]);
        // 1,250 bytes take 10 us. The third one goes to the same host as the first two, from another one at the same time.
        for (from, to) in [(0, 1), (0, 1), (2, 1), (0, 2)] {
            switch.offer(0, from, &frame(Some(to), 1250));
        }
        assert_eq!(all(&mut switch), [(110_000, 1), (120_000, 1), (130_000, 1), (130_000, 2)]);
        let mut full = network(&["rate 1mbit"]);
        (0..100).for_each(|_| full.offer(0, 0, &frame(Some(1), 1250)));
        assert_eq!(all(&mut full).len(), 5, "10 ms each, 50 ms at most");
    }

    #[test]
    fn links_are_cut_and_healed() {
        let mut switch = network(&["cut h1 h2"]);
        let tried = |switch: &mut Switch| {
            switch.offer(0, 0, &frame(None, 60));
            switch.offer(0, 2, &frame(Some(1), 60));
            all(switch).iter().map(|(_, to)| *to).collect::<Vec<_>>()
        };
        assert_eq!(tried(&mut switch), [2, 1]);
        for (order, reached) in [("cut h3", vec![]), ("heal h1", vec![1, 2]), ("clear", vec![1, 2, 1])] {
            switch.obey(orders::read(order, 3).unwrap());
            assert_eq!(tried(&mut switch), reached, "{order}");
        }
    }

    #[test]
    fn frames_are_lost_doubled_and_reordered_by_their_shares() {
        let outcome = |order: &str| {
            let mut switch = network(&[order]);
            (0..10_000).for_each(|time| switch.offer(time, 0, &frame(Some(1), 60)));
            all(&mut switch)
        };
        let lost = 10_000 - outcome("loss 5% h1 h2").len();
        assert!((400..600).contains(&lost), "{lost}");
        let doubled = outcome("duplicate 10%").len() - 10_000;
        assert!((850..1150).contains(&doubled), "{doubled}");
        let late = outcome("reorder 1%").iter().filter(|(due, _)| *due >= LATE).count();
        assert!((60..140).contains(&late), "{late}");
        assert_eq!(outcome("loss 100%"), []);
    }
}

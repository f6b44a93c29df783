//! What is under way in a simulated network.

use std::collections::{HashMap, VecDeque};
use std::os::unix::net::UnixStream;

use banyan_memory::Buffer;

use super::Options;
use crate::random::Random;
use crate::{Access, Atomic, Head, Order, Outcome, Refusal, Remote, Token};

pub(super) struct State {
    pub(super) options: Options,
    pub(super) random: Random,
    pub(super) tick: u64,
    pub(super) links: Vec<Link>,
    pub(super) ends: Vec<End>,
    pub(super) registered: HashMap<u64, (Buffer, Access)>,
    pub(super) keys: u64,
    /// Memory that is handed over, by who has filled it and its number.
    pub(super) handovers: HashMap<(usize, u32), Handing>,
    pub(super) sent: u64,
    /// With a clock: when each port is free again. Those of endpoints come before those of nodes.
    pub(super) ports_free: HashMap<usize, u64>,
}

/// The frames from one endpoint to another, as they will arrive.
#[derive(Default)]
pub(super) struct Link {
    pub(super) flight: VecDeque<Flight>,
    /// When the last ordered frame arrives.
    pub(super) last_due: u64,
    pub(super) state: LinkState,
}

#[derive(Default, PartialEq, Eq, Clone, Copy)]
pub(super) enum LinkState {
    #[default]
    Whole,
    /// Broken, and the sending endpoint has not been told yet.
    Broken,
    /// Broken, and the sending endpoint has been told.
    Told,
}

pub(super) struct Flight {
    pub(super) due: u64,
    pub(super) head: Head,
    pub(super) body: Vec<u8>,
}

/// A frame that has not left yet.
pub(super) struct Frame {
    pub(super) head: Head,
    pub(super) order: Order,
    pub(super) body: Body,
}

#[derive(Default)]
pub(super) struct End {
    /// Frames that are accepted, and have not left yet, each with its receiver.
    pub(super) held: VecDeque<(usize, Frame)>,
    /// Frames have left whose memory was needed until then.
    pub(super) sent: Vec<Token>,
    /// It sleeps, or is about to, and has found nothing: time may go on (see `clock`).
    pub(super) waits: bool,
    /// Its process does not use it any more.
    pub(super) gone: bool,
    /// A send or a transfer was refused since the last poll: a poll may find room.
    pub(super) refused: bool,
    pub(super) pending: Vec<Pending>,
    pub(super) lost: VecDeque<(usize, String)>,
    pub(super) wanted: VecDeque<usize>,
    /// What happens rings the bell.
    pub(super) armed: bool,
    /// A pair of sockets: a byte written to the first makes the other one readable.
    pub(super) bell: Option<(UnixStream, UnixStream)>,
    /// Endpoints by whether their business card is here; those without have been named by `wanted`.
    pub(super) has_card: HashMap<usize, bool>,
}

/// A handover buffer: what its process fills, and a copy for the peer it was handed over to, which that one has found or not.
pub(super) struct Handing {
    pub(super) filled: Buffer,
    pub(super) copy: Option<(usize, Buffer)>,
    pub(super) found: bool,
}

impl Handing {
    pub(super) fn is_returned(&self) -> bool {
        self.copy.as_ref().is_none_or(|(_, copy)| self.found && !copy.is_shared())
    }
}

/// The body of a frame that has not left yet.
pub(super) enum Body {
    Bytes(Vec<u8>),
    /// It is read as late as the contract allows.
    Lent(Buffer, Token),
}

/// A one-sided transfer under way.
pub(super) struct Pending {
    pub(super) due: u64,
    pub(super) token: Token,
    pub(super) peer: usize,
    pub(super) remote: Remote,
    pub(super) action: Action,
    pub(super) possible: bool,
}

pub(super) enum Action {
    Get(Vec<Buffer>),
    Put(Vec<Buffer>),
    /// A put whose bytes have left the local memory.
    Write(Vec<u8>),
    Atomic(Atomic, Buffer),
}

/// What one poll hands over.
pub(super) enum News {
    Frame(usize, Head, Vec<u8>),
    Sent(Token),
    Completed(Token, Outcome),
    Down(usize, String),
    Wanted(usize),
}

impl State {
    pub(super) fn at(&self, from: usize, to: usize) -> usize {
        from * self.ends.len() + to
    }

    /// Breaks the link between two endpoints; what is under way between them is lost.
    pub(super) fn cut(&mut self, a: usize, b: usize, cause: &str) {
        let at = self.at(b, a);
        self.links[at].flight.clear();
        self.part(a, b, cause);
    }

    /// Breaks the link between two endpoints; what is under way to `a` still arrives, before it is told.
    pub(super) fn part(&mut self, a: usize, b: usize, cause: &str) {
        let at = self.at(a, b);
        self.links[at].flight.clear();
        for (from, to) in [(a, b), (b, a)] {
            let at = self.at(from, to);
            let link = &mut self.links[at];
            self.ends[from].held.retain(|held| held.0 != to);
            if link.state == LinkState::Whole {
                link.state = LinkState::Broken;
                self.ends[from].lost.push_back((to, cause.to_owned()));
            }
        }
    }

    /// Whether `from` may put one more frame on the link to `to` now.
    pub(super) fn admit(&mut self, from: usize, to: usize) -> Result<(), Refusal> {
        let at = self.at(from, to);
        match self.links[at].state {
            LinkState::Told => return Err(Refusal::Down),
            LinkState::Broken => return Err(Refusal::Busy),
            LinkState::Whole => {}
        }
        if self.options.business_cards && from != to && !self.has_card(from, to) {
            return Err(Refusal::Busy);
        }
        let held = self.ends[from].held.iter().filter(|held| held.0 == to).count();
        let under_way = self.links[at].flight.len() + held;
        // With a clock a receiver need not poll before its time has come.
        let full = under_way >= self.options.depth && self.options.clock.is_none();
        if full || self.random.once_in(self.options.refuse_once_in) {
            self.ends[from].refused = true;
            return Err(Refusal::Busy);
        }
        Ok(())
    }

    fn has_card(&mut self, from: usize, to: usize) -> bool {
        let end = &mut self.ends[from];
        if let Some(&has_card) = end.has_card.get(&to) {
            return has_card;
        }
        end.has_card.insert(to, false);
        end.wanted.push_back(to);
        false
    }

    pub(super) fn accept(&mut self, from: usize, to: usize, frame: Frame) {
        self.sent += 1;
        if self.random.once_in(self.options.break_once_in) {
            return self.cut(from, to, "the simulated link broke");
        }
        // With a clock the frames that leave at one time take ports in an order that does not depend on threads.
        if self.options.holds_frames() {
            self.ends[from].held.push_back((to, frame));
        } else {
            self.leave((from, to), frame);
        }
    }

    /// A frame leaves: its memory is free from here on.
    fn leave(&mut self, ends: (usize, usize), frame: Frame) {
        let Frame { head, order, body } = frame;
        let body = match body {
            Body::Bytes(bytes) => bytes,
            Body::Lent(memory, token) => {
                self.ends[ends.0].sent.push(token);
                bytes_of(&[memory])
            }
        };
        let mut due = self.arrival(ends, &head, body.len());
        let at = self.at(ends.0, ends.1);
        let Link { flight, last_due, .. } = &mut self.links[at];
        if order == Order::Ordered {
            due = due.max(*last_due);
            *last_due = due;
        }
        let place = flight.partition_point(|before| before.due <= due);
        flight.insert(place, Flight { due, head, body });
    }

    /// The memory behind a token is its owner's again.
    pub(super) fn reclaim(&mut self, me: usize, token: Token) {
        let end = &mut self.ends[me];
        end.pending.retain(|pending| pending.token != token);
        end.sent.retain(|sent| *sent != token);
        for (_, frame) in &mut end.held {
            if let Body::Lent(memory, lent) = &frame.body
                && *lent == token
            {
                frame.body = Body::Bytes(bytes_of(std::slice::from_ref(memory)));
            }
        }
    }

    pub(super) fn due(&mut self) -> u64 {
        self.tick + self.random.below(self.options.max_delay as usize + 1) as u64
    }

    /// One tick for endpoint `me`: its held frames leave, frames and reads that are due arrive.
    pub(super) fn advance(&mut self, me: usize) -> (Vec<News>, usize) {
        let left = if self.options.clock.is_some() {
            0
        } else {
            self.tick += 1;
            self.release_held(me)
        };
        self.ends[me].refused = false;
        let mut news = Vec::new();
        for (peer, cause) in std::mem::take(&mut self.ends[me].lost) {
            let (there, back) = (self.at(me, peer), self.at(peer, me));
            if self.links[back].flight.is_empty() {
                self.links[there].state = LinkState::Told;
                news.push(News::Down(peer, cause));
            } else {
                self.ends[me].lost.push_back((peer, cause));
            }
        }
        news.extend(self.ends[me].wanted.drain(..).map(News::Wanted));
        news.extend(self.ends[me].sent.drain(..).map(News::Sent));
        self.take_transfers(me, &mut news);
        self.take_frames(me, &mut news);
        self.ends[me].waits &= news.is_empty();
        (news, left)
    }

    /// The frames that are held leave; gives how many.
    pub(super) fn release_held(&mut self, me: usize) -> usize {
        let held = std::mem::take(&mut self.ends[me].held);
        let left = held.len();
        held.into_iter().for_each(|(to, frame)| self.leave((me, to), frame));
        left
    }

    fn take_transfers(&mut self, me: usize, news: &mut Vec<News>) {
        for mut pending in std::mem::take(&mut self.ends[me].pending) {
            if pending.due > self.tick {
                self.ends[me].pending.push(pending);
                continue;
            }
            if let Action::Put(local) = &pending.action
                && self.options.clock.is_none()
                && self.random.once_in(2)
            {
                pending.action = Action::Write(bytes_of(local));
                news.push(News::Sent(pending.token));
                pending.due = self.due() + 1;
                self.ends[me].pending.push(pending);
                continue;
            }
            let done = pending.possible && self.perform(me, &pending).is_some();
            let outcome = if done { Outcome::Done } else { Outcome::Impossible };
            news.push(News::Completed(pending.token, outcome));
        }
    }

    fn take_frames(&mut self, me: usize, news: &mut Vec<News>) {
        let mut froms: Vec<usize> = (0..self.ends.len()).collect();
        if self.options.clock.is_none() {
            self.random.shuffle(&mut froms);
        }
        let mut room = self.options.batch;
        for from in froms {
            let at = self.at(from, me);
            while room > 0 && self.links[at].flight.front().is_some_and(|f| f.due <= self.tick) {
                let Some(Flight { head, body, .. }) = self.links[at].flight.pop_front() else { break };
                news.push(News::Frame(from, head, body));
                room -= 1;
            }
        }
    }

    /// Does what a transfer is to do; `None`: it is impossible.
    pub(super) fn perform(&self, me: usize, pending: &Pending) -> Option<()> {
        let Pending { peer, remote, action, .. } = pending;
        let (memory, access) = self.registered.get(&remote.key)?;
        let whole = self.links[self.at(me, *peer)].state == LinkState::Whole;
        if !whole || (*access == Access::Read && !matches!(action, Action::Get(_))) {
            return None;
        }
        let offset = remote.addr.checked_sub(memory.address(memory.lo()) as u64)?;
        if offset.checked_add(remote.len)? > memory.len() as u64 {
            return None;
        }
        let there = memory.slice(memory.lo() + offset as isize, remote.len as usize);
        match action {
            Action::Get(local) => {
                let mut at = 0;
                for local in local {
                    local.copy_from(local.lo(), &there, at, local.len());
                    at += local.len() as isize;
                }
            }
            Action::Put(local) => there.write(0, &bytes_of(local)),
            Action::Write(bytes) => there.write(0, bytes),
            Action::Atomic(op, result) => {
                let mut before = [0; 8];
                there.read(0, &mut before);
                there.write(0, &op.apply(u64::from_ne_bytes(before)).to_ne_bytes());
                result.write(result.lo(), &before);
            }
        }
        Some(())
    }
}

/// The bytes of buffers that follow one another.
pub(super) fn bytes_of(local: &[Buffer]) -> Vec<u8> {
    let mut bytes = vec![0; local.iter().map(Buffer::len).sum()];
    let mut rest = &mut bytes[..];
    for local in local {
        let (out, after) = rest.split_at_mut(local.len());
        local.read(local.lo(), out);
        rest = after;
    }
    bytes
}

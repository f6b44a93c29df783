//! A simulated network in one process, under a seed: for tests of code that uses fabrics.
//!
//! Time is virtual: every poll of any endpoint is one tick. A frame is delayed by a random number of ticks,
//! so frames of different peers overtake each other, and frames of one pair never do. Links hold few frames
//! if asked ([`Options::depth`]), so that sends are refused often. They break at random
//! ([`Options::break_once_in`]) or by order ([`Net::cut`]). Endpoints may live on one thread or on many.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use banyan_memory::Buffer;

use crate::random::Random;
use crate::{Caps, Fabric, Get, Head, Peer, Port, Refusal, Remote, Sink, Token, Wake};

/// How the network behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Frames that may be under way from one endpoint to another; more are refused. At least 1.
    pub depth: usize,
    /// Largest body of `send_short`, bytes.
    pub max_short: usize,
    /// Largest body of `send_bcopy`, bytes.
    pub max_bcopy: usize,
    /// `Caps::eager` of the fabric, bytes.
    pub eager: usize,
    /// `Caps::piece` of the fabric, bytes.
    pub piece: usize,
    /// How one-sided reads end.
    pub get: Reads,
    /// Longest delay of a frame or a read, ticks. With 0 it arrives at the next poll.
    pub max_delay: u64,
    /// Frames that one poll hands over at most. At least 1.
    pub batch: usize,
    /// A send for which there is room is refused once in so many times (0: never).
    pub refuse_once_in: u32,
    /// A send breaks its link, and is lost with all frames under way on it, once in so many times (0: never).
    pub break_once_in: u32,
    /// Accepted frames leave the sender only when it polls ([`Fabric::unsent`]).
    pub holds: bool,
    /// An endpoint must be given a peer's business card before it can send to it ([`Fabric::wanted`]); a business card is
    /// the peer's number, little-endian.
    pub business_cards: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            depth: 64,
            max_short: 36,
            max_bcopy: 8192,
            eager: 8192,
            piece: 8192,
            get: Reads::AtOnce,
            max_delay: 8,
            batch: 16,
            refuse_once_in: 0,
            break_once_in: 0,
            holds: false,
            business_cards: false,
        }
    }
}

impl Options {
    /// Two frames a link, refusals for no reason, one frame a poll, frames that leave only on a poll.
    pub fn cramped() -> Self {
        Self { depth: 2, batch: 1, refuse_once_in: 3, holds: true, ..Self::default() }
    }
}

/// How one-sided reads end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    /// `Caps::get` is false.
    Off,
    /// [`Get::Done`].
    AtOnce,
    /// [`Get::Started`], then [`Sink::got`] with [`Get::Done`].
    Later,
    /// `Caps::get` is true, and yet the answer is [`Get::Impossible`].
    Impossible,
    /// [`Get::Started`], then [`Sink::got`] with [`Get::Impossible`].
    ImpossibleLater,
    /// Any but `Off`, at random.
    Mixed,
}

impl Reads {
    /// All of them.
    pub const ALL: [Reads; 6] =
        [Reads::Off, Reads::AtOnce, Reads::Later, Reads::Impossible, Reads::ImpossibleLater, Reads::Mixed];
}

/// The network: makes endpoints, breaks links, tells what is under way.
#[derive(Clone)]
pub struct Net(Arc<Shared>);

impl Net {
    /// A network of `n` endpoints, `Peer(0)` to `Peer(n - 1)`.
    pub fn new(n: usize, seed: u64, options: Options) -> Self {
        assert!(options.depth > 0 && options.batch > 0, "depth and batch are at least 1");
        let state = State {
            random: Random::new(seed),
            tick: 0,
            links: (0..n * n).map(|_| Link::default()).collect(),
            ends: (0..n).map(|_| End::default()).collect(),
            exposed: HashMap::new(),
            keys: 0,
            sent: 0,
            options,
        };
        Self(Arc::new(Shared { state: Mutex::new(state), news: Condvar::new() }))
    }

    /// The fabric of endpoint `i`. To be called once for each.
    pub fn endpoint(&self, i: usize) -> SimFabric {
        assert!(i < self.0.lock().ends.len(), "no endpoint {i}");
        SimFabric { me: i, shared: self.0.clone() }
    }

    /// All endpoints, in order.
    pub fn endpoints(&self) -> Vec<SimFabric> {
        let n = self.0.lock().ends.len();
        (0..n).map(|i| self.endpoint(i)).collect()
    }

    /// Breaks the link between `a` and `b`: frames under way are lost, both are told by their next poll.
    pub fn cut(&self, a: usize, b: usize, cause: &str) {
        self.0.lock().cut(a, b, cause);
        self.0.wake([a, b].into_iter());
    }

    /// The process behind endpoint `i` dies: all others are told.
    pub fn kill(&self, i: usize, cause: &str) {
        let mut state = self.0.lock();
        let all = 0..state.ends.len();
        all.clone().filter(|&j| j != i).for_each(|j| state.cut(i, j, cause));
        drop(state);
        self.0.wake(all);
    }

    /// True if nothing is under way: no frame, no read, no report of a broken link.
    pub fn is_idle(&self) -> bool {
        let state = self.0.lock();
        state.links.iter().all(|l| l.flight.is_empty() && l.held.is_empty())
            && state.ends.iter().all(|e| e.reads.is_empty() && e.lost.is_empty())
    }

    /// Frames accepted so far.
    pub fn sent(&self) -> u64 {
        self.0.lock().sent
    }

    /// Polls so far.
    pub fn ticks(&self) -> u64 {
        self.0.lock().tick
    }
}

struct Shared {
    state: Mutex<State>,
    news: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Something has happened: ends the sleep of these endpoints.
    fn wake(&self, ends: impl Iterator<Item = usize>) {
        let mut state = self.lock();
        for i in ends {
            let end = &mut state.ends[i];
            if let Some((bell, _)) = end.bell.as_mut().filter(|_| std::mem::take(&mut end.armed)) {
                // A full socket is readable already.
                let _ = bell.write(&[1]);
            }
        }
        self.news.notify_all();
    }
}

struct State {
    options: Options,
    random: Random,
    tick: u64,
    links: Vec<Link>,
    ends: Vec<End>,
    exposed: HashMap<u64, Buffer>,
    keys: u64,
    sent: u64,
}

/// The frames from one endpoint to another.
#[derive(Default)]
struct Link {
    /// Accepted, and not sent yet.
    held: VecDeque<(Head, Vec<u8>)>,
    flight: VecDeque<Flight>,
    last_due: u64,
    state: LinkState,
}

#[derive(Default, PartialEq, Eq, Clone, Copy)]
enum LinkState {
    #[default]
    Whole,
    /// Broken, and the sending endpoint has not been told yet.
    Broken,
    /// Broken, and the sending endpoint has been told.
    Told,
}

struct Flight {
    due: u64,
    head: Head,
    body: Vec<u8>,
}

#[derive(Default)]
struct End {
    reads: Vec<PendingRead>,
    lost: VecDeque<(usize, String)>,
    wanted: VecDeque<usize>,
    /// What happens rings the bell.
    armed: bool,
    /// A pair of sockets: a byte written to the first makes the other one readable.
    bell: Option<(UnixStream, UnixStream)>,
    /// Endpoints by whether their business card is here; those without have been named by `wanted`.
    has_card: HashMap<usize, bool>,
}

struct PendingRead {
    due: u64,
    token: Token,
    peer: usize,
    remote: Remote,
    local: Buffer,
    possible: bool,
}

/// What one poll hands over.
enum News {
    Frame(usize, Head, Vec<u8>),
    Got(Token, Get),
    Down(usize, String),
}

impl State {
    fn at(&self, from: usize, to: usize) -> usize {
        from * self.ends.len() + to
    }

    fn cut(&mut self, a: usize, b: usize, cause: &str) {
        for (from, to) in [(a, b), (b, a)] {
            let at = self.at(from, to);
            let link = &mut self.links[at];
            link.flight.clear();
            link.held.clear();
            if link.state == LinkState::Whole {
                link.state = LinkState::Broken;
                self.ends[from].lost.push_back((to, cause.to_owned()));
            }
        }
    }

    /// Whether `from` may put one more frame on the link to `to` now.
    fn admit(&mut self, from: usize, to: usize) -> Result<(), Refusal> {
        let at = self.at(from, to);
        match self.links[at].state {
            LinkState::Told => return Err(Refusal::Down),
            LinkState::Broken => return Err(Refusal::Busy),
            LinkState::Whole => {}
        }
        if self.options.business_cards && from != to && !self.has_card(from, to) {
            return Err(Refusal::Busy);
        }
        let under_way = self.links[at].flight.len() + self.links[at].held.len();
        if under_way >= self.options.depth || self.random.once_in(self.options.refuse_once_in) {
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

    fn accept(&mut self, from: usize, to: usize, head: Head, body: Vec<u8>) {
        self.sent += 1;
        if self.random.once_in(self.options.break_once_in) {
            return self.cut(from, to, "the simulated link broke");
        }
        let at = self.at(from, to);
        if self.options.holds {
            self.links[at].held.push_back((head, body));
        } else {
            self.launch(at, head, body);
        }
    }

    fn launch(&mut self, at: usize, head: Head, body: Vec<u8>) {
        let due = self.due().max(self.links[at].last_due);
        self.links[at].last_due = due;
        self.links[at].flight.push_back(Flight { due, head, body });
    }

    fn due(&mut self) -> u64 {
        self.tick + self.random.below(self.options.max_delay as usize + 1) as u64
    }

    /// One tick for endpoint `me`: its held frames leave, frames and reads that are due arrive.
    fn advance(&mut self, me: usize) -> (Vec<News>, usize) {
        self.tick += 1;
        let left = self.release_held(me);
        let mut news: Vec<News> =
            self.ends[me].lost.drain(..).map(|(peer, cause)| News::Down(peer, cause)).collect();
        for item in &news {
            let News::Down(peer, _) = item else { continue };
            let at = self.at(me, *peer);
            self.links[at].state = LinkState::Told;
        }
        self.take_reads(me, &mut news);
        self.take_frames(me, &mut news);
        (news, left)
    }

    fn release_held(&mut self, me: usize) -> usize {
        let mut left = 0;
        for to in 0..self.ends.len() {
            let at = self.at(me, to);
            let held = std::mem::take(&mut self.links[at].held);
            left += held.len();
            held.into_iter().for_each(|(head, body)| self.launch(at, head, body));
        }
        left
    }

    fn take_reads(&mut self, me: usize, news: &mut Vec<News>) {
        let reads = std::mem::take(&mut self.ends[me].reads);
        for read in reads {
            if read.due > self.tick {
                self.ends[me].reads.push(read);
                continue;
            }
            let done = read.possible && self.copy(me, &read);
            news.push(News::Got(read.token, if done { Get::Done } else { Get::Impossible }));
        }
    }

    fn take_frames(&mut self, me: usize, news: &mut Vec<News>) {
        let mut froms: Vec<usize> = (0..self.ends.len()).collect();
        self.random.shuffle(&mut froms);
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

    fn copy(&self, me: usize, read: &PendingRead) -> bool {
        if self.links[self.at(me, read.peer)].state != LinkState::Whole {
            return false;
        }
        let Some(memory) = self.exposed.get(&read.remote.key) else { return false };
        let offset = read.remote.addr.wrapping_sub(memory.address(memory.lo()) as u64);
        let len = read.remote.len as usize;
        if offset.checked_add(read.remote.len).is_none_or(|end| end > memory.len() as u64) {
            return false;
        }
        read.local.copy_from(read.local.lo(), memory, memory.lo() + offset as isize, len);
        true
    }

    fn is_quiet(&self, me: usize) -> bool {
        let n = self.ends.len();
        let end = &self.ends[me];
        end.lost.is_empty()
            && end.reads.is_empty()
            && (0..n).all(|i| {
                self.links[self.at(i, me)].flight.is_empty() && self.links[self.at(me, i)].held.is_empty()
            })
    }
}

/// One endpoint of a [`Net`].
pub struct SimFabric {
    me: usize,
    shared: Arc<Shared>,
}

impl SimFabric {
    fn send(
        &self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal> {
        let to = peer.0 as usize;
        self.shared.lock().admit(self.me, to)?;
        let mut body = vec![0; len];
        fill(&mut body);
        self.shared.lock().accept(self.me, to, *head, body);
        self.shared.wake([self.me, to].into_iter());
        Ok(())
    }
}

/// Delivers a frame as a stream does: the first half of the body is there when the sink is asked for memory.
fn deliver(sink: &mut impl Sink, peer: Peer, head: &Head, body: &[u8]) {
    let Some(memory) = sink.place(peer, head, body.len()) else { return sink.frame(peer, head, body) };
    let half = body.len() / 2;
    memory.write(0, &body[..half]);
    if let Some(memory) = sink.place(peer, head, body.len()) {
        memory.write(half as isize, &body[half..]);
    }
    sink.placed(peer, head, body.len());
}

impl Port for SimFabric {
    fn caps(&self, _peer: Peer) -> Caps {
        let state = self.shared.lock();
        let Options { max_short, max_bcopy, eager, piece, get, .. } = state.options;
        let piece = piece.min(max_bcopy);
        Caps { max_short, max_bcopy, eager, piece, get: get != Reads::Off, alpha: 1e-6, beta: 1e-10 }
    }

    fn send_short(&mut self, peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal> {
        assert!(body.len() <= self.caps(peer).max_short, "{} bytes are not short", body.len());
        self.send(peer, head, body.len(), &mut |to| to.copy_from_slice(body))
    }

    fn send_bcopy(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal> {
        assert!(len <= self.caps(peer).max_bcopy, "{len} bytes are too many for one frame");
        self.send(peer, head, len, fill)
    }

    fn expose(&mut self, _peer: Peer, memory: &Buffer) -> Remote {
        let mut state = self.shared.lock();
        state.keys += 1;
        let key = state.keys;
        state.exposed.insert(key, memory.clone());
        Remote { addr: memory.address(memory.lo()) as u64, len: memory.len() as u64, key }
    }

    fn withdraw(&mut self, _peer: Peer, remote: Remote) {
        self.shared.lock().exposed.remove(&remote.key);
    }

    fn get(&mut self, peer: Peer, remote: Remote, local: &Buffer, token: Token) -> Get {
        assert_eq!(remote.len, local.len() as u64, "a read fills its buffer");
        let mut state = self.shared.lock();
        let how = match state.options.get {
            Reads::Mixed => [Reads::AtOnce, Reads::Later, Reads::Impossible, Reads::ImpossibleLater]
                [state.random.below(4)],
            how => how,
        };
        let possible = matches!(how, Reads::AtOnce | Reads::Later);
        let due = state.due() + 1;
        let read = PendingRead { due, token, peer: peer.0 as usize, remote, local: local.clone(), possible };
        match how {
            Reads::Later | Reads::ImpossibleLater => {
                state.ends[self.me].reads.push(read);
                Get::Started
            }
            Reads::AtOnce if state.copy(self.me, &read) => Get::Done,
            _ => Get::Impossible,
        }
    }

    fn recall(&mut self, _peer: Peer, token: Token) {
        self.shared.lock().ends[self.me].reads.retain(|read| read.token != token);
    }
}

impl Fabric for SimFabric {
    fn reaches(&self, peer: Peer) -> bool {
        (peer.0 as usize) < self.shared.lock().ends.len()
    }

    fn connect(&mut self, peer: Peer, business_card: &[u8]) -> Result<(), String> {
        if business_card != peer.0.to_le_bytes() {
            return Err(format!("the business card {business_card:?} is not that of {peer:?}"));
        }
        self.shared.lock().ends[self.me].has_card.insert(peer.0 as usize, true);
        Ok(())
    }

    fn wanted(&mut self) -> Option<Peer> {
        self.shared.lock().ends[self.me].wanted.pop_front().map(|i| Peer(i as u32))
    }

    fn poll(&mut self, sink: &mut impl Sink) -> usize {
        let (news, left, asks) = {
            let mut state = self.shared.lock();
            let (news, left) = state.advance(self.me);
            (news, left, (state.tick / 2).is_multiple_of(2))
        };
        if left > 0 {
            let ends = 0..self.shared.lock().ends.len();
            self.shared.wake(ends);
        }
        let events = news.len() + left;
        for item in news {
            match item {
                News::Frame(from, head, body) if asks => deliver(sink, Peer(from as u32), &head, &body),
                News::Frame(from, head, body) => sink.frame(Peer(from as u32), &head, &body),
                News::Got(token, outcome) => sink.got(token, outcome),
                News::Down(peer, cause) => sink.down(Peer(peer as u32), &cause),
            }
        }
        events
    }

    fn unsent(&self) -> bool {
        let state = self.shared.lock();
        (0..state.ends.len()).any(|to| !state.links[state.at(self.me, to)].held.is_empty())
    }

    fn arm(&mut self, wake: Wake) {
        self.shared.lock().ends[self.me].armed = wake == Wake::Descriptor;
    }

    fn disarm(&mut self) {
        let mut state = self.shared.lock();
        let end = &mut state.ends[self.me];
        end.armed = false;
        if let Some((_, ear)) = &end.bell {
            while (&mut &*ear).read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {}
        }
    }

    fn has_news(&mut self) -> bool {
        !self.shared.lock().is_quiet(self.me)
    }

    fn descriptor(&mut self) -> io::Result<OwnedFd> {
        let mut state = self.shared.lock();
        let bell = &mut state.ends[self.me].bell;
        if bell.is_none() {
            let (bell_end, ear) = UnixStream::pair()?;
            bell_end.set_nonblocking(true)?;
            ear.set_nonblocking(true)?;
            *bell = Some((bell_end, ear));
        }
        let Some((_, ear)) = bell else { return Err(io::ErrorKind::NotFound.into()) };
        Ok(ear.try_clone()?.into())
    }

    fn sleep(&mut self, deadline: Option<Instant>) {
        let mut state = self.shared.lock();
        while state.is_quiet(self.me) {
            let left = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return;
            }
            let left = left.min(Duration::from_secs(3600));
            state = self.shared.news.wait_timeout(state, left).unwrap_or_else(|p| p.into_inner()).0;
        }
    }
}

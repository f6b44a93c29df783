//! A simulated network in one process, under a seed: for tests of code that uses fabrics.
//!
//! Time is virtual: every poll of any endpoint is one tick. A frame is delayed by a random number of ticks,
//! so frames of different peers overtake each other, and frames of one pair do if they may ([`Order::Unordered`]). Links hold few frames
//! if asked ([`Options::depth`]), so that sends are refused often. They break at random
//! ([`Options::break_once_in`]) or by order ([`Net::cut`]). Endpoints may live on one thread or on many. With a [`Clock`]
//! time goes by what the links cost, and shows what a program would take.

mod clock;
mod options;
mod state;

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use banyan_memory::{BOUNCE_BUFFER, Buffer, HeapBuffer};

pub use clock::{Clock, LinkCost};
pub use options::{OneSided, Options};
use state::{Action, Body, End, Frame, Handing, Link, News, Pending, State, bytes_of};

use crate::random::Random;
use crate::{
    Access, Atomic, Caps, DeviceMoves, Fabric, Handed, Handover, Head, Kinds, Order, Peer, Port, Refusal,
    RegisterError, Remote, Sent, Sink, Token, Transfer, Wake,
};

/// The network: makes endpoints, breaks links, tells what is under way.
#[derive(Clone)]
pub struct Net(Arc<Shared>);

impl Net {
    /// A network of `n` endpoints, `Peer(0)` to `Peer(n - 1)`.
    pub fn new(n: usize, seed: u64, options: Options) -> Self {
        assert!(options.depth > 0 && options.batch > 0, "depth and batch are at least 1");
        if let Some(clock) = &options.clock {
            assert_eq!(clock.nodes.len(), n, "each endpoint is on a node");
            assert_eq!(options.refuse_once_in, 0, "who was refused would wait for polls, which take no time");
        }
        let state = State {
            random: Random::new(seed),
            tick: 0,
            links: (0..n * n).map(|_| Link::default()).collect(),
            ends: (0..n).map(|_| End::default()).collect(),
            registered: HashMap::new(),
            keys: 0,
            handovers: HashMap::new(),
            sent: 0,
            ports_free: HashMap::new(),
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
        all.clone().filter(|&j| j != i).for_each(|j| state.part(j, i, cause));
        drop(state);
        self.0.wake(all);
    }

    /// True if nothing is under way: no frame, no transfer, no report of a broken link.
    pub fn is_idle(&self) -> bool {
        let state = self.0.lock();
        state.links.iter().all(|l| l.flight.is_empty())
            && state
                .ends
                .iter()
                .all(|e| e.held.is_empty() && e.sent.is_empty() && e.pending.is_empty() && e.lost.is_empty())
    }

    /// Handover buffers that are in use, or with peers.
    pub fn handovers(&self) -> usize {
        let state = self.0.lock();
        state
            .handovers
            .values()
            .filter(|handing| handing.filled.is_shared() || !handing.is_returned())
            .count()
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
        order: Order,
        body: impl FnOnce() -> Body,
    ) -> Result<(), Refusal> {
        let to = peer.0 as usize;
        self.shared.lock().admit(self.me, to)?;
        let body = body();
        self.shared.lock().accept(self.me, to, Frame { head: *head, order, body });
        self.shared.wake([self.me, to].into_iter());
        Ok(())
    }
}

impl SimFabric {
    fn start(&self, peer: Peer, remote: Remote, action: Action, token: Token) -> Transfer {
        let mut state = self.shared.lock();
        let (how, len) = match &action {
            Action::Get(local) => (state.options.get, local.iter().map(Buffer::len).sum()),
            Action::Put(local) => (state.options.put, local.iter().map(Buffer::len).sum()),
            Action::Write(bytes) => (state.options.put, bytes.len()),
            Action::Atomic(_, result) => (state.options.atomics, result.len()),
        };
        assert_eq!(remote.len, len as u64, "a transfer takes all of its buffers");
        let once_in = state.options.refuse_once_in;
        if state.random.once_in(once_in) {
            state.ends[self.me].refused = true;
            return Transfer::Busy;
        }
        let how = match how {
            OneSided::Mixed => OneSided::ENDS[state.random.below(OneSided::ENDS.len())],
            how => how,
        };
        let possible = matches!(how, OneSided::AtOnce | OneSided::Later);
        let due = if state.options.clock.is_some() { clock::NOT_YET } else { state.due() + 1 };
        let pending = Pending { due, token, peer: peer.0 as usize, remote, action, possible };
        match how {
            OneSided::Later | OneSided::ImpossibleLater => {
                state.ends[self.me].pending.push(pending);
                Transfer::Started
            }
            OneSided::AtOnce if state.options.clock.is_some() => {
                state.ends[self.me].pending.push(pending);
                Transfer::Started
            }
            OneSided::AtOnce if state.perform(self.me, &pending).is_some() => Transfer::Done,
            _ => Transfer::Impossible,
        }
    }
}

impl Drop for SimFabric {
    /// The others need not wait for this endpoint any more.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.ends[self.me].gone = true;
        let reached = state.wait(self.me);
        drop(state);
        self.shared.wake(reached.into_iter());
    }
}

/// Delivers a frame as a stream does: the first half of the body is there when the sink is asked for memory.
fn deliver(sink: &mut impl Sink, peer: Peer, head: &Head, body: &[u8]) {
    let Some(memory) = sink.landing(peer, head, body.len()) else { return sink.frame(peer, head, body) };
    let half = body.len() / 2;
    memory.write(0, &body[..half]);
    if let Some(memory) = sink.landing(peer, head, body.len()) {
        memory.write(half as isize, &body[half..]);
    }
    sink.landed(peer, head, body.len());
}

impl Port for SimFabric {
    fn caps(&self, peer: Peer) -> Caps {
        let state = self.shared.lock();
        let clock = state.options.clock.as_ref();
        let (alpha, beta) = clock.map_or((1e-6, 1e-10), |clock| clock.alpha_beta(self.me, peer.0 as usize));
        let Options { max_short, max_bcopy, eager, piece, get, prefers_get, put, atomics, .. } =
            state.options;
        let host = |how| Kinds::HOST.only_if(how != OneSided::Off);
        Caps {
            max_short,
            max_bcopy,
            eager,
            piece: piece.min(max_bcopy),
            get: host(get),
            put: host(put),
            atomics: host(atomics),
            prefers_get,
            alpha,
            beta,
        }
    }

    fn whole_short(&self) -> usize {
        self.caps(Peer(self.me as u32)).whole_short()
    }

    fn send_short(&mut self, peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal> {
        assert!(body.len() <= self.caps(peer).max_short, "{} bytes are not short", body.len());
        self.send(peer, head, Order::Ordered, || Body::Bytes(body.to_vec()))
    }

    fn send_bcopy(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal> {
        assert!(len <= self.caps(peer).max_bcopy, "{len} bytes are too many for one frame");
        self.send(peer, head, Order::Ordered, || {
            let mut body = vec![0; len];
            fill(&mut body);
            Body::Bytes(body)
        })
    }

    fn send_from(
        &mut self,
        peer: Peer,
        head: &Head,
        (memory, at, len): (&Buffer, isize, usize),
        token: Option<Token>,
        order: Order,
    ) -> Result<Sent, Refusal> {
        let memory = memory.slice(at, len);
        let Some(token) = token.filter(|_| self.shared.lock().options.holds_frames()) else {
            return self.send(peer, head, order, || Body::Bytes(bytes_of(&[memory]))).map(|()| Sent::Done);
        };
        self.send(peer, head, order, || Body::Lent(memory, token)).map(|()| Sent::Started)
    }

    fn register(&mut self, _peer: Peer, memory: &Buffer, access: Access) -> Result<Remote, RegisterError> {
        let mut state = self.shared.lock();
        if !memory.kind().is_host_accessible() && !state.options.moves_devices {
            return Err(RegisterError::Unsupported);
        }
        let once_in = state.options.refuse_registration_once_in;
        if state.random.once_in(once_in) {
            return Err(RegisterError::NoRoom);
        }
        state.keys += 1;
        let key = state.keys;
        state.registered.insert(key, (memory.clone(), access));
        Ok(Remote { addr: memory.address(memory.lo()) as u64, len: memory.len() as u64, key })
    }

    fn withdraw(&mut self, _peer: Peer, remote: Remote) {
        self.shared.lock().registered.remove(&remote.key);
    }

    fn handover(&mut self, _peer: Peer, _near: &Buffer) -> Option<Handover> {
        let (mut state, me) = (self.shared.lock(), self.me);
        state.handovers.retain(|_, handing| handing.filled.is_shared() || !handing.is_returned());
        let numbers = 0..state.options.handovers as u32;
        let number = numbers.clone().find(|number| !state.handovers.contains_key(&(me, *number)))?;
        let filled = HeapBuffer::zeroed(BOUNCE_BUFFER);
        let new = Handing { filled: filled.clone(), copy: None, found: false };
        state.handovers.insert((me, number), new);
        let free = numbers.clone().filter(|number| !state.handovers.contains_key(&(me, *number))).count();
        Some(Handover { memory: filled, number, scarce: 2 * free < numbers.len() })
    }

    fn hand_over(&mut self, peer: Peer, head: &Head, handover: &Handover, len: usize) -> Result<(), Refusal> {
        let number = handover.number;
        let set = |copy: Option<(usize, Buffer)>| {
            let mut state = self.shared.lock();
            let handing = state.handovers.get_mut(&(self.me, number)).expect("it is the caller's");
            assert!(handing.copy.is_none() || copy.is_none(), "it is handed over once");
            handing.copy = copy;
        };
        let copy = HeapBuffer::copy_of(&bytes_of(&[handover.memory.slice(0, len)]));
        set(Some((peer.0 as usize, copy)));
        let body = Handed { number, len: len as u32 }.encode();
        self.send(peer, head, Order::Ordered, || Body::Bytes(body.to_vec())).inspect_err(|_| set(None))
    }

    fn is_returned(&mut self, _peer: Peer, number: u32) -> bool {
        self.shared.lock().handovers.get(&(self.me, number)).is_none_or(Handing::is_returned)
    }

    fn handed(&mut self, peer: Peer, handed: Handed, _near: &Buffer) -> Option<Buffer> {
        let mut state = self.shared.lock();
        let handing = state.handovers.get_mut(&(peer.0 as usize, handed.number))?;
        let (to, copy) = handing.copy.as_ref()?;
        let right = *to == self.me && copy.len() == handed.len as usize && !handing.found;
        handing.found |= right;
        right.then(|| copy.clone())
    }

    fn get(&mut self, peer: Peer, remote: Remote, local: &[Buffer], token: Token) -> Transfer {
        if !local.iter().all(|memory| memory.kind().is_host_accessible()) {
            let mut state = self.shared.lock();
            let Options { moves_devices, refuse_registration_once_in, .. } = state.options;
            if !moves_devices || state.random.once_in(refuse_registration_once_in) {
                return Transfer::Impossible;
            }
        }
        self.start(peer, remote, Action::Get(local.to_vec()), token)
    }

    fn get_together(&mut self, peer: Peer, gets: &mut dyn Iterator<Item = (Remote, Buffer)>) -> usize {
        let mut state = self.shared.lock();
        let Options { get, clock, .. } = &state.options;
        let at_once = matches!(get, OneSided::AtOnce | OneSided::Mixed) && clock.is_none();
        if !at_once || state.random.once_in(2) {
            return 0;
        }
        let read = |(remote, local): (Remote, Buffer)| {
            let (action, peer) = (Action::Get(vec![local]), peer.0 as usize);
            let pending = Pending { due: 0, token: Token(0), peer, remote, action, possible: true };
            state.perform(self.me, &pending)
        };
        gets.map_while(read).count()
    }

    fn device_moves(&mut self, _peer: Peer) -> DeviceMoves {
        if self.shared.lock().options.moves_devices { DeviceMoves::ByNetwork } else { DeviceMoves::Never }
    }

    fn put(&mut self, peer: Peer, remote: Remote, local: &[Buffer], token: Token) -> Transfer {
        self.start(peer, remote, Action::Put(local.to_vec()), token)
    }

    fn atomic(&mut self, peer: Peer, word: Remote, op: Atomic, result: &Buffer, token: Token) -> Transfer {
        self.start(peer, word, Action::Atomic(op, result.clone()), token)
    }

    fn reclaim(&mut self, _peer: Peer, token: Token) {
        self.shared.lock().reclaim(self.me, token);
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
                News::Sent(token) => sink.sent(token),
                News::Completed(token, outcome) => sink.completed(token, outcome),
                News::Down(peer, cause) => sink.down(Peer(peer as u32), &cause),
                News::Wanted(peer) => sink.wanted(Peer(peer as u32)),
            }
        }
        events
    }

    fn unsent(&self) -> bool {
        let state = self.shared.lock();
        state.options.clock.is_none() && !state.ends[self.me].held.is_empty()
    }

    fn arm(&mut self, wake: Wake) {
        let mut state = self.shared.lock();
        state.ends[self.me].armed = wake == Wake::Descriptor;
        let reached = state.wait(self.me);
        drop(state);
        self.shared.wake(reached.into_iter());
    }

    fn disarm(&mut self) {
        let mut state = self.shared.lock();
        let end = &mut state.ends[self.me];
        end.armed = false;
        end.waits = false;
        if let Some((_, ear)) = &end.bell {
            while (&mut &*ear).read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {}
        }
    }

    /// Peers are threads, which need a core as the kernel would.
    fn by_kernel(&self) -> bool {
        true
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

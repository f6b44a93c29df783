//! Random programs of sends, receives, probes and cancels, each outcome compared with the oracle's.

use std::collections::HashMap;

use banyan_memory::Buffer;
use banyan_transport::{Class, Head, Outcome, Sink, Token};

use super::oracle::{Identity, Oracle, Posted};
use super::*;
use crate::wire::{self, Kind};
use crate::{Fault, MsgId, ReceiveBypass};

/// A message that some process was told to send.
struct Sent {
    from: usize,
    class: Class,
    bytes: Vec<u8>,
    tag: i32,
    rank: u32,
    sync: bool,
    /// The send was cancelled before its envelope left.
    never_left: bool,
    /// The receiver had not matched the message when the sender cancelled it.
    dropped: bool,
    request: Option<ReqId>,
}

/// A receive, or a message that was probed out of matching.
struct Received {
    at: usize,
    class: Class,
    data: Data,
    cancelled: bool,
    request: Option<ReqId>,
    message: Option<MsgId>,
}

/// All that was sent from one process to another in one class, in order.
type Lanes = HashMap<(usize, usize, Class), Vec<usize>>;

struct Program {
    random: Random,
    world: World,
    oracles: Vec<Oracle>,
    sent: Vec<Sent>,
    lanes: Lanes,
    received: Vec<Received>,
    /// Sends and receives with a request, by their index.
    open_sends: Vec<usize>,
    open_receives: Vec<usize>,
    /// Keyed messages: (from, to, context, key, length), and which ends are started.
    keyed: Vec<(usize, usize, u64, u64, usize, bool, bool)>,
}

/// A sink that shows the oracle each frame.
struct Tap<'a, S> {
    at: usize,
    p2p: &'a mut S,
    oracle: &'a mut Oracle,
    sent: &'a mut Vec<Sent>,
    lanes: &'a Lanes,
}

impl<S: Sink> Sink for Tap<'_, S> {
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        self.oracle.frame(peer, head);
        if head.class == Class::P2p && head.kind == Kind::Cancel as u8 {
            let request = ReqId(wire::id(body).unwrap());
            let lane = &self.lanes[&(peer.0 as usize, self.at, Class::P2p)];
            let mut nth = 0;
            for &m in lane.iter() {
                if self.sent[m].request == Some(request) {
                    self.sent[m].dropped |= self.oracle.forget((peer.0 as usize, Class::P2p, nth));
                }
                nth += usize::from(!self.sent[m].never_left);
            }
        }
        self.p2p.frame(peer, head, body);
    }

    fn place(&mut self, peer: Peer, head: &Head, len: usize) -> Option<Buffer> {
        self.p2p.place(peer, head, len)
    }

    fn placed(&mut self, peer: Peer, head: &Head, len: usize) {
        self.oracle.frame(peer, head);
        self.p2p.placed(peer, head, len);
    }

    fn completed(&mut self, token: Token, outcome: Outcome) {
        self.p2p.completed(token, outcome);
    }

    fn down(&mut self, peer: Peer, cause: &str) {
        panic!("{peer:?} is down: {cause}");
    }
}

const TAGS: usize = 3;
const CONTEXTS: usize = 2;

impl Program {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let n = 1 + random.below(5);
        let options = Options {
            max_short: [0, 16, 36, 200][random.below(4)],
            max_bcopy: [4096, 8192, 10_000][random.below(3)],
            ..any_network(&mut random)
        };
        let config = Config::new([0, 2000, 50_000, 4 << 20][random.below(4)], n as u32);
        let keyed = (0..random.below(60))
            .map(|i| {
                let (from, to) = (random.below(n), random.below(n));
                let len = [8, 300, 9000, 40_000][random.below(4)];
                (from, to, random.below(CONTEXTS) as u64, (i as u64) << (i % 50), len, false, false)
            })
            .collect();
        Self {
            world: World::new(n, random.word(), options, config),
            oracles: (0..n).map(|_| Oracle::default()).collect(),
            sent: Vec::new(),
            lanes: HashMap::new(),
            received: Vec::new(),
            open_sends: Vec::new(),
            open_receives: Vec::new(),
            keyed,
            random,
        }
    }

    fn run(&mut self) {
        let n = self.world.ends.len();
        let (steps, eagerness) = (200 + self.random.below(600), 1 + self.random.below(6));
        for _ in 0..steps {
            let at = self.random.below(n);
            match self.random.below(12) {
                0..4 => self.send(at),
                4..7 => self.receive(at),
                7 => self.probe(at),
                8 => self.receive_probed(at),
                9 => self.cancel(at),
                _ => self.keyed(),
            }
            (0..self.random.below(eagerness)).for_each(|_| self.turn());
        }
        self.drain();
    }

    /// Receives all that was sent, then withdraws the receives that are left.
    fn drain(&mut self) {
        let n = self.world.ends.len();
        while !self.keyed.iter().all(|k| k.5 && k.6) {
            self.keyed();
        }
        for round in 0.. {
            assert!(round < 400_000, "no end: {:?}", self.waits());
            self.turn();
            (0..n).for_each(|at| self.receive_probed(at));
            for (at, ctx) in (0..n).flat_map(|at| (0..CONTEXTS as u64).map(move |ctx| (at, ctx))) {
                if self.world.ends[at].p2p.probe(ctx, None, None).is_some() {
                    self.receive_any(at, ctx);
                }
            }
            let quiet = |e: &End| e.p2p.idle() && !e.p2p.has_work() && !e.port.unsent();
            let over = self.world.net.is_idle()
                && self.world.ends.iter().all(quiet)
                && self.oracles.iter().all(|o| o.waiting() == 0)
                && self.received.iter().all(|r| r.message.is_none());
            if over {
                break;
            }
        }
        for r in 0..self.received.len() {
            self.cancel_receive(r);
        }
        self.check();
        assert!(self.received.iter().all(|r| r.request.is_none()), "{:?}", self.waits());
        assert!(self.sent.iter().all(|s| s.request.is_none()), "{:?}", self.waits());
        for end in &self.world.ends {
            let stats = end.p2p.stats();
            assert_eq!((stats.buffered, stats.misbehaved), (0, 0));
        }
    }

    fn waits(&self) -> Vec<crate::Wait> {
        self.world.ends.iter().flat_map(|e| e.p2p.waits()).collect()
    }

    fn turn(&mut self) {
        for at in 0..self.world.ends.len() {
            let End { p2p, port } = &mut self.world.ends[at];
            let (oracle, sent, lanes) = (&mut self.oracles[at], &mut self.sent, &self.lanes);
            port.poll(&mut Tap { at, p2p, oracle, sent, lanes });
            p2p.progress(port);
        }
        self.check();
    }

    fn data(&mut self, len: usize) -> Data {
        if self.random.once_in(3) { holey(len) } else { room(len) }
    }

    fn len(&mut self) -> usize {
        let most = [1, 70, 5000, 20_000, 200_000][self.random.below(5)];
        self.random.below(most)
    }

    fn send(&mut self, from: usize) {
        let n = self.world.ends.len();
        let (to, len) = (self.random.below(n), self.len());
        let bytes = pattern(self.sent.len() as u64, len);
        let data = self.data(len);
        data.cursor().unpack(&data, &bytes);
        let (ctx, tag) = (self.random.below(CONTEXTS) as u64, self.random.below(TAGS) as i32);
        let mode = [Mode::Standard, Mode::Sync, Mode::Ready, Mode::Buffered][self.random.below(4)];
        let src_rank = rank(from, ctx);
        let End { p2p, port } = &mut self.world.ends[from];
        let args = SendArgs { peer: Peer(to as u32), ctx, tag, src_rank, data: &data, mode };
        let started = p2p.send(port, args);
        let started = settled(p2p, started);
        if mode == Mode::Buffered {
            data.cursor().unpack(&data, &pattern(!0, len));
        }
        let sync = mode == Mode::Sync;
        self.note_sent(from, to, Class::P2p, bytes, (tag, src_rank, sync), started);
    }

    fn note_sent(
        &mut self,
        from: usize,
        to: usize,
        class: Class,
        bytes: Vec<u8>,
        (tag, rank, sync): (i32, u32, bool),
        started: Started,
    ) {
        let m = self.sent.len();
        let request = None;
        self.sent.push(Sent {
            from,
            class,
            bytes,
            tag,
            rank,
            sync,
            never_left: false,
            dropped: false,
            request,
        });
        self.lanes.entry((from, to, class)).or_default().push(m);
        match started {
            Started::Done(completion) => self.check_sent(m, completion),
            Started::Pending(id) => {
                self.sent[m].request = Some(id);
                self.open_sends.push(m);
            }
        }
    }

    fn receive(&mut self, at: usize) {
        let n = self.world.ends.len();
        let ctx = self.random.below(CONTEXTS) as u64;
        let src = (!self.random.once_in(3)).then(|| self.random.below(n));
        let tag = (!self.random.once_in(3)).then(|| self.random.below(TAGS) as i32);
        let len = if self.random.once_in(4) { self.len() } else { 200_000 };
        let data = self.data(len);
        self.receive_from(at, ctx, src, tag, data);
    }

    fn receive_any(&mut self, at: usize, ctx: u64) {
        let data = self.data(200_000);
        self.receive_from(at, ctx, None, None, data);
    }

    fn receive_from(&mut self, at: usize, ctx: u64, src: Option<usize>, tag: Option<i32>, data: Data) {
        let recv = self.received.len();
        let src = src.map(|s| (rank(s, ctx), Peer(s as u32)));
        self.oracles[at].post(like(recv, ctx, src.map(|s| s.0), tag));
        let bypassing = self.random.once_in(2);
        let End { p2p, port } = &mut self.world.ends[at];
        let args = RecvArgs { ctx, src, tag, data: &data };
        let mut bypass = if bypassing { ReceiveBypass::new(p2p, args) } else { None };
        if let Some(bypass) = &mut bypass {
            let (oracle, sent, lanes) = (&mut self.oracles[at], &mut self.sent, &self.lanes);
            port.poll(&mut Tap { at, p2p: bypass, oracle, sent, lanes });
        }
        let started = match bypass.and_then(|bypass| bypass.end().cloned()) {
            Some(completion) => Started::Done(completion),
            None => p2p.recv(port, args),
        };
        self.note_received(at, Class::P2p, data, started);
    }

    fn note_received(&mut self, at: usize, class: Class, data: Data, started: Started) {
        let r = self.received.len();
        self.received.push(Received { at, class, data, cancelled: false, request: None, message: None });
        match started {
            Started::Done(completion) => self.check_received(r, completion),
            Started::Pending(id) => {
                self.received[r].request = Some(id);
                self.open_receives.push(r);
            }
        }
    }

    /// Probes; takes the message half of the time.
    fn probe(&mut self, at: usize) {
        let n = self.world.ends.len();
        let ctx = self.random.below(CONTEXTS) as u64;
        let from = (!self.random.once_in(2)).then(|| self.random.below(n));
        let src = from.map(|from| rank(from, ctx));
        let tag = (!self.random.once_in(2)).then(|| self.random.below(TAGS) as i32);
        let recv = self.received.len();
        let expected = self.oracles[at].probe(&like(recv, ctx, src, tag));
        let expected = expected.map(|identity| {
            let m = &self.sent[self.message(at, identity)];
            crate::Envelope { source: m.rank, tag: m.tag, bytes: m.bytes.len() as u64 }
        });
        let p2p = &mut self.world.ends[at].p2p;
        let named = from.map(|from| (rank(from, ctx), Peer(from as u32)));
        assert_eq!(p2p.probe(ctx, named, tag), expected);
        if self.random.once_in(2) {
            return;
        }
        let probed = p2p.mprobe(ctx, named, tag);
        assert_eq!(probed.map(|found| found.1), expected);
        let Some((message, envelope)) = probed else { return };
        self.oracles[at].post(like(recv, ctx, src, tag));
        let data = self.data(envelope.bytes as usize + self.random.clone().below(3));
        let message = Some(message);
        let received = Received { at, class: Class::P2p, data, cancelled: false, request: None, message };
        self.received.push(received);
    }

    fn receive_probed(&mut self, at: usize) {
        let Some(r) = self.received.iter().position(|r| r.at == at && r.message.is_some()) else { return };
        let message = self.received[r].message.take().unwrap();
        let End { p2p, port } = &mut self.world.ends[at];
        match p2p.mrecv(port, message, &self.received[r].data).unwrap() {
            Started::Done(completion) => self.check_received(r, completion),
            Started::Pending(id) => {
                self.received[r].request = Some(id);
                self.open_receives.push(r);
            }
        }
    }

    fn cancel(&mut self, at: usize) {
        self.check();
        let sends = || self.sent.iter().enumerate().filter(|(_, s)| s.from == at && s.class == Class::P2p);
        if self.random.clone().once_in(2)
            && let Some((m, id)) = sends().find_map(|(m, s)| Some((m, s.request?)))
        {
            let p2p = &mut self.world.ends[at].p2p;
            p2p.cancel(id);
            self.sent[m].never_left = p2p.is_done(id);
        } else if !self.received.is_empty() {
            let r = self.random.below(self.received.len());
            self.cancel_receive(r);
        }
        self.check();
        self.random.word();
    }

    fn cancel_receive(&mut self, r: usize) {
        let Received { at, class, request, .. } = self.received[r];
        let Some(id) = request.filter(|_| class == Class::P2p) else { return };
        self.received[r].cancelled = self.oracles[at].cancel(r);
        self.world.ends[at].p2p.cancel(id);
        self.check();
    }

    /// Starts one end of a keyed message.
    fn keyed(&mut self) {
        if self.keyed.is_empty() {
            return;
        }
        let k = self.random.below(self.keyed.len());
        let (from, to, ctx, key, len, sent, received) = self.keyed[k];
        if self.random.once_in(2) {
            if sent {
                return;
            }
            self.keyed[k].5 = true;
            let bytes = pattern(self.sent.len() as u64, len);
            let data = if self.random.once_in(3) { holey_with(&bytes) } else { filled(&bytes) };
            let End { p2p, port } = &mut self.world.ends[from];
            let started = p2p.send_keyed(port, Peer(to as u32), ctx, key, &data);
            let started = settled(p2p, started);
            self.note_sent(from, to, Class::Coll, bytes, (0, 0, false), started);
        } else if !received {
            self.keyed[k].6 = true;
            let data = self.data(len);
            let (recv, src, tag) = (self.received.len(), Some(from as u32), Some(key));
            self.oracles[to].post(Posted { recv, ctx, class: Class::Coll, src, tag });
            let End { p2p, port } = &mut self.world.ends[to];
            let started = p2p.recv_keyed(port, Peer(from as u32), ctx, key, &data);
            self.note_received(to, Class::Coll, data, started);
        }
    }

    /// Looks at all requests that are done.
    fn check(&mut self) {
        let mut open = std::mem::take(&mut self.open_sends);
        open.retain(|&m| {
            let Sent { from, request: Some(id), .. } = self.sent[m] else { return false };
            let Some(completion) = self.world.ends[from].p2p.test(id) else { return true };
            self.check_sent(m, completion);
            self.sent[m].request = None;
            false
        });
        self.open_sends = open;
        let mut open = std::mem::take(&mut self.open_receives);
        open.retain(|&r| {
            let Received { at, request: Some(id), .. } = self.received[r] else { return false };
            let Some(completion) = self.world.ends[at].p2p.test(id) else { return true };
            self.received[r].request = None;
            self.check_received(r, completion);
            false
        });
        self.open_receives = open;
    }

    fn check_sent(&self, m: usize, completion: Completion) {
        let sent = &self.sent[m];
        assert_eq!(completion.fault, None);
        assert_eq!(completion.cancelled, sent.never_left || sent.dropped, "message {m}");
        if completion.cancelled {
            return assert_eq!(completion.bytes, 0);
        }
        assert_eq!(completion.bytes, sent.bytes.len() as u64);
        if sent.sync {
            let (to, identity) = self.identity(m);
            assert!(self.oracles[to].is_matched(identity), "message {m} is complete and not matched");
        }
    }

    fn check_received(&self, r: usize, completion: Completion) {
        let Received { at, ref data, cancelled, .. } = self.received[r];
        assert_eq!(completion.cancelled, cancelled, "receive {r}");
        if cancelled {
            return;
        }
        let identity = *self.oracles[at].matched.get(&r).expect("the oracle has a message for it");
        let sent = &self.sent[self.message(at, identity)];
        let (have, fits) = (sent.bytes.len() as u64, (sent.bytes.len() as u64).min(data.len()));
        let fault = (have > fits).then_some(Fault::Truncated { sent: have, room: fits });
        let expected = Completion { source: sent.rank, tag: sent.tag, bytes: fits, cancelled: false, fault };
        assert_eq!(completion, expected, "receive {r}");
        assert!(contents(data, fits as usize) == sent.bytes[..fits as usize], "receive {r}: wrong bytes");
    }

    /// The message behind an envelope that arrived at a process.
    fn message(&self, at: usize, (from, class, nth): Identity) -> usize {
        let lane = &self.lanes[&(from, at, class)];
        *lane.iter().filter(|&&m| !self.sent[m].never_left).nth(nth).expect("it was sent")
    }

    fn identity(&self, m: usize) -> (usize, Identity) {
        let (&(from, to, class), lane) = self.lanes.iter().find(|(_, lane)| lane.contains(&m)).unwrap();
        let left = lane.iter().take_while(|&&other| other != m).filter(|&&o| !self.sent[o].never_left);
        (to, (from, class, left.count()))
    }
}

/// Ranks are not the peers' numbers.
fn rank(peer: usize, ctx: u64) -> u32 {
    peer as u32 + 10 * ctx as u32
}

fn like(recv: usize, ctx: u64, src: Option<u32>, tag: Option<i32>) -> Posted {
    Posted { recv, ctx, class: Class::P2p, src, tag: tag.map(|t| t as u64) }
}

#[test]
fn random_programs_do_what_the_rules_say() {
    let only: Option<u64> = std::env::var("BANYAN_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in only.map_or(0..100, |seed| seed..seed + 1) {
        let outcome = std::panic::catch_unwind(|| Program::new(seed).run());
        if let Err(panic) = outcome {
            eprintln!("failed under BANYAN_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

//! Programs of sends, receives, probes and cancels, made by proptest, each outcome compared with the oracle's.
//!
//! A program that fails is shrunk, and printed as a [`Setting`] and a list of [`Op`]s. Once the bug is found the two are kept
//! as a test of their own, which calls [`run`] and is named for what it shows.

use std::collections::HashMap;

use banyan_memory::{Buffer, SimulatedDevice};
use banyan_transport::{Class, Head, Outcome, Sink, Token};
use proptest::prelude::*;
use proptest::test_runner::{Config as Proptest, RngSeed};

use super::ops::{CONTEXTS, Keyed, LONGEST, Op, Setting, op, setting};
use super::oracle::{Identity, Oracle, Posted};
use super::*;
use crate::wire::{self, Kind};
use crate::{Fault, MsgId, ReceiveBypass};

/// A message that some process was told to send.
struct Sent {
    from: usize,
    class: Class,
    bytes: Vec<u8>,
    /// The memory that it is sent from; once the send is over the program writes to it.
    data: Data,
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
    world: World,
    oracles: Vec<Oracle>,
    sent: Vec<Sent>,
    lanes: Lanes,
    received: Vec<Received>,
    /// Sends and receives with a request, by their index.
    open_sends: Vec<usize>,
    open_receives: Vec<usize>,
    keyed: Vec<(Keyed, [bool; 2])>,
    /// What half of the memory belongs to.
    device: Option<SimulatedDevice>,
    random: Random,
}

/// Bytes of a device: no program touches so many.
const DEVICE: usize = 128 << 20;

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

    fn landing(&mut self, peer: Peer, head: &Head, len: usize) -> Option<Buffer> {
        self.p2p.landing(peer, head, len)
    }

    fn landed(&mut self, peer: Peer, head: &Head, len: usize) {
        self.oracle.frame(peer, head);
        self.p2p.landed(peer, head, len);
    }

    fn sent(&mut self, token: Token) {
        self.p2p.sent(token);
    }

    fn completed(&mut self, token: Token, outcome: Outcome) {
        self.p2p.completed(token, outcome);
    }

    fn down(&mut self, peer: Peer, cause: &str) {
        panic!("{peer:?} is down: {cause}");
    }
}

impl Program {
    fn new(setting: Setting) -> Self {
        let n = setting.processes;
        let config = Config { choice: choice(setting.choice), ..Config::new(setting.budget, n as u32) };
        Self {
            world: World::new(n, setting.seed, setting.network, config),
            oracles: (0..n).map(|_| Oracle::default()).collect(),
            sent: Vec::new(),
            lanes: HashMap::new(),
            received: Vec::new(),
            open_sends: Vec::new(),
            open_receives: Vec::new(),
            keyed: setting.keyed.into_iter().map(|keyed| (keyed, [false; 2])).collect(),
            device: setting.device.then(|| SimulatedDevice::new(DEVICE, setting.seed)),
            random: Random::new(setting.seed),
        }
    }

    /// Memory for a message, in one piece or in many, of the device or not.
    fn memory(&mut self, len: usize, scattered: bool) -> Data {
        match &self.device {
            Some(device) if self.random.once_in(2) => {
                let alloc = |len| device.alloc(len);
                // Each run is a copy: of few bytes there would be too many.
                if scattered && len.is_multiple_of(2) {
                    holey_in(len, alloc)
                } else {
                    Data::bytes(alloc(len))
                }
            }
            _ if scattered => holey(len),
            _ => room(len),
        }
    }

    fn step(&mut self, op: Op) {
        let n = self.world.ends.len();
        match op {
            Op::Send { from, to, ctx, tag, len, scattered, mode } => {
                self.send((from % n, to % n), (ctx, tag), (len, scattered), mode)
            }
            Op::Receive { at, src, ctx, tag, len, scattered, bypass } => {
                let data = self.memory(len, scattered);
                self.receive_from(at % n, ctx, src.map(|src| src % n), tag, data, bypass)
            }
            Op::Probe { at, src, ctx, tag, take } => {
                self.probe(at % n, ctx, src.map(|src| src % n), tag, take)
            }
            Op::ReceiveProbed { at } => self.receive_probed(at % n),
            Op::CancelSend { from, which } => self.cancel_send(from % n, which),
            Op::CancelReceive { .. } if self.received.is_empty() => {}
            Op::CancelReceive { which } => self.cancel_receive(which % self.received.len()),
            Op::Key { which, receive, scattered } if which < self.keyed.len() => {
                self.start_keyed(which, receive, scattered)
            }
            Op::Key { .. } => {}
            Op::Turn { times } => (0..times).for_each(|_| self.turn()),
        }
    }

    /// Receives all that was sent, then withdraws the receives that are left.
    fn drain(&mut self) {
        let n = self.world.ends.len();
        for which in 0..self.keyed.len() {
            [true, false].into_iter().for_each(|receive| self.start_keyed(which, receive, false));
        }
        for round in 0.. {
            assert!(round < 400_000, "no end: {:?}", self.waits());
            self.turn();
            (0..n).for_each(|at| self.receive_probed(at));
            for (at, ctx) in (0..n).flat_map(|at| (0..CONTEXTS).map(move |ctx| (at, ctx))) {
                if self.world.ends[at].p2p.probe(ctx, None, None).is_some() {
                    self.receive_from(at, ctx, None, None, room(LONGEST), false);
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

    fn send(
        &mut self,
        (from, to): (usize, usize),
        (ctx, tag): (u64, i32),
        (len, scattered): (usize, bool),
        mode: Mode,
    ) {
        let bytes = pattern(self.sent.len() as u64, len);
        let data = self.memory(len, scattered);
        data.cursor().unpack(&data, &bytes);
        let src_rank = rank(from, ctx);
        let End { p2p, port } = &mut self.world.ends[from];
        let args = SendArgs { peer: Peer(to as u32), ctx, tag, src_rank, data: &data, mode };
        let started = p2p.send(port, args);
        let started = settled(p2p, started, &data);
        if mode == Mode::Buffered {
            reuse(&data);
        }
        let sync = mode == Mode::Sync;
        self.note_sent((from, to), Class::P2p, (bytes, data), (tag, src_rank, sync), started);
    }

    fn note_sent(
        &mut self,
        (from, to): (usize, usize),
        class: Class,
        (bytes, data): (Vec<u8>, Data),
        (tag, rank, sync): (i32, u32, bool),
        started: Started,
    ) {
        let m = self.sent.len();
        let request = None;
        self.sent.push(Sent {
            from,
            class,
            bytes,
            data,
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

    fn receive_from(
        &mut self,
        at: usize,
        ctx: u64,
        src: Option<usize>,
        tag: Option<i32>,
        data: Data,
        bypassing: bool,
    ) {
        let recv = self.received.len();
        let src = src.map(|s| (rank(s, ctx), Peer(s as u32)));
        self.oracles[at].post(like(recv, ctx, src.map(|s| s.0), tag));
        let End { p2p, port } = &mut self.world.ends[at];
        let args = RecvArgs { ctx, src, tag, data: &data };
        let mut bypass =
            if bypassing { ReceiveBypass::new(p2p, args, |_: Peer, _: &Head, _: &[u8]| ()) } else { None };
        if let Some(bypass) = &mut bypass {
            let (oracle, sent, lanes) = (&mut self.oracles[at], &mut self.sent, &self.lanes);
            port.poll(&mut Tap { at, p2p: bypass, oracle, sent, lanes });
        }
        let started = match bypass.and_then(ReceiveBypass::end) {
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

    /// Probes, and takes the message if `take` says how much longer its room is to be.
    fn probe(&mut self, at: usize, ctx: u64, from: Option<usize>, tag: Option<i32>, take: Option<usize>) {
        let src = from.map(|from| rank(from, ctx));
        let recv = self.received.len();
        let expected = self.oracles[at].probe(&like(recv, ctx, src, tag));
        let expected = expected.map(|identity| {
            let m = &self.sent[self.message(at, identity)];
            crate::Envelope { source: m.rank, tag: m.tag, bytes: m.bytes.len() as u64 }
        });
        let p2p = &mut self.world.ends[at].p2p;
        let named = from.map(|from| (rank(from, ctx), Peer(from as u32)));
        assert_eq!(p2p.probe(ctx, named, tag), expected);
        let Some(more) = take else { return };
        let probed = p2p.mprobe(ctx, named, tag);
        assert_eq!(probed.map(|found| found.1), expected);
        let Some((message, envelope)) = probed else { return };
        self.oracles[at].post(like(recv, ctx, src, tag));
        let data = self.memory(envelope.bytes as usize + more, more == 1);
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

    fn cancel_send(&mut self, from: usize, which: usize) {
        self.check();
        let mine = |m: &&usize| self.sent[**m].from == from && self.sent[**m].class == Class::P2p;
        let under_way: Vec<usize> = self.open_sends.iter().filter(mine).copied().collect();
        let Some(&m) = under_way.get(which % under_way.len().max(1)) else { return };
        if let Some(id) = self.sent[m].request {
            let p2p = &mut self.world.ends[from].p2p;
            p2p.cancel(id);
            self.sent[m].never_left = p2p.is_done(id);
        }
        self.check();
    }

    fn cancel_receive(&mut self, r: usize) {
        let Received { at, class, request, .. } = self.received[r];
        let Some(id) = request.filter(|_| class == Class::P2p) else { return };
        self.received[r].cancelled = self.oracles[at].cancel(r);
        self.world.ends[at].p2p.cancel(id);
        self.check();
    }

    /// Starts one end of a keyed message, once.
    fn start_keyed(&mut self, which: usize, receive: bool, scattered: bool) {
        let n = self.world.ends.len();
        let (Keyed { from, to, ctx, key, len }, started) = &mut self.keyed[which];
        let (from, to, ctx, key, len) = (*from % n, *to % n, *ctx, *key, *len);
        if std::mem::replace(&mut started[usize::from(receive)], true) {
            return;
        }
        let data = self.memory(len, scattered);
        if !receive {
            let bytes = pattern(self.sent.len() as u64, len);
            data.cursor().unpack(&data, &bytes);
            let End { p2p, port } = &mut self.world.ends[from];
            let started = p2p.send_keyed(port, Peer(to as u32), ctx, key, &data);
            let started = settled(p2p, started, &data);
            self.note_sent((from, to), Class::Coll, (bytes, data), (0, 0, false), started);
        } else {
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
        reuse(&sent.data);
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
        let fault = (have > fits).then(|| Fault::Truncated { sent: have, room: fits }.into());
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

/// Writes other bytes to memory that the library has given back.
fn reuse(data: &Data) {
    data.cursor().unpack(data, &pattern(!0, data.len() as usize));
}

/// Runs a program to its end.
fn run(setting: Setting, ops: Vec<Op>) {
    let mut program = Program::new(setting);
    ops.into_iter().for_each(|op| program.step(op));
    program.drain();
}

/// The programs are the same in each run, unless BANYAN_SEED says which others to try.
fn programs() -> Proptest {
    let seed = std::env::var("BANYAN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("BANYAN_SEED={seed}");
    Proptest {
        cases: 96,
        rng_seed: RngSeed::Fixed(seed),
        max_shrink_iters: 4000,
        failure_persistence: None,
        ..Proptest::default()
    }
}

proptest! {
    #![proptest_config(programs())]

    #[test]
    fn programs_do_what_the_rules_say(setting in setting(), ops in prop::collection::vec(op(), 1..400)) {
        run(setting, ops);
    }
}

/// What a fault in the count of fragments was shrunk to.
#[test]
fn regression_a_message_in_two_fragments_to_oneself_ends() {
    let network = Options { max_delay: 3, ..any_network(|_| 0) };
    let setting =
        Setting { processes: 1, seed: 0, network, budget: 4 << 20, choice: 1, device: false, keyed: vec![] };
    let (ctx, tag, len) = (0, 0, 8193);
    run(setting, vec![Op::Send { from: 0, to: 0, ctx, tag, len, scattered: false, mode: Mode::Standard }]);
}

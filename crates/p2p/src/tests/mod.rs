//! [`P2p`] on a simulated network, in one thread and under seeds: [`World`] is what the tests share.

mod abandoned;
mod cases;
mod credit;
mod deaths;
mod held;
mod landing;
mod misbehaving;
mod one_sided;
mod ops;
mod oracle;
mod programs;
mod staged;
mod ways;

use std::cell::Cell;
use std::sync::Arc;

use banyan_datatype::{Data, Datatype};
use banyan_memory::{Buffer, HeapBuffer};
use banyan_transport::random::Random;
use banyan_transport::sim::{Net, OneSided, Options, SimFabric};
use banyan_transport::{Fabric, Peer};

use crate::{Choice, Completion, Config, Mode, P2p, RecvArgs, ReqId, SendArgs, Started, Way};

/// Two processes, each of which lends a MiB.
fn two(options: Options) -> World {
    World::new(2, 1, options, Config::new(1 << 20, 2))
}

/// Processes on one network.
struct World {
    net: Net,
    ends: Vec<End>,
}

struct End {
    p2p: P2p,
    port: SimFabric,
}

impl World {
    fn new(n: usize, seed: u64, options: Options, config: Config) -> Self {
        let net = Net::new(n, seed, options);
        let end = |port| End { p2p: P2p::new(config.clone()), port };
        let ends = net.endpoints().into_iter().map(end).collect();
        Self { net, ends }
    }

    /// Every process polls once and makes progress.
    fn turn(&mut self) {
        self.ends.iter_mut().for_each(End::turn);
    }

    /// Turns until `over` is true; panics after so many turns that it never will be.
    fn run(&mut self, mut over: impl FnMut(&mut World) -> bool) {
        for _ in 0..2_000_000 {
            if over(self) {
                return;
            }
            self.turn();
        }
        for (i, end) in self.ends.iter().enumerate() {
            end.p2p.waits().for_each(|wait| eprintln!("{i}: {wait:?}"));
        }
        panic!("no end");
    }

    /// Turns until the operation of process `i` is done.
    fn wait(&mut self, i: usize, started: Started) -> Completion {
        let id = match started {
            Started::Done(completion) => return completion,
            Started::Pending(id) => id,
        };
        self.run(|world| world.ends[i].p2p.is_done(id));
        self.ends[i].p2p.test(id).unwrap()
    }

    /// Turns until nothing is under way.
    fn settle(&mut self) {
        self.run(|world| {
            world.net.is_idle() && world.ends.iter().all(|e| !e.p2p.has_work() && !e.port.unsent())
        });
    }

    fn send(&mut self, from: usize, to: usize, tag: i32, mode: Mode, data: &Data) -> Started {
        let End { p2p, port } = &mut self.ends[from];
        let peer = Peer(to as u32);
        let started = p2p.send(port, SendArgs { peer, ctx: 1, tag, src_rank: from as u32, data, mode });
        settled(p2p, started, data)
    }

    fn recv(&mut self, at: usize, src: Option<usize>, tag: Option<i32>, data: &Data) -> Started {
        let End { p2p, port } = &mut self.ends[at];
        let src = src.map(|s| (s as u32, Peer(s as u32)));
        p2p.recv(port, RecvArgs { ctx: 1, src, tag, data })
    }
}

impl End {
    fn turn(&mut self) {
        self.port.poll(&mut self.p2p);
        self.p2p.progress(&mut self.port);
    }
}

/// A send of `data`, or its outcome if there is one already.
fn settled(p2p: &mut P2p, sent: Option<ReqId>, data: &Data) -> Started {
    let complete = Completion { source: 0, tag: 0, bytes: data.len(), cancelled: false, fault: None };
    let Some(id) = sent else { return Started::Done(complete) };
    p2p.test(id).map_or(Started::Pending(id), Started::Done)
}

fn pending(started: Started) -> ReqId {
    match started {
        Started::Pending(id) => id,
        Started::Done(completion) => panic!("done at once: {completion:?}"),
    }
}

/// Any network: links and frames of any length, with delays, refusals and one-sided reads of any kind. `pick` chooses a number
/// below the one it is given; 0 is the plainest choice.
fn any_network(mut pick: impl FnMut(usize) -> usize) -> Options {
    Options {
        depth: [64, 7, 2, 1][pick(4)],
        max_short: [36, 0, 16, 200][pick(4)],
        max_bcopy: [8192, 4096, 10_000][pick(3)],
        eager: [16_384, 5000, 100, 0][pick(4)],
        piece: [4096, 500, 10_000][pick(3)],
        get: OneSided::ALL[pick(OneSided::ALL.len())],
        max_delay: [0, 3, 40][pick(3)],
        batch: [100, 5, 1][pick(3)],
        refuse_once_in: [0, 9, 2][pick(3)],
        holds: pick(3) == 2,
        refuse_registration_once_in: [0, 2][pick(2)],
        put: OneSided::ALL[pick(OneSided::ALL.len())],
        handovers: [0, 1, 5][pick(3)],
        moves_devices: pick(2) == 1,
        ..Options::default()
    }
}

/// What `choice` gives of numbers below this one: each way, and one that is measured.
const CHOICES: usize = Way::ALL.len() + 1;

/// How the way of long messages is chosen.
fn choice(number: usize) -> Choice {
    let measured = Choice::Measured { me: Peer(number as u32 % 3), clock: strange_clock };
    Way::ALL.get(number).map_or(measured, |way| Choice::Fixed(*way))
}

/// A clock by which each message takes another time, so that all ways are tried and chosen. Each thread has its own.
fn strange_clock() -> u64 {
    thread_local!(static NOW: Cell<u64> = const { Cell::new(0) });
    NOW.set(NOW.get() + 100 + (NOW.get() * 7 + 13) % 1000);
    NOW.get()
}

/// `len` bytes that only this seed gives.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| random.word().to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// Contiguous memory with `bytes` in it.
fn filled(bytes: &[u8]) -> Data {
    Data::bytes(HeapBuffer::copy_of(bytes))
}

/// Contiguous memory of `len` bytes.
fn room(len: usize) -> Data {
    Data::bytes(HeapBuffer::zeroed(len))
}

/// Memory with room for `len` bytes, in pieces of 3 or of 600 with holes of 2.
fn holey(len: usize) -> Data {
    holey_in(len, HeapBuffer::zeroed)
}

/// The same in memory that `alloc` gives.
fn holey_in(len: usize, alloc: impl FnOnce(usize) -> Buffer) -> Data {
    let byte: &Arc<Datatype> = Datatype::builtin(BYTE).unwrap();
    let run = if len > 1200 && len.is_multiple_of(2) { 600 } else { 3 };
    let blocks = len / run;
    let runs = Datatype::vector(blocks as i64, run as i64, run as i64 + 2, byte).unwrap();
    let rest = Datatype::contiguous((len % run) as i64, byte).unwrap();
    let before = (run + 2) * blocks;
    let ty = Datatype::create_struct(&[1, 1], &[0, before as i64], &[runs, rest]).unwrap();
    Data::typed(alloc(before + run + 2), 1, &ty)
}

/// The code of MPI_BYTE in the MPI 5.0 ABI.
const BYTE: u16 = 0x247;

fn holey_with(bytes: &[u8]) -> Data {
    let data = holey(bytes.len());
    data.cursor().unpack(&data, bytes);
    data
}

fn contents(data: &Data, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    data.cursor().pack(data, &mut bytes);
    bytes
}

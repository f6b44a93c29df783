//! What [`P2p`] itself costs: `cargo run --release -p banyan-p2p --example bench [NAME [COUNT]]`.
//!
//! Two processes in one thread, with ports that only queue frames in memory.

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use banyan_datatype::Data;
use banyan_memory::{Buffer, HeapBuffer};
use banyan_p2p::{Config, Mode, P2p, RecvArgs, ReqId, SendArgs, Started};
use banyan_transport::{
    Access, Caps, Head, Kinds, Peer, Port, Refusal, RegisterError, Remote, Sink, Token, Transfer,
};

/// Frames on their way to the other side; bodies are used again.
#[derive(Default)]
struct Wire {
    frames: VecDeque<(Head, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

impl Port for Wire {
    fn caps(&self, _peer: Peer) -> Caps {
        Caps {
            max_short: 40,
            max_bcopy: 16_384,
            eager: 8192,
            piece: 8192,
            get: Kinds::NONE,
            put: Kinds::NONE,
            atomics: Kinds::NONE,
            prefers_get: false,
            alpha: 1e-7,
            beta: 1e-10,
        }
    }
    fn send_short(&mut self, _peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal> {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(body);
        self.frames.push_back((*head, copy));
        Ok(())
    }
    fn send_bcopy(
        &mut self,
        _peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal> {
        let mut body = self.spare.pop().unwrap_or_default();
        body.resize(len, 0);
        fill(&mut body);
        self.frames.push_back((*head, body));
        Ok(())
    }
    fn register(&mut self, _peer: Peer, _memory: &Buffer, _access: Access) -> Result<Remote, RegisterError> {
        Err(RegisterError::Unsupported)
    }
    fn get(&mut self, _peer: Peer, _remote: Remote, _local: &[Buffer], _token: Token) -> Transfer {
        Transfer::Impossible
    }
}

impl Wire {
    fn deliver(&mut self, from: Peer, to: &mut P2p) {
        while let Some((head, mut body)) = self.frames.pop_front() {
            to.frame(from, &head, &body);
            body.clear();
            self.spare.push(body);
        }
    }
}

struct Pair {
    ends: [P2p; 2],
    wires: [Wire; 2],
}

impl Pair {
    fn new() -> Self {
        let p2p = || P2p::new(Config::new(64 << 20, 2));
        Self { ends: [p2p(), p2p()], wires: Default::default() }
    }

    #[inline]
    fn send(&mut self, tag: i32, data: &Data) -> Option<ReqId> {
        let args = SendArgs { peer: Peer(1), ctx: 1, tag, src_rank: 0, data, mode: Mode::Standard };
        self.ends[0].send(&mut self.wires[0], args)
    }

    #[inline]
    fn recv(&mut self, src: bool, tag: Option<i32>, data: &Data) -> Started {
        let args = RecvArgs { ctx: 1, src: src.then_some((0, Peer(0))), tag, data };
        self.ends[1].recv(&mut self.wires[1], args)
    }

    #[inline]
    fn turn(&mut self) {
        self.wires[0].deliver(Peer(0), &mut self.ends[1]);
        self.ends[1].progress(&mut self.wires[1]);
        self.wires[1].deliver(Peer(1), &mut self.ends[0]);
        self.ends[0].progress(&mut self.wires[0]);
    }

    fn finish(&mut self, started: Started) {
        if let Started::Pending(id) = started {
            while self.ends[1].test(id).is_none() {
                self.turn();
            }
        }
    }
}

/// Prints the time of one of `count` repetitions.
fn report(name: &str, count: u64, mut run: impl FnMut()) {
    let only = std::env::args().nth(1);
    if only.is_some_and(|only| !name.contains(&only)) {
        return;
    }
    let start = Instant::now();
    run();
    println!("{name:60} {:9.1} ns", start.elapsed().as_nanos() as f64 / count as f64);
}

fn memory(len: usize) -> Data {
    Data::bytes(HeapBuffer::zeroed(len))
}

fn messages(len: usize, count: u64) {
    let (data, room) = (memory(len), memory(len));
    let mut pair = Pair::new();
    report(&format!("{len} bytes, expected"), count, || {
        for _ in 0..count {
            let received = pair.recv(true, Some(1), &room);
            black_box(pair.send(1, &data));
            pair.finish(received);
        }
    });
    report(&format!("{len} bytes, unexpected"), count, || {
        for _ in 0..count {
            black_box(pair.send(1, &data));
            pair.turn();
            let received = pair.recv(true, Some(1), &room);
            pair.finish(received);
        }
    });
}

fn deep_posted(depth: i32, src: bool, any: bool) {
    let (data, mut pair) = (memory(8), Pair::new());
    let name = format!("{depth} posted, taken in reverse (source {src}, any after them {any})");
    report(&name, 20 * depth as u64, || {
        for _ in 0..20 {
            let mut posted: Vec<_> = (0..depth).map(|tag| pair.recv(src, Some(tag), &data)).collect();
            posted.extend(any.then(|| pair.recv(false, None, &data)));
            for tag in (0..depth + i32::from(any)).rev() {
                black_box(pair.send(tag % depth, &data));
                pair.turn();
            }
            posted.into_iter().for_each(|r| pair.finish(r));
        }
    });
}

fn deep_unexpected(depth: i32, src: bool, tag: bool) {
    let (data, mut pair) = (memory(8), Pair::new());
    let name = format!("{depth} unexpected, taken in reverse (source {src}, tag {tag})");
    report(&name, 20 * depth as u64, || {
        for _ in 0..20 {
            for tag in (0..depth).rev() {
                black_box(pair.send(tag, &data));
                pair.turn();
            }
            for t in 0..depth {
                let received = pair.recv(src, tag.then_some(t), &data);
                pair.finish(received);
            }
        }
    });
}

fn main() {
    let count = std::env::args().nth(2).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    [0, 8, 64, 1024, 8000].into_iter().for_each(|len| messages(len, count));
    let flags = [(true, false), (false, false), (true, true), (false, true)];
    flags.into_iter().for_each(|(src, any)| deep_posted(10_000, src, any));
    flags.into_iter().for_each(|(src, tag)| deep_unexpected(10_000, src, tag));
    let (data, room) = (memory(1 << 20), memory(1 << 20));
    let mut pair = Pair::new();
    report("1 MiB in pieces of 16 KiB (two copies)", 2000, || {
        for _ in 0..2000 {
            let received = pair.recv(true, Some(1), &room);
            black_box(pair.send(1, &data));
            pair.finish(received);
        }
    });
}

//! Latency and bandwidth of the fabric between two processes, as perftest measures those of verbs: `figures FOLDER 0|1 [RAILS]`, where the two
//! exchange their business cards by files in the folder. Process 0 prints lines of what was measured, its bytes, and the figure: us one
//! way, or MiB/s. `cargo xtask rdma --figures 5` runs both, by turns.

use std::path::Path;
use std::time::{Duration, Instant};

use banyan_memory::HeapBuffer;
use banyan_rdma::settings::Settings;
use banyan_rdma::{Options, RailOptions, Rdma};
use banyan_transport::{Access, Class, Fabric, Head, Outcome, Peer, Port, Remote, Sink, Token, Transfer};

const HEAD: Head = Head { class: Class::P2p, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };
const PINGS: usize = 10_000;
/// Transfers under way at a time, and all of one measurement.
const DEPTH: usize = 4;
const BYTES: usize = 8 << 20;

#[derive(Default)]
struct Inbox {
    last: Vec<u8>,
    frames: usize,
    over: usize,
    /// Why the other process is gone, if it is.
    gone: Option<String>,
}

impl Sink for Inbox {
    fn frame(&mut self, _peer: Peer, _head: &Head, body: &[u8]) {
        self.frames += 1;
        self.last.clear();
        self.last.extend_from_slice(body);
    }
    fn sent(&mut self, _token: Token) {}
    fn completed(&mut self, _token: Token, outcome: Outcome) {
        assert_eq!(outcome, Outcome::Done);
        self.over += 1;
    }
    fn down(&mut self, _peer: Peer, cause: &str) {
        self.gone = Some(cause.to_owned());
    }
}

impl Inbox {
    /// Nothing more is to be waited for if the other process is gone.
    fn check(&self) {
        assert!(self.gone.is_none(), "the other process is gone: {:?}", self.gone);
    }
}

struct Side {
    fabric: Rdma,
    inbox: Inbox,
    peer: Peer,
}

impl Side {
    fn send(&mut self, body: &[u8]) {
        while self.fabric.send_short(self.peer, &HEAD, body).is_err() {
            self.inbox.check();
            self.fabric.poll(&mut self.inbox);
        }
    }

    fn wait(&mut self) {
        let before = self.inbox.frames;
        while self.inbox.frames == before {
            self.inbox.check();
            self.fabric.poll(&mut self.inbox);
        }
    }
}

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, folder, me, rails @ ..] = &arguments[..] else { return Err("figures FOLDER 0|1 [RAILS]".into()) };
    let me: u32 = me.parse().map_err(|_| "0 or 1")?;
    let devices = banyan_rdma::devices();
    if devices.is_empty() {
        return Err("no RDMA device here".into());
    }
    let rails: usize = rails.first().map_or(Ok(1), |rails| rails.parse()).map_err(|_| "a number of rails")?;
    let port = |at: usize| RailOptions {
        device: devices[(me as usize + at) % devices.len()].clone(),
        port: 1,
        settings: Settings::default(),
    };
    let options = Options {
        ports: (0..rails).map(port).collect(),
        subnets: Vec::new(),
        topology: String::new(),
        patience: Duration::from_secs(60),
    };
    let (mut fabric, card) = Rdma::new(Peer(me), 2, 1, [1; 32], &options)?;
    let place = |who: u32| Path::new(folder).join(format!("card{who}"));
    let said = |error: std::io::Error| error.to_string();
    std::fs::write(place(me).with_extension("new"), card).map_err(said)?;
    std::fs::rename(place(me).with_extension("new"), place(me)).map_err(said)?;
    let peer = Peer(1 - me);
    while !place(peer.0).exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    fabric.connect(peer, &std::fs::read(place(peer.0)).map_err(said)?)?;
    let mut side = Side { fabric, inbox: Inbox::default(), peer };
    if me == 0 {
        latency(&mut side, 8);
        bandwidths(&mut side);
    } else {
        for _ in 0..PINGS + 100 {
            side.wait();
            let body = std::mem::take(&mut side.inbox.last);
            side.send(&body);
        }
        let memory = HeapBuffer::zeroed(1 << 20);
        let remote =
            side.fabric.register(peer, &memory, Access::ReadWrite).map_err(|why| format!("{why:?}"))?;
        let told = [remote.addr.to_le_bytes(), remote.len.to_le_bytes(), remote.key.to_le_bytes()].concat();
        side.send(&told);
        side.wait();
    }
    Ok(())
}

/// Prints the median of half a round trip.
fn latency(side: &mut Side, size: usize) {
    let body = vec![7; size];
    let mut times: Vec<f64> = (0..PINGS + 100)
        .map(|_| {
            let start = Instant::now();
            side.send(&body);
            side.wait();
            start.elapsed().as_secs_f64() / 2.0
        })
        .skip(100)
        .collect();
    times.sort_by(f64::total_cmp);
    println!("latency {size} {:.3}", times[PINGS / 2] * 1e6);
}

fn bandwidths(side: &mut Side) {
    side.wait();
    let word = |at: usize| u64::from_le_bytes(side.inbox.last[at..at + 8].try_into().expect("8 bytes"));
    let remote = Remote { addr: word(0), len: word(8), key: word(16) };
    for size in [64 << 10, 256 << 10, 1 << 20] {
        for (name, put) in [("write", true), ("read", false)] {
            transfers(side, remote, size, put, DEPTH);
            let start = Instant::now();
            transfers(side, remote, size, put, BYTES / size);
            let rate = (BYTES >> 20) as f64 / start.elapsed().as_secs_f64();
            println!("{name} {size} {rate:.3}");
        }
    }
    side.send(b"done");
}

/// Carries out transfers, some of them at a time.
fn transfers(side: &mut Side, remote: Remote, size: usize, put: bool, number: usize) {
    let local = HeapBuffer::zeroed(size);
    let remote = Remote { len: size as u64, ..remote };
    let (before, mut started) = (side.inbox.over, 0);
    while side.inbox.over - before < number {
        while started < number && started - (side.inbox.over - before) < DEPTH {
            let (of, token) = (std::slice::from_ref(&local), Token(started as u64));
            let start = if put {
                side.fabric.put(side.peer, remote, of, token)
            } else {
                side.fabric.get(side.peer, remote, of, token)
            };
            if start != Transfer::Started {
                assert_eq!(start, Transfer::Busy);
                break;
            }
            started += 1;
        }
        side.inbox.check();
        side.fabric.poll(&mut side.inbox);
    }
}

//! Latency, bandwidth and message rate of the fabric on loopback, beside a raw socket. Two threads; medians of
//! alternating rounds. `cargo run --release -p banyan-tcp --example tcp_pingpong`

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use banyan_tcp::{Tcp, frame};
use banyan_transport::{Class, Fabric, Head, Outcome, Peer, Port, Sink, Token};

const ROUNDS: usize = 31;
const BOUNCES: usize = 500;
const STREAM: usize = 64 << 20;
const WINDOW: usize = 1 << 20;
const MESSAGES: usize = 50_000;

fn main() {
    println!("{:30} {:>9} {:>9}   (medians and best of {ROUNDS})", "", "raw", "fabric");
    report("8 B, one way, us", 1e6, raw_latency, || latency(8));
    report("1 KiB, one way, us", 1e6, || raw_bounce(1024), || latency(1024));
    report("stream, s per GiB", 1.0, raw_stream, stream);
    report("8 B message of many, us", 1e6, raw_rate, rate);
}

fn report(what: &str, unit: f64, raw: impl Fn() -> f64, ours: impl Fn() -> f64) {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        a.push(raw() * unit);
        b.push(ours() * unit);
    }
    a.sort_by(f64::total_cmp);
    b.sort_by(f64::total_cmp);
    let (raw, ours) = (a[ROUNDS / 2], b[ROUNDS / 2]);
    println!("{what:30} {raw:9.3} {ours:9.3}   ratio {:.2} (best {:.3} {:.3})", ours / raw, a[0], b[0]);
}

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let b = listener.accept().unwrap().0;
    for socket in [&a, &b] {
        socket.set_nodelay(true).unwrap();
    }
    (a, b)
}

/// Runs both ends in threads of their own; gives the seconds that the first took.
fn both<A: Send, B: Send>(a: A, b: B, first: impl FnOnce(A) + Send, second: impl FnOnce(B) + Send) -> f64 {
    std::thread::scope(|scope| {
        scope.spawn(|| second(b));
        let start = Instant::now();
        first(a);
        start.elapsed().as_secs_f64()
    })
}

fn raw_latency() -> f64 {
    raw_bounce(8)
}

fn raw_bounce(len: usize) -> f64 {
    let len = len + frame::OVERHEAD;
    let (a, b) = sockets();
    let bounce = |mut socket: TcpStream, first: bool| {
        socket.set_nonblocking(true).unwrap();
        let mut bytes = vec![0; len];
        for turn in 0..2 * BOUNCES {
            if (turn % 2 == 0) == first {
                socket.write_all(&bytes).unwrap();
            } else {
                read_exact(&mut socket, &mut bytes);
            }
        }
    };
    both(a, b, |a| bounce(a, true), |b| bounce(b, false)) / (2 * BOUNCES) as f64
}

fn read_exact(socket: &mut TcpStream, bytes: &mut [u8]) {
    let mut at = 0;
    while at < bytes.len() {
        match socket.read(&mut bytes[at..]) {
            Ok(read) => at += read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn raw_stream() -> f64 {
    let (mut a, mut b) = sockets();
    let mut write = move || {
        let source = vec![1u8; WINDOW];
        for _ in 0..STREAM / WINDOW {
            a.write_all(&source).unwrap();
        }
        a.read_exact(&mut [0]).unwrap();
    };
    let mut read = move || {
        let mut target = vec![0u8; WINDOW];
        for _ in 0..STREAM / WINDOW {
            b.read_exact(&mut target).unwrap();
        }
        b.write_all(&[0]).unwrap();
    };
    both((), (), |()| write(), |()| read()) * (1 << 30) as f64 / STREAM as f64
}

fn raw_rate() -> f64 {
    let (mut a, mut b) = sockets();
    let size = 8 + frame::OVERHEAD;
    let mut write = move || {
        for _ in 0..MESSAGES {
            a.write_all(&[0; 64][..size]).unwrap();
        }
        a.read_exact(&mut [0]).unwrap();
    };
    let mut read = move || {
        let (mut left, mut bytes) = (MESSAGES * size, vec![0; 1 << 16]);
        while left > 0 {
            left -= b.read(&mut bytes).unwrap();
        }
        b.write_all(&[0]).unwrap();
    };
    both((), (), |()| write(), |()| read()) / MESSAGES as f64
}

#[derive(Default)]
struct Counter {
    frames: usize,
    bytes: usize,
    target: Vec<u8>,
}

impl Sink for Counter {
    fn frame(&mut self, _: Peer, _: &Head, body: &[u8]) {
        self.frames += 1;
        if !self.target.is_empty() {
            let at = self.bytes % self.target.len();
            let end = self.target.len().min(at + body.len());
            self.target[at..end].copy_from_slice(&body[..end - at]);
        }
        self.bytes += body.len();
    }
    fn sent(&mut self, _: Token) {}
    fn completed(&mut self, _: Token, _: Outcome) {}
    fn down(&mut self, peer: Peer, cause: &str) {
        assert!(cause.ends_with("left the job"), "{peer:?}: {cause}");
    }
}

const HEAD: Head = Head { class: Class::P2p, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };

fn fabrics() -> (Tcp, Tcp) {
    let make = |me| Tcp::new(Peer(me), 2, 1, [1; 32], Default::default()).unwrap();
    let ((mut a, _), (mut b, business_card)) = (make(0), make(1));
    a.connect(Peer(1), &business_card).unwrap();
    let mut hello = Counter::default();
    while a.send_short(Peer(1), &HEAD, &[]).is_err() {
        a.poll(&mut hello);
        b.poll(&mut hello);
    }
    while hello.frames == 0 {
        a.poll(&mut hello);
        b.poll(&mut hello);
    }
    (a, b)
}

/// Polls, and yields if there was nothing to do (the machine may have few cores).
fn poll(fabric: &mut Tcp, sink: &mut Counter) {
    if fabric.poll(sink) == 0 {
        std::thread::yield_now();
    }
}

fn send(fabric: &mut Tcp, to: u32, body: &[u8], sink: &mut Counter) {
    while fabric.send_short(Peer(to), &HEAD, body).is_err() {
        poll(fabric, sink);
    }
}

fn wait(fabric: &mut Tcp, frames: usize, sink: &mut Counter) {
    while sink.frames < frames || fabric.unsent() {
        poll(fabric, sink);
    }
}

fn latency(len: usize) -> f64 {
    let (a, b) = fabrics();
    let bounce = |mut fabric: Tcp, first: bool| {
        let (bytes, mut sink) = (vec![0; len], Counter::default());
        for turn in 0..BOUNCES {
            if first {
                send(&mut fabric, 1, &bytes, &mut sink);
            }
            wait(&mut fabric, turn + 1, &mut sink);
            if !first {
                send(&mut fabric, 0, &bytes, &mut sink);
            }
        }
        fabric
    };
    both(a, b, |a| drop(bounce(a, true)), |b| drop(bounce(b, false))) / (2 * BOUNCES) as f64
}

fn stream() -> f64 {
    let (mut a, mut b) = fabrics();
    let write = move || {
        let (source, mut sink) = (vec![1u8; WINDOW], Counter::default());
        for _ in 0..STREAM / WINDOW {
            for piece in source.chunks(frame::MAX_BODY) {
                let mut fill = |body: &mut [u8]| body.copy_from_slice(piece);
                while a.send_bcopy(Peer(1), &HEAD, piece.len(), &mut fill).is_err() {
                    poll(&mut a, &mut sink);
                }
            }
        }
        wait(&mut a, 1, &mut sink);
        a
    };
    let read = move || {
        let mut sink = Counter { target: vec![0; WINDOW], ..Counter::default() };
        while sink.bytes < STREAM {
            poll(&mut b, &mut sink);
        }
        send(&mut b, 0, &[], &mut sink);
        wait(&mut b, 0, &mut sink);
        b
    };
    both((), (), |()| drop(write()), |()| drop(read())) * (1 << 30) as f64 / STREAM as f64
}

fn rate() -> f64 {
    let (mut a, mut b) = fabrics();
    let write = move || {
        let mut sink = Counter::default();
        for _ in 0..MESSAGES {
            send(&mut a, 1, &[0; 8], &mut sink);
        }
        wait(&mut a, 1, &mut sink);
        a
    };
    let read = move || {
        let mut sink = Counter::default();
        wait(&mut b, MESSAGES, &mut sink);
        send(&mut b, 0, &[], &mut sink);
        b
    };
    both((), (), |()| drop(write()), |()| drop(read())) / MESSAGES as f64
}

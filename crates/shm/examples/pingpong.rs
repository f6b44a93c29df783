//! Measures the fabric between two pinned processes: latency, message rate, bandwidth by rings and by reads.
//!
//! `[CROWDED=1] cargo run --release -p banyan-shm --example pingpong [core of rank 0] [core of rank 1]`

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::time::Instant;

use banyan_memory::{Buffer, HeapBuffer};
use banyan_shm::{Options, Shm};
use banyan_transport::{
    Access, Class, Fabric, Head, Outcome, Peer, Port, Refusal, Remote, Sink, Token, Transfer, Wake,
};

const ROUNDS: u32 = 300_000;
const MIB: usize = 1 << 20;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [role, path, core] = &args[..]
        && role == "--peer"
    {
        let memory = OpenOptions::new().read(true).write(true).open(path).expect("the memory of rank 0");
        return run(memory.into(), 1, core.parse().expect("a core"));
    }
    let core = |i: usize| args.get(i).map_or(Ok(i), |text| text.parse()).expect("a core's number");
    let memory = Shm::memory(2, None).expect("shared memory");
    let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
    let program = std::env::current_exe().expect("this program");
    let mut peer = Command::new(program)
        .args(["--peer", &path, &core(1).to_string()])
        .spawn()
        .expect("a second process");
    run(memory, 0, core(0));
    peer.wait().expect("the second process ends");
}

fn run(memory: OwnedFd, me: u32, core: usize) {
    pin(core);
    let options = Options { crowded: Some(std::env::var_os("CROWDED").is_some()), ..Options::default() };
    let shm = Shm::attach(memory, me, &[Peer(0), Peer(1)], options).expect("attached");
    let mut end = End { shm, me, inbox: Inbox::default(), barriers: 0, expected: 0 };
    end.barrier();
    end.bare_line();
    for _ in 0..3 {
        end.latency(0);
        end.latency(8);
        end.latency(36);
        end.latency(128);
        end.latency(1024);
    }
    end.rate(8);
    end.rate(8);
    end.rate(256);
    for size in [4 << 10, 16 << 10, 64 << 10, 256 << 10, MIB, 4 * MIB, 32 * MIB] {
        end.by_ring(size);
    }
    for size in [4 << 10, 16 << 10, 64 << 10, 256 << 10, MIB, 4 * MIB, 32 * MIB] {
        end.by_reading(size);
    }
    end.idle_poll();
    end.arm();
    end.sleeping_latency();
}

fn pin(core: usize) {
    // SAFETY: all zero is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: as above; a refusal only makes the figures less steady.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
}

/// The frames that came, and where their bodies go.
#[derive(Default)]
struct Inbox {
    frames: u64,
    barriers: u64,
    target: Option<Buffer>,
    at: usize,
    remote: Option<Remote>,
}

impl Sink for Inbox {
    #[inline]
    fn frame(&mut self, _: Peer, head: &Head, body: &[u8]) {
        if head.kind == 2 {
            self.barriers += 1;
            return;
        }
        self.frames += 1;
        if head.kind == 1 {
            let word = |i: usize| u64::from_le_bytes(body[i * 8..i * 8 + 8].try_into().expect("8 bytes"));
            self.remote = Some(Remote { addr: word(0), len: word(1), key: word(2) });
        } else if let Some(target) = &self.target {
            target.write(self.at as isize, body);
            self.at += body.len();
        }
    }
    fn sent(&mut self, _: Token) {}
    fn completed(&mut self, _: Token, _: Outcome) {}
    fn down(&mut self, peer: Peer, cause: &str) {
        panic!("{peer:?} is gone: {cause}");
    }
}

struct End {
    shm: Shm,
    me: u32,
    inbox: Inbox,
    barriers: u64,
    expected: u64,
}

impl End {
    fn peer(&self) -> Peer {
        Peer(1 - self.me)
    }

    #[inline]
    fn send(&mut self, body: &[u8]) {
        let head = Head { class: Class::P2p, kind: 0, aux: 0, a: 7, b: self.me, ctx: 1 };
        let peer = self.peer();
        loop {
            let sent = if body.len() <= 36 {
                self.shm.send_short(peer, &head, body)
            } else {
                self.shm.send_bcopy(peer, &head, body.len(), &mut |to| to.copy_from_slice(body))
            };
            match sent {
                Ok(()) => return,
                Err(Refusal::Busy) => drop(self.shm.poll(&mut self.inbox)),
                Err(Refusal::Down) => panic!("the peer is gone"),
            }
        }
    }

    #[inline]
    fn await_more(&mut self, frames: u64) {
        self.expected += frames;
        while self.inbox.frames < self.expected {
            self.shm.poll(&mut self.inbox);
        }
    }

    fn barrier(&mut self) {
        let head = Head { class: Class::Control, kind: 2, aux: 0, a: 0, b: 0, ctx: 0 };
        let peer = self.peer();
        while self.shm.send_short(peer, &head, &[]).is_err() {
            self.shm.poll(&mut self.inbox);
        }
        self.barriers += 1;
        while self.inbox.barriers < self.barriers {
            self.shm.poll(&mut self.inbox);
        }
    }

    /// The bound that the machine sets: a cache line that goes from core to core and back.
    fn bare_line(&mut self) {
        let room = if self.me == 0 { self.shm.arena_alloc(2) } else { None };
        let memory = HeapBuffer::zeroed(8);
        memory.write(0, &room.unwrap_or(0).to_le_bytes());
        self.inbox.target = Some(memory.clone());
        if self.me == 0 {
            self.send(&room.expect("room").to_le_bytes());
        } else {
            self.await_more(1);
        }
        (self.inbox.target, self.inbox.at) = (None, 0);
        let mut at = [0; 8];
        memory.read(0, &mut at);
        let arena = self.shm.arena(u64::from_le_bytes(at), self.me, 2, &[0, 1]);
        let peer = 1 - self.me;
        self.barrier();
        let start = Instant::now();
        for round in 1..=u64::from(ROUNDS) {
            if self.me == 0 {
                arena.ack(round);
            }
            while arena.acked(peer) < round {
                std::hint::spin_loop();
            }
            if self.me == 1 {
                arena.ack(round);
            }
        }
        let each = start.elapsed().as_secs_f64() / f64::from(ROUNDS) / 2.0;
        self.say(format!("one word one way         {:>8.3} us", each * 1e6));
    }

    fn say(&self, text: String) {
        if self.me == 0 {
            println!("{text}");
        }
    }

    /// The best of many short runs, in which other programs on the machine hardly show.
    fn latency(&mut self, size: usize) {
        const RUN: u32 = 1000;
        let body = vec![1; size];
        self.barrier();
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS / RUN {
            let start = Instant::now();
            for _ in 0..RUN {
                if self.me == 0 {
                    self.send(&body);
                    self.await_more(1);
                } else {
                    self.await_more(1);
                    self.send(&body);
                }
            }
            best = best.min(start.elapsed().as_secs_f64() / f64::from(RUN) / 2.0);
        }
        self.say(format!("{size:>8} B one way       {:>8.3} us", best * 1e6));
    }

    fn rate(&mut self, size: usize) {
        let body = vec![1; size];
        self.barrier();
        let start = Instant::now();
        for _ in 0..ROUNDS / 64 {
            let frames = if self.me == 0 { 1 } else { 64 };
            if self.me == 0 {
                (0..64).for_each(|_| self.send(&body));
            }
            self.await_more(frames);
            if self.me == 1 {
                self.send(&[]);
            }
        }
        let each = start.elapsed().as_secs_f64() / f64::from(ROUNDS);
        self.say(format!("{size:>8} B, window 64    {:>8.2} M/s", 1e-6 / each));
    }

    /// Messages cut into frames, copied in and out: both copies count as one transfer.
    fn by_ring(&mut self, size: usize) {
        let (source, piece) = (vec![1; size], self.shm.caps(self.peer()).max_bcopy);
        self.inbox.target = Some(HeapBuffer::zeroed(size));
        let rounds = (1 << 30) / size;
        self.barrier();
        let start = Instant::now();
        for _ in 0..rounds {
            let frames = if self.me == 0 { 1 } else { size.div_ceil(piece) as u64 };
            if self.me == 0 {
                source.chunks(piece).for_each(|bytes| self.send(bytes));
            }
            self.await_more(frames);
            self.inbox.at = 0;
            if self.me == 1 {
                self.send(&[]);
            }
        }
        let each = start.elapsed().as_secs_f64() / rounds as f64;
        self.inbox.target = None;
        self.say(format!("{size:>8} B by ring       {:>8.2} GB/s", size as f64 / each / 1e9));
    }

    fn by_reading(&mut self, size: usize) {
        let memory = HeapBuffer::zeroed(size);
        (0..size).step_by(4096).for_each(|at| memory.write(at as isize, &[1]));
        let remote = self.shm.register(self.peer(), &memory, Access::Read).expect("registered");
        let words: Vec<u8> =
            [remote.addr, remote.len, remote.key].iter().flat_map(|w| w.to_le_bytes()).collect();
        let head = Head { class: Class::P2p, kind: 1, aux: 0, a: 0, b: 0, ctx: 0 };
        self.barrier();
        let peer = self.peer();
        while self.shm.send_short(peer, &head, &words).is_err() {}
        while self.inbox.remote.is_none() {
            self.shm.poll(&mut self.inbox);
        }
        let remote = self.inbox.remote.take().expect("just seen");
        let local = HeapBuffer::zeroed(size);
        self.barrier();
        if self.me == 0 {
            let rounds = (1 << 30) / size;
            let start = Instant::now();
            let done = (0..rounds).all(|_| {
                self.shm.get(peer, remote, std::slice::from_ref(&local), Token(0)) == Transfer::Done
            });
            let each = start.elapsed().as_secs_f64() / rounds as f64;
            let rate = if done { size as f64 / each / 1e9 } else { f64::NAN };
            self.say(format!("{size:>8} B by reading    {rate:>8.2} GB/s"));
        }
        self.barrier();
    }

    fn idle_poll(&mut self) {
        self.barrier();
        let start = Instant::now();
        for _ in 0..ROUNDS {
            self.shm.poll(&mut self.inbox);
        }
        let each = start.elapsed().as_secs_f64() / f64::from(ROUNDS);
        self.say(format!("an idle poll             {:>8.4} us", each * 1e6));
        self.barrier();
    }

    /// Measured while the other rank runs, so that the barrier has a thread to reach.
    fn arm(&mut self) {
        const TIMES: u32 = 10_000;
        self.barrier();
        let start = Instant::now();
        if self.me == 0 {
            for _ in 0..TIMES {
                self.shm.arm(Wake::Sleep);
                self.shm.disarm();
            }
        }
        let each = start.elapsed().as_secs_f64() / f64::from(TIMES);
        self.say(format!("arm and disarm           {:>8.3} us", each * 1e6));
        self.barrier();
    }

    fn sleeping_latency(&mut self) {
        const TIMES: u32 = 10_000;
        self.barrier();
        let start = Instant::now();
        for turn in 0..2 * TIMES {
            if turn % 2 == self.me {
                self.send(&[0; 8]);
                continue;
            }
            self.expected += 1;
            while self.inbox.frames < self.expected {
                self.shm.arm(Wake::Sleep);
                if self.shm.poll(&mut self.inbox) == 0 {
                    self.shm.sleep(None);
                }
                self.shm.disarm();
            }
        }
        let each = start.elapsed().as_secs_f64() / f64::from(TIMES) / 2.0;
        self.say(format!("8 B to a sleeper         {:>8.3} us", each * 1e6));
        self.barrier();
    }
}

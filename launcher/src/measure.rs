//! Measures the profile of this machine, in a fraction of a second. Each figure is the least of many short trials, as what else runs
//! on the machine can only make a trial longer. On a busy machine there are few trials: such a figure is left out.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use banyan_datatype::{Datatype, op};
use banyan_memory::{HeapBuffer, vectors};
use banyan_shm::Shm;
use banyan_topo::{DISTANCES, Machine, Profile, get};
use banyan_transport::{Class, Fabric, Head, Outcome, Peer, Port, Refusal, Sink, Token};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

pub(crate) mod curves;

/// How long the trials of a figure take.
const EACH: Duration = Duration::from_millis(8);
/// Trials that a figure needs.
const TRIALS: u32 = 10;
/// After this time no figure is begun: it stays as it was.
const ALL: Duration = Duration::from_millis(280);
/// Longest wait for an answer; a figure that needs longer is none.
const PATIENCE: Duration = Duration::from_millis(20);

/// Bytes that stay in a core's own cache.
const CACHED: usize = 64 << 10;
/// Bytes of a page.
const PAGE: usize = 4 << 10;
/// How much further in its page the target of an aliased copy lies than the source, bytes: as a long block of the C library's heap lies behind its page.
const ALIASED: usize = 16;
/// Bytes of each operand of a sum that stays in a core's first cache.
const SUMMED: usize = 8 << 10;
/// Bytes that no cache holds, at least and at most: as many as the last-level cache has, where that is known, since as many are written.
const UNCACHED: (usize, usize) = (8 << 20, 32 << 20);
/// Most bytes, and fewest, that two CPUs write together in order to see how much of a cache is theirs.
const WRITTEN: (usize, usize) = (128 << 20, 2 << 20);
/// They stay in the cache if they are written in at most this part of the time that it takes past the caches.
const STAYS: f64 = 1.1;
/// Bytes of a long message, of a frame of it, and of a short one; messages of a stream.
const LONG: usize = 1 << 20;
const FRAME: usize = 16 << 10;
const SHORT: usize = 8;
const STREAM: usize = 32;

/// The profile of this machine: the one `before`, with what could be measured.
pub(crate) fn measure(before: Profile) -> Profile {
    let begin = Instant::now();
    let mut figures: Vec<(String, f64)> = Vec::new();
    let mut take = |names: &[String], what: &mut dyn FnMut() -> Vec<f64>| {
        if begin.elapsed() < ALL {
            figures.extend(names.iter().cloned().zip(what()));
        }
    };
    let machine = Machine::read();
    let pairs = pairs(&machine);
    let named = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let (call, own) = (system_call(), get(&[0; SHORT], &mut [0; SHORT]));
    take(
        &named(&["system_call", "copy_byte", "aliased_copy_byte", "memory_byte", "reduce_byte"]),
        &mut || vec![call, copy(CACHED, 0), copy(CACHED, ALIASED), copy(uncached(&machine), 0), reduce()],
    );
    if own {
        take(&named(&["own_single_copy_byte", "aliased_single_copy_byte"]), &mut || {
            vec![own_single_copy(0), own_single_copy(ALIASED)]
        });
    }
    for (distance, cpus) in DISTANCES.iter().zip(pairs).rev() {
        let Some(cpus) = cpus else { continue };
        let names =
            |parts: &[&str]| parts.iter().map(|part| format!("{distance}.{part}")).collect::<Vec<_>>();
        take(&names(&["line", "copy_byte", "vector_copy_byte"]), &mut || {
            vec![line(cpus), others_copy(cpus, by_library), others_copy(cpus, vectors::copy)]
        });
        if own {
            let mut single = (f64::NAN, f64::NAN);
            take(&names(&["single_copy_byte"]), &mut || {
                single = single_copy(cpus);
                vec![single.1]
            });
            if *distance == "near" {
                take(&named(&["single_copy"]), &mut || vec![single.0 - call]);
            }
        }
        take(&names(&["latency", "overhead", "byte"]), &mut || {
            rings(by_library).map_or(vec![], |ways| message(cpus, ways))
        });
        take(&names(&["vector_byte"]), &mut || {
            rings(vectors::copy).map_or(vec![], |ways| long_message(cpus, ways))
        });
    }
    if let Some(cpus) = pairs.into_iter().rev().flatten().next() {
        let names = ["loopback.latency", "loopback.overhead", "loopback.byte"];
        take(&named(&names), &mut || sockets().map_or(vec![], |ways| message(cpus, ways)));
    }
    if let Some(cpu) = machine.cpus().first() {
        take(&named(&["turn"]), &mut || {
            vec![Some(turn(cpu.id)).filter(|&turn| turn > 2.0 * call).map_or(f64::NAN, |turn| turn - call)]
        });
        take(&named(&["cold_page"]), &mut || vec![cold_page(cpu.id)]);
    }
    if let [_, _, Some(near)] = pairs
        && let told @ 1.. = last_level_cache(&machine, near.0)
    {
        // The longest one, and so the last, whatever time is left.
        figures.push(("last_level_cache".to_owned(), cache(near, told)));
    }
    before.with(figures.iter().map(|(name, seconds)| (name.as_str(), *seconds)))
}

/// How many bytes to copy so that no cache holds them.
fn uncached(machine: &Machine) -> usize {
    machine.cpus().first().map_or(0, |cpu| last_level_cache(machine, cpu.id)).clamp(UNCACHED.0, UNCACHED.1)
}

/// Bytes of a CPU's last-level cache, as the system tells; 0: it does not.
fn last_level_cache(machine: &Machine, cpu: u32) -> usize {
    machine.caches(cpu).last().map_or(0, |cache| cache.bytes as usize)
}

/// What two CPUs have of a last-level cache of so many bytes that they share, as the system tells. In a virtual machine others use it, too. As copies go past a cache from half of it
/// on ([`banyan_topo::fills`]) that is twice as much as both can write over and over no slower than past the caches.
fn cache(cpus: (u32, u32), told: usize) -> f64 {
    let most = (told / 2).min(WRITTEN.0);
    let [mut mine, mut others] = [(); 2].map(|()| Placed::new(most / 2, 0));
    let mut bytes = most;
    while bytes >= WRITTEN.1 {
        // What others do meanwhile makes it seem smaller: twice is enough to tell.
        for _ in 0..2 {
            let mut both = |copy| {
                both_write(cpus, copy, [&mut mine, &mut others].map(|to| &mut to.bytes()[..bytes / 2]))
            };
            let (kept, past) = (both(by_library), both(vectors::copy_past));
            if kept.is_nan() || past.is_nan() {
                return f64::NAN;
            }
            if kept <= STAYS * past {
                return if bytes == most { told } else { 2 * bytes } as f64;
            }
        }
        bytes /= 2;
    }
    2.0 * WRITTEN.1 as f64
}

/// The seconds in which one of two CPUs writes all of its memory, by copies out of its own cache, while the other one does the same.
fn both_write(cpus: (u32, u32), copy: Copy, [mine, others]: [&mut [u8]; 2]) -> f64 {
    let (from, is_over) = (vec![1; CACHED], AtomicBool::new(false));
    let lap = |to: &mut [u8]| to.chunks_exact_mut(CACHED).all(|to| copy(&from, to));
    let other = || {
        while !is_over.load(Ordering::Relaxed) {
            lap(others);
        }
    };
    beside(cpus, other, || {
        // Behind the first lap each cache has what it can hold.
        lap(mine);
        let least = (0..3).map(|_| timed_if(|| lap(mine))).fold(f64::NAN, f64::min);
        is_over.store(true, Ordering::Relaxed);
        least
    })
}

/// For each of the [`DISTANCES`] two CPUs that are so apart, the first of them the machine's first one.
fn pairs(machine: &Machine) -> [Option<(u32, u32)>; 3] {
    let Some((first, others)) = machine.cpus().split_first() else { return [None; 3] };
    let near = machine.last_level_cache(first.id);
    let mut pairs = [None; 3];
    for cpu in others.iter().filter(|cpu| (cpu.socket, cpu.core) != (first.socket, first.core)) {
        let apart = if cpu.socket != first.socket {
            0
        } else if near.contains(cpu.id) {
            2
        } else {
            1
        };
        pairs[apart] = pairs[apart].or(Some((first.id, cpu.id)));
    }
    pairs
}

/// The least seconds of many trials; no number if only few could be made, or one was none: then something else has had the cores.
fn least(mut trial: impl FnMut() -> f64) -> f64 {
    let begin = Instant::now();
    let (mut least, mut trials) = (f64::INFINITY, 0);
    while begin.elapsed() < EACH || trials < TRIALS && begin.elapsed() < 3 * EACH {
        let seconds = trial();
        if seconds.is_nan() {
            return f64::NAN;
        }
        (least, trials) = (least.min(seconds), trials + 1);
    }
    if trials < TRIALS { f64::NAN } else { least }
}

fn timed(what: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    what();
    begin.elapsed().as_secs_f64()
}

/// The seconds of what may fail; no number if it does.
fn timed_if(what: impl FnOnce() -> bool) -> f64 {
    let mut done = false;
    let seconds = timed(|| done = what());
    if done { seconds } else { f64::NAN }
}

fn system_call() -> f64 {
    least(|| timed(|| (0..100).for_each(|_| _ = std::hint::black_box(rustix::process::getppid()))) / 100.0)
}

/// Memory that begins so many bytes behind the start of a page. How fast a copy is may depend on where in their pages both ends lie.
struct Placed {
    memory: Vec<u8>,
    start: usize,
}

impl Placed {
    fn new(bytes: usize, place: usize) -> Placed {
        // Written, so that it is there.
        let memory = vec![1; bytes + 2 * PAGE];
        let start = memory.as_ptr().align_offset(PAGE) + place;
        Placed { memory, start }
    }

    /// All but what is around them.
    fn bytes(&mut self) -> &mut [u8] {
        let bytes = self.memory.len() - 2 * PAGE;
        &mut self.memory[self.start..self.start + bytes]
    }
}

/// A byte copied, of so many, to a place so many bytes further in its page.
fn copy(bytes: usize, further: usize) -> f64 {
    let (mut from, mut to) = (Placed::new(bytes, 0), Placed::new(bytes, further));
    let (from, to) = (from.bytes(), to.bytes());
    least(|| timed_if(|| by_library(std::hint::black_box(from), std::hint::black_box(to))) / bytes as f64)
}

/// A byte of a single copy within this process to a place so many bytes further in its page.
fn own_single_copy(further: usize) -> f64 {
    let (mut from, mut to) = (Placed::new(CACHED, 0), Placed::new(CACHED, further));
    let (from, to) = (from.bytes(), to.bytes());
    least(|| timed_if(|| get(from, to)) / CACHED as f64)
}

/// A byte of a sum of doubles, as collectives add it up: of few, as many ranks add up.
fn reduce() -> f64 {
    /// MPI_DOUBLE in the ABI.
    const DOUBLE: u16 = 0x214;
    let (Some(double), from, to) =
        (Datatype::builtin(DOUBLE), HeapBuffer::zeroed(SUMMED), HeapBuffer::zeroed(SUMMED))
    else {
        return f64::NAN;
    };
    let add = || drop(op::reduce(op::Builtin::Sum, double, &from, &to, SUMMED as u64 / 8));
    least(|| timed(add) / SUMMED as f64)
}

/// Runs `mine` on the first of two CPUs while `other` runs on the second one.
fn beside(cpus: (u32, u32), other: impl FnOnce() + Send, mine: impl FnOnce() -> f64) -> f64 {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            bind(cpus.1);
            other();
        });
        bind(cpus.0);
        mine()
    })
}

/// Binds this thread. Where the system refuses, the kernel's choice is measured.
fn bind(cpu: u32) {
    let mut only = rustix::thread::CpuSet::new();
    only.set(cpu as usize);
    let _ = rustix::thread::sched_setaffinity(None, &only);
}

/// A word in cache lines of its own.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// By which one thread asks the other for something, time and again.
#[derive(Default)]
struct Baton {
    asked: Line,
    done: Line,
}

impl Baton {
    /// What ends [`Baton::serve`].
    const END: u64 = u64::MAX;

    fn serve(&self, mut what: impl FnMut()) {
        let mut last = 0;
        loop {
            match self.asked.0.load(Ordering::Acquire) {
                Baton::END => return,
                asked if asked != last => {
                    what();
                    last = asked;
                    self.done.0.store(asked, Ordering::Release);
                }
                _ => {}
            }
        }
    }

    fn ask(&self) {
        let number = self.asked.0.load(Ordering::Relaxed) + 1;
        self.asked.0.store(number, Ordering::Release);
        while self.done.0.load(Ordering::Acquire) != number {}
    }

    fn end(&self) {
        self.asked.0.store(Baton::END, Ordering::Release);
    }
}

/// A cache line to the other core: half of the way there and back.
fn line(cpus: (u32, u32)) -> f64 {
    let baton = Baton::default();
    let mine = || {
        let least = least(|| timed(|| (0..100).for_each(|_| baton.ask())) / 200.0);
        baton.end();
        least
    };
    beside(cpus, || baton.serve(|| {}), mine)
}

/// A copy between two slices of the same length; false if it cannot be made.
type Copy = fn(&[u8], &mut [u8]) -> bool;

/// As the C library copies.
fn by_library(from: &[u8], to: &mut [u8]) -> bool {
    to.copy_from_slice(from);
    true
}

/// The least that `what` takes with memory that the other core has just written.
fn with_others(cpus: (u32, u32), mut what: impl FnMut(&[u8]) -> f64) -> f64 {
    let (baton, memory) = (Baton::default(), Mutex::new(Placed::new(CACHED, 0)));
    let lock = || memory.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let write = || lock().bytes().iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
    let mine = || {
        let least = least(|| {
            baton.ask();
            what(lock().bytes())
        });
        baton.end();
        least
    };
    beside(cpus, || baton.serve(write), mine)
}

/// A byte copied of what the other core has just written.
fn others_copy(cpus: (u32, u32), copy: Copy) -> f64 {
    let mut to = Placed::new(CACHED, 0);
    with_others(cpus, |from| timed_if(|| copy(from, std::hint::black_box(to.bytes())))) / CACHED as f64
}

/// A single copy of few bytes, and a byte of a longer one: the mean of what the other core has just written, and of what this one has
/// got before. Programs send either, and on some processors the latter takes half as long.
fn single_copy(cpus: (u32, u32)) -> (f64, f64) {
    let mut to = Placed::new(CACHED, 0);
    let mut of = |from: &[u8]| timed_if(|| get(from, &mut to.bytes()[..from.len()]));
    let few = with_others(cpus, |from| of(&from[..SHORT]));
    let written = with_others(cpus, &mut of);
    let known = with_others(cpus, |from| of(from).min(of(from)));
    (few, (written.midpoint(known) - few) / (CACHED - SHORT) as f64)
}

/// One end of a connection between two threads.
trait Way: Send {
    /// Sends so many bytes, behind which `more` may follow at once.
    fn send(&mut self, bytes: usize, more: bool);

    /// How many bytes have come since the last call.
    fn received(&mut self) -> usize;
}

/// The figures of a [`Message`](banyan_topo::Message).
fn message<W: Way>(cpus: (u32, u32), ways: (W, W)) -> Vec<f64> {
    exchanges(cpus, ways, |exchange| {
        let one = least(|| exchange(SHORT, 1));
        let more = least(|| exchange(SHORT, STREAM));
        vec![one / 2.0, (more - one) / (STREAM - 1) as f64, byte(exchange, one)]
    })
}

/// Of these the last one.
fn long_message<W: Way>(cpus: (u32, u32), ways: (W, W)) -> Vec<f64> {
    exchanges(cpus, ways, |exchange| {
        let one = least(|| exchange(SHORT, 1));
        vec![byte(exchange, one)]
    })
}

/// A byte of a long message, where a short one and the answer to it take `one`.
fn byte(exchange: &mut dyn FnMut(usize, usize) -> f64, one: f64) -> f64 {
    (least(|| exchange(LONG, 1)) - one) / LONG as f64
}

/// What `measure` gives, which may have exchanges: it sends so many bytes so many times, which the other thread answers each with a few.
fn exchanges<W: Way>(
    cpus: (u32, u32),
    (mut mine, mut other): (W, W),
    measure: impl FnOnce(&mut dyn FnMut(usize, usize) -> f64) -> Vec<f64>,
) -> Vec<f64> {
    let (each, over) = (AtomicUsize::new(SHORT), AtomicBool::new(false));
    let answer = || {
        let mut got = 0;
        while !over.load(Ordering::Relaxed) {
            got += other.received();
            while got >= each.load(Ordering::Acquire) {
                got -= each.load(Ordering::Acquire);
                other.send(SHORT, got >= each.load(Ordering::Acquire));
            }
        }
    };
    let mut exchange = |bytes: usize, times: usize| {
        each.store(bytes, Ordering::Release);
        let begin = Instant::now();
        (1..=times).for_each(|number| mine.send(bytes, number < times));
        match heard(&mut mine, times * SHORT) {
            true => begin.elapsed().as_secs_f64(),
            false => f64::NAN,
        }
    };
    let mut figures = vec![];
    beside(cpus, answer, || {
        figures = measure(&mut exchange);
        over.store(true, Ordering::Relaxed);
        0.0
    });
    figures
}

/// Waits until so many bytes have come; false if that takes too long.
fn heard(way: &mut impl Way, bytes: usize) -> bool {
    let begin = Instant::now();
    let (mut got, mut polls) = (0, 0u32);
    while got < bytes {
        got += way.received();
        polls += 1;
        if polls.is_multiple_of(1 << 10) && begin.elapsed() > PATIENCE {
            return false;
        }
    }
    true
}

/// An end of a pair's rings in shared memory.
struct Ring {
    shm: Shm,
    peer: Peer,
    memory: Placed,
    copy: Copy,
}

fn rings(copy: Copy) -> Option<(Ring, Ring)> {
    let memory = Shm::memory(2, banyan_topo::private_cache()).ok()?;
    let ring = |me: u32| {
        let shm = Shm::attach(memory.try_clone().ok()?, me, &[Peer(0), Peer(1)], Default::default()).ok()?;
        Some(Ring { shm, peer: Peer(1 - me), memory: Placed::new(FRAME, 0), copy })
    };
    Some((ring(0)?, ring(1)?))
}

impl Way for Ring {
    fn send(&mut self, bytes: usize, _: bool) {
        const HEAD: Head = Head { class: Class::P2p, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };
        let mut left = bytes;
        while left > 0 {
            let part = left.min(FRAME);
            let (copy, body) = (self.copy, &self.memory.bytes()[..part]);
            let sent = match part {
                SHORT => self.shm.send_short(self.peer, &HEAD, body),
                _ => self.shm.send_bcopy(self.peer, &HEAD, part, &mut |room| _ = copy(body, room)),
            };
            match sent {
                Ok(()) => left -= part,
                Err(Refusal::Busy) => {}
                Err(_) => return,
            }
        }
    }

    fn received(&mut self) -> usize {
        let mut arrived = Arrived { into: self.memory.bytes(), copy: self.copy, bytes: 0 };
        self.shm.poll(&mut arrived);
        arrived.bytes
    }
}

/// Takes the bytes of all frames.
struct Arrived<'a> {
    into: &'a mut [u8],
    copy: Copy,
    bytes: usize,
}

impl Sink for Arrived<'_> {
    fn frame(&mut self, _: Peer, _: &Head, body: &[u8]) {
        (self.copy)(body, &mut self.into[..body.len()]);
        self.bytes += body.len();
    }
    fn sent(&mut self, _: Token) {}
    fn completed(&mut self, _: Token, _: Outcome) {}
    fn down(&mut self, _: Peer, _: &str) {}
}

/// An end of a TCP connection over the loopback, which polls as ranks do.
struct Socket {
    stream: TcpStream,
    memory: Vec<u8>,
}

fn sockets() -> Option<(Socket, Socket)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    let one = TcpStream::connect(listener.local_addr().ok()?).ok()?;
    let (other, _) = listener.accept().ok()?;
    let socket = |stream: TcpStream| {
        stream.set_nodelay(true).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(Socket { stream, memory: vec![0; LONG] })
    };
    Some((socket(one)?, socket(other)?))
}

impl Way for Socket {
    fn send(&mut self, bytes: usize, more: bool) {
        // As the fabric does it: the kernel gathers what follows.
        let flags = if more { SendFlags::MORE } else { SendFlags::empty() };
        let mut left = bytes;
        while left > 0 {
            match send(&self.stream, &self.memory[..left.min(LONG)], flags) {
                Ok(sent) => left -= sent,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn received(&mut self) -> usize {
        self.stream.read(&mut self.memory).unwrap_or(0)
    }
}

/// The median of many trials; no number if it is far from the least one: a yield that gave the core to nobody is quicker than any other.
fn steady(mut trial: impl FnMut() -> f64) -> f64 {
    let mut trials = vec![];
    let least = least(|| {
        trials.push(trial());
        trials[trials.len() - 1]
    });
    trials.sort_by(f64::total_cmp);
    let median = trials.get(trials.len() / 2).copied().unwrap_or(f64::NAN);
    if median < 2.0 * least { median } else { f64::NAN }
}

/// A yield to another process on the same CPU: half of the way there and back.
fn turn(cpu: u32) -> f64 {
    beside_process(cpu, 0, || steady(|| timed(|| (0..20).for_each(|_| std::thread::yield_now())) / 40.0))
}

/// A touch of a page after a yield to a process that touches others, beyond one of a page that is at hand.
fn cold_page(cpu: u32) -> f64 {
    let pages = Pages::new(TOUCHED);
    let once = || {
        std::thread::yield_now();
        let (cold, known) = (timed(|| pages.touch()), timed(|| pages.touch()));
        (cold - known) / TOUCHED as f64
    };
    beside_process(cpu, TOUCHED_BETWEEN, || steady(|| (0..20).map(|_| once()).sum::<f64>() / 20.0))
}

/// Pages that are touched after a turn, and by the other process before it: as by seven other ranks.
const TOUCHED: usize = 16;
const TOUCHED_BETWEEN: usize = 7 * TOUCHED;
/// Bytes from page to page: so many that the table of one's translation is in another cache line than that of the next one.
const APART: usize = 68 << 10;

/// Pages far from each other, in each of which a word leads to the next one.
struct Pages(Vec<usize>);

impl Pages {
    fn new(number: usize) -> Pages {
        // In a line of its own in each, so that they do not share a place in the caches.
        let place = |page: usize| (page * APART + page * 5 % 64 * 64) / size_of::<usize>();
        let mut words = vec![0; number * APART / size_of::<usize>()];
        // The first word leads to the first page.
        (0..number).for_each(|page| words[place(page)] = place((page + 1) % number));
        Pages(words)
    }

    /// Touches them one after the other.
    fn touch(&self) {
        let pages = self.0.len() * size_of::<usize>() / APART;
        std::hint::black_box((0..pages).fold(0, |at, _| self.0[at]));
    }
}

/// What `measure` gives on this CPU while another process there yields, and touches so many pages between yields.
fn beside_process(cpu: u32, touches: usize, measure: impl FnOnce() -> f64) -> f64 {
    bind(cpu);
    let program = std::env::current_exe().and_then(|program| {
        let mut program = Command::new(program);
        program.arg(YIELDS).arg(touches.to_string()).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
    });
    let Ok(mut other) = program else { return f64::NAN };
    // It has begun when it says so.
    let begun = other.stdout.as_mut().is_some_and(|output| output.read_exact(&mut [0]).is_ok());
    banyan_shm::shorten_slices();
    let measured = if begun { measure() } else { f64::NAN };
    let _ = other.kill().and_then(|()| other.wait());
    measured
}

/// The argument that makes mpirun the other process of [`beside_process`]; how many pages it touches follows.
pub(crate) const YIELDS: &str = "--yields";

/// Says that it has begun, and yields its core for as long as its parent lives, but some seconds at most. Between yields it touches so many pages.
pub(crate) fn yields(touches: usize) -> u8 {
    let (parent, begin) = (rustix::process::getppid(), Instant::now());
    let pages = Pages::new(touches);
    banyan_shm::shorten_slices();
    let _ = std::io::stdout().write_all(b"!").and_then(|()| std::io::stdout().flush());
    while rustix::process::getppid() == parent && begin.elapsed() < Duration::from_secs(3) {
        (0..1000).for_each(|_| {
            pages.touch();
            std::thread::yield_now();
        });
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::machine;

    #[test]
    fn there_is_a_pair_for_each_distance_that_the_machine_has() {
        let of = |name| pairs(&machine(name));
        assert_eq!(of("laptop"), [None, None, Some((0, 2))]);
        assert_eq!(of("epyc"), [None, Some((0, 8)), Some((0, 1))]);
        assert_eq!(of("xeon"), [Some((0, 28)), None, Some((0, 1))]);
        // No two cores of the Arm server share a cache.
        assert_eq!(of("arm"), [Some((0, 80)), Some((0, 1)), None]);
        assert_eq!(of("board"), [None, Some((4, 0)), Some((4, 5))]);
        let one = Machine::of(machine("laptop").cpus()[..2].to_vec());
        assert_eq!(pairs(&one), [None; 3], "two threads of a core are no pair");
    }

    /// Whatever else runs here: all figures are within bounds, and can be kept.
    #[test]
    fn this_machine_can_be_measured() {
        let built_in = Profile::default();
        let mut measured = measure(built_in);
        let text = measured.text("here");
        assert_eq!(Profile::parse(&text).map(|(read, _)| read.text("here")), Ok(text));
        assert!(measured.figures().iter().all(|(_, figure)| figure.is_finite()));
        assert_eq!(measured.network, built_in.network, "it is never measured");
    }
}

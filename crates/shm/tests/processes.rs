//! Ranks as real processes, started from this program: exchange under a seed, reads across address spaces,
//! collectives in an arena with ranks that sleep, death, and children after fork.

mod common;

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use banyan_memory::HeapBuffer;
use banyan_shm::{Published, Shm, SingleCopy};
use banyan_transport::random::Random;
use banyan_transport::{
    Access, Fabric, Head, Kinds, Outcome, Peer, Port, Remote, Sink, Token, Transfer, Wake,
};
use common::{Inbox, attach, head, say, without};

/// No test takes longer than this; a process that is stuck ends itself.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Name, number of ranks, and what each rank does.
type Test = (&'static str, u32, fn(Shm, u32));

const TESTS: [Test; 5] = [
    ("frames_and_reads", 3, frames_and_reads),
    ("frames_where_reading_is_refused", 2, frames_where_reading_is_refused),
    ("collectives", 4, collectives),
    ("death", 2, death),
    ("fork", 2, fork),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, name, me, path] = &args[..]
        && flag == "--rank"
    {
        let memory = OpenOptions::new().read(true).write(true).open(path).expect("the node's memory");
        return rank(name, me.parse().expect("a number"), memory.into());
    }
    let filter = args.iter().find(|arg| !arg.starts_with('-'));
    let mut passed = 0;
    for (name, ranks, _) in TESTS.iter().filter(|test| filter.is_none_or(|part| test.0.contains(part))) {
        start(name, *ranks);
        println!("test {name} ... ok");
        passed += 1;
    }
    println!("\ntest result: ok. {passed} passed; 0 failed; 0 ignored");
}

fn start(name: &str, ranks: u32) {
    let memory = Shm::memory(ranks, None).expect("memory");
    let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
    let program = std::env::current_exe().expect("this program");
    let one = |me: u32| {
        let args = ["--rank", name, &me.to_string(), &path];
        Command::new(&program).args(args).spawn().expect("a process")
    };
    let children: Vec<Child> = (0..ranks).map(one).collect();
    for (me, mut child) in children.into_iter().enumerate() {
        let status = child.wait().expect("it was started");
        let killed = name == "death" && me == 1;
        assert!(status.success() != killed, "{name}: rank {me}: {status}");
    }
}

fn rank(name: &str, me: u32, memory: OwnedFd) {
    // SAFETY: plain numbers. A test that is stuck must not stay.
    unsafe { libc::alarm(TIMEOUT.as_secs() as u32) };
    let (_, ranks, test) = TESTS.into_iter().find(|test| test.0 == name).expect("a test of this name");
    test(attach(&memory, me, ranks as usize, SingleCopy::Auto), me);
}

/// What a rank of the exchange has to check, and the reads that it has to do.
struct Exchange {
    next: Vec<u32>,
    exposed: Vec<(Peer, Remote, u64)>,
    finished: usize,
}

const FRAMES: u32 = 3000;
const EXPOSE: u8 = 1;
const ANSWER: u8 = 2;

impl Sink for Exchange {
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        match head.kind {
            EXPOSE => {
                let word = |i: usize| u64::from_le_bytes(body[i * 8..][..8].try_into().expect("8 bytes"));
                let remote = Remote { addr: word(0), len: word(1), key: word(2) };
                self.exposed.push((peer, remote, head.ctx));
            }
            ANSWER => self.finished += 1,
            _ => {
                let next = &mut self.next[peer.0 as usize];
                assert_eq!(head.a, *next, "order of {peer:?}");
                assert!(body.len() == head.b as usize && is_pattern(head.ctx, body), "bytes of {peer:?}");
                *next += 1;
            }
        }
    }
    fn sent(&mut self, _: Token) {}
    fn completed(&mut self, _: Token, _: Outcome) {}
    fn down(&mut self, peer: Peer, cause: &str) {
        panic!("{peer:?} is gone: {cause}");
    }
}

fn fill(seed: u64, bytes: &mut [u8]) {
    let step = seed | 1;
    bytes.iter_mut().enumerate().for_each(|(i, b)| *b = (step.wrapping_mul(i as u64 + 1) >> 32) as u8);
}

fn is_pattern(seed: u64, bytes: &[u8]) -> bool {
    let step = seed | 1;
    bytes.iter().enumerate().all(|(i, &b)| b == (step.wrapping_mul(i as u64 + 1) >> 32) as u8)
}

fn frames_where_reading_is_refused(shm: Shm, me: u32) {
    without(libc::SYS_process_vm_readv, || exchange(shm, me, 2, Some(false)));
}

fn frames_and_reads(shm: Shm, me: u32) {
    exchange(shm, me, 3, None);
}

/// Frames of random lengths to all others, sleeping when nothing is to be done; then each reads memory of
/// each. `readable`: what must be found about reading, if that is known.
fn exchange(mut shm: Shm, me: u32, ranks: u32, readable: Option<bool>) {
    let mut random = Random::new(u64::from(me) + 1);
    let mut state = Exchange { next: vec![0; ranks as usize], exposed: vec![], finished: 0 };
    let mut sent = vec![0; ranks as usize];
    let others: Vec<u32> = (0..ranks).filter(|&to| to != me).collect();
    loop {
        let unsent: Vec<u32> = others.iter().copied().filter(|&to| sent[to as usize] < FRAMES).collect();
        let received = others.iter().all(|&from| state.next[from as usize] == FRAMES);
        if unsent.is_empty() && received {
            break;
        }
        let went = unsent.iter().any(|&to| send_one(&mut shm, to, &mut sent[to as usize], &mut random));
        if shm.poll(&mut state) == 0 && !went {
            sleep_for_news(&mut shm, &mut state);
        }
    }
    read_all(&mut shm, &mut state, &others);
    let peer = Peer(others[0]);
    assert!(readable.is_none_or(|known| shm.can_get(peer) == Some(known)), "{:?}", shm.can_get(peer));
}

fn send_one(shm: &mut Shm, to: u32, number: &mut u32, random: &mut Random) -> bool {
    let max = if random.once_in(10) { shm.caps(Peer(to)).max_bcopy } else { 100 };
    let (len, ctx) = (random.below(max + 1), random.word());
    let head = Head { a: *number, b: len as u32, ctx, ..head(0) };
    let went = shm.send_bcopy(Peer(to), &head, len, &mut |body| fill(ctx, body)).is_ok();
    *number += u32::from(went);
    went
}

fn sleep_for_news(shm: &mut Shm, sink: &mut impl Sink) {
    shm.arm(Wake::Sleep);
    if shm.poll(sink) == 0 {
        shm.sleep(Some(Instant::now() + TIMEOUT));
    }
    shm.disarm();
}

/// Exposes memory to all others, reads theirs, and waits until all have read this rank's.
fn read_all(shm: &mut Shm, state: &mut Exchange, others: &[u32]) {
    const LEN: usize = 3_000_001;
    let mut bytes = vec![0; LEN];
    fill(77, &mut bytes);
    let source = HeapBuffer::copy_of(&bytes);
    for &to in others {
        let remote = shm.register(Peer(to), &source, Access::Read).expect("registered");
        let words: Vec<u8> =
            [remote.addr, remote.len, remote.key].iter().flat_map(|word| word.to_le_bytes()).collect();
        let head = Head { kind: EXPOSE, ctx: 77, ..head(0) };
        while shm.send_short(Peer(to), &head, &words).is_err() {
            shm.poll(state);
        }
    }
    let mut answers = 0;
    while answers < others.len() || state.finished < others.len() {
        if shm.poll(state) == 0 && state.exposed.is_empty() {
            sleep_for_news(shm, state);
        }
        for (peer, remote, seed) in std::mem::take(&mut state.exposed) {
            read_one(shm, peer, remote, seed);
            let head = Head { kind: ANSWER, ..head(0) };
            while shm.send_short(peer, &head, &[]).is_err() {
                shm.poll(state);
            }
            answers += 1;
        }
    }
}

fn read_one(shm: &mut Shm, peer: Peer, remote: Remote, seed: u64) {
    let local = HeapBuffer::zeroed(remote.len as usize);
    let outcome = shm.get(peer, remote, std::slice::from_ref(&local), Token(0));
    assert_eq!(outcome == Transfer::Done, shm.can_get(peer) == Some(true), "{outcome:?}");
    if outcome == Transfer::Done {
        let mut found = vec![0; local.len()];
        local.read(0, &mut found);
        assert!(is_pattern(seed, &found), "bytes read from {peer:?}");
    }
}

/// Sums in an arena, with more ranks than cores; each rank sleeps at once when it has to wait.
fn collectives(mut shm: Shm, me: u32) {
    const N: u32 = 4;
    let at = agree_on_room(&mut shm, me, N);
    let arena = shm.arena(at, me, N, &[0, 1, 2, 3]);
    let seen = |rank, seq| match arena.poll(rank, seq, false)? {
        Published::Inline(data) => {
            let mut word = [0; 8];
            data.read(0, &mut word);
            Some(u64::from_le_bytes(word))
        }
        Published::Exposed(_) => panic!("published inline"),
    };
    for seq in 1..=500u64 {
        until(&mut shm, || (0..N).all(|r| arena.acked(r) + 2 >= seq));
        arena.publish(seq, &HeapBuffer::copy_of(&(seq + u64::from(me)).to_le_bytes()));
        until(&mut shm, || (0..N).all(|r| seen(r, seq).is_some()));
        let sum: u64 = (0..N).filter_map(|r| seen(r, seq)).sum();
        assert_eq!(sum, seq * u64::from(N) + u64::from(N * (N - 1) / 2));
        arena.ack(seq);
    }
    // No rank leaves before all have read.
    let mine = HeapBuffer::copy_of(&[me as u8; 70_000]);
    arena.expose(501, &mine);
    until(&mut shm, || (0..N).all(|r| arena.poll(r, 501, false).is_some()));
    let part = HeapBuffer::zeroed(1000);
    let peer = (me + 1) % N;
    assert_eq!(Some(arena.get(peer, 501, 69_000, &part)), arena.can_get(peer));
    arena.ack(501);
    until(&mut shm, || (0..N).all(|r| arena.acked(r) >= 501));
}

fn agree_on_room(shm: &mut Shm, me: u32, ranks: u32) -> u64 {
    if me == 0 {
        let at = shm.arena_alloc(ranks).expect("room");
        for to in 1..ranks {
            shm.send_short(Peer(to), &Head { ctx: at, ..head(0) }, &[]).expect("room for one frame");
        }
        return at;
    }
    struct Word(Option<u64>);
    impl Sink for Word {
        fn frame(&mut self, _: Peer, head: &Head, _: &[u8]) {
            self.0 = Some(head.ctx);
        }
        fn sent(&mut self, _: Token) {}
        fn completed(&mut self, _: Token, _: Outcome) {}
        fn down(&mut self, _: Peer, _: &str) {}
    }
    let mut word = Word(None);
    loop {
        match word.0 {
            Some(at) => return at,
            None => sleep_for_news(shm, &mut word),
        }
    }
}

fn until(shm: &mut Shm, mut done: impl FnMut() -> bool) {
    while !done() {
        shm.arm(Wake::Sleep);
        shm.poll(&mut Inbox::default());
        if !done() {
            shm.sleep(Some(Instant::now() + TIMEOUT));
        }
        shm.disarm();
    }
}

/// Rank 1 is killed while its memory is exposed: reading it is impossible, and nothing faults.
fn death(mut shm: Shm, me: u32) {
    if me == 1 {
        let memory = HeapBuffer::copy_of(&[1; 1 << 20]);
        let remote = shm.register(Peer(0), &memory, Access::Read).expect("registered");
        let words: Vec<u8> =
            [remote.addr, remote.len, remote.key].iter().flat_map(|w| w.to_le_bytes()).collect();
        let head = Head { a: std::process::id(), ..head(0) };
        shm.send_short(Peer(0), &head, &words).expect("room for one frame");
        loop {
            sleep_for_news(&mut shm, &mut Inbox::default());
        }
    }
    let mut inbox = Inbox::default();
    while inbox.frames.is_empty() {
        sleep_for_news(&mut shm, &mut inbox);
    }
    let word = |i: usize| u64::from_le_bytes(inbox.bodies[0][i * 8..][..8].try_into().expect("8 bytes"));
    let remote = Remote { addr: word(0), len: word(1), key: word(2) };
    let local = HeapBuffer::zeroed(1 << 20);
    let alive = shm.get(Peer(1), remote, std::slice::from_ref(&local), Token(0));
    assert_eq!(alive == Transfer::Done, shm.can_get(Peer(1)) == Some(true));
    kill_and_see_it_gone(inbox.frames[0].1);
    assert_eq!(shm.get(Peer(1), remote, std::slice::from_ref(&local), Token(0)), Transfer::Impossible);
    assert_eq!(shm.caps(Peer(1)).get, Kinds::NONE);
    // Until the death is reported, sends reach nobody, and do no harm.
    while shm.send_bcopy(Peer(1), &head(0), 4096, &mut |_| ()).is_ok() {}
    shm.peer_died(Peer(1), "killed by signal 9");
    while inbox.lost.is_empty() {
        shm.poll(&mut inbox);
    }
    assert!(shm.send_short(Peer(1), &head(0), &[]).is_err());
}

fn kill_and_see_it_gone(pid: u32) {
    // SAFETY: plain numbers; the process is this test's own.
    unsafe { libc::kill(pid as i32, libc::SIGKILL) };
    let gone = |state: &str| !state.contains("State:") || state.contains("zombie") || state.contains("dead");
    let status = || std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    while !gone(&status()) {
        std::thread::yield_now();
    }
}

/// A child after fork that drops its copy of the fabric leaves the parent as it was.
fn fork(mut shm: Shm, me: u32) {
    let peer = 1 - me;
    let mut inbox = Inbox::default();
    say(&mut shm, peer, 1);
    while inbox.frames.is_empty() {
        sleep_for_news(&mut shm, &mut inbox);
    }
    // SAFETY: one thread; the child only drops, and ends without unwinding or flushing.
    match unsafe { libc::fork() } {
        0 => {
            drop(shm);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        child => {
            assert!(child > 0, "fork");
            let mut status = 0;
            // SAFETY: waits for the child just made.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child ends well");
        }
    }
    say(&mut shm, peer, 2);
    while inbox.frames.len() < 2 {
        sleep_for_news(&mut shm, &mut inbox);
    }
    assert_eq!(inbox.frames, [(peer, 1), (peer, 2)]);
}

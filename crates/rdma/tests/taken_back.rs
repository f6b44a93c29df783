//! Long gets between several ends, of which some are taken back, and some are of memory that is revoked meanwhile, so that connections break with
//! others under way. `cargo xtask rdma` runs it where there are RDMA devices.
#![cfg(feature = "verbs")]

mod common;

use std::time::{Duration, Instant};

use banyan_memory::{Buffer, HeapBuffer};
use banyan_rdma::Rdma;
use banyan_transport::conformance::introduced;
use banyan_transport::random::Random;
use banyan_transport::{Access, Fabric, Outcome, Peer, Port, Remote, Token, Transfer};
use common::{Inbox, contents, ends};

/// Bytes of what is got from, and of what it goes to.
const LONG: usize = 1 << 20;
const SOURCES: usize = 2;
const TARGETS: usize = 4;
/// What targets hold that nothing is got into.
const IDLE: u8 = 0xdd;

/// What is over has brought all its bytes, and what was taken back brings none.
#[test]
fn gets_are_whole_or_gone_where_others_are_revoked() {
    let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    println!("seed {seed}");
    let mut job = Job::new(3, seed);
    for _ in 0..800 {
        job.step();
    }
    let start = Instant::now();
    while !job.under_way.is_empty() {
        job.poll();
        assert!(start.elapsed() < Duration::from_secs(60), "{} gets do not end", job.under_way.len());
    }
    for target in job.targets.iter().flatten() {
        assert!(contents(target).iter().all(|&byte| byte == IDLE), "written to after it was over");
    }
    let counts = (job.done, job.refused, job.taken_back);
    println!("done, refused, taken back: {counts:?}");
    assert!(counts.0 > 10 && counts.1 > 0 && counts.2 > 5, "{counts:?}");
}

/// A get that is under way.
struct Get {
    /// Who gets it, from what memory of whom, and from which byte on.
    me: usize,
    source: (usize, usize),
    at: usize,
    token: Token,
    target: Buffer,
    len: usize,
}

/// Memory that is got from, and what each end was told of it.
struct Source {
    memory: Buffer,
    told: Vec<Option<Remote>>,
}

/// Some ends with memory.
struct Job {
    ends: Vec<Rdma>,
    inbox: Vec<Inbox>,
    random: Random,
    sources: Vec<Vec<Source>>,
    /// Those of each end that nothing is got into.
    targets: Vec<Vec<Buffer>>,
    under_way: Vec<Get>,
    next: u64,
    done: u32,
    refused: u32,
    taken_back: u32,
}

/// The bytes that a source holds.
fn pattern(end: usize, which: usize) -> Vec<u8> {
    let word = |index: usize| ((index as u32) << 4 | (end * SOURCES + which) as u32).to_le_bytes();
    (0..LONG / 4).flat_map(word).collect()
}

impl Job {
    fn new(n: usize, seed: u64) -> Job {
        let source =
            |end, which| Source { memory: HeapBuffer::copy_of(&pattern(end, which)), told: vec![None; n] };
        let target = |_| HeapBuffer::copy_of(&vec![IDLE; LONG]);
        Job {
            ends: introduced(ends(n, Duration::from_secs(60))),
            inbox: (0..n).map(|_| Inbox::default()).collect(),
            random: Random::new(seed),
            sources: (0..n).map(|end| (0..SOURCES).map(|which| source(end, which)).collect()).collect(),
            targets: (0..n).map(|_| (0..TARGETS).map(target).collect()).collect(),
            under_way: Vec::new(),
            next: 0,
            done: 0,
            refused: 0,
            taken_back: 0,
        }
    }

    fn step(&mut self) {
        let n = self.ends.len();
        let me = self.random.below(n);
        let other = (me + 1 + self.random.below(n - 1)) % n;
        match self.random.below(10) {
            0 => self.take_back(),
            1 => self.revoke(me, other),
            _ => self.get(me, other),
        }
        let polls = [0, 1, 8][self.random.below(3)];
        (0..self.random.below(polls + 1)).for_each(|_| self.poll());
    }

    fn get(&mut self, me: usize, other: usize) {
        let Some(target) = self.targets[me].pop() else { return };
        let which = self.random.below(SOURCES);
        let Source { memory, told } = &mut self.sources[other][which];
        let register = || self.ends[other].register(Peer(me as u32), memory, Access::Read).expect("room");
        let all = *told[me].get_or_insert_with(register);
        self.start(me, (other, which), all, target);
    }

    /// Starts a get from a part of what was told as `all`.
    fn start(&mut self, me: usize, source: (usize, usize), all: Remote, target: Buffer) {
        let len = 4 * (1 + self.random.below(LONG / 4));
        let at = 4 * self.random.below((LONG - len) / 4 + 1);
        let remote = Remote { addr: all.addr + at as u64, len: len as u64, key: all.key };
        self.next += 1;
        let token = Token(self.next);
        match self.ends[me].get(Peer(source.0 as u32), remote, &[target.slice(0, len)], token) {
            Transfer::Started => self.under_way.push(Get { me, source, at, token, target, len }),
            Transfer::Busy => self.targets[me].push(target),
            end => panic!("{end:?}"),
        }
    }

    fn take_back(&mut self) {
        if self.under_way.is_empty() {
            return;
        }
        let get = self.under_way.remove(self.random.below(self.under_way.len()));
        self.ends[get.me].reclaim(Peer(get.source.0 as u32), get.token);
        self.taken_back += 1;
        self.idle(get.me, get.target);
    }

    /// One end reaches the memory of another one no more, until it is told of it anew.
    fn revoke(&mut self, me: usize, other: usize) {
        let which = self.random.below(SOURCES);
        if let Some(remote) = self.sources[other][which].told[me] {
            self.ends[other].revoke(Peer(me as u32), remote);
            // The others were told of the same registration.
            self.sources[other][which].told.fill(None);
            // Now and then a get comes too late for sure, whatever races.
            if self.random.once_in(3)
                && let Some(target) = self.targets[me].pop()
            {
                self.start(me, (other, which), remote, target);
            }
        }
    }

    fn idle(&mut self, me: usize, target: Buffer) {
        target.write(0, &[IDLE; LONG]);
        self.targets[me].insert(0, target);
    }

    fn poll(&mut self) {
        for me in 0..self.ends.len() {
            self.ends[me].poll(&mut self.inbox[me]);
            for (token, outcome) in std::mem::take(&mut self.inbox[me].over) {
                let place = self.under_way.iter().position(|get| get.token == token);
                let get =
                    self.under_way.remove(place.expect("what is told of is under way, and not taken back"));
                let (end, which) = get.source;
                match outcome {
                    Outcome::Done => {
                        let (got, meant) = (contents(&get.target), pattern(end, which));
                        let wrong = (0..get.len).find(|&byte| got[byte] != meant[get.at + byte]);
                        assert_eq!(wrong, None, "of {} bytes from {}", get.len, get.at);
                        assert!(got[get.len..].iter().all(|&byte| byte == IDLE));
                        self.done += 1;
                    }
                    Outcome::Impossible => self.refused += 1,
                }
                self.idle(me, get.target);
            }
            assert!(self.inbox[me].gone.is_empty(), "nobody is gone: {:?}", self.inbox[me].gone);
        }
    }
}

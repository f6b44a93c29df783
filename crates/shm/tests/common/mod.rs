//! What the tests share: ranks as threads of one process, refusal of system calls, frames to send.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use std::os::fd::OwnedFd;

use banyan_shm::{Options, Shm, SingleCopy};
use banyan_transport::{Class, Head, Outcome, Peer, Port, Sink, Token};

pub fn peers(n: usize) -> Vec<Peer> {
    (0..n as u32).map(Peer).collect()
}

/// Attaches local rank `me` of `n` to a duplicate of `memory`.
pub fn attach(memory: &OwnedFd, me: u32, n: usize, single_copy: SingleCopy) -> Shm {
    let memory = memory.try_clone().expect("a descriptor");
    Shm::attach(memory, me, &peers(n), Options { single_copy, ..Options::default() }).expect("attached")
}

/// `n` ranks in one process, each with a mapping of its own.
pub fn ranks(memory: &OwnedFd, n: usize, single_copy: SingleCopy) -> Vec<Shm> {
    (0..n as u32).map(|me| attach(memory, me, n, single_copy)).collect()
}

/// Ranks that fence, or that use membarrier, whatever the number of cores.
pub fn crowded(n: usize, crowded: bool) -> Vec<Shm> {
    let memory = Shm::memory(n as u32, None).expect("memory");
    let one = |me| {
        let options = Options { crowded: Some(crowded), ..Options::default() };
        Shm::attach(memory.try_clone().expect("a descriptor"), me, &peers(n), options).expect("attached")
    };
    (0..n as u32).map(one).collect()
}

pub fn fresh(n: usize, single_copy: SingleCopy) -> Vec<Shm> {
    ranks(&Shm::memory(n as u32, None).expect("memory"), n, single_copy)
}

pub fn head(a: u32) -> Head {
    Head { class: Class::P2p, kind: 0, aux: 0, a, b: 0, ctx: 0 }
}

/// Sends one empty frame, which must find room.
pub fn say(shm: &mut Shm, to: u32, a: u32) {
    shm.send_short(Peer(to), &head(a), &[]).expect("room for one frame");
}

/// Keeps all frames that come, and all reports of lost peers.
#[derive(Default, Debug)]
pub struct Inbox {
    /// Sender and `Head::a`.
    pub frames: Vec<(u32, u32)>,
    pub bodies: Vec<Vec<u8>>,
    pub lost: Vec<(u32, String)>,
}

impl Sink for Inbox {
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        self.frames.push((peer.0, head.a));
        self.bodies.push(body.to_vec());
    }
    fn sent(&mut self, _: Token) {}
    fn completed(&mut self, _: Token, _: Outcome) {}
    fn down(&mut self, peer: Peer, cause: &str) {
        self.lost.push((peer.0, cause.to_owned()));
    }
}

/// From now on, in this thread and those it starts, the system call `number` fails with `error`.
pub fn refuse(number: i64, error: i32) {
    answer(number, libc::SECCOMP_RET_ERRNO | error as u32);
}

/// From now on the system call `number` kills this process.
pub fn forbid(number: i64) {
    answer(number, libc::SECCOMP_RET_KILL_PROCESS);
}

fn answer(number: i64, refused: u32) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0);
    let mut equal = statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number as u32);
    equal.jf = 1;
    let answer = |value| statement(libc::BPF_RET | libc::BPF_K, value);
    let mut filter = [load, equal, answer(refused), answer(libc::SECCOMP_RET_ALLOW)];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program and its filter live until the call is over; the kernel copies and checks them.
    let done = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(done, 0, "seccomp: {}", std::io::Error::last_os_error());
}

/// Runs `test` in a thread that may not use the system call `number`.
pub fn without(number: i64, test: impl FnOnce() + Send) {
    failing(number, libc::EPERM, test);
}

/// Runs `test` in a thread where the system call `number` fails with `error`.
pub fn failing(number: i64, error: i32, test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let run = move || {
            refuse(number, error);
            test();
        };
        scope.spawn(run).join().expect("the test passes");
    });
}

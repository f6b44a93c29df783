//! What the tests of the fabric share: waiting, and a sink that records.
#![allow(dead_code, reason = "each test program uses a part")]

use std::time::{Duration, Instant};

use banyan_transport::{Head, Outcome, Peer, Sink, Token};

/// Takes steps until one says that it is done.
pub(crate) fn until(what: &str, mut step: impl FnMut() -> bool) {
    let start = Instant::now();
    while !step() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: stuck");
        std::thread::yield_now();
    }
}

/// What becomes of frames that arrive.
pub(crate) trait Frames: Default {
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]);
}

/// All are kept: from whom, and the body.
impl Frames for Vec<(Peer, Vec<u8>)> {
    fn frame(&mut self, peer: Peer, _: &Head, body: &[u8]) {
        self.push((peer, body.to_vec()));
    }
}

/// Hands frames on, and records what else the fabric tells.
#[derive(Default)]
pub(crate) struct Inbox<T> {
    pub(crate) frames: T,
    pub(crate) sent: Vec<Token>,
    pub(crate) lost: Vec<(Peer, String)>,
    pub(crate) wanted: Vec<Peer>,
    pub(crate) unreached: Vec<Peer>,
}

impl<T: Frames> Sink for Inbox<T> {
    fn frame(&mut self, peer: Peer, head: &Head, body: &[u8]) {
        self.frames.frame(peer, head, body);
    }
    fn sent(&mut self, token: Token) {
        self.sent.push(token);
    }
    fn completed(&mut self, _: Token, _: Outcome) {}
    fn down(&mut self, peer: Peer, cause: &str) {
        self.lost.push((peer, cause.to_owned()));
    }
    fn wanted(&mut self, peer: Peer) {
        self.wanted.push(peer);
    }
    fn unreached(&mut self, peer: Peer) {
        self.unreached.push(peer);
    }
}

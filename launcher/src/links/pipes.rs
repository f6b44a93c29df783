//! One side of a link between two agents: the pipes and what is on its way through them.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::LAST_WORDS;
use crate::frames::{Frame, mark};

/// Bytes of one read.
const CHUNK: usize = 64 << 10;

/// One side of a link: frames over two pipes, without waiting.
pub(crate) struct Pipes {
    pub(super) read: Option<OwnedFd>,
    write: Option<OwnedFd>,
    /// Tokens of the two for epoll.
    tokens: [u64; 2],
    pub(super) inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// epoll watches `write`.
    watched: bool,
    /// When bytes came last.
    pub(crate) heard: Instant,
}

impl Pipes {
    pub(crate) fn new(epoll: &OwnedFd, read: OwnedFd, write: OwnedFd, tokens: [u64; 2]) -> io::Result<Pipes> {
        for fd in [&read, &write] {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        epoll::add(epoll, &read, EventData::new_u64(tokens[0]), EventFlags::IN)?;
        let (inbox, outbox) = (Vec::new(), Vec::new());
        let heard = Instant::now();
        Ok(Pipes { read: Some(read), write: Some(write), tokens, inbox, outbox, watched: false, heard })
    }

    /// Says that this agent is there.
    pub(crate) fn greet(&mut self, epoll: &OwnedFd) {
        self.outbox.extend_from_slice(mark().as_bytes());
        self.flush(epoll);
    }

    /// Waits until all that was sent is written, for a while.
    pub(crate) fn finish(&mut self, epoll: &OwnedFd) {
        let start = Instant::now();
        self.flush(epoll);
        while !self.outbox.is_empty() && start.elapsed() < LAST_WORDS {
            std::thread::sleep(Duration::from_millis(1));
            self.flush(epoll);
        }
    }

    /// Queues a frame, and writes what the pipe takes now.
    pub(crate) fn send(&mut self, epoll: &OwnedFd, frame: &Frame) {
        frame.write(&mut self.outbox);
        self.flush(epoll);
    }

    /// Writes what the pipe takes now. If the other side is gone, reading shows it.
    pub(crate) fn flush(&mut self, epoll: &OwnedFd) {
        let Some(write) = &self.write else { return self.outbox.clear() };
        let mut sent = 0;
        while sent < self.outbox.len() {
            match rustix::io::write(write, &self.outbox[sent..]) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => sent = self.outbox.len(),
            }
        }
        self.outbox.drain(..sent);
        let wanted = !self.outbox.is_empty();
        if wanted != self.watched {
            let token = EventData::new_u64(self.tokens[1]);
            let done = match wanted {
                true => epoll::add(epoll, write, token, EventFlags::OUT),
                false => epoll::delete(epoll, write),
            };
            self.watched = wanted && done.is_ok();
        }
    }

    /// True if all that was sent has been written.
    pub(crate) fn is_flushed(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Reads once into the inbox; false at the end.
    pub(crate) fn read(&mut self, epoll: &OwnedFd) -> bool {
        let Some(read) = &self.read else { return false };
        self.inbox.reserve(CHUNK);
        match rustix::io::read(read, rustix::buffer::spare_capacity(&mut self.inbox)) {
            Ok(1..) => {
                self.heard = Instant::now();
                true
            }
            Err(Errno::INTR | Errno::AGAIN) => true,
            Ok(0) | Err(_) => {
                let _ = epoll::delete(epoll, read);
                self.read = None;
                false
            }
        }
    }

    /// The frames in the inbox.
    ///
    /// # Errors
    /// If the other side sends what is no frame.
    pub(crate) fn frames(&mut self) -> Result<Vec<Frame>, String> {
        let (mut frames, mut used) = (Vec::new(), 0);
        while let Some((frame, length)) = Frame::read(&self.inbox[used..])? {
            frames.push(frame);
            used += length;
        }
        self.inbox.drain(..used);
        Ok(frames)
    }

    pub(super) fn close(&mut self, epoll: &OwnedFd) {
        for fd in [self.read.take(), self.write.take()].into_iter().flatten() {
            let _ = epoll::delete(epoll, fd);
        }
        self.outbox.clear();
    }
}

//! mpirun's standard input on its way to rank 0 on another host: a [`Source`] on the first host, a [`Feed`] beside the rank.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Bytes that may be on their way.
const WINDOW: usize = 64 << 10;

/// What rank 0 reads, where it comes from another process.
pub(crate) struct Source {
    from: Option<OwnedFd>,
    /// Bytes that are on their way.
    lent: usize,
    /// epoll watches it; files cannot be watched, and never wait.
    watched: bool,
}

impl Source {
    /// Input from `pipe`, or from mpirun's own input.
    pub(crate) fn new(pipe: Option<OwnedFd>) -> io::Result<Source> {
        let from = pipe.map_or_else(|| io::stdin().as_fd().try_clone_to_owned(), Ok)?;
        Ok(Source { from: Some(from), lent: 0, watched: false })
    }

    /// So many bytes have arrived.
    pub(crate) fn taken(&mut self, bytes: usize) {
        self.lent = self.lent.saturating_sub(bytes);
    }

    /// The next bytes, if there are any and they may go; empty at the end. Without them, epoll tells when to come again.
    pub(crate) fn read(&mut self, epoll: &OwnedFd, token: EventData) -> Option<Vec<u8>> {
        let from = self.from.as_ref()?;
        let room = WINDOW - self.lent.min(WINDOW);
        let mut ready = [PollFd::new(from, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_ready = room > 0 && poll(&mut ready, Some(&now)).is_ok_and(|count| count > 0);
        if !is_ready {
            self.watch(epoll, token, room > 0);
            return None;
        }
        let mut bytes = vec![0; room];
        match rustix::io::read(from, &mut bytes) {
            Ok(count @ 1..) => {
                bytes.truncate(count);
                self.lent += count;
                Some(bytes)
            }
            Err(Errno::INTR | Errno::AGAIN) => None,
            Ok(0) | Err(_) => {
                self.watch(epoll, token, false);
                self.from = None;
                Some(Vec::new())
            }
        }
    }

    fn watch(&mut self, epoll: &OwnedFd, token: EventData, wanted: bool) {
        let Some(from) = self.from.as_ref().filter(|_| wanted != self.watched) else { return };
        let done = match wanted {
            true => epoll::add(epoll, from, token, EventFlags::IN),
            false => epoll::delete(epoll, from),
        };
        self.watched = wanted && done.is_ok();
    }
}

/// The end of the pipe that rank 0 reads, where mpirun runs on another host.
pub(crate) struct Feed {
    pipe: Option<OwnedFd>,
    waiting: Vec<u8>,
    ending: bool,
    watched: bool,
}

impl Feed {
    pub(crate) fn new(pipe: OwnedFd) -> io::Result<Feed> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Feed { pipe: Some(pipe), waiting: Vec::new(), ending: false, watched: false })
    }

    /// Writes what the pipe takes of what waits and of `bytes`; gives how much that was.
    pub(crate) fn write(&mut self, epoll: &OwnedFd, token: EventData, bytes: &[u8]) -> usize {
        self.waiting.extend_from_slice(bytes);
        let Some(pipe) = &self.pipe else { return std::mem::take(&mut self.waiting).len() };
        let mut written = 0;
        let broken = loop {
            if written == self.waiting.len() {
                break false;
            }
            match rustix::io::write(pipe, &self.waiting[written..]) {
                Ok(count) => written += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break false,
                Err(_) => break true, // the rank has closed its input
            }
        };
        self.waiting.drain(..written);
        let wanted = !self.waiting.is_empty() && !broken;
        if wanted != self.watched {
            let _ = match wanted {
                true => epoll::add(epoll, pipe, token, EventFlags::OUT),
                false => epoll::delete(epoll, pipe),
            };
            self.watched = wanted;
        }
        if broken || self.ending && !wanted {
            self.pipe = None;
        }
        if broken { written + std::mem::take(&mut self.waiting).len() } else { written }
    }

    /// No more will come.
    pub(crate) fn end(&mut self, epoll: &OwnedFd) {
        self.ending = true;
        if self.waiting.is_empty()
            && let Some(pipe) = self.pipe.take()
            && self.watched
        {
            let _ = epoll::delete(epoll, &pipe);
        }
    }
}

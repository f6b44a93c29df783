//! [`Sink`]: mpirun's stdout or stderr, written without ever blocking the agent and without changing flags of
//! a file description that others (the user's shell) share; or, on another host, the way to them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::termios::isatty;

use crate::lines::{Label, Merger, Writer};

/// While this many bytes are unwritten, nothing more is read from the ranks.
const FULL: usize = 256 << 10;

/// Bytes that a pipe that polls as writable takes without blocking.
const PIPE_BUF: usize = 4096;

/// The file that a sink writes to, by how it is written to without blocking.
#[derive(Debug)]
enum Target {
    /// A file, or a device that never blocks for long.
    Direct(OwnedFd),
    /// A pipe or terminal, opened again so that it is non-blocking for the agent only.
    NonBlocking(OwnedFd),
    /// A pipe or terminal that could not be opened again: polled before each small write.
    Polled(OwnedFd),
    Socket(OwnedFd),
    /// The agent of the first host, which writes it.
    Up(Up),
}

/// Output on its way to another host.
#[derive(Debug)]
struct Up {
    /// Bytes that may be on their way.
    window: usize,
    /// Bytes that are.
    lent: usize,
    /// What is to be sent: ranks, and what they wrote.
    pieces: Vec<(u32, Vec<u8>)>,
}

/// One output of mpirun.
#[derive(Debug)]
pub(crate) struct Sink {
    target: Target,
    merger: Merger,
    queue: Vec<u8>,
    sent: usize,
    /// Bytes that have gone out so far.
    written: u64,
    broken: bool,
}

impl Sink {
    /// A sink that writes to `fd`.
    pub(crate) fn new(fd: BorrowedFd<'_>, label: Label) -> io::Result<Sink> {
        Ok(Sink::to(target(fd)?, label))
    }

    /// A sink for output that another agent writes, which at most `window` bytes may be on their way to.
    pub(crate) fn upwards(window: usize) -> Sink {
        Sink::to(Target::Up(Up { window, lent: 0, pieces: Vec::new() }), Label::default())
    }

    fn to(target: Target, label: Label) -> Sink {
        Sink { target, merger: Merger::new(label), queue: Vec::new(), sent: 0, written: 0, broken: false }
    }

    /// Queues output for [`Sink::flush`], or for [`Sink::take_pieces`].
    pub(crate) fn add(&mut self, writer: Writer, text: &[u8]) {
        match (&mut self.target, writer) {
            _ if self.broken => {}
            (Target::Up(up), Writer::Rank(rank)) if !text.is_empty() => {
                up.lent += text.len();
                up.pieces.push((rank, text.to_vec()));
            }
            (Target::Up(_), _) => {}
            _ => self.merger.add(writer, text, &mut self.queue),
        }
    }

    /// What is to be sent to the agent that writes it.
    pub(crate) fn take_pieces(&mut self) -> Vec<(u32, Vec<u8>)> {
        match &mut self.target {
            Target::Up(up) => std::mem::take(&mut up.pieces),
            _ => Vec::new(),
        }
    }

    /// So many bytes that were on their way are written.
    pub(crate) fn credit(&mut self, bytes: usize) {
        if let Target::Up(up) = &mut self.target {
            up.lent = up.lent.saturating_sub(bytes);
        }
    }

    /// Drops what is there and what comes: nobody reads it.
    pub(crate) fn give_up(&mut self) {
        self.broken = true;
        self.queue = Vec::new();
        self.sent = 0;
        self.take_pieces();
    }

    /// True if ranks have to wait before they can write more.
    pub(crate) fn is_full(&self) -> bool {
        match &self.target {
            Target::Up(up) => up.lent >= up.window && !self.broken,
            _ => self.queue.len() - self.sent >= FULL,
        }
    }

    /// True if nothing is left to write.
    pub(crate) fn is_empty(&self) -> bool {
        match &self.target {
            Target::Up(up) => up.pieces.is_empty(),
            _ => self.sent == self.queue.len(),
        }
    }

    /// Bytes that have gone out so far.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// True if output is dropped, because an earlier write failed.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    /// The descriptor for epoll to watch; `None` if writing never waits.
    pub(crate) fn waits_on(&self) -> Option<BorrowedFd<'_>> {
        match &self.target {
            Target::Direct(_) | Target::Up(_) => None,
            Target::NonBlocking(fd) | Target::Polled(fd) | Target::Socket(fd) => Some(fd.as_fd()),
        }
    }

    /// Writes as much as can be written without blocking.
    ///
    /// # Errors
    /// The first time something cannot be written (EPIPE: the reader is gone). Later output is dropped.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.queue.len() {
            match self.write() {
                Ok(count) => {
                    self.sent += count;
                    self.written += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(other) => {
                    self.give_up();
                    return Err(other.into());
                }
            }
        }
        if self.is_empty() {
            self.queue.clear();
            self.sent = 0;
        } else if self.sent > FULL {
            self.queue.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    fn write(&self) -> rustix::io::Result<usize> {
        let bytes = &self.queue[self.sent..];
        match &self.target {
            Target::Direct(fd) | Target::NonBlocking(fd) => rustix::io::write(fd, bytes),
            Target::Up(_) => Ok(bytes.len()), // its queue is always empty
            Target::Socket(fd) => send(fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
            Target::Polled(fd) => {
                let mut waiting = [PollFd::new(fd, PollFlags::OUT)];
                match poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))? {
                    0 => Err(Errno::AGAIN),
                    _ => rustix::io::write(fd, &bytes[..bytes.len().min(PIPE_BUF)]),
                }
            }
        }
    }
}

fn target(fd: BorrowedFd<'_>) -> io::Result<Target> {
    let kind = FileType::from_raw_mode(fstat(fd)?.st_mode);
    let copy = || fd.try_clone_to_owned();
    if kind.is_socket() {
        return Ok(Target::Socket(copy()?));
    }
    if !kind.is_fifo() && !isatty(fd) {
        return Ok(Target::Direct(copy()?));
    }
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    Ok(match open(Path::new(&path), flags, Mode::empty()) {
        Ok(anew) => Target::NonBlocking(anew),
        Err(_) => Target::Polled(copy()?),
    })
}

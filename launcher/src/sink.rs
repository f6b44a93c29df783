//! [`Sink`]: mpirun's stdout or stderr, written without ever blocking the agent and without changing flags of
//! a file description that others (the user's shell) share.

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
        let target = target(fd)?;
        Ok(Sink { target, merger: Merger::new(label), queue: Vec::new(), sent: 0, written: 0, broken: false })
    }

    /// Queues output for [`Sink::flush`].
    pub(crate) fn add(&mut self, writer: Writer, text: &[u8]) {
        if !self.broken {
            self.merger.add(writer, text, &mut self.queue);
        }
    }

    /// True if ranks have to wait before they can write more.
    pub(crate) fn is_full(&self) -> bool {
        self.queue.len() - self.sent >= FULL
    }

    /// True if nothing is left to write.
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.queue.len()
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
            Target::Direct(_) => None,
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
                    self.broken = true;
                    self.queue = Vec::new();
                    self.sent = 0;
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

//! Doorbells as descriptors: a datagram socket per rank in the abstract namespace, so that a rank can sleep
//! on shared memory and on the network at once. Nothing is left behind, and a stranger's datagram only wakes.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// A socket of this process: to be woken by, or to wake from.
#[derive(Debug)]
pub(crate) struct Socket(OwnedFd);

impl Socket {
    /// A socket without a name, to wake others from.
    pub(crate) fn nameless() -> io::Result<Self> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: takes no pointers.
        match unsafe { libc::socket(libc::AF_UNIX, kind, 0) } {
            // SAFETY: just made, and ours.
            fd if fd >= 0 => Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) })),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The socket by which local rank `rank` of segment `name` is woken.
    pub(crate) fn of(name: u64, rank: u32) -> io::Result<Self> {
        let socket = Self::nameless()?;
        let (address, len) = address(name, rank);
        // SAFETY: the address is ours and `len` bytes of it are set.
        match unsafe { libc::bind(socket.0.as_raw_fd(), (&raw const address).cast(), len) } {
            0 => Ok(socket),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Wakes local rank `rank` of segment `name`. A full queue is as good: it will wake anyway.
    pub(crate) fn wake(&self, name: u64, rank: u32) -> io::Result<()> {
        let (address, len) = address(name, rank);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: one byte of a constant, and the address as above.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                [0u8].as_ptr().cast(),
                1,
                flags,
                (&raw const address).cast(),
                len,
            )
        };
        match io::Error::last_os_error() {
            _ if sent == 1 => Ok(()),
            full if full.kind() == io::ErrorKind::WouldBlock => Ok(()),
            error => Err(error),
        }
    }

    /// Takes away what woke us.
    pub(crate) fn drain(&self) {
        let mut byte = [0u8; 8];
        let fd = self.0.as_raw_fd();
        // SAFETY: reads into our own bytes; never waits.
        while unsafe { libc::recv(fd, byte.as_mut_ptr().cast(), 8, libc::MSG_DONTWAIT) } >= 0 {}
    }

    /// Sleeps until something comes, at most `patience`.
    pub(crate) fn wait(&self, patience: Option<Duration>) {
        // Rounded up, so that a wait for the last part of a millisecond does not spin.
        let round = |left: Duration| i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry of our own.
        unsafe { libc::poll(&mut poll, 1, patience.map_or(-1, round)) };
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.0)
    }
}

fn address(name: u64, rank: u32) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zero is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let text = format!("banyan-shm-{name:016x}-{rank}");
    // The first byte stays 0: the abstract namespace.
    for (to, from) in address.sun_path[1..].iter_mut().zip(text.bytes()) {
        *to = from as libc::c_char;
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + text.len();
    (address, len as libc::socklen_t)
}

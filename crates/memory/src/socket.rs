//! Bytes between a socket and memory that users own: only the system copies them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::{Buffer, HeapBuffer};

/// The most bytes of a device's memory that go to or come from a socket at a time, by way of the host's.
const STAGE: usize = 1 << 16;

impl Buffer {
    /// Sends `before` and then the `len` bytes at offset `at` over a connected socket, without waiting; gives how
    /// many bytes of both together the socket took.
    ///
    /// # Errors
    /// As the system says; `WouldBlock` if the socket is full.
    pub fn send(&self, socket: BorrowedFd<'_>, before: &[u8], at: isize, len: usize) -> io::Result<usize> {
        if !self.kind().is_host_accessible() {
            let stage = HeapBuffer::zeroed(len.min(STAGE));
            stage.copy_from(0, self, at, stage.len());
            return stage.send(socket, before, 0, stage.len());
        }
        let mut pieces = [piece(before.as_ptr().cast_mut(), before.len()), piece(self.ptr(at, len), len)];
        let message = message(&mut pieces);
        // SAFETY: the system reads both pieces, and only until it returns: a slice, and memory in checked bounds that the
        // maker of the buffer promised.
        let sent =
            unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Receives up to `len` bytes at offset `at`, and the bytes that follow them into `behind`, from a connected socket,
    /// without waiting; gives how many bytes came, 0 at the end of the stream.
    ///
    /// # Errors
    /// As the system says; `WouldBlock` if nothing is there.
    pub fn receive(
        &self,
        socket: BorrowedFd<'_>,
        at: isize,
        len: usize,
        behind: &mut [u8],
    ) -> io::Result<usize> {
        if !self.kind().is_host_accessible() {
            let stage = HeapBuffer::zeroed(len.min(STAGE));
            let behind = if stage.len() < len { &mut [] } else { behind };
            let got = stage.receive(socket, 0, stage.len(), behind)?;
            self.copy_from(at, &stage, 0, got.min(stage.len()));
            return Ok(got);
        }
        let mut pieces = [piece(self.ptr(at, len), len), piece(behind.as_mut_ptr(), behind.len())];
        let mut message = message(&mut pieces);
        // SAFETY: as in `send`, but the system writes: `behind` is ours alone, and the maker of the buffer promised that
        // it may be written.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    }
}

fn piece(start: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: start.cast(), iov_len: len }
}

fn message(pieces: &mut [libc::iovec; 2]) -> libc::msghdr {
    // SAFETY: a header of zeros is a valid one: no address, no pieces, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len() as _;
    message
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::HeapBuffer;

    #[test]
    fn bytes_go_and_come_between_the_bounds() {
        let (a, mut b) = UnixStream::pair().unwrap();
        let memory = HeapBuffer::copy_of(b"0123456789");
        assert_eq!(memory.send(a.as_fd(), b"head", 2, 5).unwrap(), 9);
        let mut out = [0; 9];
        b.read_exact(&mut out).unwrap();
        assert_eq!(&out, b"head23456");

        b.write_all(b"abcdef").unwrap();
        let mut behind = [0; 8];
        assert_eq!(memory.receive(a.as_fd(), 7, 3, &mut behind).unwrap(), 6);
        let mut whole = [0; 10];
        memory.read(0, &mut whole);
        assert_eq!((&whole, &behind[..3]), (b"0123456abc", &b"def"[..]));

        let nothing = memory.receive(a.as_fd(), 0, 10, &mut behind).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        assert!(std::panic::catch_unwind(|| memory.send(a.as_fd(), b"", 6, 5)).is_err());

        // A device's memory goes by way of the host's, in parts.
        let there = crate::SimulatedDevice::new(1 << 20, 5).alloc(100_000);
        there.write(0, b"xyz");
        there.write(99_998, b"!?");
        assert_eq!(there.send(a.as_fd(), b"h", 0, 3).unwrap(), 4);
        let mut out = [0; 4];
        b.read_exact(&mut out).unwrap();
        assert_eq!(&out, b"hxyz");
        b.write_all(b"12345").unwrap();
        assert_eq!(there.receive(a.as_fd(), 0, 2, &mut behind).unwrap(), 5);
        let mut start = [0; 3];
        there.read(0, &mut start);
        assert_eq!((&start, &behind[..3]), (b"12z", &b"345"[..]));
        b.write_all(b"678").unwrap();
        assert_eq!(there.receive(a.as_fd(), 0, 100_000, &mut behind).unwrap(), 3);
        drop(a);
        assert!(memory.send(b.as_fd(), b"", 0, 10).is_err(), "and no signal");
    }
}

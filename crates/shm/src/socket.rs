//! Doorbells as descriptors: a datagram socket per rank, so that a rank can sleep on shared memory and on the network at
//! once. The kernel draws the socket's name in the abstract namespace, so nothing is left behind and no process can have taken
//! it before. Any process of the machine can send to such a name; but a filter in the kernel drops all datagrams that do not
//! hold the key of the segment, which only processes with its memory know: others neither wake a rank nor fill its queue.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A socket of this process: one that wakes it, or one that it wakes others from.
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

    /// A socket that processes which know `key` can wake, and its name.
    pub(crate) fn of(key: u64) -> io::Result<(Self, Name)> {
        let socket = Self::nameless()?;
        socket.admit_only(key)?;
        let fd = socket.0.as_raw_fd();
        let (mut address, mut len) = address(0);
        // SAFETY: an address without a path asks for a name of the kernel's choice.
        let bound = unsafe { libc::bind(fd, (&raw const address).cast(), PATH as libc::socklen_t) };
        // SAFETY: the address is ours, and has room for `len` bytes.
        if bound < 0 || unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let text: Vec<u8> = address.sun_path[1..=DIGITS].iter().map(|&digit| digit as u8).collect();
        let number = std::str::from_utf8(&text).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
        match number {
            Some(number) if len as usize == PATH + 1 + DIGITS => Ok((socket, number + 1)),
            _ => Err(io::Error::other("a socket got a name of an unknown kind")),
        }
    }

    /// From now on only datagrams that hold `key` come in. To be called before the socket has a name to send to.
    fn admit_only(&self, key: u64) -> io::Result<()> {
        let statement = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        let load = |at| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, at);
        // Words are compared as on the wire, the first byte highest. A load past the end drops the datagram.
        let same = |jf, part: u64| statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jf, part as u32);
        let answer = |bytes| statement(libc::BPF_RET | libc::BPF_K, 0, bytes);
        let mut filter = [load(0), same(3, key >> 32), load(4), same(1, key), answer(8), answer(0)];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
        let fd = self.0.as_raw_fd();
        // SAFETY: the program and its filter live until the call is over; the kernel copies and checks them.
        let set = unsafe {
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, (&raw const program).cast(), size)
        };
        if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Wakes the rank whose socket has this name. A full queue counts as success: that rank will wake anyway.
    pub(crate) fn wake(&self, name: Name, key: u64) -> io::Result<()> {
        let (address, len) = address(name - 1);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let word = key.to_be_bytes();
        // SAFETY: reads the key's bytes, and an address of `len` bytes, both of our own.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                word.as_ptr().cast(),
                word.len(),
                flags,
                (&raw const address).cast(),
                len,
            )
        };
        match io::Error::last_os_error() {
            _ if sent == word.len() as isize => Ok(()),
            full if full.kind() == io::ErrorKind::WouldBlock => Ok(()),
            error => Err(error),
        }
    }

    /// Takes the datagrams that woke this rank out of the queue.
    pub(crate) fn drain(&self) {
        let mut byte = [0u8; 8];
        let fd = self.0.as_raw_fd();
        // SAFETY: reads into our own bytes; never waits.
        while unsafe { libc::recv(fd, byte.as_mut_ptr().cast(), 8, libc::MSG_DONTWAIT) } >= 0 {}
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.0)
    }
}

/// The number in a socket's name, plus 1.
pub(crate) type Name = u64;

/// Digits of the names that the kernel draws.
const DIGITS: usize = 5;

/// Bytes of an address before its path.
const PATH: usize = std::mem::offset_of!(libc::sockaddr_un, sun_path);

fn address(number: u64) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zero is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let text = format!("{number:05x}");
    // The first byte stays 0, which means the abstract namespace.
    for (to, from) in address.sun_path[1..].iter_mut().zip(text.bytes()) {
        *to = from as libc::c_char;
    }
    (address, (PATH + 1 + text.len()) as libc::socklen_t)
}

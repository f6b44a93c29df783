//! [`Channel`]: frames over a unix stream socket. Only calls that say so wait.

use std::io::{self, IoSliceMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags, SocketType,
    recv, recvmsg, send, socketpair,
};
use rustix::process::Pid;
use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;

use crate::codec::{self, CodecError};

/// Bytes of one read from the socket.
const CHUNK: usize = 16 << 10;

/// Why a channel can be used no more.
#[derive(Debug, Error)]
pub enum WireError {
    /// The other side closed it or is gone.
    #[error("the other side of the bootstrap socket is gone")]
    Closed,
    /// The other side does not speak the protocol.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The system refused.
    #[error("bootstrap socket: {0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for WireError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::PIPE | Errno::CONNRESET => WireError::Closed,
            other => WireError::Io(other.into()),
        }
    }
}

/// One end of a bootstrap socket: receives `In`, sends `Out`.
#[derive(Debug)]
pub struct Channel<In, Out> {
    socket: Arc<OwnedFd>,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// Whether the system tells the sending process with each read (SO_PASSCRED).
    with_sender: bool,
    sender: Option<Pid>,
    frames: PhantomData<(In, Out)>,
}

impl<In: DeserializeOwned, Out: Serialize> Channel<In, Out> {
    /// Takes over a connected socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket: Arc::new(socket),
            inbox: Vec::new(),
            outbox: Vec::new(),
            with_sender: false,
            sender: None,
            frames: PhantomData,
        }
    }

    /// A channel that knows the [sender](Channel::sender) of its frames, and the descriptor of its other end; both close
    /// on exec.
    ///
    /// # Errors
    /// The error of `socketpair`, such as too few descriptors.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let with_sender = set_socket_passcred(&ours, true).is_ok();
        Ok((Self { with_sender, ..Self::new(ours) }, theirs))
    }

    /// Queues a frame and sends what the socket takes now; the rest goes with [`Channel::flush`].
    ///
    /// # Errors
    /// If the frame is too long or the other side is gone.
    pub fn send(&mut self, frame: &Out) -> Result<(), WireError> {
        codec::encode(frame, &mut self.outbox)?;
        self.flush()
    }

    /// Sends what the socket takes now.
    ///
    /// # Errors
    /// If the other side is gone.
    pub fn flush(&mut self) -> Result<(), WireError> {
        let mut sent = 0;
        while sent < self.outbox.len() {
            match send(&*self.socket, &self.outbox[sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(other) => return Err(other.into()),
            }
        }
        self.outbox.drain(..sent);
        Ok(())
    }

    /// Sends all that is queued, waiting for the other side.
    ///
    /// # Errors
    /// If the other side is gone.
    pub fn flush_all(&mut self) -> Result<(), WireError> {
        loop {
            self.flush()?;
            if self.outbox.is_empty() {
                return Ok(());
            }
            self.wait(PollFlags::OUT)?;
        }
    }

    /// The socket, for writes that bypass the queue.
    pub(crate) fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Number of queued bytes that the socket has not taken yet.
    pub fn unsent(&self) -> usize {
        self.outbox.len()
    }

    /// The next frame; `None` if no whole frame has arrived.
    ///
    /// # Errors
    /// [`WireError::Closed`] after the last frame if the other side is gone; others if it sends bytes that are no frame, or
    /// the system refuses to read.
    pub fn receive(&mut self) -> Result<Option<In>, WireError> {
        loop {
            if let Some((frame, used)) = codec::decode(&self.inbox)? {
                self.inbox.drain(..used);
                return Ok(Some(frame));
            }
            match if self.with_sender { self.read_with_sender() } else { self.read() } {
                Ok(0) => return Err(WireError::Closed),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(other) => return Err(other.into()),
            }
        }
    }

    /// The process that sent the last received frame, as the system says: its id in this process's namespace, which may
    /// differ from its id in its own. It may be gone. `None` for channels not made by [`Channel::pair`], and if the system
    /// refuses to tell.
    pub fn sender(&self) -> Option<Pid> {
        self.sender
    }

    fn read(&mut self) -> rustix::io::Result<usize> {
        self.inbox.reserve(CHUNK);
        Ok(recv(&*self.socket, spare_capacity(&mut self.inbox), RecvFlags::DONTWAIT)?.0)
    }

    /// Reads like [`Channel::read`], and records the sender. One read gives bytes of one sender only.
    fn read_with_sender(&mut self) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let before = self.inbox.len();
        self.inbox.resize(before + CHUNK, 0);
        let parts = &mut [IoSliceMut::new(&mut self.inbox[before..])];
        let got = recvmsg(&*self.socket, parts, &mut control, RecvFlags::DONTWAIT).map(|got| got.bytes);
        self.inbox.truncate(before + got.unwrap_or(0));
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmCredentials(sender) = message {
                self.sender = Some(sender.pid);
            }
        }
        got
    }

    /// The next frame, waiting for it.
    ///
    /// # Errors
    /// [`WireError::Closed`] after the last frame if the other side is gone; others if it sends bytes that are no frame, or
    /// the system refuses to read.
    pub fn receive_blocking(&mut self) -> Result<In, WireError> {
        loop {
            if let Some(frame) = self.receive()? {
                return Ok(frame);
            }
            self.wait(PollFlags::IN)?;
        }
    }

    fn wait(&self, flags: PollFlags) -> Result<(), WireError> {
        match poll(&mut [PollFd::new(&self.socket, flags)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(other) => Err(other.into()),
        }
    }
}

impl<In, Out> AsFd for Channel<In, Out> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

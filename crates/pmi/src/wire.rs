//! [`Channel`]: frames over a unix stream socket; [`ByteChannel`]: the bytes of other protocols. Only calls that say so wait.

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

/// Bytes of one read from the socket: more than most frames have, and no more memory than that is touched for each rank.
const CHUNK: usize = 4 << 10;

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

/// One end of a bootstrap socket, for bytes of any protocol.
#[derive(Debug)]
pub struct ByteChannel {
    socket: Arc<OwnedFd>,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// Whether the system tells the sending process with each read (SO_PASSCRED).
    with_sender: bool,
    sender: Option<Pid>,
}

impl ByteChannel {
    /// Takes over a connected socket.
    fn new(socket: OwnedFd) -> Self {
        let (inbox, outbox) = (Vec::new(), Vec::new());
        Self { socket: Arc::new(socket), inbox, outbox, with_sender: false, sender: None }
    }

    /// A channel that knows the [sender](ByteChannel::sender) of its bytes, and the descriptor of its other end; both close
    /// on exec.
    ///
    /// # Errors
    /// The error of `socketpair`, such as too few descriptors.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let with_sender = set_socket_passcred(&ours, true).is_ok();
        Ok((Self { with_sender, ..Self::new(ours) }, theirs))
    }

    /// Queues bytes and sends what the socket takes now; the rest goes with [`ByteChannel::flush`].
    ///
    /// # Errors
    /// If the other side is gone.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        self.outbox.extend_from_slice(bytes);
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

    /// Number of queued bytes that the socket has not taken yet.
    pub fn unsent(&self) -> usize {
        self.outbox.len()
    }

    /// The bytes that have arrived since the last call; `None` if there are none yet.
    ///
    /// # Errors
    /// [`WireError::Closed`] after the last bytes if the other side is gone; another if the system refuses to read.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>, WireError> {
        Ok(self.fill()?.then(|| std::mem::take(&mut self.inbox)))
    }

    /// The process that sent the last received bytes, as the system says: its id in this process's namespace, which may
    /// differ from its id in its own. It may be gone. `None` for channels not made by a `pair`, and if the system
    /// refuses to tell.
    pub fn sender(&self) -> Option<Pid> {
        self.sender
    }

    /// Reads once into the inbox; false if nothing has arrived.
    fn fill(&mut self) -> Result<bool, WireError> {
        loop {
            match if self.with_sender { self.read_with_sender() } else { self.read() } {
                Ok(0) => return Err(WireError::Closed),
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(other) => return Err(other.into()),
            }
        }
    }

    fn read(&mut self) -> rustix::io::Result<usize> {
        self.inbox.reserve(CHUNK);
        Ok(recv(&*self.socket, spare_capacity(&mut self.inbox), RecvFlags::DONTWAIT)?.0)
    }

    /// Reads like [`ByteChannel::read`], and records the sender. One read gives bytes of one sender only.
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
}

impl AsFd for ByteChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// One end of a bootstrap socket: receives `In`, sends `Out`.
#[derive(Debug)]
pub struct Channel<In, Out> {
    bytes: ByteChannel,
    frames: PhantomData<(In, Out)>,
}

impl<In: DeserializeOwned, Out: Serialize> Channel<In, Out> {
    /// Takes over a connected socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self { bytes: ByteChannel::new(socket), frames: PhantomData }
    }

    /// Like [`ByteChannel::pair`].
    ///
    /// # Errors
    /// The error of `socketpair`, such as too few descriptors.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (bytes, theirs) = ByteChannel::pair()?;
        Ok((Self { bytes, frames: PhantomData }, theirs))
    }

    /// Queues a frame and sends what the socket takes now; the rest goes with [`Channel::flush`].
    ///
    /// # Errors
    /// If the frame is too long or the other side is gone.
    pub fn send(&mut self, frame: &Out) -> Result<(), WireError> {
        codec::encode(frame, &mut self.bytes.outbox)?;
        self.flush()
    }

    /// Sends what the socket takes now.
    ///
    /// # Errors
    /// If the other side is gone.
    pub fn flush(&mut self) -> Result<(), WireError> {
        self.bytes.flush()
    }

    /// Sends all that is queued, waiting for the other side.
    ///
    /// # Errors
    /// If the other side is gone.
    pub fn flush_all(&mut self) -> Result<(), WireError> {
        loop {
            self.flush()?;
            if self.unsent() == 0 {
                return Ok(());
            }
            self.wait(PollFlags::OUT)?;
        }
    }

    /// The socket, for writes that bypass the queue.
    pub(crate) fn socket(&self) -> &Arc<OwnedFd> {
        &self.bytes.socket
    }

    /// Number of queued bytes that the socket has not taken yet.
    pub fn unsent(&self) -> usize {
        self.bytes.unsent()
    }

    /// The next frame; `None` if no whole frame has arrived.
    ///
    /// # Errors
    /// [`WireError::Closed`] after the last frame if the other side is gone; others if it sends bytes that are no frame, or
    /// the system refuses to read.
    pub fn receive(&mut self) -> Result<Option<In>, WireError> {
        loop {
            if let Some((frame, used)) = codec::decode(&self.bytes.inbox)? {
                self.bytes.inbox.drain(..used);
                return Ok(Some(frame));
            }
            if !self.bytes.fill()? {
                return Ok(None);
            }
        }
    }

    /// The process that sent the last received frame; see [`ByteChannel::sender`].
    pub fn sender(&self) -> Option<Pid> {
        self.bytes.sender()
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
        match poll(&mut [PollFd::new(&self.bytes.socket, flags)], None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(other) => Err(other.into()),
        }
    }
}

impl<In, Out> AsFd for Channel<In, Out> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bytes.as_fd()
    }
}

//! [`Talk`]: a connection during its handshake.

use std::io::{self, Read, Write};

use mio::net::TcpStream;

use crate::handshake::{self, Fault, Handshake, Heard, MAX_MESSAGE};

/// A connection that has not been proven yet.
pub(crate) struct Talk {
    pub(crate) socket: TcpStream,
    pub(crate) handshake: Handshake,
    inbox: Vec<u8>,
}

/// Why a handshake ended without a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Fault(#[from] Fault),
    #[error("it closed the connection during the handshake")]
    Closed,
}

impl Talk {
    pub(crate) fn new(socket: TcpStream, handshake: Handshake) -> Talk {
        Talk { socket, handshake, inbox: Vec::new() }
    }

    /// Sends a handshake message, which is so short that an empty socket takes it whole.
    pub(crate) fn say(&mut self, message: &[u8]) -> Result<(), Failure> {
        match self.socket.write(message)? {
            written if written == message.len() => Ok(()),
            _ => Err(Failure::Closed),
        }
    }

    /// Handles the next message, if it is complete. Reads no byte beyond it: frames may follow.
    pub(crate) fn hear(&mut self) -> Result<Option<Heard>, Failure> {
        let mut buffer = [0; 2 + MAX_MESSAGE];
        loop {
            let whole = match handshake::message_length(&self.inbox)? {
                Some(length) => 2 + length,
                None => 2,
            };
            match self.socket.read(&mut buffer[..whole - self.inbox.len()]) {
                Ok(0) => return Err(Failure::Closed),
                Ok(read) => self.inbox.extend(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
            if handshake::message_length(&self.inbox)?.is_some_and(|length| self.inbox.len() == 2 + length) {
                let message = std::mem::take(&mut self.inbox);
                return Ok(Some(self.handshake.hear(&message[2..])?));
            }
        }
    }
}

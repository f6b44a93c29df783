//! [`Port`]: the part of a fabric that [`crate::P2p`] needs.

use banyan_memory::Buffer;
use banyan_transport::{Caps, Fabric, Get, Head, Peer, Refusal, Remote, Token};

/// Sends frames and reads memory. The runtime's port routes each peer to one of its fabrics (this process to itself, too);
/// any single [`Fabric`] is a port as well. The methods keep the contracts of [`Fabric`].
pub trait Port {
    /// See [`Fabric::caps`].
    fn caps(&self, peer: Peer) -> Caps;
    /// See [`Fabric::send_short`].
    fn send_short(&mut self, peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal>;
    /// See [`Fabric::send_bcopy`].
    fn send_bcopy(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal>;
    /// See [`Fabric::send_from`].
    fn send_from(
        &mut self,
        peer: Peer,
        head: &Head,
        memory: &Buffer,
        at: isize,
        len: usize,
    ) -> Result<(), Refusal> {
        self.send_bcopy(peer, head, len, &mut |body| memory.read(at, body))
    }
    /// See [`Fabric::expose`].
    fn expose(&mut self, peer: Peer, memory: &Buffer) -> Remote;
    /// See [`Fabric::withdraw`]; `peer` is the one that the memory was exposed to.
    fn withdraw(&mut self, peer: Peer, remote: Remote);
    /// See [`Fabric::revoke`]; `peer` is the one that the memory was exposed to.
    fn revoke(&mut self, peer: Peer, remote: Remote);
    /// See [`Fabric::get`].
    fn get(&mut self, peer: Peer, remote: Remote, local: &Buffer, token: Token) -> Get;
    /// See [`Fabric::recall`]; `peer` is the one whose memory is read.
    fn recall(&mut self, peer: Peer, token: Token);
}

impl<F: Fabric> Port for F {
    #[inline]
    fn caps(&self, peer: Peer) -> Caps {
        Fabric::caps(self, peer)
    }
    #[inline]
    fn send_short(&mut self, peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal> {
        Fabric::send_short(self, peer, head, body)
    }
    #[inline]
    fn send_bcopy(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal> {
        Fabric::send_bcopy(self, peer, head, len, fill)
    }
    fn send_from(
        &mut self,
        peer: Peer,
        head: &Head,
        memory: &Buffer,
        at: isize,
        len: usize,
    ) -> Result<(), Refusal> {
        Fabric::send_from(self, peer, head, memory, at, len)
    }
    fn expose(&mut self, peer: Peer, memory: &Buffer) -> Remote {
        Fabric::expose(self, peer, memory)
    }
    fn withdraw(&mut self, _peer: Peer, remote: Remote) {
        Fabric::withdraw(self, remote)
    }
    fn revoke(&mut self, _peer: Peer, remote: Remote) {
        Fabric::revoke(self, remote)
    }
    fn get(&mut self, peer: Peer, remote: Remote, local: &Buffer, token: Token) -> Get {
        Fabric::get(self, peer, remote, local, token)
    }
    fn recall(&mut self, _peer: Peer, token: Token) {
        Fabric::recall(self, token)
    }
}

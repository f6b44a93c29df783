//! The fabric towards its peers: frames, and one-sided transfers by the device ([`crate::transfers`]).

use banyan_memory::{Buffer, MemoryKind, copy_short};
use banyan_transport::{
    Access, Atomic, Caps, DeviceMoves, Fetch, Head, Kinds, Peer, Port, Refusal, RegisterError, Remote, Token,
    Transfer,
};

use crate::cache;
use crate::fabric::Rdma;
use crate::frames::{BODY, What};
use crate::greeting::Wire;
use crate::transfers::Way;
use crate::verbs::{self, Op};

/// The key of a range without bytes, which is not registered.
const NO_BYTES: u64 = u64::MAX;

impl Port for Rdma {
    fn caps(&self, _peer: Peer) -> Caps {
        Caps {
            max_short: BODY,
            max_bcopy: BODY,
            eager: BODY,
            piece: BODY,
            get: Kinds::HOST,
            put: Kinds::HOST,
            atomics: Kinds::HOST.only_if(self.device.atomics),
            // On iWARP what a get brings is written by the peer, by name; and where registrations are not kept each get makes two. Which way is
            // best is found out there.
            prefers_get: self.device.wire != Wire::Iwarp && self.registrations.keeps(),
            alpha: 2e-6,
            beta: 1.0 / 10e9,
        }
    }

    fn send_short(&mut self, peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal> {
        self.send_frame(peer, head, body.len(), |out| copy_short(body, out))
    }

    fn send_bcopy(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal> {
        self.send_frame(peer, head, len, fill)
    }

    fn register(&mut self, _peer: Peer, memory: &Buffer, access: Access) -> Result<Remote, RegisterError> {
        if memory.is_empty() {
            return Ok(Remote { addr: memory.address(memory.lo()) as u64, len: 0, key: NO_BYTES });
        }
        let access = match access {
            Access::Read => cache::Access::READ,
            Access::ReadWrite => cache::Access::READ_WRITE,
        };
        let key = self.registrations.expose(memory, access).map_err(|_| match memory.kind() {
            MemoryKind::Host => RegisterError::NoRoom,
            MemoryKind::Device => RegisterError::Unsupported,
        })?;
        Ok(Remote { addr: memory.address(memory.lo()) as u64, len: memory.len() as u64, key })
    }

    fn withdraw(&mut self, _peer: Peer, remote: Remote) {
        self.registrations.withdraw(remote.key);
    }

    fn revoke(&mut self, _peer: Peer, remote: Remote) {
        self.registrations.revoke(remote.key);
    }

    fn get(&mut self, peer: Peer, remote: Remote, local: &[Buffer], token: Token) -> Transfer {
        self.transfer(peer, remote, local, token, Way::Get)
    }

    fn device_moves(&mut self, _peer: Peer) -> DeviceMoves {
        match self.registrations.gpus().may_be_taken() {
            true => DeviceMoves::ByNetwork,
            false => DeviceMoves::Never,
        }
    }

    fn put(&mut self, peer: Peer, remote: Remote, local: &[Buffer], token: Token) -> Transfer {
        self.transfer(peer, remote, local, token, Way::Put)
    }

    fn atomic(&mut self, peer: Peer, word: Remote, op: Atomic, result: &Buffer, token: Token) -> Transfer {
        let at = verbs::Remote { addr: word.addr, rkey: word.key as u32 };
        let op = match op {
            Atomic::Fetch(Fetch::Add, operand) => Op::Add(at, operand),
            Atomic::CompareSwap { old, new } => Op::CompareSwap(at, old, new),
            Atomic::Fetch(..) => return Transfer::Impossible,
        };
        if !self.device.atomics {
            return Transfer::Impossible;
        }
        self.through_slot(peer, token, 8, op, vec![result.clone()], |_| {})
    }

    fn reclaim(&mut self, peer: Peer, token: Token) {
        self.take_back(peer, token);
    }
}

impl Rdma {
    /// Sends a frame of the user's, whose body `fill` writes.
    #[inline]
    fn send_frame(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), Refusal> {
        match self.links.end(peer) {
            Some(end) if end.is_up() && end.credit.may_send() => {}
            Some(end) if end.is_up() => return Err(Refusal::Busy),
            _ => return Err(self.reach(peer)),
        }
        if !self.leave(peer, What::Frame(*head), len, fill) {
            return Err(Refusal::Busy);
        }
        self.counts.frames += 1;
        self.counts.sent += len as u64;
        Ok(())
    }
}

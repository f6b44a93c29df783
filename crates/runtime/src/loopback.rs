//! The `self` fabric: frames from a process to itself, by a queue. One-sided transfers are plain copies.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use banyan_memory::Buffer;
use banyan_transport::{
    Access, Atomic, Caps, Fabric, Head, Kinds, Peer, Port, Refusal, RegisterError, Remote, Sink, Token,
    Transfer, Wake,
};

use crate::slab;

/// Frames in the queue before a sender is told to poll first.
const QUEUE: usize = 256;
const MAX_SHORT: usize = 1024;
const MAX_BCOPY: usize = 64 * 1024;

/// A queue of frames, and the memory that it registered for itself.
pub(crate) struct Loopback {
    me: Peer,
    queue: VecDeque<(Head, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    registered: Vec<Option<(Buffer, Access)>>,
}

impl Loopback {
    pub(crate) fn new(me: Peer) -> Self {
        Self { me, queue: VecDeque::new(), spare: Vec::new(), registered: Vec::new() }
    }

    fn push(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal> {
        if peer != self.me {
            return Err(Refusal::Down);
        }
        if self.queue.len() == QUEUE {
            return Err(Refusal::Busy);
        }
        let mut body = self.spare.pop().unwrap_or_default();
        body.clear();
        body.resize(len, 0);
        fill(&mut body);
        self.queue.push_back((*head, body));
        Ok(())
    }

    /// The memory at `remote`, if it is registered for such access.
    fn reach(&self, remote: Remote, access: Access) -> Option<Buffer> {
        let (memory, granted) = self.registered.get(remote.key as usize)?.as_ref()?;
        let at = (remote.addr as usize).checked_sub(memory.address(memory.lo()))?;
        let whole = at.checked_add(remote.len as usize)? <= memory.len();
        let granted = *granted == Access::ReadWrite || access == Access::Read;
        (whole && granted).then(|| memory.slice(memory.lo() + at as isize, remote.len as usize))
    }

    /// Copies between the memory at `remote` and pieces of the caller's memory: `copy` gets that memory, where the piece
    /// begins in it, and the piece.
    fn transfer(
        &self,
        (remote, access): (Remote, Access),
        local: &[Buffer],
        copy: impl Fn(&Buffer, isize, &Buffer),
    ) -> Transfer {
        let Some(memory) = self.reach(remote, access) else { return Transfer::Impossible };
        let mut at = 0;
        for local in local {
            copy(&memory, at as isize, local);
            at += local.len();
        }
        Transfer::Done
    }
}

impl Port for Loopback {
    fn caps(&self, _peer: Peer) -> Caps {
        Caps {
            max_short: MAX_SHORT,
            max_bcopy: MAX_BCOPY,
            eager: 8 * 1024,
            piece: MAX_BCOPY,
            get: Kinds::HOST,
            put: Kinds::HOST,
            atomics: Kinds::HOST,
            prefers_get: false,
            alpha: 5e-8,
            beta: 1e-10,
        }
    }

    // Not the trait's: by way of `send_bcopy` each message to oneself takes 27 instructions more.
    fn send_short(&mut self, peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal> {
        self.push(peer, head, body.len(), &mut |out| out.copy_from_slice(body))
    }

    fn send_bcopy(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal> {
        self.push(peer, head, len, fill)
    }

    fn register(&mut self, peer: Peer, memory: &Buffer, access: Access) -> Result<Remote, RegisterError> {
        if peer != self.me || !self.caps(peer).get.has(Kinds::of(memory.kind())) {
            return Err(RegisterError::Unsupported);
        }
        let key = slab::keep(&mut self.registered, (memory.clone(), access)) as u64;
        Ok(Remote { addr: memory.address(memory.lo()) as u64, len: memory.len() as u64, key })
    }

    fn withdraw(&mut self, _peer: Peer, remote: Remote) {
        if let Some(slot) = self.registered.get_mut(remote.key as usize) {
            *slot = None;
        }
    }

    fn get(&mut self, _peer: Peer, remote: Remote, local: &[Buffer], _token: Token) -> Transfer {
        self.transfer((remote, Access::Read), local, |memory, at, local| {
            local.copy_from(local.lo(), memory, at, local.len());
        })
    }

    fn put(&mut self, _peer: Peer, remote: Remote, local: &[Buffer], _token: Token) -> Transfer {
        self.transfer((remote, Access::ReadWrite), local, |memory, at, local| {
            memory.copy_from(at, local, local.lo(), local.len());
        })
    }

    fn atomic(&mut self, _peer: Peer, word: Remote, op: Atomic, result: &Buffer, _token: Token) -> Transfer {
        let Some(memory) = self.reach(word, Access::ReadWrite) else { return Transfer::Impossible };
        let mut before = [0; 8];
        memory.read(0, &mut before);
        memory.write(0, &op.apply(u64::from_ne_bytes(before)).to_ne_bytes());
        result.write(result.lo(), &before);
        Transfer::Done
    }
}

impl Fabric for Loopback {
    fn reaches(&self, peer: Peer) -> bool {
        peer == self.me
    }

    fn connect(&mut self, _peer: Peer, _business_card: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn poll(&mut self, sink: &mut impl Sink) -> usize {
        let frames = self.queue.len();
        for _ in 0..frames {
            let Some((head, body)) = self.queue.pop_front() else { break };
            sink.frame(self.me, &head, &body);
            if self.spare.len() < 16 {
                self.spare.push(body);
            }
        }
        frames
    }

    #[inline(always)]
    fn nothing_to_poll(&self) -> bool {
        self.queue.is_empty()
    }

    fn arm(&mut self, _wake: Wake) {}

    fn disarm(&mut self) {}

    /// No other process can send here: there is nothing to sleep for.
    fn sleep(&mut self, _deadline: Option<Instant>) {}

    fn descriptor(&mut self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_memory::HeapBuffer;
    use banyan_transport::{Class, Outcome};

    struct Got(Vec<(Head, Vec<u8>)>);
    impl Sink for Got {
        fn frame(&mut self, _peer: Peer, head: &Head, body: &[u8]) {
            self.0.push((*head, body.to_vec()));
        }
        fn sent(&mut self, _: Token) {}
        fn completed(&mut self, _token: Token, _outcome: Outcome) {}
        fn down(&mut self, _peer: Peer, _cause: &str) {}
    }

    #[test]
    fn it_passes_the_suite_of_all_fabrics() {
        banyan_transport::conformance::to_itself(&|| Loopback::new(Peer(0)));
    }

    #[test]
    fn frames_come_back_in_order_and_a_full_queue_refuses() {
        let mut fabric = Loopback::new(Peer(3));
        let head = |a| Head { class: Class::P2p, kind: 1, aux: 0, a, b: 0, ctx: 9 };
        for i in 0..QUEUE as u32 {
            fabric.send_short(Peer(3), &head(i), &i.to_le_bytes()).unwrap();
        }
        assert_eq!(fabric.send_short(Peer(3), &head(0), &[]), Err(Refusal::Busy));
        assert_eq!(fabric.send_short(Peer(4), &head(0), &[]), Err(Refusal::Down));
        let mut got = Got(Vec::new());
        assert_eq!(fabric.poll(&mut got), QUEUE);
        assert!(
            got.0.iter().enumerate().all(|(i, (h, b))| h.a == i as u32 && b[..] == (i as u32).to_le_bytes())
        );
    }

    #[test]
    fn only_what_is_registered_is_reached() {
        let mut fabric = Loopback::new(Peer(0));
        let from = HeapBuffer::copy_of(b"hello world");
        let remote = fabric.register(Peer(0), &from, Access::Read).unwrap();
        let part = Remote { addr: remote.addr + 6, len: 5, key: remote.key };
        let into = HeapBuffer::zeroed(5);
        assert_eq!(fabric.get(Peer(0), part, std::slice::from_ref(&into), Token(0)), Transfer::Done);
        let mut out = [0; 5];
        into.read(0, &mut out);
        assert_eq!(&out, b"world");
        let beyond = Remote { addr: remote.addr + 7, len: 5, key: remote.key };
        assert_eq!(fabric.get(Peer(0), beyond, std::slice::from_ref(&into), Token(0)), Transfer::Impossible);
        let refused = fabric.put(Peer(0), part, std::slice::from_ref(&into), Token(0));
        assert_eq!(refused, Transfer::Impossible, "registered for reading");
        fabric.withdraw(Peer(0), remote);
        assert_eq!(fabric.get(Peer(0), part, std::slice::from_ref(&into), Token(0)), Transfer::Impossible);
    }
}

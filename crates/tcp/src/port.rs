//! The fabric towards its peers. A frame that must keep its place goes by stream 0 of its peer, another one by the next stream that
//! has room.

use banyan_memory::Buffer;
use banyan_transport::{
    Access, Caps, Head, Kinds, Order, Peer, Port, Refusal, RegisterError, Remote, Sent, Token, Transfer,
};

use crate::fabric::Tcp;
use crate::frame::{MAX_BODY, PIECE};
use crate::link::Link;

/// Largest body of a short frame, bytes: written straight from the caller's slice.
const MAX_SHORT: usize = 4096;

/// Messages up to this size are one frame, bytes: RTS and reply take as long as some 64 KiB, and an awaited message is
/// written straight to its buffer. From 1 MiB on the round trip costs nothing, as the first piece leaves meanwhile.
const EAGER: usize = 256 * 1024;

impl Port for Tcp {
    fn caps(&self, _peer: Peer) -> Caps {
        Caps {
            max_short: MAX_SHORT,
            max_bcopy: MAX_BODY,
            eager: EAGER,
            piece: PIECE,
            get: Kinds::NONE,
            put: Kinds::NONE,
            atomics: Kinds::NONE,
            prefers_get: false,
            alpha: 5e-6,
            beta: 1.0 / 3.5e9,
        }
    }

    #[inline]
    fn send_short(&mut self, peer: Peer, head: &Head, body: &[u8]) -> Result<(), Refusal> {
        debug_assert!(body.len() <= MAX_SHORT);
        let number = self.links.number(peer, 0);
        self.send(number, |stream, round, limit, pool| stream.send(head, body, round, limit, pool))
    }

    fn send_bcopy(
        &mut self,
        peer: Peer,
        head: &Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal> {
        debug_assert!(len <= MAX_BODY);
        let number = self.links.number(peer, 0);
        self.send(number, |stream, round, limit, pool| {
            stream.send_filled(head, len, fill, round, limit, pool)
        })
    }

    fn send_from(
        &mut self,
        peer: Peer,
        head: &Head,
        body: (&Buffer, isize, usize),
        token: Option<Token>,
        order: Order,
    ) -> Result<Sent, Refusal> {
        let on = |tcp: &mut Tcp, stream| {
            tcp.send(tcp.links.number(peer, stream), |stream, round, limit, pool| {
                stream.send_from(head, body, token, (round, limit), pool)
            })
        };
        let streams = self.links.streams();
        if order == Order::Ordered || streams == 1 {
            return on(self, 0);
        }
        let streams = self.links.used(peer);
        for _ in 0..streams {
            self.turn = (self.turn + 1) % streams;
            match on(self, self.turn) {
                Err(Refusal::Busy) => {}
                sent => return sent,
            }
        }
        Err(Refusal::Busy)
    }

    fn reclaim(&mut self, peer: Peer, token: Token) {
        for number in self.links.to(peer) {
            if let Some(stream) = self.links.get(number).and_then(Link::any_stream_mut) {
                stream.reclaim(token, &mut self.pool);
            }
        }
        self.released.retain(|&other| other != token);
    }

    fn register(&mut self, _peer: Peer, _memory: &Buffer, _access: Access) -> Result<Remote, RegisterError> {
        Err(RegisterError::Unsupported)
    }

    fn get(&mut self, _peer: Peer, _remote: Remote, _local: &[Buffer], _token: Token) -> Transfer {
        Transfer::Impossible
    }
}

//! Giving requests up: the user has their memory back at once, whatever is under way.
//!
//! A caller that reports a failure cannot wait for peers that may never come, so it waits for nothing. Bytes that still
//! arrive for a receive find no receive, and are dropped. What a send has promised its peer leaves from a copy. A range that
//! the peer may be reading is revoked: the peer then asks for pieces, which leave from the copy, too.

use banyan_datatype::Data;
use banyan_memory::Buffer;
use banyan_transport::{Class, Port, Token};

use crate::p2p::P2p;
use crate::payload;
use crate::request::{Recv, RecvStep, Reply, Request, Send, SendStep, State};
use crate::types::ReqId;
use crate::wire::Kind;

impl P2p {
    /// Gives a request up: its id is not valid any more, and from now on nothing touches its memory. Its peer is not harmed:
    /// a message that was announced still arrives there, and one that was matched counts as received.
    pub fn abandon(&mut self, port: &mut impl Port, id: ReqId) {
        let Some(request) = self.requests.get_mut(id.0) else { return };
        match &mut request.state {
            State::Done(_) => {}
            State::Recv(_) => self.abandon_recv(port, id.0),
            State::Send(Send { step: SendStep::AwaitRoom { .. }, .. }) => self.finish_cancelled(id.0),
            State::Send(send) => disown(port, send),
        }
        self.detach(id);
    }

    fn abandon_recv(&mut self, port: &mut impl Port, id: u64) {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else {
            return debug_assert!(false, "the caller has just found the receive");
        };
        match &recv.step {
            // No other receive has this key: the message is received all the same, into no memory, so that its send
            // completes.
            RecvStep::AwaitMatch { .. } if recv.class == Class::Coll => {
                recv.data = Data::bytes(Buffer::empty())
            }
            RecvStep::AwaitMatch { entry } => {
                let Recv { ctx, class, .. } = *recv;
                self.contexts.at(ctx).side(class).posted.remove(*entry);
                self.requests.remove(id);
            }
            RecvStep::AwaitPieces(_) => drop(self.requests.remove(id)),
            RecvStep::AwaitRead(read) => {
                let message = read.message;
                port.recall(message.peer, Token(id));
                self.requests.remove(id);
                self.owe(message.peer, Reply::bare(Kind::Fin, message.sender, 0));
            }
        }
    }
}

/// Replaces the user's memory by a copy of the bytes that have not left.
fn disown(port: &mut impl Port, send: &mut Send) {
    let sent = match &mut send.step {
        SendStep::AwaitReply { region, sent, .. } => {
            region.take().into_iter().for_each(|region| port.revoke(send.peer, region));
            *sent
        }
        SendStep::PushAll { sent, .. } | SendStep::PushGranted { sent, .. } => *sent,
        SendStep::AwaitRoom { .. } => 0,
    };
    send.data = payload::copy_from(&send.data, sent);
}

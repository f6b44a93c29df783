//! Giving requests up: their memory goes back to the user at once, whatever is under way.
//!
//! A caller that reports a failure cannot wait for peers that may never come. So nothing is waited for: what still arrives
//! for a receive finds no receive, and is dropped; what a send has promised its peer leaves from a copy; and a region that
//! the peer may be reading is revoked, so that it asks for pieces, which leave from the copy, too.

use banyan_datatype::Data;
use banyan_memory::Buffer;
use banyan_transport::{Class, Token};

use crate::engine::Engine;
use crate::payload;
use crate::port::Port;
use crate::request::{Recv, RecvStep, Reply, Request, Send, SendStep, State};
use crate::types::ReqId;
use crate::wire::Kind;

impl Engine {
    /// Gives a request up: it is not known any more, and from now on nothing touches its memory. Its peer is not harmed:
    /// a message that was promised still arrives there, and one that was matched counts as received.
    pub fn abandon(&mut self, port: &mut impl Port, id: ReqId) {
        let Some(request) = self.requests.get_mut(id.0) else { return };
        match &mut request.state {
            State::Done(_) => {}
            State::Recv(_) => self.abandon_recv(port, id.0),
            State::Send(Send { step: SendStep::Leave { .. }, .. }) => self.finish_cancelled(id.0),
            State::Send(send) => disown(port, send),
        }
        self.detach(id);
    }

    fn abandon_recv(&mut self, port: &mut impl Port, id: u64) {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else { return };
        match &recv.step {
            // Nobody else will ask for this key: the message is to come all the same, so that its sender is set free.
            RecvStep::Match { .. } if recv.class == Class::Coll => recv.data = Data::bytes(Buffer::empty()),
            RecvStep::Match { place } => {
                let Recv { ctx, class, .. } = *recv;
                self.contexts.at(ctx).side(class).posted.remove(*place);
                self.requests.remove(id);
            }
            RecvStep::Pieces(_) => drop(self.requests.remove(id)),
            RecvStep::Read(read) => {
                let message = read.message;
                port.recall(message.peer, Token(id));
                self.requests.remove(id);
                self.owe(message.peer, Reply::bare(Kind::Taken, message.sender, 0));
            }
        }
    }
}

/// From now on the send needs no memory of the user's.
fn disown(port: &mut impl Port, send: &mut Send) {
    let sent = match &mut send.step {
        SendStep::Answer { region, sent, .. } => {
            region.take().into_iter().for_each(|region| port.revoke(send.peer, region));
            *sent
        }
        SendStep::Follow { sent, .. } | SendStep::Stream { sent, .. } => *sent,
        SendStep::Leave { .. } => 0,
    };
    send.data = payload::copy_from(&send.data, sent);
}

//! Giving requests up: the user has their memory back at once, whatever is under way.
//!
//! A caller that reports a failure, or drops a request, cannot wait for peers that may never come, so it waits for nothing. Bytes that still
//! arrive for a receive find no receive, and are dropped. What a send has promised its peer leaves from a copy. A range that
//! the peer may be reading is revoked: the peer then asks for pieces, which leave from the copy, too.

use banyan_datatype::Data;
use banyan_memory::{Buffer, DeviceFailure, NoMemory};
use banyan_transport::{Class, Outcome, Port, Token};

use crate::p2p::P2p;
use crate::payload;
use crate::request::{Recv, RecvStep, Reply, Request, Send, SendStep, State};
use crate::staging::Outgoing;
use crate::types::ReqId;
use crate::wire::Kind;

impl P2p {
    /// Gives a request up: its id is not valid any more, and from now on nothing touches its memory. Its peer is not harmed:
    /// a message that was announced still arrives there, and one that was matched counts as received. A send of which
    /// nothing has left is cancelled.
    pub fn abandon(&mut self, port: &mut impl Port, id: ReqId) {
        if let Some(Request { state: State::Send(Send { step: SendStep::AwaitRoom { .. }, .. }), .. }) =
            self.requests.get(id.0)
        {
            self.finish_cancelled(id.0);
        }
        self.disown(port, id);
    }

    /// Gives the memory of a request back to its owner: its id is not valid any more, and from now on nothing touches the
    /// memory. A send goes on from a copy; a receive is given up as by [`P2p::abandon`].
    pub fn disown(&mut self, port: &mut impl Port, id: ReqId) {
        match self.requests.get_mut(id.0).map(|request| &mut request.state) {
            None | Some(State::Done(_)) => {}
            Some(State::Recv(_)) => self.abandon_recv(port, id.0),
            Some(State::Send(send)) => {
                let started = matches!(&send.step, SendStep::PushGranted(granted) if granted.started);
                go_on_from_copy(port, id.0, send);
                self.memory_free(id.0);
                if started {
                    self.write_over(id.0, Outcome::Impossible);
                }
            }
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
            RecvStep::AwaitPieces(pieces) => {
                let peer = pieces.message.peer;
                pieces.granted.into_iter().for_each(|granted| port.revoke(peer, granted));
                self.requests.remove(id);
            }
            RecvStep::AwaitRead(read) => {
                let message = read.message;
                port.reclaim(message.peer, Token(id));
                read.rest.iter().for_each(|rest| port.revoke(message.peer, rest.granted));
                self.requests.remove(id);
                self.owe(message.peer, Reply::bare(Kind::Fin, message.sender, 0));
            }
        }
    }
}

/// Replaces the user's memory by a copy of the bytes that have not left.
fn go_on_from_copy(port: &mut impl Port, id: u64, send: &mut Send) {
    if send.lent > 0 || matches!(&send.step, SendStep::PushGranted(granted) if granted.started) {
        port.reclaim(send.peer, Token(id));
    }
    let sent = match &mut send.step {
        SendStep::AwaitRoom { region, .. } => {
            region.take().into_iter().for_each(|region| port.revoke(send.peer, region));
            0
        }
        SendStep::AwaitReply { region, staged, sent, .. } => {
            *staged = None;
            region.take().into_iter().for_each(|region| port.revoke(send.peer, region));
            u64::from(*sent)
        }
        SendStep::PushAll { sent, .. } => *sent,
        SendStep::PushGranted(granted) => {
            granted.staged = None;
            granted.region.take().into_iter().for_each(|region| port.revoke(send.peer, region));
            if granted.more { 0 } else { granted.sent }
        }
        SendStep::AwaitMemory(_) => return,
    };
    let bytes = send.data.len() as usize;
    let copy = DeviceFailure::caught(|| payload::copy_from(&send.data, sent));
    match (copy, &mut send.step) {
        (Ok(Some(copy)), _) => send.data = copy,
        (Ok(None), _) => std::panic::resume_unwind(Box::new(NoMemory { bytes })),
        // The peer hears of it where it would get the bytes.
        (Err(failure), SendStep::AwaitReply { staged, .. }) => *staged = Some(Outgoing::failed(failure)),
        (Err(failure), SendStep::PushGranted(granted)) => granted.staged = Some(Outgoing::failed(failure)),
        (Err(failure), _) => failure.unwind(),
    }
}

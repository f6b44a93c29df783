//! Messages that their sender holds back: it has not announced them (by an RTS), because enough announced ones are
//! unanswered. Without that bound the RTSs of patient senders would fill the memory of a receiver that does not receive.
//!
//! A process announces a window of messages with tags to each peer ([`crate::credit::CreditPool::window`]) and flags the
//! last RTS as the last. The messages after it are held, in order. An answer to one RTS makes room for one more. A peer that
//! looks for a message that it does not find (a receive is posted, or a probe finds nothing) asks the processes that may
//! hold it for more, again and again until it comes. Messages with keys are not held: schedules bound their number.

use banyan_transport::{Class, Peer, Port};

use crate::p2p::{P2p, list};
use crate::request::{Recv, RecvStep, Reply, Request, SendStep, State};
use crate::send::{affordable_as_whole, is_pushing};
use crate::wire::{Kind, Rts};

impl P2p {
    /// Whether the message of send `id` is to be held: enough are announced, or others are held before it.
    pub(crate) fn must_wait(&mut self, port: &impl Port, peer: Peer, id: u64) -> bool {
        // A send that was cancelled is still in the queue; `send_envelope` sends nothing for it.
        let Some(Request { state: State::Send(send), .. }) = self.requests.get(id) else { return false };
        if send.head.class != Class::P2p || !matches!(send.step, SendStep::AwaitRoom { .. }) {
            return false;
        }
        !self.peers.at(peer, &mut self.credit_pool).held.is_empty() || !self.may_leave(port, peer, id)
    }

    /// Sends held messages, some of which may leave, as many as may now.
    pub(crate) fn send_held(&mut self, port: &mut impl Port, peer: Peer) -> (usize, bool) {
        let mut sent = 0;
        let link = self.peers.at(peer, &mut self.credit_pool);
        if link.envelopes.front().is_some_and(|&id| is_pushing(&self.requests, id)) {
            return (0, false);
        }
        while let Some(&id) = self.peers.at(peer, &mut self.credit_pool).held.front() {
            if !self.may_leave(port, peer, id) {
                break;
            }
            if !self.try_envelope(port, peer, id) {
                return (sent, true);
            }
            sent += 1;
            self.peers.at(peer, &mut self.credit_pool).held.pop_front();
        }
        self.peers.at(peer, &mut self.credit_pool).ready = false;
        (sent, false)
    }

    /// Whether a message with a tag need not be held: it goes whole, or may be announced, or was cancelled.
    fn may_leave(&mut self, port: &impl Port, peer: Peer, id: u64) -> bool {
        let Some(Request { state: State::Send(send), .. }) = self.requests.get(id) else { return true };
        let link = self.peers.at(peer, &mut self.credit_pool);
        link.may_announce(self.credit_pool.window()) || affordable_as_whole(link, &port.caps(peer), send)
    }

    /// AnnounceMore: the peer looks for a message that may be among those held.
    pub(crate) fn announce_more(&mut self, peer: Peer) {
        let window = self.credit_pool.window();
        self.peers.at(peer, &mut self.credit_pool).extra = window;
        self.resume_held(peer);
    }

    /// There is room for announcements again, or credit: held messages may leave.
    pub(crate) fn resume_held(&mut self, peer: Peer) {
        let link = self.peers.at(peer, &mut self.credit_pool);
        link.ready = !link.held.is_empty();
        if link.ready {
            list(&mut self.work, link);
        }
    }

    /// An RTS arrived. If it is the last of the peer's window, the peer may hold messages from now on; it is asked for more
    /// at once if a receive waits that one of them may match.
    pub(crate) fn note_last(&mut self, peer: Peer, rts: &Rts) {
        let link = self.peers.at(peer, &mut self.credit_pool);
        if !rts.last || std::mem::replace(&mut link.holds, true) {
            return;
        }
        self.holders.push(peer);
        let awaits = |request: &Request| {
            let State::Recv(Recv {
                step: RecvStep::AwaitMatch { .. }, class: Class::P2p, peer: from, ..
            }) = &request.state
            else {
                return false;
            };
            from.is_none_or(|from| from == peer)
        };
        if self.requests.iter().any(|(_, request)| awaits(request)) {
            self.ask_for_more(Some(peer));
        }
    }

    /// A receive or probe looks for a message, of this peer or any, that has not come: asks the peers that may hold it.
    #[cold]
    pub(crate) fn ask_for_more(&mut self, from: Option<Peer>) {
        let may_hold = |peer: &mut Peer| from.is_none_or(|from| from == *peer);
        let holders: Vec<Peer> = self.holders.extract_if(.., may_hold).collect();
        for peer in holders {
            self.peers.at(peer, &mut self.credit_pool).holds = false;
            self.owe(peer, Reply::bare(Kind::AnnounceMore, 0, 0));
        }
    }
}

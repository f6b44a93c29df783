//! Messages that their sender does not announce, because enough are: so many unanswered announcements as there are senders
//! with patience would fill the memory of a receiver that does not come to receive them.
//!
//! A process announces a window of messages with tags to each peer ([`crate::credit::Bank::window`]) and says with the last
//! one that it is the last. What comes after it is held, in order. An answer to one makes room for one more. A peer that
//! looks for a message that it does not find (a receive is posted, or a probe finds nothing) asks whoever may hold it for
//! more, again and again while it does not come. Messages with keys are not held: schedules bound their number.

use banyan_transport::{Class, Peer};

use crate::engine::{Engine, list};
use crate::port::Port;
use crate::request::{Recv, RecvStep, Reply, Request, SendStep, State};
use crate::send::{affordable_as_whole, is_following};
use crate::wire::{Kind, Rts};

impl Engine {
    /// Whether the message is to be held: enough are announced, or others are held before it.
    pub(crate) fn must_wait(&mut self, port: &impl Port, peer: Peer, id: u64) -> bool {
        let Some(Request { state: State::Send(send), .. }) = self.requests.get(id) else { return false };
        if send.head.class != Class::P2p || !matches!(send.step, SendStep::Leave { .. }) {
            return false;
        }
        !self.peers.at(peer, &mut self.bank).held.is_empty() || !self.may_leave(port, peer, id)
    }

    /// Sends what was held, as far as that may be now.
    pub(crate) fn send_held(&mut self, port: &mut impl Port, peer: Peer) -> (usize, bool) {
        let mut sent = 0;
        let link = self.peers.at(peer, &mut self.bank);
        let behind = link.envelopes.front().is_some_and(|&id| is_following(&self.requests, id));
        if !link.ready || behind {
            return (0, false);
        }
        while let Some(&id) = self.peers.at(peer, &mut self.bank).held.front() {
            if !self.may_leave(port, peer, id) {
                break;
            }
            if !self.left(port, peer, id) {
                return (sent, true);
            }
            sent += 1;
            self.peers.at(peer, &mut self.bank).held.pop_front();
        }
        self.peers.at(peer, &mut self.bank).ready = false;
        (sent, false)
    }

    /// Whether a message with a tag need not be held: it goes whole, or may be announced, or is gone.
    fn may_leave(&mut self, port: &impl Port, peer: Peer, id: u64) -> bool {
        let Some(Request { state: State::Send(send), .. }) = self.requests.get(id) else { return true };
        let link = self.peers.at(peer, &mut self.bank);
        link.may_announce(self.bank.window()) || affordable_as_whole(link, &port.caps(peer), send)
    }

    /// The peer looks for a message that may be among those held.
    pub(crate) fn announce_more(&mut self, peer: Peer) {
        let window = self.bank.window();
        self.peers.at(peer, &mut self.bank).wanted = window;
        self.resume_held(peer);
    }

    /// There is room for announcements again, or credit.
    pub(crate) fn resume_held(&mut self, peer: Peer) {
        let link = self.peers.at(peer, &mut self.bank);
        link.ready = !link.held.is_empty();
        if link.ready {
            list(&mut self.work, link);
        }
    }

    /// An offer arrived: whether the peer announces others unasked. If a receive waits that others may be for, it is asked.
    pub(crate) fn note_last(&mut self, peer: Peer, rts: &Rts) {
        let link = self.peers.at(peer, &mut self.bank);
        if !rts.last || std::mem::replace(&mut link.holds, true) {
            return;
        }
        self.holders.push(peer);
        let awaits = |request: &Request| {
            let State::Recv(Recv { step: RecvStep::Match { .. }, class: Class::P2p, peer: from, .. }) =
                &request.state
            else {
                return false;
            };
            from.is_none_or(|from| from == peer)
        };
        if self.requests.iter().any(|(_, request)| awaits(request)) {
            self.ask_for_more(Some(peer));
        }
    }

    /// A message is looked for, from this peer or any, that has not come: whoever may hold it is asked.
    #[cold]
    pub(crate) fn ask_for_more(&mut self, from: Option<Peer>) {
        let asked = |peer: &mut Peer| from.is_none_or(|from| from == *peer);
        let asked: Vec<Peer> = self.holders.extract_if(.., asked).collect();
        for peer in asked {
            self.peers.at(peer, &mut self.bank).holds = false;
            self.owe(peer, Reply::bare(Kind::More, 0, 0));
        }
    }
}

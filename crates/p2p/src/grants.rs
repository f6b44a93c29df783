//! Single copies that the sender takes part in: the receiver grants it memory to write, all that the message goes to or its second
//! half, and reads the rest itself.
//!
//! The receiver's CTS carries the grant. The sender writes, and says so (`Written`); if it cannot, it sends DATA instead. After the
//! second half it awaits another answer: FIN once the receiver has read the first half, or a CTS for it if that could not be read.

use banyan_transport::{Access, Outcome, Peer, Port, Remote, Token, Transfer};

use crate::misbehaved::Misbehaved;
use crate::p2p::{P2p, list};
use crate::peers::Link;
use crate::request::{
    Arrival, Granted, Matched, Pieces, Recv, RecvStep, Reply, Request, Rest, Send, SendStep, State,
};
use crate::staging::{self, Incoming};
use crate::ways::{SHORTEST, Way};
use crate::wire::{Cts, Grant, Kind};

/// Halves begin at whole pages of the message.
const PAGE: u64 = 4096;

/// What a sender may write of a message, if it may: from this byte on.
pub(crate) fn first_written(message: &Matched, way: Way) -> Option<u64> {
    let accepted = message.accepted;
    match way {
        Way::Write if accepted >= SHORTEST => Some(0),
        Way::Both if accepted >= SHORTEST => Some((accepted / 2).next_multiple_of(PAGE)),
        _ => None,
    }
}

impl P2p {
    /// Receive `id` is about to read its message: grants the sender what it is to write instead. True if that is all.
    pub(crate) fn grant(&mut self, port: &mut impl Port, id: u64) -> bool {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else { return false };
        let RecvStep::AwaitRead(read) = &mut recv.step else { return false };
        let message = read.message;
        let Some(from) = first_written(&message, std::mem::replace(&mut read.way, Way::Read)) else {
            return false;
        };
        let link = self.peers.at(message.peer, &mut self.credit_pool);
        let writable = link.refused_writes < Link::PATIENCE && !staging::is_staged(&recv.data);
        let memory = recv.data.contiguous().filter(|_| writable);
        let granted = memory.and_then(|memory| {
            let memory = memory.slice(memory.lo() + from as isize, (message.accepted - from) as usize);
            port.register(message.peer, &memory, Access::ReadWrite).ok()
        });
        let Some(memory) = granted else { return false };
        if from == 0 {
            let (received, staged) = (0, Incoming::default());
            recv.step = RecvStep::AwaitPieces(Box::new(Pieces { message, received, granted, staged }));
        } else {
            (read.end, read.rest) = (from, Some(Rest { granted: memory, arrived: 0, unreadable: false }));
        }
        let grant = Some(Grant { from, exposed: (memory.addr, memory.key) });
        self.owe(
            message.peer,
            Cts { id, room: message.accepted, grant, to_device: false }.reply(message.sender),
        );
        // Before this process reads, so that both copy at the same time.
        self.send_replies(port, message.peer);
        from == 0
    }

    /// Written: the bytes of receive `id` from `at` on are there.
    pub(crate) fn written(&mut self, peer: Peer, id: u64, at: u64) -> Result<(), Misbehaved> {
        let len = match self.requests.get(id) {
            Some(Request { state: State::Recv(Recv { step, .. }), .. }) => {
                step.granted().ok_or(Misbehaved::DataUnasked)?.len as usize
            }
            // The receive was given up.
            _ => 0,
        };
        self.peers.at(peer, &mut self.credit_pool).refused_writes = 0;
        self.take_piece(peer, id, at, len, Arrival::Written)
    }

    /// The first DATA for receive `id` show that its sender could not write what it was granted.
    pub(crate) fn note_unwritten(&mut self, peer: Peer, id: u64) {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get(id) else { return };
        let untouched = match &recv.step {
            RecvStep::AwaitPieces(pieces) => pieces.granted.is_some() && pieces.received == 0,
            RecvStep::AwaitRead(read) => read.rest.as_ref().is_some_and(|rest| rest.arrived == 0),
            RecvStep::AwaitMatch { .. } => false,
        };
        if untouched {
            let link = self.peers.at(peer, &mut self.credit_pool);
            link.refused_writes = link.refused_writes.saturating_add(1);
            let refused = link.refused_writes >= Link::PATIENCE;
            if let Some(long) = link.long.as_mut().filter(|_| refused) {
                long.refuse(&[Way::Write, Way::Both]);
            }
        }
    }

    /// One of the halves of receive `id` is over: what follows if both are.
    pub(crate) fn half_over(&mut self, id: u64) {
        let Some(Request { state: State::Recv(recv), .. }) = self.requests.get_mut(id) else { return };
        let RecvStep::AwaitRead(read) = &mut recv.step else { return };
        let Some(rest) = &read.rest else { return };
        let (message, granted) = (read.message, rest.granted);
        if rest.arrived < message.accepted - read.end {
            return;
        }
        if rest.unreadable {
            let (received, room, staged) = (rest.arrived, read.end, std::mem::take(&mut read.staged));
            recv.step = RecvStep::AwaitPieces(Box::new(Pieces { message, received, granted: None, staged }));
            let link = self.peers.at(message.peer, &mut self.credit_pool);
            link.withdrawals.push(granted);
            self.owe(message.peer, Cts { id, room, grant: None, to_device: false }.reply(message.sender));
        } else if read.done == read.end {
            self.owe(message.peer, Reply::bare(Kind::Fin, message.sender, 0));
            self.received_all(id, &message);
        }
    }

    /// Writes the bytes of send `id`, which is the first in the queue of those granted, if it was granted memory to write. Gives
    /// whether DATA are to leave instead; nothing if the fabric has no room.
    pub(crate) fn write(&mut self, port: &mut impl Port, id: u64) -> Option<bool> {
        let Some(Request { state: State::Send(send), .. }) = self.requests.get_mut(id) else {
            return Some(true);
        };
        let SendStep::PushGranted(granted) = &mut send.step else { return Some(true) };
        let Granted { room, sent, grant: Some(Grant { exposed: (addr, key), .. }), .. } = **granted else {
            return Some(true);
        };
        let remote = Remote { addr, len: room - sent, key };
        let transfer = send.data.contiguous().map_or(Transfer::Impossible, |memory| {
            let local = memory.slice(memory.lo() + sent as isize, remote.len as usize);
            port.put(send.peer, remote, &[local], Token(id))
        });
        let peer = send.peer;
        match transfer {
            Transfer::Busy => {
                self.stats.busy += 1;
                return None;
            }
            Transfer::Impossible => {
                granted.grant = None;
                return Some(true);
            }
            Transfer::Started => (granted.started, send.lent) = (true, 1),
            Transfer::Done => self.write_over(id, Outcome::Done),
        }
        self.peers.at(peer, &mut self.credit_pool).granted.pop_front();
        self.send_replies(port, peer);
        Some(false)
    }

    /// What became of the write of send `id`. After one that is impossible the bytes leave as DATA.
    pub(crate) fn write_over(&mut self, id: u64, outcome: Outcome) {
        // The send may be gone, with its peer or because it was given up: the outcome is late.
        let Some(Request { state: State::Send(send), .. }) = self.requests.get_mut(id) else { return };
        let SendStep::PushGranted(granted) = &mut send.step else { return };
        let (peer, &mut Granted { to, sent, more, region, .. }) = (send.peer, &mut **granted);
        send.lent = 0;
        if outcome == Outcome::Done {
            self.stats.puts += 1;
            self.owe(peer, Reply::bare(Kind::Written, to, sent));
            return self.sent_all(id, more, region);
        }
        (granted.grant, granted.started) = (None, false);
        let link = self.peers.at(peer, &mut self.credit_pool);
        link.granted.push_back(id);
        list(&mut self.work, link);
    }

    /// All that a CTS asked for has left: the send is over, unless its receiver has `more` to say.
    pub(crate) fn sent_all(&mut self, id: u64, more: bool, region: Option<Remote>) {
        let Some(Request { state: State::Send(send), .. }) = self.requests.get_mut(id) else { return };
        if more {
            send.step = SendStep::AwaitReply { region, staged: None, sent: 0, counted: false };
        } else {
            let completion = send.completion();
            self.finish(id, completion);
        }
    }

    /// FIN for send `id`: true if it writes or sends what was granted at this moment. It is over once that has left: the receiver
    /// was given up.
    pub(crate) fn excused(&mut self, peer: Peer, id: u64) -> bool {
        let Some(Request { state: State::Send(send), .. }) = self.requests.get_mut(id) else { return false };
        let Send { peer: of, step, .. } = send;
        let SendStep::PushGranted(granted) = step else { return false };
        if *of != peer || !std::mem::take(&mut granted.more) {
            return false;
        }
        let link = self.peers.at(peer, &mut self.credit_pool);
        link.withdrawals.extend(granted.region.take());
        list(&mut self.work, link);
        true
    }
}

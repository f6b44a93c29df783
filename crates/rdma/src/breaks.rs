//! Connections that break: what is under way is waited for at the device, then the connection is made anew, and what has not surely
//! arrived is sent again; or, after the patience, the peer counts as gone.

use std::time::{Duration, Instant};

use banyan_transport::Peer;

use crate::contact::Contact;
use crate::fabric::Rdma;
use crate::frames::{self, HEADER, Id};
use crate::links::{Breaking, End, Left, Phase};
use crate::verbs::{NO_PAIR, Pair};

/// The time that a device may take to give back what was under way by a pair that has ended.
const FLUSH: Duration = Duration::from_secs(2);

impl End {
    /// True if it is broken, and the device has not given back in time what was under way.
    pub(crate) fn flushes_in_vain(&self) -> bool {
        self.breaking.as_ref().is_some_and(|breaking| breaking.since.elapsed() > FLUSH)
    }
}

impl Rdma {
    /// A connection is broken: from now on the device does nothing more by it. It has been so for its first reason.
    pub(crate) fn broke(&mut self, peer: Peer, why: String) {
        if let Some(end) = self.links.end(peer)
            && end.breaking.is_none()
        {
            // One that rests as far as both are concerned loses nothing but word of that.
            let rest = end.rest_said && end.rest_heard && end.moving == 0;
            if !rest {
                end.failing.get_or_insert((Instant::now(), why));
            }
            self.close(peer, rest);
        }
    }

    /// Ends the queue pairs of a connection, to make it anew, or to let it rest.
    pub(crate) fn close(&mut self, peer: Peer, rest: bool) {
        let Some(end) = self.links.end(peer).filter(|end| end.breaking.is_none()) else { return };
        end.breaking = Some(Breaking { since: Instant::now(), rest, refused: false, given_back: false });
        end.rails_end();
        if let Some(pairs) = &end.pairs {
            [&pairs.frames, &pairs.transfers].into_iter().chain(&pairs.further).for_each(Pair::fail);
        }
        self.contacting.retain(|&other| other != peer);
        self.breaking.push(peer);
    }

    /// Goes on with broken connections, when nothing more comes from the device: once it has given back what was under way, and what it
    /// had brought is handed over, ends their pairs, and makes them anew. Gives how many it went on with.
    pub(crate) fn attend_breaks(&mut self) -> usize {
        let mut work = 0;
        for peer in std::mem::take(&mut self.breaking) {
            let Some(end) = self.links.end(peer) else { continue };
            let (under_way, late) = (end.posted + end.moving, end.flushes_in_vain());
            let Some(breaking) = &mut end.breaking else { continue };
            if breaking.given_back {
                self.renew_broken(peer);
            } else {
                breaking.given_back = under_way == 0 || late;
                let waits = !breaking.given_back;
                self.breaking.push(peer);
                if waits {
                    continue;
                }
            }
            work += 1;
        }
        work
    }

    /// Ends the pairs of a broken connection, and makes it anew.
    pub(crate) fn renew_broken(&mut self, peer: Peer) {
        self.breaking.retain(|&other| other != peer);
        self.end_pairs(peer);
        self.end_transfers(peer);
        self.renew(peer);
    }

    /// Ends the queue pairs to a peer: the device does not touch any more what their work was to use.
    fn end_pairs(&mut self, peer: Peer) {
        let Some(end) = self.links.end(peer) else { return };
        self.under_way -= end.posted + end.moving;
        (end.posted, end.moving) = (0, 0);
        let Some(pairs) = end.pairs.take() else { return };
        for number in pairs.all() {
            self.peers.remove(number);
            self.ended_pairs.push(number);
        }
    }

    /// Sees that no completion is taken for one of a new queue pair, whose number may be that of one that has ended.
    pub(crate) fn forget_ended(&mut self) {
        if self.ended_pairs.is_empty() {
            return;
        }
        while self.hold_completions() > 0 {}
        let ended = std::mem::take(&mut self.ended_pairs);
        let stale = self.held.iter_mut().filter(|completion| ended.contains(&completion.pair));
        stale.for_each(|completion| completion.pair = NO_PAIR);
    }

    /// Makes a connection anew that has broken, unless its peer is gone or the patience is over.
    fn renew(&mut self, peer: Peer) {
        let unknown = self.atomic_under_way(peer);
        let Some(end) = self.links.end(peer) else { return };
        let Some(Breaking { rest, refused, .. }) = end.breaking.take() else { return };
        if let Some(cause) = end.died.take() {
            return self.lose(peer, &cause);
        }
        let now = Instant::now();
        let said = std::mem::take(&mut end.rest_said);
        end.rest_heard = false;
        if rest {
            end.contact = Contact::new(end.contact.says().number + 1, now, now + self.patience);
            return self.rested(peer, said);
        }
        let (since, why) = end.failing.get_or_insert((now, String::new()));
        let give_up = *since + self.patience;
        if unknown && !refused {
            let why = format!(
                "{why}; whether an atomic operation that was under way was carried out cannot be known"
            );
            let why = self.by_port(&why);
            return self.lose(peer, &why);
        }
        end.contact = Contact::new(end.contact.says().number + 1, now, give_up);
        self.contacting.push(peer);
        self.counts.renewed += 1;
    }

    /// Sends again what has not surely arrived, by a connection that was made anew.
    pub(crate) fn send_again(&mut self, peer: Peer) {
        let Some(end) = self.links.end(peer) else { return };
        let kept: Vec<Left> = end.replay.kept().copied().collect();
        for left in &kept {
            let (frame, lkey) = self.sending.frame(left.slot, left.len as usize);
            frames::sent_again(&mut frame[..HEADER]);
            let Some(end) = self.links.end(peer) else { return };
            if let Err(why) = post_frame(end, &mut self.under_way, left.slot, (frame, lkey)) {
                self.broke(peer, why);
            }
        }
        self.counts.again += kept.len() as u64;
        self.move_again(peer);
    }

    /// A peer is gone: its connection ends, and with it all that is under way there.
    pub(crate) fn lose(&mut self, peer: Peer, why: &str) {
        self.end_pairs(peer);
        let phase = std::mem::replace(&mut self.links.at(peer).phase, Phase::Down);
        if matches!(phase, Phase::Down) {
            return;
        }
        self.contacting.retain(|&other| other != peer);
        self.breaking.retain(|&other| other != peer);
        self.refused.retain(|&(other, _)| other != peer);
        self.lost.push((peer, why.to_owned()));
        let Phase::Open(mut end) = phase else { return };
        if std::mem::take(&mut end.window) {
            self.windows.give_back();
        }
        end.replay.kept().for_each(|left| self.sending.give(left.slot));
        self.drop_transfers(peer);
    }

    /// When a broken connection wants to be looked at.
    pub(crate) fn break_deadline(&self) -> Option<Instant> {
        let since = |&peer: &Peer| Some(self.links.look(peer)?.breaking.as_ref()?.since + FLUSH);
        self.breaking.iter().filter_map(since).min()
    }
}

/// Posts the send of a frame from a slot, with the key of that memory, if the connection's pairs are there.
#[inline(always)]
pub(crate) fn post_frame(
    end: &mut End,
    under_way: &mut usize,
    slot: u32,
    (frame, lkey): (&[u8], u32),
) -> Result<(), String> {
    let Some(pairs) = &mut end.pairs else { return Ok(()) };
    pairs.frames.post_send(Id::Send(slot).into(), frame, lkey)?;
    end.posted += 1;
    *under_way += 1;
    Ok(())
}

//! [`LongMessages`]: what is kept of a peer with which long messages have a choice of ways.
//!
//! As their receiver this process measures them, has its [`Ways`] choose, and tells the peer. As their sender it does as
//! it was told. An RTS says which way its message takes, so that nothing depends on when that was heard.

use banyan_transport::{Class, Head, Peer};

use crate::misbehaved::Misbehaved;
use crate::p2p::P2p;
use crate::request::{Matched, Reply};
use crate::types::Choice;
use crate::ways::{self, CLASSES, Preference, Traffic, Way, Ways};
use crate::wire::{self, Kind, Rts};

/// A receive that comes so much later than its message was announced, ns, says nothing of the way.
const LATE: u64 = 20_000;

#[derive(Debug)]
pub(crate) struct LongMessages {
    /// What the peer prefers, for each class of lengths.
    pub(crate) told: [Preference; CLASSES],
    /// Announcements with a choice that were sent to the peer, modulo 2^16.
    pub(crate) sent: u16,
    /// Such announcements that came from the peer.
    pub(crate) seen: u16,
    ways: Ways,
    last: Announced,
    /// When a message whose time was wanted was over, ns.
    over: u64,
}

/// The last announcement of the peer that had a choice.
#[derive(Clone, Copy, Debug)]
struct Announced {
    /// Id of the send.
    sender: u64,
    traffic: Traffic,
    /// When it came, ns; 0: that is not wanted.
    at: u64,
}

/// What a receive knows of a message whose way was a choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    way: Way,
    traffic: Traffic,
    /// When it was announced, ns; 0: its time does not count.
    since: u64,
}

impl Default for LongMessages {
    fn default() -> Self {
        let last = Announced { sender: 0, traffic: Traffic::OneWay, at: 0 };
        Self { told: [Preference::FIRST; CLASSES], sent: 0, seen: 0, ways: Ways::new(), last, over: 0 }
    }
}

impl LongMessages {
    /// From now on these ways, which were refused, are not chosen.
    pub(crate) fn refuse(&mut self, ways: &[Way]) {
        ways.iter().for_each(|way| self.ways.refuse(*way));
    }
}

impl P2p {
    fn now(&self) -> u64 {
        match self.choice {
            Choice::Measured { clock } => clock(),
            Choice::Fixed(_) => 0,
        }
    }

    /// An RTS has arrived.
    pub(crate) fn note_announced(&mut self, peer: Peer, rts: &Rts) {
        let Some(class) = ways::class(rts.total).filter(|_| rts.choice) else { return };
        let now = self.now();
        let long = self.peers.at(peer, &mut self.credit_pool).long.get_or_insert_default();
        // If the peer has not seen the last announcement of this process, messages go both ways at once.
        let traffic = if rts.seen == long.sent { Traffic::OneWay } else { Traffic::BothWays };
        let at = if long.ways.is_looking(class) { now } else { 0 };
        long.seen = long.seen.wrapping_add(1);
        long.last = Announced { sender: rts.id, traffic, at };
    }

    /// A receive is matched with an RTS.
    pub(crate) fn chosen(&mut self, peer: Peer, rts: &Rts) -> Option<Chosen> {
        let long = self.peers.at(peer, &mut self.credit_pool).long.as_ref().filter(|_| rts.choice)?;
        let last = long.last;
        let waits = last.sender == rts.id && last.at > 0 && self.now() - last.at < LATE;
        Some(Chosen { way: rts.way, traffic: last.traffic, since: if waits { last.at } else { 0 } })
    }

    /// All of the message of receive `id` is there.
    pub(crate) fn received_all(&mut self, id: u64, message: &Matched) {
        if let Some(chosen) = message.chosen {
            self.measured(message, chosen);
        }
        self.finish(id, message.completion());
    }

    #[cold]
    fn measured(&mut self, message: &Matched, Chosen { way, traffic, since }: Chosen) {
        let now = if since > 0 { self.now() } else { 0 };
        let link = self.peers.at(message.peer, &mut self.credit_pool);
        let Some(long) = &mut link.long else { return };
        // Messages of a window follow each other.
        let time = (now > 0).then(|| (now - since.max(long.over).min(now)) as f64);
        // What is cut off takes less time than it should.
        let time = time.filter(|_| message.accepted == message.total);
        long.over = now.max(long.over);
        if let Some((class, Preference { way, looking })) = long.ways.over(message.total, traffic, way, time)
        {
            let wide = class as u64 | (way as u64 | u64::from(looking) << 8) << 32;
            self.owe(message.peer, Reply::bare(Kind::Prefer, 0, wide));
        }
    }

    /// Prefer: the peer tells which way it wants long messages to take.
    pub(crate) fn preferred(&mut self, peer: Peer, head: &Head) -> Result<(), Misbehaved> {
        debug_assert!(head.class == Class::P2p, "checked before");
        let wide = wire::wide(head);
        let (class, way, looking) = (wide as u32 as usize, (wide >> 32) as u8, wide >> 40 & 1 == 1);
        let long = self.peers.at(peer, &mut self.credit_pool).long.get_or_insert_default();
        let way = Way::ALL.get(usize::from(way)).ok_or(Misbehaved::UnknownWay)?;
        let told = long.told.get_mut(class).ok_or(Misbehaved::UnknownWay)?;
        *told = Preference { way: *way, looking };
        Ok(())
    }
}

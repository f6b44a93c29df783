//! What a process keeps of each peer.

use std::time::{Duration, Instant};

use banyan_transport::Peer;
use banyan_transport::hash::Map;

use crate::contact::{Contact, Stage};
use crate::credit::Credit;
use crate::greeting::{Greeting, Path};
use crate::replay::Replay;
use crate::verbs::{Pair, Use};

/// A peer.
#[derive(Default)]
pub(crate) struct Link {
    /// The way there, as its business card has it.
    pub(crate) path: Option<Path>,
    /// Its card was asked for.
    pub(crate) asked: bool,
    /// It was said to be out of reach.
    pub(crate) doubted: bool,
    pub(crate) phase: Phase,
}

/// How far the connection to a peer is.
#[derive(Default)]
pub(crate) enum Phase {
    /// Nothing was sent to it, and nothing has come.
    #[default]
    Idle,
    /// This side's end is there.
    Open(Box<End>),
    /// No connection came about, for this reason: another fabric may carry the peer, which the process's next look at its card decides.
    Refused(String),
    /// It is gone.
    Down,
}

/// A frame that has not surely arrived.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    pub(crate) slot: u32,
    pub(crate) len: u32,
}

/// This side's end of a connection, over all of its lives.
pub(crate) struct End {
    /// The queue pairs; `None`: they are still to be made.
    pub(crate) pairs: Option<Pairs>,
    /// Where greetings to the peer go, and what connects the two.
    pub(crate) path: Path,
    pub(crate) contact: Contact,
    pub(crate) credit: Credit,
    pub(crate) replay: Replay<Left>,
    /// Numbers of works under way by the one pair and the other.
    pub(crate) posted: usize,
    pub(crate) moving: usize,
    /// Number of works of transfers that have ended well.
    pub(crate) moved: u64,
    /// It has stood once.
    pub(crate) has_stood: bool,
    /// It has buffers for what comes.
    pub(crate) window: bool,
    /// When it was used last, by the count of polls.
    pub(crate) used: u64,
    /// The peer was told that nothing comes any more until it is made anew, and has told so.
    pub(crate) rest_said: bool,
    pub(crate) rest_heard: bool,
    /// How many of its lives in a row have ended before something had come through by its further rails.
    pub(crate) fruitless: u8,
    /// It is broken: what is under way is waited for, then it is made anew.
    pub(crate) breaking: Option<Breaking>,
    /// Since when nothing has got through, and the first reason.
    pub(crate) failing: Option<(Instant, String)>,
    /// Why its queue pairs could not be made, the last time.
    pub(crate) hindered: Option<String>,
    /// The launcher says that the peer has ended, and why.
    pub(crate) died: Option<String>,
}

/// The queue pairs of a connection: that of frames, that of one-sided transfers, and those of long ones on further rails.
pub(crate) struct Pairs {
    pub(crate) frames: Pair,
    pub(crate) transfers: Pair,
    pub(crate) further: Vec<Pair>,
    /// Number of those that are connected, and whether something was sent by them.
    pub(crate) standing: usize,
    pub(crate) tried: bool,
    /// The peer's pairs that these are for, and how far they are connected to them; since when.
    pub(crate) wiring: Option<([u32; 2], Wiring)>,
    pub(crate) since: Instant,
}

/// How far queue pairs are connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wiring {
    /// Frames may leave.
    Done,
    /// This side asks for the connections, of which so many stand.
    Asking(u8),
    /// The other side asks, and so many stand. It also sends first, as MPA has it.
    Asked(u8),
}

/// How far a broken end is.
pub(crate) struct Breaking {
    pub(crate) since: Instant,
    /// Nothing is wrong: it rests until it is needed.
    pub(crate) rest: bool,
    /// The peer has refused a transfer: those behind it were not carried out.
    pub(crate) refused: bool,
    /// The device has given back what was under way: what has come by the pairs is handed over, then they end.
    pub(crate) given_back: bool,
}

impl End {
    /// True if frames may leave, as far as the connection goes.
    // Here and below `&` has all of it looked at, which takes less time than a branch for each.
    #[inline(always)]
    pub(crate) fn is_up(&self) -> bool {
        self.stands() & self.breaking.is_none() & !self.rests()
    }

    /// True if both sides know that their queue pairs are connected.
    #[inline]
    pub(crate) fn stands(&self) -> bool {
        (self.contact.stage() == Stage::Up) & self.pairs.as_ref().is_some_and(Pairs::are_wired)
    }

    /// A frame has come, so the other side is up, and this one may send.
    pub(crate) fn prove(&mut self) {
        self.contact.proved();
        if let Some((_, wiring)) = self.pairs.as_mut().and_then(|pairs| pairs.wiring.as_mut()) {
            *wiring = Wiring::Done;
        }
    }

    /// True if its queue pairs should have been connected by now.
    pub(crate) fn is_late(&self, now: Instant, patience: Duration) -> bool {
        let late = |pairs: &Pairs| !pairs.are_wired() && now.duration_since(pairs.since) > patience;
        self.breaking.is_none() && self.pairs.as_ref().is_some_and(late)
    }

    /// True if it is about to rest.
    #[inline]
    pub(crate) fn rests(&self) -> bool {
        self.rest_said | self.rest_heard
    }

    /// Something has got through.
    #[inline]
    pub(crate) fn works(&mut self) {
        if self.failing.is_some() {
            self.failing = None;
        }
    }
}

impl Pairs {
    /// The numbers of those on the first rail.
    pub(crate) fn numbers(&self) -> [u32; 2] {
        [self.frames.number(), self.transfers.number()]
    }

    /// Connects both to those that a greeting names; acknowledgements are waited for as `late` says.
    pub(crate) fn connect(&mut self, path: &Path, said: &Greeting, late: u8) -> Result<(), String> {
        let first = (self.first(), said.first);
        self.frames.connect(Use::Frames, path, said.pairs[0], first, late)?;
        self.transfers.connect(Use::Transfers, path, said.pairs[1], first, late)?;
        self.wiring = Some((said.pairs, Wiring::Done));
        Ok(())
    }

    /// True if frames may leave.
    #[inline]
    pub(crate) fn are_wired(&self) -> bool {
        matches!(self.wiring, Some((_, Wiring::Done)))
    }

    /// The pairs and their numbers.
    pub(crate) fn both(&mut self) -> [&mut Pair; 2] {
        [&mut self.frames, &mut self.transfers]
    }

    /// The number of the first packet from here, on both.
    pub(crate) fn first(&self) -> u32 {
        self.frames.number().wrapping_mul(0x9e37_79b9) >> 8
    }
}

/// Peers by the numbers of our queue pairs to them; the one used last is found without hashing.
pub(crate) struct PeersByPair {
    all: Map<u32, Peer>,
    last: (u32, Peer),
}

/// No pair has this number, on whatever rail: they have 24 bits.
const NO_NUMBER: u32 = u32::MAX;

impl Default for PeersByPair {
    fn default() -> PeersByPair {
        PeersByPair { all: Map::default(), last: (NO_NUMBER, Peer(0)) }
    }
}

impl PeersByPair {
    /// The peer that a pair leads to, while there is such a pair.
    #[inline]
    pub(crate) fn get(&mut self, pair: u32) -> Option<Peer> {
        let (last, peer) = self.last;
        if last == pair { Some(peer) } else { self.look_up(pair) }
    }

    #[inline(never)]
    fn look_up(&mut self, pair: u32) -> Option<Peer> {
        let peer = *self.all.get(&pair)?;
        self.last = (pair, peer);
        Some(peer)
    }

    pub(crate) fn add(&mut self, pair: u32, peer: Peer) {
        self.all.insert(pair, peer);
        self.last.0 = NO_NUMBER;
    }

    pub(crate) fn remove(&mut self, pair: u32) {
        self.all.remove(&pair);
        self.last.0 = NO_NUMBER;
    }
}

/// All peers, by their numbers.
#[derive(Default)]
pub(crate) struct Links(Vec<Option<Box<Link>>>);

impl Links {
    /// The peer's link, made if it is not there.
    pub(crate) fn at(&mut self, peer: Peer) -> &mut Link {
        let index = peer.0 as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index].get_or_insert_default()
    }

    /// This side's end of the connection to a peer, if there is one.
    #[inline]
    pub(crate) fn end(&mut self, peer: Peer) -> Option<&mut End> {
        match &mut self.0.get_mut(peer.0 as usize)?.as_mut()?.phase {
            Phase::Open(end) => Some(end),
            _ => None,
        }
    }

    /// The same, to look at.
    pub(crate) fn look(&self, peer: Peer) -> Option<&End> {
        match &self.0.get(peer.0 as usize)?.as_ref()?.phase {
            Phase::Open(end) => Some(end),
            _ => None,
        }
    }

    /// The peers with an end, and the ends.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (Peer, &End)> {
        let all = (0..).zip(&self.0);
        all.filter_map(|(peer, link)| match &link.as_ref()?.phase {
            Phase::Open(end) => Some((Peer(peer), &**end)),
            _ => None,
        })
    }

    /// The peers with a connection.
    pub(crate) fn open(&self) -> Vec<Peer> {
        self.ends().map(|(peer, _)| peer).collect()
    }
}

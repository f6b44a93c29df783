//! What a process keeps of each peer.

use banyan_transport::Peer;

use crate::contact::{Contact, Stage};
use crate::credit::Credit;
use crate::greeting::{Card, Greeting};
use crate::verbs::{AddressHandle, Pair, Use};

/// A peer.
#[derive(Default)]
pub(crate) struct Link {
    pub(crate) card: Option<Card>,
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
    /// It is gone.
    Down,
}

/// This side's end of a connection.
pub(crate) struct End {
    pub(crate) pair: Pair,
    /// The pair of one-sided transfers. One that fails ends it, and not the frames: from then on there are none.
    pub(crate) transfers: Option<Pair>,
    pub(crate) to: AddressHandle,
    pub(crate) contact: Contact,
    /// Numbers of the peer's pairs, once they are known.
    pub(crate) theirs: Option<[u32; 2]>,
    pub(crate) credit: Credit,
    /// Numbers of works under way by the one pair and the other.
    pub(crate) posted: usize,
    pub(crate) moving: usize,
    /// It is broken: no more work is posted, and what has come is handed over before the peer is reported gone.
    pub(crate) broken: bool,
}

impl End {
    /// True if frames may leave, as far as the connection goes.
    #[inline]
    pub(crate) fn is_up(&self) -> bool {
        self.contact.stage() == Stage::Up && !self.broken
    }

    /// Numbers of its pairs: that of frames, and that of transfers, or 0 if that one has ended.
    pub(crate) fn numbers(&self) -> [u32; 2] {
        [self.pair.number(), self.transfers.as_ref().map_or(0, Pair::number)]
    }

    /// Connects both pairs to those that a greeting names.
    pub(crate) fn connect(&self, said: &Greeting) -> Result<(), String> {
        let first = (self.first(), said.first);
        self.pair.connect(Use::Frames, &said.card, said.pairs[0], first)?;
        let mut transfers = self.transfers.iter();
        transfers.try_for_each(|pair| pair.connect(Use::Transfers, &said.card, said.pairs[1], first))
    }

    /// The number of the first packet from here, on both.
    pub(crate) fn first(&self) -> u32 {
        self.pair.number().wrapping_mul(0x9e37_79b9) >> 8
    }
}

/// All peers, by their numbers.
#[derive(Default)]
pub(crate) struct Links(Vec<Link>);

impl Links {
    /// The peer's link, made if it is not there.
    pub(crate) fn at(&mut self, peer: Peer) -> &mut Link {
        let index = peer.0 as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, Link::default);
        }
        &mut self.0[index]
    }

    /// This side's end of the connection to a peer, if there is one.
    #[inline]
    pub(crate) fn end(&mut self, peer: Peer) -> Option<&mut End> {
        match &mut self.0.get_mut(peer.0 as usize)?.phase {
            Phase::Open(end) => Some(end),
            _ => None,
        }
    }

    /// How the contact with a peer goes, if there is a connection.
    pub(crate) fn contact(&self, peer: Peer) -> Option<&Contact> {
        match &self.0.get(peer.0 as usize)?.phase {
            Phase::Open(end) => Some(&end.contact),
            _ => None,
        }
    }

    /// The peers with a connection.
    pub(crate) fn open(&self) -> Vec<Peer> {
        let open = |(_, link): &(usize, &Link)| matches!(link.phase, Phase::Open(_));
        self.0.iter().enumerate().filter(open).map(|(index, _)| Peer(index as u32)).collect()
    }
}

//! What the engine knows of each peer, and what it owes to it.

use std::collections::VecDeque;
use std::sync::Arc;

use banyan_datatype::Data;
use banyan_transport::{Caps, Head, Peer, Refusal, Remote};

use crate::credit::{Bank, Loan};
use crate::payload;
use crate::port::Port;
use crate::request::Reply;

/// One peer. All queues are of requests, by id; ids of requests that are gone are skipped.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: Peer,
    /// Units that this process may send.
    pub(crate) credit: u32,
    /// Units that the peer may send.
    pub(crate) loan: Loan,
    /// It is in the engine's list of those that were lent more than the initial credit.
    pub(crate) borrower: bool,
    /// Frames that answer the peer's.
    pub(crate) replies: VecDeque<Reply>,
    /// Sends whose envelope has not left, in order.
    pub(crate) envelopes: VecDeque<u64>,
    /// Those of them, the oldest, that are not announced because enough are: messages with tags, in order. Later ones
    /// with tags come behind them.
    pub(crate) held: VecDeque<u64>,
    /// Some of those held may be announced now.
    pub(crate) ready: bool,
    /// Messages with tags that are announced and not answered.
    pub(crate) announced: u32,
    /// As many more may be announced, because the peer looks for one.
    pub(crate) wanted: u32,
    /// The peer may hold messages back until it is asked for more.
    pub(crate) holds: bool,
    /// Receives that read the peer's memory next.
    pub(crate) reads: VecDeque<u64>,
    /// Sends that stream pieces.
    pub(crate) streams: VecDeque<u64>,
    /// It has sent something since the last long message to it. Otherwise long messages follow each other, and the
    /// copies of one are made while those of another are.
    pub(crate) heard: bool,
    /// The last offer of the peer.
    pub(crate) offer: Option<Offer>,
    /// The receive that a whole message of the peer goes to, of which only the beginning is here.
    pub(crate) landing: Option<u64>,
    /// Regions that the peer needs no longer.
    pub(crate) withdrawals: Vec<Remote>,
    /// It is in the engine's list of work.
    pub(crate) listed: bool,
    /// Reads of its memory that were refused in a row; after [`Link::PATIENCE`] none is tried again.
    pub(crate) refused_reads: u8,
    /// It is gone, and why.
    pub(crate) down: Option<Arc<str>>,
}

/// An offer whose first bytes may follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    /// Id of the send.
    pub(crate) sender: u64,
    pub(crate) taker: Taker,
}

/// Who has an offer: ids. They may be gone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Taker {
    Message(u64),
    Receive(u64),
}

impl Link {
    fn new(peer: Peer, bank: &mut Bank) -> Self {
        Self {
            peer,
            credit: bank.initial(),
            loan: bank.open(),
            borrower: false,
            replies: VecDeque::new(),
            envelopes: VecDeque::new(),
            held: VecDeque::new(),
            ready: false,
            announced: 0,
            wanted: 0,
            holds: false,
            reads: VecDeque::new(),
            streams: VecDeque::new(),
            heard: true,
            offer: None,
            landing: None,
            withdrawals: Vec::new(),
            listed: false,
            refused_reads: 0,
            down: None,
        }
    }

    const PATIENCE: u8 = 3;

    /// It is worth trying to read the peer's memory.
    pub(crate) fn is_readable(&self) -> bool {
        self.refused_reads < Self::PATIENCE
    }

    /// One more message with a tag may be announced, where `window` may be in any case.
    pub(crate) fn may_announce(&self, window: u32) -> bool {
        self.announced < window || self.wanted > 0
    }

    /// There is something that should leave for this peer.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.owes_frames() || self.loan.is_due()
    }

    /// The same, without credit that nobody waits for.
    #[inline]
    pub(crate) fn owes_frames(&self) -> bool {
        !(self.replies.is_empty()
            && self.envelopes.is_empty()
            && !self.ready
            && self.reads.is_empty()
            && self.streams.is_empty()
            && self.withdrawals.is_empty())
    }

    /// Sends a frame whose body exists, with the credit that is to go back.
    pub(crate) fn post(
        &mut self,
        port: &mut impl Port,
        caps: &Caps,
        head: Head,
        body: &[u8],
    ) -> Result<(), Refusal> {
        if body.len() > caps.max_short {
            return self.post_with(port, head, body.len(), &mut |out| out.copy_from_slice(body));
        }
        self.post_short(port, head, body)
    }

    /// The same, if the body is known to be short.
    #[inline(always)]
    pub(crate) fn post_short(
        &mut self,
        port: &mut impl Port,
        head: Head,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let aux = self.loan.returnable();
        port.send_short(self.peer, &Head { aux, ..head }, body)?;
        self.loan.returned(aux);
        Ok(())
    }

    /// Sends a frame with `len` bytes of `data` from its byte `at` on, with the credit that is to go back.
    #[inline]
    pub(crate) fn post_data(
        &mut self,
        port: &mut impl Port,
        head: Head,
        data: &Data,
        at: u64,
        len: usize,
    ) -> Result<(), Refusal> {
        let Some((memory, start)) = data.piece() else {
            return self.post_with(port, head, len, &mut |out| payload::pack(data, at, out));
        };
        let head = Head { aux: self.loan.returnable(), ..head };
        port.send_from(self.peer, &head, memory, start + at as isize, len)?;
        self.loan.returned(head.aux);
        Ok(())
    }

    /// Sends a frame whose body is written in place, with the credit that is to go back.
    pub(crate) fn post_with(
        &mut self,
        port: &mut impl Port,
        mut head: Head,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), Refusal> {
        head.aux = self.loan.returnable();
        port.send_bcopy(self.peer, &head, len, fill)?;
        self.loan.returned(head.aux);
        Ok(())
    }
}

/// All peers that were ever talked to, in pages, so that memory goes with them and not with the job.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    pages: Vec<Option<Box<Page>>>,
}

const PAGE: usize = 16;
type Page = [Option<Link>; PAGE];

impl Peers {
    /// The peer; new ones get their initial loan.
    #[inline(always)]
    pub(crate) fn at(&mut self, peer: Peer, bank: &mut Bank) -> &mut Link {
        let (page, slot) = (peer.0 as usize / PAGE, peer.0 as usize % PAGE);
        // Looked at twice because a reference that is returned early is held to the end; the second look costs nothing.
        if !matches!(self.pages.get(page), Some(Some(links)) if links[slot].is_some()) {
            return self.add(peer, bank);
        }
        match &mut self.pages[page] {
            Some(links) => links[slot].as_mut().expect("it is there"),
            None => unreachable!("it is there"),
        }
    }

    #[cold]
    fn add(&mut self, peer: Peer, bank: &mut Bank) -> &mut Link {
        let (page, slot) = (peer.0 as usize / PAGE, peer.0 as usize % PAGE);
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        self.pages[page].get_or_insert_default()[slot].insert(Link::new(peer, bank))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.pages.iter().flatten().flat_map(|page| page.iter()).flatten()
    }
}

//! [`Link`]: what [`crate::P2p`] knows of each peer, and what it owes to it.

use std::collections::VecDeque;
use std::sync::Arc;

use banyan_datatype::Data;
use banyan_transport::{Caps, Handover, Head, Order, Peer, Port, Refusal, Remote, Sent, Token};

use crate::credit::{self, CreditPool, Loan};
use crate::handed::HandedPiece;
use crate::long::LongMessages;
use crate::payload;
use crate::request::Reply;

/// One peer. Queues hold the ids of requests; ids of requests that are gone are skipped.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) peer: Peer,
    /// Units of credit: what this process may send.
    pub(crate) credit: u32,
    /// The credit that this process lent the peer.
    pub(crate) loan: Loan,
    /// It is in [`crate::P2p::borrowers`].
    pub(crate) borrower: bool,
    /// Frames without payload, most of which answer the peer's.
    pub(crate) replies: VecDeque<Reply>,
    /// Sends whose envelope has not left, in order.
    pub(crate) envelopes: VecDeque<u64>,
    /// Sends of messages with tags that are not announced because enough are, in order. They are older than those of
    /// `envelopes`, which join them if they have tags.
    pub(crate) held: VecDeque<u64>,
    /// Some of `held` may leave now.
    pub(crate) ready: bool,
    /// How many messages with tags are announced to the peer and not answered.
    pub(crate) announced: u32,
    /// How many more may be announced, because the peer looks for one.
    pub(crate) extra: u32,
    /// The peer may hold messages back until it is asked for more.
    pub(crate) holds: bool,
    /// Receives whose next read of the peer's memory is to start.
    pub(crate) reads: VecDeque<u64>,
    /// Sends with a CTS, whose DATA has not all left.
    pub(crate) granted: VecDeque<u64>,
    /// The peer has sent something since the last long message to it. Otherwise long messages follow each other, and the
    /// sender copies one while the receiver copies another.
    pub(crate) heard: bool,
    /// The last RTS of the peer: fragments belong to it.
    pub(crate) open_rts: Option<OpenRts>,
    /// Receives of which all is here, and devices have not yet copied all.
    pub(crate) staged: VecDeque<u64>,
    /// Pieces of messages in memory that the peer has handed over, for the next [`crate::P2p::progress`]. They are taken though the peer is gone.
    pub(crate) handed: VecDeque<HandedPiece>,
    /// The receive that has the whole message of which the beginning has arrived.
    pub(crate) landing: Option<u64>,
    /// Exposed ranges that the peer needs no longer.
    pub(crate) withdrawals: Vec<Remote>,
    /// Sends whose memory is to be taken back from the fabric, as the peer is gone.
    pub(crate) reclaims: Vec<u64>,
    /// It is in [`crate::P2p::work`].
    pub(crate) listed: bool,
    /// Reads of the peer's memory that were refused in a row; after [`Link::PATIENCE`] none is tried again.
    pub(crate) refused_reads: u8,
    /// How often in succession memory of the peer's devices could not be read.
    pub(crate) refused_devices: u8,
    /// [`crate::Config::ipc_from`].
    pub(crate) ipc_from: u64,
    /// Writes to this process that the peer found impossible in a row; after [`Link::PATIENCE`] it is granted none.
    pub(crate) refused_writes: u8,
    /// Classes of messages, as bits, that are announced also where they could go whole in one frame, as another way may be better.
    pub(crate) announces: u16,
    /// Classes of messages, as bits, whose frames are copied past the caches of this process.
    pub(crate) past: u16,
    /// Messages that could have taken several ways, and went whole in one frame, since one was announced.
    pub(crate) unsampled: u32,
    /// What is known of long messages that may take several ways, once there was one.
    pub(crate) long: Option<Box<LongMessages>>,
    /// Why the peer is gone, if it is.
    pub(crate) down: Option<Arc<str>>,
}

/// What may be to do for a peer, in the order in which it is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Withdrawals,
    Reclaims,
    Reads,
    Handed,
    Staged,
    Replies,
    Held,
    Envelopes,
    Granted,
    Credit,
}

impl Part {
    const ALL: [Part; 10] = [
        Part::Withdrawals,
        Part::Reclaims,
        Part::Reads,
        Part::Handed,
        Part::Staged,
        Part::Replies,
        Part::Held,
        Part::Envelopes,
        Part::Granted,
        Part::Credit,
    ];
}

/// What is to be done for a peer: a bit for each [`Part`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owed(u16);

impl Owed {
    #[inline]
    pub(crate) fn anything(self) -> bool {
        self.0 != 0
    }

    /// Whether there is anything but credit.
    pub(crate) fn more_than_credit(self) -> bool {
        self.0 & !(1 << Part::Credit as u16) != 0
    }

    /// The first part, of those after `last`.
    #[inline]
    pub(crate) fn after(self, last: Option<Part>) -> Option<Part> {
        let later = last.map_or(u16::MAX, |last| u16::MAX << (last as u16 + 1));
        Part::ALL.get((self.0 & later).trailing_zeros() as usize).copied()
    }
}

/// An RTS that fragments may follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenRts {
    /// Id of the send.
    pub(crate) sender: u64,
    pub(crate) owner: RtsOwner,
}

/// The unexpected message or the receive that has an RTS, by id. It may be gone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RtsOwner {
    Message(u64),
    Receive(u64),
}

impl Link {
    fn new(peer: Peer, credit_pool: &mut CreditPool, (announces, past): (u16, u16), ipc_from: u64) -> Self {
        Self {
            peer,
            credit: credit_pool.initial(),
            loan: credit_pool.open(),
            borrower: false,
            replies: VecDeque::new(),
            envelopes: VecDeque::new(),
            held: VecDeque::new(),
            ready: false,
            announced: 0,
            extra: 0,
            holds: false,
            reads: VecDeque::new(),
            granted: VecDeque::new(),
            heard: true,
            open_rts: None,
            staged: VecDeque::new(),
            handed: VecDeque::new(),
            landing: None,
            withdrawals: Vec::new(),
            reclaims: Vec::new(),
            listed: false,
            refused_reads: 0,
            refused_devices: 0,
            ipc_from,
            refused_writes: 0,
            announces,
            past,
            unsampled: 0,
            long: None,
            down: None,
        }
    }

    pub(crate) const PATIENCE: u8 = 3;

    /// Whether it is worth trying to read the peer's memory.
    pub(crate) fn is_readable(&self) -> bool {
        self.refused_reads < Self::PATIENCE
    }

    /// Whether it is worth trying to read the peer's memory: a device's, or the host's.
    pub(crate) fn is_worth_reading(&self, device: bool) -> bool {
        if device { self.refused_devices < Self::PATIENCE } else { self.is_readable() }
    }

    /// Whether the peer is to read a message of so many bytes from memory of a device, if it can.
    pub(crate) fn lets_read_device(&self, bytes: u64) -> bool {
        bytes >= self.ipc_from && self.is_worth_reading(true)
    }

    /// Whether one more message with a tag may be announced; `window` may be in any case.
    pub(crate) fn may_announce(&self, window: u32) -> bool {
        self.announced < window || self.extra > 0
    }

    /// What a message of so many bytes costs, if there is credit for it.
    #[inline]
    pub(crate) fn affords(&self, bytes: u64) -> Option<u32> {
        let paid = credit::cost(bytes as usize);
        (paid <= self.credit).then_some(paid)
    }

    /// What is to be done for this peer.
    #[inline]
    pub(crate) fn owed(&self) -> Owed {
        let bit = |part: Part, owes: bool| u16::from(owes) << part as u16;
        Owed(
            bit(Part::Withdrawals, !self.withdrawals.is_empty())
                | bit(Part::Reclaims, !self.reclaims.is_empty())
                | bit(Part::Reads, !self.reads.is_empty())
                | bit(Part::Handed, !self.handed.is_empty())
                | bit(Part::Staged, !self.staged.is_empty())
                | bit(Part::Replies, !self.replies.is_empty())
                | bit(Part::Held, self.ready)
                | bit(Part::Envelopes, !self.envelopes.is_empty())
                | bit(Part::Granted, !self.granted.is_empty())
                | bit(Part::Credit, self.loan.is_due()),
        )
    }

    /// Sends a frame with this body, and the credit that is owed.
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
        self.post_short(port, &head, body)
    }

    /// Sends a frame with this body, of at most `Caps::max_short` bytes, and the credit that is owed.
    #[inline(always)]
    pub(crate) fn post_short(
        &mut self,
        port: &mut impl Port,
        head: &Head,
        body: &[u8],
    ) -> Result<(), Refusal> {
        let aux = self.loan.returnable();
        port.send_short(self.peer, &Head { aux, ..*head }, body)?;
        self.loan.returned(aux);
        Ok(())
    }

    /// Sends a frame with `len` bytes of `data` from its byte `at` on, and the credit that is owed. `token` and `order` are those of
    /// [`Port::send_from`].
    #[inline]
    pub(crate) fn post_data(
        &mut self,
        port: &mut impl Port,
        head: &Head,
        (data, at, len): (&Data, u64, usize),
        token: Option<Token>,
        order: Order,
    ) -> Result<Sent, Refusal> {
        let Some((memory, start)) = data.piece() else {
            return self
                .post_with(port, *head, len, &mut |out| payload::pack(data, at, out))
                .map(|()| Sent::Done);
        };
        let head = Head { aux: self.loan.returnable(), ..*head };
        let sent = port.send_from(self.peer, &head, (memory, start + at as isize, len), token, order)?;
        self.loan.returned(head.aux);
        Ok(sent)
    }

    /// Hands over the first `len` bytes of some memory, with the credit that is owed.
    pub(crate) fn post_handover(
        &mut self,
        port: &mut impl Port,
        head: Head,
        handover: &Handover,
        len: usize,
    ) -> Result<(), Refusal> {
        let aux = self.loan.returnable();
        port.hand_over(self.peer, &Head { aux, ..head }, handover, len)?;
        self.loan.returned(aux);
        Ok(())
    }

    /// Sends a frame whose body `fill` writes, and the credit that is owed.
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

/// All peers that this process has talked to, in pages, so that memory grows with their number and not with the job's size.
#[derive(Debug)]
pub(crate) struct Peers {
    pages: Vec<Option<Box<Page>>>,
    /// What [`Link::announces`] and [`Link::past`] are at first.
    first: (u16, u16),
    ipc_from: u64,
}

const PAGE: usize = 16;
type Page = [Option<Link>; PAGE];

impl Peers {
    /// No peers. Messages of the first classes, as bits, are announced to each new one, and frames of those of the second ones are copied past the caches.
    pub(crate) fn new(first: (u16, u16), ipc_from: u64) -> Self {
        Self { pages: Vec::new(), first, ipc_from }
    }

    /// The link of a peer; a new one gets the initial loan.
    #[inline(always)]
    pub(crate) fn at(&mut self, peer: Peer, credit_pool: &mut CreditPool) -> &mut Link {
        let (page, at) = (peer.0 as usize / PAGE, peer.0 as usize % PAGE);
        // Indexed twice, because a reference that is returned early is borrowed to the end; the second time costs nothing.
        if !matches!(self.pages.get(page), Some(Some(links)) if links[at].is_some()) {
            return self.add(peer, credit_pool);
        }
        match &mut self.pages[page] {
            Some(links) => links[at].as_mut().expect("it is there"),
            None => unreachable!("it is there"),
        }
    }

    #[cold]
    fn add(&mut self, peer: Peer, credit_pool: &mut CreditPool) -> &mut Link {
        let (page, at) = (peer.0 as usize / PAGE, peer.0 as usize % PAGE);
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, || None);
        }
        let link = Link::new(peer, credit_pool, self.first, self.ipc_from);
        self.pages[page].get_or_insert_default()[at].insert(link)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.pages.iter().flatten().flat_map(|page| page.iter()).flatten()
    }
}

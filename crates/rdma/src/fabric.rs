//! [`Rdma`]: the fabric, its poll and its sleep.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_transport::hash::Map;
use banyan_transport::{Fabric, Head, Outcome, Peer, Sink, Token, Wake};
use rustix::event::{PollFd, PollFlags, epoll, poll};

use crate::breaks::post_frame;
use crate::credit::{RESERVE, WINDOW};
use crate::datagrams::{Greetings, HEARING, LEAVING};
use crate::frames::{HEADER, Id, What};
use crate::greeting::{Card, Greeting, Wire};
use crate::links::{Left, Links, PeersByPair, Phase};
use crate::locked;
use crate::rails::{Rail, RailOptions};
use crate::registrations::Registrations;
use crate::sending::Sending;
use crate::settings::{RAILS, Settings};
use crate::transfers::{Long, Moving};
use crate::verbs::{BATCH, Completion, Completions, Device, Failure, Pair, Receives};
use crate::windows::Windows;

/// Work of all connections that is under way at most.
pub(crate) const MOST_WORK: usize = 1024;
/// Connections that stand at a time, at most, unless the user says another number.
const MOST_CONNECTIONS: u32 = 256;
/// Where sockets tell of contacts, one of so many polls looks at them while no contact is being made.
const SELDOM: u64 = 64;
/// A process that ends gives its last frames so long to leave.
const FAREWELL: Duration = Duration::from_secs(1);

/// How the fabric is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// The port, and further ones by which long transfers go as well, at most [`RAILS`] in all.
    pub ports: Vec<RailOptions>,
    /// The subnets of which the port's addresses are to be, as far as it has some: one of the addresses, and the length of the prefix.
    pub subnets: Vec<(IpAddr, u8)>,
    /// The text of a topology file that says where ports and GPUs are; empty: as the system does.
    pub topology: String,
    /// How long a peer may not answer before it counts as gone.
    pub patience: Duration,
}

impl Options {
    /// On one port, with connections as it has them.
    pub fn on(device: &str, port: u8, patience: Duration) -> Options {
        let port = RailOptions { device: device.to_owned(), port, settings: Settings::default() };
        Options { ports: vec![port], subnets: Vec::new(), topology: String::new(), patience }
    }
}

/// What was done so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Frames that were sent, each as one work.
    pub frames: u64,
    /// Frames that were sent for credits alone.
    pub credits: u64,
    /// Bytes of frames that were sent.
    pub sent: u64,
    /// Works of one-sided transfers.
    pub transfers: u64,
    /// Bytes that gets have read and puts have written.
    pub moved: u64,
    /// Those of them that went by other rails than the first.
    pub striped: u64,
    /// Registrations of users' memory.
    pub registrations: u64,
    /// Connections that were made anew.
    pub renewed: u64,
    /// Frames that were sent again by such a one.
    pub again: u64,
    /// Connections that have come to rest.
    pub rested: u64,
    /// Completions of frames that were sent or have come.
    pub completions: u64,
}

/// Messages and transfers over one port of an RDMA device. See the [crate] for the protocol.
pub struct Rdma {
    pub(crate) me: Peer,
    pub(crate) size: u32,
    pub(crate) job: u64,
    pub(crate) secret: [u8; 32],
    pub(crate) patience: Duration,
    /// When acknowledgements of the device's are late: after 4.096 us * 2^`late`.
    pub(crate) late: u8,
    // Queue pairs come first, as they end first.
    pub(crate) links: Links,
    pub(crate) greetings: Greetings,
    pub(crate) peers: PeersByPair,
    /// Numbers of pairs that have ended: completions of theirs may still be there.
    pub(crate) ended_pairs: Vec<u32>,
    pub(crate) contacting: Vec<Peer>,
    pub(crate) transfers: Map<u32, Moving>,
    pub(crate) next_transfer: u32,
    /// Transfers with works that there was no room for.
    pub(crate) unposted: Vec<u32>,
    /// Bytes of long works that are under way.
    pub(crate) long: Long,
    pub(crate) registrations: Registrations,
    /// Further ports for long transfers, and why others that were named are not.
    pub(crate) rails: Vec<Rail>,
    refused_rails: Vec<String>,
    pub(crate) windows: Windows,
    /// Connections that stand at a time, at most.
    pub(crate) most_connections: usize,
    /// Peers whose connections are about to rest.
    pub(crate) resting: Vec<Peer>,
    pub(crate) polls: u64,
    pub(crate) sending: Sending,
    /// Work under way by connections.
    pub(crate) under_way: usize,
    /// Completions that were taken and not looked at.
    pub(crate) held: VecDeque<Completion>,
    /// Peers whose connections are broken, and not yet ready to be made anew.
    pub(crate) breaking: Vec<Peer>,
    /// Transfers that have failed: the next poll reports them.
    pub(crate) refused: Vec<(Peer, Token)>,
    /// Why the device is of no use any more.
    pub(crate) ended: Option<String>,
    /// What the device has last told of the port, and when.
    pub(crate) port_said: Option<(Instant, String)>,
    /// Peers that are gone, and why: the next poll reports them.
    pub(crate) lost: Vec<(Peer, String)>,
    pub(crate) wanted: Vec<Peer>,
    pub(crate) unreached: Vec<Peer>,
    /// Peers that credits may be owed to.
    owed: Vec<Peer>,
    armed: bool,
    pub(crate) counts: Counts,
    pub(crate) receives: Arc<Receives>,
    pub(crate) completions: Arc<Completions>,
    pub(crate) device: Arc<Device>,
}

impl Rdma {
    /// The fabric of process `me` among `size`, and the business card that its peers need. All processes of the job have the same
    /// `job` and `secret`.
    ///
    /// # Errors
    /// If the device cannot be used: a sentence that says why.
    pub fn new(
        me: Peer,
        size: u32,
        job: u64,
        secret: [u8; 32],
        options: &Options,
    ) -> Result<(Rdma, Vec<u8>), String> {
        let (first, further) = options.ports.split_first().ok_or("no port is named")?;
        let subnets = &options.subnets;
        let device = Arc::new(Device::open((&first.device, first.port), subnets, &first.settings)?);
        let further = further.iter().take(RAILS - 1).map(|port| Rail::open(port, subnets, &device));
        let (rails, refused): (Vec<_>, Vec<_>) = further.partition(Result::is_ok);
        let rails: Vec<Rail> = rails.into_iter().flatten().collect();
        let refused_rails = refused.into_iter().filter_map(Result::err).collect();
        let devices = std::iter::once(&device).chain(rails.iter().map(|rail| &rail.device)).cloned();
        let mut registrations = Registrations::new(devices.collect(), &options.topology);
        if first.settings.gpudirect == Some(false) {
            registrations.gpus().refuse_all("BANYAN_RDMA says gpudirect=0");
        }
        let window = u32::from(WINDOW);
        let most = first
            .settings
            .connections
            .unwrap_or(MOST_CONNECTIONS)
            .min(size.max(2) - 1)
            .min(device.most_receives.saturating_sub(RESERVE.into()) / window)
            .min(locked::connections(device.most_locked)?)
            .max(1);
        let receiving = most * window + u32::from(RESERVE);
        let works = MOST_WORK as u32 * device.works_each();
        let room = receiving + works + (2 * HEARING + LEAVING) as u32;
        let completions = Arc::new(Completions::new(&device, room)?);
        let receives = Arc::new(Receives::new(&device, receiving)?);
        let rdma = Rdma {
            me,
            size,
            job,
            secret,
            patience: options.patience,
            late: late(options.patience),
            links: Links::default(),
            greetings: Greetings::new(&device, &completions)?,
            peers: PeersByPair::default(),
            ended_pairs: Vec::new(),
            contacting: Vec::new(),
            transfers: Map::default(),
            next_transfer: 1,
            unposted: Vec::new(),
            long: Long::default(),
            registrations,
            rails,
            refused_rails,
            windows: Windows::new(&device)?,
            most_connections: most as usize,
            resting: Vec::new(),
            polls: 0,
            sending: Sending::new(&device)?,
            under_way: 0,
            held: VecDeque::new(),
            breaking: Vec::new(),
            refused: Vec::new(),
            ended: None,
            port_said: None,
            lost: Vec::new(),
            wanted: Vec::new(),
            unreached: Vec::new(),
            owed: Vec::new(),
            armed: false,
            counts: Counts::default(),
            receives,
            completions,
            device,
        };
        let card = rdma.card().encode();
        Ok((rdma, card))
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        Counts { registrations: self.registrations.made(), ..self.counts }
    }

    /// Number of works that have been given to the device, and that it has not told the end of.
    pub fn works_under_way(&self) -> usize {
        self.under_way
    }

    /// Sends one frame; false if there is no room for it. It is kept until it has surely arrived.
    #[inline(always)]
    pub(crate) fn leave(&mut self, peer: Peer, what: What, len: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        let Some(end) = self.links.end(peer) else { return false };
        if end.posted == Pair::DEPTH || self.under_way >= MOST_WORK {
            return false;
        }
        let all = HEADER + len;
        let Some(slot) = self.sending.take(all) else { return false };
        let (frame, lkey) = self.sending.frame(slot, all);
        let (header, body) = frame.split_at_mut(HEADER);
        header.copy_from_slice(&what.encode(end.credit.send()));
        fill(body);
        let posted = post_frame(end, &mut self.under_way, slot, (frame, lkey));
        // What is left to do here does not delay the frame.
        end.used = self.polls;
        end.replay.leaves(Left { slot, len: all as u32 });
        if let Err(why) = posted {
            self.broke(peer, why);
        }
        true
    }

    /// The send of a frame is over.
    #[inline(always)]
    pub(crate) fn frame_left(&mut self, pair: u32, result: Result<u32, Failure>) {
        self.counts.completions += 1;
        let Some(peer) = self.peers.get(pair) else { return };
        let Some(end) = self.links.end(peer) else { return };
        // siw gives back also what it has said that it did not take.
        if end.posted > 0 {
            end.posted -= 1;
            self.under_way -= 1;
        }
        match result {
            Ok(_) => {
                end.works();
                if let Some(left) = end.replay.arrives() {
                    self.sending.give(left.slot);
                }
            }
            Err(failure) => self.broke(peer, failure.why()),
        }
    }

    /// Handles one completion.
    #[inline(always)]
    fn complete(&mut self, completion: Completion, sink: &mut impl Sink) {
        let Completion { id, pair, result } = completion;
        if let Id::Receive(slot) = Id::from(id) {
            self.counts.completions += 1;
            if let Ok(len) = result {
                self.receive(pair, slot, len as usize, sink);
            }
            self.windows.emptied(slot);
        } else {
            self.complete_other(completion, sink);
        }
    }

    /// Handles one that is not of a frame that has come.
    #[inline(never)]
    fn complete_other(&mut self, completion: Completion, sink: &mut impl Sink) {
        let rail = completion.rail();
        let Completion { id, pair, result } = completion;
        match Id::from(id) {
            Id::Receive(_) => unreachable!("it is of a frame that has come"),
            Id::Send(_) => self.frame_left(pair, result),
            Id::Datagram(number) => {
                let Some(queue) = self.greetings.queue() else { return };
                let Some(slot) = queue.slot(number, result.is_ok()) else { return };
                if let Ok(len) = result {
                    let said = Greeting::decode(queue.heard(slot, len as usize), &self.secret);
                    // Fails only with the device, of which connections tell.
                    let _ = queue.listen(slot);
                    self.hear(said);
                }
            }
            Id::Greeting(number) => {
                let Some(queue) = self.greetings.queue() else { return };
                if let Some(slot) = queue.slot(number, result.is_ok()) {
                    queue.left(slot);
                }
            }
            Id::Ahead(transfer) => match (self.peers.get(pair), result, transfer) {
                (Some(_), Err(failure), Some(transfer)) => self.transfer_failed(transfer.get(), failure),
                (Some(peer), Err(failure), None) => self.broke(peer, failure.why()),
                _ => {}
            },
            Id::Transfer(number) if self.peers.get(pair).is_some() => {
                if let Some(token) = self.transfer_moved(number, rail, result) {
                    sink.completed(token, Outcome::Done);
                }
            }
            Id::Transfer(_) => {}
        }
    }

    /// A frame has come by a pair, into a slot.
    #[inline(always)]
    fn receive(&mut self, pair: u32, slot: u32, len: usize, sink: &mut impl Sink) {
        let Some(peer) = self.peers.get(pair) else { return };
        let Some(end) = self.links.end(peer) else { return };
        end.works();
        end.used = self.polls;
        end.replay.comes();
        let stood = end.stands();
        let Some((what, credits, body)) = What::decode(self.windows.bytes(slot, len)) else {
            return self.lose(peer, "it has sent what is no frame");
        };
        if end.credit.receive(credits).is_err() {
            return self.lose(peer, "it has sent more than it may");
        }
        if end.credit.should_return() {
            self.owed.push(peer);
        }
        match what {
            What::Frame(head) => sink.frame(peer, &head, body),
            other => self.receive_other(peer, other),
        }
        if !stood {
            self.prove(peer);
        }
    }

    /// What has come is for the fabric itself.
    #[cold]
    #[inline(never)]
    fn receive_other(&mut self, peer: Peer, what: What) {
        match what {
            What::Frame(_) => unreachable!("it is for the sink"),
            What::Credits => {}
            What::Rest => self.hear_rest(peer),
            What::Farewell => self.lose(peer, "it has ended its connection"),
        }
    }

    /// A frame has come by a connection of which this side did not know that it stands.
    #[cold]
    fn prove(&mut self, peer: Peer) {
        if let Some(end) = self.links.end(peer)
            && !end.stands()
            && end.breaking.is_none()
        {
            end.prove();
            self.come_up(peer);
        }
    }

    /// Handles what was taken, this first and then all that waits, and posts buffers anew for it; gives how much that was.
    #[inline(always)]
    fn hand_over(&mut self, first: Option<Completion>, sink: &mut impl Sink) -> usize {
        let mut work = 0;
        if let Some(completion) = first {
            self.complete(completion, sink);
            work += 1;
        }
        if !self.held.is_empty() {
            work += self.hand_over_held(sink);
        }
        // Whatever has made room: a work that is over, or a transfer that was taken back, or whose peer is gone.
        if !self.unposted.is_empty() {
            self.post_works();
        }
        self.post_receives(false);
        if !self.owed.is_empty() {
            self.return_credits();
        }
        work
    }

    #[inline(never)]
    fn hand_over_held(&mut self, sink: &mut impl Sink) -> usize {
        let mut work = 0;
        while let Some(completion) = self.held.pop_front() {
            self.complete(completion, sink);
            work += 1;
        }
        work
    }

    /// Posts buffers anew that frames have come in, if they are enough.
    #[inline(always)]
    fn post_receives(&mut self, idle: bool) {
        if let Err(why) = self.windows.post(&self.receives, idle) {
            self.links.open().into_iter().for_each(|peer| self.broke(peer, why.clone()));
        }
    }

    /// How much the next poll is to tell of.
    #[inline]
    fn untold(&self) -> usize {
        self.refused.len() + self.lost.len() + self.wanted.len() + self.unreached.len()
    }

    /// Tells of transfers that have failed, and of peers.
    fn report(&mut self, sink: &mut impl Sink) -> usize {
        let told = self.untold();
        if told > 0 {
            self.refused.drain(..).for_each(|(_, token)| sink.completed(token, Outcome::Impossible));
            self.lost.drain(..).for_each(|(peer, why)| sink.down(peer, &why));
            self.wanted.drain(..).for_each(|peer| sink.wanted(peer));
            self.unreached.drain(..).for_each(|peer| sink.unreached(peer));
        }
        told
    }

    /// Gives credits back by frames of their own, where many are owed.
    fn return_credits(&mut self) {
        let mut owed = std::mem::take(&mut self.owed);
        owed.retain(|&peer| match self.links.end(peer) {
            Some(end) if end.is_up() && end.credit.should_return() => {
                let left = self.leave(peer, What::Credits, 0, |_| {});
                self.counts.credits += u64::from(left);
                !left
            }
            _ => false,
        });
        self.owed.append(&mut owed);
    }
}

impl Rdma {
    /// The descriptors that are readable when there is news.
    fn news(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let queues = self.queues().map(Completions::descriptor);
        queues.chain(self.devices().map(|device| device.events())).chain(self.greetings.descriptors())
    }
}

impl Fabric for Rdma {
    fn reaches(&self, peer: Peer) -> bool {
        peer != self.me && peer.0 < self.size
    }

    fn connect(&mut self, peer: Peer, business_card: &[u8]) -> Result<(), String> {
        if let Some(why) = &self.ended {
            return Err(format!("peer {}: {why}", peer.0));
        }
        let phase = &mut self.links.at(peer).phase;
        if let Phase::Refused(why) = phase {
            let why = std::mem::take(why);
            *phase = Phase::Down;
            return Err(why);
        }
        let card = Card::decode(business_card).filter(|_| self.reaches(peer));
        let card = card.ok_or_else(|| format!("peer {}: its rdma business card is damaged", peer.0))?;
        if card.wire != self.device.wire {
            let (ours, theirs) = (self.device.wire, card.wire);
            return Err(format!("peer {}: its device is one of {theirs}, and this one's of {ours}", peer.0));
        }
        let path = card.path(&self.device.addresses()).map_err(|why| format!("peer {}: {why}", peer.0))?;
        self.links.at(peer).path = Some(path);
        Ok(())
    }

    fn peer_died(&mut self, peer: Peer, cause: &str) {
        if let Some(end) = self.links.end(peer) {
            end.died = Some(cause.to_owned());
            self.broke(peer, cause.to_owned());
        } else {
            self.lose(peer, cause);
        }
    }

    fn poll(&mut self, sink: &mut impl Sink) -> usize {
        let mut work = 0;
        if self.armed {
            work += self.attend_events();
            self.queues().filter(|queue| queue.quiet()).for_each(Completions::notify);
        }
        self.polls += 1;
        if !self.resting.is_empty() {
            self.attend_rests();
        }
        if !self.contacting.is_empty() {
            work += self.attend_contacts();
        }
        if self.armed || !self.contacting.is_empty() || self.polls.is_multiple_of(SELDOM) {
            work += self.attend_iwarp();
        }
        // What is there already is enough, unless connections wait for the last that came by them.
        let enough = !self.held.is_empty() && self.breaking.is_empty();
        let mut first = None;
        let fresh = if enough { 0 } else { self.take_completions(&mut first) };
        work += self.hand_over(first, sink).max(fresh);
        if work == 0 {
            self.post_receives(true);
        }
        // All that there was has been taken.
        if !enough && fresh < BATCH && !self.breaking.is_empty() {
            work += self.attend_breaks();
        }
        work + self.report(sink)
    }

    fn linger(&mut self, looks: u32, sink: &mut impl Sink) -> usize {
        // What else a poll attends to must not wait: contacts, and on iWARP sockets.
        let idle = !self.has_news() && self.contacting.is_empty() && self.device.wire != Wire::Iwarp;
        if self.armed || !idle {
            return 0;
        }
        self.polls += 1;
        let mut first = None;
        let found = (0..looks).map(|_| self.take_completions(&mut first)).find(|&found| found > 0);
        found.map_or(0, |found| self.hand_over(first, sink).max(found))
    }

    fn by_kernel(&self) -> bool {
        self.device.in_software
    }

    fn unsent(&self) -> bool {
        let kept = |peer: &Peer| self.links.look(*peer).is_some_and(|end| end.replay.kept().len() > 0);
        self.breaking.iter().chain(&self.contacting).any(kept)
    }

    fn arm(&mut self, _wake: Wake) {
        self.armed = true;
        self.queues().for_each(Completions::notify);
    }

    fn disarm(&mut self) {
        self.armed = false;
        self.queues().for_each(|queue| _ = queue.quiet());
    }

    #[inline(always)]
    fn has_news(&mut self) -> bool {
        !(self.untold() == 0 && self.held.is_empty() && self.breaking.is_empty()) || self.rest_is_due()
    }

    fn sleep(&mut self, deadline: Option<Instant>) {
        if self.has_news() {
            return;
        }
        let earliest = deadline.into_iter().chain(self.next_deadline()).min();
        let left = earliest.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| left.try_into().ok());
        let mut news: Vec<PollFd<'_>> =
            self.news().map(|news| PollFd::from_borrowed_fd(news, PollFlags::IN)).collect();
        // An interruption is a sleep that ends for no reason.
        let _ = poll(&mut news, left.as_ref());
    }

    fn descriptor(&mut self) -> io::Result<OwnedFd> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for news in self.news() {
            epoll::add(&all, news, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(all)
    }

    fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [self.next_contact(), self.break_deadline(), self.silence_deadline()];
        deadlines.into_iter().flatten().min()
    }

    fn account(&self) -> Option<String> {
        let (Device { name, port, .. }, counts) = (&*self.device, self.counts());
        let of_rail = |rail: &Rail| {
            format!("; of that {} by {}:{}", counts.striped, rail.device.name, rail.device.port)
        };
        let further: String = self.rails.iter().map(of_rail).collect();
        let refused: String = self.refused_rails.iter().map(|why| format!("; not used: {why}")).collect();
        let staged = self.registrations.why_staged().map(|why| format!("; memory of GPUs is staged: {why}"));
        let staged = staged.unwrap_or_default();
        Some(format!(
            "{name}:{port}: {} bytes in {} frames sent, {} bytes in {} transfers read, written or changed, {} registrations{further}{refused}{staged}",
            counts.sent, counts.frames, counts.moved, counts.transfers, counts.registrations
        ))
    }
}

/// When acknowledgements are late, as verbs number it, so that a connection that does not work breaks well within the patience: eight times
/// that are an eighth of it.
fn late(patience: Duration) -> u8 {
    let units = (patience / 64).as_nanos() / 4096;
    units.max(1).ilog2().clamp(14, 18) as u8
}

/// Hears nothing: what comes while a process ends is for nobody.
struct Deaf;

impl Sink for Deaf {
    fn frame(&mut self, _peer: Peer, _head: &Head, _body: &[u8]) {}
    fn sent(&mut self, _token: Token) {}
    fn completed(&mut self, _token: Token, _outcome: Outcome) {}
    fn down(&mut self, _peer: Peer, _cause: &str) {}
}

impl Drop for Rdma {
    /// Says farewell to all peers, and waits until all has left, a second at most.
    fn drop(&mut self) {
        let end = Instant::now() + FAREWELL;
        // Peers that have said farewell themselves are gone.
        while self.poll(&mut Deaf) > 0 && Instant::now() < end {}
        let mut peers = self.links.open();
        while Instant::now() < end {
            peers.retain(|&peer| match self.links.end(peer) {
                Some(end) if end.is_up() => {
                    !(end.credit.is_left() && self.leave(peer, What::Farewell, 0, |_| {}))
                }
                _ => false,
            });
            if peers.is_empty() && self.under_way == 0 && !self.unsent() {
                break;
            }
            if self.poll(&mut Deaf) == 0 {
                std::thread::yield_now();
            }
        }
    }
}

//! The sender's side, and everything that leaves: replies, envelopes, pieces, credit; reads start here, too.

use std::mem::MaybeUninit;

use banyan_datatype::Data;
use banyan_memory::DeviceFailure;
use banyan_transport::{Caps, Class, Head, Kinds, Order, Peer, Port, Refusal, Sent, Token};

use crate::credit;
use crate::p2p::{P2p, list};
use crate::payload;
use crate::peers::{Link, Part};
use crate::request::{self, Granted, Request, Send, SendStep, State};
use crate::rts::Follows;
use crate::slab::Slab;
use crate::staging::{self, Next, Outgoing};
use crate::types::{Mode, ReqId, SendArgs, Stats};
use crate::ways::{self, SHORTEST};
use crate::wire::{self, Cause, Kind};

/// Payload of up to so many bytes is packed on the stack and sent as a short frame, if the fabric takes so much.
const STACK: usize = 64;
/// Bytes of a page: DATA frames are whole pages long, but for the last one.
const PAGE: u64 = 4096;
/// The longest message from a device that goes whole in one frame, as far as fabrics allow, bytes.
const LONGEST_WAITED: usize = 64 << 10;
/// DATA frames that one call of [`P2p::progress`] sends to one peer at most.
const BURST: usize = 64;
/// Bytes of the id before the payload of a synchronous eager message.
pub(crate) const ID: usize = 8;
/// Why a peer is gone that a fabric refused as down.
const LOST: &str = "the fabric has lost it";

/// What has become of a message in the call that starts it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tried {
    /// Others are before it, or it waits for its receiver.
    Nothing,
    /// It may not go eagerly.
    NotEager,
    /// The fabric has refused it.
    Refused(Refusal),
}

impl P2p {
    /// Sends a message with a tag (MPI 5.0, 3.4 and 3.7): at once and whole, if nothing is before it and it may be eager;
    /// then the send is complete and there is no request (`None`). Otherwise [`P2p::test`] may find the request done already.
    // No outcome: it would go through memory, which delays the message after it.
    #[inline(always)]
    pub fn send(&mut self, port: &mut impl Port, m: SendArgs) -> Option<ReqId> {
        let head = wire::tagged(Kind::Eager, m.ctx, m.tag, m.src_rank);
        self.start(port, m.peer, head, m.data, m.mode)
    }

    /// Sends a message with a key, as schedules of collectives do.
    #[inline]
    pub fn send_keyed(
        &mut self,
        port: &mut impl Port,
        peer: Peer,
        ctx: u64,
        key: u64,
        data: &Data,
    ) -> Option<ReqId> {
        self.start(port, peer, wire::keyed(Kind::Eager, ctx, key), data, Mode::Standard)
    }

    #[inline(always)]
    fn start(
        &mut self,
        port: &mut impl Port,
        peer: Peer,
        head: Head,
        data: &Data,
        mode: Mode,
    ) -> Option<ReqId> {
        let link = self.peers.at(peer, &mut self.credit_pool);
        // `&` has all of it looked at, which takes less time than a branch for each.
        let first = link.down.is_none() & link.envelopes.is_empty() & link.held.is_empty();
        let mut tried = Tried::Nothing;
        if mode != Mode::Sync && first {
            tried = match send_eager(port, link, &mut self.stats, &head, data) {
                Some(Ok(())) => return None,
                Some(Err(refusal)) => Tried::Refused(refusal),
                None => Tried::NotEager,
            }
        }
        Some(self.start_pending(port, peer, head, data, mode, tried))
    }

    /// Makes a request of a message that was not sent at once.
    #[cold]
    fn start_pending(
        &mut self,
        port: &mut impl Port,
        peer: Peer,
        head: Head,
        data: &Data,
        mode: Mode,
        tried: Tried,
    ) -> ReqId {
        if tried == Tried::Refused(Refusal::Down) {
            self.peer_down(peer, LOST);
        }
        if let Some(cause) = &self.peers.at(peer, &mut self.credit_pool).down {
            let lost = request::lost(peer, cause, request::sent(&head, 0));
            return ReqId(self.requests.insert(Request::new(State::Done(lost))));
        }
        let kept = match mode {
            Mode::Buffered => payload::copy_from(data, 0),
            Mode::Standard | Mode::Sync | Mode::Ready => Some(data.clone()),
        };
        let Some(kept) = kept else {
            let failed = request::no_memory(&head, data.len());
            return ReqId(self.requests.insert(Request::new(State::Done(failed))));
        };
        let step = SendStep::AwaitRoom { sync: mode == Mode::Sync, region: None };
        let id =
            self.requests.insert(Request::new(State::Send(Send { peer, head, data: kept, lent: 0, step })));
        let link = self.peers.at(peer, &mut self.credit_pool);
        let may_announce = head.class != Class::P2p || link.may_announce(self.credit_pool.window());
        if tried == Tried::NotEager && may_announce && !staging::is_staged(data) {
            let announced = self.announce(port, peer, id, &port.caps(peer));
            self.has_left(peer, announced);
            if announced == Err(Refusal::Busy) {
                self.peers.at(peer, &mut self.credit_pool).envelopes.push_back(id);
            }
        } else {
            link.envelopes.push_back(id);
            if let Tried::Refused(_) = tried {
                self.stats.busy += 1;
            } else if link.envelopes.len() == 1 {
                self.send_envelopes(port, peer);
            }
        }
        // The peer is listed only if work remains: listed work disables the receive bypass.
        let link = self.peers.at(peer, &mut self.credit_pool);
        if link.owed().anything() {
            list(&mut self.work, link);
        }
        ReqId(id)
    }

    /// Sends what is owed, starts reads, sends more DATA, tries again what the fabric refused. To be
    /// called after each poll. Returns how many things happened.
    #[inline(always)]
    pub fn progress(&mut self, port: &mut impl Port) -> usize {
        if self.has_work() { self.flush_listed(port) } else { 0 }
    }

    /// Flushes each listed peer once.
    #[inline(never)]
    fn flush_listed(&mut self, port: &mut impl Port) -> usize {
        let mut done = 0;
        for _ in 0..self.work.len() {
            let Some(peer) = self.work.pop_front() else { break };
            self.peers.at(peer, &mut self.credit_pool).listed = false;
            done += self.flush(port, peer);
            let link = self.peers.at(peer, &mut self.credit_pool);
            if link.owed().anything() {
                list(&mut self.work, link);
            }
        }
        done
    }

    /// Does what is to be done for one peer, until the fabric refuses a frame.
    pub(crate) fn flush(&mut self, port: &mut impl Port, peer: Peer) -> usize {
        let (mut done, mut last) = (0, None);
        while let Some(part) = self.peers.at(peer, &mut self.credit_pool).owed().after(last) {
            let (some, refused) = match part {
                Part::Withdrawals => (self.withdraw(port, peer), false),
                Part::Reclaims => (self.reclaim(port, peer), false),
                Part::Reads => (self.start_reads(port, peer), false),
                Part::Handed => (self.take_handed(port, peer), false),
                Part::Staged => (self.await_devices(peer), false),
                Part::Replies => self.send_replies(port, peer),
                Part::Held => self.send_held(port, peer),
                Part::Envelopes => self.send_envelopes(port, peer),
                Part::Granted => self.send_granted(port, peer),
                Part::Credit => self.send_credit(port, peer),
            };
            done += some;
            if refused {
                break;
            }
            last = Some(part);
        }
        done
    }

    pub(crate) fn send_replies(&mut self, port: &mut impl Port, peer: Peer) -> (usize, bool) {
        let link = self.peers.at(peer, &mut self.credit_pool);
        let caps = port.caps(peer);
        let mut sent = 0;
        while let Some(&reply) = link.replies.front() {
            if link.post(port, &caps, reply.head, reply.body()).is_err() {
                return (sent, true);
            }
            link.replies.pop_front();
            sent += 1;
        }
        (sent, false)
    }

    fn send_envelopes(&mut self, port: &mut impl Port, peer: Peer) -> (usize, bool) {
        let mut sent = 0;
        while let Some(&id) = self.peers.at(peer, &mut self.credit_pool).envelopes.front() {
            if self.must_wait(port, peer, id) {
                let link = self.peers.at(peer, &mut self.credit_pool);
                link.envelopes.pop_front();
                link.held.push_back(id);
                continue;
            }
            if !self.try_envelope(port, peer, id) {
                return (sent, true);
            }
            sent += 1;
            self.peers.at(peer, &mut self.credit_pool).envelopes.pop_front();
        }
        (sent, false)
    }

    /// Sends the envelope of `id`; false if the fabric is full, or has lost the peer, which is down then.
    pub(crate) fn try_envelope(&mut self, port: &mut impl Port, peer: Peer, id: u64) -> bool {
        let sent = self.send_envelope(port, peer, id);
        self.has_left(peer, sent)
    }

    /// Whether something has left for the peer, which is down otherwise if the fabric has lost it.
    fn has_left(&mut self, peer: Peer, sent: Result<(), Refusal>) -> bool {
        match sent {
            Ok(()) => return true,
            Err(Refusal::Busy) => self.stats.busy += 1,
            Err(Refusal::Down) => self.peer_down(peer, LOST),
        }
        false
    }

    /// Sends the envelope of `id`: the whole message, or its RTS and the fragments that may follow.
    fn send_envelope(&mut self, port: &mut impl Port, peer: Peer, id: u64) -> Result<(), Refusal> {
        // A send that was cancelled is still in the queue: nothing leaves.
        let Some(Request { state: State::Send(send), .. }) = self.requests.get_mut(id) else { return Ok(()) };
        let link = self.peers.at(peer, &mut self.credit_pool);
        let caps = port.caps(peer);
        if let SendStep::PushAll { .. } = send.step {
            return self.push(port, peer, id, &caps);
        }
        let SendStep::AwaitRoom { sync, .. } = send.step else {
            debug_assert!(false, "an envelope that has left is in no queue");
            return Ok(());
        };
        if staging::is_staged(&send.data) && is_short(link, &caps, &send.data, if sync { ID } else { 0 }) {
            match staging::at_once(&send.data) {
                Ok(copy) => send.data = copy,
                Err(failure) => {
                    self.not_sent(id, &failure);
                    return Ok(());
                }
            }
        }
        let paid = if sync {
            affordable(link, &caps, &send.data, ID)
        } else {
            match send_eager(port, link, &mut self.stats, &send.head, &send.data) {
                Some(sent) => {
                    sent?;
                    let completion = send.completion();
                    self.finish(id, completion);
                    return Ok(());
                }
                None => None,
            }
        };
        let Some(paid) = paid else {
            return self.announce(port, peer, id, &caps);
        };
        let head = Head { kind: Kind::EagerSync as u8, ..send.head };
        let (data, len) = (&send.data, ID + send.data.len() as usize);
        link.post_with(port, head, len, &mut |out| {
            let (first, rest) = out.split_at_mut(ID);
            first.copy_from_slice(&id.to_le_bytes());
            payload::pack(data, 0, rest);
        })?;
        (link.credit, self.stats.eager) = (link.credit - paid, self.stats.eager + 1);
        if let SendStep::AwaitRoom { region, .. } = send.step {
            send.step = SendStep::AwaitReply { region, staged: None, sent: 0, counted: false };
        }
        Ok(())
    }

    /// Sends the RTS of `id`, and the fragments that may follow.
    fn announce(&mut self, port: &mut impl Port, peer: Peer, id: u64, caps: &Caps) -> Result<(), Refusal> {
        match self.send_rts(port, peer, id, caps)? {
            Follows::Fragments => self.push(port, peer, id, caps),
            Follows::Nothing => Ok(()),
        }
    }

    /// Sends the fragments that follow the RTS of `id`: all of the message, or as much as the fabric and the credit allow.
    fn push(&mut self, port: &mut impl Port, peer: Peer, id: u64, caps: &Caps) -> Result<(), Refusal> {
        let Some(Request { state: State::Send(send), .. }) = self.requests.get_mut(id) else {
            debug_assert!(false, "the caller has just found the send under way");
            return Ok(());
        };
        let link = self.peers.at(peer, &mut self.credit_pool);
        let Send { head: Head { class, .. }, data, lent, .. } = send;
        let mut next = |link: &mut Link, sent: u64, piece: usize| {
            let len = (data.len() - sent).min(piece as u64);
            let frame = link.post_data(
                port,
                &wire::fragment(*class, id, sent),
                (data, sent, len as usize),
                Some(Token(id)),
                Order::Ordered,
            )?;
            *lent += u32::from(frame == Sent::Started);
            Ok(sent + len)
        };
        match &mut send.step {
            SendStep::PushAll { sent, piece } => {
                while *sent < data.len() {
                    *sent = next(link, *sent, *piece)?;
                }
                // While its way is looked for, each message is to be announced.
                let long = link.long.as_ref().zip(ways::class(data.len()));
                link.heard = long.is_some_and(|(long, class)| long.told[class].looking);
                let completion = send.completion();
                self.finish(id, completion);
            }
            // A device's bytes are fetched while the answer is awaited.
            SendStep::AwaitReply { region: None, staged, .. } if staging::is_staged(data) => {
                staged.get_or_insert_with(|| Outgoing::new(data.len())).begin(port, peer, data);
            }
            SendStep::AwaitReply { region: None, sent, .. } if link.held.is_empty() => {
                let most = data.len().min(caps.eager as u64).min(u32::MAX.into());
                let (cost, spare) = (credit::cost(caps.piece), self.credit_pool.initial() / 2);
                while link.heard && u64::from(*sent) < most && link.credit >= cost + spare {
                    let Ok(after) = next(link, (*sent).into(), caps.piece) else { break };
                    link.credit -= credit::cost((after - u64::from(*sent)) as usize);
                    *sent = after as u32;
                }
                link.heard = false;
            }
            _ => {}
        }
        Ok(())
    }

    /// Sends DATA that CTSs asked for.
    fn send_granted(&mut self, port: &mut impl Port, peer: Peer) -> (usize, bool) {
        let mut frames = 0;
        while let Some(&id) = self.peers.at(peer, &mut self.credit_pool).granted.front() {
            match self.write(port, id) {
                None => return (frames, true),
                // One at a time: what the peer has sent meanwhile may be what both wait for.
                Some(false) => return (frames + 1, false),
                Some(true) => {}
            }
            let link = self.peers.at(peer, &mut self.credit_pool);
            match send_data(port, link, &mut self.requests, id, BURST - frames) {
                DataSent::All(sent) => {
                    frames += sent;
                    link.granted.pop_front();
                    if let Some(Request { state: State::Send(send), .. }) = self.requests.get(id)
                        && let SendStep::PushGranted(granted) = &send.step
                    {
                        let (more, region) = (granted.more, granted.region);
                        self.sent_all(id, more, region);
                    }
                }
                DataSent::Blocked(sent) => return (frames + sent, true),
                DataSent::Failed(failure) => {
                    link.granted.pop_front();
                    self.not_sent(id, &failure);
                    // The receiver hears of it.
                    return (frames + 1, false);
                }
                DataSent::Handed(sent) => return (frames + sent, false),
                // The device is at work: this process does not sleep meanwhile.
                DataSent::Pending(sent) => return (frames + sent + 1, false),
            }
        }
        (frames, false)
    }

    /// Returns credit, which is due, in a frame of its own.
    fn send_credit(&mut self, port: &mut impl Port, peer: Peer) -> (usize, bool) {
        let link = self.peers.at(peer, &mut self.credit_pool);
        if link.down.is_some() {
            return (0, false);
        }
        let caps = port.caps(peer);
        let sent = link.post(port, &caps, wire::control(Kind::Credit, 0, 0), &[]).is_ok();
        (usize::from(sent), !sent)
    }
}

/// What a message of so many bytes costs, if it may go eagerly in one frame (with `before` more bytes in the frame) and
/// there is credit for it.
#[inline]
fn affordable(link: &Link, caps: &Caps, data: &Data, before: usize) -> Option<u32> {
    if is_short(link, caps, data, before) { link.affords(data.len()) } else { None }
}

/// Whether the message may go eagerly in one frame, and there is credit for it.
pub(crate) fn affordable_as_whole(link: &Link, caps: &Caps, send: &Send) -> bool {
    let sync = matches!(send.step, SendStep::AwaitRoom { sync: true, .. });
    affordable(link, caps, &send.data, if sync { ID } else { 0 }).is_some()
}

/// Whether fragments of the whole message of this send have begun to leave: they come before all other RTSs.
pub(crate) fn is_pushing(requests: &Slab<Request>, id: u64) -> bool {
    matches!(
        requests.get(id),
        Some(Request { state: State::Send(Send { step: SendStep::PushAll { .. }, .. }), .. })
    )
}

/// Whether a message may go eagerly in one frame, with `before` more bytes in it.
#[inline(always)]
pub(crate) fn is_short(link: &Link, caps: &Caps, data: &Data, before: usize) -> bool {
    let whole = is_whole(link, caps, data, before);
    match ways::class(data.len()) {
        None => whole,
        Some(class) => is_long_short(link, caps, data, class, (whole, before)),
    }
}

/// [`is_short`] of a message that may take several ways, and that is `whole` in a frame as fabrics have them; one from a device is,
/// unless it is read.
#[cold]
#[inline(never)]
fn is_long_short(
    link: &Link,
    caps: &Caps,
    data: &Data,
    class: usize,
    (whole, before): (bool, usize),
) -> bool {
    if staging::is_staged(data) {
        // One copy by the device, that is waited for; longer ones are not.
        let is_read = caps.get.has(Kinds::HOST) && link.lets_read_device(data.len());
        let longest = LONGEST_WAITED.min(caps.eager).min(caps.max_bcopy.saturating_sub(before));
        return data.len() <= longest as u64 && !is_read;
    }
    whole && link.announces(class, caps, data).is_none()
}

/// Why a message is announced that [`is_short`] says is not short.
pub(crate) fn cause(link: &Link, caps: &Caps, data: &Data, class: usize) -> Cause {
    let whole = is_whole(link, caps, data, 0) && !staging::is_staged(data);
    let way_alone = if whole { link.announces(class, caps, data) } else { None };
    way_alone.unwrap_or(Cause::Long)
}

/// Whether a message fits into one frame, with `before` more bytes in it.
#[inline(always)]
fn is_whole(link: &Link, caps: &Caps, data: &Data, before: usize) -> bool {
    let frame = if link.heard { caps.piece } else { caps.max_bcopy };
    data.len() <= caps.eager.min(frame).min(caps.max_bcopy.saturating_sub(before)) as u64
}

/// What a message of so many bytes costs that goes eagerly in fragments.
pub(crate) fn cost_of_frames(caps: &Caps, bytes: u64) -> u32 {
    let (whole, rest) = (bytes / caps.piece as u64, bytes as usize % caps.piece);
    whole as u32 * credit::cost(caps.piece) + if rest > 0 { credit::cost(rest) } else { 0 }
}

/// Sends a message whole in one frame, if it may go eagerly and there is credit for it; `None`: it may not.
#[inline(always)]
fn send_eager(
    port: &mut impl Port,
    link: &mut Link,
    stats: &mut Stats,
    head: &Head,
    data: &Data,
) -> Option<Result<(), Refusal>> {
    let (paid, sent);
    if data.len() <= STACK.min(port.whole_short()) as u64 {
        paid = link.affords(data.len())?;
        sent = send_short(port, link, head, data);
    } else {
        paid = affordable(link, &port.caps(link.peer), data, 0)?;
        sent = send_whole(port, link, head, data);
    }
    if sent.is_ok() {
        link.credit -= paid;
        stats.eager += 1;
    }
    Some(sent)
}

/// Sends a whole message of at most [`STACK`] bytes by [`Port::send_short`].
#[inline(always)]
fn send_short(port: &mut impl Port, link: &mut Link, head: &Head, data: &Data) -> Result<(), Refusal> {
    let Some((memory, start)) = data.piece() else { return send_short_of_pieces(port, link, head, data) };
    // Filled once, and not with zeros first.
    let mut room = [MaybeUninit::uninit(); STACK];
    let body = memory.read_into(start, &mut room[..data.len() as usize]);
    link.post_short(port, head, body)
}

/// [`send_short`] of data that lie in several pieces.
#[inline(never)]
fn send_short_of_pieces(
    port: &mut impl Port,
    link: &mut Link,
    head: &Head,
    data: &Data,
) -> Result<(), Refusal> {
    let mut room = [0; STACK];
    let body = &mut room[..data.len() as usize];
    payload::pack(data, 0, body);
    link.post_short(port, head, body)
}

/// Sends a whole message in one frame.
#[inline(always)]
fn send_whole(port: &mut impl Port, link: &mut Link, head: &Head, data: &Data) -> Result<(), Refusal> {
    let len = data.len() as usize;
    if staging::is_staged(data) {
        return send_whole_of_device(port, link, head, data);
    }
    link.post_data(port, head, (data, 0, len), None, Order::Ordered)?;
    if len as u64 >= SHORTEST {
        link.unsampled = link.unsampled.saturating_add(1);
    }
    Ok(())
}

/// Sends a whole message from a device in one frame. If the device fails the call ends before the fabric knows of a frame.
#[cold]
fn send_whole_of_device(
    port: &mut impl Port,
    link: &mut Link,
    head: &Head,
    data: &Data,
) -> Result<(), Refusal> {
    let copy = staging::at_once(data).unwrap_or_else(|failure| failure.unwind());
    let len = data.len() as usize;
    link.post_data(port, head, (&copy, 0, len), None, Order::Ordered).map(|_| ())
}

/// How far [`send_data`] came, and the number of frames that left.
enum DataSent {
    /// All that was asked for has left.
    All(usize),
    /// Nothing more leaves now.
    Blocked(usize),
    /// As much as may be is in memory that was handed over; when the peer returns it this process is woken.
    Handed(usize),
    /// The next bytes are not there yet: a device copies them.
    Pending(usize),
    /// And it has failed.
    Failed(DeviceFailure),
}

/// Sends at most `most` frames of the DATA that a CTS asked for.
fn send_data(
    port: &mut impl Port,
    link: &mut Link,
    requests: &mut Slab<Request>,
    id: u64,
    most: usize,
) -> DataSent {
    let Some(Request { state: State::Send(send), .. }) = requests.get_mut(id) else {
        debug_assert!(false, "a send that was granted ends when all has left, or with its peer");
        return DataSent::All(0);
    };
    let SendStep::PushGranted(granted) = &mut send.step else {
        debug_assert!(false, "a send in the queue of granted ones was granted");
        return DataSent::All(0);
    };
    let Granted { to, room, sent, staged, to_device, .. } = &mut **granted;
    if *to_device || staging::is_staged(&send.data) {
        staged.get_or_insert_with(|| Outgoing::new(send.data.len()));
    }
    // At least four frames, so that both sides copy at the same time, where the fabric takes frames of any length.
    let Caps { piece, max_bcopy, .. } = port.caps(link.peer);
    let longer = (*room / 4).clamp(piece as u64, 2 * piece as u64).next_multiple_of(PAGE);
    let piece = if 2 * piece <= max_bcopy { longer.min(max_bcopy as u64) } else { piece as u64 };
    let mut frames = 0;
    while *sent < *room {
        let left = *room - *sent;
        // A last rest of less than a page goes with the frame before it.
        let len = if left < piece + PAGE && left <= max_bcopy as u64 { left } else { piece } as usize;
        let head = wire::control(Kind::Data, *to, *sent);
        if frames == most {
            return DataSent::Blocked(frames);
        }
        let next = staged
            .as_mut()
            .map_or(Next::Direct, |staged| staged.next(port, link.peer, &send.data, (*sent, *room)));
        let (data, len) = match next {
            Next::Direct => ((&send.data, *sent, len), len),
            Next::Pending => return DataSent::Pending(frames),
            Next::Failed(failure) => return DataSent::Failed(failure),
            Next::Handed => return DataSent::Handed(frames),
            Next::HandOver(handover, len) => {
                let head = wire::control(Kind::Handed, *to, *sent);
                if link.post_handover(port, head, handover, len as usize).is_err() {
                    return DataSent::Blocked(frames);
                }
                staged.as_mut().into_iter().for_each(|staged| staged.handed_over());
                *sent += len;
                frames += 1;
                continue;
            }
            Next::Staged(bounce, at, there) => {
                let len = len.min(there as usize);
                ((bounce, at, len), len)
            }
        };
        let Ok(frame) = link.post_data(port, &head, data, Some(Token(id)), Order::Unordered) else {
            return DataSent::Blocked(frames);
        };
        send.lent += u32::from(frame == Sent::Started);
        *sent += len as u64;
        frames += 1;
    }
    *staged = None;
    DataSent::All(frames)
}

//! How a message is announced: the RTS, and which way it says that the bytes are to come.

use banyan_transport::{Access, Caps, Class, DeviceMoves, Head, Kinds, Peer, Port, Refusal};

use crate::p2p::P2p;
use crate::peers::Link;
use crate::request::{Request, Send, SendStep, State};
use crate::send::{ID, cause, cost_of_frames, is_short};
use crate::types::{Choice, Known};
use crate::ways::{self, Way};
use crate::wire::{Cause, Kind, Offer, Rts};

/// The way of a message, and whether there is a choice.
struct Route {
    way: Way,
    choice: bool,
    /// All of it may follow its RTS as fragments.
    pushable: bool,
}

/// The way of a message of `total` bytes; `kinds` are those of its memory if that is contiguous.
fn route(
    (choice, known): (&Choice, &Known),
    link: &mut Link,
    caps: &Caps,
    total: u64,
    kinds: Option<Kinds>,
) -> Route {
    let Some(kinds) = kinds.filter(|kinds| total > 0 && caps.get.has(*kinds)) else {
        return Route { way: Way::Ring, choice: false, pushable: true };
    };
    let Some(class) = ways::class(total) else {
        return Route { way: Way::Read, choice: false, pushable: true };
    };
    let (way, choice) = match choice {
        Choice::Fixed(way) => (*way, false),
        Choice::Measured { .. } if caps.prefers_get => (Way::Read, false),
        Choice::Measured { .. } => (link.long(known).told[class].way, true),
    };
    let way = match way {
        Way::NonTemporal => Way::Ring,
        Way::Write | Way::Both if !caps.put.has(kinds) => Way::Read,
        way => way,
    };
    Route { way, choice, pushable: way == Way::Ring }
}

/// Who moves a message of `total` bytes from memory of a device, as far as is known before it is registered.
#[cold]
fn device_moves(port: &mut impl Port, link: &Link, total: u64) -> DeviceMoves {
    match port.device_moves(link.peer) {
        DeviceMoves::ByDrivers if total < link.ipc_from => DeviceMoves::Never,
        moves => moves,
    }
}

/// What leaves right after an RTS.
pub(crate) enum Follows {
    /// Fragments of the message, as many as may.
    Fragments,
    /// The peer reads the message, or writes its own memory.
    Nothing,
}

impl P2p {
    /// Sends the RTS of a message, which says whether the whole message follows, or where it can be read.
    pub(crate) fn send_rts(
        &mut self,
        port: &mut impl Port,
        peer: Peer,
        id: u64,
        caps: &Caps,
    ) -> Result<Follows, Refusal> {
        let Some(Request { state: State::Send(send), .. }) = self.requests.get_mut(id) else {
            debug_assert!(false, "the caller has just found the send under way");
            return Ok(Follows::Nothing);
        };
        let Send { head, data, step: SendStep::AwaitRoom { sync, region }, .. } = send else {
            debug_assert!(false, "an RTS leaves once");
            return Ok(Follows::Nothing);
        };
        let link = self.peers.at(peer, &mut self.credit_pool);
        let (total, window) = (data.len(), self.credit_pool.window());
        let memory = data.contiguous();
        let kinds = memory.as_ref().map(|memory| Kinds::of(memory.kind()));
        let short = is_short(link, caps, data, if *sync { ID } else { 0 });
        let moves = match kinds.is_some_and(|kinds| kinds != Kinds::HOST) && !short {
            true => device_moves(port, link, total),
            false => DeviceMoves::Never,
        };
        let Route { way, choice, pushable } = match moves {
            DeviceMoves::Never => route((&self.choice, &self.known), link, caps, total, kinds),
            DeviceMoves::ByDrivers | DeviceMoves::ByNetwork => {
                Route { way: Way::Read, choice: false, pushable: false }
            }
        };
        let paid =
            (pushable && !short && !*sync && total <= caps.eager as u64).then(|| cost_of_frames(caps, total));
        // A held message leaves beside the queue of envelopes, whose RTS could come between it and its fragments.
        let pushed = paid.is_some_and(|paid| paid <= link.credit) && link.held.is_empty();
        let counted = head.class == Class::P2p && !pushed;
        let extra = link.extra - u32::from(counted && link.announced >= window);
        let last = counted && link.announced + 1 >= window && extra == 0;
        let starved = (short || paid.is_some()) && !pushed;
        if way != Way::Ring && !pushed && region.is_none() {
            let registered = memory.map(|memory| port.register(peer, &memory, Access::Read));
            self.stats.registrations_refused += u64::from(matches!(registered, Some(Err(_))));
            *region = registered.and_then(Result::ok);
        }
        let region = *region;
        let told = region.filter(|_| !pushed).map(|r| (r.addr, r.key));
        let way = if told.is_some() { way } else { Way::Ring };
        let seen = link.long.as_ref().map_or(0, |long| long.seen);
        let exposed = told.unwrap_or_default();
        // Who reads by the network does not mind what memory it is.
        let offer = match (choice, moves == DeviceMoves::ByDrivers && told.is_some()) {
            (_, true) => Offer::Device,
            (true, false) => {
                let class = ways::class(total);
                Offer::Choice(class.map_or(Cause::Long, |class| cause(link, caps, data, class)))
            }
            (false, false) => Offer::Fixed,
        };
        let rts = Rts { total, id, starved, pushed, last, way, offer, seen, exposed, number: 0 };
        let mut body = [0; Rts::MOST];
        let len = rts.encode(&mut body);
        link.post(port, caps, Head { kind: Kind::Rts as u8, ..*head }, &body[..len])?;
        if let Some(long) = link.long.as_mut().filter(|_| choice) {
            long.sent = long.sent.wrapping_add(1);
            link.unsampled = 0;
        }
        if pushed {
            link.credit -= paid.unwrap_or(0);
            link.withdrawals.extend(region);
            send.step = SendStep::PushAll { sent: 0, piece: caps.piece };
        } else {
            send.step = SendStep::AwaitReply { region, staged: None, sent: 0, counted };
            link.announced += u32::from(counted);
            link.extra = extra;
        }
        self.stats.eager += u64::from(pushed);
        self.stats.rendezvous += u64::from(!starved && !pushed);
        self.stats.starved += u64::from(starved);
        Ok(if told.is_some() { Follows::Nothing } else { Follows::Fragments })
    }
}

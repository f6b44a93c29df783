//! [`LongMessages`]: what is kept of a peer with which long messages have a choice of ways.
//!
//! As their receiver this process measures them, has its [`Ways`] choose, and tells the peer. As their sender it does as
//! it was told. An RTS says which way its message takes, so that nothing depends on when that was heard.

use banyan_datatype::Data;
use banyan_topo::KnownWay;
use banyan_transport::{Caps, Class, Head, Kinds, Peer};

use crate::flow::{Flow, Ready};
use crate::misbehaved::Misbehaved;
use crate::p2p::P2p;
use crate::peers::{Link, RtsOwner};
use crate::request::{Matched, Reply};
use crate::sink::source_and_tag;
use crate::types::{Choice, Known};
use crate::ways::{self, Arrived, CLASSES, Found, Preference, SAMPLE, Traffic, Way, Ways};
use crate::wire::{self, Cause, Kind, Offer, Rts};

/// A receive that comes so much later than its message was announced, ns, says nothing of the way.
const LATE: u64 = 20_000;

/// Outside of looks one in so many messages that are under way alone is measured: to read the clock twice takes 2 % of what 16 KiB take.
const MEASURED: u16 = 8;

#[derive(Debug)]
pub(crate) struct LongMessages {
    /// What the peer prefers, for each class of lengths.
    pub(crate) told: [Preference; CLASSES],
    /// Announcements with a choice that were sent to the peer, modulo 2^16.
    pub(crate) sent: u16,
    /// Such announcements that came from the peer.
    pub(crate) seen: u16,
    /// Classes of messages both ways for which the peer chooses, as bits.
    led: u16,
    ways: Ways,
    last: Announced,
    flow: Flow,
}

/// The last announcement of the peer that had a choice.
#[derive(Clone, Copy, Debug)]
struct Announced {
    /// Id of the send.
    sender: u64,
    traffic: Traffic,
    /// When it came, ns, if that is of use.
    at: Option<u64>,
    /// Receives that waited when it came, of any source.
    waiting: u32,
    /// Its receive waited already when the one before it came.
    follows: bool,
    /// A receive for the next one waited when it came.
    followed: bool,
    /// All of its message is there.
    over: bool,
}

/// What a receive knows of a message whose way was a choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    pub(crate) way: Way,
    traffic: Traffic,
    ready: Ready,
    cause: Cause,
    /// Which of the announcements of the peer it had, modulo 2^8.
    number: u8,
}

impl LongMessages {
    /// Of a peer of whose messages this is known.
    fn new(known: &[(KnownWay, Found)]) -> Self {
        let last = Announced {
            sender: 0,
            traffic: Traffic::OneWay,
            at: None,
            waiting: 0,
            follows: false,
            followed: false,
            over: true,
        };
        let ways = Ways::new(known);
        Self {
            told: std::array::from_fn(|class| ways.first(class)),
            sent: 0,
            seen: 0,
            led: 0,
            ways,
            last,
            flow: Flow::new((0, Way::Ring, Traffic::OneWay), 0),
        }
    }

    /// From now on these ways, which were refused, are not chosen.
    pub(crate) fn refuse(&mut self, ways: &[Way]) {
        ways.iter().for_each(|way| self.ways.refuse(*way));
    }

    /// Whether frames of messages of this class are copied past the caches of this process: where the peer chooses for both, as it has told.
    fn copies_past(&self, class: usize) -> bool {
        let led = self.led >> class & 1 == 1 && self.ways.are_both_ways(class);
        (if led { self.told[class].way } else { self.ways.wanted(class) }) == Way::NonTemporal
    }
}

impl Link {
    /// What is kept of long messages; at first what is known of them beforehand.
    pub(crate) fn long(&mut self, known: &Known) -> &mut LongMessages {
        let (peer, announces, past) = (self.peer, &mut self.announces, &mut self.past);
        self.long.get_or_insert_with(|| {
            let long = LongMessages::new(&known.of(peer));
            *announces = (0..).zip(&long.told).map(|(at, told)| u16::from(told.announces()) << at).sum();
            *past = (0..CLASSES).map(|class| u16::from(long.copies_past(class)) << class).sum();
            Box::new(long)
        })
    }

    /// What decides how frames of this class are copied may have changed.
    fn note_copies(&mut self, class: usize) {
        let past = self.long.as_ref().is_some_and(|long| long.copies_past(class));
        self.past = self.past & !(1 << class) | u16::from(past) << class;
    }

    /// Whether frames of a message of so many bytes are copied past the caches.
    #[inline]
    pub(crate) fn copies_past(&self, bytes: u64) -> bool {
        ways::class(bytes).is_some_and(|class| self.past >> class & 1 == 1)
    }

    /// Messages of this class prefer a way from now on.
    fn told(&mut self, known: &Known, class: usize, preference: Preference) -> &mut LongMessages {
        self.long(known).told[class] = preference;
        self.announces = self.announces & !(1 << class) | u16::from(preference.announces()) << class;
        self.long(known)
    }

    /// Why this message is announced also where it could go whole in one frame, as another way may be better; `None`: it is not.
    #[cold]
    pub(crate) fn announces(&self, class: usize, caps: &Caps, data: &Data) -> Option<Cause> {
        let cause = match self.announces >> class & 1 == 1 {
            true => Cause::Way,
            // Without a choice nobody wants samples.
            false if self.long.is_some() && self.unsampled >= SAMPLE => Cause::Sample,
            false => return None,
        };
        let reached = data.contiguous().is_some_and(|memory| caps.get.has(Kinds::of(memory.kind())));
        reached.then_some(cause)
    }
}

/// What this process has measured of the messages that a peer sends it.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// The sender.
    pub peer: Peer,
    /// The [class](banyan_topo::ways::class) of their lengths.
    pub class: usize,
    /// What they are part of.
    pub traffic: Traffic,
    /// The way that they take.
    pub way: Way,
    /// What a byte takes by each way, by its number, ns; `None`: that is not known.
    pub times: [Option<f64>; Way::ALL.len()],
    /// Whose look has found that.
    pub found: Found,
}

impl P2p {
    /// What was measured of the ways of long messages.
    pub fn measured(&self) -> impl Iterator<Item = Measured> {
        self.peers.iter().filter_map(|link| Some((link.peer, link.long.as_ref()?))).flat_map(
            |(peer, long)| {
                long.ways.known().map(move |(class, traffic, way, times, found)| Measured {
                    peer,
                    class,
                    traffic,
                    way,
                    times,
                    found,
                })
            },
        )
    }

    /// An RTS has arrived.
    pub(crate) fn note_announced(&mut self, peer: Peer, head: &Head, rts: &mut Rts) {
        if !matches!(rts.offer, Offer::Choice(_)) || ways::class(rts.total).is_none() {
            return;
        }
        let link = self.peers.at(peer, &mut self.credit_pool);
        let sending = link.announced > 0 || !link.granted.is_empty();
        let long = link.long(&self.known);
        // Messages go both ways at once if the peer has not seen the last announcement of this process, or its message is not over.
        // By the ring a message is announced when those before it are there, although several are under way.
        let posted = &self.contexts.at(head.ctx).side(head.class).posted;
        let followed = posted.several_from(source_and_tag(peer, head).0);
        // Not all between two samples were announced.
        let follows = long.last.followed && !matches!(rts.offer, Offer::Choice(Cause::Sample));
        let traffic = match sending || rts.seen != long.sent {
            true => Traffic::BothWays,
            false if long.last.over && !follows && !followed => Traffic::OneWay,
            false => Traffic::Window,
        };
        let measured = match traffic {
            // All time between such messages counts.
            Traffic::BothWays => false,
            Traffic::Window => true,
            Traffic::OneWay => long.ways.is_looking(rts.total) || long.seen.is_multiple_of(MEASURED),
        };
        let at = measured.then(|| self.choice.now());
        long.seen = long.seen.wrapping_add(1);
        rts.number = long.seen as u8;
        let waiting = posted.len() as u32;
        long.last = Announced { sender: rts.id, traffic, at, waiting, follows, followed, over: false };
    }

    /// A receive is matched with an RTS, of which `fragments` are here.
    pub(crate) fn chosen(&mut self, peer: Peer, rts: &Rts, fragments: bool) -> Option<Chosen> {
        let Offer::Choice(cause) = rts.offer else { return None };
        let link = self.peers.at(peer, &mut self.credit_pool);
        let Announced { sender, traffic, at, follows, .. } = link.long.as_ref()?.last;
        let posted = link.open_rts.is_some_and(|open_rts| {
            open_rts.sender == rts.id && matches!(open_rts.owner, RtsOwner::Receive(_))
        });
        let ready = match at {
            None => Ready::Unknown,
            Some(_) if posted && follows => Ready::Follows,
            Some(at) if posted => Ready::At(at),
            Some(at) => match self.choice.now() {
                now if sender == rts.id && now - at < LATE => Ready::At(at),
                _ if fragments => Ready::Unknown,
                now => Ready::Late(now),
            },
        };
        let way = match rts.way {
            Way::Ring if link.copies_past(rts.total) => Way::NonTemporal,
            way => way,
        };
        Some(Chosen { way, traffic, ready, cause, number: rts.number })
    }

    /// All of the message of receive `id` is there.
    pub(crate) fn received_all(&mut self, id: u64, message: &Matched) {
        if let Some(chosen) = message.chosen {
            self.took(message, chosen);
        }
        self.finish(id, message.completion());
    }

    #[cold]
    fn took(&mut self, message: &Matched, chosen: Chosen) {
        let (choice, link) = (self.choice, self.peers.at(message.peer, &mut self.credit_pool));
        let (Some(long), Choice::Measured { clock, me }) = (&mut link.long, choice) else { return };
        let Some(class) = ways::class(message.total) else { return };
        // What is cut off takes less time than it should.
        let ready = if message.accepted == message.total { chosen.ready } else { Ready::Unknown };
        long.last.over |= message.sender == long.last.sender;
        let looking = long.ways.is_looking(message.total);
        let under_way = u32::from((long.seen as u8).wrapping_sub(chosen.number)) + 1;
        let under_way = under_way.max(long.last.waiting);
        let traffic = long.ways.traffic(class, chosen.traffic, chosen.cause);
        let of = (class, chosen.way, traffic);
        let time = match ready {
            // Alone as it was, others tell as much.
            Ready::Unknown if !looking && traffic == Traffic::OneWay => None,
            _ => long.flow.over(clock, of, message.total, ready, under_way),
        };
        let both = traffic == Traffic::BothWays;
        let leads = !both || long.led & 1 << class == 0;
        let arrived = Arrived { len: message.total, traffic, by: chosen.way, time, cause: chosen.cause };
        let told = long.ways.over(&arrived, leads, long.flow.window);
        if !looking && long.ways.is_looking(message.total) {
            // Those that are under way are measured from here on.
            long.flow.restart(of, clock());
        }
        link.note_copies(class);
        if let Some((class, preference @ Preference { way, looking })) = told {
            let leads = both && me < message.peer;
            if leads {
                link.told(&self.known, class, preference);
            }
            let wide = class as u64 | (way as u64 | u64::from(looking) << 8 | u64::from(leads) << 9) << 32;
            self.owe(message.peer, Reply::bare(Kind::Prefer, 0, wide));
        }
    }

    /// Prefer: the peer tells which way it wants long messages to take.
    pub(crate) fn preferred(&mut self, peer: Peer, head: &Head) -> Result<(), Misbehaved> {
        debug_assert!(head.class == Class::P2p, "checked before");
        let wide = wire::wide(head);
        let (class, way, looking) = (wide as u32 as usize, (wide >> 32) as u8, wide >> 40 & 1 == 1);
        let way = *Way::ALL.get(usize::from(way)).ok_or(Misbehaved::UnknownWay)?;
        if class >= CLASSES {
            return Err(Misbehaved::UnknownWay);
        }
        let (leads, me) = (wide >> 41 & 1 == 1, self.choice.me());
        let link = self.peers.at(peer, &mut self.credit_pool);
        let both = link.long.as_ref().is_some_and(|long| long.ways.are_both_ways(class));
        // What a peer says that has not heard yet that this process chooses for both is too late.
        if leads || !both || me > Some(peer) {
            link.told(&self.known, class, Preference { way, looking }).led |= u16::from(leads) << class;
            link.note_copies(class);
        }
        Ok(())
    }
}

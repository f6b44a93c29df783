//! [`Rail`]: the ports by which long transfers go. The first one is that of the fabric, by which all else goes; a connection has one more pair
//! of queues on each further one, as long as both sides can use theirs there.

use std::net::IpAddr;
use std::sync::Arc;

use crate::fabric::{MOST_WORK, Rdma};
use crate::frames::Id;
use crate::gid::Address;
use crate::greeting::{Card, Further, Greeting, Wire};
use crate::links::{End, Pairs};
use crate::settings::Settings;
use crate::verbs::{Completion, Completions, Device, Pair, Receives, Room, Use};

/// A further rail by which nothing has come through in so many lives of a connection is not used there any more.
const FRUITLESS: u8 = 2;
/// Where a rail's number stands in that of a queue pair.
const RAIL_BITS: u32 = 24;

/// A port by which a process talks, and what the user says of its connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RailOptions {
    /// Name of the device.
    pub device: String,
    /// Number of its port, from 1.
    pub port: u8,
    /// What the user says of connections there.
    pub settings: Settings,
}

/// A further port.
pub(crate) struct Rail {
    pub(crate) device: Arc<Device>,
    completions: Arc<Completions>,
    /// Nothing comes there: queue pairs take one.
    receives: Arc<Receives>,
    /// Why the device is of no use any more.
    pub(crate) ended: Option<String>,
}

impl Rail {
    /// Opens a further port, which is to be of the first one's kind.
    pub(crate) fn open(port: &RailOptions, subnets: &[(IpAddr, u8)], first: &Device) -> Result<Rail, String> {
        let device = Arc::new(Device::open((&port.device, port.port), subnets, &port.settings)?);
        if device.wire != first.wire || device.wire == Wire::Iwarp {
            return Err(format!("{}:{} is one of {}", port.device, port.port, device.wire));
        }
        let completions = Arc::new(Completions::new(&device, MOST_WORK as u32 * device.works_each())?);
        let receives = Arc::new(Receives::new(&device, 1)?);
        Ok(Rail { device, completions, receives, ended: None })
    }

    fn card(&self) -> Card {
        let (addresses, datagrams, listens) = (self.device.offers(), 0, 0);
        let Device { mtu, reads, wire, .. } = *self.device;
        Card { addresses, lid: self.device.lid(), datagrams, listens, mtu, reads, wire }
    }
}

/// The number of a queue pair on a rail, among all of this process.
pub(crate) fn numbered(rail: usize, pair: u32) -> u32 {
    (rail as u32) << RAIL_BITS | pair
}

impl Completion {
    /// The rail that it is of.
    pub(crate) fn rail(&self) -> usize {
        (self.pair >> RAIL_BITS) as usize
    }
}

impl Pairs {
    /// Number of rails by which transfers go.
    pub(crate) fn rails(&self) -> usize {
        1 + self.standing
    }

    /// The pair by which transfers go on a rail.
    pub(crate) fn of_transfers(&self, rail: usize) -> &Pair {
        if rail == 0 { &self.transfers } else { &self.further[rail - 1] }
    }

    /// The numbers of all pairs, among all of this process.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> {
        let further = self.further.iter().zip(1..).map(|(pair, rail)| numbered(rail, pair.number()));
        self.numbers().into_iter().chain(further)
    }
}

impl End {
    /// A transfer has gone by a further rail.
    pub(crate) fn rails_work(&mut self) {
        self.fruitless = 0;
    }

    /// Its pairs end. By its further rails something should have gone.
    pub(crate) fn rails_end(&mut self) {
        if self.pairs.as_ref().is_some_and(|pairs| pairs.standing > 0 && pairs.tried) {
            self.fruitless += 1;
        }
    }
}

impl Rdma {
    /// The devices of all rails.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Arc<Device>> {
        std::iter::once(&self.device).chain(self.rails.iter().map(|rail| &rail.device))
    }

    /// Takes completions of all rails; gives how many there were where there were most. Of frames that have left nobody else needs to know, so
    /// that these are over at once. Of the others, unless some wait already, the one that is to be handled first goes to `first`, and the
    /// rest wait behind it.
    #[inline(always)]
    pub(crate) fn take_completions(&mut self, first: &mut Option<Completion>) -> usize {
        let mut room = Room::new();
        let taken = self.completions.poll(&mut room);
        let found = taken.len();
        for of in taken {
            if let (Id::Send(_), Ok(_)) = (Id::from(of.id), of.result) {
                self.frame_left(of.pair, of.result);
            } else if first.is_none() && self.held.is_empty() {
                *first = Some(of);
            } else {
                self.held.push_back(of);
            }
        }
        if self.rails.is_empty() { found } else { found.max(self.take_of_further()) }
    }

    /// The same of further rails, by which no frames leave; all of it waits.
    #[inline(never)]
    fn take_of_further(&mut self) -> usize {
        let held = &mut self.held;
        let of_rail = |(rail, number): (&Rail, usize)| {
            let mut room = Room::new();
            let taken = rail.completions.poll(&mut room);
            let found = taken.len();
            held.extend(taken.map(|of| Completion { pair: numbered(number, of.pair), ..of }));
            found
        };
        self.rails.iter().zip(1..).map(of_rail).max().unwrap_or(0)
    }

    /// Takes completions of all rails, which wait; gives how many there were where there were most.
    pub(crate) fn hold_completions(&mut self) -> usize {
        let mut first = None;
        let most = self.take_completions(&mut first);
        first.into_iter().for_each(|first| self.held.push_front(first));
        most
    }

    /// The queues that tell of work, on all rails.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &Completions> {
        std::iter::once(&*self.completions).chain(self.rails.iter().map(|rail| &*rail.completions))
    }

    /// Pairs on further rails for a connection that is to be made: on those that can be used now, unless that was in vain.
    pub(crate) fn further_pairs(&self, fruitless: u8) -> Result<Vec<Pair>, String> {
        let usable =
            |rail: &&Rail| fruitless < FRUITLESS && rail.ended.is_none() && rail.device.ready().is_ok();
        let pair = |rail: &Rail| Pair::new(&rail.device, &rail.completions, &rail.receives);
        self.rails.iter().take_while(usable).map(pair).collect()
    }

    /// What a greeting says of the further rails of a connection.
    pub(crate) fn further(&self, pairs: &[Pair]) -> Vec<Further> {
        let of = |(pair, rail): (&Pair, &Rail)| Further { pair: pair.number(), card: rail.card() };
        pairs.iter().zip(&self.rails).map(of).collect()
    }
}

/// Connects the pairs of those further rails that both sides have, and by which they reach each other: either side finds the same ones.
pub(crate) fn connect(end: &mut End, rails: &[Rail], said: &Greeting, late: u8) -> Result<(), String> {
    let Some(pairs) = &mut end.pairs else { return Ok(()) };
    let first = (pairs.first(), said.first);
    pairs.standing = 0;
    for ((pair, rail), theirs) in pairs.further.iter().zip(rails).zip(&said.further) {
        let ours: Vec<(u8, Address)> = rail.device.addresses();
        let Ok(path) = theirs.card.path(&ours) else { break };
        if let Err(why) = pair.connect(Use::Transfers, &path, theirs.pair, first, late) {
            end.fruitless += 1;
            let Device { name, port, .. } = &*rail.device;
            return Err(format!("by {name}:{port}: {why}"));
        }
        pairs.standing += 1;
    }
    Ok(())
}

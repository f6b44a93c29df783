//! First contact with peers: the greetings that make connections. See [`crate::contact`] for what they say.

use std::time::Instant;

use banyan_transport::{Fabric, Peer, Refusal};

use crate::contact::{Contact, Due, Stage};
use crate::credit::{Credit, WINDOW};
use crate::fabric::Rdma;
use crate::frames::{Id, SLOT};
use crate::greeting::{self, Card, Greeting};
use crate::links::{End, Phase};
use crate::verbs::{Datagrams, Pair, Slots};

impl Rdma {
    pub(crate) fn card(&self) -> Card {
        Card {
            gid: self.device.gid.gid.octets(),
            lid: self.device.lid,
            datagrams: self.datagrams.number(),
            mtu: self.device.mtu,
            reads: self.device.reads,
            ethernet: self.device.ethernet,
        }
    }

    /// Has a connection come about, or asks for the peer's business card; gives the refusal for what wanted to leave now.
    #[cold]
    pub(crate) fn reach(&mut self, peer: Peer) -> Refusal {
        let link = self.links.at(peer);
        match (&link.phase, link.card) {
            (Phase::Down, _) => return Refusal::Down,
            (Phase::Idle, Some(card)) => self.begin(peer, &card),
            (Phase::Idle, None) if !std::mem::replace(&mut link.asked, true) => self.wanted.push_back(peer),
            _ => {}
        }
        Refusal::Busy
    }

    /// Makes this side's end of a connection, with buffers for what comes by it.
    fn begin(&mut self, peer: Peer, card: &Card) {
        match self.make_end(card) {
            Ok(end) => {
                self.peers.extend(end.numbers().map(|number| (number, peer)));
                self.links.at(peer).phase = Phase::Open(Box::new(end));
                self.contacting.push(peer);
            }
            Err(why) => self.lose(peer, &why),
        }
    }

    fn make_end(&mut self, card: &Card) -> Result<End, String> {
        let pair = || Pair::new(&self.device, &self.completions, &self.receives);
        let (pair, transfers) = (pair()?, Some(pair()?));
        let to = self.datagrams.handle(card)?;
        let window = Slots::new(&self.device, WINDOW.into(), SLOT)?;
        let first = self.windows.len() as u32 * u32::from(WINDOW);
        self.windows.push(window);
        self.empty.extend(first..first + u32::from(WINDOW));
        self.post_empty()?;
        let contact = Contact::new(Instant::now(), self.patience);
        let (credit, posted, moving) = (Credit::default(), 0, 0);
        Ok(End { pair, transfers, to, contact, theirs: None, credit, posted, moving, broken: false })
    }

    /// Sends a greeting, unless all slots are in use: then it comes the next time.
    fn greet(&mut self, peer: Peer) {
        let (Some(end), Some(slot)) = (self.links.end(peer), self.free.pop()) else { return };
        let (stage, pairs, first) = (end.contact.stage(), end.numbers(), end.first());
        let card = self.card();
        let greeting = Greeting { stage, from: self.me.0, to: peer.0, job: self.job, card, pairs, first };
        self.owners[slot as usize] = self.datagrams.number();
        self.slots.bytes_mut(slot as usize, greeting::BYTES).copy_from_slice(&greeting.encode(&self.secret));
        let local = self.slots.local(slot as usize, greeting::BYTES);
        let Some(end) = self.links.end(peer) else { return };
        if let Err(why) = self.datagrams.send(&end.to, Id::Greeting(slot).into(), local) {
            self.free.push(slot);
            self.broke(peer, why);
        }
    }

    /// Hears a datagram.
    pub(crate) fn hear(&mut self, slot: u32, len: usize) {
        let bytes = self.heard.bytes(slot as usize, len);
        let said = bytes.get(Datagrams::BEFORE..).and_then(|bytes| Greeting::decode(bytes, &self.secret));
        let ours =
            |said: &Greeting| said.job == self.job && said.to == self.me.0 && self.reaches(Peer(said.from));
        let Some(said) = said.filter(ours) else { return };
        let peer = Peer(said.from);
        if matches!(self.links.at(peer).phase, Phase::Idle) {
            self.begin(peer, &said.card);
        }
        let Some(end) = self.links.end(peer) else { return };
        if end.theirs.is_some_and(|known| known != said.pairs) {
            return;
        }
        let answer = end.contact.heard(said.stage);
        end.theirs = Some(said.pairs);
        let up = end.contact.stage() == Stage::Up;
        if answer.connect
            && let Err(why) = end.connect(&said)
        {
            return self.broke(peer, why);
        }
        if up {
            self.contacting.retain(|&other| other != peer);
        }
        if answer.greet {
            self.greet(peer);
        }
    }

    /// Sends the greetings that are due, and gives up contacts whose patience is over.
    pub(crate) fn attend_contacts(&mut self) -> usize {
        if self.contacting.is_empty() {
            return 0;
        }
        let (now, mut work) = (Instant::now(), 0);
        for peer in self.contacting.clone() {
            let Some(end) = self.links.end(peer) else { continue };
            let (due, doubtful) = (end.contact.due(now), end.contact.is_doubtful());
            work += usize::from(due != Due::Nothing);
            match due {
                Due::Nothing => {}
                Due::Greet => self.greet(peer),
                Due::GiveUp => {
                    let secs = self.patience.as_secs_f32();
                    self.lose(peer, &format!("it has not answered for {secs} s by {}", self.device.name));
                }
            }
            if doubtful && !std::mem::replace(&mut self.links.at(peer).doubted, true) {
                self.unreached.push_back(peer);
            }
        }
        work
    }
}

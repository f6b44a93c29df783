//! First contact with peers, and contact again: the greetings that make connections. See [`crate::contact`] for what they say.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use banyan_transport::{Fabric, Peer, Refusal};

use crate::contact::{Answer, Contact, Due, Stage};
use crate::credit::Credit;
use crate::datagrams::Greetings;
use crate::fabric::Rdma;
use crate::greeting::{Card, Greeting, Path, Wire};
use crate::links::{End, Pairs, Phase};
use crate::rails;
use crate::verbs::Pair;

impl End {
    /// Makes contact again if it rests.
    fn wake(&mut self, contacting: &mut Vec<Peer>, peer: Peer, patience: Duration) {
        if self.pairs.is_none() && self.breaking.is_none() && !contacting.contains(&peer) {
            let now = Instant::now();
            self.contact = Contact::new(self.contact.says().number, now, now + patience);
            contacting.push(peer);
        }
    }
}

impl Rdma {
    pub(crate) fn card(&self) -> Card {
        Card {
            addresses: self.device.offers(),
            lid: self.device.lid(),
            datagrams: self.greetings.number(),
            listens: self.greetings.listens(),
            mtu: self.device.mtu,
            reads: self.device.reads,
            wire: self.device.wire,
        }
    }

    /// The addresses of this side and of a peer that packets go between, if there is contact.
    pub fn addresses(&self, peer: Peer) -> Option<(IpAddr, IpAddr)> {
        let path = self.links.look(peer)?.path;
        let (_, from) = self.device.addresses().into_iter().find(|(place, _)| *place == path.from)?;
        Some((from.ip(), path.to.to_canonical()))
    }

    /// Has a connection come about, or asks for the peer's business card; gives the refusal for what wanted to leave now.
    #[cold]
    pub(crate) fn reach(&mut self, peer: Peer) -> Refusal {
        let link = self.links.at(peer);
        match (&mut link.phase, link.path) {
            (Phase::Down, _) => return Refusal::Down,
            (Phase::Idle, Some(_)) if let Some(why) = self.ended.clone() => {
                self.lose(peer, &why);
                return Refusal::Down;
            }
            (Phase::Idle, Some(path)) => self.begin(peer, path),
            (Phase::Open(end), _) => end.wake(&mut self.contacting, peer, self.patience),
            (Phase::Idle, None) if !std::mem::replace(&mut link.asked, true) => self.wanted.push(peer),
            _ => {}
        }
        Refusal::Busy
    }

    /// Begins this side's end of a connection.
    fn begin(&mut self, peer: Peer, path: Path) {
        let now = Instant::now();
        let end = End {
            pairs: None,
            path,
            contact: Contact::new(1, now, now + self.patience),
            credit: Credit::default(),
            replay: Default::default(),
            posted: 0,
            moving: 0,
            moved: 0,
            has_stood: false,
            window: false,
            used: self.polls,
            rest_said: false,
            rest_heard: false,
            fruitless: 0,
            breaking: None,
            failing: None,
            hindered: None,
            died: None,
        };
        self.links.at(peer).phase = Phase::Open(Box::new(end));
        self.contacting.push(peer);
    }

    /// Makes the queue pairs of an end, and buffers for what comes by them, unless they are there. If that cannot be now it is tried
    /// again.
    fn make_pairs(&mut self, peer: Peer) -> Option<()> {
        if self.links.end(peer)?.pairs.is_some() {
            return Some(());
        }
        self.forget_ended();
        let window = self.make_window(peer);
        let end = self.links.end(peer)?;
        if let Err(why) = window {
            end.hindered = Some(why);
            return None;
        }
        let fruitless = end.fruitless;
        let pair = || Pair::new(&self.device, &self.completions, &self.receives);
        let made = self.device.ready().and_then(|()| {
            let (frames, transfers, further) = (pair()?, pair()?, self.further_pairs(fruitless)?);
            let (standing, tried, wiring, since) = (0, false, None, Instant::now());
            Ok(Pairs { frames, transfers, further, standing, tried, wiring, since })
        });
        let end = self.links.end(peer)?;
        match made {
            Ok(pairs) => {
                pairs.all().for_each(|number| self.peers.add(number, peer));
                (end.pairs, end.hindered) = (Some(pairs), None);
                Some(())
            }
            Err(why) => {
                end.hindered = Some(why);
                None
            }
        }
    }

    /// Sends a greeting, if that can be now; otherwise it comes the next time.
    pub(crate) fn greet(&mut self, peer: Peer) {
        if self.make_pairs(peer).is_none() {
            return;
        }
        let made = self.links.look(peer).and_then(|end| end.pairs.as_ref());
        let (card, further) = (self.card(), self.further(made.map_or(&[][..], |pairs| &pairs.further[..])));
        let Some(End { pairs: Some(pairs), contact, replay, path, .. }) = self.links.end(peer) else {
            return;
        };
        let greeting = Greeting {
            said: contact.says(),
            from: self.me.0,
            to: peer.0,
            job: self.job,
            received: replay.received(),
            card,
            further,
            pairs: pairs.numbers(),
            first: pairs.first(),
            mark: self.greetings.mark(),
        };
        // One that does not leave is as one that is lost.
        let _ = self.greetings.send(path, &greeting.encode(&self.secret));
    }

    /// Hears a greeting, or what is none.
    pub(crate) fn hear(&mut self, said: Option<Greeting>) {
        let ours =
            |said: &Greeting| said.job == self.job && said.to == self.me.0 && self.reaches(Peer(said.from));
        let Some(said) = said.filter(ours) else { return };
        let peer = Peer(said.from);
        // One that no answer of this side reaches is as one that was lost.
        let Ok(path) = said.card.path(&self.device.addresses()) else { return };
        match &mut self.links.at(peer).phase {
            Phase::Idle => self.begin(peer, path),
            Phase::Open(end) => {
                // Its addresses may be other ones than before.
                end.path = path;
                end.wake(&mut self.contacting, peer, self.patience);
            }
            Phase::Refused(_) | Phase::Down => return,
        }
        if self.make_pairs(peer).is_none() {
            return;
        }
        let Some(end) = self.links.end(peer).filter(|end| end.breaking.is_none()) else { return };
        match end.contact.heard(said.said) {
            Answer::Nothing => {}
            Answer::Renew => return self.broke(peer, "the peer has made it anew".into()),
            Answer::Connect => {
                if let Err(why) = self.resume(peer, &said) {
                    return self.broke(peer, why);
                }
                self.greet(peer);
            }
            Answer::Greet => self.greet(peer),
        }
        self.come_up(peer);
    }

    /// Connects this side's end to the one that greets, and counts what that has received.
    fn resume(&mut self, peer: Peer, said: &Greeting) -> Result<(), String> {
        let Some(end) = self.links.end(peer) else { return Ok(()) };
        rails::connect(end, &self.rails, said, self.late)?;
        let End { pairs: Some(pairs), path, replay, credit, contact, .. } = end else { return Ok(()) };
        match &self.greetings {
            Greetings::Queue(_) => {
                pairs.connect(path, said, self.late)?;
                contact.is_ready();
            }
            Greetings::Iwarp(iwarp) => iwarp.connect(pairs, path, said, self.me < peer)?,
        }
        let Ok(arrived) = replay.resume(said.received) else {
            let why = format!(
                "it says that it has received {} frames, which cannot be: {} were not confirmed",
                said.received,
                replay.kept().len()
            );
            self.lose(peer, &why);
            return Ok(());
        };
        *credit = Credit::resumed(replay.kept().len());
        arrived.into_iter().for_each(|left| self.sending.give(left.slot));
        Ok(())
    }

    /// Once the connection stands, what was under way when it broke is sent again.
    pub(crate) fn come_up(&mut self, peer: Peer) {
        if self.links.end(peer).is_none_or(|end| !end.stands()) {
            return;
        }
        let Some(at) = self.contacting.iter().position(|&other| other == peer) else { return };
        self.contacting.swap_remove(at);
        self.links.at(peer).doubted = false;
        self.links.end(peer).into_iter().for_each(|end| end.has_stood = true);
        self.send_again(peer);
        if self.device.wire == Wire::Iwarp {
            self.send_first_to(peer);
        }
    }

    /// The patience with a contact is over: the peer is gone, or refused if nothing can have left for it or come from it.
    fn give_up(&mut self, peer: Peer) {
        let between =
            self.addresses(peer).map_or_else(String::new, |(from, to)| format!(" at {to}, from {from}"));
        let Some(end) = self.links.end(peer) else { return };
        let has_stood = end.has_stood;
        let why = match end.failing.take() {
            Some((_, why)) if has_stood => format!("{why}; it was not made anew"),
            Some((_, why)) => format!("{why}; it was not made"),
            None => format!("the peer has not answered{between}"),
        };
        let hindered = end.hindered.take().map_or_else(String::new, |why| format!(": {why}"));
        let secs = self.patience.as_secs_f32();
        let why = self.by_port(&format!("{why} within {secs} s{hindered}"));
        self.lose(peer, &why);
        if !has_stood {
            self.lost.retain(|(other, _)| *other != peer);
            self.links.at(peer).phase = Phase::Refused(why);
            self.wanted.push(peer);
        }
    }

    /// When a contact wants to be looked at.
    pub(crate) fn next_contact(&self) -> Option<Instant> {
        self.contacting.iter().filter_map(|&peer| self.links.look(peer)?.contact.next()).min()
    }

    /// Sends the greetings that are due, and gives up contacts whose patience is over.
    pub(crate) fn attend_contacts(&mut self) -> usize {
        let now = Instant::now();
        if self.next_contact().is_none_or(|next| now < next) {
            return 0;
        }
        let mut work = self.attend_events();
        for peer in self.contacting.clone() {
            let Some(end) = self.links.end(peer) else { continue };
            if end.contact.stage() == Stage::Up && end.is_late(now, self.patience) {
                self.broke(peer, "rdma_cm has not made it in time".into());
                continue;
            }
            let (due, doubtful) = (end.contact.due(now), end.contact.is_doubtful());
            work += usize::from(due != Due::Nothing);
            match due {
                Due::Nothing => {}
                Due::Greet => self.greet(peer),
                Due::GiveUp => self.give_up(peer),
            }
            if doubtful && !std::mem::replace(&mut self.links.at(peer).doubted, true) {
                self.unreached.push(peer);
            }
        }
        work
    }
}

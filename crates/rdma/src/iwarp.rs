//! [`Iwarp`]: how connections come about where devices have no datagrams, and rdma_cm makes connections: greetings go by UDP; once they
//! have named the queue pairs of both sides, the process with the lower number asks for the two connections. What is said with that
//! names both queue pairs, and proves that the process is of the job.

use std::collections::HashMap;
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use banyan_transport::{Fabric, Peer};

use crate::cache::Access;
use crate::contact::Said;
use crate::datagrams::Greetings;
use crate::fabric::Rdma;
use crate::frames::What;
use crate::greeting::{self, Greeting, Path, Request};
use crate::links::{End, Pairs, Wiring};
use crate::verbs::cm::{self, Event, Manager};
use crate::verbs::{Device, Pair, Remote, Slots};

/// While works are under way connections are looked at so often in the time that they may be silent.
const LOOKS: u32 = 4;

/// What makes contact on iWARP, and sees that connections work.
pub(crate) struct Iwarp {
    manager: Manager,
    greetings: UdpSocket,
    /// What peers read, and reads of theirs write to, only to show that what came before has arrived.
    mark: Slots,
    /// Peers to which this side sends first, and has not.
    first: Vec<Peer>,
    silences: Silences,
}

/// Connections by which works are under way, and nothing comes back: a device of InfiniBand gives up by itself when acknowledgements are missing,
/// and one of iWARP waits as TCP does, for many minutes, or for good.
struct Silences {
    looked: Instant,
    /// What had arrived when it was looked at last, and how often it had been the same before.
    arrived: HashMap<Peer, (u64, u32)>,
}

impl Silences {
    /// Looks at how much has arrived at a peer; true if that has been the same for too long. Looks count, and not time: a process may have been
    /// busy elsewhere.
    fn is_silent(&mut self, peer: Peer, arrived: u64) -> bool {
        let (before, same) = self.arrived.entry(peer).or_insert((arrived, 0));
        *same = if *before == arrived { *same + 1 } else { 0 };
        *before = arrived;
        *same > LOOKS
    }
}

impl Iwarp {
    /// Listens for greetings and requests at the device's address.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Iwarp, String> {
        let (_, address) = *device.addresses().first().ok_or("a device without an address")?;
        let ip = address.ip();
        let socket = || {
            let greetings = UdpSocket::bind((ip, 0))?;
            greetings.set_nonblocking(true)?;
            Ok(greetings)
        };
        let greetings =
            socket().map_err(|error: std::io::Error| format!("a socket for greetings at {ip}: {error}"))?;
        let manager = Manager::new(ip)?;
        let mark = Slots::reached(device, 1, 1, Access::LOCAL.with(Access::READ))?;
        let silences = Silences { looked: Instant::now(), arrived: HashMap::new() };
        Ok(Iwarp { manager, greetings, mark, first: Vec::new(), silences })
    }

    /// The socket's port.
    pub(crate) fn number(&self) -> u16 {
        self.greetings.local_addr().map_or(0, |address| address.port())
    }

    /// The port at which rdma_cm listens.
    pub(crate) fn listens(&self) -> u16 {
        self.manager.listens()
    }

    /// Address and key of what peers read.
    pub(crate) fn mark(&self) -> (u64, u32) {
        let Remote { addr, rkey } = self.mark.remote(0);
        (addr, rkey)
    }

    /// Readable when something has come, on either way.
    pub(crate) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.manager.descriptor(), self.greetings.as_fd()]
    }

    /// Sends a greeting to the process that a path leads to.
    pub(crate) fn send(&self, to: &Path, bytes: &[u8]) -> Result<(), String> {
        let [hears, _] = to.sockets();
        self.greetings.send_to(bytes, hears).map(|_| ()).map_err(|error| error.to_string())
    }

    /// The next datagram that has come, if it is a greeting.
    fn hear(&self, secret: &[u8; 32]) -> Option<Option<Greeting>> {
        let mut bytes = [0; greeting::LONGEST + 1];
        // An error is of a greeting that has left: it is as one that is lost.
        let len = self.greetings.recv(&mut bytes).ok()?;
        Some(Greeting::decode(&bytes[..len], secret))
    }

    /// Begins to connect pairs to those that a greeting names.
    pub(crate) fn connect(
        &self,
        pairs: &mut Pairs,
        path: &Path,
        said: &Greeting,
        asks: bool,
    ) -> Result<(), String> {
        pairs.since = Instant::now();
        let (addr, rkey) = said.mark;
        for pair in pairs.both() {
            pair.confirm_by(self.mark.whole(0), Remote { addr, rkey });
        }
        pairs.wiring = Some((said.pairs, if asks { Wiring::Asking(0) } else { Wiring::Asked(0) }));
        if asks {
            pairs.both().into_iter().try_for_each(|pair| pair.reach(&self.manager, path))?;
        }
        Ok(())
    }
}

impl Rdma {
    /// Hears greetings, and goes on with connections that rdma_cm makes. Gives how much there was.
    pub(crate) fn attend_iwarp(&mut self) -> usize {
        let Greetings::Iwarp(iwarp) = &self.greetings else { return 0 };
        let mut work = 0;
        if !iwarp.first.is_empty() {
            self.send_first();
        }
        if self.under_way > 0 {
            work += self.attend_silences();
        }
        while let Greetings::Iwarp(iwarp) = &self.greetings
            && let Some(said) = iwarp.hear(&self.secret)
        {
            work += 1;
            self.hear(said);
        }
        while let Greetings::Iwarp(iwarp) = &self.greetings
            && let Some(event) = iwarp.manager.next()
        {
            work += 1;
            match event {
                Event::Reached(pair) => self.ask(pair),
                Event::Asked(asked, said) => self.answer(asked, &said),
                Event::Stands(pair) => self.wired(pair),
                Event::Over(pair, why) => {
                    if let Some((peer, _)) = self.of_pair(pair) {
                        self.broke(peer, why);
                    }
                }
            }
        }
        work
    }

    /// The peer, and the end, that a queue pair belongs to, if that is not broken.
    fn of_pair(&mut self, pair: u32) -> Option<(Peer, &mut End)> {
        let peer = self.peers.get(pair)?;
        let end = self.links.end(peer).filter(|end| end.breaking.is_none())?;
        let is_present = end.pairs.as_ref().is_some_and(|pairs| pairs.numbers().contains(&pair));
        is_present.then_some((peer, end))
    }

    /// The way to the peer of a queue pair is known.
    fn ask(&mut self, pair: u32) {
        let (from, job, secret) = (self.me.0, self.job, self.secret);
        let Some((peer, End { pairs: Some(pairs), path, contact, .. })) = self.of_pair(pair) else { return };
        let Some((theirs, _)) = pairs.wiring else { return };
        let Said { number, to, .. } = contact.says();
        let of_both = pairs.both().into_iter().zip(theirs);
        let Some((ours, theirs)) = of_both.into_iter().find(|(ours, _)| ours.number() == pair) else {
            return;
        };
        let request = Request { from, to: peer.0, job, ends: [number, to], pairs: [pair, theirs] };
        if let Err(why) = ours.ask(path, &request.encode(&secret)) {
            self.broke(peer, why);
        }
    }

    /// A process asks for a connection. It gets it if it is the peer's for whose present end the queue pair is; else the request ends here.
    fn answer(&mut self, asked: cm::End, said: &[u8]) {
        let Some(said) = Request::decode(said, &self.secret) else { return };
        if said.job != self.job || said.to != self.me.0 || !self.reaches(Peer(said.from)) {
            return;
        }
        let asked_end = self.of_pair(said.pairs[1]);
        let Some((peer, End { pairs: Some(pairs), path, contact, .. })) = asked_end else { return };
        let Said { number, to, .. } = contact.says();
        let Some((theirs, Wiring::Asked(_))) = pairs.wiring.filter(|_| said.ends == [to, number]) else {
            return;
        };
        let named = |(ours, theirs): &(&mut Pair, u32)| [*theirs, ours.number()] == said.pairs;
        let ours = pairs.both().into_iter().zip(theirs).find(named);
        let Some((ours, _)) = ours.filter(|_| peer == Peer(said.from)) else { return };
        if let Err(why) = ours.accept(path, asked) {
            self.broke(peer, why);
        }
    }

    /// The connection of a queue pair stands. When both do, this side says so: siw forgets what arrives before it knows of that itself, so
    /// the other one waits until it has heard it.
    fn wired(&mut self, pair: u32) {
        let Some((peer, end)) = self.of_pair(pair) else { return };
        let Some((_, wiring)) = end.pairs.as_mut().and_then(|pairs| pairs.wiring.as_mut()) else { return };
        match wiring {
            Wiring::Asking(stand @ 0) | Wiring::Asked(stand @ 0) => return *stand = 1,
            Wiring::Asking(_) => *wiring = Wiring::Done,
            Wiring::Asked(_) => {}
            Wiring::Done => return,
        }
        end.contact.is_ready();
        self.greet(peer);
        self.come_up(peer);
    }

    /// The side that has asked sends first, and be it nothing but credits: until then the other one may not.
    pub(crate) fn send_first_to(&mut self, peer: Peer) {
        if let Greetings::Iwarp(iwarp) = &mut self.greetings
            && self.me < peer
        {
            iwarp.first.push(peer);
            self.send_first();
        }
    }

    fn send_first(&mut self) {
        let Greetings::Iwarp(iwarp) = &mut self.greetings else { return };
        let mut first = std::mem::take(&mut iwarp.first);
        first.retain(|&peer| {
            let nothing_left = |end: &mut End| end.posted == 0 && end.is_up() && end.credit.is_left();
            self.links.end(peer).is_some_and(nothing_left) && !self.leave(peer, What::Credits, 0, |_| {})
        });
        if let Greetings::Iwarp(iwarp) = &mut self.greetings {
            iwarp.first.append(&mut first);
        }
    }

    /// The time after which a connection is taken for broken by which nothing has come back.
    fn silence(&self) -> Duration {
        self.patience / 8
    }

    /// Breaks connections that are silent, now and then.
    fn attend_silences(&mut self) -> usize {
        let (most, now) = (self.silence(), Instant::now());
        let Greetings::Iwarp(Iwarp { silences, .. }) = &mut self.greetings else { return 0 };
        if now.duration_since(silences.looked) < most / LOOKS {
            return 0;
        }
        silences.looked = now;
        let mut silent = Vec::new();
        for (peer, end) in self.links.ends() {
            if end.posted + end.moving == 0 || end.breaking.is_some() {
                silences.arrived.remove(&peer);
            } else if silences.is_silent(peer, end.replay.arrived() + end.moved) {
                silences.arrived.remove(&peer);
                silent.push(peer);
            }
        }
        let why = format!("nothing that has left has arrived for {} s", most.as_secs_f32());
        silent.iter().for_each(|&peer| self.broke(peer, why.clone()));
        silent.len()
    }

    /// When connections want to be looked at that may be silent.
    pub(crate) fn silence_deadline(&self) -> Option<Instant> {
        match &self.greetings {
            Greetings::Iwarp(iwarp) if self.under_way > 0 => {
                Some(iwarp.silences.looked + self.silence() / LOOKS)
            }
            _ => None,
        }
    }
}

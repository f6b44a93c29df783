//! Connections at the listening ports, until they have proven who they are. Whatever they do, the job goes on.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use banyan_transport::Peer;
use mio::{Interest, Token};

use crate::fabric::{GUEST, Tcp};
use crate::handshake::{Answer, Handshake, Heard, Hello};
use crate::link::Phase;
use crate::options::Options;
use crate::talk::{Failure, Talk};

/// How long to wait when there are no descriptors left.
const NO_DESCRIPTORS: Duration = Duration::from_millis(50);

/// Most connections taken at once.
const MOST_CALLERS: usize = 64;

/// The connections that are not proven yet.
pub(crate) struct Guests {
    slots: Vec<Option<Guest>>,
    /// Those whose sockets have something to say.
    ready: VecDeque<usize>,
    /// Someone may be waiting at a listener.
    pub(crate) calling: bool,
    /// When to look at the listeners again, if descriptors were used up.
    again: Option<Instant>,
    strangers: usize,
    proof: Duration,
}

struct Guest {
    talk: Talk,
    /// When it goes unless it has proven itself.
    deadline: Instant,
    /// Who it said it is (it knows the secret, or replays what someone said who does).
    peer: Option<Peer>,
}

impl Guests {
    pub(crate) fn new(options: &Options) -> Guests {
        let (strangers, proof) = (options.strangers.max(1), options.proof);
        Guests { slots: Vec::new(), ready: VecDeque::new(), calling: false, again: None, strangers, proof }
    }

    pub(crate) fn flag(&mut self, number: usize) {
        if self.slots.get(number).is_some_and(Option::is_some) && !self.ready.contains(&number) {
            self.ready.push_back(number);
        }
    }

    /// True if there is something to do now.
    pub(crate) fn busy(&self) -> bool {
        self.calling && self.again.is_none() || !self.ready.is_empty()
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let guests = self.slots.iter().flatten().map(|guest| guest.deadline);
        guests.chain(self.again).min()
    }

    fn add(&mut self, guest: Guest) -> usize {
        let free = self.slots.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[number] = Some(guest);
        number
    }

    /// Drops the oldest connection that has said nothing of use; false if there is none.
    fn drop_oldest_stranger(&mut self) -> bool {
        let strangers = self.slots.iter_mut().filter(|slot| matches!(slot, Some(Guest { peer: None, .. })));
        let oldest = strangers.min_by_key(|slot| slot.as_ref().map(|guest| guest.deadline));
        oldest.is_some_and(|slot| slot.take().is_some())
    }

    fn full(&self) -> bool {
        self.slots.iter().flatten().filter(|guest| guest.peer.is_none()).count() >= self.strangers
    }
}

impl Tcp {
    /// Lets in who waits at the listeners, and hears the guests out.
    pub(crate) fn welcome(&mut self) -> usize {
        let mut work = 0;
        if self.guests.calling && self.guests.again.is_none() {
            work += self.let_in();
        }
        for _ in 0..self.guests.ready.len() {
            let Some(number) = self.guests.ready.pop_front() else { break };
            work += self.hear_guest(number);
        }
        work
    }

    /// Drops guests whose time is over.
    pub(crate) fn guest_timers(&mut self, now: Instant) {
        if self.guests.again.is_some_and(|at| at <= now) {
            self.guests.again = None;
        }
        for number in 0..self.guests.slots.len() {
            if self.guests.slots[number].as_ref().is_some_and(|guest| guest.deadline <= now) {
                self.drop_guest(number);
            }
        }
        while let Some(None) = self.guests.slots.last() {
            self.guests.slots.pop();
        }
    }

    fn let_in(&mut self) -> usize {
        self.guests.calling = false;
        let mut work = 0;
        for listener in 0..self.listeners.len() {
            for _ in 0..MOST_CALLERS {
                match self.listeners[listener].accept() {
                    Ok((socket, _)) => work += usize::from(self.seat(socket).is_ok()),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if no_descriptors(&error) => {
                        self.guests.calling = true;
                        if !self.guests.drop_oldest_stranger() {
                            self.guests.again = Some(Instant::now() + NO_DESCRIPTORS);
                            return work;
                        }
                    }
                    // The caller has gone again.
                    Err(_) => {}
                }
                if work == MOST_CALLERS {
                    self.guests.calling = true;
                    return work;
                }
            }
        }
        work
    }

    fn seat(&mut self, mut socket: mio::net::TcpStream) -> Result<(), Failure> {
        if self.guests.full() {
            self.guests.drop_oldest_stranger();
        }
        let handshake = Handshake::accept(&self.secret)?;
        let number = self.guests.slots.iter().position(Option::is_none).unwrap_or(self.guests.slots.len());
        let token = Token(GUEST + number);
        self.poll.registry().register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
        let deadline = Instant::now() + self.guests.proof;
        let seat = self.guests.add(Guest { talk: Talk::new(socket, handshake), deadline, peer: None });
        debug_assert_eq!(seat, number);
        self.guests.flag(number);
        Ok(())
    }

    fn hear_guest(&mut self, number: usize) -> usize {
        let mut work = 0;
        while let Some(guest) = self.guests.slots.get_mut(number).and_then(Option::as_mut) {
            match guest.talk.hear() {
                Ok(None) => break,
                Ok(Some(Heard::Asked(hello))) if self.answer(number, &hello).is_ok() => work += 1,
                Ok(Some(Heard::Proven(peer, confirmation))) => {
                    work += 1;
                    self.seal(number, peer, &confirmation);
                }
                // A stranger, a peer that gave up, or nothing that belongs here.
                _ => self.drop_guest(number),
            }
        }
        work
    }

    /// Answers a guest that has opened the talk; if it is an error, the guest goes.
    fn answer(&mut self, number: usize, hello: &Hello) -> Result<(), Failure> {
        let known = hello.job == self.job && hello.to == self.me && hello.from.0 < self.size;
        if !known || hello.from == self.me {
            return Err(Failure::Closed);
        }
        let (me, from) = (self.me, hello.from);
        let link = self.link(from);
        let answer = match &link.phase {
            Phase::Up(_) => Answer::Duplicate,
            Phase::Down => return Err(Failure::Closed),
            // Of two attempts that cross, the one of the lower peer is kept.
            Phase::Dialing(_) if me < from => Answer::Duplicate,
            Phase::Dialing(dial) if dial.committed() => Answer::Duplicate,
            _ => Answer::Accept,
        };
        let before = match answer {
            Answer::Accept => link.guest.replace(number),
            Answer::Duplicate => None,
        };
        if let Some(before) = before {
            self.guests.slots[before] = None;
        }
        let guest = self.guests.slots[number].as_mut().ok_or(Failure::Closed)?;
        let message = guest.talk.handshake.answer(answer)?;
        guest.talk.say(&message)?;
        if answer == Answer::Duplicate {
            return Err(Failure::Closed);
        }
        guest.peer = Some(from);
        // The peer may be busy computing and send its proof too late: it connects again then.
        guest.deadline = Instant::now() + self.guests.proof;
        Ok(())
    }

    /// A guest has proven to be `peer`: this is the connection to keep.
    fn seal(&mut self, number: usize, peer: Peer, confirmation: &[u8]) {
        let Some(mut guest) = self.guests.slots[number].take() else { return };
        let link = self.link(peer);
        link.guest = link.guest.filter(|&other| other != number);
        if matches!(link.phase, Phase::Up(_) | Phase::Down) || guest.talk.say(confirmation).is_err() {
            return;
        }
        self.up(peer, guest.talk.socket);
    }

    pub(crate) fn drop_guest(&mut self, number: usize) {
        let Some(guest) = self.guests.slots.get_mut(number).and_then(Option::take) else { return };
        if let Some(peer) = guest.peer {
            let link = self.link(peer);
            link.guest = link.guest.filter(|&other| other != number);
        }
    }

    /// Makes room when descriptors are used up.
    pub(crate) fn evict(&mut self) {
        self.guests.drop_oldest_stranger();
    }
}

pub(crate) fn no_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].iter().any(|e| code == Some(e.raw_os_error()))
}

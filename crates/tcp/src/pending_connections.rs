//! Connections at the listening ports, until they have proven which peer they are. Nothing that they do harms the job.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use mio::{Interest, Token};

use crate::fabric::{PENDING, Tcp};
use crate::handshake::{Answer, Handshake, Heard, Hello};
use crate::link::Phase;
use crate::options::Options;
use crate::talk::{Failure, Talk};

/// How long no connection is accepted after descriptors were used up.
const NO_DESCRIPTORS: Duration = Duration::from_millis(50);

/// Most connections that one poll accepts.
const MAX_ACCEPTS: usize = 64;

/// The connections that are not proven yet.
pub(crate) struct PendingConnections {
    /// The connections by number; `None` is a free entry.
    entries: Vec<Option<PendingConnection>>,
    /// Numbers of the connections whose sockets have an event to handle.
    ready: VecDeque<usize>,
    /// A listener may have a connection to accept.
    pub(crate) accept_due: bool,
    /// When to accept again, if descriptors were used up.
    accept_again: Option<Instant>,
    max_unproven: usize,
    proof: Duration,
}

struct PendingConnection {
    talk: Talk,
    /// When the connection is dropped unless it has proven itself.
    deadline: Instant,
    /// The link that it claims to be of (it knows the secret, or replays an opening of a process that does).
    link: Option<u32>,
}

impl PendingConnections {
    pub(crate) fn new(options: &Options) -> PendingConnections {
        let (max_unproven, proof) = (options.max_unproven.max(1), options.proof);
        PendingConnections {
            entries: Vec::new(),
            ready: VecDeque::new(),
            accept_due: false,
            accept_again: None,
            max_unproven,
            proof,
        }
    }

    pub(crate) fn mark_ready(&mut self, number: usize) {
        if self.entries.get(number).is_some_and(Option::is_some) && !self.ready.contains(&number) {
            self.ready.push_back(number);
        }
    }

    /// True if there is something to do now.
    pub(crate) fn busy(&self) -> bool {
        self.accept_due && self.accept_again.is_none() || !self.ready.is_empty()
    }

    pub(crate) fn deadline(&self) -> Option<Instant> {
        let deadlines = self.entries.iter().flatten().map(|connection| connection.deadline);
        deadlines.chain(self.accept_again).min()
    }

    fn add(&mut self, connection: PendingConnection) -> usize {
        let free = self.entries.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() - 1
        });
        self.entries[number] = Some(connection);
        number
    }

    /// Drops the oldest connection that has sent no valid opening; false if there is none.
    fn drop_oldest_unproven(&mut self) -> bool {
        let unproven = self
            .entries
            .iter_mut()
            .filter(|entry| matches!(entry, Some(PendingConnection { link: None, .. })));
        let oldest = unproven.min_by_key(|entry| entry.as_ref().map(|connection| connection.deadline));
        oldest.is_some_and(|entry| entry.take().is_some())
    }

    fn full(&self) -> bool {
        self.entries.iter().flatten().filter(|connection| connection.link.is_none()).count()
            >= self.max_unproven
    }
}

impl Tcp {
    /// Accepts connections at the listeners, and advances the handshakes of the pending ones; gives the number of steps.
    pub(crate) fn serve_pending(&mut self) -> usize {
        let mut work = 0;
        if self.pending_connections.accept_due && self.pending_connections.accept_again.is_none() {
            work += self.accept_all();
        }
        for _ in 0..self.pending_connections.ready.len() {
            let Some(number) = self.pending_connections.ready.pop_front() else { break };
            work += self.hear_pending(number);
        }
        work
    }

    /// Drops pending connections whose deadline has passed.
    pub(crate) fn pending_timers(&mut self, now: Instant) {
        if self.pending_connections.accept_again.is_some_and(|at| at <= now) {
            self.pending_connections.accept_again = None;
        }
        for number in 0..self.pending_connections.entries.len() {
            if self.pending_connections.entries[number]
                .as_ref()
                .is_some_and(|connection| connection.deadline <= now)
            {
                self.drop_pending(number);
            }
        }
        while let Some(None) = self.pending_connections.entries.last() {
            self.pending_connections.entries.pop();
        }
    }

    fn accept_all(&mut self) -> usize {
        self.pending_connections.accept_due = false;
        let mut work = 0;
        for listener in 0..self.listeners.len() {
            for _ in 0..MAX_ACCEPTS {
                match self.listeners[listener].accept() {
                    Ok((socket, _)) => work += usize::from(self.add_pending(socket).is_ok()),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if no_descriptors(&error) => {
                        self.pending_connections.accept_due = true;
                        if !self.pending_connections.drop_oldest_unproven() {
                            self.pending_connections.accept_again = Some(Instant::now() + NO_DESCRIPTORS);
                            return work;
                        }
                    }
                    // The connecting side has gone again.
                    Err(_) => {}
                }
                if work == MAX_ACCEPTS {
                    self.pending_connections.accept_due = true;
                    return work;
                }
            }
        }
        work
    }

    fn add_pending(&mut self, mut socket: mio::net::TcpStream) -> Result<(), Failure> {
        if self.pending_connections.full() {
            self.pending_connections.drop_oldest_unproven();
        }
        let handshake = Handshake::accept(&self.secret)?;
        let number = self
            .pending_connections
            .entries
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.pending_connections.entries.len());
        let token = Token(PENDING + number);
        self.poll.registry().register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
        let deadline = Instant::now() + self.pending_connections.proof;
        let added = self.pending_connections.add(PendingConnection {
            talk: Talk::new(socket, handshake),
            deadline,
            link: None,
        });
        debug_assert_eq!(added, number);
        self.pending_connections.mark_ready(number);
        Ok(())
    }

    fn hear_pending(&mut self, number: usize) -> usize {
        let mut work = 0;
        while let Some(connection) = self.pending_connections.entries.get_mut(number).and_then(Option::as_mut)
        {
            match connection.talk.hear() {
                Ok(None) => break,
                Ok(Some(Heard::Asked(hello))) if self.answer(number, &hello).is_ok() => work += 1,
                Ok(Some(Heard::Proven(hello))) => {
                    work += 1;
                    self.promote(number, &hello);
                }
                // It has no right to a connection, has given up, or has sent what no handshake sends here.
                _ => self.drop_pending(number),
            }
        }
        work
    }

    /// Answers the opening of a pending connection, which the caller drops after an error.
    fn answer(&mut self, number: usize, hello: &Hello) -> Result<(), Failure> {
        let is_ours = hello.job == self.job && hello.to == self.me && hello.from.0 < self.size;
        if !is_ours || hello.from == self.me || u32::from(hello.stream) >= self.links.streams() {
            return Err(Failure::Closed);
        }
        let of = self.links.number(hello.from, hello.stream.into());
        let link = self.links.at(of);
        let answer = match &link.phase {
            // The peer may have noticed before this process that the connection broke.
            Phase::Up(stream) if stream.resumable() && hello.attempt > link.connected_by => Answer::Accept,
            Phase::Up(_) => Answer::Duplicate,
            Phase::Left | Phase::Down => return Err(Failure::Closed),
            // A replayed opening: whoever connects again after a break makes a new attempt.
            _ if link.suspended.is_some() && hello.attempt <= link.connected_by => {
                return Err(Failure::Closed);
            }
            // Of two attempts that cross, that of the lower peer is kept, if both get so far: see `step`.
            Phase::Dialing(dial) if dial.committed() => Answer::Duplicate,
            _ => Answer::Accept,
        };
        if answer == Answer::Accept {
            link.pending.push(number);
            // A peer tries each of our addresses once at a time: more are attempts that it gave up, or replayed openings.
            if link.pending.len() > self.listeners.len() {
                self.pending_connections.entries[link.pending.remove(0)] = None;
            }
        }
        let connection = self.pending_connections.entries[number].as_mut().ok_or(Failure::Closed)?;
        let features = self.options.features(connection.talk.socket.peer_addr()?.ip());
        let message = connection.talk.handshake.answer(answer, features)?;
        connection.talk.say(&message)?;
        if answer == Answer::Duplicate {
            return Err(Failure::Closed);
        }
        connection.link = Some(of);
        // The peer may be computing and send its proof too late: then it connects again.
        connection.deadline = Instant::now() + self.pending_connections.proof;
        Ok(())
    }

    /// A pending connection is proven to be what its hello says: it becomes the connection of that link, unless there is one.
    fn promote(&mut self, number: usize, hello: &Hello) {
        let Some(mut connection) = self.pending_connections.entries[number].take() else { return };
        let of = self.links.number(hello.from, hello.stream.into());
        let link = self.links.at(of);
        link.pending.retain(|&other| other != number);
        let again = match &link.phase {
            Phase::Up(stream) => stream.resumable() && hello.attempt > link.connected_by,
            Phase::Left | Phase::Down => false,
            _ => true,
        };
        let Ok((confirmation, session)) = connection.talk.handshake.confirm(link.received()) else { return };
        // From here on nothing is read from a connection before: the peer will not send again what was counted.
        if again && connection.talk.say(&confirmation).is_ok() {
            link.attempt = link.attempt.max(hello.attempt);
            link.connected_by = hello.attempt;
            self.suspend(of);
            self.up(of, connection.talk.socket, session);
        }
    }

    pub(crate) fn drop_pending(&mut self, number: usize) {
        let Some(connection) = self.pending_connections.entries.get_mut(number).and_then(Option::take) else {
            return;
        };
        if let Some(of) = connection.link {
            self.links.at(of).pending.retain(|&other| other != number);
        }
    }

    /// Frees a descriptor, if a pending connection without an opening has one.
    pub(crate) fn free_descriptor(&mut self) {
        self.pending_connections.drop_oldest_unproven();
    }
}

pub(crate) fn no_descriptors(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let code = error.raw_os_error();
    [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM].iter().any(|e| code == Some(e.raw_os_error()))
}

//! Connecting to peers: attempts, their failures, and what happens when one succeeds.

use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Interest, Token};
use rustix::net::sockopt;

use crate::fabric::Tcp;
use crate::handshake::{Answer, Handshake, Heard, Hello};
use crate::link::{Dial, Phase};
use crate::pending_connections::no_descriptors;
use crate::stream::Stream;
use crate::talk::{Failure, Talk};

/// How long the two systems may take to connect the sockets. The handshake after that has no limit as long as the peer's
/// host answers: the peer may be computing.
const CONNECT: Duration = Duration::from_secs(5);

/// How long to wait for the peer's own connection after it refused ours as a duplicate.
const REFUSED: Duration = Duration::from_millis(20);

impl Tcp {
    /// Starts an attempt to connect a link, where the peer's business card is known.
    pub(crate) fn dial(&mut self, number: u32) {
        if !self.connecting.contains(&number) {
            self.connecting.push(number);
        }
        match self.begin(number) {
            Ok(dial) => self.links.at(number).phase = Phase::Dialing(Box::new(dial)),
            Err(failure) => {
                if matches!(&failure, Failure::Io(error) if no_descriptors(error)) {
                    self.free_descriptor();
                }
                self.failed(number, &failure);
            }
        }
    }

    /// Opens the socket of an attempt; the opening is sent when the socket is connected.
    fn begin(&mut self, number: u32) -> Result<Dial, Failure> {
        let (peer, stream) = self.links.of(number);
        let hello = Hello { job: self.job, from: self.me, to: peer, stream, answer: Answer::Accept };
        let address = self.links.at(number).address().ok_or(Failure::Closed)?;
        let mut socket = TcpStream::connect(address)?;
        keep_alive(&socket)?;
        let token = Token(number as usize);
        self.poll.registry().register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
        let (handshake, opening) = Handshake::connect(&self.secret, hello)?;
        Ok(Dial { talk: Talk::new(socket, handshake), since: Instant::now(), opening: Some(opening) })
    }

    /// Advances an attempt as far as possible; gives the number of steps.
    pub(crate) fn drive_dial(&mut self, number: u32) -> usize {
        let mut work = 0;
        loop {
            match self.step(number) {
                Ok(true) => work += 1,
                Ok(false) => return work,
                Err(failure) => {
                    self.failed(number, &failure);
                    return work + 1;
                }
            }
        }
    }

    /// One step of an attempt; false if there is nothing more to do now.
    fn step(&mut self, number: u32) -> Result<bool, Failure> {
        let (me, (peer, _)) = (self.me, self.links.of(number));
        let link = self.links.at(number);
        let Phase::Dialing(dial) = &mut link.phase else { return Ok(false) };
        if let Some(opening) = &dial.opening {
            if let Some(error) = dial.talk.socket.take_error()? {
                return Err(error.into());
            }
            if dial.talk.socket.peer_addr().is_err() {
                return Ok(false);
            }
            dial.talk.say(opening)?;
            dial.opening = None;
            return Ok(true);
        }
        match dial.talk.hear()? {
            None => Ok(false),
            // Meanwhile this process has accepted the connection of the lower peer: that connection is kept.
            Some(Heard::Accepted(_)) if link.pending.is_some() && peer < me => {
                link.phase = Phase::AwaitRetry(Instant::now() + REFUSED);
                Ok(true)
            }
            Some(Heard::Accepted(proof)) => {
                dial.talk.say(&proof)?;
                Ok(true)
            }
            Some(Heard::Refused) => {
                link.phase = Phase::AwaitRetry(Instant::now() + REFUSED);
                Ok(true)
            }
            Some(Heard::Confirmed) => {
                let Phase::Dialing(dial) = std::mem::take(&mut link.phase) else { return Ok(false) };
                self.up(number, dial.talk.socket);
                Ok(true)
            }
            Some(Heard::Asked(_) | Heard::Proven(..)) => Err(Failure::Closed),
        }
    }

    /// An attempt failed: schedules another one, or gives the peer up when attempts have failed for `options.patience`.
    fn failed(&mut self, number: u32, failure: &Failure) {
        let (peer, _) = self.links.of(number);
        if self.links.to(peer).any(|other| matches!(self.links.phase(other), Phase::Left)) {
            return self.over(number, "it has left the job".to_owned(), true);
        }
        let patience = self.options.patience;
        let now = Instant::now();
        let link = self.links.at(number);
        let address = link.address();
        if let Some(at) = link.next_try(now, patience) {
            link.phase = Phase::AwaitRetry(at);
            return;
        }
        let target = address.map_or("no address".to_owned(), |address| address.to_string());
        let hint = match failure {
            Failure::Io(error) if no_descriptors(error) => ": allow more descriptors (ulimit -n)",
            _ => "",
        };
        let cause = format!("{target}: not reached within {} s: {failure}{hint}", patience.as_secs_f32());
        self.give_up(number, cause);
    }

    /// A connection is over. If the peer has said farewell there, what its other streams may still bring is waited for.
    pub(crate) fn over(&mut self, number: u32, cause: String, farewell: bool) {
        self.disconnect(number, Phase::Left);
        let (peer, _) = self.links.of(number);
        let open = self.links.to(peer).any(|other| match self.links.phase(other) {
            Phase::Up(_) => true,
            Phase::Dialing(dial) => dial.committed(),
            _ => false,
        });
        if !(farewell && open) {
            self.give_up(number, cause);
        }
    }

    /// The peer of a link is gone, which the poll reports at its end: none of its streams is used any more.
    pub(crate) fn give_up(&mut self, number: u32, cause: String) {
        let (peer, _) = self.links.of(number);
        for number in self.links.to(peer) {
            self.disconnect(number, Phase::Down);
        }
        self.lost.push((peer, cause));
    }

    /// Closes the connection of a link, if there is one.
    pub(crate) fn disconnect(&mut self, number: u32, phase: Phase) {
        let before = std::mem::replace(&mut self.links.at(number).phase, phase);
        self.connected -= usize::from(matches!(before, Phase::Up(_)));
        self.hot.retain(|&(other, _)| other != number);
    }

    /// There is a proven connection of a link.
    pub(crate) fn up(&mut self, number: u32, mut socket: TcpStream) {
        let configured = self.configure(number, &mut socket);
        let remote = match configured.and_then(|()| socket.peer_addr()) {
            Ok(remote) => remote,
            // The connection broke just now, and the other side relies on it already.
            Err(error) => return self.give_up(number, format!("the connection broke at once: {error}")),
        };
        let link = self.links.at(number);
        link.phase = Phase::Up(Box::new(Stream::new(socket, remote)));
        link.failing = None;
        if let Some(connection) = link.pending.take() {
            self.drop_pending(connection);
        }
        self.connected += 1;
        self.mark_ready(number);
        self.make_hot(number);
    }

    fn configure(&mut self, number: u32, socket: &mut TcpStream) -> std::io::Result<()> {
        let token = Token(number as usize);
        self.poll.registry().reregister(socket, token, Interest::READABLE | Interest::WRITABLE)?;
        socket.set_nodelay(true)?;
        keep_alive(socket)
    }

    /// Starts attempts that are due, ends those that took too long; gives the number of both.
    pub(crate) fn run_timers(&mut self) -> usize {
        if self.connecting.is_empty() && self.pending_connections.deadline().is_none() {
            return 0;
        }
        let now = Instant::now();
        self.pending_timers(now);
        let mut work = 0;
        for number in std::mem::take(&mut self.connecting) {
            match &self.links.at(number).phase {
                Phase::AwaitRetry(at) if *at <= now => {
                    work += 1;
                    self.dial(number);
                }
                Phase::Dialing(dial) if dial.opening.is_some() && now >= dial.since + CONNECT => {
                    work += 1;
                    self.failed(number, &Failure::Io(std::io::ErrorKind::TimedOut.into()));
                    self.connecting.push(number);
                }
                Phase::AwaitRetry(_) | Phase::Dialing(_) => self.connecting.push(number),
                Phase::Idle | Phase::Up(_) | Phase::Left | Phase::Down => {}
            }
        }
        work
    }

    pub(crate) fn earliest_timer(&self) -> Option<Instant> {
        let of_link = |&number: &u32| match self.links.phase(number) {
            Phase::AwaitRetry(at) => Some(*at),
            Phase::Dialing(dial) if dial.opening.is_some() => Some(dial.since + CONNECT),
            _ => None,
        };
        self.connecting.iter().filter_map(of_link).chain(self.pending_connections.deadline()).min()
    }
}

/// Has the system probe the peer's host (a host that vanishes sends nothing), also during the handshake.
fn keep_alive(socket: &TcpStream) -> std::io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(30))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(socket, 6)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use banyan_transport::{Class, Fabric, Head, Peer, Port};

    use super::*;

    #[test]
    fn a_host_that_vanishes_during_the_handshake_is_noticed() {
        let new = |me| Tcp::new(Peer(me), 2, 7, [1; 32], Default::default()).expect("a fabric");
        let ((mut dialer, _), (_silent, business_card)) = (new(0), new(1));
        dialer.connect(Peer(1), &business_card).expect("a good card");
        let head = Head { class: Class::P2p, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };
        assert!(dialer.send_short(Peer(1), &head, &[]).is_err(), "nobody has answered");
        let Phase::Dialing(dial) = &dialer.links.at(1).phase else { panic!("it is dialing") };
        assert!(sockopt::socket_keepalive(&dial.talk.socket).expect("the option"));
        assert_eq!(sockopt::tcp_keepidle(&dial.talk.socket).expect("the option"), Duration::from_secs(30));
    }
}

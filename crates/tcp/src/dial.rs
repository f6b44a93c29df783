//! Connecting to peers: attempts, their failures, and what happens when one succeeds.

use std::time::{Duration, Instant};

use banyan_transport::Peer;
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
    /// Starts an attempt to reach a peer whose business card is known.
    pub(crate) fn dial(&mut self, peer: Peer) {
        if !self.connecting.contains(&peer.0) {
            self.connecting.push(peer.0);
        }
        match self.begin(peer) {
            Ok(dial) => self.link(peer).phase = Phase::Dialing(Box::new(dial)),
            Err(failure) => {
                if matches!(&failure, Failure::Io(error) if no_descriptors(error)) {
                    self.free_descriptor();
                }
                self.failed(peer, &failure);
            }
        }
    }

    /// Opens the socket of an attempt; the opening is sent when the socket is connected.
    fn begin(&mut self, peer: Peer) -> Result<Dial, Failure> {
        let hello = Hello { job: self.job, from: self.me, to: peer, answer: Answer::Accept };
        let address = self.link(peer).address().ok_or(Failure::Closed)?;
        let mut socket = TcpStream::connect(address)?;
        keep_alive(&socket)?;
        let token = Token(peer.0 as usize);
        self.poll.registry().register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
        let (handshake, opening) = Handshake::connect(&self.secret, hello)?;
        Ok(Dial { talk: Talk::new(socket, handshake), since: Instant::now(), opening: Some(opening) })
    }

    /// Advances an attempt as far as possible; gives the number of steps.
    pub(crate) fn drive_dial(&mut self, peer: Peer) -> usize {
        let mut work = 0;
        loop {
            match self.step(peer) {
                Ok(true) => work += 1,
                Ok(false) => return work,
                Err(failure) => {
                    self.failed(peer, &failure);
                    return work + 1;
                }
            }
        }
    }

    /// One step of an attempt; false if there is nothing more to do now.
    fn step(&mut self, peer: Peer) -> Result<bool, Failure> {
        let me = self.me;
        let link = self.link(peer);
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
                self.up(peer, dial.talk.socket);
                Ok(true)
            }
            Some(Heard::Asked(_) | Heard::Proven(..)) => Err(Failure::Closed),
        }
    }

    /// An attempt failed: schedules another one, or gives the peer up when attempts have failed for `options.patience`.
    fn failed(&mut self, peer: Peer, failure: &Failure) {
        let patience = self.options.patience;
        let now = Instant::now();
        let link = self.link(peer);
        let address = link.address();
        if let Some(at) = link.next_try(now, patience) {
            link.phase = Phase::AwaitRetry(at);
            return;
        }
        link.phase = Phase::Down;
        let target = address.map_or("no address".to_owned(), |address| address.to_string());
        let hint = match failure {
            Failure::Io(error) if no_descriptors(error) => ": allow more descriptors (ulimit -n)",
            _ => "",
        };
        let cause = format!("{target}: not reached within {} s: {failure}{hint}", patience.as_secs_f32());
        self.lost.push((peer, cause));
    }

    /// There is a proven connection to `peer`.
    pub(crate) fn up(&mut self, peer: Peer, mut socket: TcpStream) {
        let configured = self.configure(peer, &mut socket);
        let remote = match configured.and_then(|()| socket.peer_addr()) {
            Ok(remote) => remote,
            // The connection broke just now, and the other side relies on it already.
            Err(error) => {
                self.link(peer).phase = Phase::Down;
                self.lost.push((peer, format!("the connection broke at once: {error}")));
                return;
            }
        };
        let link = self.link(peer);
        link.phase = Phase::Up(Box::new(Stream::new(socket, remote)));
        link.failing = None;
        if let Some(connection) = link.pending.take() {
            self.drop_pending(connection);
        }
        self.connected += 1;
        self.mark_ready(peer.0);
        self.make_hot(peer.0);
    }

    fn configure(&mut self, peer: Peer, socket: &mut TcpStream) -> std::io::Result<()> {
        let token = Token(peer.0 as usize);
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
        for peer in std::mem::take(&mut self.connecting) {
            match &self.link(Peer(peer)).phase {
                Phase::AwaitRetry(at) if *at <= now => {
                    work += 1;
                    self.dial(Peer(peer));
                }
                Phase::Dialing(dial) if dial.opening.is_some() && now >= dial.since + CONNECT => {
                    work += 1;
                    self.failed(Peer(peer), &Failure::Io(std::io::ErrorKind::TimedOut.into()));
                    self.connecting.push(peer);
                }
                Phase::AwaitRetry(_) | Phase::Dialing(_) => self.connecting.push(peer),
                Phase::Idle | Phase::Up(_) | Phase::Down => {}
            }
        }
        work
    }

    pub(crate) fn earliest_timer(&self) -> Option<Instant> {
        let of_peer = |&peer: &u32| match &self.links.get(peer as usize)?.as_ref()?.phase {
            Phase::AwaitRetry(at) => Some(*at),
            Phase::Dialing(dial) if dial.opening.is_some() => Some(dial.since + CONNECT),
            _ => None,
        };
        self.connecting.iter().filter_map(of_peer).chain(self.pending_connections.deadline()).min()
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
    use banyan_transport::{Class, Fabric, Head, Port};

    use super::*;

    #[test]
    fn a_host_that_vanishes_during_the_handshake_is_noticed() {
        let new = |me| Tcp::new(Peer(me), 2, 7, [1; 32], Default::default()).expect("a fabric");
        let ((mut dialer, _), (_silent, business_card)) = (new(0), new(1));
        dialer.connect(Peer(1), &business_card).expect("a good card");
        let head = Head { class: Class::P2p, kind: 0, aux: 0, a: 0, b: 0, ctx: 0 };
        assert!(dialer.send_short(Peer(1), &head, &[]).is_err(), "nobody has answered");
        let Phase::Dialing(dial) = &dialer.link(Peer(1)).phase else { panic!("it is dialing") };
        assert!(sockopt::socket_keepalive(&dial.talk.socket).expect("the option"));
        assert_eq!(sockopt::tcp_keepidle(&dial.talk.socket).expect("the option"), Duration::from_secs(30));
    }
}

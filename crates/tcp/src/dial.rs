//! Connecting to peers: attempts, their failures, and what happens when one succeeds.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use banyan_transport::Peer;
use mio::net::TcpStream;
use mio::{Interest, Token};
use rustix::net::sockopt;

use crate::fabric::Tcp;
use crate::handshake::{Answer, Features, Handshake, Heard, Hello, Session};
use crate::link::{Attempt, Phase, SHORTEST};
use crate::pending_connections::no_descriptors;
use crate::stream::{Break, Stream};
use crate::talk::{Failure, Talk};

/// How long to wait for the peer's own connection after it refused ours as a duplicate.
const REFUSED: Duration = Duration::from_millis(20);

/// Once all addresses were tried, those that failed are tried again beside those that are silent, which may be other processes: after
/// [`Options::stagger`](crate::Options::stagger), doubled with each round, but no more often than this.
const DOUBLED: u32 = 4;

/// How long the connections of a peer that has ended may still bring what it sent: where its host is gone, too, they never end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long attempts fail before it is said that the peer is not reached: it may not listen yet, or listen again soon.
const UNREACHED: Duration = Duration::from_millis(100);

impl Tcp {
    /// Starts to connect a link, where the peer's business card is known.
    pub(crate) fn dial(&mut self, number: u32) {
        self.connect_later(number);
        let link = self.links.at(number);
        link.attempt += 1;
        link.phase = Phase::Dialing(Box::default());
        self.try_next(number);
    }

    /// Tries the next address at which an attempt can begin.
    fn try_next(&mut self, number: u32) {
        loop {
            let link = self.links.at(number);
            let Phase::Dialing(dial) = &mut link.phase else { return };
            let Some(address) = dial.take_next(&link.addresses) else { break };
            match self.begin(number, address) {
                Ok(attempt) => {
                    let Phase::Dialing(dial) = &mut self.links.at(number).phase else { return };
                    dial.next_at = Some(attempt.since + self.options.stagger);
                    return dial.attempts.push(attempt);
                }
                Err(failure) => self.note(number, address, &failure),
            }
        }
        let Phase::Dialing(dial) = &mut self.links.at(number).phase else { return };
        if dial.attempts.is_empty() {
            return self.failed(number);
        }
        dial.next = 0;
        dial.next_at =
            Some(Instant::now() + self.options.stagger.max(REFUSED) * (1 << dial.rounds.min(DOUBLED)));
        dial.rounds += 1;
        // Addresses that accept and say nothing may be those of other processes.
        let (peer, _) = self.links.of(number);
        self.note_unreached(peer);
    }

    /// Opens the socket of an attempt; the opening is sent when the socket is connected.
    fn begin(&mut self, number: u32, address: SocketAddr) -> Result<Attempt, Failure> {
        let (peer, stream) = self.links.of(number);
        let (now, patience, features) =
            (Instant::now(), self.options.patience, self.options.features(address.ip()));
        let link = self.links.at(number);
        let (attempt, until) = (link.attempt, now + link.time_to_connect(now, patience));
        let (job, from, answer) = (self.job, self.me, Answer::Accept);
        let hello = Hello { job, from, to: peer, stream, attempt, features, answer };
        let mut socket = TcpStream::connect(address)?;
        watch(&socket, patience, features, true)?;
        let token = Token(number as usize);
        self.poll.registry().register(&mut socket, token, Interest::READABLE | Interest::WRITABLE)?;
        let (handshake, opening) = Handshake::connect(&self.secret, hello)?;
        let talk = Talk::new(socket, handshake);
        Ok(Attempt { address, talk, since: now, until, opening: Some(opening) })
    }

    /// Advances the attempts of a link as far as possible; gives the number of steps.
    pub(crate) fn drive_dial(&mut self, number: u32) -> usize {
        let (mut work, mut at) = (0, 0);
        while let Phase::Dialing(dial) = &self.links.at(number).phase
            && at < dial.attempts.len()
        {
            match self.step(number, at) {
                Ok(true) => work += 1,
                Ok(false) => at += 1,
                Err(failure) => {
                    work += 1;
                    self.attempt_failed(number, at, &failure);
                }
            }
        }
        work
    }

    /// One step of an attempt; false if there is nothing more to do now.
    fn step(&mut self, number: u32, at: usize) -> Result<bool, Failure> {
        let (me, (peer, _)) = (self.me, self.links.of(number));
        let link = self.links.at(number);
        let Phase::Dialing(dial) = &mut link.phase else { return Ok(false) };
        let Some(attempt) = dial.attempts.get_mut(at) else { return Ok(false) };
        if let Some(opening) = &attempt.opening {
            if let Some(error) = attempt.talk.socket.take_error()? {
                return Err(error.into());
            }
            if attempt.talk.socket.peer_addr().is_err() {
                return Ok(false);
            }
            attempt.talk.say(opening)?;
            attempt.opening = None;
            return Ok(true);
        }
        match attempt.talk.hear()? {
            None => Ok(false),
            // Meanwhile this process has accepted a connection of the lower peer: that connection is kept.
            Some(Heard::Accepted) if !link.pending.is_empty() && peer < me => {
                link.phase = Phase::AwaitRetry(Instant::now() + REFUSED);
                Ok(true)
            }
            Some(Heard::Accepted) => {
                let received = link.suspended.as_ref().map_or(0, |stream| stream.received());
                let proof = attempt.talk.handshake.prove(received)?;
                attempt.talk.say(&proof)?;
                let kept = dial.attempts.swap_remove(at);
                (dial.attempts, dial.next_at) = (vec![kept], None);
                Ok(true)
            }
            Some(Heard::Refused) => {
                link.phase = Phase::AwaitRetry(Instant::now() + REFUSED);
                Ok(true)
            }
            Some(Heard::Confirmed(session)) => {
                let socket = dial.attempts.swap_remove(at).talk.socket;
                (link.phase, link.connected_by) = (Phase::Idle, link.attempt);
                self.up(number, socket, session);
                Ok(true)
            }
            Some(Heard::Asked(_) | Heard::Proven(..)) => Err(Failure::Closed),
        }
    }

    /// An attempt failed: the next one begins at once.
    fn attempt_failed(&mut self, number: u32, at: usize, failure: &Failure) {
        let Phase::Dialing(dial) = &mut self.links.at(number).phase else { return };
        let address = dial.attempts.remove(at).address;
        // An address that has accepted may be the peer's, which computes. Without one there is an end, though as a rule some
        // attempt is under way.
        let accepted = dial.attempts.iter().any(|one| one.opening.is_none());
        self.note(number, address, failure);
        let (now, patience) = (Instant::now(), self.options.patience);
        let link = self.links.at(number);
        let (since, _) = *link.failing.get_or_insert((now, SHORTEST));
        let all_failed = !accepted && link.said.len() >= link.addresses.len();
        match all_failed && now >= since + patience {
            true => self.failed(number),
            false => self.try_next(number),
        }
    }

    /// Keeps what an attempt came to, for the error should all fail.
    fn note(&mut self, number: u32, address: SocketAddr, failure: &Failure) {
        let mut what = failure.to_string();
        if matches!(failure, Failure::Io(error) if no_descriptors(error)) {
            self.free_descriptor();
            what.push_str(": allow more descriptors (ulimit -n)");
        }
        let said = &mut self.links.at(number).said;
        match said.iter_mut().find(|(other, _)| *other == address) {
            Some(entry) => entry.1 = what,
            None => said.push((address, what)),
        }
    }

    /// All attempts failed: schedules others, or gives the peer up when they have failed for `options.patience`.
    fn failed(&mut self, number: u32) {
        let (peer, _) = self.links.of(number);
        if self.links.to(peer).any(|other| matches!(self.links.phase(other), Phase::Left)) {
            return self.over(number, "it has left the job".to_owned(), true);
        }
        let patience = self.options.patience;
        let link = self.links.at(number);
        let now = Instant::now();
        if let Some(at) = link.next_try(now, patience) {
            link.phase = Phase::AwaitRetry(at);
            if link.failing.is_some_and(|(since, _)| now >= since + UNREACHED) {
                self.note_unreached(peer);
            }
            return;
        }
        let tried: Vec<_> = link.said.iter().map(|(address, what)| format!("{address} ({what})")).collect();
        let (patience, tried) = (patience.as_secs_f32(), tried.join(", "));
        let cause = match link.suspended {
            None => format!("not reached within {patience} s at {tried}"),
            Some(_) => {
                let cause = &link.cause;
                format!(
                    "the connection broke ({cause}), and none was made again within {patience} s at {tried}"
                )
            }
        };
        self.give_up(number, cause);
    }

    /// The connection of a link broke. A resumable stream gets another one, unless the peer has left. Of the two sides, each of which
    /// may connect again, the higher peer waits for the other one at first.
    pub(crate) fn broke(&mut self, number: u32, why: Break) {
        let (peer, _) = self.links.of(number);
        let ended = self.links.at(self.links.number(peer, 0)).ended.clone();
        let Some(stream) = self.links.stream(number) else { return };
        if let Some(cause) = ended {
            return self.over(number, cause, true);
        }
        if !stream.resumable() || stream.has_left() {
            let farewell = stream.has_left();
            return self.over(number, why.cause, farewell);
        }
        let now = Instant::now();
        let silence = if why.silent { self.options.patience / 2 } else { Duration::ZERO };
        self.suspend(number);
        let pause = if self.me < peer { Duration::ZERO } else { REFUSED };
        let link = self.links.at(number);
        link.cause = why.cause;
        link.failing = Some((now.checked_sub(silence).unwrap_or(now), SHORTEST));
        link.phase = Phase::AwaitRetry(now + pause);
        if link.addresses.is_empty() {
            self.want(peer);
        }
        self.connect_later(number);
    }

    /// Has the timers look after a link without a connection.
    fn connect_later(&mut self, number: u32) {
        if !self.connecting.contains(&number) {
            self.connecting.push(number);
        }
    }

    /// Takes the connection away from a stream that outlives it.
    pub(crate) fn suspend(&mut self, number: u32) {
        let link = self.links.at(number);
        if let Phase::Up(mut stream) = std::mem::take(&mut link.phase) {
            stream.suspend();
            link.suspended = Some(stream);
            self.connected -= 1;
            self.hot.retain(|&(other, _)| other != number);
        }
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

    /// The launcher says that a peer has ended. What it has sent is on its connections, which end by themselves.
    pub(crate) fn peer_ended(&mut self, peer: Peer, cause: &str) {
        let first = self.links.number(peer, 0);
        if matches!(self.links.phase(first), Phase::Down) {
            return;
        }
        self.links.at(first).ended = Some(cause.to_owned());
        match self.links.to(peer).any(|number| matches!(self.links.phase(number), Phase::Up(_))) {
            true => self.dying.push((peer, Instant::now() + LAST_WORDS)),
            false => self.give_up(first, cause.to_owned()),
        }
    }

    /// Gives peers up that have ended a while ago; gives their number.
    fn bury(&mut self, now: Instant) -> usize {
        let mut due = Vec::new();
        self.dying.retain(|&(peer, at)| {
            due.extend((at <= now).then_some(peer));
            at > now
        });
        let mut given_up = 0;
        for peer in due {
            let first = self.links.number(peer, 0);
            let cause = self.links.at(first).ended.clone().unwrap_or_default();
            if !matches!(self.links.phase(first), Phase::Down) {
                self.give_up(first, cause);
                given_up += 1;
            }
        }
        given_up
    }

    /// Closes the connection of a link, if there is one.
    pub(crate) fn disconnect(&mut self, number: u32, phase: Phase) {
        let link = self.links.at(number);
        link.suspended = None;
        let before = std::mem::replace(&mut link.phase, phase);
        self.connected -= usize::from(matches!(before, Phase::Up(_)));
        self.hot.retain(|&(other, _)| other != number);
    }

    /// There is a proven connection of a link.
    pub(crate) fn up(&mut self, number: u32, mut socket: TcpStream, session: Session) {
        let configured = self.configure(number, &mut socket, session.features);
        let remote = match configured.and_then(|()| socket.peer_addr()) {
            Ok(remote) => remote,
            // The connection broke just now, and the other side relies on it already.
            Err(_) if session.features.has(Features::RESUME) => {
                self.connect_later(number);
                return self.failed(number);
            }
            Err(error) => return self.give_up(number, format!("the connection broke at once: {error}")),
        };
        let (pool, released) = (&mut self.pool, &mut self.released);
        let link = self.links.at(number);
        let stream = match link.suspended.take() {
            Some(mut stream) => stream
                .resume(socket, remote, session, pool, |token| released.push(token))
                .map(|()| stream)
                .ok(),
            None if session.received > 0 => None,
            None => Some(Box::new(Stream::new(socket, remote, session))),
        };
        let Some(stream) = stream else {
            return self.give_up(number, format!("{remote} goes on with another stream than ours"));
        };
        link.phase = Phase::Up(stream);
        link.failing = None;
        link.said.clear();
        for connection in std::mem::take(&mut link.pending) {
            self.drop_pending(connection);
        }
        let (peer, _) = self.links.of(number);
        let first = self.links.number(peer, 0);
        self.links.at(first).reported = false;
        self.connected += 1;
        self.mark_ready(number);
        self.mark_backlog(number);
        self.make_hot(number);
    }

    fn configure(&mut self, number: u32, socket: &mut TcpStream, features: Features) -> std::io::Result<()> {
        let token = Token(number as usize);
        self.poll.registry().reregister(socket, token, Interest::READABLE | Interest::WRITABLE)?;
        socket.set_nodelay(true)?;
        watch(socket, self.options.patience, features, false)
    }

    /// True if connections are about to come about, or to end.
    pub(crate) fn has_timers(&self) -> bool {
        !self.connecting.is_empty() || !self.dying.is_empty() || self.pending_connections.deadline().is_some()
    }

    /// Starts attempts that are due, ends those that took too long; gives the number of both.
    pub(crate) fn run_timers(&mut self) -> usize {
        if !self.has_timers() {
            return 0;
        }
        let now = Instant::now();
        self.pending_timers(now);
        let mut work = self.bury(now);
        for number in std::mem::take(&mut self.connecting) {
            match &self.links.at(number).phase {
                Phase::AwaitRetry(at) if *at <= now => {
                    work += 1;
                    self.dial(number);
                }
                Phase::Dialing(_) => work += self.dial_timers(number, now),
                _ => {}
            }
            let connecting = matches!(self.links.phase(number), Phase::AwaitRetry(_) | Phase::Dialing(_));
            if connecting && !self.connecting.contains(&number) {
                self.connecting.push(number);
            }
        }
        work
    }

    /// Ends attempts of a link that took too long, and begins the one that is due; gives the number of both.
    fn dial_timers(&mut self, number: u32, now: Instant) -> usize {
        let mut work = 0;
        while let Phase::Dialing(dial) = &self.links.at(number).phase {
            let late = |one: &Attempt| one.opening.is_some() && now >= one.until;
            if let Some(at) = dial.attempts.iter().position(late) {
                self.attempt_failed(number, at, &Failure::Io(std::io::ErrorKind::TimedOut.into()));
            } else if dial.next_at.is_some_and(|at| at <= now) {
                self.try_next(number);
            } else {
                break;
            }
            work += 1;
        }
        work
    }

    pub(crate) fn earliest_timer(&self) -> Option<Instant> {
        let of_link = |&number: &u32| match self.links.phase(number) {
            Phase::AwaitRetry(at) => Some(*at),
            Phase::Dialing(dial) => dial.deadline(),
            _ => None,
        };
        let dying = self.dying.iter().map(|&(_, at)| at);
        let connecting = self.connecting.iter().filter_map(of_link);
        connecting.chain(dying).chain(self.pending_connections.deadline()).min()
    }
}

/// Has the system probe the peer's host within the patience: a host that vanishes sends nothing. A limit on how long what is sent may
/// go unacknowledged (TCP_USER_TIMEOUT) holds while a connection is `proving`. Later on it also ends connections to peers that
/// live, but read nothing for so long while they compute: that does no harm where the stream goes on with another connection, which
/// half of the patience is left for.
fn watch(socket: &TcpStream, patience: Duration, features: Features, proving: bool) -> std::io::Result<()> {
    let part = Duration::from_secs((patience.as_secs() / 4).max(1));
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, part)?;
    sockopt::set_tcp_keepintvl(socket, part)?;
    sockopt::set_tcp_keepcnt(socket, 3)?;
    let limit = match features.has(Features::RESUME) {
        true => (patience / 2).max(Duration::from_secs(1)),
        false if proving => patience,
        false => Duration::ZERO,
    };
    sockopt::set_tcp_user_timeout(socket, limit.as_millis().try_into().unwrap_or(u32::MAX))?;
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
        let socket = &dial.attempts[0].talk.socket;
        assert!(sockopt::socket_keepalive(socket).expect("the option"));
        let idle = sockopt::tcp_keepidle(socket).expect("the option");
        let between = sockopt::tcp_keepintvl(socket).expect("the option");
        let probes = sockopt::tcp_keepcnt(socket).expect("the option");
        assert!(idle + between * probes <= dialer.options.patience);
        let limit = sockopt::tcp_user_timeout(socket).expect("the option");
        assert_eq!(u128::from(limit), dialer.options.patience.as_millis());
    }
}

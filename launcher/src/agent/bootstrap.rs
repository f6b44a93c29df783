//! The host part's side of the bootstrap sockets: requests of ranks and the replies to them.

use std::os::fd::AsFd;
use std::time::Instant;

use banyan_pmi::{MAX_BUSINESS_CARD, MAX_MEASURED, Reply, Request, VERSION, WireError};
use banyan_topo::{Kept, KnownWays};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use super::Token;
use super::host::HostPart;
use crate::descendants;
use crate::frames::{Event, Order};
use crate::ranks::RankChannel;
use crate::tree::{Cards, Side};
use crate::verdict::Phase;

/// A rank's requests wait while more than this many bytes of replies to it are unsent.
pub(super) const MAX_UNREAD: usize = 1 << 20;

impl HostPart {
    /// Handles a rank's requests, and sends replies that its socket could not take before.
    pub(super) fn serve(&mut self, at: usize, flags: EventFlags) {
        let channel = self.ranks[at].channel.as_mut().filter(|_| flags.contains(EventFlags::OUT));
        let broken = channel.is_some_and(|channel| channel.flush().is_err());
        // Requests that the rank sent before its end may still be there.
        self.read_requests(at);
        match broken {
            true => self.close_channel(at),
            false => self.watch_channel(at),
        }
    }

    pub(super) fn read_requests(&mut self, at: usize) {
        loop {
            let Some(channel) = &mut self.ranks[at].channel else { return };
            if channel.unsent() > MAX_UNREAD {
                return;
            }
            match channel.receive() {
                Ok(None) => return,
                Ok(Some(request)) => self.request(at, request),
                Err(WireError::Closed) => return self.close_channel(at),
                Err(why) => {
                    self.close_channel(at);
                    return self.broken(at, why.to_string());
                }
            }
        }
    }

    /// A rank has broken the protocol.
    pub(super) fn broken(&mut self, at: usize, why: String) {
        self.tell(at, Event::Broken { rank: self.plan.ranks[at], why });
    }

    pub(super) fn request(&mut self, at: usize, request: Request) {
        let rank = self.plan.ranks[at];
        match &request {
            Request::Hello { version, pid } => return self.hello(at, *version, *pid),
            Request::Publish { business_card } if business_card.len() > MAX_BUSINESS_CARD => {
                return self.broken(at, format!("a business card of {} bytes", business_card.len()));
            }
            Request::Lookup { rank: wanted } | Request::Unreached { rank: wanted }
                if *wanted >= self.plan.size =>
            {
                return self.broken(at, format!("looks up rank {wanted}, which does not exist"));
            }
            Request::Measured { ways } if ways.len() > MAX_MEASURED => {
                return self.broken(at, format!("{} bytes of what it has measured", ways.len()));
            }
            Request::Ready => self.ranks[at].phase = Phase::Running,
            Request::Finalized => self.ranks[at].phase = Phase::Finalized,
            Request::Publish { .. }
            | Request::Lookup { .. }
            | Request::Unreached { .. }
            | Request::Measured { .. }
            | Request::Notice { .. }
            | Request::Abort { .. } => {}
        }
        match request {
            Request::Publish { business_card } => {
                self.cards(Side::Rank(rank), Cards::Card { rank, business_card });
            }
            Request::Lookup { rank: wanted } => {
                self.cards(Side::Rank(rank), Cards::Lookup { rank: wanted });
            }
            // What is kept is of mpirun's own machine.
            Request::Measured { .. } if self.is_remote => {}
            Request::Measured { ways } => {
                KnownWays::parse(&ways).rows().iter().for_each(|row| self.measured.add(*row));
            }
            Request::Notice { .. } | Request::Abort { .. } => self.tell(at, Event::Request { rank, request }),
            _ => self.events.push_back(Event::Request { rank, request }),
        }
    }

    /// Keeps what ranks have measured for the next job. Nothing about that is an error of this one.
    pub(super) fn keep_measured(&mut self) {
        if !self.measured.rows().is_empty() {
            let _ = Kept::here().learn(&self.measured);
        }
    }

    /// Handles what a rank of this host or another agent says of business cards.
    pub(super) fn cards(&mut self, from: Side, said: Cards) {
        for (to, said) in self.links.cards(from, said) {
            match (to, said) {
                (Side::Child(child), said) => self.links.tell(&self.epoll, child, &Order::Cards(said)),
                (Side::Rank(to), Cards::Card { rank, business_card }) => {
                    if let Some(at) = self.plan.index_of(to) {
                        self.send(at, &Reply::BusinessCard { rank, business_card });
                    }
                }
                (Side::Parent, said) => self.events.push_back(Event::Cards(said)),
                (Side::Rank(_), Cards::Lookup { .. }) => {} // ranks are not asked
            }
        }
    }

    fn hello(&mut self, at: usize, version: u32, pid: u32) {
        let rank = self.plan.ranks[at];
        if let Some((other, _)) = self.ranks[at].joined {
            let state =
                if self.ranks[at].phase == Phase::Finalized { "has finished MPI" } else { "is in MPI" };
            let reason = format!(
                "rank {rank} of the job has been taken by process {other}, which {state}: \
                 each rank that mpirun starts can be one MPI program only"
            );
            self.send(at, &Reply::Refused { pid, reason });
            return;
        }
        let sender = self.ranks[at].channel.as_ref().and_then(RankChannel::sender);
        self.note_joined(at, sender, pid);
        if version != VERSION {
            let why =
                format!("its library speaks version {version} of the bootstrap protocol, mpirun {VERSION}");
            return self.broken(at, why);
        }
        self.ranks[at].phase = Phase::InInit;
        self.events.push_back(Event::Joined { rank });
    }

    /// Records the process that joins as a rank: `sender`, as this process knows it, or `pid`, as it knows itself.
    pub(super) fn note_joined(&mut self, at: usize, sender: Option<Pid>, pid: u32) {
        let pid = sender.map_or(pid, |joined| joined.as_raw_pid().cast_unsigned());
        self.ranks[at].joined = Some((pid, None));
        if let Some(joined) = sender.filter(|_| sender != self.ranks[at].started_as) {
            self.watch_joined(at, joined);
        }
    }

    /// Watches for the end of `joined`, a descendant of the process that was started. It may have ended already.
    fn watch_joined(&mut self, at: usize, joined: Pid) {
        match pidfd_open(joined, PidfdFlags::empty()) {
            Ok(pidfd) if descendants::descends(joined, getpid()) => {
                let _ = epoll::add(&self.epoll, &pidfd, Token::Joined(at).data(), EventFlags::IN);
                self.ranks[at].joined = Some((joined.as_raw_pid().cast_unsigned(), Some(pidfd)));
            }
            // All processes of the job descend from this one, even if their parents have ended. So `joined` has ended, and
            // another process has its pid now.
            Ok(_) | Err(Errno::SRCH) => self.ranks[at].joined_gone = Some(Instant::now()),
            Err(_) => {} // the system refuses pidfds
        }
    }

    pub(super) fn send(&mut self, at: usize, reply: &Reply) {
        let Some(channel) = &mut self.ranks[at].channel else { return };
        // If the rank is gone, reading from its socket shows that, after its last requests.
        let _ = channel.send(reply);
        self.watch_channel(at);
    }

    /// Has epoll watch a rank's channel: for requests, for room for replies, or for both.
    fn watch_channel(&self, at: usize) {
        let Some(channel) = &self.ranks[at].channel else { return };
        self.watch(channel, channel.unsent(), Token::Channel(at));
    }

    /// Has epoll watch a rank's socket to which so many bytes are unsent.
    pub(super) fn watch(&self, socket: impl AsFd, unsent: usize, token: Token) {
        let flags = match unsent {
            0 => EventFlags::IN,
            1..=MAX_UNREAD => EventFlags::IN | EventFlags::OUT,
            _ => EventFlags::OUT,
        };
        let _ = epoll::modify(&self.epoll, socket, token.data(), flags);
    }

    fn close_channel(&mut self, at: usize) {
        if let Some(channel) = self.ranks[at].channel.take() {
            let _ = epoll::delete(&self.epoll, &channel);
        }
    }

    /// The process that joined has ended. The process that mpirun started, a wrapper, gets [`super::WRAPPER_TIME`] to end.
    pub(super) fn joined_ended(&mut self, at: usize) {
        if let Some((_, pidfd)) = &mut self.ranks[at].joined
            && let Some(pidfd) = pidfd.take()
        {
            let _ = epoll::delete(&self.epoll, &pidfd);
            self.read_requests(at);
            self.read_pmi(at);
            self.ranks[at].joined_gone = Some(Instant::now());
        }
    }
}

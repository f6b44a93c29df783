//! The agent's side of the bootstrap sockets: requests of ranks and the replies to them.

use std::time::Instant;

use banyan_pmi::{MAX_BUSINESS_CARD, Reply, Request, VERSION, WireError};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use super::{Agent, Token};
use crate::descendants;
use crate::ranks::{Rank, RankChannel};
use crate::verdict::{End, Failure, Phase};

/// A rank's requests wait while more than this many bytes of replies to it are unsent.
const MAX_UNREAD: usize = 1 << 20;

impl Agent {
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
                    self.fail(at as u32, Failure::Protocol(why.to_string()));
                    return;
                }
            }
        }
    }

    fn request(&mut self, at: usize, request: Request) {
        let rank = at as u32;
        match request {
            Request::Hello { version, pid } => self.hello(at, version, pid),
            Request::Publish { business_card } if business_card.len() > MAX_BUSINESS_CARD => {
                self.fail(
                    rank,
                    Failure::Protocol(format!("a business card of {} bytes", business_card.len())),
                );
            }
            Request::Publish { business_card } => {
                for asker in self.kvs.publish(rank, business_card) {
                    self.send_business_card(asker, rank);
                }
            }
            Request::Lookup { rank: wanted } => {
                match self.kvs.look_up(rank, wanted).map(|business_card| business_card.is_some()) {
                    Some(true) => self.send_business_card(rank, wanted),
                    Some(false) => {}
                    None => self.fail(
                        rank,
                        Failure::Protocol(format!("looks up rank {wanted}, which does not exist")),
                    ),
                }
            }
            Request::Ready => self.ranks[at].phase = Phase::Running,
            Request::Finalized => self.ranks[at].phase = Phase::Finalized,
            Request::Notice { text } => self.notice(rank, text),
            Request::Abort { code, message } => self.hold(rank, Failure::Abort { code, message }),
        }
    }

    fn hello(&mut self, at: usize, version: u32, pid: u32) {
        if let Some((other, _)) = self.ranks[at].joined {
            let state =
                if self.ranks[at].phase == Phase::Finalized { "has finished MPI" } else { "is in MPI" };
            let reason = format!(
                "rank {at} of the job has been taken by process {other}, which {state}: \
                 each rank that mpirun starts can be one MPI program only"
            );
            self.send(at, &Reply::Refused { pid, reason });
            return;
        }
        let sender = self.ranks[at].channel.as_ref().and_then(RankChannel::sender);
        self.ranks[at].joined =
            Some((sender.map_or(pid, |joined| joined.as_raw_pid().cast_unsigned()), None));
        if let Some(joined) = sender.filter(|_| sender != self.ranks[at].started_as) {
            self.watch_joined(at, joined);
        }
        if version != VERSION {
            let why =
                format!("its library speaks version {version} of the bootstrap protocol, mpirun {VERSION}");
            return self.fail(at as u32, Failure::Protocol(why));
        }
        self.ranks[at].phase = Phase::InInit;
        let left_without_init =
            |rank: &Rank| rank.phase == Phase::Outside && rank.ended == Some(End::Code(0));
        if let Some(gone) = self.ranks.iter().position(left_without_init) {
            self.fail(gone as u32, Failure::NoInit);
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

    fn send_business_card(&mut self, to: u32, of: u32) {
        if let Some(business_card) = self.kvs.business_card(of) {
            let reply = Reply::BusinessCard { rank: of, business_card: business_card.to_vec() };
            self.send(to as usize, &reply);
        }
    }

    fn send(&mut self, at: usize, reply: &Reply) {
        let Some(channel) = &mut self.ranks[at].channel else { return };
        // If the rank is gone, reading from its socket shows that, after its last requests.
        let _ = channel.send(reply);
        self.watch_channel(at);
    }

    /// Has epoll watch a rank's channel: for requests, for room for replies, or for both.
    fn watch_channel(&self, at: usize) {
        let Some(channel) = &self.ranks[at].channel else { return };
        let flags = match channel.unsent() {
            0 => EventFlags::IN,
            1..=MAX_UNREAD => EventFlags::IN | EventFlags::OUT,
            _ => EventFlags::OUT,
        };
        let _ = epoll::modify(&self.epoll, channel, Token::Channel(at).data(), flags);
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
            self.ranks[at].joined_gone = Some(Instant::now());
        }
    }
}

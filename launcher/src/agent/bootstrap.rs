//! The agent's side of the bootstrap sockets: what ranks ask and announce.

use std::time::Instant;

use banyan_pmi::{MAX_CARD, Reply, Request, VERSION, WireError};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

use super::{Agent, Token};
use crate::descendants;
use crate::ranks::{Line, Rank};
use crate::verdict::{End, Failure, Phase};

/// A rank that has this much to read gets nothing more before it reads.
const MAX_UNREAD: usize = 1 << 20;

impl Agent {
    /// Handles what a rank sent, and sends what it could not take before.
    pub(super) fn serve(&mut self, at: usize, flags: EventFlags) {
        let line = self.ranks[at].line.as_mut().filter(|_| flags.contains(EventFlags::OUT));
        let cut = line.is_some_and(|line| line.flush().is_err());
        // Its last words may still be there.
        self.read_requests(at);
        match cut {
            true => self.hang_up(at),
            false => self.watch_line(at),
        }
    }

    pub(super) fn read_requests(&mut self, at: usize) {
        loop {
            let Some(line) = &mut self.ranks[at].line else { return };
            if line.unsent() > MAX_UNREAD {
                return;
            }
            match line.receive() {
                Ok(None) => return,
                Ok(Some(request)) => self.request(at, request),
                Err(WireError::Closed) => return self.hang_up(at),
                Err(why) => {
                    self.hang_up(at);
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
            Request::Publish { card } if card.len() > MAX_CARD => {
                self.fail(rank, Failure::Protocol(format!("a card of {} bytes", card.len())));
            }
            Request::Publish { card } => {
                for asker in self.board.publish(rank, card) {
                    self.send_card(asker, rank);
                }
            }
            Request::Lookup { rank: wanted } => {
                match self.board.look_up(rank, wanted).map(|card| card.is_some()) {
                    Some(true) => self.send_card(rank, wanted),
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
        let sender = self.ranks[at].line.as_ref().and_then(Line::sender);
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
        let absent = |rank: &Rank| rank.phase == Phase::Outside && rank.ended == Some(End::Code(0));
        if let Some(gone) = self.ranks.iter().position(absent) {
            self.fail(gone as u32, Failure::NoInit);
        }
    }

    /// Sees to it that the end of `joined`, a process below the one that was started, is noticed. It may be gone already.
    fn watch_joined(&mut self, at: usize, joined: Pid) {
        match pidfd_open(joined, PidfdFlags::empty()) {
            Ok(pidfd) if descendants::descends(joined, getpid()) => {
                let _ = epoll::add(&self.epoll, &pidfd, Token::Joined(at).data(), EventFlags::IN);
                self.ranks[at].joined = Some((joined.as_raw_pid().cast_unsigned(), Some(pidfd)));
            }
            // All processes of the job descend from this one, whoever their parents were: another has the number by now.
            Ok(_) | Err(Errno::SRCH) => self.ranks[at].joined_gone = Some(Instant::now()),
            Err(_) => {} // The system refuses to tell.
        }
    }

    fn send_card(&mut self, to: u32, of: u32) {
        if let Some(card) = self.board.card(of) {
            let reply = Reply::Card { rank: of, card: card.to_vec() };
            self.send(to as usize, &reply);
        }
    }

    fn send(&mut self, at: usize, reply: &Reply) {
        let Some(line) = &mut self.ranks[at].line else { return };
        // If the rank is gone, reading from it will tell, after its last words.
        let _ = line.send(reply);
        self.watch_line(at);
    }

    /// Asks epoll for what this line waits for.
    fn watch_line(&self, at: usize) {
        let Some(line) = &self.ranks[at].line else { return };
        let flags = match line.unsent() {
            0 => EventFlags::IN,
            1..=MAX_UNREAD => EventFlags::IN | EventFlags::OUT,
            _ => EventFlags::OUT,
        };
        let _ = epoll::modify(&self.epoll, line, Token::Line(at).data(), flags);
    }

    fn hang_up(&mut self, at: usize) {
        if let Some(line) = self.ranks[at].line.take() {
            let _ = epoll::delete(&self.epoll, &line);
        }
    }

    /// The process that joined, a child of what was started, is gone: the wrapper has a moment to end too.
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

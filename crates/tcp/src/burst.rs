//! [`Burst`] and [`Answer`]: small frames that are sent one after the other share packets.
//!
//! A packet costs both sides some microseconds, a write that the system only appends to what waits there already a
//! fraction of one. So a frame that follows others without a poll in between is left to Nagle's algorithm: it waits in
//! the system until what was sent before is acknowledged, then leaves with all that came meanwhile. The sender has no
//! part in that, so it may compute for as long as it likes. Its next poll ends the burst and has all that waits sent.
//!
//! Alone, that would stall: a receiver that talks back delays its acknowledgements, by up to 40 ms. So the frames of a
//! burst say that others may wait for them ([`frame::press`](crate::frame::press)), and the receiver acknowledges them
//! at the poll after, unless its reply did, but not more often than every [`PAUSE`]: with a packet for each frame and
//! one for its acknowledgement nothing would gather. The first of these frames still has a packet of its own: the last
//! packet sent is always one that says so. Frames that come alone are never part of this.

use std::time::{Duration, Instant};

use mio::net::TcpStream;
use rustix::net::sockopt;

use crate::frame::OVERHEAD;

/// A frame up to this size may begin a burst, bytes. Larger ones are worth a packet each.
const SMALL: usize = 16 * 1024 + OVERHEAD;

/// So many small frames between two polls are no burst yet.
const ALONE: u32 = 1;

/// Least time between two acknowledgements: what gathers meanwhile shares a packet.
const PAUSE: Duration = Duration::from_micros(20);

/// The small frames sent to one peer since the last poll.
#[derive(Default)]
pub(crate) struct Burst {
    /// The poll that they follow.
    round: u32,
    frames: u32,
    /// The system gathers what is written.
    gathers: bool,
}

impl Burst {
    /// To be told before each frame, with the polls so far. Gives whether the frame must ask for an acknowledgement.
    #[inline]
    pub(crate) fn next(&mut self, size: usize, round: u32, socket: &TcpStream) -> bool {
        if self.round != round {
            (self.round, self.frames) = (round, 0);
        }
        self.frames += u32::from(size <= SMALL);
        if self.frames > ALONE + 1 && !self.gathers {
            self.gathers = socket.set_nodelay(false).is_ok();
        }
        self.frames > ALONE
    }

    /// True until [`Burst::end`] if a packet may wait.
    #[inline]
    pub(crate) fn gathers(&self) -> bool {
        self.gathers
    }

    /// Sends what waits, and whatever comes next at once.
    pub(crate) fn end(&mut self, socket: &TcpStream) {
        // If this fails the connection is broken, which the next read tells.
        let _ = socket.set_nodelay(true);
        self.gathers = false;
    }
}

/// The acknowledgements that a sender of bursts waits for.
#[derive(Default)]
pub(crate) struct Answer {
    /// The last frame asked for one.
    asked: bool,
    last: Option<Instant>,
}

impl Answer {
    /// To be told with each frame.
    #[inline]
    pub(crate) fn note(&mut self, asked: bool) {
        self.asked = asked;
    }

    /// The sender may wait for [`Answer::give`].
    #[inline]
    pub(crate) fn is_owed(&self) -> bool {
        self.asked
    }

    /// Acknowledges what was read, unless it is too early and there is no `hurry` (nobody will look for long). True if
    /// nothing is owed any more.
    pub(crate) fn give(&mut self, socket: &TcpStream, now: Instant, hurry: bool) -> bool {
        if !self.asked {
            return true;
        }
        if !hurry && self.last.is_some_and(|last| now.duration_since(last) < PAUSE) {
            return false;
        }
        self.last = Some(now);
        // At once, then not by itself again. If this fails the connection is broken, which the next read tells.
        let _ =
            sockopt::set_tcp_quickack(socket, true).and_then(|()| sockopt::set_tcp_quickack(socket, false));
        true
    }
}

//! [`Burst`] and [`AckState`]: small frames that are sent one after the other share packets.
//!
//! A packet costs both sides some microseconds. A write that the system only appends to bytes that wait there already
//! costs a fraction of one. So a frame that follows others without a poll in between is left to Nagle's algorithm: it
//! waits in the system until the bytes sent before are acknowledged, then leaves with all that came meanwhile. The sender
//! need do nothing for that, so it may compute for as long as it likes. Its next poll ends the burst: the system then
//! sends all that waits.
//!
//! Nagle's algorithm alone would stall: a receiver that also sends delays its acknowledgements by up to 40 ms. So the
//! frames of a burst ask for an acknowledgement ([`frame::request_ack`](crate::frame::request_ack)). The receiver sends it
//! at its next poll, unless a frame of its own carried it, but not more often than every [`PAUSE`]: with a packet for each
//! frame and one for its acknowledgement nothing would gather. The first frame that asks still leaves in a packet of its
//! own, so the last packet sent is always one that asks. A frame that follows no other since the last poll is never part
//! of a burst.

use std::time::{Duration, Instant};

use mio::net::TcpStream;
use rustix::net::sockopt;

use crate::frame::OVERHEAD;

/// Largest frame that counts for a burst, bytes. Larger ones are worth a packet each.
const SMALL: usize = 16 * 1024 + OVERHEAD;

/// Most small frames between two polls that are no burst yet.
const MOST_ALONE: u32 = 1;

/// Least time between two acknowledgements: the frames that gather meanwhile share a packet.
const PAUSE: Duration = Duration::from_micros(20);

/// The small frames sent to one peer since the last poll.
#[derive(Default)]
pub(crate) struct Burst {
    /// Number of the poll that the frames follow.
    round: u32,
    frames: u32,
    /// The system gathers what is written (Nagle's algorithm is on).
    gathers: bool,
}

impl Burst {
    /// To be called before each frame, with the number of polls so far. True if the frame must ask for an acknowledgement.
    #[inline]
    pub(crate) fn next(&mut self, size: usize, round: u32, socket: &TcpStream) -> bool {
        if self.round != round {
            (self.round, self.frames) = (round, 0);
        }
        self.frames += u32::from(size <= SMALL);
        if self.frames > MOST_ALONE + 1 && !self.gathers {
            self.gathers = socket.set_nodelay(false).is_ok();
        }
        self.frames > MOST_ALONE
    }

    /// True, until [`Burst::end`], if small frames may wait in the system.
    #[inline]
    pub(crate) fn gathers(&self) -> bool {
        self.gathers
    }

    /// Has the system send what waits, and from now on every write at once.
    pub(crate) fn end(&mut self, socket: &TcpStream) {
        // If this fails the connection is broken, which the next read tells.
        let _ = socket.set_nodelay(true);
        self.gathers = false;
    }
}

/// The acknowledgements that this side owes to a peer that sends bursts.
#[derive(Default)]
pub(crate) struct AckState {
    /// The last frame asked for an acknowledgement.
    requested: bool,
    /// When this side acknowledged last.
    last: Option<Instant>,
}

impl AckState {
    /// To be called for each received frame: whether it asks for an acknowledgement.
    #[inline]
    pub(crate) fn note(&mut self, requested: bool) {
        self.requested = requested;
    }

    /// The peer may be waiting for [`AckState::send`].
    #[inline]
    pub(crate) fn is_owed(&self) -> bool {
        self.requested
    }

    /// Acknowledges what was read, unless it is too early; with `hurry` (the rank is about to sleep) in any case. True if
    /// nothing is owed any more.
    pub(crate) fn send(&mut self, socket: &TcpStream, now: Instant, hurry: bool) -> bool {
        if !self.requested {
            return true;
        }
        if !hurry && self.last.is_some_and(|last| now.duration_since(last) < PAUSE) {
            return false;
        }
        self.last = Some(now);
        // The first call has the system acknowledge at once, the second has it delay again. If one fails the connection is
        // broken, which the next read tells.
        let _ =
            sockopt::set_tcp_quickack(socket, true).and_then(|()| sockopt::set_tcp_quickack(socket, false));
        true
    }
}

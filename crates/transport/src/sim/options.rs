//! How a simulated network behaves.

use super::Clock;
#[cfg(doc)]
use crate::{Caps, Fabric, Port, Sink, Transfer};

/// How the network behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Frames that may be under way from one endpoint to another; more are refused. At least 1.
    pub depth: usize,
    /// Largest body of `send_short`, bytes.
    pub max_short: usize,
    /// Largest body of `send_bcopy`, bytes.
    pub max_bcopy: usize,
    /// `Caps::eager` of the fabric, bytes.
    pub eager: usize,
    /// `Caps::piece` of the fabric, bytes.
    pub piece: usize,
    /// How [`Port::get`] ends.
    pub get: OneSided,
    /// `Caps::prefers_get` of the fabric.
    pub prefers_get: bool,
    /// How [`Port::put`] ends.
    pub put: OneSided,
    /// How [`Port::atomic`] ends.
    pub atomics: OneSided,
    /// Handover buffers that each endpoint has at a time, of which all take copies of devices.
    pub handovers: usize,
    /// A registration, or a get into memory of a device, is refused once in so many times (0: never).
    pub refuse_registration_once_in: u32,
    /// Memory of devices is registered and filled as the host's is.
    pub moves_devices: bool,
    /// Longest delay of a frame or a one-sided transfer, ticks. With 0 it arrives at the next poll.
    pub max_delay: u64,
    /// Frames that one poll hands over at most. At least 1.
    pub batch: usize,
    /// A send or a one-sided transfer for which there is room is refused once in so many times (0: never).
    pub refuse_once_in: u32,
    /// A send breaks its link, and is lost with all frames under way on it, once in so many times (0: never).
    pub break_once_in: u32,
    /// Accepted frames leave the sender only when it polls ([`Fabric::unsent`]).
    pub holds: bool,
    /// An endpoint must be given a peer's business card before it can send to it ([`crate::Sink::wanted`]); a business card is
    /// the peer's number, little-endian.
    pub business_cards: bool,
    /// Time goes by what the links cost, and not by polls. Nothing is refused then for want of room, and delays are not random.
    pub clock: Option<Clock>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            depth: 64,
            max_short: 36,
            max_bcopy: 8192,
            eager: 8192,
            piece: 8192,
            get: OneSided::AtOnce,
            prefers_get: false,
            put: OneSided::AtOnce,
            atomics: OneSided::AtOnce,
            handovers: 0,
            refuse_registration_once_in: 0,
            moves_devices: false,
            max_delay: 8,
            batch: 16,
            refuse_once_in: 0,
            break_once_in: 0,
            holds: false,
            business_cards: false,
            clock: None,
        }
    }
}

impl Options {
    /// Accepted frames do not leave at once.
    pub(super) fn holds_frames(&self) -> bool {
        self.holds || self.clock.is_some()
    }

    /// Two frames a link, refusals for no reason, one frame a poll, frames that leave only on a poll.
    pub fn cramped() -> Self {
        Self { depth: 2, batch: 1, refuse_once_in: 3, holds: true, ..Self::default() }
    }
}

/// How one-sided transfers end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OneSided {
    /// The capability is missing, and the answer is [`Transfer::Impossible`].
    Off,
    /// [`Transfer::Done`].
    AtOnce,
    /// [`Transfer::Started`], then [`Sink::completed`] with [`Transfer::Done`].
    Later,
    /// The capability is there, and yet the answer is [`Transfer::Impossible`].
    Impossible,
    /// [`Transfer::Started`], then [`Sink::completed`] with [`Transfer::Impossible`].
    ImpossibleLater,
    /// Any but `Off`, at random.
    Mixed,
}

impl OneSided {
    /// Those that can be drawn.
    pub(super) const ENDS: [OneSided; 4] =
        [OneSided::AtOnce, OneSided::Later, OneSided::Impossible, OneSided::ImpossibleLater];

    /// All of them.
    pub const ALL: [OneSided; 6] = [
        OneSided::Off,
        OneSided::AtOnce,
        OneSided::Later,
        OneSided::Impossible,
        OneSided::ImpossibleLater,
        OneSided::Mixed,
    ];
}

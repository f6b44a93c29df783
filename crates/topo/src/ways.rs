//! [`Way`]: how a long message gets from one process to another of the same host, and what that needs. Such messages are told apart by
//! their length (a *class* for each power of two) and by the [`Traffic`] that they are part of.

use std::str::FromStr;

/// How the bytes of a long message get from one process to another on the same node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// In frames: both sides copy.
    Ring,
    /// The receiver reads the sender's memory.
    Read,
    /// The sender writes the receiver's memory.
    Write,
    /// The receiver reads one half while the sender writes the other one.
    Both,
    /// In frames as by [`Way::Ring`], which the receiver copies past its caches (by non-temporal stores): quicker where the memory that they go to is
    /// in no cache, as the lines need not be read before they are written.
    NonTemporal,
}

impl Way {
    /// All ways, by their numbers.
    pub const ALL: [Way; 5] = [Way::Ring, Way::Read, Way::Write, Way::Both, Way::NonTemporal];

    /// Its name, as users write it.
    pub fn name(self) -> &'static str {
        ["ring", "read", "write", "both", "nontemporal"][self as usize]
    }

    /// Whether the bytes come in frames, through the ring.
    pub fn in_frames(self) -> bool {
        self.single_copy().is_none()
    }

    /// What it takes beside the copies of the ring; `None` where the bytes come in frames.
    pub fn single_copy(self) -> Option<SingleCopy> {
        let (share, to_arrive, to_end) = match self {
            Way::Ring | Way::NonTemporal => return None,
            // The receiver reads what was announced, and says that it is through.
            Way::Read => (1.0, 1.0, 2.0),
            // The receiver says where the bytes go, and is told that they are there.
            Way::Write => (1.0, 3.0, 3.0),
            Way::Both => (0.5, 3.0, 3.0),
        };
        Some(SingleCopy { share, to_arrive, to_end })
    }
}

impl FromStr for Way {
    type Err = ();

    fn from_str(name: &str) -> Result<Way, ()> {
        Way::ALL.into_iter().find(|way| way.name() == name).ok_or(())
    }
}

/// What a [`Way`] takes by which nothing goes through a ring.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SingleCopy {
    /// The part of the message that each of those copies who copy.
    pub share: f64,
    /// Messages, one after the other, until the receiver has all of it: the announcement is the first one.
    pub to_arrive: f64,
    /// Messages until both ends know that it is over.
    pub to_end: f64,
}

/// Shortest message that has a choice of ways, bytes.
pub const SHORTEST: u64 = 16 << 10;
/// Number of classes of lengths: 16 KiB to 32 MiB and more, one for each power of two.
pub const CLASSES: usize = 12;

/// The class of messages of this length; `None` if they have no choice.
#[inline]
pub fn class(len: u64) -> Option<usize> {
    (len >= SHORTEST).then(|| ((len.ilog2() - SHORTEST.ilog2()) as usize).min(CLASSES - 1))
}

/// What else moves between two processes while a message does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Traffic {
    /// Nothing.
    OneWay,
    /// Other long messages of the same sender.
    Window,
    /// Long messages the other way.
    BothWays,
}

impl Traffic {
    /// All kinds, by their numbers.
    pub const ALL: [Traffic; 3] = [Traffic::OneWay, Traffic::Window, Traffic::BothWays];

    /// Its name, for people.
    pub fn name(self) -> &'static str {
        ["one way", "in windows", "both ways"][self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two() {
        assert_eq!([0, SHORTEST - 1].map(class), [None; 2]);
        assert_eq!([SHORTEST, 2 * SHORTEST - 1, 2 * SHORTEST].map(class), [Some(0), Some(0), Some(1)]);
        assert_eq!([32 << 20, u64::MAX].map(class), [Some(CLASSES - 1); 2]);
    }

    #[test]
    fn ways_have_names() {
        assert!(Way::ALL.into_iter().all(|way| way.name().parse() == Ok(way)));
        assert_eq!("rings".parse::<Way>(), Err(()));
    }
}

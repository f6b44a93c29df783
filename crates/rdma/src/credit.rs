//! Credits: how many of a peer's receive buffers one side may still fill, and how many of its own the peer may fill anew. Pure counts.
//!
//! Each side begins with [`WINDOW`] credits, and each frame takes one. The receiver gives it back with a frame of its own, or by a frame that
//! is there for that alone, once half of the window is owed. The last credit is kept for such a frame, so that one can always leave: a side
//! that has used its last one has just given the other side many.

/// Receive buffers for each peer.
pub const WINDOW: u16 = 16;
/// Receive buffers beyond those, so that emptied ones can be posted anew several at a time: so many.
pub const RESERVE: u16 = WINDOW / 2;

/// One side's account with a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credit {
    available: u16,
    owed: u16,
}

impl Default for Credit {
    fn default() -> Credit {
        Credit { available: WINDOW, owed: 0 }
    }
}

impl Credit {
    /// The account when the connection was made anew: all that has come is counted, and so many frames are sent again.
    pub fn resumed(again: usize) -> Credit {
        Credit { available: WINDOW.saturating_sub(again as u16), owed: 0 }
    }

    /// True if a frame of the user's may leave.
    #[inline]
    pub fn may_send(&self) -> bool {
        self.available > 1
    }

    /// True if a frame that gives back credits, or ends the connection, should leave.
    pub fn should_return(&self) -> bool {
        self.owed >= WINDOW / 2 && self.available > 0
    }

    /// True if a frame of any kind may leave.
    pub fn is_left(&self) -> bool {
        self.available > 0
    }

    /// A frame leaves: takes its credit, and gives the number of credits that it carries back.
    #[inline]
    pub fn send(&mut self) -> u16 {
        self.available -= 1;
        std::mem::take(&mut self.owed)
    }

    /// A frame has come that carried so many credits, and its buffer is about to be posted anew, but for a few that the reserve stands in for.
    ///
    /// # Errors
    /// If the peer gives back more than there are.
    #[inline]
    pub fn receive(&mut self, returned: u16) -> Result<(), TooMany> {
        let (available, owed) = (self.available.saturating_add(returned), self.owed + 1);
        if available.max(owed) > WINDOW {
            return Err(TooMany);
        }
        (self.available, self.owed) = (available, owed);
        Ok(())
    }
}

/// A peer has given back, or taken, more credits than there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooMany;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use banyan_transport::random::Random;

    /// Two sides that send as they can, and receive now and then: no frame finds all buffers full, all frames arrive, and it ends.
    #[test]
    fn no_frame_finds_no_buffer_and_nobody_is_stuck() {
        const FRAMES: u32 = 300;
        for seed in 0..500 {
            let mut random = Random::new(seed);
            let mut sides = [Credit::default(); 2];
            let mut wire: [VecDeque<(bool, u16)>; 2] = Default::default();
            let (mut free, mut empty) = ([WINDOW + RESERVE; 2], [0; 2]);
            let (mut sent, mut arrived, mut alone) = ([0; 2], [0; 2], 0);
            let quotas = [FRAMES, if random.once_in(2) { FRAMES } else { 0 }];
            for step in 0.. {
                assert!(step < 1_000_000, "seed {seed}: stuck with {sides:?}");
                let me = random.below(2);
                let mut leave = |sides: &mut [Credit; 2], payload: bool| {
                    free[1 - me] = free[1 - me].checked_sub(1).expect("a buffer is free");
                    wire[1 - me].push_back((payload, sides[me].send()));
                };
                if random.once_in(2) {
                    if sent[me] < quotas[me] && sides[me].may_send() {
                        sent[me] += 1;
                        leave(&mut sides, true);
                    }
                } else {
                    // What one poll takes is posted anew before credits for it leave, unless it is less than the reserve.
                    for _ in 0..random.below(20) {
                        let Some((payload, returned)) = wire[me].pop_front() else { break };
                        arrived[me] += u32::from(payload);
                        empty[me] += 1;
                        sides[me].receive(returned).expect("as many as there are");
                    }
                    if empty[me] >= RESERVE {
                        free[me] += std::mem::take(&mut empty[me]);
                    }
                    if sides[me].should_return() {
                        alone += 1;
                        free[1 - me] = free[1 - me].checked_sub(1).expect("a buffer is free");
                        wire[1 - me].push_back((false, sides[me].send()));
                    }
                }
                if arrived == [quotas[1], quotas[0]] && wire.iter().all(VecDeque::is_empty) {
                    break;
                }
            }
            assert!(
                alone <= 2 * FRAMES / u32::from(WINDOW / 2) + 4,
                "seed {seed}: {alone} frames for credits alone"
            );
        }
    }

    #[test]
    fn what_a_peer_invents_is_refused() {
        assert_eq!(Credit::default().receive(1), Err(TooMany));
        let mut credit = Credit::default();
        credit.send();
        assert_eq!(credit.receive(u16::MAX), Err(TooMany));
        let mut credit = Credit::default();
        let taken = (0..=WINDOW).map(|_| credit.receive(0)).collect::<Result<Vec<_>, _>>();
        assert_eq!(taken, Err(TooMany), "a peer has no more than its window");
    }
}

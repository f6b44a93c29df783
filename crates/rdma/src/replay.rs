//! [`Replay`]: what one side of a connection keeps to go on after it broke: the frames of which the device has not said that they have
//! arrived, and the number of those that have come. Pure.
//!
//! Frames are numbered as they leave. When a connection is made anew each side says how many frames it has received; the other one
//! sends again what follows. So nothing is lost, and nothing comes twice.

use std::collections::VecDeque;

/// One side's account of the frames of a connection, over all of its lives.
#[derive(Debug)]
pub struct Replay<T> {
    /// Frames that have left, oldest first, but for those that have surely arrived.
    kept: VecDeque<T>,
    /// Number of those that have surely arrived.
    arrived: u64,
    /// Number of frames that have come.
    received: u64,
}

/// The peer says that it has received a number of frames that cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Impossible;

impl<T> Default for Replay<T> {
    fn default() -> Replay<T> {
        Replay { kept: VecDeque::new(), arrived: 0, received: 0 }
    }
}

impl<T> Replay<T> {
    /// A frame leaves.
    #[inline]
    pub fn leaves(&mut self, frame: T) {
        self.kept.push_back(frame);
    }

    /// The oldest frame that is kept has arrived: gives it.
    #[inline]
    pub fn arrives(&mut self) -> Option<T> {
        let frame = self.kept.pop_front()?;
        self.arrived += 1;
        Some(frame)
    }

    /// A frame has come.
    #[inline]
    pub fn comes(&mut self) {
        self.received += 1;
    }

    /// Number of frames that have surely arrived.
    pub fn arrived(&self) -> u64 {
        self.arrived
    }

    /// Number of frames that have come.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The frames that have not surely arrived, oldest first.
    pub fn kept(&self) -> impl ExactSizeIterator<Item = &T> {
        self.kept.iter()
    }

    /// The connection is there again, and the peer has received so many frames: gives those kept that have arrived. The others are
    /// to be sent again.
    ///
    /// # Errors
    /// If a frame that the device had called arrived has not, or one has that never left.
    pub fn resume(&mut self, received: u64) -> Result<Vec<T>, Impossible> {
        let more = received.checked_sub(self.arrived).ok_or(Impossible)? as usize;
        if more > self.kept.len() {
            return Err(Impossible);
        }
        self.arrived = received;
        Ok(self.kept.drain(..more).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credit::{Credit, WINDOW};
    use banyan_transport::random::Random;

    /// Frames on the wire: number of the frame, and the credits that it gives back.
    type Wire = VecDeque<(u64, u16)>;

    #[derive(Default)]
    struct Side {
        replay: Replay<u64>,
        credit: Credit,
        next: u64,
        came: u64,
        /// Frames that the peer's device has taken, and of which it has not told.
        untold: usize,
    }

    /// Two sides over a connection that breaks at any moment, with frames, and word of their arrival, under way: all frames come once
    /// and in order, and no more are under way than there are buffers.
    #[test]
    fn nothing_is_lost_and_nothing_comes_twice() {
        const FRAMES: u64 = 300;
        for seed in 0..500 {
            let mut random = Random::new(seed);
            let (mut sides, mut wire, mut breaks) =
                ([Side::default(), Side::default()], [Wire::new(), Wire::new()], 0);
            while sides.iter().any(|side| side.came < FRAMES) {
                let me = random.below(2);
                match random.below(30) {
                    0 => {
                        breaks += 1;
                        assert!(breaks < 10_000, "seed {seed}: stuck");
                        wire = Default::default();
                        for me in 0..2 {
                            let received = sides[1 - me].replay.received();
                            let side = &mut sides[me];
                            side.replay.resume(received).expect("as many as have left");
                            let kept: Vec<u64> = side.replay.kept().copied().collect();
                            (side.credit, side.untold) = (Credit::resumed(kept.len()), 0);
                            wire[1 - me].extend(kept.into_iter().map(|frame| (frame, 0)));
                        }
                    }
                    1..=9 => {
                        let side = &mut sides[me];
                        if side.next < FRAMES && side.credit.may_send() {
                            side.replay.leaves(side.next);
                            wire[1 - me].push_back((side.next, side.credit.send()));
                            side.next += 1;
                        }
                    }
                    10..=14 if sides[me].untold > 0 => {
                        sides[me].untold -= 1;
                        sides[me].replay.arrives().expect("it was kept");
                    }
                    15..=18 if sides[me].credit.should_return() => {
                        let frame = u64::MAX;
                        sides[me].replay.leaves(frame);
                        let credits = sides[me].credit.send();
                        wire[1 - me].push_back((frame, credits));
                    }
                    _ => {
                        let Some((frame, credits)) = wire[me].pop_front() else { continue };
                        if frame != u64::MAX {
                            assert_eq!(frame, sides[me].came, "seed {seed}");
                            sides[me].came += 1;
                        }
                        sides[me].replay.comes();
                        sides[me].credit.receive(credits).expect("as many as there are");
                        sides[1 - me].untold += 1;
                        assert!(wire[me].len() < WINDOW.into(), "seed {seed}: there is a buffer for each");
                    }
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut replay = Replay::default();
        (0..5).for_each(|frame| replay.leaves(frame));
        assert_eq!((replay.arrives(), replay.arrives()), (Some(0), Some(1)));
        assert_eq!(replay.resume(1), Err(Impossible), "the second one had arrived");
        assert_eq!(replay.resume(6), Err(Impossible), "five have left");
        assert_eq!(replay.resume(4), Ok(vec![2, 3]));
        assert_eq!(replay.kept().copied().collect::<Vec<_>>(), [4]);
    }
}

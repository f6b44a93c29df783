//! [`Lanes`]: how far a rank has come in a composition, whose two lanes go side by side (see [`crate::stages`]).

/// How far a rank has come in each lane of a composition.
#[derive(Default, Debug)]
pub(crate) struct Lanes {
    /// Rounds that have begun; all of them but the last are over.
    begun: [u32; 2],
    /// Steps of the last one that are not over.
    open: [u32; 2],
    /// By step of the round that both lanes share, its lane.
    of: Vec<u8>,
}

impl Lanes {
    /// Rounds of a lane that are over.
    fn over(&self, lane: usize) -> u32 {
        self.begun[lane] - u32::from(self.open[lane] > 0)
    }

    /// The lane of a step; the first one where there is no composition.
    pub(crate) fn of(&self, step: usize) -> usize {
        self.of.get(step).map_or(0, |&lane| lane.into())
    }

    /// True if a lane has steps that are not over.
    pub(crate) fn is_open(&self, lane: usize) -> bool {
        self.open[lane] > 0
    }

    /// A step is over.
    pub(crate) fn close(&mut self, step: usize) {
        if let Some(&lane) = self.of.get(step) {
            self.open[usize::from(lane)] -= 1;
        }
    }

    /// The number of a lane's next round.
    pub(crate) fn next(&self, lane: usize) -> u32 {
        self.begun[lane]
    }

    /// A lane can begin its next round when so many of the other lane are over.
    pub(crate) fn may_begin(&self, lane: usize, after: u32) -> bool {
        !self.is_open(lane) && after <= self.over(1 - lane)
    }

    /// No step is under way, and those of the rounds before are gone.
    pub(crate) fn are_idle(&mut self) -> bool {
        let idle = self.open == [0; 2];
        if idle {
            self.of.clear();
        }
        idle
    }

    /// A lane has begun a round: there are so many steps now.
    pub(crate) fn begin(&mut self, lane: usize, steps: usize) {
        self.begun[lane] += 1;
        self.open[lane] = (steps - self.of.len()) as u32;
        self.of.resize(steps, lane as u8);
    }

    /// Gets ready for the next composition.
    pub(crate) fn restart(&mut self) {
        (self.begun, self.open) = ([0; 2], [0; 2]);
        self.of.clear();
    }
}

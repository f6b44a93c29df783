//! How two processes come to know that both ends of their connection stand, though greetings may be lost or doubled. Pure: what was
//! heard and the time in, what to do out.

use std::time::{Duration, Instant};

/// The pause before a greeting is sent again, at first; it doubles up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);

/// How far one side is. A greeting says it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Stage {
    /// It has not heard of the other side.
    Asking = 0,
    /// It can receive from the other side.
    Heard = 1,
    /// It knows that the other side can receive from it.
    Up = 2,
}

impl Stage {
    /// The stage with this number, if there is one.
    pub fn from_u8(value: u8) -> Option<Stage> {
        [Stage::Asking, Stage::Heard, Stage::Up].into_iter().find(|&stage| stage as u8 == value)
    }
}

/// One side's part in making a connection.
#[derive(Clone, Copy, Debug)]
pub struct Contact {
    stage: Stage,
    pause: Duration,
    next: Instant,
    end: Instant,
}

/// What a side does about a greeting that it has heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// It connects its end to the one that the greeting names.
    pub connect: bool,
    /// It sends a greeting.
    pub greet: bool,
}

/// What it is time for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// Nothing.
    Nothing,
    /// To send a greeting.
    Greet,
    /// To give up: the patience is over.
    GiveUp,
}

impl Contact {
    /// A contact that begins now, and is given up unless it stands after `patience`. The first greeting is due.
    pub fn new(now: Instant, patience: Duration) -> Contact {
        Contact { stage: Stage::Asking, pause: FIRST, next: now, end: now + patience }
    }

    /// How far this side is.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Hears a greeting of a side that is so far.
    pub fn heard(&mut self, theirs: Stage) -> Answer {
        let connect = self.stage == Stage::Asking;
        let known = if theirs >= Stage::Heard { Stage::Up } else { Stage::Heard };
        self.stage = self.stage.max(known);
        Answer { connect, greet: theirs < Stage::Up }
    }

    /// A frame has come by the connection, so the other side is up.
    pub fn proved(&mut self) {
        self.stage = Stage::Up;
    }

    /// What it is time for, once.
    pub fn due(&mut self, now: Instant) -> Due {
        if self.stage == Stage::Up || now < self.next {
            return Due::Nothing;
        }
        if now >= self.end {
            return Due::GiveUp;
        }
        self.next = (now + self.pause).min(self.end);
        self.pause = (self.pause * 2).min(LONGEST);
        Due::Greet
    }

    /// When something is due; `None`: never again.
    pub fn next(&self) -> Option<Instant> {
        (self.stage < Stage::Up).then_some(self.next)
    }

    /// True if greetings have gone unanswered for so long that the other side may be gone.
    pub fn is_doubtful(&self) -> bool {
        self.pause == LONGEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use banyan_transport::random::Random;

    const PATIENCE: Duration = Duration::from_secs(600);

    /// Two sides, of which one or both begin, over a network that loses, doubles and reorders, come up; then all is silent.
    #[test]
    fn both_sides_come_up_whatever_is_lost() {
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let start = Instant::now();
            let mut sides: [Option<Contact>; 2] = [Some(Contact::new(start, PATIENCE)), None];
            if random.once_in(2) {
                sides[1] = Some(Contact::new(start, PATIENCE));
            }
            let mut connected = [false; 2];
            let mut wire: Vec<(usize, Stage)> = Vec::new();
            let is_up = |side: &Option<Contact>| side.is_some_and(|side| side.stage() == Stage::Up);
            for step in 0..100_000u64 {
                let now = start + Duration::from_millis(step * 5);
                for (me, side) in sides.iter_mut().enumerate() {
                    if let Some(side) = side
                        && side.due(now) == Due::Greet
                    {
                        wire.push((1 - me, side.stage()));
                    }
                }
                if !wire.is_empty() && random.once_in(2) {
                    let (to, theirs) = wire.swap_remove(random.below(wire.len()));
                    if random.once_in(5) {
                        wire.push((to, theirs));
                    }
                    if !random.once_in(3) {
                        let side = sides[to].get_or_insert_with(|| Contact::new(now, PATIENCE));
                        let answer = side.heard(theirs);
                        assert!(!answer.connect || !connected[to], "seed {seed}: connected twice");
                        connected[to] |= answer.connect;
                        if answer.greet {
                            wire.push((1 - to, side.stage()));
                        }
                    }
                }
                for me in 0..2 {
                    let known = !is_up(&sides[me]) || connected[1 - me];
                    assert!(known, "seed {seed}: side {me} is up, and the other cannot receive");
                }
                if wire.is_empty() && sides.iter().all(is_up) {
                    break;
                }
            }
            assert!(wire.is_empty() && sides.iter().all(is_up), "seed {seed}: {sides:?} {wire:?}");
            assert_eq!(connected, [true; 2], "seed {seed}");
        }
    }

    #[test]
    fn an_unanswered_contact_is_given_up() {
        let start = Instant::now();
        let mut contact = Contact::new(start, Duration::from_secs(10));
        let mut greetings = 0;
        let end = loop {
            let next = contact.next().expect("it is not up");
            match contact.due(next) {
                Due::Greet => greetings += 1,
                Due::GiveUp => break next,
                Due::Nothing => panic!("something is due"),
            }
        };
        assert_eq!(end, start + Duration::from_secs(10));
        assert!((10..20).contains(&greetings) && contact.is_doubtful(), "{greetings}");
    }
}

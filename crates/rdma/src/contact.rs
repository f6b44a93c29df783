//! How two processes come to know that both ends of their connection stand, though greetings may be lost or doubled, and ends may break
//! and be made anew. Pure: what was heard and the time in, what to do out.
//!
//! A process numbers the ends that it makes for a peer. An end is bound to one end of the peer's, once, and of no use with another. A
//! greeting says which end greets, and to which end of the receiver's it is bound. An end that hears of a newer one than it is bound to
//! is to be made anew; one that is not bound binds itself to an end that is not bound to another one.

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

/// What one side says of its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Said {
    /// How far it is.
    pub stage: Stage,
    /// The end's number, from 1.
    pub number: u32,
    /// The number of the receiver's end that it is bound to; 0: to none.
    pub to: u32,
}

/// One side's part in making a connection: the life of one end.
#[derive(Clone, Copy, Debug)]
pub struct Contact {
    stage: Stage,
    number: u32,
    to: u32,
    pause: Duration,
    next: Instant,
    end: Instant,
}

/// What a side does about a greeting that it has heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Nothing.
    Nothing,
    /// It sends a greeting.
    Greet,
    /// It connects its end to the one that greets, and sends a greeting.
    Connect,
    /// Its end is of no use any more: it makes another one.
    Renew,
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
    /// A contact by the end of this number that begins now, and is given up unless it stands at `end`. The first greeting is due.
    pub fn new(number: u32, now: Instant, end: Instant) -> Contact {
        Contact { stage: Stage::Asking, number, to: 0, pause: FIRST, next: now, end }
    }

    /// What a greeting says now.
    pub fn says(&self) -> Said {
        Said { stage: self.stage, number: self.number, to: self.to }
    }

    /// How far this side is.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Hears a greeting.
    pub fn heard(&mut self, said: Said) -> Answer {
        let of_ours = said.to == self.number;
        if self.to == 0 {
            if said.to != 0 && !of_ours {
                return Answer::Greet;
            }
            (self.to, self.stage) = (said.number, if of_ours { Stage::Up } else { Stage::Heard });
            return Answer::Connect;
        }
        if said.number != self.to {
            return if said.number > self.to { Answer::Renew } else { Answer::Nothing };
        }
        if of_ours {
            self.stage = Stage::Up;
        }
        if said.stage < Stage::Up || !of_ours { Answer::Greet } else { Answer::Nothing }
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

    /// What hindered it is over: a greeting is due.
    pub fn hurry(&mut self, now: Instant) {
        (self.next, self.pause) = (now, FIRST);
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

    const PATIENCE: Duration = Duration::from_secs(6000);

    /// Two sides, of which one or both begin, over a network that loses, doubles and reorders; ends break now and then, at one side.
    /// Both come up, bound to each other; then all is silent.
    #[test]
    fn both_sides_come_up_whatever_is_lost_and_breaks() {
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let (start, mut breaks) = (Instant::now(), random.below(4));
            let contact = |number: u32, now: Instant| Some(Contact::new(number, now, start + PATIENCE));
            let mut sides = [contact(1, start), None];
            if random.once_in(2) {
                sides[1] = contact(1, start);
            }
            let mut wire: Vec<(usize, Said)> = Vec::new();
            let bound = |sides: &[Option<Contact>; 2]| match sides {
                [Some(a), Some(b)] => {
                    let up = a.stage == Stage::Up && b.stage == Stage::Up;
                    up && a.to == b.number && b.to == a.number
                }
                _ => false,
            };
            for step in 0..200_000u64 {
                let now = start + Duration::from_millis(step * 5);
                for (me, side) in sides.iter_mut().enumerate() {
                    if let Some(side) = side
                        && side.due(now) == Due::Greet
                    {
                        wire.push((1 - me, side.says()));
                    }
                }
                let me = random.below(2);
                if breaks > 0
                    && random.once_in(40)
                    && let Some(side) = sides[me]
                {
                    breaks -= 1;
                    sides[me] = contact(side.number + 1, now);
                }
                if !wire.is_empty() && random.once_in(2) {
                    let (to, said) = wire.swap_remove(random.below(wire.len()));
                    if random.once_in(5) {
                        wire.push((to, said));
                    }
                    if !random.once_in(3) {
                        let side = sides[to].get_or_insert_with(|| Contact::new(1, now, start + PATIENCE));
                        match side.heard(said) {
                            Answer::Nothing => {}
                            Answer::Greet | Answer::Connect => wire.push((1 - to, side.says())),
                            Answer::Renew => sides[to] = contact(side.number + 1, now),
                        }
                    }
                }
                // An end that was bound to one which is gone does not notice that by itself, but by what it sends.
                if wire.is_empty()
                    && let [Some(a), Some(b)] = sides
                    && (a.stage, b.stage) == (Stage::Up, Stage::Up)
                    && !bound(&sides)
                {
                    sides[me] = contact(sides[me].map_or(0, |side| side.number) + 1, now);
                }
                if wire.is_empty() && breaks == 0 && bound(&sides) {
                    break;
                }
            }
            assert!(wire.is_empty() && bound(&sides), "seed {seed}: {sides:?} {wire:?}");
        }
    }

    #[test]
    fn an_unanswered_contact_is_given_up() {
        let start = Instant::now();
        let mut contact = Contact::new(1, start, start + Duration::from_secs(10));
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

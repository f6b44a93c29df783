//! How two processes come to know that both ends of their connection stand, though greetings may be lost or doubled, and ends may break
//! and be made anew. Pure: what was heard and the time in, what to do out.
//!
//! A process numbers the ends that it makes for a peer. An end is bound to one end of the peer's, once, and of no use with another. A
//! greeting says which end greets, and to which end of the receiver's it is bound. An end that hears of a newer one than it is bound to
//! is to be made anew; one that is not bound binds itself to an end that is not bound to another one. An end that is bound is connected, at once
//! or by steps of its own; a side may send when both ends have said that they are.

use std::time::{Duration, Instant};

/// The pause before a greeting is sent again, at first; it doubles up to [`LONGEST`].
const FIRST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(1);

/// How far one side is. A greeting says it, and in which of its ends ([`Said`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Stage {
    /// It cannot receive from the other side yet.
    Asking = 0,
    /// It can receive from the other side.
    Ready = 1,
    /// It knows that the other side can receive from it.
    Up = 2,
}

impl Stage {
    /// The stage with this number, if there is one.
    pub fn from_u8(value: u8) -> Option<Stage> {
        [Stage::Asking, Stage::Ready, Stage::Up].into_iter().find(|&stage| stage as u8 == value)
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
    number: u32,
    to: u32,
    /// This side can receive from the other one, and that one from this.
    ready: bool,
    other_ready: bool,
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
    /// It connects its end to the one that greets, says so when that is done ([`Contact::is_ready`]), and sends a greeting.
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
        Contact { number, to: 0, ready: false, other_ready: false, pause: FIRST, next: now, end }
    }

    /// What a greeting says now.
    pub fn says(&self) -> Said {
        Said { stage: self.stage(), number: self.number, to: self.to }
    }

    /// How far this side is.
    pub fn stage(&self) -> Stage {
        match (self.ready, self.other_ready) {
            (true, true) => Stage::Up,
            (true, false) => Stage::Ready,
            (false, _) => Stage::Asking,
        }
    }

    /// Hears a greeting.
    pub fn heard(&mut self, said: Said) -> Answer {
        let of_ours = said.to == self.number;
        if self.to == 0 {
            if said.to != 0 && !of_ours {
                return Answer::Greet;
            }
            (self.to, self.other_ready) = (said.number, of_ours && said.stage >= Stage::Ready);
            return Answer::Connect;
        }
        if said.number != self.to {
            return if said.number > self.to { Answer::Renew } else { Answer::Nothing };
        }
        self.other_ready |= of_ours && said.stage >= Stage::Ready;
        // It hears what it does not know. What it may have lost it asks for itself, as it greets again until it is up.
        if said.stage < self.stage() || !of_ours { Answer::Greet } else { Answer::Nothing }
    }

    /// This side's end is connected to the one that it is bound to, and can receive from it, which a greeting should say.
    pub fn is_ready(&mut self) {
        self.ready = true;
    }

    /// A frame has come by the connection, so both sides can receive.
    pub fn proved(&mut self) {
        (self.ready, self.other_ready) = (true, true);
    }

    /// What it is time for, once.
    pub fn due(&mut self, now: Instant) -> Due {
        if self.stage() == Stage::Up || now < self.next {
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
        (self.stage() < Stage::Up).then_some(self.next)
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

    /// Two sides over a network that loses, doubles and reorders; ends break now and then, at one side. Ends are ready at once, or some time
    /// after both are bound to each other.
    struct Trial {
        seed: u64,
        random: Random,
        sides: [Option<Contact>; 2],
        /// Greetings under way, and to whom.
        wire: Vec<(usize, Said)>,
        at_once: bool,
        /// How many ends are still to break.
        breaks: usize,
        start: Instant,
    }

    impl Trial {
        /// One side begins, or both.
        fn new(seed: u64) -> Trial {
            let mut random = Random::new(seed);
            let (at_once, start, breaks) = (random.once_in(2), Instant::now(), random.below(4));
            let first = || Some(Contact::new(1, start, start + PATIENCE));
            let sides = [first(), if random.once_in(2) { first() } else { None }];
            Trial { seed, random, sides, wire: Vec::new(), at_once, breaks, start }
        }

        fn anew(&mut self, me: usize, now: Instant) {
            let number = self.sides[me].map_or(0, |side| side.number) + 1;
            self.sides[me] = Some(Contact::new(number, now, self.start + PATIENCE));
        }

        fn bound(&self) -> bool {
            matches!(self.sides, [Some(a), Some(b)] if a.to == b.number && b.to == a.number)
        }

        fn up(&self) -> bool {
            self.sides.iter().all(|side| side.is_some_and(|side| side.stage() == Stage::Up))
        }

        fn greet_as_due(&mut self, now: Instant) -> usize {
            let before = self.wire.len();
            for (me, side) in self.sides.iter_mut().enumerate() {
                if let Some(side) = side
                    && side.due(now) == Due::Greet
                {
                    self.wire.push((1 - me, side.says()));
                }
            }
            self.wire.len() - before
        }

        /// A greeting arrives, or is lost, and may come again.
        fn deliver(&mut self, now: Instant) {
            if self.wire.is_empty() || !self.random.once_in(2) {
                return;
            }
            let (to, said) = self.wire.swap_remove(self.random.below(self.wire.len()));
            if self.random.once_in(5) {
                self.wire.push((to, said));
            }
            if self.random.once_in(3) {
                return;
            }
            let end = self.start + PATIENCE;
            let side = self.sides[to].get_or_insert_with(|| Contact::new(1, now, end));
            let answer = side.heard(said);
            if answer == Answer::Connect && self.at_once {
                side.is_ready();
            }
            match answer {
                Answer::Nothing => {}
                Answer::Greet | Answer::Connect => self.wire.push((1 - to, side.says())),
                Answer::Renew => self.anew(to, now),
            }
        }

        fn become_ready(&mut self, me: usize) {
            if self.bound()
                && self.random.once_in(20)
                && let Some(side) = self.sides[me].as_mut().filter(|side| !side.ready)
            {
                side.is_ready();
                self.wire.push((1 - me, side.says()));
            }
        }

        /// Whatever may happen at a time, once; true if all is silent, and both are up and bound to each other.
        fn step(&mut self, now: Instant) -> bool {
            let me = self.random.below(2);
            if self.breaks > 0 && self.random.once_in(40) && self.sides[me].is_some() {
                self.breaks -= 1;
                self.anew(me, now);
            }
            self.deliver(now);
            self.become_ready(me);
            // Who is up may send, as the other side can receive.
            if self.bound()
                && let [Some(a), Some(b)] = self.sides
            {
                let neither = a.stage() != Stage::Up && b.stage() != Stage::Up;
                assert!(a.ready && b.ready || neither, "seed {}", self.seed);
            }
            // An end that was bound to one which is gone does not notice that by itself, but by what it sends.
            if self.wire.is_empty() && self.up() && !self.bound() {
                self.anew(me, now);
            }
            self.wire.is_empty() && self.breaks == 0 && self.bound() && self.up()
        }
    }

    #[test]
    fn both_sides_come_up_whatever_is_lost_and_breaks() {
        for seed in 0..4000 {
            let (mut trial, mut greetings) = (Trial::new(seed), 0);
            let over = (0..200_000u64).any(|step| {
                let now = trial.start + Duration::from_millis(step * 5);
                greetings += trial.greet_as_due(now);
                trial.step(now)
            });
            let Trial { sides, wire, .. } = trial;
            assert!(over, "seed {seed}: {sides:?} {wire:?}, {greetings} greetings by the clock");
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

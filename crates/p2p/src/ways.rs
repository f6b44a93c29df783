//! [`Ways`]: which way the long messages of a peer take, chosen by what was measured on these messages. Pure: lengths and
//! times come in, and what the peer is to be told comes out.
//!
//! The receiver decides. It sees a message announced and sees its last byte, and tells the sender which way to take from then on.
//! Messages are sorted by length (a *class* for each power of two) and by the *traffic* that they are part of. In each such
//! cell one way is taken. Now and then the cell has a *look*: a few messages take the way that is taken anyway, then a few take
//! each of the ways it is compared with. A way that is better by more than a margin twice takes the place of the one before.
//! Looks are the rarer the more they cost: what messages lost in a look is at most [`PRICE`] of the time until the next one.
//! A way that takes much longer than what is known of it is an *alarm*: the machine is not what it was, and all ways are compared at once.
//! Messages that go whole in one frame of the ring are not announced, but for one in [`SAMPLE`] of them, and all during a look.
//! Times that say nothing of the way do not count: of a message whose receive came late, and, as the second
//! smallest of several stands for a way, of one during which a process had no core.

use std::cmp::Ordering;

use banyan_topo::KnownWay;
pub(crate) use banyan_topo::ways::{CLASSES, SHORTEST, class};
pub use banyan_topo::ways::{Traffic, Way};

use crate::wire::Cause;

/// A message, now that all of it is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    /// Bytes.
    pub(crate) len: u64,
    /// What it counts as part of: [`Ways::traffic`].
    pub(crate) traffic: Traffic,
    pub(crate) by: Way,
    /// What a byte was measured to take, ns.
    pub(crate) time: Option<f64>,
    /// Why it was announced.
    pub(crate) cause: Cause,
}

impl Arrived {
    /// How many messages like it there were, as far as that is known.
    fn stands_for(&self) -> u32 {
        if self.cause == Cause::Sample { SAMPLE } else { 1 }
    }
}

/// What the receiver tells the sender of a class of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Preference {
    /// The way that they take from now on.
    pub(crate) way: Way,
    /// Each is to be announced, so that its time can be measured.
    pub(crate) looking: bool,
}

impl Preference {
    /// What holds before anything is told.
    pub(crate) const FIRST: Preference = Preference { way: Way::Ring, looking: true };

    /// Whether each such message is to be announced, also where it could go whole in one frame.
    pub(crate) fn announces(self) -> bool {
        self.looking || !self.way.in_frames()
    }
}

/// Of messages that go whole in one frame one in so many is announced.
pub(crate) const SAMPLE: u32 = 16;
/// What looks may cost, as a part of the time of all messages.
pub(crate) const PRICE: f64 = 0.01;
/// A way takes another one's place if its time is at most this part of that one's.
pub(crate) const MARGIN: f64 = 0.92;
/// Where messages could go whole in one frame: to announce them, as single copies need it, takes a good part of what they take in frames, and of
/// what they take by single copies a part that is over when times begin.
const MARGIN_WHOLE: f64 = 0.6;
/// A way that is measured for the first time takes another one's place at once, and not at the second time, if its time is at most this part of
/// that one's; also before all of its times are there, as noise makes none of them shorter.
const CLEARLY: f64 = 0.75;
/// A way is not tried further if more than half of its times are there, all this much longer than those of the way that is taken.
const HOPELESS: f64 = 1.5;
/// Nor is it tried in the first look if the class whose best way is the first guess knows it to be this much slower.
const HOPELESS_NEARBY: f64 = 2.0;
/// How far that class may be away: messages of up to eight times as many bytes.
const NEARBY: usize = 3;
/// What a way may cost for a message of any length, ns: a call of the system, and a turn of the other process. A longer class feels it less.
const CALL: f64 = 2000.0;
/// A message is slow if it takes this much longer than what is known of its way.
const SLOW: f64 = 2.0;
/// So many slow ones in a row are an alarm: a process that had no core for a while is slow once.
const ALARM: u8 = 4;
/// What the looks of alarms may cost, as a part of the time of all messages.
const ALARM_PRICE: f64 = 0.05;
/// What looks may cost until then, as a part of the time of all messages.
const FIRST_PRICE: f64 = 0.1;
/// So much more seldom a class looks until then that began with what one nearby has found.
const GUESSED: u32 = 4;
/// A message is slow if it takes this much longer than the machine's profile says of its way, which knows of no message that is too long for
/// the caches: 4 MiB took 4.5 times as long on a Xeon.
const FAR_OFF: f64 = 5.0;
/// Messages between two looks at least.
const BETWEEN: u32 = 256;
/// And at most.
const LONGEST_WAIT: u32 = 1 << 17;
/// Messages in a row of the kind of traffic that is not counted on, until it counts as what the pair does now; by the kind that
/// they end. The first message of each window is alone, and of a window both ways all messages of one process may come before it begins
/// to send.
const STREAK: [u8; Traffic::ALL.len()] = [2, 4, 32];

/// Times that are gathered of a way in a look at most.
const MOST_TRIES: usize = 5;
/// Bytes of a class and traffic that have to go through a ring before it is compared: its pages come into being when they are first used,
/// which takes several times as long as the copies. No ring is longer. Shorter messages, and those to and fro, may have used little of it.
const WARM_BYTES: u64 = 4 << 20;
/// The same where one message is under way at a time, and a part of the ring does for all.
const WARM_BYTES_ALONE: u64 = 1 << 20;
/// Bytes of the memory that a window's messages touch, as far as looks wait for it.
const WINDOW_BYTES: u64 = 16 << 20;

/// How a class of messages is looked at.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Messages before the first look: a program that sends fewer has nothing to gain.
    before: u32,
    /// The same where the machine's profile has said which way to begin with, and messages at least between two looks until all ways have been
    /// compared once.
    expecting: u32,
    /// Times that are gathered of a way in a look.
    tries: usize,
    /// Several messages are under way, so that they go to more memory than one of them does.
    several: bool,
}

/// Of messages of 1 MiB and more a program sends few, each of which takes long enough to be measured well.
const fn effort(class: usize, traffic: Traffic) -> Effort {
    let (before, expecting, tries) =
        if SHORTEST << class < 1 << 20 { (8, 64, MOST_TRIES) } else { (2, 16, 4) };
    let several = !matches!(traffic, Traffic::OneWay);
    Effort { before, expecting, tries: if matches!(traffic, Traffic::BothWays) { 4 } else { tries }, several }
}

/// How messages of a way are measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Messages that are measured together where several are under way.
    pub(crate) stretch: u32,
    /// Messages that go before times count: a window finds the memory of its messages in the cache of the process that touched it last,
    /// which is another one after another way.
    pub(crate) warm: u32,
    /// Messages, with those whose times do not count, before the way is given up.
    patience: u32,
}

/// How messages of a class are measured of which up to `window` are under way together. Both ways, whole windows: a process may receive
/// all of one before it sends its own.
pub(crate) fn pace(class: usize, traffic: Traffic, window: u32) -> Pace {
    let most = ((WINDOW_BYTES / SHORTEST) >> class).clamp(1, 128) as u32;
    let warm = window.min(most);
    let stretch = match traffic {
        Traffic::BothWays => warm.max(4),
        Traffic::OneWay | Traffic::Window => (most / 2).clamp(4, 16),
    };
    let stretches = if traffic == Traffic::BothWays { 5 } else { 2 };
    Pace { stretch, warm, patience: 8 + warm + stretches * stretch }
}

/// The ways that messages of one peer take.
#[derive(Debug)]
pub(crate) struct Ways {
    /// Ways that can be taken, as bits.
    possible: u8,
    classes: [Class; CLASSES],
}

/// The messages of a class.
#[derive(Clone, Copy, Debug)]
struct Class {
    traffic: Traffic,
    /// Messages of other traffic since the last one of this traffic.
    streak: u8,
    /// What the sender was told last.
    told: Option<Preference>,
    cells: [Cell; Traffic::ALL.len()],
}

impl Class {
    fn new(class: usize) -> Self {
        let cells = Traffic::ALL.map(|traffic| Cell::new(effort(class, traffic)));
        Self { traffic: Traffic::OneWay, streak: 0, told: None, cells }
    }

    /// What its messages prefer before anything is told: the first one counts as part of no other traffic.
    fn first(&self) -> Preference {
        self.cells[Traffic::OneWay as usize].wanted()
    }
}

/// Whose look has found what is known of ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// No look is over.
    NotYet,
    /// One of an earlier job.
    Before,
    /// One of this process.
    Here,
}

/// The messages of a class that are part of one kind of traffic.
#[derive(Clone, Copy, Debug)]
struct Cell {
    effort: Effort,
    /// There was a message.
    used: bool,
    /// Bytes that have come through the ring.
    by_ring: u64,
    /// Whose look has confirmed or changed the way that is taken.
    found: Found,
    way: Way,
    /// Ways that the first look leaves out, as bits.
    hopeless: u8,
    /// That look is over, and the next one tries those.
    left_out: bool,
    /// What is known of each way: the time of a byte, ns.
    times: [Option<f64>; WAYS],
    /// What the machine's profile says of each way: the time of a byte, ns.
    profile: [Option<f64>; WAYS],
    /// Ways of which what is known follows from that, as bits: none has been compared yet.
    expected: u8,
    /// It began with what a class nearby has found.
    guessed: bool,
    /// Messages until the next look.
    wait: u32,
    /// Messages until the next alarm is heard.
    deaf: u32,
    /// Slow messages in a row.
    slow: u8,
    /// The last message was announced because of its way alone.
    whole: bool,
    /// The way that was compared last.
    compared: Way,
    /// It was better than the way that is taken; if it is once more, it takes that one's place.
    promising: bool,
    look: Option<Look>,
}

/// A comparison under way.
#[derive(Clone, Copy, Debug)]
struct Look {
    trying: Way,
    /// Ways to be tried after it, as bits.
    later: u8,
    /// Ways that this look compares, as bits.
    compares: u8,
    /// It is the first one, or the first one of what only the profile knows.
    first: bool,
    /// Messages that took the way that is tried.
    messages: u32,
    samples: [f64; MOST_TRIES],
    count: usize,
    /// How many messages took each way.
    taken: [u32; WAYS],
}

fn bit(way: Way) -> u8 {
    1 << way as u8
}

/// Number of ways.
const WAYS: usize = Way::ALL.len();
/// All ways, as bits.
const ALL_WAYS: u8 = (1 << WAYS) - 1;

impl Ways {
    /// Messages take the way that earlier jobs found, as if a look of this one had; else the one that the machine's profile says is best, and
    /// where nothing is known the ring.
    pub(crate) fn new(known: &[(KnownWay, Found)]) -> Self {
        let mut ways = Self { possible: ALL_WAYS, classes: std::array::from_fn(Class::new) };
        for (row, found) in known {
            if let Some(class) = ways.classes.get_mut(row.class) {
                class.cells[row.traffic as usize].knows(row, *found);
            }
        }
        // The sender knows the same.
        ways.classes.iter_mut().for_each(|class| class.told = Some(class.first()));
        ways
    }

    /// What messages of a class prefer before anything is told.
    pub(crate) fn first(&self, class: usize) -> Preference {
        self.classes[class].first()
    }

    /// From now on this way, which is not the ring, is not taken: it was found to be impossible.
    pub(crate) fn refuse(&mut self, way: Way) {
        assert!(!way.in_frames(), "frames are always possible");
        self.possible &= !bit(way);
    }

    /// How this process would have messages of a class come that it receives, as its traffic is now.
    pub(crate) fn wanted(&self, class: usize) -> Way {
        let class = &self.classes[class];
        class.cells[class.traffic as usize].wanted().way
    }

    /// Whether messages of a class go both ways.
    pub(crate) fn are_both_ways(&self, class: usize) -> bool {
        self.classes[class].traffic == Traffic::BothWays
    }

    /// Whether the time of a message of `len` bytes is wanted.
    pub(crate) fn is_looking(&self, len: u64) -> bool {
        class(len)
            .map(|at| &self.classes[at])
            .is_some_and(|class| class.cells[class.traffic as usize].look.is_some())
    }

    /// What the messages of a class are part of, now that one of them was part of `traffic`: single messages of another kind change
    /// nothing. One or two of each window both ways are alone at its ends. A sample says nothing of those around it.
    pub(crate) fn traffic(&mut self, class: usize, traffic: Traffic, cause: Cause) -> Traffic {
        let class = &mut self.classes[class];
        if cause == Cause::Sample {
            return class.traffic;
        }
        class.streak = if class.traffic == traffic { 0 } else { class.streak + 1 };
        if class.streak == STREAK[class.traffic as usize] {
            // The sender is told at once, so that it knows who leads.
            (class.traffic, class.streak, class.told) = (traffic, 0, None);
        }
        class.traffic
    }

    /// A message has arrived. Gives what the sender is to be told of a class of messages; nothing unless this process `leads`, and chooses. Up
    /// to `window` messages are under way together.
    pub(crate) fn over(
        &mut self,
        arrived: &Arrived,
        leads: bool,
        window: u32,
    ) -> Option<(usize, Preference)> {
        let Arrived { len, traffic, by, .. } = *arrived;
        let at = class(len)?;
        if leads {
            self.guess(at, traffic);
        }
        let class = &mut self.classes[at];
        let cell = &mut class.cells[traffic as usize];
        if !leads {
            (class.told, cell.look) = (None, None);
            return None;
        }
        cell.used = true;
        cell.by_ring += if by.in_frames() { len * u64::from(arrived.stands_for()) } else { 0 };
        // A ring gets warm before its times count, and before others are compared with it.
        let warm = if traffic == Traffic::OneWay { WARM_BYTES_ALONE } else { WARM_BYTES };
        if !by.in_frames() || cell.by_ring > warm {
            cell.over(arrived, self.possible, pace(at, traffic, window).patience);
        }
        let wanted = cell.wanted();
        (class.told.replace(wanted) != Some(wanted)).then_some((at, wanted))
    }
}

impl Ways {
    /// Of each class and traffic that there was: the way that is taken, what is known of each, and whose look has found that.
    pub(crate) fn known(&self) -> impl Iterator<Item = (usize, Traffic, Way, [Option<f64>; WAYS], Found)> {
        let used = |&(_, _, cell): &(usize, Traffic, &Cell)| cell.used;
        let cells = self.classes.iter().enumerate().flat_map(|(at, class)| {
            Traffic::ALL.into_iter().zip(&class.cells).map(move |(traffic, cell)| (at, traffic, cell))
        });
        cells.filter(used).map(|(at, traffic, cell)| (at, traffic, cell.way, cell.measured(), cell.found))
    }

    /// A class begins that has met no such traffic, and of which at most the machine's profile says something: with what one nearby has
    /// measured, if there is one.
    fn guess(&mut self, at: usize, traffic: Traffic) {
        let cell = |at: usize| Some(&self.classes.get(at)?.cells[traffic as usize]);
        if cell(at).is_none_or(|own| own.used || own.is_settled()) {
            return;
        }
        let near = (1..=NEARBY).flat_map(|far| [at.checked_sub(far), Some(at + far)]).flatten();
        let known = |near: &&Cell| near.is_settled() && near.measured()[near.way as usize].is_some();
        let mut near = near.into_iter();
        let Some((near, at_near)) = near.find_map(|at| Some((*cell(at).filter(known)?, at))) else { return };
        self.classes[at].cells[traffic as usize].begins_as(&near, at_near);
    }
}

impl Cell {
    fn new(effort: Effort) -> Self {
        Self {
            effort,
            used: false,
            by_ring: 0,
            found: Found::NotYet,
            way: Way::Ring,
            hopeless: 0,
            left_out: false,
            times: [None; WAYS],
            profile: [None; WAYS],
            expected: 0,
            guessed: false,
            wait: effort.before,
            deaf: 0,
            slow: 0,
            whole: false,
            compared: Way::Ring,
            promising: false,
            look: None,
        }
    }

    /// An earlier job has found this, or the machine's profile says so.
    fn knows(&mut self, row: &KnownWay, found: Found) {
        (self.way, self.compared, self.found) = (row.way, row.way, found);
        self.times = row.times.map(|time| Some(time? * 1e9));
        // A ring needs nothing of the kernel: what the profile says must be far better.
        let is_close = |row: &KnownWay| {
            let [by_ring, best] = [Way::Ring, row.way].map(|way| row.times[way as usize]);
            by_ring.zip(best).is_some_and(|(by_ring, best)| best > MARGIN_WHOLE * by_ring)
        };
        if found == Found::NotYet && is_close(row) {
            (self.way, self.compared) = (Way::Ring, Way::Ring);
        }
        match found {
            Found::NotYet => {
                (self.profile, self.expected, self.wait) = (self.times, ALL_WAYS, self.effort.expecting)
            }
            _ => (self.expected, self.wait) = (0, BETWEEN),
        }
    }

    /// What another class has measured is the first guess. The machine's profile is taken to be as wrong of each way as it was found to be
    /// there; where it says nothing the way that is best there is taken, and the first look leaves out those that are hopeless there. Of messages
    /// that go whole frames are no guess: they stay in them also where that takes somewhat longer, and others take longer in them.
    fn begins_as(&mut self, near: &Cell, at: usize) {
        let measured = near.measured();
        let is_guess = |way: Way| !near.whole || !way.in_frames();
        if self.expected == 0 {
            let Some(best) = measured[near.way as usize].filter(|_| is_guess(near.way)) else { return };
            let most = best * HOPELESS_NEARBY + CALL / (SHORTEST << at) as f64;
            let hopeless = |way: &Way| near.time(*way).is_some_and(|time| time > most);
            self.hopeless = Way::ALL.into_iter().filter(hopeless).map(bit).sum();
            self.way = near.way;
            return;
        }
        // How else frames may be copied is one matter, and how fast they come another.
        let wrong = |way: Way| Some(measured[way as usize]? / near.profile[way as usize]?);
        let of_frames = || Way::ALL.into_iter().filter(|other| other.in_frames()).find_map(wrong);
        let guess = |way: Way| {
            let wrong = wrong(way).or_else(|| if way.in_frames() { of_frames() } else { None });
            Some(self.profile[way as usize]? * wrong?)
        };
        let guesses = Way::ALL.map(guess);
        // Ways of which nothing was measured are not compared: it is the machine that is slower than its profile, and not the others.
        let (mut taken, Some(mut best)) = (near.way, guesses[near.way as usize]) else { return };
        for way in Way::ALL {
            if let Some(time) = guesses[way as usize].filter(|time| *time < MARGIN * best) {
                (taken, best) = (way, time);
            }
        }
        if !is_guess(taken) {
            return;
        }
        for (time, guess) in self.times.iter_mut().zip(guesses) {
            *time = guess.or(*time);
        }
        (self.way, self.compared) = (taken, taken);
        (self.guessed, self.wait) = (true, GUESSED * self.wait);
    }

    /// What was measured of each way.
    fn measured(&self) -> [Option<f64>; WAYS] {
        Way::ALL.map(|way| self.time(way).filter(|_| !self.is_expected(way)))
    }

    /// Whether what is known of a way is what the machine's profile says.
    fn is_expected(&self, way: Way) -> bool {
        self.expected & bit(way) != 0
    }

    /// A look has confirmed or changed the way that is taken.
    fn is_settled(&self) -> bool {
        self.found != Found::NotYet
    }

    /// What is known of a way.
    fn time(&self, way: Way) -> Option<f64> {
        self.times[way as usize]
    }

    /// What the sender should know.
    fn wanted(&self) -> Preference {
        match self.look {
            Some(look) => Preference { way: look.trying, looking: true },
            None => Preference {
                way: self.way,
                looking: self.left_out
                    || self.expected != 0 && !self.way.in_frames()
                    || self.time(self.way).is_none(),
            },
        }
    }

    fn over(&mut self, arrived: &Arrived, possible: u8, patience: u32) {
        let Arrived { by, time, cause, .. } = *arrived;
        self.whole = cause != Cause::Long;
        if possible & bit(self.way) == 0 {
            (self.way, self.look, self.wait) = (Way::Ring, None, self.effort.before);
        }
        let Some(look) = &mut self.look else {
            // What is still under way by another way is a part of the price of the look before.
            self.wait = match by == self.way {
                true => self.wait.saturating_sub(arrived.stands_for()),
                false if self.is_settled() => (self.wait + self.lost(by, 1)).min(LONGEST_WAIT),
                // These were sent before the sender was told of a first guess.
                false => self.wait,
            };
            if by == self.way && self.alarms(time) {
                self.hear();
            }
            if self.wait == 0 {
                self.start_look(possible);
            }
            return;
        };
        look.taken[by as usize] += 1;
        if possible & bit(look.trying) == 0 {
            return self.tried(possible);
        }
        // What was sent before the sender was told.
        if by != look.trying {
            return;
        }
        look.messages += 1;
        // The first one had others of another way around it.
        if let Some(time) = time.filter(|_| look.messages > 1) {
            look.samples[look.count] = time;
            look.count += 1;
        }
        let taken = self.times[self.way as usize].filter(|_| look.trying != self.way);
        let samples = &look.samples[..look.count];
        let (least, most) =
            (samples.iter().copied().reduce(f64::min), samples.iter().copied().reduce(f64::max));
        let hopeless = samples.len() > self.effort.tries / 2
            && taken.zip(least).is_some_and(|(taken, least)| least > HOPELESS * taken);
        let clear = look.first
            && samples.len() >= 2
            && taken.zip(most).is_some_and(|(taken, most)| most < CLEARLY * taken);
        if clear {
            // Of those the profile still says something.
            let left = look.later & self.expected;
            (look.compares, look.later) = (look.compares & !left, look.later & !left);
        }
        if look.count == self.effort.tries || look.messages >= patience || hopeless || clear {
            self.tried(possible);
        }
    }

    /// Another message by the way that is taken, outside of a look: whether it is the last one of an alarm.
    fn alarms(&mut self, time: Option<f64>) -> bool {
        self.deaf = self.deaf.saturating_sub(1);
        let Some((time, known)) = time.zip(self.time(self.way)) else { return false };
        let slow = if self.is_expected(self.way) && !self.guessed { FAR_OFF } else { SLOW };
        self.slow = if time > slow * known { self.slow.saturating_add(1) } else { 0 };
        self.slow >= ALARM && self.deaf == 0
    }

    /// What is known of ways holds no longer: a look begins that compares all of them, as the first one did; or, where only the machine's profile
    /// has said something so far, the first one of several.
    fn hear(&mut self) {
        (self.slow, self.wait) = (0, 0);
        // A guess that was this wrong is none.
        self.guessed = false;
        if self.is_expected(self.way) {
            return;
        }
        (self.times, self.expected) = ([None; WAYS], 0);
        (self.promising, self.left_out) = (false, false);
    }

    /// Begins to compare the way that is taken with all others at first, later with one after the other.
    fn start_look(&mut self, possible: u8) {
        self.expected &= possible;
        let others = possible & !bit(self.way);
        let unknown = |way: &Way| self.times[*way as usize].is_none();
        let later = match others & Way::ALL.into_iter().filter(unknown).map(bit).sum::<u8>() {
            _ if self.promising => others & bit(self.compared),
            0 => {
                // How else frames may be copied depends on what is in the caches, of which the profile knows nothing: it takes that for as quick. Of
                // several messages it is looked at beside a single copy.
                let copied_otherwise =
                    |way: &Way| way.in_frames() && self.way.in_frames() && self.is_expected(*way);
                let beside = Way::ALL.into_iter().filter(|way| self.effort.several && copied_otherwise(way));
                let beside = beside.map(bit).sum::<u8>();
                let turn = (1..=WAYS).map(|next| Way::ALL[(self.compared as usize + next) % WAYS]);
                // Of those that only the profile speaks of the most promising one comes first, single copies before frames, and last those that
                // would have to be much better than it says, once the way that is taken was measured.
                let taken = self.measured()[self.way as usize].unwrap_or(f64::INFINITY);
                let expected = |way: &Way| match self.time(*way).filter(|_| self.is_expected(*way)) {
                    Some(_) if copied_otherwise(way) => (1, 0.0),
                    Some(time) => (if CLEARLY * time > taken { 2 } else { 0 }, time),
                    None => (3, 0.0),
                };
                let next = turn
                    .into_iter()
                    .filter(|way| others & bit(*way) != 0)
                    .min_by(|a, b| expected(a).partial_cmp(&expected(b)).unwrap_or(Ordering::Equal));
                self.compared = next.unwrap_or(self.way);
                others & (bit(self.compared) | beside)
            }
            unknown => match unknown & !self.hopeless {
                0 => unknown,
                hopeful => hopeful,
            },
        };
        let first = !self.is_settled() || later & self.expected != 0;
        self.look = Some(Look {
            trying: self.way,
            later,
            compares: later,
            first,
            messages: 0,
            samples: [0.0; MOST_TRIES],
            count: 0,
            taken: [0; WAYS],
        });
    }

    /// The way that was tried has all its times, or is given up: goes on with the next one, or ends the look.
    fn tried(&mut self, possible: u8) {
        let Some(look) = &mut self.look else { return };
        let samples = &mut look.samples[..look.count];
        samples.sort_by(f64::total_cmp);
        self.expected &= !bit(look.trying);
        // The smallest of many may be a stroke of luck.
        self.times[look.trying as usize] = samples.get(usize::from(look.count == self.effort.tries)).copied();
        let known = self.times[self.way as usize].is_some();
        // Frames last: after a single copy that is clearly better they are left for another look.
        let left = Way::ALL.into_iter().filter(|way| look.later & possible & bit(*way) != 0);
        let next = left.min_by_key(|way| way.in_frames());
        match next.filter(|_| known) {
            Some(next) => {
                (look.trying, look.messages, look.count) = (next, 0, 0);
                look.later &= !bit(next);
            }
            None => self.end_look(),
        }
    }

    fn end_look(&mut self) {
        let Some(look) = self.look.take() else { return };
        // Without a time of the way that is taken nothing was compared: receives come late here, so that ways matter little.
        let Some(mut best) = self.times[self.way as usize] else {
            self.wait = 4 * BETWEEN;
            return;
        };
        let mut better = None;
        for way in Way::ALL.into_iter().filter(|way| look.compares & bit(*way) != 0) {
            let announced = self.whole && self.way.in_frames() && !way.in_frames();
            let margin = if announced { MARGIN_WHOLE } else { MARGIN };
            if let Some(time) = self.times[way as usize].filter(|time| *time < margin * best) {
                (better, best) = (Some(way), time);
            }
        }
        if let Some(way) = better {
            let clearly = look.first && self.time(self.way).is_some_and(|taken| best <= CLEARLY * taken);
            let again = clearly || self.promising && self.compared == way;
            (self.compared, self.promising) = (way, !again);
            if again {
                self.way = way;
            } else {
                self.wait = 1;
                return;
            }
        }
        (self.promising, self.found) = (false, Found::Here);
        let lost: u32 = Way::ALL.into_iter().map(|way| self.lost(way, look.taken[way as usize])).sum();
        // What goes whole at other times loses by being announced, whichever way it takes.
        let announced = if self.whole { look.taken.iter().sum::<u32>() } else { 0 };
        let lost = lost.saturating_add((f64::from(announced) / PRICE) as u32);
        self.left_out = std::mem::take(&mut self.hopeless) != 0;
        let first = self.left_out || self.expected != 0;
        let seldom = if self.guessed { GUESSED } else { 1 };
        let (most, least) = match first {
            true => (FIRST_PRICE / f64::from(seldom), seldom * self.effort.expecting),
            false => (PRICE, BETWEEN),
        };
        self.wait = ((f64::from(lost) * (PRICE / most)) as u32).clamp(least, LONGEST_WAIT);
        self.deaf = (f64::from(lost) * (PRICE / ALARM_PRICE)) as u32;
    }

    /// Messages by the way that is taken of whose time as much as looks may cost is what so many lost that took another one.
    fn lost(&self, way: Way, messages: u32) -> u32 {
        let [time, best] = [way, self.way].map(|way| self.times[way as usize]);
        // What is not known has cost something, too.
        let each = time.zip(best).map_or(1.0, |(time, best)| (time / best - 1.0).max(0.0));
        (f64::from(messages) * each / PRICE).min(f64::from(LONGEST_WAIT)) as u32
    }
}

//! [`KnownWays`]: what jobs have measured of the ways of long messages on a machine, kept for the next job in the file of the machine's
//! [profile](crate::Profile). One line for each distance, class of lengths and traffic:
//!
//! ```text
//! way near 262144 both-ways read 7.64e-11 4.10e-11 - 5.51e-11 -
//! ```
//!
//! After the word `way`: how the two cores are apart, the length of the shortest messages of the class, the traffic, the way that was
//! taken in the end, and what a byte took by each, by their numbers ([`Way::ALL`]), in seconds (`-`: that is not known).

use std::fmt::Write;

use crate::profile::DISTANCES;
use crate::ways::{CLASSES, SHORTEST, Traffic, Way, class};

/// What is known of the messages of a class, in one kind of traffic, between cores that are so far apart.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct KnownWay {
    /// How the cores are apart: a place in [`DISTANCES`].
    pub distance: usize,
    /// The [class] of the messages.
    pub class: usize,
    /// What the messages are part of.
    pub traffic: Traffic,
    /// The way that was best.
    pub way: Way,
    /// What a byte takes by each way, by its number, in seconds. That of `way` is known.
    pub times: [Option<f64>; Way::ALL.len()],
}

/// The least and the most seconds that a byte may take.
const TIMES: std::ops::RangeInclusive<f64> = 1e-13..=1e-3;
/// The first word of each line.
const WORD: &str = "way";
/// Another time is told if it differs from the one that is kept by more than this factor.
const NEWS: f64 = 1.25;

impl KnownWay {
    /// What it is about: two rows about the same do not stand side by side.
    fn about(&self) -> (usize, usize, usize) {
        (self.distance, self.class, self.traffic as usize)
    }

    /// What a byte takes by the way that was best, in seconds.
    fn best(&self) -> f64 {
        self.times[self.way as usize].unwrap_or(f64::INFINITY)
    }

    fn is_sound(&self) -> bool {
        self.distance < DISTANCES.len()
            && self.class < CLASSES
            && self.times[self.way as usize].is_some()
            && self.times.iter().flatten().all(|time| TIMES.contains(time))
    }

    /// Whether it says something else than `old`, which is about the same.
    fn is_news_to(&self, old: &KnownWay) -> bool {
        let differ = |(new, old): (&Option<f64>, &Option<f64>)| match (new, old) {
            (Some(new), Some(old)) => new.max(*old) > NEWS * new.min(*old),
            (new, old) => new.is_some() && old.is_none(),
        };
        self.way != old.way || self.times.iter().zip(&old.times).any(differ)
    }

    fn read(line: &str) -> Option<KnownWay> {
        let mut words = line.split(' ');
        words.next().filter(|word| *word == WORD)?;
        let distance = words.next()?;
        let distance = DISTANCES.iter().position(|name| *name == distance)?;
        let shortest = words.next()?.parse().ok()?;
        let class = class(shortest).filter(|class| SHORTEST << class == shortest)?;
        let traffic = words.next()?;
        let traffic = Traffic::ALL.into_iter().find(|known| word(*known) == traffic)?;
        let way = words.next()?.parse().ok()?;
        let mut times = [None; Way::ALL.len()];
        for time in &mut times {
            *time = match words.next()? {
                "-" => None,
                text => Some(text.parse().ok()?),
            };
        }
        let known = KnownWay { distance, class, traffic, way, times };
        (words.next().is_none() && known.is_sound()).then_some(known)
    }

    fn write(&self, out: &mut String) {
        let KnownWay { distance, class, traffic, way, times } = *self;
        let shortest = SHORTEST << class;
        let _ = write!(out, "{WORD} {} {shortest} {} {}", DISTANCES[distance], word(traffic), way.name());
        for time in times {
            let _ = match time {
                Some(time) => write!(out, " {time:.2e}"),
                None => write!(out, " -"),
            };
        }
        out.push('\n');
    }
}

/// A kind of traffic as one word.
fn word(traffic: Traffic) -> String {
    traffic.name().replace(' ', "-")
}

/// What is known of the ways of long messages on a machine.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct KnownWays {
    /// In order, and none twice, by what they are about.
    rows: Vec<KnownWay>,
}

impl KnownWays {
    /// Reads the lines of a profile's text that are about ways. Lines that are wrong are left out: what they say was only a first guess.
    pub fn parse(text: &str) -> KnownWays {
        let mut known = KnownWays::default();
        text.lines().filter_map(KnownWay::read).for_each(|row| known.put(row, |_| true));
        known
    }

    /// Whether a profile's text has lines about ways.
    pub fn are_in(text: &str) -> bool {
        text.lines().any(KnownWays::is_line)
    }

    /// Whether a line of a profile's text is about ways, and no figure.
    pub(crate) fn is_line(line: &str) -> bool {
        line.split(' ').next() == Some(WORD)
    }

    /// As lines of a profile's text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.rows.iter().for_each(|row| row.write(&mut text));
        text
    }

    /// All that is known.
    pub fn rows(&self) -> &[KnownWay] {
        &self.rows
    }

    /// One pair of ranks has measured this. Of several pairs in a job the quickest one counts: others had other work beside.
    pub fn add(&mut self, row: KnownWay) {
        self.put(row, |old| row.best() < old.best());
    }

    /// A later job knows this. Gives whether any of it is new.
    pub fn learn(&mut self, later: &KnownWays) -> bool {
        let before = self.clone();
        later.rows.iter().for_each(|row| self.put(*row, |old| row.is_news_to(old)));
        *self != before
    }

    /// Keeps a row, in the place of an `old` one about the same if it is to be `replaced`.
    fn put(&mut self, row: KnownWay, replaced: impl FnOnce(&KnownWay) -> bool) {
        if !row.is_sound() {
            return;
        }
        match self.rows.binary_search_by_key(&row.about(), KnownWay::about) {
            Ok(at) if replaced(&self.rows[at]) => self.rows[at] = row,
            Ok(_) => {}
            Err(at) => self.rows.insert(at, row),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(way: Way, times: [Option<f64>; 5]) -> KnownWay {
        KnownWay { distance: 2, class: 4, traffic: Traffic::BothWays, way, times }
    }

    #[test]
    fn a_line_is_as_documented() {
        let known = row(Way::Read, [Some(7.64e-11), Some(4.1e-11), None, Some(5.51e-11), None]);
        let text = "way near 262144 both-ways read 7.64e-11 4.10e-11 - 5.51e-11 -\n";
        assert_eq!(KnownWays { rows: vec![known] }.text(), text);
        assert_eq!(KnownWays::parse(text).rows(), [known]);
        for (from, to) in [
            ("way near", "way nearby"),
            ("262144", "262145"),
            ("262144", "512"),
            ("262144", "134217728"),
            ("both-ways", "both"),
            ("read", "ring"),
            ("read", "fly"),
            ("7.64e-11", "7.64"),
            ("7.64e-11", "NaN"),
            (" - ", " "),
            (" - ", " - - "),
            (" -\n", "\n"),
            ("4.10e-11", "-"),
        ] {
            let wrong = text.replacen(from, to, 1);
            let read = KnownWays::parse(&wrong);
            // The ring's time is there, so that it may have been best.
            assert_eq!(read.rows().len(), usize::from(to == "ring"), "{wrong}");
        }
    }

    #[test]
    fn of_several_pairs_the_quickest_counts_and_of_jobs_the_later() {
        let [slow, quick] = [2e-10, 1e-10].map(|time| row(Way::Ring, [Some(time), None, None, None, None]));
        for order in [[slow, quick], [quick, slow]] {
            let mut known = KnownWays::default();
            order.into_iter().for_each(|row| known.add(row));
            assert_eq!(known.rows(), [quick]);
        }
        let [slow, quick] = [slow, quick].map(|row| KnownWays { rows: vec![row] });
        let mut known = KnownWays::default();
        assert!(known.learn(&quick) && known.learn(&slow) && known == slow);
        // What is nearly the same is no news, nor is what says less.
        let same = row(Way::Ring, [Some(1.9e-10), None, None, None, None]);
        assert!(!known.learn(&KnownWays { rows: vec![same] }) && known == slow);
        let other = KnownWay { class: 5, ..same };
        let way = row(Way::Read, [Some(2e-10), Some(1.9e-10), None, None, None]);
        assert!(known.learn(&KnownWays { rows: vec![way, other] }));
        assert_eq!(known.rows(), [way, other]);
    }

    fn any_row() -> impl Strategy<Value = KnownWay> {
        let time = || prop::option::of(1e-12..1e-6f64);
        (
            (0usize..3, 0..CLASSES, 0usize..3),
            0usize..5,
            [time(), time(), time(), time(), time()],
            1e-12..1e-6f64,
        )
            .prop_map(|((distance, class, traffic), way, mut times, own)| {
                times[way] = Some(own);
                let (traffic, way) = (Traffic::ALL[traffic], Way::ALL[way]);
                KnownWay { distance, class, traffic, way, times }
            })
    }

    proptest! {
        #[test]
        fn what_is_known_survives_its_text(rows in prop::collection::vec(any_row(), 0..200)) {
            let mut known = KnownWays::default();
            rows.into_iter().for_each(|row| known.add(row));
            prop_assert!(known.text().len() < 10 << 10);
            let read = KnownWays::parse(&known.text());
            // Text has three digits.
            prop_assert_eq!(KnownWays::parse(&read.text()), read.clone());
            prop_assert_eq!(read.rows().len(), known.rows().len());
            for (read, known) in read.rows().iter().zip(known.rows()) {
                prop_assert_eq!((read.about(), read.way), (known.about(), known.way));
                prop_assert!(!read.is_news_to(known) && !known.is_news_to(read));
            }
        }

        #[test]
        fn any_text_is_read(lines in prop::collection::vec("(way )?(near|caches)? ?[0-9]{0,20} (one-way|in-windows)?( ?(read|-|[0-9.e-]{0,9})){0,6}", 0..9)) {
            let known = KnownWays::parse(&lines.join("\n"));
            prop_assert!(known.rows().iter().all(KnownWay::is_sound));
        }
    }
}

//! Output as lines: makes whole lines of the pieces of a stream, and one stream of the lines of many ranks. Pure.

use std::time::{Duration, Instant};

/// Bytes of the longest line that is kept until it is whole; a longer one is passed on in pieces.
const MAX_LINE: usize = 1 << 20;

/// An unfinished line is shown when nothing more has come for this long (a prompt).
const QUIET: Duration = Duration::from_millis(100);

/// An unfinished line is shown after this time even if more keeps coming (a row of dots).
const SLOW: Duration = Duration::from_millis(500);

/// The unfinished line of one stream of one rank.
#[derive(Default, Debug)]
pub(crate) struct PartialLine {
    bytes: Vec<u8>,
    /// When the first and the last of its bytes came; `None` if there are none.
    since: Option<(Instant, Instant)>,
}

impl PartialLine {
    /// Takes bytes that arrived; calls `emit` at most once, with all whole lines.
    pub(crate) fn feed(&mut self, bytes: &[u8], now: Instant, emit: impl FnOnce(&[u8])) {
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let (lines, rest) = bytes.split_at(whole);
        if self.bytes.is_empty() && rest.len() <= MAX_LINE {
            self.keep(rest, now);
            if !lines.is_empty() {
                emit(lines);
            }
            return;
        }
        let first = self.since.map_or(now, |(first, _)| first);
        if self.bytes.len() + bytes.len() > MAX_LINE {
            self.bytes.extend_from_slice(bytes);
            emit(&self.take());
        } else if lines.is_empty() {
            self.bytes.extend_from_slice(bytes);
            self.since = Some((first, now));
        } else {
            self.bytes.extend_from_slice(lines);
            emit(&self.take());
            self.keep(rest, now);
        }
    }

    fn keep(&mut self, rest: &[u8], now: Instant) {
        self.bytes.extend_from_slice(rest);
        self.since = (!rest.is_empty()).then_some((now, now));
    }

    /// When the unfinished line is due to be shown.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.since.map(|(first, last)| (first + SLOW).min(last + QUIET))
    }

    /// Takes the unfinished line out.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.since = None;
        std::mem::take(&mut self.bytes)
    }
}

/// The writer of a piece of output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Writer {
    Rank(u32),
    Launcher,
}

/// The prefix of each line of a rank.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Label {
    /// The rank, in brackets.
    pub(crate) rank: bool,
    /// The time, as this function gives it.
    pub(crate) time: Option<fn() -> String>,
}

impl Label {
    fn of(self, rank: u32) -> String {
        let time = self.time.map(|time| time() + " ").unwrap_or_default();
        if self.rank { format!("{time}[{rank}] ") } else { time }
    }
}

/// Merges the output of all ranks into one stream.
#[derive(Debug)]
pub(crate) struct Merger {
    label: Label,
    /// The writer whose line has begun and not ended.
    open: Option<Writer>,
}

impl Merger {
    pub(crate) fn new(label: Label) -> Merger {
        Merger { label, open: None }
    }

    /// Appends `text` of `writer` to `out`, with the label in front of every line if there is a label.
    pub(crate) fn add(&mut self, writer: Writer, text: &[u8], out: &mut Vec<u8>) {
        if text.is_empty() {
            return;
        }
        let labelled = self.label.rank || self.label.time.is_some();
        if !labelled && writer != Writer::Launcher {
            out.extend_from_slice(text);
            self.open = (!text.ends_with(b"\n")).then_some(writer);
            return;
        }
        let label = match writer {
            Writer::Rank(rank) => self.label.of(rank),
            Writer::Launcher => String::new(),
        };
        for line in text.split_inclusive(|&byte| byte == b'\n') {
            if self.open.is_some_and(|open| open != writer) {
                out.push(b'\n');
                self.open = None;
            }
            if self.open.is_none() {
                out.extend_from_slice(label.as_bytes());
            }
            out.extend_from_slice(line);
            self.open = (!line.ends_with(b"\n")).then_some(writer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn whole_lines_come_at_once_and_rests_later() {
        let now = Instant::now();
        let mut line = PartialLine::default();
        let mut seen = Vec::new();
        line.feed(b"one\ntw", now, |text| seen.extend_from_slice(text));
        assert_eq!(seen, b"one\n");
        assert_eq!(line.due(), Some(now + QUIET));
        let later = now + Duration::from_millis(450);
        line.feed(b"o", later, |_| panic!("no whole line yet"));
        assert_eq!(line.due(), Some(now + SLOW));
        line.feed(b"\nx\n", later, |text| seen.extend_from_slice(text));
        assert_eq!(seen, b"one\ntwo\nx\n");
        assert_eq!(line.due(), None);
    }

    #[test]
    fn tags_never_mix_lines() {
        let mut merger = Merger::new(Label { rank: true, time: None });
        let mut out = Vec::new();
        merger.add(Writer::Rank(0), b"a\nname? ", &mut out);
        merger.add(Writer::Rank(1), b"b\n", &mut out);
        merger.add(Writer::Rank(0), b"go on", &mut out);
        merger.add(Writer::Rank(1), b"", &mut out);
        merger.add(Writer::Rank(0), b"!\n", &mut out);
        assert_eq!(out, b"[0] a\n[0] name? \n[1] b\n[0] go on!\n");
    }

    #[test]
    fn the_time_stands_before_the_rank() {
        let time = Some((|| "noon".to_owned()) as fn() -> String);
        let text = |label| {
            let mut out = Vec::new();
            let mut merger = Merger::new(label);
            merger.add(Writer::Rank(3), b"a\nb", &mut out);
            merger.add(Writer::Launcher, b"mpirun: x\n", &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(Label { rank: true, time }), "noon [3] a\nnoon [3] b\nmpirun: x\n");
        assert_eq!(text(Label { rank: false, time }), "noon a\nnoon b\nmpirun: x\n");
    }

    #[test]
    fn the_launcher_starts_a_line_of_its_own() {
        let mut merger = Merger::new(Label::default());
        let mut out = Vec::new();
        merger.add(Writer::Rank(0), b"half", &mut out);
        merger.add(Writer::Launcher, b"mpirun: x\n", &mut out);
        assert_eq!(out, b"half\nmpirun: x\n");
    }

    proptest! {
        #[test]
        fn no_byte_is_lost(pieces in prop::collection::vec("[ab\\n]{0,9}", 0..20)) {
            let now = Instant::now();
            let mut line = PartialLine::default();
            let mut seen = Vec::new();
            for piece in &pieces {
                let before = seen.len();
                line.feed(piece.as_bytes(), now, |text| seen.extend_from_slice(text));
                prop_assert!(seen.len() == before || seen.ends_with(b"\n"));
            }
            seen.extend(line.take());
            prop_assert_eq!(seen, pieces.concat().into_bytes());
        }

        #[test]
        fn long_lines_stay_bounded(sizes in prop::collection::vec(1usize..400_000, 0..12)) {
            let now = Instant::now();
            let mut line = PartialLine::default();
            let mut count = 0;
            for &size in &sizes {
                line.feed(&vec![b'x'; size], now, |text| count += text.len());
                prop_assert!(line.bytes.len() <= MAX_LINE);
            }
            prop_assert_eq!(count + line.take().len(), sizes.iter().sum::<usize>());
        }
    }
}

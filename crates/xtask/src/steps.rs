//! A list of steps run one after another, each with its time, and a summary at the end.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::process;

/// How many checks passed, failed and were left out, with what to say about them.
#[derive(Default, Debug)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    /// Lines for the summary: what failed, what was left out and why.
    pub(crate) notes: Vec<String>,
}

impl Tally {
    /// One check that passed.
    pub(crate) fn pass() -> Tally {
        Tally { passed: 1, ..Tally::default() }
    }

    /// One step left out, with the reason.
    pub(crate) fn skip(reason: impl Into<String>) -> Tally {
        Tally { skipped: 1, notes: vec![format!("left out: {}", reason.into())], ..Tally::default() }
    }

    /// Counts one named check; a failure becomes a note.
    pub(crate) fn check(&mut self, name: &str, result: Result<()>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(error) => {
                self.failed += 1;
                self.notes.push(format!("FAILED {name}: {error:#}"));
            }
        }
    }

    /// Counts what another tally has.
    pub(crate) fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.notes.extend(other.notes);
    }

    /// Counts one named check as left out.
    pub(crate) fn leave_out(&mut self, name: &str, reason: &str) {
        self.skipped += 1;
        self.notes.push(format!("left out {name}: {reason}"));
    }
}

/// A named piece of work.
pub(crate) struct Step<'a> {
    pub(crate) name: &'static str,
    work: Box<dyn Fn() -> Result<Tally> + 'a>,
}

impl<'a> Step<'a> {
    /// A step from its name and what it does; an error is one failure.
    pub(crate) fn new(name: &'static str, work: impl Fn() -> Result<Tally> + 'a) -> Step<'a> {
        Step { name, work: Box::new(work) }
    }
}

/// Runs the steps and prints each with its time, then a table; true if nothing failed.
pub(crate) fn run(steps: &[&Step<'_>]) -> bool {
    let mut rows = Vec::new();
    let start = Clock::now();
    for (number, step) in steps.iter().enumerate() {
        println!("[{}/{}] {}", number + 1, steps.len(), step.name);
        let begun = Clock::now();
        let tally = (step.work)().unwrap_or_else(|error| Tally {
            failed: 1,
            notes: vec![format!("FAILED {}: {error:#}", step.name)],
            ..Tally::default()
        });
        for note in &tally.notes {
            println!("{}", indent(&process::tail(note, 100)));
        }
        let took = begun.elapsed();
        println!("        {}, {}", counts(&tally), seconds(took.wall));
        rows.push((step.name, tally, took));
    }
    summary(&rows, start.elapsed())
}

/// A time by the clock, and what processors worked for this process and its children in it.
struct Took {
    wall: Duration,
    processor: Duration,
}

/// The moment from which a [`Took`] counts.
struct Clock {
    wall: Instant,
    processor: Duration,
}

impl Clock {
    fn now() -> Clock {
        Clock { wall: Instant::now(), processor: processor_time() }
    }

    fn elapsed(&self) -> Took {
        Took { wall: self.wall.elapsed(), processor: processor_time().saturating_sub(self.processor) }
    }
}

/// What this process has taken of processors, with the children that have ended; 0 if the system does not tell.
fn processor_time() -> Duration {
    let told = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name in parentheses, which may hold anything, 11 fields come before the four times, in ticks of 10 ms.
    let fields = told.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

fn summary(rows: &[(&str, Tally, Took)], total: Took) -> bool {
    let width = rows.iter().map(|row| row.0.len()).max().unwrap_or(0);
    println!(
        "\n{:width$}  {:>7} {:>7} {:>7} {:>10} {:>12}",
        "step", "passed", "failed", "skipped", "time", "processors"
    );
    let mut all = Tally::default();
    for (name, tally, time) in rows {
        let mark = if tally.failed > 0 { "  FAILED" } else { "" };
        println!(
            "{name:width$}  {:>7} {:>7} {:>7} {:>10} {:>12}{mark}",
            tally.passed,
            tally.failed,
            tally.skipped,
            seconds(time.wall),
            seconds(time.processor)
        );
        all.passed += tally.passed;
        all.failed += tally.failed;
        all.skipped += tally.skipped;
    }
    println!("in {}, {} of processors", seconds(total.wall), seconds(total.processor));
    println!("{}", counts(&all));
    all.failed == 0
}

/// `N passed, N failed, N skipped`.
pub(crate) fn counts(tally: &Tally) -> String {
    format!("{} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped)
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn indent(text: &str) -> String {
    text.lines().map(|line| format!("        {line}")).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_processors_is_counted() {
        let start = Clock::now();
        let until = Instant::now() + Duration::from_secs(60);
        while processor_time() - start.processor < Duration::from_millis(20) {
            assert!(Instant::now() < until, "no work is seen");
        }
        assert!(start.elapsed().processor >= Duration::from_millis(20));
    }

    #[test]
    fn an_error_is_one_failure() {
        let good = Step::new("good", || Ok(Tally::pass()));
        let bad = Step::new("bad", || anyhow::bail!("broken"));
        assert!(run(&[&good]));
        assert!(!run(&[&good, &bad]));
    }
}

//! A list of steps, run one after another or in tracks, two at a time, each with its time, and a summary at the end.

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

/// How many tracks run beside each other: a step that waits leaves its processor to that of another one.
const BESIDE: usize = 2;

/// A named piece of work.
pub(crate) struct Step<'a> {
    pub(crate) name: &'static str,
    track: Option<usize>,
    work: Box<dyn Fn() -> Result<Tally> + Sync + 'a>,
}

impl<'a> Step<'a> {
    /// A step from its name and what it does; an error is one failure. It runs alone: all before it have ended, and none after it has begun.
    pub(crate) fn new(name: &'static str, work: impl Fn() -> Result<Tally> + Sync + 'a) -> Step<'a> {
        Step { name, track: None, work: Box::new(work) }
    }

    /// This step in the track of this number. Steps of one track run one after another, and two tracks beside each other.
    pub(crate) fn on(self, track: usize) -> Step<'a> {
        Step { track: Some(track), ..self }
    }

    /// Does the work and prints what came of it, with its time.
    fn run(&self) -> (Tally, Duration) {
        let begun = Instant::now();
        let tally = (self.work)().unwrap_or_else(|error| Tally {
            failed: 1,
            notes: vec![format!("FAILED {}: {error:#}", self.name)],
            ..Tally::default()
        });
        let took = begun.elapsed();
        // In one piece, as another track may print meanwhile.
        let notes = tally.notes.iter().map(|note| indent(&process::tail(note, 100)) + "\n");
        let notes: String = notes.collect();
        println!("{notes}        {}: {}, {}", self.name, counts(&tally), seconds(took));
        (tally, took)
    }
}

/// What came of a step.
type Row<'a> = (&'a str, Tally, Duration);

/// Runs the steps and prints each with its time, then a table; true if nothing failed. Steps of one track stand together.
pub(crate) fn run(steps: &[&Step<'_>]) -> bool {
    let (start, before) = (Instant::now(), processor_time());
    let numbered: Vec<(usize, &Step<'_>)> = steps.iter().copied().enumerate().collect();
    let row = |&(number, step): &(usize, &Step<'_>)| {
        println!("[{}/{}] {}", number + 1, steps.len(), step.name);
        let (tally, took) = step.run();
        (step.name, tally, took)
    };
    let mut rows: Vec<Row<'_>> = vec![];
    for group in numbered.chunk_by(|(_, a), (_, b)| a.track.is_some() && b.track.is_some()) {
        let tracks: Vec<_> = group.chunk_by(|(_, a), (_, b)| a.track == b.track).collect();
        let of = |track: &&[_]| track.iter().map(row).collect::<Vec<_>>();
        rows.extend(process::parallel(BESIDE, &tracks, of).into_iter().flatten());
    }
    summary(&rows, start.elapsed(), processor_time().saturating_sub(before))
}

/// What this process has taken of processors, with the children that have ended; 0 if the system does not tell.
fn processor_time() -> Duration {
    let told = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name in parentheses, which may hold anything, 11 fields come before the four times, in ticks of 10 ms.
    let fields = told.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

fn summary(rows: &[Row<'_>], total: Duration, processors: Duration) -> bool {
    let width = rows.iter().map(|row| row.0.len()).max().unwrap_or(0);
    println!("\n{:width$}  {:>7} {:>7} {:>7} {:>10}", "step", "passed", "failed", "skipped", "time");
    let mut all = Tally::default();
    for (name, tally, time) in rows {
        let mark = if tally.failed > 0 { "  FAILED" } else { "" };
        println!(
            "{name:width$}  {:>7} {:>7} {:>7} {:>10}{mark}",
            tally.passed,
            tally.failed,
            tally.skipped,
            seconds(*time)
        );
        all.passed += tally.passed;
        all.failed += tally.failed;
        all.skipped += tally.skipped;
    }
    println!("in {}, {} of processors", seconds(total), seconds(processors));
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
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn the_time_of_processors_is_counted() {
        let start = processor_time();
        let until = Instant::now() + Duration::from_secs(60);
        while processor_time() - start < Duration::from_millis(20) {
            assert!(Instant::now() < until, "no work is seen");
        }
    }

    #[test]
    fn an_error_is_one_failure() {
        let good = Step::new("good", || Ok(Tally::pass()));
        let bad = Step::new("bad", || anyhow::bail!("broken"));
        assert!(run(&[&good]));
        assert!(!run(&[&good, &bad]));
    }

    #[test]
    fn tracks_run_beside_each_other_and_other_steps_alone() {
        let (both, at) = (Barrier::new(2), AtomicUsize::new(0));
        // Each waits for the other, so that this ends only if they run at the same time.
        let meets = |name, track| {
            let work = || {
                both.wait();
                at.fetch_add(1, Ordering::SeqCst);
                Ok(Tally::pass())
            };
            Step::new(name, work).on(track)
        };
        let finds = |name, before: usize| {
            let at = &at;
            Step::new(name, move || {
                let mut tally = Tally::default();
                let right = at.fetch_add(1, Ordering::SeqCst) == before;
                tally.check("order", if right { Ok(()) } else { Err(anyhow::anyhow!("not alone")) });
                Ok(tally)
            })
        };
        let steps = [
            finds("first", 0),
            meets("one", 0),
            meets("other", 1),
            finds("next", 3),
            finds("last of one", 4).on(0),
        ];
        assert!(run(&steps.iter().collect::<Vec<_>>()));
    }
}

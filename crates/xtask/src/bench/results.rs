//! Results: what each start gave, kept in a file from which an interrupted bench goes on; medians and ratios
//! ([`Record`](super::record::Record) is what remains of them).
//!
//! A ratio is the median of the rounds' ratios, not the ratio of two medians: a virtual machine changes its speed by the minute, and
//! the starts of one round, one after the other, mostly meet the same one. Where they did not, as [`state`](super::state) tells, it is of
//! starts that did, of whichever rounds.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::cases::Case;
use super::output::Output;
use super::record::ratio;
use super::state::{Lines, State};
use crate::project;

/// The name under which the machine itself is measured.
pub(super) const MACHINE: &str = "limit";
/// Ours: ratios are ours to the best of the others.
pub(super) const OURS: &str = "banyan";

/// All that a bench has measured.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Results {
    pub(super) machine: Machine,
    /// Names in the order of the table, each with what the library calls itself.
    pub(super) libraries: Vec<(String, String)>,
    /// Which bench: its starts, so that results of another are not taken for this one's.
    pub(super) bench: Vec<String>,
    pub(super) runs: Vec<Run>,
    /// The cells that were started again, alone.
    #[serde(default)]
    pub(super) again: Vec<String>,
    /// Every cell that any library has shown, in order.
    cells: Vec<Cell>,
}

/// Where it was measured.
#[derive(Default, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Machine {
    /// What the processor calls itself.
    pub(super) processor: String,
    /// Its family and model, or implementer and part, as the kernel numbers them; none if that was not kept.
    #[serde(default)]
    pub(super) family: Option<(String, String)>,
    pub(super) cores: usize,
    pub(super) memory_gib: f64,
    pub(super) kernel: String,
    /// Processes that wanted to run in the minute before the bench, on average.
    pub(super) load: f64,
    /// The commit of the source tree, if git knows it.
    pub(super) commit: String,
    /// The date, in UTC.
    pub(super) date: String,
}

/// One cell.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) path: String,
    pub(super) unit: String,
    /// The start that it comes from: the last one, of those that give it.
    case: String,
}

/// One start of a program.
#[derive(Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) case: String,
    pub(super) library: String,
    pub(super) round: usize,
    pub(super) ending: Ending,
    pub(super) seconds: f64,
    /// What tells the machine's state, if somebody has looked.
    #[serde(default)]
    lines: Option<Lines>,
    cells: BTreeMap<String, f64>,
    wrong: BTreeMap<String, String>,
}

/// How a start ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Ending {
    /// All cells are there.
    Done,
    /// A cell, or the whole start, took longer than it may; the cells after it are missing.
    Slow,
    /// It failed, and how.
    Failed(String),
}

/// What one library did in one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Value {
    /// The median of its rounds.
    Median(f64),
    /// It took longer than a cell or its start may.
    Slow,
    /// It failed, and how.
    Failed(String),
}

impl Run {
    /// The state of the machine, where the quickest line took `least`.
    fn state(&self, least: f64) -> State {
        self.lines.map_or(State::Unknown, |lines| lines.state(least))
    }
}

impl Results {
    /// Nothing yet.
    pub(super) fn new(machine: Machine, libraries: Vec<(String, String)>, bench: Vec<String>) -> Results {
        Results { machine, libraries, bench, ..Results::default() }
    }

    /// Results of an interrupted bench.
    pub(super) fn load(path: &Path) -> Result<Results> {
        serde_json::from_str(&project::read(path)?).with_context(|| format!("in {}", path.display()))
    }

    /// Writes what was measured, after each start.
    pub(super) fn save(&self, path: &Path) -> Result<()> {
        // By a rename, so that the file is whole whenever it is there.
        let partial = path.with_extension("partial");
        project::write(&partial, serde_json::to_string(self)?)?;
        std::fs::rename(&partial, path).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Keeps what a start gave.
    pub(super) fn add(
        &mut self,
        case: &Case,
        library: &str,
        round: usize,
        output: Output,
        (ending, seconds, lines): (Ending, f64, Option<Lines>),
    ) {
        for (name, _, unit) in &output.cells {
            let path = case.path(name);
            match self.cells.iter_mut().find(|cell| cell.path == path) {
                Some(cell) => cell.case = case.id(),
                None => self.cells.push(Cell { path, unit: unit.clone(), case: case.id() }),
            }
        }
        self.runs.push(Run {
            case: case.id(),
            library: library.to_owned(),
            round,
            ending,
            seconds,
            lines,
            cells: output.cells.into_iter().map(|(name, value, _)| (case.path(&name), value)).collect(),
            wrong: output.wrong.into_iter().map(|(name, why)| (case.path(&name), why)).collect(),
        });
    }

    /// Whether a start of this round need not be made: it was, or it is known to give nothing.
    pub(super) fn settled(&self, case: &str, library: &str, round: usize) -> bool {
        self.of(case, library)
            .any(|run| run.round == round || (run.cells.is_empty() && run.ending != Ending::Done))
    }

    fn of(&self, case: &str, library: &str) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.case == case && run.library == library)
    }

    /// The libraries' names, in the order of the table.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.libraries.iter().map(|(name, _)| name.as_str())
    }

    /// All cells, in the order in which they were first seen.
    pub(super) fn cells(&self) -> &[Cell] {
        &self.cells
    }

    /// The cell at a path.
    pub(super) fn cell(&self, path: &str) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.path == path)
    }

    /// What a library did in a cell, if it was measured. Wrong data in any round is a failure, whatever the figures are.
    pub(super) fn value(&self, cell: &Cell, library: &str) -> Option<Value> {
        // Also in starts that the cell's figures do not come from any more.
        let mut all = self.runs.iter().filter(|run| run.library == library);
        if let Some(why) = all.find_map(|run| run.wrong.get(&cell.path)) {
            return Some(Value::Failed(why.clone()));
        }
        let mut figures = Vec::new();
        let mut without = None;
        for run in self.of(&cell.case, library) {
            match (run.cells.get(&cell.path), &run.ending) {
                (Some(figure), _) => figures.push(*figure),
                (None, Ending::Slow) => without = Some(Value::Slow),
                (None, Ending::Failed(why)) => without = Some(Value::Failed(why.clone())),
                (None, Ending::Done) => {}
            }
        }
        median(figures).map(Value::Median).or(without)
    }

    /// What a library did in a cell: the round, the state that the machine was in, and the figure.
    fn figures(&self, cell: &Cell, library: &str) -> Vec<(usize, State, f64)> {
        let least = self.least_line();
        let of = |run: &Run| Some((run.round, run.state(least), *run.cells.get(&cell.path)?));
        self.of(&cell.case, library).filter_map(of).collect()
    }

    /// What the quickest cache line took, in microseconds.
    fn least_line(&self) -> f64 {
        let lines = self.runs.iter().filter_map(|run| run.lines);
        lines.map(|lines| lines.before.min(lines.after)).fold(f64::INFINITY, f64::min)
    }

    /// The starts that met the machine in a state.
    pub(super) fn met(&self, state: State) -> usize {
        let least = self.least_line();
        self.runs.iter().filter(|run| run.state(least) == state).count()
    }

    /// Whether a start of this machine's with these lines met a change of its state.
    pub(super) fn changed(&self, lines: Option<Lines>) -> bool {
        let changed = |lines: Lines| {
            let least = self.least_line().min(lines.before).min(lines.after);
            lines.state(least) == State::Changed
        };
        lines.is_some_and(changed)
    }

    /// Ours in a cell to what a library did in a cell, perhaps another: the median of the rounds that have both in the same state of the machine, or
    /// else of all starts in the same state, or of the rounds that have both. Turned so that below 1 we are ahead; infinite where only they have a
    /// figure.
    pub(super) fn ratio_to(&self, cell: &Cell, than: &Cell, library: &str) -> Option<f64> {
        let Some(Value::Median(theirs)) = self.value(than, library) else { return None };
        let Value::Median(ours) = self.value(cell, OURS)? else { return Some(f64::INFINITY) };
        let pairs =
            |same_round, same_state| median(self.pairs(cell, than, library, (same_round, same_state)));
        let found = pairs(true, true).or_else(|| pairs(false, true)).or_else(|| pairs(true, false));
        Some(found.unwrap_or_else(|| ratio(&cell.unit, ours, theirs)))
    }

    /// The ratios of [`Results::ratio_to`]: of starts in the same round, in the same state, or both.
    fn pairs(
        &self,
        cell: &Cell,
        than: &Cell,
        library: &str,
        (same_round, same_state): (bool, bool),
    ) -> Vec<f64> {
        let (left, right) = (self.figures(cell, OURS), self.figures(than, library));
        let both = left.iter().flat_map(|ours| right.iter().map(move |theirs| (ours, theirs)));
        let fits = both.filter(|((of, state, _), (than, other, _))| {
            (!same_round || of == than) && (!same_state || state.compares(*other))
        });
        fits.map(|((.., ours), (.., theirs))| ratio(&cell.unit, *ours, *theirs)).collect()
    }

    /// Between what the median of ours to a library's lies in 95 of 100 cases, by the ratios of starts in one round and one state; `None` of fewer
    /// than six.
    pub(super) fn range(&self, cell: &Cell, library: &str) -> Option<[f64; 2]> {
        range_of_median(self.pairs(cell, cell, library, (true, true)))
    }

    /// The library to which ours compares worst, and the ratio.
    pub(super) fn best(&self, cell: &Cell) -> Option<(&str, f64)> {
        let others = self.names().filter(|name| *name != OURS);
        let ratios = others.filter_map(|name| Some((name, self.ratio_to(cell, cell, name)?)));
        ratios.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The fewest and the most rounds that any start was made in.
    pub(super) fn rounds(&self) -> (usize, usize) {
        let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for run in &self.runs {
            *counts.entry((&run.case, &run.library)).or_default() += 1;
        }
        let done = counts
            .iter()
            .filter(|((case, library), _)| self.of(case, library).all(|run| run.ending == Ending::Done));
        let counts: Vec<usize> = done.map(|(_, count)| *count).collect();
        (counts.iter().copied().min().unwrap_or(0), counts.iter().copied().max().unwrap_or(0))
    }
}

/// The middle one, or of an even number what is between the middle two; none of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    Some(if values.len() % 2 == 1 { upper } else { values[middle - 1].midpoint(upper) })
}

/// Between which of these values the median of what they are drawn from lies in at least 95 of 100 cases: as each value is above it in one
/// case of two, so many are as heads are thrown. `None` of fewer than six values, which do not tell.
fn range_of_median(mut values: Vec<f64>) -> Option<[f64; 2]> {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    // How likely no more than `rank` of all are below the median.
    let (mut likely, mut at_most) = (0.5f64.powi(count as i32), 0.0);
    let mut outside = 0;
    for rank in 0..count {
        at_most += likely;
        if at_most > 0.025 {
            break;
        }
        outside = rank + 1;
        likely *= (count - rank) as f64 / (rank + 1) as f64;
    }
    (outside > 0).then(|| [values[outside - 1], values[count - outside]])
}

/// The geometric mean; none of nothing.
pub(super) fn mean(ratios: &[f64]) -> Option<f64> {
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (!ratios.is_empty()).then(|| (sum / ratios.len() as f64).exp())
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::cases;
    use super::*;

    /// Results of one latency start, as `(library, round, value or what went wrong)`.
    pub(in super::super) fn latency(of: &[(&str, usize, Result<f64, Ending>)]) -> Results {
        let case = &cases::quick()[0];
        let mut results = Results::default();
        for (library, round, outcome) in of {
            if !results.names().any(|name| name == *library) {
                results.libraries.push(((*library).to_owned(), "1".to_owned()));
            }
            let (output, ending) = match outcome {
                Ok(value) => (Output::read(&format!("CELL 8 {value} us")), Ending::Done),
                Err(ending) => (Output::default(), ending.clone()),
            };
            results.add(case, library, *round, output, (ending, 1.0, None));
        }
        results
    }

    #[test]
    fn medians_and_means() {
        assert!((median(vec![3.0, 1.0, 2.0]).unwrap() - 2.0).abs() < 1e-12);
        assert!((median(vec![4.0, 1.0, 2.0, 3.0]).unwrap() - 2.5).abs() < 1e-12);
        assert!((mean(&[0.5, 2.0]).unwrap() - 1.0).abs() < 1e-12);
        assert_eq!(mean(&[]), None);
    }

    #[test]
    fn the_range_of_a_median_is_that_of_tables() {
        // As tables of the sign test have it: of 6 to 8 all, of 9 to 11 all but one at each end, of 12 to 14 all but two.
        let of = |count: usize| range_of_median((1..=count).rev().map(|value| value as f64).collect());
        assert_eq!((0..6).filter_map(of).count(), 0);
        assert_eq!([6, 8].map(of), [Some([1.0, 6.0]), Some([1.0, 8.0])]);
        assert_eq!([9, 11].map(of), [Some([2.0, 8.0]), Some([2.0, 10.0])]);
        assert_eq!([12, 14].map(of), [Some([3.0, 10.0]), Some([3.0, 12.0])]);
        assert_eq!(of(40), Some([14.0, 27.0]));
    }

    #[test]
    fn a_cell_is_of_the_starts_that_gave_it_last() {
        let mut results = latency(&[("banyan", 0, Ok(2.0)), ("mpich", 0, Ok(1.0))]);
        let alone = &cases::alone(&["latency/8".to_owned()])[0];
        for round in 0..6 {
            for (library, figure) in [("banyan", 1.0), ("mpich", 2.0)] {
                let output = Output::read(&format!("CELL 8 {figure} us"));
                results.add(alone, library, round, output, (Ending::Done, 1.0, None));
            }
        }
        let cell = results.cell("latency/8").unwrap();
        assert_eq!((results.best(cell), results.cells().len()), (Some(("mpich", 0.5)), 1));
        assert_eq!((results.range(cell, "mpich"), results.range(cell, "intel")), (Some([0.5, 0.5]), None));
        let wrong = Output::read("FAIL 8 wrong data");
        results.add(&cases::quick()[0], OURS, 1, wrong, (Ending::Done, 1.0, None));
        let cell = results.cell("latency/8").unwrap();
        assert_eq!(results.value(cell, OURS), Some(Value::Failed("wrong data".into())));
    }

    #[test]
    fn the_ratio_is_ours_to_the_best_rival() {
        let results = latency(&[
            ("banyan", 0, Ok(2.0)),
            ("mpich", 0, Ok(4.0)),
            ("intel", 0, Err(Ending::Slow)),
            ("openmpi", 0, Ok(8.0)),
        ]);
        let cell = results.cell("latency/8").unwrap();
        assert_eq!(results.best(cell), Some(("mpich", 0.5)));
        assert_eq!(results.value(cell, "intel"), Some(Value::Slow));
        let rate = Cell { unit: "MB/s".into(), ..cell.clone() };
        assert_eq!(results.best(&rate), Some(("openmpi", 4.0)));
    }

    #[test]
    fn ratios_are_of_figures_of_the_same_round() {
        // The machine is three times slower in half of the rounds; medians alone would say 3 / 1.
        let results = latency(&[
            ("banyan", 0, Ok(1.0)),
            ("mpich", 0, Ok(2.0)),
            ("banyan", 1, Ok(3.0)),
            ("mpich", 1, Ok(6.0)),
            ("banyan", 2, Ok(3.0)),
            ("mpich", 2, Ok(2.0)),
            ("mpich", 3, Ok(2.0)),
        ]);
        assert_eq!(results.best(results.cell("latency/8").unwrap()), Some(("mpich", 0.5)));
    }

    #[test]
    fn ratios_are_of_figures_in_the_same_state() {
        // Ours takes half of their time in either state, and meets the slow one when they do not.
        let mut results = latency(&[("banyan", 0, Ok(1.0)), ("mpich", 0, Ok(2.0))]);
        let case = &cases::quick()[0];
        let mut add = |library, round, figure: f64, before, after| {
            let output = Output::read(&format!("CELL 8 {figure} us"));
            results.add(case, library, round, output, (Ending::Done, 1.0, Some(Lines { before, after })));
        };
        add("banyan", 1, 3.0, 0.2, 0.21);
        add("mpich", 1, 2.0, 0.06, 0.05);
        add("banyan", 2, 1.0, 0.06, 0.06);
        add("mpich", 2, 6.0, 0.2, 0.22);
        let best = |results: &Results| results.best(results.cell("latency/8").unwrap()).unwrap().1;
        assert_eq!(best(&results), 0.5, "those of the first round, of which nothing is known");
        results.runs.retain(|run| run.round > 0);
        assert_eq!(best(&results), 0.5, "those of other rounds");
        assert_eq!((results.met(State::Quick), results.met(State::Slow)), (2, 2));
        results.runs.retain(|run| run.round == 1);
        assert_eq!(best(&results), 1.5, "there is no other");
        assert!(results.changed(Some(Lines { before: 0.2, after: 0.06 })) && !results.changed(None));
    }

    #[test]
    fn wrong_data_is_no_figure_and_no_figure_of_ours_is_behind() {
        let mut results = latency(&[("banyan", 0, Ok(2.0)), ("mpich", 0, Ok(4.0))]);
        let case = &cases::quick()[0];
        results.add(case, OURS, 1, Output::read("FAIL 8 wrong data"), (Ending::Done, 1.0, None));
        let cell = results.cell("latency/8").unwrap();
        assert_eq!(results.value(cell, OURS), Some(Value::Failed("wrong data".into())));
        assert_eq!(results.best(cell), Some(("mpich", f64::INFINITY)));
    }

    #[test]
    fn a_bench_goes_on_where_it_was() {
        let failed = Err(Ending::Failed("no".into()));
        let results = latency(&[("banyan", 0, Ok(2.0)), ("mpich", 0, Ok(4.0)), ("intel", 0, failed)]);
        let path = std::env::temp_dir().join(format!("banyan-bench-{}.json", std::process::id()));
        results.save(&path).unwrap();
        let again = Results::load(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let id = cases::quick()[0].id();
        assert!(again.settled(&id, "banyan", 0) && !again.settled(&id, "banyan", 1));
        assert!(again.settled(&id, "intel", 1), "what gave nothing is not tried again");
        assert!(!again.settled(&id, "openmpi", 0));
        assert_eq!(again.best(again.cell("latency/8").unwrap()), Some(("mpich", 0.5)));
        assert_eq!(again.rounds(), (1, 1));
    }
}

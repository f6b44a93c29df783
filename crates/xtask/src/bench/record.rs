//! [`Record`]: what is kept of a bench for its processor. All that tables and pages show is in it; results have the figures of each
//! start besides.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::results::{MACHINE, Machine, OURS, Results, Value};
use super::state::State;
use super::targets;

/// The medians of a bench.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) machine: Machine,
    /// Names in the order of the table, each with what the library calls itself.
    pub(super) libraries: Vec<(String, String)>,
    /// The fewest and the most rounds of any start.
    pub(super) rounds: (usize, usize),
    /// How many starts met the machine quick, slow, and in change, if that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) states: Option<[usize; 3]>,
    pub(super) cells: Vec<Row>,
}

/// What was found in one cell.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Row {
    /// As in `latency/8`.
    pub(super) cell: String,
    pub(super) unit: String,
    /// By library; what was not measured is not there.
    pub(super) values: BTreeMap<String, Value>,
    /// The library to which ours compares worst.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) best: Option<Ratio>,
    /// Ours to the other cells that targets compare it with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) to: Vec<Ratio>,
}

/// Ours to what something else does: below 1 we are ahead.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Ratio {
    /// A library, or the path of a cell.
    pub(super) name: String,
    /// The median of the rounds' ratios; infinite (in JSON `null`) where only the other one has a figure.
    #[serde(deserialize_with = "infinite_if_null")]
    pub(super) ratio: f64,
    /// Between what it lies in 95 of 100 cases, where there are rounds enough to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) range: Option<[f64; 2]>,
}

fn infinite_if_null<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}

/// Whether larger figures of this unit are better.
fn more_is_better(unit: &str) -> bool {
    unit.ends_with("/s")
}

/// How many times as good `than` is as `figure`, in this unit: below 1 where `figure` is better.
pub(super) fn ratio(unit: &str, figure: f64, than: f64) -> f64 {
    if more_is_better(unit) { than / figure } else { figure / than }
}

/// Limits of the machine that belong beside a group of cells.
const LIMITS: &[(&str, &str)] = &[
    ("latency", "limit/cacheline"),
    ("latency", "limit/single-copy"),
    ("tcp-latency", "limit/tcp-latency"),
    ("tcp-bandwidth/one", "limit/tcp-bandwidth"),
    ("bandwidth/one", "limit/memcpy"),
    ("bandwidth/both", "limit/memcpy-two-cores"),
    ("coll-2/alltoall", "limit/single-copy-alltoall-2"),
    ("coll-4/alltoall", "limit/single-copy-alltoall-4"),
    ("coll-8/alltoall", "limit/single-copy-alltoall-8"),
    ("coll-16/alltoall", "limit/single-copy-alltoall-16"),
];

impl Record {
    /// The medians of these results.
    pub(super) fn of(results: &Results) -> Record {
        let row = |cell: &super::results::Cell| {
            let values = results.names().chain([MACHINE]).map(|name| (name, results.value(cell, name)));
            let to = targets::compared(&cell.path).into_iter().filter_map(|(path, library)| {
                let ratio = results.ratio_to(cell, results.cell(&path)?, library)?;
                Some(Ratio { name: path, ratio: rounded(ratio), range: None })
            });
            let best = results.best(cell);
            Row {
                cell: cell.path.clone(),
                unit: cell.unit.clone(),
                values: values.filter_map(|(name, value)| Some((name.to_owned(), kept(value?)))).collect(),
                best: best.map(|(name, ratio)| Ratio {
                    name: name.to_owned(),
                    ratio: rounded(ratio),
                    range: results.range(cell, name).map(|range| range.map(rounded)),
                }),
                to: to.collect(),
            }
        };
        let states = [State::Quick, State::Slow, State::Changed].map(|state| results.met(state));
        Record {
            machine: results.machine.clone(),
            libraries: results.libraries.clone(),
            rounds: results.rounds(),
            states: Some(states).filter(|states| states.iter().sum::<usize>() > 0),
            cells: results.cells().iter().map(row).collect(),
        }
    }

    /// As JSON with a line for each cell.
    pub(super) fn text(&self) -> serde_json::Result<String> {
        let text = serde_json::to_string(self)?;
        Ok(text.replace("{\"cell\":", "\n{\"cell\":") + "\n")
    }

    /// The libraries' names, in the order of the table.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.libraries.iter().map(|(name, _)| name.as_str())
    }

    /// The limits of the machine that belong beside the cells of a group, each by name, and its cells: one without a number, or one for
    /// each number along the group.
    pub(super) fn limits(&self, group: &str) -> impl Iterator<Item = (&'static str, Vec<&Row>)> {
        let paths = LIMITS.iter().filter(move |(of, _)| *of == group).map(|(_, path)| *path);
        let rows = |path| self.cells.iter().filter(move |row| row.cell == path || row.along().0 == path);
        paths.map(move |path| (path, rows(path).collect()))
    }

    /// Whether cells near their bounds were looked at again, so that there are ranges for their ratios.
    pub(super) fn has_ranges(&self) -> bool {
        self.cells.iter().any(|row| row.range().is_some())
    }

    /// The figure of the machine's limit for the same number along a cell's group, in its unit.
    pub(super) fn limit_of(&self, row: &Row) -> Option<f64> {
        let (group, number) = row.along();
        let alike = |limit: &&Row| number.is_some() && limit.along().1 == number && limit.unit == row.unit;
        self.limits(group).flat_map(|(_, rows)| rows).find(alike)?.figure(MACHINE)
    }
}

impl Row {
    /// The figure of a library.
    pub(super) fn figure(&self, library: &str) -> Option<f64> {
        match self.values.get(library) {
            Some(Value::Median(figure)) => Some(*figure),
            _ => None,
        }
    }

    /// The path without its last number, and that number.
    pub(super) fn along(&self) -> (&str, Option<f64>) {
        let along = self.cell.rsplit_once('/').and_then(|(group, last)| Some((group, last.parse().ok()?)));
        along.map_or((&self.cell, None), |(group, number)| (group, Some(number)))
    }

    /// Ours to the best of the others.
    pub(super) fn ratio(&self) -> Option<f64> {
        self.best.as_ref().map(|best| best.ratio)
    }

    /// Between what [`Row::ratio`] lies in 95 of 100 cases.
    pub(super) fn range(&self) -> Option<[f64; 2]> {
        self.best.as_ref()?.range
    }

    /// Ours to another cell that a target compares it with.
    pub(super) fn ratio_to(&self, cell: &str) -> Option<f64> {
        Some(self.to.iter().find(|to| to.name == cell)?.ratio)
    }

    /// Ours to a figure in the cell's unit; infinite where we have none.
    pub(super) fn ratio_to_figure(&self, than: f64) -> f64 {
        self.figure(OURS).map_or(f64::INFINITY, |figure| ratio(&self.unit, figure, than))
    }
}

/// To four digits, so that what is kept is small.
fn rounded(figure: f64) -> f64 {
    if figure.is_finite() { format!("{figure:.3e}").parse().unwrap_or(figure) } else { figure }
}

fn kept(value: Value) -> Value {
    match value {
        Value::Median(figure) => Value::Median(rounded(figure)),
        other => other,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::results::{Ending, tests::latency};
    use super::*;

    /// The record of one latency start, as `(library, round, value or what went wrong)`.
    pub(in super::super) fn record(of: &[(&str, usize, Result<f64, Ending>)]) -> Record {
        Record::of(&latency(of))
    }

    #[test]
    fn a_record_survives_its_text() {
        let mut record = record(&[
            ("mpich", 0, Ok(1.0 / 3.0)),
            ("banyan", 0, Err(Ending::Slow)),
            ("openmpi", 0, Err(Ending::Failed("exit status 1".into()))),
        ]);
        assert_eq!(
            (record.cells[0].figure("mpich"), record.cells[0].ratio()),
            (Some(0.3333), Some(f64::INFINITY))
        );
        let text = record.text().unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record, "{text}");
        assert_eq!(text.lines().count(), 2, "a line for each cell: {text}");
        record.cells[0].unit = "MB/s".into();
        assert_eq!(record.cells[0].ratio_to_figure(1.0), f64::INFINITY);
        assert_eq!((ratio("us", 1.0, 2.0), ratio("MB/s", 1.0, 2.0)), (0.5, 2.0));
    }

    #[test]
    fn limits_stand_beside_their_groups() {
        let mut record = record(&[("banyan", 0, Ok(2.0))]);
        let limit = |cell: &str, figure| Row {
            cell: cell.into(),
            unit: "MB/s".into(),
            values: [(MACHINE.to_owned(), Value::Median(figure))].into(),
            best: None,
            to: Vec::new(),
        };
        record.cells.extend([limit("limit/cacheline", 0.1), limit("limit/memcpy/4096", 5.0)]);
        let found = |group| -> Vec<_> {
            record
                .limits(group)
                .map(|(name, rows)| (name, rows.into_iter().map(Row::along).collect()))
                .collect()
        };
        assert_eq!(
            found("latency"),
            [("limit/cacheline", vec![("limit/cacheline", None)]), ("limit/single-copy", vec![])]
        );
        assert_eq!(found("bandwidth/one"), [("limit/memcpy", vec![("limit/memcpy", Some(4096.0))])]);
        assert_eq!(found("coll-2/bcast"), []);
        let windows = |bytes| Row { cell: format!("bandwidth/one/{bytes}"), ..limit("", 2.0) };
        assert_eq!([4096, 64].map(|bytes| record.limit_of(&windows(bytes))), [Some(5.0), None]);
        assert_eq!(record.limit_of(&record.cells[0]), None, "a line is no message");
        assert_eq!(record.cells[0].along(), ("latency", Some(8.0)));
    }
}

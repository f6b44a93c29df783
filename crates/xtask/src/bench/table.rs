//! Results as text: a table of medians and ratios, and one of targets; plain or as Markdown.

use std::fmt::Write;

use super::record::{Record, Row};
use super::results::{MACHINE, Value};
use super::targets::{Verdict, judge};

/// How rows are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Markdown,
}

/// What the column of ratios says.
const RATIO: &str = "ours/best";
/// An explanation of the ratios, printed with the tables.
pub(super) const LEGEND: &str = "Ratios are ours / best rival for times and memory, and best rival / ours for what \
is counted per second, medians of the ratios of starts in one round and one state of the machine: below 1 we are ahead everywhere. `>`: longer than a cell (10 s) or its start may take.";

/// Medians of all cells with the ratios.
pub(super) fn medians(record: &Record, style: Style) -> String {
    let names: Vec<&str> = record.names().collect();
    let machine = record.cells.iter().any(|row| row.values.contains_key(MACHINE));
    let mut header = vec!["median", "unit"];
    header.extend(&names);
    if machine {
        header.push(MACHINE);
    }
    header.extend([RATIO, "best"]);
    let rows = record.cells.iter().map(|cell| {
        let mut row = vec![cell.cell.clone(), cell.unit.clone()];
        row.extend(names.iter().map(|name| shown(cell, name)));
        if machine {
            row.push(shown(cell, MACHINE));
        }
        row.push(cell.ratio().map_or("-".into(), ratio));
        row.push(cell.best.as_ref().map_or("-".into(), |best| best.name.clone()));
        row
    });
    table(&header, &rows.collect::<Vec<_>>(), style)
}

/// The ratios of cells to others that targets compare them with.
pub(super) fn compared(record: &Record) -> String {
    let rows = record
        .cells
        .iter()
        .flat_map(|row| row.to.iter().map(|to| vec![row.cell.clone(), to.name.clone(), ratio(to.ratio)]));
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() { String::new() } else { table(&["ours", "to", "ratio"], &rows, Style::Plain) }
}

/// The machine's own cells among these.
pub(super) fn limits(record: &Record) -> String {
    let limits = record.cells.iter().filter_map(|row| Some((row, row.figure(MACHINE)?)));
    let rows = limits.map(|(row, limit)| vec![row.cell.clone(), row.unit.clone(), figure(limit)]);
    table(&["limit", "unit", "measured"], &rows.collect::<Vec<_>>(), Style::Markdown)
}

/// The targets: worst cell, mean, and whether they hold.
pub(super) fn targets(record: &Record, style: Style) -> String {
    let ranged = record.has_ranges();
    let mut header = vec!["target", "against", "worst", "bound", "mean", "bound", "cells", "above"];
    header.extend(ranged.then_some("for certain"));
    header.extend(["holds", "worst cell"]);
    let row = |verdict: Verdict| {
        let mut row = vec![
            verdict.name.clone(),
            verdict.against.to_owned(),
            ratio(verdict.worst),
            ratio(verdict.each),
            ratio(verdict.mean),
            verdict.mean_bound.map_or("-".into(), ratio),
            verdict.cells.to_string(),
            verdict.above.to_string(),
        ];
        row.extend(ranged.then(|| verdict.certain.to_string()));
        row.extend([if verdict.holds() { "yes" } else { "NO" }.to_owned(), verdict.worst_cell]);
        row
    };
    table(&header, &judge(record).into_iter().map(row).collect::<Vec<_>>(), style)
}

/// Machine and versions, a line each.
pub(super) fn machine(record: &Record) -> Vec<String> {
    let machine = &record.machine;
    let (least, most) = record.rounds;
    let family = machine.family.as_ref();
    let family = family.map_or(String::new(), |(family, model)| format!(" (family {family}, model {model})"));
    let mut lines = vec![
        format!(
            "{}{family}, {} cores, {:.0} GiB, Linux {}",
            machine.processor, machine.cores, machine.memory_gib, machine.kernel
        ),
        format!(
            "{}, commit {}; {} processes wanted to run in the minute before",
            machine.date, machine.commit, machine.load
        ),
        format!("medians of {least} to {most} rounds"),
    ];
    let states = |[quick, slow, changed]: [usize; 3]| {
        format!(
            "{quick} starts met a quick machine, {slow} a slow one, {changed} a change, by a line from core to core"
        )
    };
    lines.extend(record.states.map(states));
    lines.extend(record.libraries.iter().map(|(name, version)| format!("{name}: {version}")));
    lines
}

/// What failed, each once.
pub(super) fn failures(record: &Record) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for row in &record.cells {
        for (name, value) in &row.values {
            if let Value::Failed(why) = value {
                let why = why.replace('\n', " | ");
                if !lines.iter().any(|line| line.starts_with(name) && line.ends_with(&why)) {
                    lines.push(format!("{name}: {}: {why}", row.cell));
                }
            }
        }
    }
    lines
}

fn shown(row: &Row, library: &str) -> String {
    match row.values.get(library) {
        Some(Value::Median(value)) => figure(*value),
        Some(Value::Slow) => ">".into(),
        Some(Value::Failed(_)) => "failed".into(),
        None => "-".into(),
    }
}

/// About three digits.
pub(super) fn figure(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v if v >= 0.1 => format!("{v:.3}"),
        v => format!("{v:.4}"),
    }
}

/// Between what a ratio lies.
pub(super) fn range([low, high]: [f64; 2]) -> String {
    format!("{} to {}", ratio(low), ratio(high))
}

pub(super) fn ratio(ratio: f64) -> String {
    if ratio.is_finite() { format!("{ratio:.2}") } else { "behind".into() }
}

pub(super) fn table(header: &[&str], rows: &[Vec<String>], style: Style) -> String {
    let mut text = String::new();
    if style == Style::Markdown {
        let _ = writeln!(text, "| {} |\n|{}", header.join(" | "), "---|".repeat(header.len()));
        for row in rows {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
        return text;
    }
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].len());
        cells.chain([header[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut line = |cells: &[&str]| {
        let padded = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:width$}") } else { format!("{cell:>width$}") }
        });
        let _ = writeln!(text, "{}", padded.collect::<Vec<_>>().join("  ").trim_end());
    };
    line(header);
    for row in rows {
        line(&row.iter().map(String::as_str).collect::<Vec<_>>());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::record::{Ratio, tests::record};
    use super::super::results::Ending;
    use super::*;

    #[test]
    fn tables_show_what_was_slow_and_what_failed() {
        let results = record(&[
            ("banyan", 0, Ok(2.0)),
            ("mpich", 0, Ok(4.0)),
            ("intel", 0, Err(Ending::Slow)),
            ("openmpi", 0, Err(Ending::Failed("exit status 1".into()))),
        ]);
        let plain = medians(&results, Style::Plain);
        assert!(
            plain.contains("0.50  mpich") && plain.contains("  >  ") && plain.contains("failed"),
            "{plain}"
        );
        let markdown = medians(&results, Style::Markdown);
        assert!(
            markdown.contains("| latency/8 | us | 2.00 | 4.00 | > | failed | 0.50 | mpich |"),
            "{markdown}"
        );
        assert!(targets(&results, Style::Plain).contains("latency, 8 B"));
        assert_eq!(failures(&results), ["openmpi: latency/8: exit status 1"]);
    }

    #[test]
    fn what_targets_compare_is_listed() {
        let mut results = record(&[("banyan", 0, Ok(2.0))]);
        assert_eq!(compared(&results), "");
        results.cells[0].to.push(Ratio { name: "limit/cacheline".into(), ratio: 1.5, range: None });
        let lines: Vec<_> = compared(&results).lines().map(str::to_owned).collect();
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["latency/8", "limit/cacheline", "1.50"]);
    }
}

//! Results as text: a table of medians and ratios, and one of targets; plain or as Markdown.

use std::fmt::Write;

use super::results::{Cell, MACHINE, Results, Value};
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
is counted per second, medians of the rounds' ratios: below 1 we are ahead everywhere. `>`: longer than a cell (10 s) or its start may take.";

/// Medians of all cells with the ratios.
pub(super) fn medians(results: &Results, style: Style) -> String {
    let names: Vec<&str> = results.names().collect();
    let machine = results.cells().iter().any(|cell| results.figure(cell, MACHINE).is_some());
    let mut header = vec!["median", "unit"];
    header.extend(&names);
    if machine {
        header.push(MACHINE);
    }
    header.extend([RATIO, "best"]);
    let rows = results.cells().iter().map(|cell| {
        let mut row = vec![cell.path.clone(), cell.unit.clone()];
        row.extend(names.iter().map(|name| shown(results, cell, name)));
        if machine {
            row.push(shown(results, cell, MACHINE));
        }
        row.push(results.ratio(cell).map_or("-".into(), ratio));
        row.push(results.best(cell).map_or("-".into(), |(name, _)| name.to_owned()));
        row
    });
    table(&header, &rows.collect::<Vec<_>>(), style)
}

/// The targets: worst cell, mean, and whether they hold.
pub(super) fn targets(results: &Results, style: Style) -> String {
    let header = ["target", "against", "worst", "bound", "mean", "bound", "cells", "holds", "worst cell"];
    let row = |verdict: Verdict| {
        let holds = match verdict.holds() {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "-",
        };
        vec![
            verdict.name,
            verdict.against.to_owned(),
            verdict.worst.as_ref().map_or("-".into(), |(_, worst)| ratio(*worst)),
            ratio(verdict.each),
            verdict.mean.map_or("-".into(), ratio),
            verdict.mean_bound.map_or("-".into(), ratio),
            verdict.cells.to_string(),
            holds.to_owned(),
            verdict.worst.map_or("-".into(), |(path, _)| path),
        ]
    };
    let rows: Vec<Vec<String>> =
        judge(results).into_iter().filter(|verdict| verdict.cells > 0).map(row).collect();
    table(&header, &rows, style)
}

/// Machine and versions, a line each.
pub(super) fn machine(results: &Results) -> Vec<String> {
    let machine = &results.machine;
    let (least, most) = results.rounds();
    let mut lines = vec![
        format!(
            "{}, {} cores, {:.0} GiB, Linux {}",
            machine.processor, machine.cores, machine.memory_gib, machine.kernel
        ),
        format!(
            "{}, commit {}; {} processes wanted to run in the minute before",
            machine.date, machine.commit, machine.load
        ),
        format!("medians of {least} to {most} rounds"),
    ];
    lines.extend(results.libraries.iter().map(|(name, version)| format!("{name}: {version}")));
    lines
}

/// What failed, each once.
pub(super) fn failures(results: &Results) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for cell in results.cells() {
        for name in results.names() {
            if let Value::Failed(why) = results.value(cell, name) {
                let why = why.replace('\n', " | ");
                if !lines.iter().any(|line| line.starts_with(name) && line.ends_with(&why)) {
                    lines.push(format!("{name}: {}: {why}", cell.path));
                }
            }
        }
    }
    lines
}

fn shown(results: &Results, cell: &Cell, library: &str) -> String {
    match results.value(cell, library) {
        Value::Measured(value, _) => figure(value),
        Value::Slow => ">".into(),
        Value::Failed(_) => "failed".into(),
        Value::Missing => "-".into(),
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

fn ratio(ratio: f64) -> String {
    if ratio.is_finite() { format!("{ratio:.2}") } else { "behind".into() }
}

fn table(header: &[&str], rows: &[Vec<String>], style: Style) -> String {
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
    use super::super::results::{Ending, tests::latency};
    use super::*;

    #[test]
    fn tables_show_what_was_slow_and_what_failed() {
        let results = latency(&[
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
}

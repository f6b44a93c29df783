//! Results as a table of text and as JSON.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::json;

/// What one library did in one cell.
#[derive(Clone)]
pub(super) enum Value {
    /// The median.
    Measured(f64),
    /// It took longer than a cell may.
    Slow,
    /// It failed, and how.
    Failed(String),
}

/// One cell, measured.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) values: BTreeMap<&'static str, Value>,
}

impl Row {
    fn value(&self, library: &str) -> Option<f64> {
        match self.values.get(library) {
            Some(Value::Measured(value)) => Some(*value),
            _ => None,
        }
    }

    /// The best library other than ours, and its figure. All figures are better when smaller.
    fn best(&self) -> Option<(&'static str, f64)> {
        let others = self.values.keys().filter(|name| **name != "banyan");
        let figures = others.filter_map(|name| self.value(name).map(|value| (*name, value)));
        figures.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Ours to the best of the others.
    fn ratio(&self) -> Option<f64> {
        Some(self.value("banyan")? / self.best()?.1)
    }

    fn shown(&self, library: &str) -> String {
        match self.values.get(library) {
            Some(Value::Measured(value)) => figure(*value),
            Some(Value::Slow) => ">".into(),
            Some(Value::Failed(_)) => "failed".into(),
            None => "-".into(),
        }
    }
}

/// About three digits.
fn figure(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// One row as it is measured.
pub(super) fn line(row: &Row, libraries: &[&str]) -> String {
    let values: Vec<String> = libraries.iter().map(|name| format!("{name} {}", row.shown(name))).collect();
    let mut line = format!("{} ({}): {}", row.name, row.unit, values.join(", "));
    for (name, value) in &row.values {
        if let Value::Failed(why) = value {
            line.push_str(&format!("\n    {name}: {}", why.replace('\n', " | ")));
        }
    }
    line
}

/// The whole table.
pub(super) fn text(rows: &[Row], libraries: &[&str]) -> String {
    let mut text = format!("{:30} {:>4}", "median", "");
    for name in libraries {
        text.push_str(&format!(" {name:>9}"));
    }
    text.push_str(&format!("  {:>9}  best\n", "ours/best"));
    for row in rows {
        text.push_str(&format!("{:30} {:>4}", row.name, row.unit));
        for name in libraries {
            text.push_str(&format!(" {:>9}", row.shown(name)));
        }
        let ratio = row.ratio().map_or("-".into(), |ratio| format!("{ratio:.2}"));
        text.push_str(&format!("  {ratio:>9}  {}\n", row.best().map_or("-", |(name, _)| name)));
    }
    text
}

/// Everything, with the machine and its load before the bench.
pub(super) fn json(rows: &[Row], libraries: &[&str], load: f64) -> Result<String> {
    let cells: Vec<serde_json::Value> = rows
        .iter()
        .map(|row| {
            let values: BTreeMap<&str, serde_json::Value> = row
                .values
                .iter()
                .map(|(name, value)| match value {
                    Value::Measured(value) => (*name, json!(value)),
                    Value::Slow => (*name, json!(">")),
                    Value::Failed(why) => (*name, json!({ "failed": why })),
                })
                .collect();
            json!({ "name": row.name, "unit": row.unit, "median": values, "ratio": row.ratio() })
        })
        .collect();
    let cores = std::thread::available_parallelism().map_or(0, |n| n.get());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let machine = json!({ "cores": cores, "kernel": kernel.trim(), "load": load });
    Ok(serde_json::to_string_pretty(&json!({ "machine": machine, "libraries": libraries, "cells": cells }))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_ours_to_the_best_rival() {
        let mut row = Row { name: "x", unit: "us", values: BTreeMap::new() };
        row.values.insert("banyan", Value::Measured(2.0));
        row.values.insert("mpich", Value::Measured(4.0));
        row.values.insert("intel", Value::Slow);
        assert_eq!(row.ratio(), Some(0.5));
        let table = text(&[row], &["banyan", "mpich", "intel"]);
        assert!(table.contains("0.50  mpich") && table.contains(" > "), "{table}");
    }
}

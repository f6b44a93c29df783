//! The page of plots: one HTML file that needs no other.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Error, Result};
use banyan_plot::{Joined, Line, RGBColor, plot};

use super::record::{Record, Row};
use super::results::MACHINE;
use super::table::{self, LEGEND, Style};

/// Colours that differ in brightness too, on light and on dark ground.
const COLOURS: &[(&str, RGBColor)] = &[
    ("banyan", RGBColor(22, 150, 80)),
    ("mpich", RGBColor(80, 130, 220)),
    ("openmpi", RGBColor(230, 130, 20)),
    ("intel", RGBColor(200, 70, 160)),
];
const GREY: RGBColor = RGBColor(140, 140, 140);

const STYLE: &str = ":root { color-scheme: light dark; }
body { font: 15px/1.5 sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr)); gap: 1rem; }
figure { margin: 0; } figcaption { font-weight: bold; }
summary { font-size: 1.3rem; cursor: pointer; margin-top: 1rem; }
pre { overflow-x: auto; font-size: 12px; }
";

/// The whole page.
pub(super) fn html(record: &Record) -> Result<String> {
    let mut page = String::from("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    let _ = write!(
        page,
        "<meta name=\"viewport\" content=\"width=device-width\">\n<title>Banyan MPI: measured</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>Banyan MPI beside its rivals, measured</h1>\n<p>"
    );
    let lines: Vec<String> = table::machine(record).iter().map(|line| escaped(line)).collect();
    let _ = writeln!(page, "{}</p>\n<p>{}</p>", lines.join("<br>\n"), escaped(LEGEND));
    let _ = writeln!(page, "<h2>Targets</h2>\n<pre>{}</pre>", escaped(&table::targets(record, Style::Plain)));
    let _ = writeln!(page, "<h2>Plots</h2>");
    for (part, groups) in parts(record) {
        let mut figures = String::new();
        for (group, cells) in groups {
            if let Some(svg) =
                plot(across(group), &cells[0].unit, &lines_of(record, group, &cells)).map_err(Error::msg)?
            {
                let title = group.strip_prefix(part).unwrap_or(group).trim_start_matches('/');
                let title = if title.is_empty() { part } else { title };
                let _ = writeln!(
                    figures,
                    "<figure><figcaption>{}</figcaption>{svg}</figure>",
                    escaped(&format!("{title} ({})", cells[0].unit))
                );
            }
        }
        let _ = writeln!(
            page,
            "<details open><summary>{}</summary>\n<div class=\"plots\">\n{figures}</div></details>",
            escaped(part)
        );
    }
    let _ = writeln!(
        page,
        "<h2>All medians</h2>\n<pre>{}</pre>\n</body>\n</html>",
        escaped(&table::medians(record, Style::Plain))
    );
    Ok(page)
}

/// The cells of one plot: a path without its last number, and the cells along it.
type Group<'a> = (&'a str, Vec<&'a Row>);

/// Cells with a number along x, by part and by group.
fn parts(record: &Record) -> Vec<(&str, Vec<Group<'_>>)> {
    let mut order: Vec<&str> = Vec::new();
    let mut groups: BTreeMap<&str, Vec<Group<'_>>> = BTreeMap::new();
    for cell in &record.cells {
        let (group, Some(_)) = cell.along() else { continue };
        let part = group.split('/').next().unwrap_or(group);
        if !order.contains(&part) {
            order.push(part);
        }
        let part = groups.entry(part).or_default();
        match part.iter_mut().find(|(name, _)| *name == group) {
            Some((_, cells)) => cells.push(cell),
            None => part.push((group, vec![cell])),
        }
    }
    order.into_iter().filter_map(|part| Some((part, groups.remove(part)?))).collect()
}

fn lines_of(record: &Record, group: &str, cells: &[&Row]) -> Vec<Line> {
    let line = |name: &str| {
        let known = COLOURS.iter().find(|(library, _)| *library == name);
        let points = cells.iter().filter_map(|cell| {
            // A logarithmic axis has no 0.
            Some((cell.along().1?.max(0.5), cell.figure(name).filter(|figure| *figure > 0.0)?))
        });
        Line {
            name: name.to_owned(),
            colour: known.map_or(GREY, |(_, colour)| *colour),
            points: sorted(points),
            joined: Joined::Line,
        }
    };
    let mut lines: Vec<Line> =
        record.names().chain([MACHINE]).map(line).filter(|line| !line.points.is_empty()).collect();
    lines.extend(limits(record, group, cells));
    lines
}

/// The machine's limits for a group that were measured: a line of its own, or a level if it has no sizes.
fn limits(record: &Record, group: &str, cells: &[&Row]) -> Vec<Line> {
    let line = |(path, rows): (&str, Vec<&Row>)| {
        let points = rows.into_iter().filter_map(|row| Some((row.along().1, row.figure(MACHINE)?)));
        let points = points.flat_map(|(number, figure)| match number {
            Some(number) => vec![(number, figure)],
            None => cells.iter().filter_map(|cell| Some((cell.along().1?.max(0.5), figure))).collect(),
        });
        let points = sorted(points);
        (!points.is_empty()).then(|| Line {
            name: path.replace("limit/", "limit: "),
            colour: GREY,
            points,
            joined: Joined::Line,
        })
    };
    record.limits(group).filter_map(line).collect()
}

fn sorted(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut points: Vec<(f64, f64)> = points.collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points
}

fn across(group: &str) -> &'static str {
    match group.split('/').next().unwrap_or(group) {
        "matching" => "messages",
        "startup" | "memory" | "growth" => "ranks",
        "limit" if group.ends_with("ring") => "ranks",
        _ => "bytes",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;

    #[test]
    fn the_page_holds_plots_and_tables() {
        let page = html(&record(&[("banyan", 0, Ok(0.2)), ("mpich", 0, Ok(1.0))])).unwrap();
        assert!(
            page.contains("<svg") && page.contains("latency/8") && page.contains("latency (us)"),
            "{page}"
        );
        assert!(!page.contains("http://") || page.matches("http://").all(|_| page.contains("w3.org")));
    }
}

//! What must be reached: groups of cells with a bound for the worst of them and one for their geometric mean.
//!
//! All bounds are of times: a bandwidth or a rate that is to be 1.3 times the best rival's is a bound of 1/1.3.

use super::results::{Cell, MACHINE, OURS, Results, mean};

/// A bound for some cells.
struct Target {
    name: &'static str,
    cells: fn(&str) -> bool,
    to: To,
    /// No cell above this.
    each: f64,
    /// The geometric mean not above this.
    mean: Option<f64>,
}

/// What our figure is compared with.
#[derive(Clone, Copy)]
enum To {
    /// The best rival.
    Rival,
    /// A cell of the machine's limits.
    Limit(&'static str),
    /// Another cell of ours, by the path of the first.
    Ours(fn(&str) -> String),
    /// A figure in the cell's own unit.
    Figure(f64),
}

impl To {
    fn name(self) -> &'static str {
        match self {
            To::Rival => "best rival",
            To::Limit(path) => path,
            To::Ours(_) => "ours",
            To::Figure(_) => "fixed",
        }
    }
}

/// Whether a target holds, and how it was found.
pub(super) struct Verdict {
    pub(super) name: String,
    pub(super) against: &'static str,
    pub(super) each: f64,
    pub(super) mean_bound: Option<f64>,
    /// The cell with the largest ratio.
    pub(super) worst: Option<(String, f64)>,
    pub(super) mean: Option<f64>,
    pub(super) cells: usize,
}

impl Verdict {
    /// `Some` if there were cells to judge.
    pub(super) fn holds(&self) -> Option<bool> {
        let worst = self.worst.as_ref()?.1 <= self.each;
        Some(worst && self.mean_bound.is_none_or(|bound| self.mean.is_some_and(|mean| mean <= bound)))
    }
}

const fn each(name: &'static str, cells: fn(&str) -> bool, bound: f64) -> Target {
    Target { name, cells, to: To::Rival, each: bound, mean: None }
}

const fn mean_of(name: &'static str, cells: fn(&str) -> bool, bound: f64, mean: f64) -> Target {
    Target { name, cells, to: To::Rival, each: bound, mean: Some(mean) }
}

const fn against(name: &'static str, cells: fn(&str) -> bool, to: To, bound: f64) -> Target {
    Target { name, cells, to, each: bound, mean: None }
}

/// All of them; collectives come on top, a row for each kind.
const ALL: &[Target] = &[
    mean_of("latency, all sizes", |path| path.starts_with("latency/"), 1.05, 0.85),
    each("latency, 8 B", |path| path == "latency/8", 0.8),
    against("latency, 8 B", |path| path == "latency/8", To::Limit("limit/cacheline"), 1.8),
    each("latency, from 256 KiB", |path| path.starts_with("latency/") && size(path) >= LARGE, 0.65),
    mean_of("bandwidth, one way and both", |path| path.starts_with("bandwidth/"), 1.0 / 0.95, 1.0 / 1.2),
    each(
        "bandwidth one way, from 256 KiB",
        |path| path.starts_with("bandwidth/one/") && size(path) >= LARGE,
        1.0 / 1.5,
    ),
    each("message rate", |path| path.starts_with("rate/"), 1.0 / 1.3),
    against("10,000 in the queue, us", deepest, To::Figure(1.0), 0.3),
    against("10,000 in the queue, to depth 1", deepest, To::Ours(|path| path.replace("/10000", "/1")), 2.0),
    each("datatypes", |path| path.starts_with("datatypes/") && !path.contains("-hand"), 1.0),
    against(
        "strided, to packing by hand",
        |path| path.starts_with("datatypes/strided/"),
        To::Ours(|path| path.replace("/strided/", "/strided-hand/")),
        1.2,
    ),
    each("threads", |path| path.starts_with("threads/"), 0.8),
    each("4 ranks", |path| path.starts_with("coll-4/"), 0.7),
    each("8 ranks", |path| path.starts_with("coll-8/"), 0.7),
    each("16 ranks", |path| path.starts_with("coll-16/"), 0.7),
    each("4 ranks on a busy machine", |path| path.starts_with("loaded-4/"), 0.5),
    each("8 ranks on a busy machine", |path| path.starts_with("loaded-8/"), 0.5),
    each("16 ranks on a busy machine", |path| path.starts_with("loaded-16/"), 0.5),
    each("TCP latency", |path| path.starts_with("tcp-latency/"), 1.0),
    against("TCP latency, 8 B", |path| path == "tcp-latency/8", To::Limit("limit/tcp-latency/8"), 1.25),
    each("TCP bandwidth", |path| path.starts_with("tcp-bandwidth/"), 1.0),
    against(
        "TCP bandwidth, 1 MiB one way",
        |path| path == "tcp-bandwidth/one/1048576",
        To::Limit("limit/tcp-bandwidth/1048576"),
        1.0 / 0.9,
    ),
    each("TCP message rate, small", |path| path.starts_with("tcp-rate/") && size(path) <= 64.0, 1.0 / 5.0),
    mean_of("3 hosts x 2 ranks", |path| path.starts_with("hosts-coll/"), 1.0, 0.8),
    each("launch on 64 hosts", |path| path.starts_with("hosts-startup/"), 1.0),
    each("launch", |path| path == "startup/true/2", 0.5),
    each("init and finalize", |path| path.starts_with("startup/init/"), 0.2),
    each("memory", |path| path.starts_with("memory/"), 0.4),
    each("HPCC, PTRANS", |path| path == "hpcc/PTRANS_GBs", 1.0),
    each("HPCC, RandomAccess", |path| path.starts_with("hpcc/MPIRandomAccess"), 1.0),
    each("HPCC, FFT", |path| path == "hpcc/MPIFFT_Gflops", 1.0),
    each("HPCC, b_eff latency", |path| path.starts_with("hpcc/") && path.ends_with("Latency_usec"), 1.0),
    each(
        "HPCC, b_eff bandwidth",
        |path| path.starts_with("hpcc/") && path.ends_with("Bandwidth_GBytes"),
        1.0,
    ),
];

/// From here on messages count as large, in bytes.
const LARGE: f64 = 262_144.0;

fn size(path: &str) -> f64 {
    path.rsplit('/').next().and_then(|last| last.parse().ok()).unwrap_or(0.0)
}

fn deepest(path: &str) -> bool {
    path.starts_with("matching/") && path.ends_with("/10000")
}

/// Every target and whether it holds.
pub(super) fn judge(results: &Results) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = ALL
        .iter()
        .map(|target| {
            let cells: Vec<&Cell> =
                results.cells().iter().filter(|cell| (target.cells)(&cell.path)).collect();
            verdict(results, target.name.to_owned(), &cells, target)
        })
        .collect();
    let bounds = mean_of("", |_| false, 1.05, 0.8);
    for (kind, cells) in kinds(results) {
        verdicts.push(verdict(results, format!("2 ranks, {kind}"), &cells, &bounds));
    }
    verdicts
}

/// The cells of each kind of collective on two ranks.
fn kinds(results: &Results) -> Vec<(&str, Vec<&Cell>)> {
    let mut kinds: Vec<(&str, Vec<&Cell>)> = Vec::new();
    for cell in results.cells() {
        let Some(rest) = cell.path.strip_prefix("coll-2/") else { continue };
        let kind = rest.split('/').next().unwrap_or(rest);
        match kinds.iter_mut().find(|(name, _)| *name == kind) {
            Some((_, cells)) => cells.push(cell),
            None => kinds.push((kind, vec![cell])),
        }
    }
    kinds
}

fn verdict(results: &Results, name: String, cells: &[&Cell], target: &Target) -> Verdict {
    let ratios: Vec<(&Cell, f64)> =
        cells.iter().filter_map(|cell| Some((*cell, ratio(results, cell, target.to)?))).collect();
    let worst = ratios.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    Verdict {
        name,
        against: target.to.name(),
        each: target.each,
        mean_bound: target.mean,
        worst: worst.map(|(cell, ratio)| (cell.path.clone(), *ratio)),
        mean: mean(&ratios.iter().map(|(_, ratio)| *ratio).collect::<Vec<f64>>()),
        cells: ratios.len(),
    }
}

fn ratio(results: &Results, cell: &Cell, to: To) -> Option<f64> {
    match to {
        To::Rival => results.ratio(cell),
        To::Limit(path) => results.ratio_to(cell, results.cell(path)?, MACHINE),
        To::Ours(other) => results.ratio_to(cell, results.cell(&other(&cell.path))?, OURS),
        To::Figure(than) => {
            Some(results.figure(cell, OURS).map_or(f64::INFINITY, |figure| cell.ratio(figure, than)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::{Ending, tests::latency};
    use super::*;

    #[test]
    fn a_target_holds_by_its_worst_cell_and_its_mean() {
        let verdicts = judge(&latency(&[("banyan", 0, Ok(0.9)), ("mpich", 0, Ok(1.0))]));
        let all = &verdicts[0];
        assert_eq!((all.cells, all.worst.as_ref().unwrap().0.as_str()), (1, "latency/8"));
        assert_eq!(all.holds(), Some(false), "the mean is 0.9, not 0.85");
        let verdicts = judge(&latency(&[("banyan", 0, Ok(0.7)), ("mpich", 0, Ok(1.0))]));
        assert_eq!((verdicts[0].holds(), verdicts[1].holds()), (Some(true), Some(true)));
        assert_eq!(verdicts[4].holds(), None, "there is no bandwidth to judge");
    }

    #[test]
    fn no_figure_of_ours_is_a_target_missed() {
        let verdicts = judge(&latency(&[("mpich", 0, Ok(1.0)), ("banyan", 0, Err(Ending::Slow))]));
        assert_eq!(verdicts[0].holds(), Some(false));
    }
}

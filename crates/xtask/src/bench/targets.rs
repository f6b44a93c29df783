//! What must be reached: groups of cells with a bound for the worst of them and one for their geometric mean.
//!
//! All bounds are of times: a bandwidth or a rate that is to be 1.3 times the best rival's is a bound of 1/1.3.

use super::record::{Record, Row};
use super::results::{MACHINE, OURS, mean};

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
    /// The largest ratio, and its cell.
    pub(super) worst: f64,
    pub(super) worst_cell: String,
    pub(super) mean: f64,
    pub(super) cells: usize,
    /// How many of them are above the bound for each.
    pub(super) above: usize,
    /// How many of these would be in 95 of 100 cases, as far as there are ranges for their ratios.
    pub(super) certain: usize,
}

impl Verdict {
    /// Whether all bounds are kept.
    pub(super) fn holds(&self) -> bool {
        self.above == 0 && self.mean_bound.is_none_or(|bound| self.mean <= bound)
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

/// What each processor is known by: the groups that every cell of messages and collectives on one host is in.
const GROUPS: &[Target] = &[
    mean_of("2 ranks, messages", is_message, 1.05, 0.8),
    mean_of("2 ranks, collectives", |path| path.starts_with("coll-2/"), 1.05, 0.8),
    mean_of("4 ranks", |path| path.starts_with("coll-4/"), 1.0, 0.6),
    mean_of("8 ranks", |path| path.starts_with("coll-8/"), 1.0, 0.6),
    mean_of("16 ranks", |path| path.starts_with("coll-16/"), 1.0, 0.6),
];

/// What stands beside the groups; collectives on 2 ranks come on top, a row for each kind.
const MORE: &[Target] = &[
    mean_of("latency, all sizes", |path| path.starts_with("latency/"), 1.05, 0.8),
    each("latency, 8 B", |path| path == "latency/8", 0.8),
    against("latency, 8 B", |path| path == "latency/8", To::Limit("limit/cacheline"), 1.8),
    each(
        "latency, 256 KiB to 4 MiB",
        |path| path.starts_with("latency/") && (LARGE..=LARGEST).contains(&size(path)),
        0.6,
    ),
    mean_of("bandwidth, one way and both", |path| path.starts_with("bandwidth/"), 1.05, 0.8),
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
    against("Rust, to C", is_rust, To::Ours(|path| path.replacen("rust-", "rust-c-", 1)), 1.05),
    each("Rust, to the crate mpi", is_rust, 1.0),
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

/// From here on messages count as large, in bytes, and up to there.
const LARGE: f64 = 262_144.0;
const LARGEST: f64 = 4_194_304.0;

fn is_message(path: &str) -> bool {
    ["latency/", "bandwidth/", "rate/"].iter().any(|part| path.starts_with(part))
}

fn is_rust(path: &str) -> bool {
    path.starts_with("rust-") && !path.starts_with("rust-c-")
}

fn size(path: &str) -> f64 {
    path.rsplit('/').next().and_then(|last| last.parse().ok()).unwrap_or(0.0)
}

fn deepest(path: &str) -> bool {
    path.starts_with("matching/") && path.ends_with("/10000")
}

/// Every target for which there are cells, and whether it holds.
pub(super) fn judge(record: &Record) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> =
        GROUPS.iter().chain(MORE).filter_map(|target| verdict(record, target)).collect();
    for kind in kinds(record) {
        let cells = |row: &&Row| self::kind(&row.cell) == Some(kind);
        let name = format!("2 ranks, {kind}");
        verdicts.extend(of_cells(record.cells.iter().filter(cells), name, &GROUPS[1]));
    }
    verdicts
}

/// The groups that a processor is known by, in one order; none where there are no cells.
pub(super) fn groups(record: &Record) -> Vec<(&'static str, Option<Verdict>)> {
    GROUPS.iter().map(|target| (target.name, verdict(record, target))).collect()
}

/// The bound that a cell has beside the best rival: that of its group, if it is in one.
fn bound(path: &str) -> Option<f64> {
    let mut targets = GROUPS.iter().chain(MORE).filter(|target| matches!(target.to, To::Rival));
    targets.find(|target| (target.cells)(path)).map(|target| target.each)
}

/// The cells that have a bound beside the best rival, each with its ratio and the bound.
pub(super) fn bounded(record: &Record) -> impl Iterator<Item = (&Row, f64, f64)> {
    record.cells.iter().filter_map(|row| Some((row, row.ratio()?, bound(&row.cell)?)))
}

/// The other cells that targets compare a cell with, and whose figures they are.
pub(super) fn compared(path: &str) -> Vec<(String, &'static str)> {
    let targets = MORE.iter().filter(|target| (target.cells)(path));
    let other = |target: &Target| match target.to {
        To::Limit(other) => Some((other.to_owned(), MACHINE)),
        To::Ours(other) => Some((other(path), OURS)),
        To::Rival | To::Figure(_) => None,
    };
    targets.filter_map(other).collect()
}

/// The kind of collective of a cell on two ranks.
fn kind(path: &str) -> Option<&str> {
    path.strip_prefix("coll-2/").map(|rest| rest.split('/').next().unwrap_or(rest))
}

/// The kinds of collectives on two ranks, in the order in which they were measured.
fn kinds(record: &Record) -> Vec<&str> {
    let mut kinds: Vec<&str> = Vec::new();
    for kind in record.cells.iter().filter_map(|row| kind(&row.cell)) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

fn verdict(record: &Record, target: &Target) -> Option<Verdict> {
    let cells = record.cells.iter().filter(|row| (target.cells)(&row.cell));
    of_cells(cells, target.name.to_owned(), target)
}

fn of_cells<'a>(cells: impl Iterator<Item = &'a Row>, name: String, target: &Target) -> Option<Verdict> {
    let ratios: Vec<(&Row, f64)> = cells.filter_map(|row| Some((row, ratio(row, target.to)?))).collect();
    let (worst_cell, worst) = ratios.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let certain = |(row, _): &&(&Row, f64)| {
        matches!(target.to, To::Rival) && row.range().is_some_and(|[low, _]| low > target.each)
    };
    Some(Verdict {
        name,
        against: target.to.name(),
        each: target.each,
        mean_bound: target.mean,
        worst: *worst,
        worst_cell: worst_cell.cell.clone(),
        mean: mean(&ratios.iter().map(|(_, ratio)| *ratio).collect::<Vec<f64>>())?,
        cells: ratios.len(),
        above: ratios.iter().filter(|(_, ratio)| *ratio > target.each).count(),
        certain: ratios.iter().filter(certain).count(),
    })
}

fn ratio(row: &Row, to: To) -> Option<f64> {
    match to {
        To::Rival => row.ratio(),
        To::Limit(path) => row.ratio_to(path),
        To::Ours(other) => row.ratio_to(&other(&row.cell)),
        To::Figure(than) => Some(row.ratio_to_figure(than)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::super::results::Ending;
    use super::*;

    fn named<'a>(verdicts: &'a [Verdict], name: &str) -> &'a Verdict {
        verdicts.iter().find(|verdict| verdict.name == name).unwrap()
    }

    #[test]
    fn a_target_holds_by_its_worst_cell_and_its_mean() {
        let verdicts = judge(&record(&[("banyan", 0, Ok(0.9)), ("mpich", 0, Ok(1.0))]));
        let all = &verdicts[0];
        assert_eq!((all.cells, all.above, all.worst_cell.as_str()), (1, 0, "latency/8"));
        assert!(!all.holds(), "the mean is 0.9, not 0.8");
        let verdicts = judge(&record(&[("banyan", 0, Ok(0.7)), ("mpich", 0, Ok(1.0))]));
        assert!(verdicts[0].holds() && named(&verdicts, "latency, all sizes").holds());
        assert!(
            !verdicts.iter().any(|verdict| verdict.name.starts_with("bandwidth")),
            "there is none to judge"
        );
        let groups = groups(&record(&[("banyan", 0, Ok(2.0)), ("mpich", 0, Ok(1.0))]));
        assert_eq!(
            groups.iter().map(|(_, verdict)| verdict.as_ref().map_or(0, |v| v.above)).collect::<Vec<_>>(),
            [1, 0, 0, 0, 0]
        );
    }

    #[test]
    fn a_cell_is_above_for_certain_where_nearly_all_rounds_say_so() {
        let of = |ratios: [f64; 9]| {
            let starts = ratios
                .iter()
                .enumerate()
                .flat_map(|(round, ratio)| [("banyan", round, Ok(*ratio)), ("mpich", round, Ok(1.0))]);
            let record = record(&starts.collect::<Vec<_>>());
            assert!(record.has_ranges());
            let all = judge(&record).remove(0);
            (all.above, all.certain)
        };
        assert_eq!(of([1.2, 1.1, 1.3, 1.2, 1.1, 0.7, 1.2, 1.3, 1.2]), (1, 1));
        assert_eq!(of([1.2, 1.1, 1.3, 0.9, 0.8, 0.7, 1.2, 1.3, 1.2]), (1, 0));
        assert_eq!(of([0.9; 9]), (0, 0));
    }

    #[test]
    fn no_figure_of_ours_is_a_target_missed() {
        let verdicts = judge(&record(&[("mpich", 0, Ok(1.0)), ("banyan", 0, Err(Ending::Slow))]));
        assert!(!verdicts[0].holds());
    }

    #[test]
    fn a_cell_has_the_bound_of_its_group() {
        assert_eq!((bound("latency/8"), bound("rate/rate/8")), (Some(1.05), Some(1.05)));
        assert_eq!((bound("coll-2/bcast/8"), bound("coll-8/bcast/8")), (Some(1.05), Some(1.0)));
        assert_eq!((bound("threads/64"), bound("growth/init/2")), (Some(0.8), None));
        assert_eq!(compared("latency/8"), [("limit/cacheline".to_owned(), MACHINE)]);
        assert_eq!(compared("rust-latency/8"), [("rust-c-latency/8".to_owned(), OURS)]);
        assert_eq!((compared("rust-c-latency/8"), bound("rust-c-latency/8")), (vec![], None));
        assert_eq!(compared("matching/posted/10000"), [("matching/posted/1".to_owned(), OURS)]);
    }
}

//! What is measured: one row for each start of a program, which prints many cells.
//!
//! A cell's path tells what it is: `latency/8`, `coll-16/allreduce/1048576`, `startup/init/16`. The last number of a
//! path is what plots show along their x axis.

use std::collections::{BTreeMap, BTreeSet};

use crate::library::Fabric;

/// One start of a program under each library in turn.
#[derive(Clone)]
pub(super) struct Case {
    /// The part of the bench, which the cells' paths begin with.
    pub(super) part: &'static str,
    pub(super) ranks: usize,
    /// How many emulated hosts the ranks are dealt out to; none is this machine itself.
    pub(super) hosts: usize,
    /// A program of tests/bench, of which [`RUST`] is not in C, `true`, or `hpcc`.
    pub(super) program: &'static str,
    pub(super) args: Vec<String>,
    pub(super) fabric: Fabric,
    pub(super) who: Who,
    pub(super) figure: Figure,
    /// Whether [`BUSY`] other processes run meanwhile.
    pub(super) loaded: bool,
    /// The most seconds that the start may take, all cells together.
    pub(super) limit: u64,
}

/// How many busy processes there are in loaded cases.
pub(super) const BUSY: usize = 2;

/// What is measured: libraries, or the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// All libraries.
    All,
    /// Those with the bench's program in Rust.
    Rust,
    /// Banyan alone.
    Ours,
    /// The machine, by a program without MPI.
    Machine,
}

/// Where figures come from, and how cells are named.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Figure {
    /// The program prints cells; PART/CELL.
    Printed,
    /// The program prints cells, and is started with several numbers of ranks; PART/CELL/RANKS.
    PrintedByRanks,
    /// The time from start to end of mpirun, in milliseconds; PART/PROGRAM/RANKS.
    Wall,
    /// HPCC's report; PART/FIGURE.
    Report,
}

impl Case {
    /// What tells this start from others in results.
    pub(super) fn id(&self) -> String {
        format!("{} {} {} x{}", self.part, self.program, self.args.join(" "), self.ranks)
    }

    /// The path of a cell that the program calls `cell`.
    pub(super) fn path(&self, cell: &str) -> String {
        match self.figure {
            Figure::Printed | Figure::Report => format!("{}/{cell}", self.part),
            Figure::PrintedByRanks => format!("{}/{}/{}", self.part, cell.replace('/', "-"), self.ranks),
            Figure::Wall => format!("{}/{}/{}", self.part, self.program, self.ranks),
        }
    }

    /// True if its figures depend on how far the cores are from each other.
    pub(super) fn shares_cores(&self) -> bool {
        self.ranks > 1 && self.hosts == 0 && !self.loaded && matches!(self.figure, Figure::Printed)
    }

    fn tcp(mut self) -> Case {
        self.fabric = Fabric::TCP;
        self
    }

    fn on(mut self, hosts: usize) -> Case {
        self.hosts = hosts;
        self
    }

    fn loaded(mut self) -> Case {
        self.loaded = true;
        self
    }

    fn by_ranks(mut self) -> Case {
        self.figure = Figure::PrintedByRanks;
        self
    }

    fn wall(mut self) -> Case {
        self.figure = Figure::Wall;
        self
    }

    fn report(mut self) -> Case {
        self.figure = Figure::Report;
        self
    }

    fn ours(mut self) -> Case {
        self.who = Who::Ours;
        self
    }

    fn rust(mut self) -> Case {
        self.who = Who::Rust;
        self
    }

    fn machine(mut self) -> Case {
        self.who = Who::Machine;
        self
    }

    fn within(mut self, seconds: u64) -> Case {
        self.limit = seconds;
        self
    }
}

fn case(part: &'static str, ranks: usize, program: &'static str, args: &[&str]) -> Case {
    Case {
        part,
        ranks,
        hosts: 0,
        program,
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        fabric: Fabric::SHM,
        who: Who::All,
        figure: Figure::Printed,
        loaded: false,
        limit: 20,
    }
}

/// Everything.
pub(super) fn all() -> Vec<Case> {
    let mut cases = vec![
        case("limit", 1, "limits", &[]).machine().within(40),
        case("latency", 2, "latency", &[]),
        case("bandwidth", 2, "bandwidth", &[]),
        case("rate", 2, "bandwidth", &["rate"]),
        case("threads", 2, "threads", &[]),
        case("matching", 2, "matching", &[]),
        case("datatypes", 2, "datatypes", &[]),
        case("overlap", 2, "overlap", &[]),
        case("persistent", 2, "persistent", &[]),
        // Short starts: on two cores figures compare only if they are taken within seconds.
        case("coll-2", 2, "coll", &["all", "4,8"]),
        case("coll-2", 2, "coll", &["all", "64,512"]),
        case("coll-2", 2, "coll", &["all", "4096,32768"]),
        case("coll-2", 2, "coll", &["all", "262144,1048576"]),
        case("coll-2", 2, "coll", &["all", "4194304"]),
        case("coll-4", 4, "coll", &["all", SMALL]),
        case("coll-4", 4, "coll", &["all", MEDIUM]),
        case("coll-4", 4, "coll", &["all", LARGE]),
        case("coll-8", 8, "coll", &["all", SMALL]),
        case("coll-8", 8, "coll", &["all", MEDIUM]),
        case("coll-8", 8, "coll", &["all", LARGE]),
        case("coll-16", 16, "coll", &["all", SMALL]),
        case("coll-16", 16, "coll", &["all", MEDIUM]),
        case("coll-16", 16, "coll", &["all", LARGE]),
        case("loaded-latency", 2, "latency", &[SIZES]).loaded().within(10),
        case("loaded-2", 2, "coll", LOADED).loaded().within(10),
        case("loaded-4", 4, "coll", LOADED).loaded().within(10),
        case("loaded-8", 8, "coll", LOADED).loaded().within(10),
        case("loaded-16", 16, "coll", LOADED).loaded().within(10),
        case("limit", 1, "limits", &["tcp"]).machine(),
        case("tcp-latency", 2, "latency", &[SIZES]).tcp(),
        case("tcp-bandwidth", 2, "bandwidth", &["4096,65536,1048576,4194304"]).tcp(),
        case("tcp-rate", 2, "bandwidth", &["rate"]).tcp(),
        case("tcp-coll", 2, "coll", &["allreduce", SIZES]).tcp(),
        case("hosts-coll", 6, "coll", &[ACROSS, "8,64,512,4096,32768"]).on(3).within(60),
        case("hosts-coll", 6, "coll", &[ACROSS, "262144,1048576,4194304"]).on(3).within(90),
        case("hosts-startup", 64, "true", &[]).on(64).wall().within(60),
        case("hosts-startup", 64, "init", &[]).on(64).wall().within(60),
        case("hosts-launch", 64, "launch", &[]).on(64).by_ranks().within(60),
        case("hosts-memory", 64, "memory", &[]).on(64).by_ranks().within(60),
        case("startup", 2, "true", &[]).wall(),
        case("startup", 2, "init", &[]).wall(),
        case("startup", 16, "init", &[]).wall(),
        case("memory", 2, "memory", &[]).by_ranks(),
        case("memory", 8, "memory", &[]).by_ranks(),
        case("memory", 16, "memory", &[]).by_ranks(),
        case("idle", 2, "idle", &[]),
        case("hpcc", 2, "hpcc", &[]).report().within(30),
        // The same loops in C and in Rust, one after the other.
        case("rust-c-latency", 2, "latency", &[RUST_LATENCY]).rust(),
        case("rust-latency", 2, RUST, &["latency", RUST_LATENCY]).rust(),
        case("rust-c-coll", 2, "coll", &["allreduce", RUST_ALLREDUCE]).rust(),
        case("rust-coll", 2, RUST, &["allreduce", RUST_ALLREDUCE]).rust(),
    ];
    for ranks in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
        cases.push(case("growth", ranks, "true", &[]).wall().ours());
        cases.push(case("growth", ranks, "init", &[]).wall().ours());
        cases.push(case("growth", ranks, "memory", &[]).by_ranks().ours());
        cases.push(case("growth", ranks, "coll", &["barrier,allreduce", "8"]).by_ranks().ours());
    }
    cases
}

/// Starts that give these cells and few others. Those of programs that do not take a list of what to measure are left out.
pub(super) fn alone(paths: &[String]) -> Vec<Case> {
    let (mut starts, mut parts) = (Vec::new(), BTreeSet::new());
    for case in all().into_iter().filter(|case| parts.insert(case.part)) {
        let cells = paths.iter().filter_map(|path| path.strip_prefix(case.part)?.strip_prefix('/'));
        starts.extend(lists(&case, cells).into_iter().map(|args| Case { args, ..case.clone() }));
    }
    starts
}

/// The arguments of each start that gives some of these cells of a part.
fn lists<'a>(case: &Case, cells: impl Iterator<Item = &'a str>) -> Vec<Vec<String>> {
    // By size, what is to be measured of it.
    let mut sizes: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
    for cell in cells {
        let (kind, size) = cell.rsplit_once('/').unwrap_or(("", cell));
        let (kind, size) = size.parse().map_or((cell, FIRST), |size| (kind, size));
        sizes.entry(size).or_default().insert(kind.trim_end_matches("-fixed"));
    }
    match case.program {
        "latency" | "bandwidth" if !sizes.is_empty() => {
            let rate = case.args.iter().filter(|arg| *arg == "rate").cloned();
            let sizes: Vec<String> = sizes.keys().map(u64::to_string).collect();
            vec![rate.chain([sizes.join(",")]).collect()]
        }
        "coll" => {
            let joined = |kinds: BTreeSet<&str>| kinds.into_iter().collect::<Vec<_>>().join(",");
            sizes.into_iter().map(|(size, kinds)| vec![joined(kinds), size.to_string()]).collect()
        }
        _ => Vec::new(),
    }
}

/// A size with which barriers are measured, which have none.
const FIRST: u64 = 4;

/// The sizes of collectives, in parts.
const SMALL: &str = "4,8,64,512";
const MEDIUM: &str = "4096,32768,262144";
const LARGE: &str = "1048576,4194304";
/// Fewer sizes, where a part is not about sizes.
const SIZES: &str = "0,8,64,512,4096,32768,262144,1048576";
/// What is measured between hosts.
const ACROSS: &str = "barrier,bcast,allgather,alltoall,allreduce";
const LOADED: &[&str] = &["barrier,bcast,alltoall,allreduce", "8,32768,1048576"];

/// The program of tests/bench in Rust.
pub(super) const RUST: &str = "rust";
const RUST_LATENCY: &str = "8,1024,65536,1048576";
const RUST_ALLREDUCE: &str = "8,65536";

/// The cells that a change is looked at by first.
pub(super) fn quick() -> Vec<Case> {
    const TWO: &str = "8,1048576";
    vec![
        case("latency", 2, "latency", &[TWO]),
        case("coll-2", 2, "coll", &["allreduce", TWO]),
        case("coll-16", 16, "coll", &["allreduce", TWO]).within(10),
        case("startup", 2, "true", &[]).wall(),
        case("startup", 2, "init", &[]).wall(),
        case("startup", 16, "init", &[]).wall(),
        case("memory", 2, "memory", &[]).by_ranks(),
        case("memory", 8, "memory", &[]).by_ranks(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_started_alone() {
        let cells = [
            "latency/8",
            "bandwidth/one/64",
            "bandwidth/both/64",
            "bandwidth/one/1024",
            "rate/rate/8",
            "coll-2/reduce-fixed/64",
            "coll-2/bcast/64",
            "coll-2/reduce/64",
            "coll-2/bcast/4096",
            "coll-16/barrier",
            "startup/true/2",
        ];
        let starts: Vec<String> = alone(&cells.map(str::to_owned)).iter().map(Case::id).collect();
        let expected = [
            "latency latency 8 x2",
            "bandwidth bandwidth 64,1024 x2",
            "rate bandwidth rate 8 x2",
            "coll-2 coll bcast,reduce 64 x2",
            "coll-2 coll bcast 4096 x2",
            "coll-16 coll barrier 4 x16",
        ];
        assert_eq!(starts, expected);
        let known: Vec<String> = all().iter().map(Case::id).collect();
        assert!(starts.iter().all(|start| !known.contains(start)));
        assert!(alone(&[]).is_empty());
    }

    #[test]
    fn every_start_has_a_name_of_its_own() {
        for cases in [all(), quick()] {
            let ids: BTreeSet<String> = cases.iter().map(Case::id).collect();
            assert_eq!(ids.len(), cases.len());
        }
    }

    #[test]
    fn paths_of_quick_cells_are_those_of_the_whole_bench() {
        let parts: BTreeSet<&str> = all().iter().map(|case| case.part).collect();
        assert!(quick().iter().all(|case| parts.contains(case.part)));
        let init = quick().into_iter().find(|case| case.program == "init" && case.ranks == 16).unwrap();
        assert_eq!(init.path(""), "startup/init/16");
        assert_eq!(case("growth", 4, "coll", &[]).by_ranks().path("allreduce/8"), "growth/allreduce-8/4");
    }
}

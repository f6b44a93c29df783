//! `cargo xtask rdma --figures ROUNDS`: latency and bandwidth between two processes, each with a processor and a device of its own, by turns
//! of perftest (what verbs take), the fabric alone, and programs of tests/bench on Banyan, MPICH and Open MPI, of which the last two
//! have UCX. Prints each figure as it comes, and a table of medians.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use banyan_topo::RdmaPort;
use clap::{Args, ValueEnum};

use crate::bench::median;
use crate::cc::{self, Unit};
use crate::debian;
use crate::library::{Kind, Library};
use crate::process::{End, Job, tail};
use crate::project::Project;

/// Messages or transfers under way at a time.
const DEPTH: usize = 4;
/// Bytes of one measurement of perftest's.
const BYTES: usize = 8 << 20;
/// As long as perftest's transfers take, about.
const MEASURED: &str = "-DMEASURED=0.2";
const SIZES: [usize; 3] = [64 << 10, 256 << 10, 1 << 20];
/// Port 18515, as the kernel's tables have it.
const PERFTEST: &str = ":4853";
const LATENCY: &str = "latency";

/// What is measured.
#[derive(Args)]
pub(super) struct Wanted {
    /// Measure beside perftest, MPICH and Open MPI, so many times by turns, in place of the tests
    #[arg(long = "figures", value_name = "ROUNDS", conflicts_with_all = ["command", "here"])]
    pub(super) rounds: Option<usize>,
    /// Measure these alone
    #[arg(long, value_delimiter = ',', requires = "rounds")]
    only: Vec<Who>,
    /// Measure nothing but the latency
    #[arg(long, requires = "rounds")]
    latency: bool,
}

/// Who is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Who {
    Perftest,
    Fabric,
    Banyan,
    Mpich,
    Openmpi,
}

impl Who {
    /// The library whose programs are measured.
    fn library(self) -> Option<Kind> {
        match self {
            Who::Perftest | Who::Fabric => None,
            Who::Banyan => Some(Kind::Banyan),
            Who::Mpich => Some(Kind::Mpich),
            Who::Openmpi => Some(Kind::Openmpi),
        }
    }
}

impl Wanted {
    /// Who is measured, in turn.
    fn who(&self) -> Vec<Who> {
        let wanted = |who: &Who| self.only.is_empty() || self.only.contains(who);
        Who::value_variants().iter().copied().filter(wanted).collect()
    }

    /// The same options, as arguments.
    fn arguments(&self) -> Vec<String> {
        let mut arguments: Vec<String> =
            self.rounds.iter().map(|rounds| format!("--figures={rounds}")).collect();
        let names = self.only.iter().filter_map(|who| who.to_possible_value());
        arguments.extend(names.map(|name| format!("--only={}", name.get_name())));
        arguments.extend(self.latency.then(|| "--latency".to_owned()));
        arguments
    }
}
/// Starts a rank on the processor, and for UCX on the device, with its number.
const RANK: &str = "rank=${BANYAN_RANK:-${PMI_RANK:-$OMPI_COMM_WORLD_RANK}}; [ $rank = 0 ] || UCX_NET_DEVICES=$SECOND; \
    export UCX_NET_DEVICES; exec taskset -c $rank \"$0\" \"$@\"";

/// Builds what is measured, and gives the command that measures.
pub(super) fn command(project: &Project, options: &Wanted) -> Result<Vec<String>> {
    if let Some(missing) = debian::packages(project, &["perftest"])? {
        bail!("perftest is not there: {}", missing.reason);
    }
    let example =
        ["build", "--quiet", "--release", "--package=banyan-rdma", "--features=verbs", "--example=figures"];
    Job::new(env!("CARGO")).args(example).folder(project.root()).limit(1800).run_ok()?;
    let ours = super::with_fabric(project)?;
    for kind in options.who().into_iter().filter_map(Who::library) {
        let library = Library::open(project, kind)?;
        for name in ["latency", "bandwidth"] {
            let source = project.file(&format!("tests/bench/{name}.c"));
            let mut unit = Unit::program(program(project, kind, name), source).flags([
                "-O2",
                "-D_DEFAULT_SOURCE",
                MEASURED,
            ]);
            unit.headers = vec![project.file("tests/bench/bench.h")];
            cc::build(&library, &unit)?;
        }
    }
    let mut command = super::this_again(&ours)?;
    command.extend(options.arguments());
    Ok(command)
}

fn program(project: &Project, kind: Kind, name: &str) -> PathBuf {
    project.target().join("rdma/figures").join(kind.name()).join(name)
}

/// Measures, where the devices are.
pub(super) fn run(project: &Project, options: &Wanted) -> Result<()> {
    let devices = RdmaPort::devices();
    let first = devices.first().context("no RDMA device here")?.clone();
    let second = devices.get(1).unwrap_or(&first).clone();
    let sizes = if options.latency { &[][..] } else { &SIZES[..] };
    let mut bench = Bench { project, devices: [first, second], sizes, figures: Figures::default() };
    for round in 0..options.rounds.unwrap_or_default() {
        bench.figures.round = round;
        for who in options.who() {
            match who.library() {
                Some(kind) => bench.library(kind)?,
                None if who == Who::Perftest => bench.perftest()?,
                None => bench.fabric()?,
            }
        }
    }
    println!("{}", bench.figures.table());
    Ok(())
}

struct Bench<'a> {
    project: &'a Project,
    devices: [String; 2],
    /// Bytes of the messages and transfers of which several are under way.
    sizes: &'static [usize],
    figures: Figures,
}

impl Bench<'_> {
    /// Two processes, each on a processor; what the first one prints.
    fn pair(&self, job: impl Fn(usize) -> Job + Sync, ready: impl Fn() -> bool) -> Result<String> {
        let on = |who: usize| job(who).under(Path::new("taskset"), &["-c", &who.to_string()]).limit(60);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| on(1).run());
            while !ready() && !other.is_finished() {
                std::thread::sleep(Duration::from_millis(20));
            }
            let said = on(0).run_ok();
            let done = other.join().expect("a job's thread does not panic")?;
            let said = said?.output;
            if done.end != End::Exit(0) {
                bail!("{}\n{}", done.end, tail(&done.output, 10))
            } else {
                Ok(said)
            }
        })
    }

    fn perftest(&mut self) -> Result<()> {
        self.raw(LATENCY, 8, "ib_send_lat", "-n 10000", 4)?;
        for &bytes in self.sizes {
            let options = format!("-t {DEPTH} -n {}", BYTES / bytes);
            self.raw("write", bytes, "ib_write_bw", &options, 3)?;
            self.raw("read", bytes, "ib_read_bw", &options, 3)?;
        }
        Ok(())
    }

    /// The figure in a column of a tool's table.
    fn raw(&mut self, what: &str, bytes: usize, tool: &str, options: &str, column: usize) -> Result<()> {
        let size = bytes.to_string();
        let job = |who: usize| {
            let job = Job::new(tool).args(["-F", "-x", "0", "-s", &size, "-d", &self.devices[who]]);
            let job = job.args(options.split(' '));
            if who == 0 { job.arg("127.0.0.1") } else { job }
        };
        let said = self.pair(job, listening)?;
        let mut rows = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = rows.find(|row| row.first() == Some(&&*size));
        let figure = row.and_then(|row| row.get(column)?.parse().ok());
        self.figures.add("perftest", what, bytes, figure.with_context(|| format!("{tool}:\n{said}"))?);
        Ok(())
    }

    fn fabric(&mut self) -> Result<()> {
        let folder = self.project.folder("rdma/figures/cards")?;
        for who in 0..2 {
            let _ = std::fs::remove_file(folder.join(format!("card{who}")));
        }
        let example = self.project.target().join("release/examples/figures");
        let said = self.pair(|who| Job::new(&example).arg(&folder).arg(who.to_string()), || true)?;
        for line in said.lines() {
            let [what, bytes, figure] = line.split(' ').collect::<Vec<_>>()[..] else { bail!("{line}") };
            if what != LATENCY && self.sizes.is_empty() {
                continue;
            }
            self.figures.add("the fabric", what, bytes.parse()?, figure.parse()?);
        }
        Ok(())
    }

    fn library(&mut self, kind: Kind) -> Result<()> {
        let sizes = self.sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let pings = self.start(kind, "latency", &["typical", "8"])?;
        let windows = match self.sizes {
            [] => String::new(),
            _ => self.start(kind, "bandwidth", &["one", &DEPTH.to_string(), &sizes])?,
        };
        let mut add = |what, bytes, figure: Result<f64>| match figure {
            // What takes a rival too long leaves its place in the table empty.
            Err(error) if kind != Kind::Banyan => {
                println!("{}: {error:#}", kind.name());
                Ok(())
            }
            figure => figure.map(|figure| self.figures.add(kind.name(), what, bytes, figure)),
        };
        add(LATENCY, 8, cell(&pings, "8"))?;
        for &bytes in self.sizes {
            let millions = cell(&windows, &format!("one/{bytes}"));
            add("write", bytes, millions.map(|millions| millions * 1e6 / f64::from(1 << 20)))?;
        }
        Ok(())
    }

    /// What a program prints on two ranks that have devices and no shared memory.
    fn start(&self, kind: Kind, name: &str, args: &[&str]) -> Result<String> {
        let library = Library::open(self.project, kind)?;
        let job = Job::new(library.prefix().join("bin/mpirun"));
        let job = match kind {
            Kind::Banyan => job.env("BANYAN_FABRICS", "rdma"),
            Kind::Openmpi => job
                .args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"])
                .args(["--mca", "pml", "ucx"]),
            _ => job.env("MPIR_CVAR_CH4_NETMOD", "ucx").env("MPIR_CVAR_NOLOCAL", "1"),
        };
        let [first, second] = &self.devices;
        let job = job.env("UCX_NET_DEVICES", format!("{first}:1")).env("SECOND", format!("{second}:1"));
        let job = job.env("UCX_TLS", "rc,self").env("UCX_IB_GID_INDEX", "0");
        // Link-local addresses are in one network, which UCX looks for in tables of routes.
        let job = job.env("UCX_IB_ROCE_REACHABILITY_MODE", "all");
        let job = job.args(["-n", "2", "sh", "-c", RANK]).arg(program(self.project, kind, name)).args(args);
        Ok(job.limit(120).run()?.output)
    }
}

/// Whether a server of perftest's waits for its client. To connect would be taken for one.
fn listening() -> bool {
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    let mut rows = tables.iter().flat_map(|table| table.lines());
    rows.any(|row| {
        let words: Vec<&str> = row.split_whitespace().collect();
        words.get(1).is_some_and(|place| place.ends_with(PERFTEST)) && words.get(3) == Some(&"0A")
    })
}

/// A figure that a program of tests/bench prints.
fn cell(said: &str, name: &str) -> Result<f64> {
    let found = said.lines().find_map(|line| line.strip_prefix(&format!("CELL {name} "))?.split(' ').next());
    found.and_then(|figure| figure.parse().ok()).with_context(|| format!("no {name} in\n{}", tail(said, 20)))
}

/// All figures: of whom, by what and bytes, each with the round that it is of.
#[derive(Default)]
struct Figures {
    round: usize,
    all: BTreeMap<(String, usize), BTreeMap<String, BTreeMap<usize, f64>>>,
}

impl Figures {
    fn add(&mut self, who: &str, what: &str, bytes: usize, figure: f64) {
        println!("{who}: {what} {bytes}: {figure:.2}");
        let row = self.all.entry((what.to_owned(), bytes)).or_default();
        row.entry(who.to_owned()).or_default().insert(self.round, figure);
    }

    /// Medians, each with the median of its ratios to perftest's of the same round: what else uses the cores changes by the minute.
    fn table(&self) -> String {
        let columns = ["perftest", "the fabric", "banyan", "mpich", "openmpi"];
        let mut lines =
            vec![format!("| | {} |", columns.join(" | ")), "|---".repeat(columns.len() + 1) + "|"];
        for ((what, bytes), row) in &self.all {
            let raw = row.get("perftest");
            let shown = columns.iter().map(|who| {
                let Some(figures) = row.get(*who) else { return String::new() };
                let beside = |(round, figure): (&usize, &f64)| Some(figure / raw?.get(round)?);
                let ratio =
                    median(figures.iter().filter_map(beside).collect()).filter(|_| *who != "perftest");
                let ratio = ratio.map(|ratio| format!(" ({ratio:.2})")).unwrap_or_default();
                median(figures.values().copied().collect())
                    .map(|figure| format!("{figure:.1}{ratio}"))
                    .unwrap_or_default()
            });
            lines.push(format!("| {what} {bytes} | {} |", shown.collect::<Vec<_>>().join(" | ")));
        }
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_stand_beside_perftests() {
        let mut figures = Figures::default();
        for (round, figure) in [3.0, 1.0, 8.0].into_iter().enumerate() {
            figures.round = round;
            figures.add("perftest", LATENCY, 8, figure);
            figures.add("banyan", LATENCY, 8, if round == 2 { 1.0 } else { 1.5 * figure });
            if round > 0 {
                figures.add("openmpi", LATENCY, 8, 2.0 * figure);
            }
        }
        let (table, row) = (figures.table(), "| latency 8 | 3.0 |  | 1.5 (1.50) |  | 9.0 (2.00) |");
        assert!(table.ends_with(row), "{table}");
        assert!(cell("CELL 8 12.5 us", "8").is_ok_and(|figure| (figure - 12.5).abs() < 1e-9));
        assert!(cell("SLOW 8", "8").is_err());
    }
}

//! The bench: C programs of our own, and HPCC, under each library in turn, round after round; medians, ratios, targets, plots.

mod budget;
mod cases;
mod contender;
pub(crate) mod output;
mod page;
mod pages;
mod record;
mod results;
mod state;
mod table;
mod targets;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;

use crate::conformance::rust_mpi;
use crate::hosts::{self, Lab, Link};
use crate::library::{Kind, Library};
use crate::process::Job;
use crate::project::{self, Project};
use crate::steps::Tally;
use crate::{debian, hpcc};
use budget::Budget;
use cases::{Case, Figure, Who};
use contender::Contender;
pub(crate) use output::Output;
pub(crate) use pages::written;
use record::{Record, Row};
pub(crate) use results::median;
use results::{Ending, Machine, Results};
use state::Lines;
use table::Style;

/// How often a start is made again that met a change of the machine's state.
const AGAIN: u32 = 2;

/// What to measure.
#[derive(Args)]
pub(crate) struct Options {
    /// The few cells that a change is looked at by first: under 3 minutes
    #[arg(long)]
    quick: bool,
    /// Go on with the results of a bench that was interrupted
    #[arg(long)]
    resume: bool,
    /// Only these parts, separated by commas: latency, coll-16, tcp-rate, ...; `coll` means all that begin so
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Libraries to compare
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = ALL)]
    mpi: Vec<Kind>,
    /// How many times each program is started under each library
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds after which no round but the first three is begun or gone on with; 40 minutes, or 160 s for the quick bench
    #[arg(long)]
    seconds: Option<u64>,
    /// Start cells that are above what they may have beside the best rival, or just below it, alone, this many times more:
    /// their figures are those of these starts, with a range for the ratio
    #[arg(long, value_name = "ROUNDS", default_value_t = 0, conflicts_with = "quick")]
    above: usize,
    /// Keep what is found as that of this processor also where not all was measured, and write its page in docs/src/bench
    #[arg(long)]
    docs: bool,
}

/// Ours first: the table's ratios are ours to the best of the others.
const ALL: [Kind; 4] = [Kind::Banyan, Kind::Mpich, Kind::Openmpi, Kind::Intel];

/// Runs the bench, writes JSON and pages, prints the tables.
pub(crate) fn run(project: &Project, options: &Options) -> Result<()> {
    if options.rounds == 0 || options.mpi.is_empty() {
        bail!("nothing to measure: at least one round and one library");
    }
    let wanted = |case: &Case| {
        options.only.is_empty() || options.only.iter().any(|part| case.part.starts_with(part.as_str()))
    };
    let every = if options.quick { cases::quick() } else { cases::all() };
    let mut cases: Vec<Case> = every.into_iter().filter(wanted).collect();
    if cases.is_empty() {
        bail!("no part begins with {}", options.only.join(" or "));
    }
    let labs = labs(project, &mut cases)?;
    let mut contenders = Vec::new();
    for &kind in &options.mpi {
        contenders.push(Contender::ready(project, kind)?);
    }
    // The machine's programs are also what loads it.
    let machine = Contender::machine(project)?;
    if cases.iter().any(|case| case.who == Who::Machine) {
        contenders.push(machine);
    }
    if cases.iter().any(|case| case.figure == Figure::Report) {
        with_hpcc(project, &mut contenders)?;
    }
    if cases.iter().any(|case| case.who == Who::Rust) {
        with_rust(project, &mut contenders)?;
    }
    let file = project.folder("bench")?.join(if options.quick { "quick.json" } else { "results.json" });
    let mut results = begin(project, options, &file, &cases, &contenders)?;
    let bench = Bench { project, labs: &labs, contenders: &contenders, file: &file };
    let seconds = options.seconds.unwrap_or(if options.quick { 160 } else { 2400 });
    bench.measure(&cases, options.rounds, Duration::from_secs(seconds), &mut results)?;
    if options.above > 0 {
        if results.again.is_empty() {
            results.again = near_bounds(&Record::of(&results));
        }
        bench.measure(&cases::alone(&results.again), options.above, Duration::MAX, &mut results)?;
    }
    show(project, options, &results, &file)
}

/// The emulated hosts that cases ask for, by their number, with links of 0.1 ms and 1 Gbit/s; where there can be none, a line says
/// why, and the cases are left out.
fn labs(project: &Project, cases: &mut Vec<Case>) -> Result<BTreeMap<usize, Lab>> {
    let mut labs = BTreeMap::new();
    if !cases.iter().any(|case| case.hosts > 0) {
        return Ok(labs);
    }
    if let Some(reason) = hosts::why_not(project)? {
        println!("hosts left out: {reason}");
        cases.retain(|case| case.hosts == 0);
    }
    let sizes: BTreeSet<usize> = cases.iter().map(|case| case.hosts).filter(|hosts| *hosts > 0).collect();
    for hosts in sizes {
        let lab = Lab::up(project, &format!("bench-{hosts}"), hosts, Link::Emulated)?;
        lab.net("delay 0.1ms")?;
        lab.net("rate 1gbit")?;
        labs.insert(hosts, lab);
    }
    Ok(labs)
}

/// HPCC for every library; where it is not to be had, a line says why, and the rest is measured all the same.
fn with_hpcc(project: &Project, contenders: &mut [Contender]) -> Result<()> {
    if let Some(missing) = debian::packages(project, hpcc::PACKAGES)? {
        println!("hpcc left out: {} not there: {}", missing.packages.join(" "), missing.reason);
        return Ok(());
    }
    for contender in contenders {
        if let Err(error) = contender.with_hpcc(project) {
            println!("hpcc left out for {}: {error:#}", contender.name());
        }
    }
    Ok(())
}

/// The program in Rust for the libraries that have one. The crate `mpi` on MPICH is left out where it cannot be built.
fn with_rust(project: &Project, contenders: &mut [Contender]) -> Result<()> {
    let missing = debian::packages(project, rust_mpi::PACKAGES)?;
    for contender in contenders {
        let built = match &missing {
            Some(missing) if contender.name() != results::OURS => {
                Err(anyhow!("{} not there: {}", missing.packages.join(" "), missing.reason))
            }
            _ => contender.with_rust(project),
        };
        if let Err(error) = built {
            println!("rust left out for {}: {error:#}", contender.name());
        }
    }
    Ok(())
}

/// Results to go on with, or new ones.
fn begin(
    project: &Project,
    options: &Options,
    file: &Path,
    cases: &[Case],
    contenders: &[Contender],
) -> Result<Results> {
    let bench: Vec<String> = cases.iter().map(Case::id).collect();
    let mut libraries = Vec::new();
    for contender in contenders.iter().filter(|contender| contender.name() != results::MACHINE) {
        libraries.push((contender.name().to_owned(), contender.version(project)?));
    }
    if options.resume {
        let results = Results::load(file).context("there is nothing to go on with")?;
        if results.bench != bench || results.libraries != libraries {
            bail!("{} is of another bench; leave --resume out to begin anew", file.display());
        }
        return Ok(results);
    }
    Ok(Results::new(machine(project), libraries, bench))
}

/// What all starts of a bench have in common.
struct Bench<'a> {
    project: &'a Project,
    labs: &'a BTreeMap<usize, Lab>,
    contenders: &'a [Contender],
    /// Where results are written to, after each start.
    file: &'a Path,
}

impl Bench<'_> {
    /// All rounds for which there is time.
    fn measure(&self, cases: &[Case], rounds: usize, limit: Duration, results: &mut Results) -> Result<()> {
        let budget = Budget::new(limit);
        let mut longest = Duration::ZERO;
        for round in 0..rounds {
            for case in cases {
                if !budget.allows(round, longest) {
                    println!("time is up in round {}", round + 1);
                    return Ok(());
                }
                for turn in 0..self.contenders.len() {
                    // Each round begins with another library, so that none always follows the same one.
                    let contender = &self.contenders[(turn + round) % self.contenders.len()];
                    if !contender.takes(case) || results.settled(&case.id(), contender.name(), round) {
                        continue;
                    }
                    let lab = self.labs.get(&case.hosts);
                    let (output, met) = start(self.project, case, contender, lab, results)?;
                    println!("{}", told(budget.spent(), round, case, contender, &output, &met));
                    longest = longest.max(Duration::from_secs_f64(met.1));
                    results.add(case, contender.name(), round, output, met);
                    results.save(self.file)?;
                }
            }
        }
        Ok(())
    }
}

/// Cells whose ratio is above its bound, or less than a twentieth below it: by chance they may be on either side.
fn near_bounds(record: &Record) -> Vec<String> {
    let near = |(_, ratio, bound): &(&Row, f64, f64)| ratio.is_finite() && *ratio > bound * 0.95;
    targets::bounded(record).filter(near).map(|(row, ..)| row.cell.clone()).collect()
}

/// How a start ended, the seconds that it took, and what tells the state of the machine.
type Met = (Ending, f64, Option<Lines>);

/// One start: one more, if the machine's state changed meanwhile, and does not change in each of a few.
fn start(
    project: &Project,
    case: &Case,
    contender: &Contender,
    lab: Option<&Lab>,
    results: &Results,
) -> Result<(output::Output, Met)> {
    let mut again = if case.shares_cores() { AGAIN } else { 0 };
    loop {
        let before = state::line();
        let (output, ending, seconds) = contender.run(project, case, lab)?;
        let after = state::line();
        let lines = before.zip(after).map(|(before, after)| Lines { before, after });
        if again == 0 || ending != Ending::Done || !results.changed(lines) {
            return Ok((output, (ending, seconds, lines)));
        }
        again -= 1;
    }
}

/// One start in one line.
fn told(
    spent: Duration,
    round: usize,
    case: &Case,
    contender: &Contender,
    output: &output::Output,
    (ending, seconds, _): &Met,
) -> String {
    let mut line = format!(
        "{:5.0} s  round {}  {:14} {:3} ranks  {:8} {:4} cells {seconds:6.1} s",
        spent.as_secs_f64(),
        round + 1,
        case.part,
        case.ranks,
        contender.name(),
        output.cells.len(),
    );
    match ending {
        Ending::Done => {}
        Ending::Slow => line.push_str("  slow"),
        Ending::Failed(why) => line.push_str(&format!("  failed: {}", why.replace('\n', " | "))),
    }
    for (cell, why) in &output.wrong {
        line.push_str(&format!("  {cell}: {why}"));
    }
    line
}

/// Prints the tables, writes the plots; what was measured in whole, or is asked for, is kept as that of this processor.
fn show(project: &Project, options: &Options, results: &Results, file: &Path) -> Result<()> {
    let record = Record::of(results);
    let html = file.with_extension("html");
    project::write(&html, page::html(&record)?)?;
    for line in table::failures(&record) {
        println!("{line}");
    }
    println!("\n{}", table::medians(&record, Style::Plain));
    println!("{}", table::compared(&record));
    for line in table::machine(&record) {
        println!("{line}");
    }
    if results.machine.load > 0.5 {
        println!("the machine was not quiet before the bench began");
    }
    println!("as JSON: {}\nas plots: {}", file.display(), html.display());
    let whole = !options.quick && options.only.is_empty() && options.mpi == ALL;
    if options.docs || whole {
        println!("the page of this processor: {}", pages::keep(project.root(), &record)?.display());
    }
    println!("\n{}\n\n{}", table::LEGEND, table::targets(&record, Style::Plain));
    Ok(())
}

/// A quick look for `cargo xtask test`: the quick bench once on one library, with generous bounds.
pub(crate) fn sanity(project: &Project, library: &Library) -> Result<Tally> {
    let contender = Contender::built(project, library.clone())?;
    let mut tally = Tally::default();
    for case in cases::quick() {
        let (output, ending, _) = contender.run(project, &case, None)?;
        if ending != Ending::Done || output.cells.is_empty() {
            tally.check(&case.id(), Err(anyhow::anyhow!("{ending:?}")));
        }
        for (cell, why) in &output.wrong {
            tally.check(&case.path(cell), Err(anyhow::anyhow!("{why}")));
        }
        for (cell, value, unit) in &output.cells {
            tally.notes.push(format!("{}: {} {unit}", case.path(cell), table::figure(*value)));
            let bound = bound(unit);
            let verdict = if *value <= bound {
                Ok(())
            } else {
                Err(anyhow::anyhow!("{value:.3} {unit}, more than {bound}"))
            };
            tally.check(&case.path(cell), verdict);
        }
    }
    Ok(tally)
}

/// More than this is a fault of ours even on a slow machine that does much else.
fn bound(unit: &str) -> f64 {
    match unit {
        "us" => 1e6,
        "ms" => 1e4,
        "MB" => 4.0,
        _ => f64::INFINITY,
    }
}

fn machine(project: &Project) -> Machine {
    let read = |path: &str| project::read(&PathBuf::from(path)).unwrap_or_default();
    let said = |program: &str, args: &[&str]| {
        let done = Job::new(program).args(args).folder(project.root()).run_ok();
        done.map(|done| done.output.trim().to_owned()).unwrap_or_default()
    };
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        line.and_then(|line| line.split_once(':').map(|(_, value)| value.trim().to_owned()))
    };
    let cpu = read("/proc/cpuinfo");
    // As the kernel describes it on x86, or on Arm.
    let part = field(&cpu, "CPU implementer").zip(field(&cpu, "CPU part"));
    let kib = field(&read("/proc/meminfo"), "MemTotal")
        .and_then(|text| text.split_whitespace().next().and_then(|number| number.parse::<f64>().ok()));
    Machine {
        processor: field(&cpu, "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        family: field(&cpu, "cpu family").zip(field(&cpu, "model\t")).or(part),
        cores: std::thread::available_parallelism().map_or(0, |n| n.get()),
        memory_gib: kib.unwrap_or(0.0) / 1048576.0,
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        load: read("/proc/loadavg").split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0),
        commit: said("git", &["rev-parse", "--short", "HEAD"]),
        date: said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
    }
}

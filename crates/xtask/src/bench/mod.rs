//! The bench: one C program for each cell of a table, compiled for each library, run alternately, medians.

mod cells;
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::cc::{self, Unit};
use crate::library::{Fabric, Kind, Library};
use crate::process::{End, tail};
use crate::project::{self, Project};
use crate::steps::Tally;
use cells::{Cell, Measure};
use table::{Row, Value};

/// What to measure.
#[derive(Args)]
pub(crate) struct Options {
    /// Only cells whose name contains one of these, separated by commas
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Libraries to compare
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = ALL)]
    mpi: Vec<Kind>,
    /// How many times each cell is measured for each library
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Where to write the results as JSON, besides target/bench/lite.json
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Ours first: the table's ratios are ours to the best of the others.
const ALL: [Kind; 4] = [Kind::Banyan, Kind::Mpich, Kind::Openmpi, Kind::Intel];

/// The most seconds that one run of one cell may take.
const CELL_LIMIT: u64 = 10;

/// Runs the bench, prints the table, writes JSON.
pub(crate) fn run(project: &Project, options: &Options) -> Result<()> {
    if options.rounds == 0 || options.mpi.is_empty() {
        bail!("nothing to measure: at least one round and one library");
    }
    let libraries = options
        .mpi
        .iter()
        .map(|&kind| Contender::ready(project, kind))
        .collect::<Result<Vec<Contender>>>()?;
    let load = load_average();
    let wanted =
        |cell: &Cell| options.only.is_empty() || options.only.iter().any(|part| cell.name.contains(part));
    let mut rows = Vec::new();
    for cell in cells::LITE.iter().filter(|cell| wanted(cell)) {
        let row = measure(project, cell, &libraries, options.rounds)?;
        println!("{}", table::line(&row, &libraries_of(&libraries)));
        rows.push(row);
    }
    if rows.is_empty() {
        bail!("no cell's name contains {}", options.only.join(" or "));
    }
    let names = libraries_of(&libraries);
    println!("\n{}", table::text(&rows, &names));
    if load > 0.5 {
        println!(
            "the machine was not quiet: {load:.1} other processes were running before the bench began\n"
        );
    }
    let json = table::json(&rows, &names, load)?;
    let file = project.folder("bench")?.join("lite.json");
    project::write(&file, &json)?;
    println!("as JSON: {}", file.display());
    if let Some(path) = &options.json {
        project::write(path, &json)?;
    }
    Ok(())
}

/// A quick look for `cargo xtask test`: each cell once on one library, with generous bounds.
pub(crate) fn sanity(project: &Project, library: &Library) -> Result<Tally> {
    let contender = Contender::built(project, library.clone())?;
    let mut tally = Tally::default();
    for cell in cells::LITE {
        let value = once(project, cell, &contender);
        let verdict = match &value {
            Ok(Value::Measured(value)) => {
                tally.notes.push(format!("{}: {value:.3} {}", cell.name, cell.unit));
                if *value <= cell.bound {
                    Ok(())
                } else {
                    Err(anyhow::anyhow!("{value:.3} {}, more than {}", cell.unit, cell.bound))
                }
            }
            Ok(Value::Slow) => Err(anyhow::anyhow!("took more than {CELL_LIMIT} s")),
            Ok(Value::Failed(why)) => Err(anyhow::anyhow!("{why}")),
            Err(error) => Err(anyhow::anyhow!("{error:#}")),
        };
        tally.check(cell.name, verdict);
    }
    Ok(tally)
}

/// A library with the bench programs built for it.
struct Contender {
    library: Library,
    bin: PathBuf,
}

impl Contender {
    fn ready(project: &Project, kind: Kind) -> Result<Contender> {
        Contender::built(project, Library::open(project, kind)?)
    }

    fn built(project: &Project, library: Library) -> Result<Contender> {
        let bin = project.folder(&format!("bench/{}", library.name()))?;
        let units: Vec<Unit> = project::files_with(&project.file("tests/bench"), "c")?
            .into_iter()
            .map(|source| {
                let mut unit = Unit::program(bin.join(project::stem(&source)), source);
                unit.headers.push(project.file("tests/bench/bench.h"));
                unit.flags(["-O2", "-std=gnu11"])
            })
            .collect();
        for result in cc::build_all(project, &library, &units) {
            result?;
        }
        Ok(Contender { library, bin })
    }
}

fn libraries_of(contenders: &[Contender]) -> Vec<&'static str> {
    contenders.iter().map(|contender| contender.library.name()).collect()
}

/// Measures a cell on all libraries in turn, `rounds` times; what was too slow once is not tried again.
fn measure(project: &Project, cell: &Cell, contenders: &[Contender], rounds: usize) -> Result<Row> {
    let mut values: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    let mut given_up: BTreeMap<&'static str, Value> = BTreeMap::new();
    for round in 0..rounds {
        for turn in 0..contenders.len() {
            // Each round begins with another library, so that none always follows the same one.
            let contender = &contenders[(turn + round) % contenders.len()];
            let name = contender.library.name();
            if given_up.contains_key(name) {
                continue;
            }
            match once(project, cell, contender)? {
                Value::Measured(value) => values.entry(name).or_default().push(value),
                other => {
                    given_up.insert(name, other);
                }
            }
        }
    }
    let mut row = Row { name: cell.name, unit: cell.unit, values: BTreeMap::new() };
    for (name, values) in values {
        row.values.insert(name, Value::Measured(median(values)));
    }
    row.values.extend(given_up);
    Ok(row)
}

fn once(project: &Project, cell: &Cell, contender: &Contender) -> Result<Value> {
    let program = match cell.program {
        "true" => PathBuf::from("true"),
        program => contender.bin.join(program),
    };
    let job = contender.library.mpirun(cell.ranks, &program, Fabric::Shm)?.args(cell.args).limit(CELL_LIMIT);
    let done = job.folder(project.folder("bench")?).run()?;
    match done.end {
        End::Exit(0) => {}
        End::TimedOut => return Ok(Value::Slow),
        end => return Ok(Value::Failed(format!("{end}: {}", tail(&done.output, 3)))),
    }
    Ok(Value::Measured(match cell.measure {
        Measure::Wall => done.time.as_secs_f64() * 1e3,
        Measure::Printed => {
            result_in(&done.output).with_context(|| format!("{}: no RESULT\n{}", cell.name, done.output))?
        }
    }))
}

/// How many processes wanted to run in the last minute, on average.
fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(0.0)
}

/// The number of the line `RESULT name number unit`.
fn result_in(output: &str) -> Option<f64> {
    let line = output.lines().find(|line| line.starts_with("RESULT "))?;
    line.split_whitespace().nth(2)?.parse().ok()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_results() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-12);
        assert!((median(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
        assert_eq!(result_in("noise\nRESULT allreduce 1.5e3 us\n"), Some(1500.0));
        assert_eq!(result_in("nothing"), None);
    }
}

//! `cargo xtask costs`: measures on this machine what the constants of the cost model stand for, and prints them beside the
//! estimates that the model has (`coll::Model`) by the profile of this machine. It changes none of them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use banyan_coll::{Cost, Groups, Model, SharedCaps, Topology};
use banyan_topo::{CpuSet, Kept, Profile};
use clap::Args;

use crate::bench::Output;
use crate::cc::{self, Unit};
use crate::library::{Fabric, Kind, Library};
use crate::process::{End, tail};
use crate::project::Project;

/// How long to measure.
#[derive(Args)]
pub(crate) struct Options {
    /// How many times each figure is taken
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

/// A constant of the model, and the cell of `tests/bench/costs.c` that measures it.
struct Row {
    constant: &'static str,
    /// What is measured.
    what: &'static str,
    fabric: Fabric,
    cell: &'static str,
    /// What the model takes it for.
    cost: Cost,
}

const fn row(
    constant: &'static str,
    fabric: Fabric,
    cell: &'static str,
    cost: Cost,
    what: &'static str,
) -> Row {
    Row { constant, what, fabric, cell, cost }
}

const NONE: Cost = Cost::ZERO;
const MESSAGE: Cost = Cost { steps: 1.0, waits: 1.0, ..NONE };
const MORE: Cost = Cost { extra: 1.0, ..NONE };
const BYTE: Cost = Cost { bytes: 1.0, ..NONE };

const ROWS: [Row; 12] = [
    row("alpha", Fabric::TCP, "message", MESSAGE, "a message of 8 bytes between nodes (here: over TCP)"),
    row("overhead", Fabric::TCP, "message_more", MORE, "one more message of a stream both ways"),
    row("beta", Fabric::TCP, "message_byte", BYTE, "a byte of a message, from 64 KiB to 1 MiB"),
    row("near_alpha", Fabric::SHM, "message", MESSAGE, "a message of 8 bytes within a node"),
    row("near_overhead", Fabric::SHM, "message_more", MORE, "one more message of a stream both ways"),
    row("near_beta", Fabric::SHM, "message_byte", BYTE, "a byte of a message, from 64 KiB to 1 MiB"),
    row(
        "transfer",
        Fabric::SHM,
        "publication",
        Cost { transfers: 1.0, waits: 1.0, ..NONE },
        "both publish in CICO buffers, and see what the other published (a barrier)",
    ),
    row("copy", Fabric::SHM, "copy_byte", Cost { copied: 1.0, ..NONE }, "a byte of 128 KiB in the cache"),
    row(
        "gamma",
        Fabric::SHM,
        "reduce_byte",
        Cost { reduced: 1.0, ..NONE },
        "a byte of 128 KiB in the cache, a sum of doubles",
    ),
    row(
        "get",
        Fabric::SHM,
        "get",
        Cost { gets: 1.0, ..NONE },
        "process_vm_readv of 8 bytes, both ways at once",
    ),
    row(
        "single_copy_byte",
        Fabric::SHM,
        "get_byte",
        Cost { got_bytes: 1.0, ..NONE },
        "a byte of it, from 64 KiB to 1 MiB",
    ),
    row(
        "turn",
        Fabric::SHM,
        "turn",
        Cost { waits: 0.5, ..NONE },
        "sched_yield to the other rank of the core",
    ),
];

/// Seconds by cell, of each round.
type Figures = BTreeMap<String, Vec<f64>>;

/// Measures and prints.
pub(crate) fn run(project: &Project, options: &Options) -> Result<()> {
    let library = Library::open(project, Kind::Banyan)?;
    let program = project.folder("bench/banyan")?.join("costs");
    let mut unit =
        Unit::program(program.clone(), project.file("tests/bench/costs.c")).flags(["-O2", "-std=gnu11"]);
    unit.headers.push(project.file("tests/bench/bench.h"));
    cc::build(&library, &unit)?;
    let conditions = match project.jobs {
        1 => vec![1],
        _ => vec![2, 1],
    };
    let profile = Kept::here().profile();
    println!("estimates by the profile that is {}\n", profile.source());
    for cores in conditions {
        let mut figures = [Fabric::TCP, Fabric::SHM].map(|fabric| (fabric, Figures::new()));
        for _ in 0..options.rounds.max(1) {
            for (fabric, figures) in &mut figures {
                take(&library, &program, *fabric, cores, figures)?;
            }
        }
        println!("{}", if cores == 2 { "two ranks, a core for each" } else { "two ranks on one core" });
        println!("{:17} {:>14} {:>14} {:>7}", "constant", "estimate", "measured", "ratio");
        for (fabric, figures) in &mut figures {
            for row in ROWS.iter().filter(|row| row.fabric == *fabric) {
                if let Some(line) = line(&profile, row, cores, figures.get_mut(row.cell)) {
                    println!("{line}");
                }
            }
        }
        println!();
    }
    Ok(())
}

/// Runs the program once, with both ranks on one core or with a core for each.
fn take(library: &Library, program: &Path, fabric: Fabric, cores: u32, figures: &mut Figures) -> Result<()> {
    let mut job = library
        .mpirun(2, program, fabric)?
        .env("BANYAN_COLL", "barrier=cico")
        .env("BANYAN_P2P", "ring")
        .limit(60);
    if cores == 1 {
        job = job.under(Path::new("taskset"), &["-c", &first_core()?]);
    }
    let done = job.run()?;
    let output = Output::read(&done.output);
    if done.end != End::Exit(0) || output.slow.is_some() {
        bail!("{}: {}\n{}", job.line(), done.end, tail(&done.output, 20));
    }
    for (cell, why) in output.wrong {
        println!("{cell} over {}: {why}", fabric.name());
    }
    for (cell, seconds, _) in output.cells {
        figures.entry(cell).or_default().push(seconds);
    }
    Ok(())
}

/// The number of the first core that this process may use.
fn first_core() -> Result<String> {
    let first = CpuSet::allowed().iter().next();
    Ok(first.context("the system does not say which cores may be used")?.to_string())
}

/// Constant, estimate, median of what was measured, their ratio, and what was measured; `None` where the model has no such cost.
fn line(profile: &Profile, row: &Row, cores: u32, figures: Option<&mut Vec<f64>>) -> Option<String> {
    let nodes = if row.fabric == Fabric::TCP { 2 } else { 1 };
    let assumed = Topology::assumed(2, true, cores);
    // Messages by the ring, as they are measured.
    let shared = assumed.shared.map(|shared| SharedCaps { single_copy: false, ..shared });
    let topology = Topology { levels: Groups::on_nodes(nodes, 2), shared, ..assumed };
    let estimate = Model::of(profile, 1).time(&row.cost, &topology, banyan_coll::Kind::Alltoall);
    let figures = figures.filter(|_| estimate > 0.0)?;
    figures.sort_by(f64::total_cmp);
    let measured = figures[figures.len() / 2];
    // What is a time of one byte or of one thing.
    let shown = |seconds: f64| match row.cell.ends_with("byte") {
        true => format!("{:.4} ns/byte", seconds * 1e9),
        false => format!("{:.3} us", seconds * 1e6),
    };
    let (constant, ratio) = (row.constant, measured / estimate);
    Some(format!("{constant:17} {:>14} {:>14} {ratio:>7.2}  {}", shown(estimate), shown(measured), row.what))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a core for each rank the estimate of a row is the constant that it is named after.
    #[test]
    fn every_constant_of_the_model_is_measured() {
        let profile = Profile::default();
        let Model { links: [far, .., near], gamma, copy, get, single_copy_byte, turn, .. } =
            Model::of(&profile, 1);
        let constants = [
            ("alpha", far.alpha),
            ("overhead", far.overhead),
            ("beta", far.beta),
            ("near_alpha", near.alpha),
            ("near_overhead", near.overhead),
            ("near_beta", near.beta),
            ("transfer", near.transfer),
            ("copy", copy),
            ("gamma", gamma),
            ("get", get),
            ("single_copy_byte", single_copy_byte),
            ("turn", turn),
        ];
        for ((name, constant), row) in constants.into_iter().zip(&ROWS) {
            assert_eq!(row.constant, name);
            let (cores, measured) =
                (if name == "turn" { 1 } else { 2 }, &mut vec![3.0 * constant, 2.0 * constant, 0.0]);
            let line = line(&profile, row, cores, Some(measured)).unwrap();
            assert_eq!(line.split_whitespace().nth(5), Some("2.00"), "{line}");
        }
        assert_eq!(line(&profile, &ROWS[11], 2, Some(&mut vec![1.0])), None);
    }
}

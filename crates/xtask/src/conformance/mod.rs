//! Test suites that we did not write, run against our library or, to prove the runner, against MPICH; and what of our own tests
//! takes too long for each change.

mod data_parallel;
mod makefile;
mod mpich;
pub(crate) mod rust_mpi;
mod rust_native;
mod skips;
mod suite;
mod testlist;

use anyhow::{Result, bail};
use clap::Args;

pub(crate) use self::rust_native::dependent;
use self::suite::Plan;
use crate::hosts::{attacks, faults};
use crate::library::{Fabric, Kind, Library};
use crate::project::Project;
use crate::steps::{self, Step, Tally};
use crate::test::{self, fuzz, programs};

/// What to run.
#[derive(Args)]
pub(crate) struct Options {
    /// Suites to run, of mpich, rust-mpi, rust-native, hpcc, netpipe, data-parallel, fuzz, faults, attacks, valgrind and verifier; all of them if none is named
    suites: Vec<String>,
    /// Only these tests: folders or folder/name, separated by commas
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Which MPI library to test
    #[arg(long, value_enum, default_value_t = Kind::Banyan)]
    mpi: Kind,
    /// Which way messages go
    #[arg(long, default_value = "shm")]
    fabric: Fabric,
    /// Leave the long and the large ones out, as CI does
    #[arg(long)]
    quick: bool,
    /// Show the output of every test that is run
    #[arg(long)]
    verbose: bool,
}

/// How long each fuzz target runs here, in seconds.
const FUZZ: u64 = 120;

/// Runs the suites asked for; true if nothing failed.
pub(crate) fn run(project: &Project, options: &Options) -> Result<bool> {
    let library = || Library::open(project, options.mpi);
    let plan =
        Plan { only: &options.only, fabric: options.fabric, quick: options.quick, verbose: options.verbose };
    let steps = [
        Step::new("mpich", || mpich::run(project, &library()?, &plan)),
        Step::new("rust-mpi", || rust_mpi(project, &library()?, &plan)),
        Step::new("rust-native", || rust_native::run(project, &library()?, &plan)),
        Step::new("hpcc", || programs::hpcc(project, &library()?, options.fabric)),
        Step::new("netpipe", || programs::netpipe(project, &library()?, options.fabric)),
        Step::new("data-parallel", || {
            let run = || data_parallel::run(project, &library()?, options.fabric);
            test::having(project, data_parallel::PACKAGES, run)
        }),
        Step::new("fuzz", || test::having(project, &["g++"], || fuzz::run(project, FUZZ))),
        Step::new("faults", || faults::table(project)),
        Step::new("attacks", || attacks::run(project, options.quick)),
        Step::new("valgrind", || test::valgrind(project)),
        Step::new("verifier", || test::rust::verifier(project)),
    ];
    if let Some(unknown) = options.suites.iter().find(|suite| !steps.iter().any(|step| step.name == **suite))
    {
        bail!(
            "there is no suite {unknown}; there are: {}",
            steps.each_ref().map(|step| step.name).join(", ")
        );
    }
    let wanted =
        |step: &&Step<'_>| options.suites.is_empty() || options.suites.iter().any(|name| name == step.name);
    Ok(steps::run(&steps.iter().filter(wanted).collect::<Vec<_>>()))
}

/// MPICH's tests as `cargo xtask test` runs them.
pub(crate) fn mpich_quick(project: &Project, library: &Library) -> Result<Tally> {
    mpich::run(project, library, &quick(&[]))
}

/// Three examples of the `mpi` crate, as `cargo xtask test` runs them.
pub(crate) fn rust_mpi_quick(project: &Project, library: &Library) -> Result<Tally> {
    rust_mpi(project, library, &quick(&rust_mpi::QUICK.map(str::to_owned)))
}

fn quick(only: &[String]) -> Plan<'_> {
    Plan { only, fabric: Fabric::SHM, quick: true, verbose: false }
}

fn rust_mpi(project: &Project, library: &Library, plan: &Plan<'_>) -> Result<Tally> {
    test::having(project, rust_mpi::PACKAGES, || rust_mpi::run(project, library, plan))
}

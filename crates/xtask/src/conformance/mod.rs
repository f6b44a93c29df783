//! Test suites that we did not write, run against our library or, to prove the runner, against MPICH.

mod makefile;
mod mpich;
mod skips;
mod testlist;

use anyhow::{Result, bail};
use clap::Args;

use crate::library::{Fabric, Kind, Library};
use crate::project::Project;
use crate::steps::{self, Step, Tally};

/// What to run.
#[derive(Args)]
pub(crate) struct Options {
    /// Suites to run; all of them if none is named: mpich
    suites: Vec<String>,
    /// Only these tests: folders or folder/name, separated by commas
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Which MPI library to test
    #[arg(long, value_enum, default_value_t = Kind::Banyan)]
    mpi: Kind,
    /// Which way messages go
    #[arg(long, value_enum, default_value_t = Fabric::Shm)]
    fabric: Fabric,
    /// Leave the long and the large ones out, as CI does
    #[arg(long)]
    quick: bool,
    /// Show the output of every test that is run
    #[arg(long)]
    verbose: bool,
}

/// Runs the suites asked for; true if nothing failed.
pub(crate) fn run(project: &Project, options: &Options) -> Result<bool> {
    if let Some(unknown) = options.suites.iter().find(|suite| *suite != "mpich") {
        bail!("there is no suite {unknown}; there is: mpich");
    }
    let mpich = Step::new("MPICH's own tests", || {
        let library = Library::open(project, options.mpi)?;
        let plan = mpich::Plan {
            only: &options.only,
            fabric: options.fabric,
            quick: options.quick,
            verbose: options.verbose,
        };
        mpich::run(project, &library, &plan)
    });
    Ok(steps::run(&[&mpich]))
}

/// MPICH's tests as `cargo xtask test` runs them.
pub(crate) fn mpich_quick(project: &Project, library: &Library) -> Result<Tally> {
    mpich::run(project, library, &mpich::Plan { only: &[], fabric: Fabric::Shm, quick: true, verbose: false })
}
